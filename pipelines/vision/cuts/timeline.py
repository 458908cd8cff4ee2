"""The cuts of a programme: those inside each of its parts, and one wherever two parts meet.

Cuts are looked for in each part as if it were alone: frame rate and picture shape may
change where parts meet, and a cut there is known, not found. So a programme's scenes are
those of its parts, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipelines.vision.cuts.detector import Cut, CutKind


def programme_cuts(
    starts_ms: Sequence[int], cuts_of_parts: Sequence[Sequence[Cut]]
) -> tuple[Cut, ...]:
    """All cuts on the programme's timeline, in order.

    ``starts_ms`` says when each part starts there; its cuts' times count from then. A
    video that was never cut up is a single part.
    """
    cuts: list[Cut] = []
    for index, (start_ms, own) in enumerate(zip(starts_ms, cuts_of_parts, strict=True)):
        if index:
            cuts.append(Cut(start_ms, CutKind.HARD, 1.0, start_ms, start_ms))
        cuts += [_moved(cut, start_ms) for cut in own]
    return tuple(cuts)


def _moved(cut: Cut, by_ms: int) -> Cut:
    return replace(
        cut,
        time_ms=cut.time_ms + by_ms,
        start_ms=cut.start_ms + by_ms,
        end_ms=cut.end_ms + by_ms,
    )
