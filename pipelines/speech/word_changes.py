"""Words of two transcripts compared."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from rapidfuzz.distance import Indel

from pipelines.types import TranscriptWord

Words = Sequence[TranscriptWord]
MOST_PAIRS = 10**8
"""Words of one text times those of the other that are compared at once: a tenth of a second, in
which the interpreter runs nothing else, and 12 MB, whatever the words are."""


@dataclass(frozen=True, slots=True)
class WordChange:
    """Neighbouring words of one cut in place of which the other has others, or none."""

    before: Words
    after: Words


def changed_words(before: Words, after: Words) -> Iterator[WordChange]:
    """In order; case and punctuation change nothing. As many words as possible stay; of long texts
    as many as do between words that each text has once (``common_places``)."""
    one, other = ([_plain(word.text) for word in side] for side in (before, after))
    first = start = 0
    for end, stop in [*common_places(one, other), (len(one), len(other))]:
        if (first, start) != (end, stop):
            yield WordChange(before[first:end], after[start:stop])
        first, start = end + 1, stop + 1


def common_places(one: Sequence[Hashable], other: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """Where the longest common subsequence is in each, in order.

    Sequences of more than MOST_PAIRS are cut before it at what each has once; what is still longer
    between two cuts has nothing in common.
    """
    first = start = 0
    is_long = len(one) * len(other) > MOST_PAIRS
    for end, stop in [*(_anchors(one, other) if is_long else ()), (len(one), len(other))]:
        if (end - first) * (stop - start) <= MOST_PAIRS:
            for run in Indel.opcodes(one[first:end], other[start:stop]):
                if run.tag == "equal":
                    places = range(first + run.src_start, first + run.src_end)
                    yield from zip(places, range(start + run.dest_start, stop), strict=False)
        first, start = end, stop


def _anchors(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Where what each has once is, the most that follow each other in both (Cohen's patience
    diff)."""
    counts = Counter(one), Counter(other)
    where = {each: at for at, each in enumerate(other) if counts[1][each] == 1}
    pairs = [(at, where[it]) for at, it in enumerate(one) if counts[0][it] == 1 and it in where]
    # Of each length of a chain the pair that ends one, where that is earliest in the other.
    lowest, ends, before = list[int](), list[int](), list[int | None]()
    for number, (_, place) in enumerate(pairs):
        at = bisect_left(lowest, place)
        before.append(ends[at - 1] if at else None)
        lowest[at : at + 1], ends[at : at + 1] = [place], [number]
    found = list[tuple[int, int]]()
    last = ends[-1] if ends else None
    while last is not None:
        found.append(pairs[last])
        last = before[last]
    return found[::-1]


def _plain(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold())) or text
