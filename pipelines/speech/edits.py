"""Corrections of a transcript by people, and words of two transcripts compared. Pure.

Words that stay keep their times and confidence; the others share the time of those that they
replace, as long as their characters, until an aligner has measured them (``aligned``).
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise

from rapidfuzz.distance import Indel

from pipelines.speech.words import SPACELESS, joined, word_ends
from pipelines.types import Speaker, SpeakerTurn, TranscriptSegment, TranscriptWord

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
    one, other = ([_key(word.text) for word in side] for side in (before, after))
    first = start = 0
    for end, stop in [*common_places(one, other), (len(one), len(other))]:
        if (first, start) != (end, stop):
            yield WordChange(before[first:end], after[start:stop])
        first, start = end + 1, stop + 1


def common_places(one: Sequence[Hashable], other: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """Yield where the longest common subsequence is in each, in order.

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
    """Return where what each has once is, the most that follow each other in both (Cohen's patience
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


_AROUND = "\"'’‘“”„«»‹›()[]{}<>.,;:!?…-–—*/¿¡؟،؛।。、，．：；！？（）「」『』"
"""Punctuation that is no part of a word, as it is of C# and of C++."""


def parted(text: str) -> tuple[str, str, str]:
    """Return the punctuation before a text, the text, and the punctuation after it."""
    return text.partition(text.strip(_AROUND) or text)


def plain(text: str) -> str:
    """Return a text as replacements find it: without punctuation around it."""
    return unicodedata.normalize("NFKC", parted(text)[1])


def replaced(words: Words, pairs: Iterable[tuple[str, str]]) -> list[TranscriptWord]:
    """Return the words, those of one speaker that are a pair's first text as its second one, the
    longest first. A text in lower case is found in whatever case, others as they are: WAR is no
    war. Punctuation around the words stays, and an English genitive."""
    table = {plain(heard): words_of(written) for heard, written in pairs}
    lengths = sorted({len(words_of(heard)) for heard in table}, reverse=True)
    found, at = list[TranscriptWord](), 0
    while at < len(words):
        runs = (words[at : at + length] for length in lengths)
        made = ((new, len(run)) for run in runs if (new := _others(run, table)))
        new, count = next(made, ([words[at]], 1))
        found += new
        at += count
    return found


def _others(run: Words, table: dict[str, list[str]]) -> list[TranscriptWord]:
    """As many words keep their times, others share them; all are as certain as the least certain
    one. Return none where the words stay, or others would have less than a millisecond each."""
    before, heard, after = parted(joined(word.text for word in run))
    for end in ("", "'s", "’s"):
        bare = plain(heard.removesuffix(end))
        written = table.get(bare) or table.get(bare.lower())
        if written and len({(word.speaker, word.language) for word in run}) == 1:
            break
    else:
        return []
    texts = [before + written[0], *written[1:]]
    texts[-1] += end + after
    times = [(word.start_ms, word.end_ms) for word in run]
    if len(texts) != len(run):
        times = spread(texts, run[0].start_ms, run[-1].end_ms)
    if times[-1][1] > run[-1].end_ms:
        return []
    least = min(word.confidence for word in run)
    return [
        replace(run[0], text=text, start_ms=start, end_ms=until, confidence=least)
        for text, (start, until) in zip(texts, times, strict=True)
    ]


_ROOM_MS = 60
"""A new word between others takes time from these where less is left for it."""
MOST_WORDS = 2_000
"""Of a segment that is changed or merged; the machine's have at most thirty."""
MOST_WORDS_AT_ONCE = 100_000
"""Of all segments that one edit changes: what ten hours of speech have."""

Span = tuple[int, int]
"""Start and end in milliseconds."""


class EditError(ValueError):
    """A correction that the transcript cannot take; ``param`` is the field at fault."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message, self.param = message, param


@dataclass(frozen=True, slots=True)
class SegmentChange:
    """What a segment is to be instead; a text without words removes it."""

    index: int
    text: str | None = None
    speaker: str | None = None
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """Another segment begins with a word of its text as changed, from 1."""

    index: int
    word: int


@dataclass(frozen=True, slots=True)
class Merge:
    """``count`` segments become one, of the first one's speaker."""

    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Insertion:
    """A segment that the transcript lacks; ``speaker`` is an id, None where nobody is known."""

    start_ms: int
    end_ms: int
    text: str
    speaker: str | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """A correction: changes, then splits, then merges; all indices are those before it.

    Segments are inserted where their times are free after the changes. ``speakers`` are ids of
    speakers whom the track lacks.
    """

    segments: tuple[SegmentChange, ...] = ()
    split: tuple[Split, ...] = ()
    merge: tuple[Merge, ...] = ()
    insert: tuple[Insertion, ...] = ()
    speakers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Splice:
    """``segments`` in place of the ``count`` from ``first`` on; they keep those indices."""

    first: int
    count: int
    segments: tuple[TranscriptSegment, ...]


def splices_of(
    edit: Edit,
    segments: Sequence[TranscriptSegment],
    speakers: Sequence[Speaker],
    media_ms: int | None,
) -> list[Splice]:
    """Return what the edit replaces, in order; nothing for what is so already. Raises EditError."""
    _check_places(edit, len(segments), {each.id for each in speakers})
    made: dict[int, tuple[TranscriptSegment, ...]] = {}

    def parts_at(index: int) -> tuple[TranscriptSegment, ...]:
        return made[index] if index in made else (segments[index],)

    words = 0
    for number, change in enumerate(edit.segments):
        made[change.index] = _changed(segments[change.index], change, f"segments[{number}]")
        words += sum(len(part.words) for part in made[change.index])
        if words > MOST_WORDS_AT_ONCE:
            message = f"Segments with more than {MOST_WORDS_AT_ONCE} words are changed at once."
            raise EditError(message, f"segments[{number}].text")
    for number, change in enumerate(edit.segments):
        if change.start_ms is not None or change.end_ms is not None:
            before = _first_of(parts_at, range(change.index - 1, -1, -1))
            after = _first_of(parts_at, range(change.index + 1, len(segments)))
            for part in made[change.index]:
                if before and part.start_ms < before[-1].end_ms:
                    message = "A segment begins behind the end of the one before it."
                    raise EditError(message, f"segments[{number}].startTime")
                if part.end_ms > (after[0].start_ms if after else media_ms or part.end_ms):
                    message = "A segment ends before the next one begins, and inside the media."
                    raise EditError(message, f"segments[{number}].endTime")
    for number, split in sorted(enumerate(edit.split), key=lambda each: -each[1].word):
        first, *others = parts_at(split.index) or (None,)
        if first is None or split.word >= len(first.words):
            message = "A segment is split before one of its words, but not the first."
            raise EditError(message, f"split[{number}].word")
        made[split.index] = (*_halves(first, split.word), *others)
    spliced = {at: Splice(at, 1, parts) for at, parts in made.items()}
    for number, merge in enumerate(edit.merge):
        places = range(merge.index, merge.index + merge.count)
        parts = [part for at in places for part in parts_at(at)]
        if sum(len(part.words) for part in parts) > MOST_WORDS:
            raise EditError(f"A segment has at most {MOST_WORDS} words.", f"merge[{number}].count")
        spliced = {at: each for at, each in spliced.items() if at not in places}
        spliced[merge.index] = Splice(merge.index, merge.count, _merged(parts))
    found = [each for _, each in sorted(spliced.items())]
    changes = [it for it in found if it.segments != tuple(segments[it.first : it.first + it.count])]
    inserted = _inserted(edit, segments, parts_at, media_ms)
    # What is inserted comes before what is changed at its place.
    return sorted([*inserted, *changes], key=lambda each: (each.first, each.count))


def _inserted(
    edit: Edit,
    segments: Sequence[TranscriptSegment],
    parts_at: Callable[[int], tuple[TranscriptSegment, ...]],
    media_ms: int | None,
) -> Iterator[Splice]:
    """Yield new segments by their place. Raises EditError where one is in the way."""
    made = defaultdict[int, list[TranscriptSegment]](list)
    merged = {at for it in edit.merge for at in range(it.index + 1, it.index + it.count)}
    numbered = enumerate(edit.insert)
    for number, new in sorted(numbered, key=lambda each: each[1].start_ms):
        field = f"insert[{number}]"
        at = bisect_left(segments, new.start_ms, key=lambda segment: segment.start_ms)
        empty = TranscriptSegment(at, new.start_ms, new.end_ms, "", new.speaker, 1.0, ())
        if not new.text.split():
            raise EditError("must have words.", f"{field}.text")
        parts = _changed(empty, SegmentChange(at, new.text), field)
        before = made[at] or _first_of(parts_at, range(at - 1, -1, -1))
        after = _first_of(parts_at, range(at, len(segments)))
        if at in merged or (before and new.start_ms < before[-1].end_ms):
            raise EditError("A segment is there already.", f"{field}.startTime")
        if new.end_ms > (after[0].start_ms if after else media_ms or new.end_ms):
            message = "A segment ends before the next one begins, and inside the media."
            raise EditError(message, f"{field}.endTime")
        made[at] += parts
    return (Splice(at, 0, tuple(parts)) for at, parts in made.items())


def _first_of(
    parts_at: Callable[[int], tuple[TranscriptSegment, ...]], indices: Iterable[int]
) -> tuple[TranscriptSegment, ...]:
    return next((parts for parts in map(parts_at, indices) if parts), ())


def _check_places(edit: Edit, count: int, speakers: set[str]) -> None:
    """Raises EditError for segments and speakers that are not there, or are named twice."""
    named, merged, splits = set[int](), set[int](), set[Split]()
    for number, added in enumerate(edit.speakers):
        if added in speakers:
            raise EditError("is a speaker of the track already.", f"speakers[{number}]")
        speakers |= {added}
    for number, new in enumerate(edit.insert):
        if new.speaker is not None and new.speaker not in speakers:
            raise EditError("must be a speaker of the track.", f"insert[{number}].speaker")
    for number, change in enumerate(edit.segments):
        if change.index >= count or change.index in named:
            raise EditError("must be a segment, each once.", f"segments[{number}].index")
        if change.speaker is not None and change.speaker not in speakers:
            raise EditError("must be a speaker of the track.", f"segments[{number}].speaker")
        named.add(change.index)
    for number, merge in enumerate(edit.merge):
        places = {*range(merge.index, merge.index + merge.count)}
        if merge.index + merge.count > count or places & merged:
            raise EditError("must be segments, each once.", f"merge[{number}].count")
        merged |= places
    for number, split in enumerate(edit.split):
        if split.index >= count or split.index in merged or split in splits:
            raise EditError("must be a segment, not merged too.", f"split[{number}].index")
        splits.add(split)


def _changed(
    segment: TranscriptSegment, change: SegmentChange, place: str
) -> tuple[TranscriptSegment, ...]:
    """Return None where the new text has no words. Raises EditError."""
    start_ms = segment.start_ms if change.start_ms is None else change.start_ms
    end_ms = segment.end_ms if change.end_ms is None else change.end_ms
    if end_ms <= start_ms:
        raise EditError("must lie behind the start.", f"{place}.endTime")
    moved = (start_ms, end_ms) != (segment.start_ms, segment.end_ms)
    text = segment.text if change.text is None else " ".join(change.text.split())
    if moved or text != segment.text:
        texts = words_of(text)
        if not texts:
            return ()
        if len(texts) > MOST_WORDS:
            raise EditError(f"has more than {MOST_WORDS} words.", f"{place}.text")
        if len(texts) > end_ms - start_ms:
            raise EditError("has more words than there is time for.", f"{place}.text")
        segment = replace(segment, start_ms=start_ms, end_ms=end_ms, text=text)
        segment = _timed(segment, texts, () if moved else segment.words)
    if change.speaker is not None:
        spoken = tuple(replace(word, speaker=change.speaker) for word in segment.words)
        segment = replace(segment, speaker=change.speaker, words=spoken)
    return (segment,)


def words_of(text: str) -> list[str]:
    """Return the words of a text: between spaces, and as a dictionary has them in scripts
    without."""
    words = list[str]()
    for piece in text.split():
        ends = word_ends(piece) if SPACELESS.search(piece) else set[int]()
        words += [piece[start:end] for start, end in pairwise(sorted({0, len(piece), *ends}))]
    return words


def _timed(
    segment: TranscriptSegment, texts: Sequence[str], former: Sequence[TranscriptWord]
) -> TranscriptSegment:
    """Return the segment with these words: those that it had with their times, the others
    spread."""
    kept: list[TranscriptWord | None] = [None] * len(texts)
    keys, others = [_key(word.text) for word in former], [_key(text) for text in texts]
    for at, place in common_places(keys, others):
        kept[place] = replace(former[at], text=texts[place])
    _make_room(segment, kept)
    words = [*kept]
    for first, end in _runs(kept):
        low, high = _room(segment, kept, (first, end))
        free = former[
            bisect_left(former, low, key=lambda word: word.start_ms) : bisect_right(
                former, high, key=lambda word: word.end_ms
            )
        ]
        if free and free[-1].end_ms - free[0].start_ms >= _ROOM_MS * (end - first):
            low, high = free[0].start_ms, free[-1].end_ms
        spans = spread(texts[first:end], low, high)
        words[first:end] = [
            TranscriptWord(text, start, until, 1.0, segment.speaker, segment.language)
            for text, (start, until) in zip(texts[first:end], spans, strict=True)
        ]
    estimated = tuple(at for first, end in _runs(kept) for at in range(first, end))
    timed = tuple(word for word in words if word is not None)
    return _bounded(replace(segment, words=timed, estimated_words=estimated))


def _key(text: str) -> str:
    """Return what two spellings of a word have in common."""
    letters = "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))
    return letters or text


def _runs(kept: Sequence[TranscriptWord | None]) -> list[tuple[int, int]]:
    """First and past-the-last of each run of words without times."""
    runs, at = list[tuple[int, int]](), 0
    for is_new, group in groupby(kept, key=lambda word: word is None):
        size = len([*group])
        runs += [(at, at + size)] if is_new else []
        at += size
    return runs


def _room(
    segment: TranscriptSegment, kept: Sequence[TranscriptWord | None], run: tuple[int, int]
) -> Span:
    before = kept[run[0] - 1] if run[0] else None
    after = kept[run[1]] if run[1] < len(kept) else None
    low = before.end_ms if before else segment.start_ms
    return low, after.start_ms if after else max(low, segment.end_ms)


def _make_room(segment: TranscriptSegment, kept: list[TranscriptWord | None]) -> None:
    """Where a run of new words has too little time, the words beside it become new too."""
    settled = list[tuple[int, int]]()
    for run in _runs(kept):
        if settled and run[0] < settled[-1][1]:
            continue  # part of the one before it meanwhile
        first, end = run
        while (first, end) != (0, len(kept)):
            low, high = _room(segment, kept, (first, end))
            if high - low >= _ROOM_MS * (end - first):
                break
            first, end = max(0, first - 1), min(len(kept), end + 1)
            kept[first] = kept[end - 1] = None
            if settled and settled[-1][1] == first:
                first, _ = settled.pop()
            while end < len(kept) and kept[end] is None:
                end += 1
        settled.append((first, end))


def spread(texts: Sequence[str], start_ms: int, end_ms: int) -> list[Span]:
    """Return times of words, each as long as its characters and 1 ms at least."""
    ends = [*accumulate((len(text) for text in texts), initial=0)]
    spare = max(0, end_ms - start_ms - len(texts))
    places = [start_ms + spare * each // (ends[-1] or 1) + n for n, each in enumerate(ends)]
    return [*pairwise(places)]


def _bounded(segment: TranscriptSegment) -> TranscriptSegment:
    """As its words are: when they are spoken, and how certain they are."""
    words = segment.words
    lengths_ms = [max(1, word.end_ms - word.start_ms) for word in words]
    certain = sum(word.confidence * ms for word, ms in zip(words, lengths_ms, strict=True))
    return replace(
        segment,
        start_ms=words[0].start_ms,
        end_ms=words[-1].end_ms,
        confidence=certain / sum(lengths_ms),
    )


def _halves(segment: TranscriptSegment, count: int) -> Iterator[TranscriptSegment]:
    """The segment up to its ``count``-th word, and the rest."""
    cut = 0
    for word in segment.words[:count]:
        cut = max(cut, segment.text.find(word.text, cut)) + len(word.text)
    for text, first, end in (
        (segment.text[:cut], 0, count),
        (segment.text[cut:], count, len(segment.words)),
    ):
        estimated = tuple(at - first for at in segment.estimated_words if first <= at < end)
        part = replace(segment, text=text.strip(), words=segment.words[first:end])
        yield _bounded(replace(part, estimated_words=estimated))


def _merged(parts: Sequence[TranscriptSegment]) -> tuple[TranscriptSegment, ...]:
    """Return one segment, of the first one's speaker and language; none of none."""
    if not parts:
        return ()
    first, words, estimated = parts[0], list[TranscriptWord](), list[int]()
    for part in parts:
        estimated += [len(words) + at for at in part.estimated_words]
        words += [replace(w, speaker=first.speaker, language=first.language) for w in part.words]
    text = joined([part.text for part in parts])
    whole = replace(first, text=text, words=tuple(words), estimated_words=tuple(estimated))
    return (_bounded(whole),)


def turns_after(
    turns: Sequence[SpeakerTurn], splices: Sequence[Splice], segments: Sequence[TranscriptSegment]
) -> list[SpeakerTurn]:
    """Return the turns, with those of segments whose speaker was changed, and of new ones."""
    taken, given = defaultdict[str, list[Span]](list), list[SpeakerTurn]()
    for splice in splices:
        if not splice.count:
            given += [
                SpeakerTurn(it.speaker, it.start_ms, it.end_ms)
                for it in splice.segments
                if it.speaker is not None
            ]
        for former in segments[splice.first : splice.first + splice.count]:
            for part in splice.segments:
                start = max(former.start_ms, part.start_ms)
                end = min(former.end_ms, part.end_ms)
                if start < end and part.speaker != former.speaker and part.speaker is not None:
                    taken[former.speaker or ""].append((start, end))
                    given.append(SpeakerTurn(part.speaker, start, end))
    for spans in taken.values():
        spans.sort()
    past = {who: [*accumulate((end for _, end in it), max)] for who, it in taken.items()}
    for turn in turns:
        spans = taken.get(turn.speaker, [])
        given += _without(turn, spans[bisect_right(past.get(turn.speaker, []), turn.start_ms) :])
    return sorted(given, key=lambda turn: (turn.start_ms, turn.end_ms))


def _without(turn: SpeakerTurn, taken: Iterable[Span]) -> Iterator[SpeakerTurn]:
    """Yield what is left of a turn without these spans, which are in order."""
    first_ms = turn.start_ms
    for start, end in taken:
        if start >= turn.end_ms:
            break
        if first_ms < start:
            yield replace(turn, start_ms=first_ms, end_ms=start)
        first_ms = max(first_ms, end)
    if first_ms < turn.end_ms:
        yield replace(turn, start_ms=first_ms)


def speakers_after(
    speakers: Sequence[Speaker], turns: Sequence[SpeakerTurn]
) -> tuple[Speaker, ...]:
    """Return the speakers, with the time that they speak in all of the turns."""
    spoken = Counter[str]()
    for turn in turns:
        spoken[turn.speaker] += turn.end_ms - turn.start_ms
    return tuple(replace(each, speaking_seconds=spoken[each.id] / 1000) for each in speakers)


LONGEST_MS = 28_000
"""Of sound that an aligner is given at once."""
_CONTEXT_WORDS = 8


def passages_of(segment: TranscriptSegment) -> Iterator[tuple[int, int]]:
    """First and past-the-last word of what is to be aligned: all of a segment that is short enough,
    else what is estimated with words around it; nothing where that is too long."""
    words = segment.words
    kept = [None if at in segment.estimated_words else word for at, word in enumerate(words)]
    for first, end in _runs(kept):
        around = max(0, first - _CONTEXT_WORDS), min(len(words), end + _CONTEXT_WORDS)
        for low, high in ((0, len(words)), around, (first, end)):
            if words[high - 1].end_ms - words[low].start_ms <= LONGEST_MS:
                yield low, high
                break


def aligned(
    segment: TranscriptSegment, first: int, spans: Sequence[Span], room: Span
) -> TranscriptSegment:
    """Return the segment with measured times for its estimated words from ``first`` on, one a span,
    in ``room`` and between the words that stay."""
    words, behind = [*segment.words], first + len(spans)
    is_new = [at in segment.estimated_words for at in range(len(words))]
    for start, end in _runs(
        [None if new else word for new, word in zip(is_new, words, strict=True)]
    ):
        earliest = words[start - 1].end_ms if start else room[0]
        latest = words[end].start_ms if end < len(words) else room[1]
        for at in range(max(start, first), min(end, behind)):
            start_ms, end_ms = spans[at - first]
            start_ms = min(max(start_ms, earliest), latest - (end - at))
            earliest = min(max(end_ms, start_ms + 1), latest - (end - at - 1))
            words[at] = replace(words[at], start_ms=start_ms, end_ms=earliest)
    left = tuple(at for at in segment.estimated_words if not first <= at < behind)
    return _bounded(replace(segment, words=tuple(words), estimated_words=left))


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two transcripts differ: the words of both, and who speaks there in each."""

    start_ms: int
    speakers: tuple[str, str]
    """Ids, joined where there are several."""
    words: tuple[tuple[str, str], ...]
    """``same``, ``gone`` or ``new``, and the words."""


def differences(
    before: Sequence[TranscriptSegment], after: Sequence[TranscriptSegment]
) -> Iterator[Difference]:
    """In order of time; segments that are alike are left out."""
    one, other = ([(it.text, it.speaker) for it in segments] for segments in (before, after))
    first = start = 0
    for end, stop in [*common_places(one, other), (len(one), len(other))]:
        here, there = before[first:end], after[start:stop]
        if here or there:
            start_ms = min(each.start_ms for each in (*here, *there))
            yield Difference(start_ms, (_names(here), _names(there)), _words_of_both(here, there))
        first, start = end + 1, stop + 1


def _names(segments: Sequence[TranscriptSegment]) -> str:
    return ", ".join(dict.fromkeys(each.speaker or "" for each in segments))


def _words_of_both(
    before: Sequence[TranscriptSegment], after: Sequence[TranscriptSegment]
) -> tuple[tuple[str, str], ...]:
    old, new = ([word for it in side for word in it.text.split()] for side in (before, after))
    found, first, start = list[tuple[str, str]](), 0, 0
    for end, stop in [*common_places(old, new), (len(old), len(new))]:
        found += (("gone", word) for word in old[first:end])
        found += (("new", word) for word in new[start:stop])
        found += (("same", word) for word in new[stop : stop + 1])
        first, start = end + 1, stop + 1
    runs = groupby(found, key=lambda it: it[0])
    return tuple((kind, " ".join(word for _, word in run)) for kind, run in runs)
