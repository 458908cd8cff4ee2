"""Words of two transcripts compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from pipelines.types import TranscriptWord

Words = Sequence[TranscriptWord]
_MANY_WORDS = 5_000


@dataclass(frozen=True, slots=True)
class WordChange:
    """Neighbouring words of one cut in place of which the other has others, or none."""

    before: Words
    after: Words


def changed_words(before: Words, after: Words) -> Iterator[WordChange]:
    """In order; case and punctuation change nothing. The longest runs in common stay; among
    thousands of words those of which each is frequent do not, for the time that it would take.
    """
    one, other = ([_plain(word.text) for word in side] for side in (before, after))
    matcher = SequenceMatcher(None, one, other, autojunk=len(other) > _MANY_WORDS)
    for kind, first, end, start, stop in matcher.get_opcodes():
        if kind != "equal":
            yield WordChange(before[first:end], after[start:stop])


def _plain(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold())) or text
