"""Signs that a speech model made its words up: pure functions over its output."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

MAX_COMPRESSION_RATIO = 2.4
"""Text that gzip shrinks further repeats itself (Whisper, Radford et al. 2022, section 4.5)."""

MIN_MEAN_LOG_PROBABILITY = -1.0
NO_SPEECH_PROBABILITY = 0.6
"""The same paper: silence is assumed where both the model's doubt and this are high."""

MAX_REPEATS = {1: 6, 2: 4, 3: 4, 4: 3, 5: 3, 6: 3}
"""n-gram length -> how often it may stand in a row. People do say a word five times."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a model said of one chunk, as text and as its own doubts."""

    text: str
    mean_log_probability: float
    no_speech_probability: float


def is_silence(decoded: Decoded) -> bool:
    """The model itself holds the chunk for silence, and is not sure of its words."""
    return (
        decoded.no_speech_probability > NO_SPEECH_PROBABILITY
        and decoded.mean_log_probability < MIN_MEAN_LOG_PROBABILITY
    )


def is_loop(text: str) -> bool:
    """The text runs in circles, as decoders do on music and noise."""
    return compression_ratio(text) > MAX_COMPRESSION_RATIO or repeats_itself(text.split())


def compression_ratio(text: str) -> float:
    """Bytes of the text over bytes of its zlib form; 0 for no text."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw)) if raw else 0.0


def repeats_itself(words: Sequence[str]) -> bool:
    """Whether some n-gram stands more often in a row than people say it."""
    folded = [word.casefold().strip(".,!?;:") for word in words]
    return any(_longest_run(folded, length) > most for length, most in MAX_REPEATS.items())


def _longest_run(words: Sequence[str], length: int) -> int:
    """How often the most repeated n-gram of ``length`` words stands in a row."""
    longest = matching = 0
    for position in range(length, len(words)):
        matching = matching + 1 if words[position] == words[position - length] else 0
        longest = max(longest, matching)
    return 1 + longest // length if words else 0
