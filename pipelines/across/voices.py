"""Known voices among the speakers of a job: imported by the API process, so without Ray."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipelines.types import SpeakerVoice

_KNOWN_NEARNESS = 0.55
_KNOWN_MARGIN = 0.1
"""Cosines: of a known voice at least, and so much more than of any other."""


def recognise(
    found: Sequence[SpeakerVoice], known: Sequence[tuple[str, npt.NDArray[np.float32]]]
) -> dict[str, str]:
    """Return speakers of one track who are known voices: the speaker's id to the voice's name.

    ``known`` has unit vectors, one for each sample of a voice; the nearest of a voice counts. A
    voice is one speaker at most, and near by itself: another voice that is nearly as near leaves
    the speaker unknown. Precision before recall; bounds by ``benchmarks/voices.py``.
    """
    names = sorted({name for name, _ in known})
    if not found or not names:
        return {}
    nearness = np.array([each.vector for each in found]) @ np.array([it for _, it in known]).T
    best = np.array(
        [nearness[:, [each == name for each, _ in known]].max(axis=1) for name in names]
    ).T
    import scipy.optimize  # the API imports this module, and needs none of it at its start

    rows, columns = scipy.optimize.linear_sum_assignment(-best)
    recognised = {}
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        others = np.delete(best[row], column)
        is_alone = not len(others) or best[row, column] - others.max() >= _KNOWN_MARGIN
        if best[row, column] >= _KNOWN_NEARNESS and is_alone:
            recognised[found[row].speaker] = names[column]
    return recognised
