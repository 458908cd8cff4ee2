"""What a decoder's search gives back, as words with honest confidences. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from models.contracts import Word

FRAME_SECONDS = 0.01

_PAUSE_SECONDS = 0.45
"""A pause this long is taken for the end of a sentence."""

# P(word is right) as a logistic function of the word's posterior and of the mean over its
# chunk, both as log odds. Fitted to 379 words of 15 recordings (read, telephone and public
# speech); on them the classes 0.2, 0.5, 0.7, 0.85 and 0.95 were right in 35, 47, 61, 88
# and 100 of 100 cases, while the raw posterior of right words is often below 0.2.
_OFFSET, _OWN_WEIGHT, _CHUNK_WEIGHT = 0.43, 0.32, 0.38
_LEAST_POSTERIOR = 1e-3

_LEAST_WORD = 0.15
"""Words less likely right than this are left out."""
_LEAST_CHUNK = 0.22
"""A chunk whose words are on average less likely right than this is taken for noise.
Measured means: clean English 0.4 to 0.98, far microphones and bad lines 0.24 to 0.39, other
languages 0.26 to 0.4 (they cannot be told from bad English), music 0 to 0.2 and sometimes,
for two or three words, more."""

_LEAST_RATE = 1.2
_FULL_RATE = 3.0
_SLOW_CHUNK = 0.45
"""Words a second of a chunk (less its padding). Below the first it is a sound now and then that
resembles a word, however sure the decoder is; speech has 2 to 4.5. From there to the second the
mean confidence must be the higher the slower they come, from this value on: in music words are
long and far apart."""
_PADDING_SECONDS = 0.6
"""Of the chunk, on both sides of the speech together."""

_LONGEST_WORD_FRAMES = 130
"""A longer "word" is a stretch of noise: it counts as surely wrong. The longest right one
in the recordings took 0.9 s."""

_VARIANT = re.compile(r"\(\d+\)$")


@dataclass(frozen=True, slots=True)
class DecodedEntry:
    """A dictionary entry on the best path: first and last frame (both in it), posterior."""

    entry: str
    first_frame: int
    last_frame: int
    posterior: float


def is_filler(entry: str) -> bool:
    """Whether a dictionary entry stands for silence or noise: ``<s>``, ``<sil>``, ``[NOISE]``."""
    return entry.startswith(("<", "[", "+"))


def spelling(entry: str) -> str:
    """The word without the mark of its pronunciation: ``the(2)`` is ``the``."""
    return _VARIANT.sub("", entry)


def confidences(posteriors: Sequence[float]) -> list[float]:
    """Probability that each word of a chunk is right, from the posteriors of them all."""
    odds = [_log_odds(posterior) for posterior in posteriors]
    chunk = sum(odds) / len(odds) if odds else 0.0
    return [
        1 / (1 + math.exp(-(_OFFSET + _OWN_WEIGHT * own + _CHUNK_WEIGHT * chunk))) for own in odds
    ]


def mean_confidence(path: Iterable[DecodedEntry]) -> float:
    """Mean over the words of a path; 0 where it has none."""
    _, likely = _words_with_confidences(path)
    return sum(likely) / len(likely) if likely else 0.0


def spoken_words(path: Sequence[DecodedEntry], duration_seconds: float) -> tuple[Word, ...]:
    """The words of a path in seconds, inside the chunk, without those that are probably wrong."""
    if mean_confidence(path) < _least_confidence(path, duration_seconds):
        return ()
    words: list[Word] = []
    for each, confidence in zip(*_words_with_confidences(path), strict=True):
        earliest = words[-1].end_seconds if words else 0.0
        word = _word(each, confidence, earliest, duration_seconds)
        if confidence >= _LEAST_WORD and word.end_seconds > word.start_seconds:
            words.append(word)
    return tuple(words)


def _least_confidence(path: Sequence[DecodedEntry], duration_seconds: float) -> float:
    """What the words of a chunk must reach on average, by how densely they follow each other."""
    count = sum(not is_filler(each.entry) for each in path)
    rate = count / max(0.1, duration_seconds - _PADDING_SECONDS)
    if rate < _LEAST_RATE:
        return 1.0
    slow = max(0.0, (_FULL_RATE - rate) / (_FULL_RATE - _LEAST_RATE))
    return _LEAST_CHUNK + slow * (_SLOW_CHUNK - _LEAST_CHUNK)


def pause_frames(regions: Sequence[tuple[float, float]]) -> list[int]:
    """The middles of the pauses between regions of speech, in frames."""
    return [
        round((end + start) / 2 / FRAME_SECONDS)
        for (_, end), (start, _) in pairwise(regions)
        if start - end >= _PAUSE_SECONDS
    ]


def _words_with_confidences(
    path: Iterable[DecodedEntry],
) -> tuple[list[DecodedEntry], list[float]]:
    said = [each for each in path if not is_filler(each.entry)]
    return said, confidences([_plausible_posterior(each) for each in said])


def _plausible_posterior(each: DecodedEntry) -> float:
    too_long = each.last_frame - each.first_frame >= _LONGEST_WORD_FRAMES
    return 0.0 if too_long else each.posterior


def _word(
    each: DecodedEntry, confidence: float, earliest_seconds: float, duration_seconds: float
) -> Word:
    start = min(max(each.first_frame * FRAME_SECONDS, earliest_seconds), duration_seconds)
    end = min((each.last_frame + 1) * FRAME_SECONDS, duration_seconds)
    return Word(spelling(each.entry), start, end, confidence)


def _log_odds(posterior: float) -> float:
    bounded = min(1 - _LEAST_POSTERIOR, max(_LEAST_POSTERIOR, posterior))
    return math.log(bounded / (1 - bounded))
