"""Words out of a decoder's tokens, with the probability that the model gave them."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SPACELESS = frozenset({"zh", "ja", "th", "lo", "my", "yue", "km"})
"""Languages written without spaces: each character group that a token ends is a word."""

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
    return _without_lone_marks(words)


def _append(
    words: list[SpokenWord], text: str, doubts: list[float], first: int, *, spaceless: bool
) -> None:
    after = first + len(doubts)
    bare = "".join(character for character in text if _is_written(character))
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


def _is_written(character: str) -> bool:
    """Neither space nor control character, which a byte-level vocabulary has all of."""
    return not (
        character.isspace() or character == _BROKEN or unicodedata.category(character) == "Cc"
    )


def _is_spoken(text: str) -> bool:
    return any(character.isalnum() for character in text)


def _without_lone_marks(words: Sequence[SpokenWord]) -> list[SpokenWord]:
    """Marks that stand alone join the word before them: nobody speaks a dash."""
    joined: list[SpokenWord] = []
    for word in words:
        if _is_spoken(word.text):
            joined.append(word)
        elif joined:
            joined[-1].text += word.text
    return joined
