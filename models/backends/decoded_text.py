"""Words out of a decoder's tokens, with the probability that the model gave them."""

from __future__ import annotations

import math
import unicodedata
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SPACELESS = frozenset({"zh", "ja", "th", "lo", "my", "yue", "km"})
"""Languages written without spaces: each character group that a token ends is a word."""

LISTED_LANGUAGES = 12
"""Of the languages of a chunk, so many are returned."""

Ranked = tuple[tuple[str, float], ...]
"""Languages and their probabilities, falling."""

_BROKEN = "\ufffd"
_LONGEST_CHARACTER = 4
"""Bytes of a character in UTF-8, and so the most tokens that one can be spread over."""


@dataclass(slots=True)
class SpokenWord:
    """A word without times."""

    text: str
    log_probabilities: list[float] = field(default_factory=list)
    first: int = 0
    """Position of its first token."""
    after: int = 0
    """Position after its last token but for the marks that follow it."""

    @property
    def confidence(self) -> float:
        """Geometric mean of the tokens' probabilities, 0 to 1."""
        mean = sum(self.log_probabilities) / len(self.log_probabilities)
        return min(1.0, math.exp(mean))


def words_of_tokens(
    tokens: Sequence[int],
    log_probabilities: Sequence[float],
    decode: Callable[[list[int]], str],
    *,
    spaceless: bool = False,
) -> list[SpokenWord]:
    """Group tokens into words: a word begins where a token's text begins with a space.

    A character of several bytes may be spread over tokens, so tokens are
    gathered until they decode to whole characters; bytes that never do are left out.
    """
    words: list[SpokenWord] = []
    pending: list[int] = []
    doubts: list[float] = []
    for position, (token, probability) in enumerate(zip(tokens, log_probabilities, strict=True)):
        pending.append(token)
        doubts.append(probability)
        text = decode(pending)
        if text.endswith(_BROKEN) and len(pending) < _LONGEST_CHARACTER:
            continue
        first = position + 1 - len(pending)
        _append(words, text, doubts, first, spaceless=spaceless)
        pending, doubts = [], []
    # Marks that stand alone join the word before them: nobody speaks a dash.
    joined: list[SpokenWord] = []
    for word in words:
        if _is_spoken(word.text):
            joined.append(word)
        elif joined:
            joined[-1].text += word.text
    return joined


def _append(
    words: list[SpokenWord], text: str, doubts: list[float], first: int, *, spaceless: bool
) -> None:
    after = first + len(doubts)
    # A byte-level vocabulary has all control characters.
    bare = "".join(
        each
        for each in text
        if not each.isspace() and each != _BROKEN and unicodedata.category(each) != "Cc"
    )
    if not bare:
        if text[:1].isspace():
            # A lone space: whatever comes next is a new word.
            words.append(SpokenWord(""))
    elif words and not words[-1].text:
        words[-1] = SpokenWord(bare, list(doubts), first, after)
    elif not words or text[:1].isspace() or (spaceless and _is_spoken(bare)):
        words.append(SpokenWord(bare, list(doubts), first, after))
    else:
        words[-1].text += bare
        words[-1].log_probabilities.extend(doubts)
        if _is_spoken(bare):
            words[-1].after = after


def _is_spoken(text: str) -> bool:
    return any(character.isalnum() for character in text)


MAX_COMPRESSION_RATIO = 2.4
"""Text that gzip shrinks further repeats itself (Whisper, Radford et al. 2022, section 4.5)."""

MIN_MEAN_LOG_PROBABILITY = -1.0
NO_SPEECH_PROBABILITY = 0.6
"""The same paper: silence is assumed where both the model's doubt and this are high."""

MAX_REPEATS = {1: 6, 2: 3, 3: 3, 4: 3, 5: 3, 6: 3}
"""n-gram length -> how often it may be repeated in a row. Speakers do repeat a word five times; a
phrase four times counts where parts of the sound prove it."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a model decoded of one chunk, as text and as its own doubts."""

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
    """Whether some n-gram stands more often in a row than in speech."""
    return repeated_phrase(words) is not None


def repeated_phrase(words: Sequence[str]) -> tuple[str, int] | None:
    """The shortest n-gram that stands more often in a row than in speech, and how often."""
    folded = [word.casefold().strip(".,!?;:") for word in words]
    for length, most in MAX_REPEATS.items():
        times, start = _longest_run(folded, length)
        if times > most:
            return " ".join(words[start : start + length]), times
    return None


def _longest_run(words: Sequence[str], length: int) -> tuple[int, int]:
    """How often the most repeated n-gram of ``length`` words stands in a row, and where first."""
    longest = matching = start = 0
    for position in range(length, len(words)):
        matching = matching + 1 if words[position] == words[position - length] else 0
        if matching > longest:
            longest, start = matching, position - length - matching + 1
    return (1 + longest // length if words else 0), start
