"""Detected speech that no word covers, and the words of another attempt in it. Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace

from models.contracts import Samples, Word
from pipelines.media.audio import LEVEL_FRAME_SECONDS
from pipelines.speech.languages import FITTING, WELL_FITTING, SpokenPart, quiet_places
from pipelines.speech.regions import Chunk
from pipelines.speech.words import TrackWord

LEAST_UNCOVERED_SECONDS = 0.5
"""Detected speech without words that is at least so long is decoded again."""
MOST_UNCOVERED = 4
"""So many stretches of a chunk are decoded again, the longest ones."""
_LONGEST_UNCOVERED_SECONDS = 5.0
"""About; longer stretches are cut."""
_WORD_REACH_SECONDS = 0.15
"""Speech so near to a word is covered by it."""
_REPETITION_CONFIDENCE = 0.5
"""A less probable word beside the same one is that word's end: the last of a clip was there twice,
at 0.40 and 0.43; words that are spoken again have 0.9 and more."""


_FEW_WORDS = 5
"""What is longer has other evidence: a text that fits is not made of noise by chance."""
_UNHEARD = 0.1
"""Probability of a word, below which the sound alone does not give it."""
_LOOKED_AT = 8
_IMPROBABLE = 0.15
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.133, 2.0
_A_SECOND_SHORT = 15.0
_MOST_ANOMALOUS = 3.0


def uncovered(
    chunk: Chunk, words: Sequence[TrackWord], least_seconds: float = LEAST_UNCOVERED_SECONDS
) -> list[tuple[int, int]]:
    """Stretches of the chunk's detected speech without words, in frames of the track."""
    reach = round(_WORD_REACH_SECONDS / LEVEL_FRAME_SECONDS)
    covered = sorted(
        (
            math.floor(word.start_seconds / LEVEL_FRAME_SECONDS) - reach,
            math.ceil(word.end_seconds / LEVEL_FRAME_SECONDS) + reach,
        )
        for word in words
    )
    least = round(least_seconds / LEVEL_FRAME_SECONDS)
    found = []
    for first, end in chunk.detected:
        start = first
        for low, high in [*covered, (end, end)]:
            if min(low, end) - start >= least:
                found.append((start, min(low, end)))
            start = max(start, min(high, end))
    return found


def longest_gaps(
    chunk: Chunk, parts: Sequence[SpokenPart], samples: Samples, least_seconds: float
) -> list[tuple[int, tuple[int, int]]]:
    """The longest stretches without words, each with the place of the part that it is in.

    Those that a decoder may lose its way in again are cut where they are quiet.
    """
    gaps = uncovered(chunk, [word for part in parts for word in part.words], least_seconds)
    longest = sorted(gaps, key=lambda gap: gap[0] - gap[1])[:MOST_UNCOVERED]
    found = []
    for start, end in sorted(longest):
        seconds = (end - start) * LEVEL_FRAME_SECONDS
        count = math.ceil(seconds / _LONGEST_UNCOVERED_SECONDS)
        into = (start - chunk.first_frame) * LEVEL_FRAME_SECONDS
        places = {
            chunk.first_frame + place
            for number in range(1, count)
            for place, _ in quiet_places(samples, into + seconds * number / count, 1.0)[:1]
        }
        inside = [place for place in sorted(places) if start < place < end]
        for low, high in itertools.pairwise([start, *inside, end]):
            middle = (low + high) // 2
            place = next(i for i, part in enumerate(parts) if middle < part.end_frame)
            found.append((place, (low, high)))
    return found


def is_invented(words: Sequence[Word]) -> bool:
    """Whether words are improbable, or too short or too long to be spoken, nearly all of them.

    ``is_segment_anomaly`` of Whisper's own ``transcribe.py``, which looks at the first eight.
    """
    scores = [
        (word.confidence < _IMPROBABLE)
        + _A_SECOND_SHORT * max(0.0, _SHORTEST_SECONDS - seconds)
        + max(0.0, seconds - _LONGEST_SECONDS)
        for word in words[:_LOOKED_AT]
        for seconds in (word.end_seconds - word.start_seconds,)
    ]
    return sum(scores) >= _MOST_ANOMALOUS or sum(scores) + 0.01 >= len(scores)


def founded(part: SpokenPart) -> SpokenPart:
    """The part, without its words where those few rest on no sound.

    Of breath, bumps and murmur a decoder makes "Thank you." and the like. The first word of a part
    is chosen by the sound alone, those after it by the text before them too: of such words the
    first had 0.03 to 0.08, the last up to 0.98, the text -0.8 and less. Short replies that were
    spoken, yes and thank you among them, had 0.26 and -0.73 at least.
    """
    fit = part.log_probability
    if fit is None or not 0 < len(part.words) <= _FEW_WORDS:
        return part
    doubtful = fit < WELL_FITTING and part.words[0].confidence < _UNHEARD
    return replace(part, words=()) if doubtful or fit < FITTING else part


def filled(part: SpokenPart, again: SpokenPart, gap: tuple[int, int]) -> SpokenPart:
    """The part with the words of ``again`` that have their middle in the gap, cut to it."""
    low = gap[0] * LEVEL_FRAME_SECONDS - _WORD_REACH_SECONDS
    high = gap[1] * LEVEL_FRAME_SECONDS + _WORD_REACH_SECONDS
    fresh = [
        replace(
            word,
            start_seconds=max(low, word.start_seconds),
            end_seconds=min(high, word.end_seconds),
        )
        for word in again.words
        if low <= (word.start_seconds + word.end_seconds) / 2 < high
    ]
    before = [word for word in part.words if word.start_seconds < low][-1:]
    after = [word for word in part.words if word.start_seconds > low][:1]
    for position, beside in ((0, before), (-1, after)):
        if fresh and beside and _is_same(fresh[position], beside[0]):
            del fresh[position]
    if not fresh:
        return part
    words = sorted([*part.words, *fresh], key=lambda word: word.start_seconds)
    known = (
        part
        if part.words
        else replace(again, start_frame=part.start_frame, end_frame=part.end_frame)
    )
    return replace(known, words=tuple(words))


def _is_same(again: TrackWord, known: TrackWord) -> bool:
    texts = {re.sub(r"\W", "", each.text).casefold() for each in (again, known)}
    return len(texts) == 1 and again.confidence < _REPETITION_CONFIDENCE
