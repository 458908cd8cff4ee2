"""What a decoder's search gives back, as words. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from models.contracts import Word

FRAME_SECONDS = 0.01
_VARIANT = re.compile(r"\(\d+\)$")

DecodedSegment = tuple[str, int, int, float]
"""Dictionary entry, first frame, last frame (included), posterior probability."""


def is_filler(entry: str) -> bool:
    """Whether a dictionary entry stands for silence or noise: ``<s>``, ``<sil>``, ``[NOISE]``."""
    return entry.startswith(("<", "[", "+"))


def spelling(entry: str) -> str:
    """The word without the mark of its pronunciation: ``the(2)`` is ``the``."""
    return _VARIANT.sub("", entry)


def spoken_words(segments: Iterable[DecodedSegment], duration_seconds: float) -> tuple[Word, ...]:
    """The words among the segments, in seconds, inside the chunk."""
    words = []
    for entry, first, last, probability in segments:
        if is_filler(entry):
            continue
        start = min(first * FRAME_SECONDS, duration_seconds)
        end = min((last + 1) * FRAME_SECONDS, duration_seconds)
        words.append(Word(spelling(entry), start, end, min(1.0, max(0.0, probability))))
    return tuple(words)
