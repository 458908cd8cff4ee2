"""Transcripts as cues, by rules of houses: the table of rules, cues by it, and what is left. Pure.

A cue is what is on the screen at a time, in lines. The usual limits of readable subtitles: 42
columns a line, two lines and seven seconds a cue, 20 columns a second; all but the seconds can be
chosen. Within them cues and lines end at pauses, after punctuation and before the words that open a
phrase (BBC's and Netflix's subtitle guidelines); in scripts without spaces between phrases. Each
segment is cut by dynamic programming, so that one bad break early on does not force another later;
one that fits a cue is a cue.

A cue begins with what is spoken in it. Where it would be too short to be read, it stays into the
pause after it, the cues around it give way by as much as the house allows, a cue of the same
speaker is joined to it, or two speakers share one, each with a dash. What speech still leaves too
little time for is a violation: only a person can shorten a text.
"""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files
from itertools import accumulate, pairwise
from operator import add, sub
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from pipelines.codec import CodecError, from_json
from pipelines.speech.words import (
    RIGHT_TO_LEFT,
    SPACELESS,
    are_unspaced,
    columns,
    ends_sentence,
    isolated,
    joined,
    line_ends,
    parts_of,
    runs_right_to_left,
    word_set,
)
from pipelines.types import Speaker, TranscriptSegment, TranscriptWord

CUE_MAX_MS = 7_000
CUE_COMFORT_MS = 1_000
"""A cue is left on the screen at least this long where no other cue follows."""


_CLAUSE_OPENERS = word_set(
    "and but or so because that which who whom whose when where while if then as after before"
    " until unless although though since"
)
"""English words that open a clause: a break before one is natural."""
_PHRASE_OPENERS = word_set(
    "than for with without from into onto over under through between about against of to in on"
    " at by"
)
_CLINGERS = word_set(
    "a an the my your his her its our their this that these those is are was were am be been being"
    " have has had do does did will would can could shall should may might must not no very more"
    " i you he she it we they and or but of to in on at by for with from as than if when"
)
"""English words that belong to what follows: a break after one disturbs."""
_CLAUSE_ENDS = (",", ";", ":", "–", "—", "、", "，")
_PARTICLE = re.compile("[\u3041-\u309f][^\u3041-\u309f]")
"""Where a Japanese phrase ends: a particle, or an ending, before the next stem."""

_LONG_PAUSE_MS = 400
_CUE_COST = 1.0
_FULLNESS_COST = 0.5
"""Two cues of fifty columns read better than one of eighty and one of twenty."""
_HURRY_COST = 2.0
_INSIDE_COST = 3.0
"""Of a break inside a word, or a phrase without spaces, that is wider than a line."""
_UNEVEN_COST = 10.0
_NOT_SIMPLE = re.compile(" (?:n['’]t|[^\\w\"(¿¡«“‘–—$€£#&+-])|[^ -\u058f\u2010-\u205e]").search
"""A space that is not between two words, or a character that may not have one column."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class CaptionLimits:
    """What a cue may hold, and how fast it is to be read."""

    line_columns: int = 42
    lines: int = 2
    columns_per_second: int = 20
    """A target: speech that is faster makes cues that are too."""
    is_strict: bool = False
    """Whether no cue is to be faster where the text can be cut otherwise."""
    gap_ms: int = 0
    """What a cue loses of its time to the next."""
    shortest_ms: int = 0
    longest_ms: int = CUE_MAX_MS
    balance_percent: int = 0
    """Of the longer of two lines, what the shorter has at least, where a text can be divided so."""


USUAL = CaptionLimits()


class Cue(NamedTuple):
    """One caption: lines of text shown from ``start_ms`` to ``end_ms``."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]
    speaker: str | None


def build_cues(segments: Sequence[TranscriptSegment], limits: CaptionLimits = USUAL) -> list[Cue]:
    """Cues in order, never overlapping, each at least 1 ms and at most ``longest_ms`` long.

    A cue stays into the pause after it as long as it takes to read. The last one does not: where
    the media ends is not known here.
    """
    cues: list[Cue] = []
    read_ms = earliest_ms = 0
    for spoken, width in cut_cues(segments, limits):
        start_ms = max(spoken.start_ms, earliest_ms)
        if earliest_ms < min(read_ms, start_ms):
            cues[-1] = cues[-1]._replace(end_ms=min(read_ms, start_ms))
        earliest_ms = min(max(spoken.end_ms, start_ms + 1), start_ms + limits.longest_ms)
        cues.append(spoken._replace(start_ms=start_ms, end_ms=earliest_ms))
        needed_ms = max(CUE_COMFORT_MS, -(-width * 1000 // limits.columns_per_second))
        read_ms = start_ms + min(limits.longest_ms, needed_ms)
    return cues


def cut_cues(
    segments: Iterable[TranscriptSegment], limits: CaptionLimits
) -> Iterator[tuple[Cue, int]]:
    """Yield each cue with the times of its words, and its columns in one line."""
    for segment in segments:
        for start_ms, end_ms, lines, width in _cut(segment, limits):
            yield Cue(start_ms, end_ms, lines, segment.speaker), width


def plain(text: str) -> str:
    """``text`` in one line: a line end inside a word would end its cue and begin another."""
    return " ".join(_CONTROL.sub(" ", text).split())


def _cut(
    segment: TranscriptSegment, limits: CaptionLimits
) -> Iterator[tuple[int, int, tuple[str, ...], int]]:
    """Start, end, lines and columns of the segment's cues: the cheapest within the limits."""
    written, words, room = segment.text, segment.words, limits.line_columns
    start_ms, end_ms = words[0].start_ms, words[-1].end_ms
    # All characters have one column, and all spaces are between two words.
    is_simple = written.isprintable() and not _NOT_SIMPLE(f" {written} ")
    pieces = [] if is_simple else _spoken(words)
    if not is_simple:
        written = "".join(itertools.chain.from_iterable((each.gap, each.text) for each in pieces))
    if not written:
        return
    width = columns(written)
    turn = runs_right_to_left(written) if RIGHT_TO_LEFT.search(written) else None
    if width <= room and end_ms - start_ms <= limits.longest_ms:
        yield start_ms, end_ms, (_turned(written, turn),), width
        return
    texts = written.split(" ")
    if is_simple and len(texts) == len(words) and max(map(len, texts)) <= room:
        text = _Text.of_words(written, words)
    else:
        text = _Text.of(list(_fitting(pieces or _spoken(words), room)))
    for start, end in _bounds(text, limits):
        lines = tuple(_turned(line, turn) for line in _lines(text, start, end, limits))
        times = text.timed[start].start_ms, text.timed[end - 1].end_ms
        yield *times, lines, text.width(start, end)


def _turned(line: str, is_right_to_left: bool | None) -> str:
    """Return the line of a text of that direction; None: of one without words from right to
    left."""
    return line if is_right_to_left is None else isolated(line, right_to_left=is_right_to_left)


class _Piece(NamedTuple):
    """What no line is broken in: a word, a phrase, or a part of one that is wider than a line."""

    text: str
    start_ms: int
    end_ms: int
    gap: str = ""
    """What stands before it: a space, or nothing."""
    is_inside: bool = False
    """Whether it begins inside a word or phrase."""


def _spoken(words: Sequence[TranscriptWord]) -> list[_Piece]:
    pieces: list[_Piece] = []
    before = ""
    for word in words:
        text = word.text
        if " " in text or not text.isprintable():
            text = plain(text)
        if text:
            gap = " " if before and not are_unspaced(before, text) else ""
            pieces.append(_Piece(text, word.start_ms, word.end_ms, gap))
            before = text
    return pieces


def _fitting(words: Sequence[_Piece], width: int) -> Iterator[_Piece]:
    """Yield the words in pieces that fit a line; parts of one that does not share its time
    evenly."""
    for piece in _phrases(words) if any(SPACELESS.search(it.text) for it in words) else words:
        if columns(piece.text) <= width:
            yield piece
            continue
        parts = parts_of(piece.text, width)
        length_ms, count = piece.end_ms - piece.start_ms, len(parts)
        for i, part in enumerate(parts):
            start_ms = piece.start_ms + length_ms * i // count
            end_ms = piece.start_ms + length_ms * (i + 1) // count
            yield _Piece(part, start_ms, end_ms, "" if i else piece.gap, is_inside=i > 0)


def _phrases(words: Sequence[_Piece]) -> Iterator[_Piece]:
    """Yield the words as pieces between the places where a line may end, whatever a word is taken
    for."""
    text = "".join(itertools.chain.from_iterable((word.gap, word.text) for word in words))
    ends = list(accumulate(len(word.gap) + len(word.text) for word in words))

    def time_ms(position: int, index: int) -> int:
        word = words[index]
        passed = len(word.text) - (ends[index] - position)
        return word.start_ms + (word.end_ms - word.start_ms) * passed // len(word.text)

    for begin, end in pairwise(sorted(line_ends(text) | {0, len(text)})):
        phrase = text[begin:end].rstrip(" ")
        if phrase:
            last = begin + len(phrase)
            start_ms = time_ms(begin, bisect_right(ends, begin))
            end_ms = time_ms(last, bisect_left(ends, last))
            gap = " " if text[begin - 1 : begin] == " " else ""
            yield _Piece(phrase, start_ms, end_ms, gap)


@dataclass(slots=True)
class _Text:
    """A segment in pieces, field by field."""

    pieces: Sequence[str]
    timed: Sequence[_Piece | TranscriptWord]
    """The pieces again, or the words that they are."""
    begins: Sequence[int]
    """Columns before each piece, the space before it included."""
    ends: Sequence[int]
    """Columns up to the end of each piece."""
    insides: frozenset[int] = frozenset()
    """Pieces that begin inside a word or phrase."""
    plain: str | None = None
    """The text, where each of its characters is a column."""

    @classmethod
    def of(cls, pieces: Sequence[_Piece]) -> _Text:
        texts, _, _, gaps, inside = zip(*pieces, strict=True)
        widths = list(map(columns, texts))
        ends = list(accumulate(map(add, widths, map(len, gaps))))
        begins = list(map(sub, ends, widths))
        insides = frozenset(itertools.compress(itertools.count(), inside))
        return cls(texts, pieces, begins, ends, insides)

    @classmethod
    def of_words(cls, text: str, words: Sequence[TranscriptWord]) -> _Text:
        """Return words of a simple text, with a space between: all that most transcripts have."""
        texts = text.split(" ")
        ends = list(map(add, accumulate(map(len, texts)), itertools.count()))
        begins = [0, *(end + 1 for end in ends[:-1])]
        return cls(texts, words, begins, ends, plain=text)

    def width(self, start: int, end: int) -> int:
        """Return columns of the pieces from ``start`` to before ``end``."""
        return self.ends[end - 1] - self.begins[start]

    def line_end(self, start: int, width: int) -> int:
        """Return how far a line of ``width`` columns goes from piece ``start``."""
        return bisect_right(self.ends, self.begins[start] + width)

    def cue_end(self, start: int, limits: CaptionLimits) -> int:
        """Return how far a cue goes from piece ``start``."""
        end = start
        for _ in range(limits.lines):
            if end < len(self.ends):
                end = self.line_end(end, limits.line_columns)
        latest_ms = self.timed[start].start_ms + limits.longest_ms
        while end > start + 1 and self.timed[end - 1].end_ms > latest_ms:
            end -= 1
        return end

    def break_cost(self, end: int) -> float:
        """Return how much a break before piece ``end`` disturbs: 0 after a sentence, 3 in a
        word."""
        if end in self.insides:
            return _INSIDE_COST
        left, right = self.pieces[end - 1], self.pieces[end]
        cost = _cost_after(left)
        if cost == 1.0:
            cost -= _gain_before(right)
            if self.begins[end] == self.ends[end - 1] and _PARTICLE.match(left[-1] + right[0]):
                cost -= 0.6
        pause_ms = self.timed[end].start_ms - self.timed[end - 1].end_ms
        if cost < 0.2 or pause_ms <= 0:
            return cost
        return cost * (1 - 0.9 * min(_LONG_PAUSE_MS, pause_ms) / _LONG_PAUSE_MS)

    def written(self, start: int, end: int) -> str:
        """Return the pieces from ``start`` to before ``end``."""
        if self.plain is not None:
            return self.plain[self.begins[start] : self.ends[end - 1]]
        gaps = map(sub, self.begins[start + 1 : end], self.ends[start : end - 1])
        others = map(add, map(" ".__mul__, gaps), self.pieces[start + 1 : end])
        return "".join([self.pieces[start], *others])


def _bounds(text: _Text, limits: CaptionLimits) -> list[tuple[int, int]]:
    """Return the first piece of each cue and the one after its last, at the least cost over all."""
    count, first_end = len(text.pieces), text.cue_end(0, limits)
    if first_end == count:
        return [(0, count)]
    room, speed = limits.lines * limits.line_columns, limits.columns_per_second
    least = limits.shortest_ms * speed / 1000
    until_ms = [each.start_ms for each in text.timed] + [text.timed[-1].end_ms]
    best = [0.0] + [math.inf] * count
    came_from = [0] * (count + 1)

    def extend(start: int, ends: Iterable[int]) -> None:
        for end in ends:
            width = text.width(start, end)
            cost = best[start] + _CUE_COST + _FULLNESS_COST * (width / room) ** 2
            time_ms = until_ms[end] - until_ms[start] - limits.gap_ms
            rate = max(width, least) * 1000 / max(1, time_ms)
            if rate > speed:
                cost += _HURRY_COST * (rate / speed - 1 + limits.is_strict)
            if end < count:
                cost += text.break_cost(end)
            if cost <= best[end]:
                best[end], came_from[end] = cost, start

    extend(0, range(1, first_end + 1))
    # From here on a cue may be the last. Two cues are most often enough, and three cost more.
    last = bisect_left(range(count), count, key=lambda start: text.cue_end(start, limits))
    for start in range(last, first_end + 1):
        extend(start, [count])
    if min(best[1 : first_end + 1]) + 2 * _CUE_COST < best[count]:
        for start in range(1, count):
            extend(start, range(start + 1, text.cue_end(start, limits) + 1))
    bounds = [count]
    while bounds[-1]:
        bounds.append(came_from[bounds[-1]])
    return list(pairwise(reversed(bounds)))


def _lines(text: _Text, first: int, last: int, limits: CaptionLimits) -> list[str]:
    """As few lines as hold the pieces: about equally long, and broken between phrases."""
    width = limits.line_columns
    lines, end = 1, text.line_end(first, width)
    while end < last:
        lines, end = lines + 1, text.line_end(end, width)
    even = text.width(first, last) / lines
    # Where the lines so far may end -> the cheapest way to it: its cost, and where its lines begin.
    ways: dict[int, tuple[float, tuple[int, ...]]] = {first: (0.0, ())}
    for others in range(lines - 1, 0, -1):
        # What is left fits the other lines.
        nearest = bisect_left(text.begins, text.ends[last - 1] - others * (width + 1) + 1)
        found: dict[int, tuple[float, tuple[int, ...]]] = {}
        for start, (before, starts) in ways.items():
            furthest = min(text.line_end(start, width), last - 1)
            for end in range(max(nearest, start + 1), furthest + 1):
                cost = before + abs(text.width(start, end) - even) / width
                cost += 0.4 * text.break_cost(end)
                if end not in found or cost <= found[end][0]:
                    found[end] = cost, (*starts, start)
        ways = found
    costs = {s: cost + abs(text.width(s, last) - even) / width for s, (cost, _) in ways.items()}
    if lines == 2 and limits.balance_percent:
        for start in costs:
            shorter, longer = sorted((text.width(first, start), text.width(start, last)))
            costs[start] += _UNEVEN_COST * (shorter * 100 < longer * limits.balance_percent)
    begin = min(reversed(costs), key=lambda start: costs[start])
    return [text.written(*line) for line in pairwise([*ways[begin][1], begin, last])]


@lru_cache(maxsize=4096)
def _cost_after(text: str) -> float:
    """Of a break after a word, whatever follows it."""
    if ends_sentence(text):
        return 0.0
    if text.endswith(_CLAUSE_ENDS):
        return 0.15
    return 1.7 if text.lower() in _CLINGERS or text[-1].isdigit() else 1.0


@lru_cache(maxsize=4096)
def _gain_before(text: str) -> float:
    """Return how much less a break disturbs because the phrase is new."""
    word = text.lower()
    return 0.6 if word in _CLAUSE_OPENERS else 0.2 if word in _PHRASE_OPENERS else 0.0


NO_PICTURE_RATE = Fraction(25)
_JOIN_MS = 1_000
"""Segments of one speaker with a longer pause between stay apart."""
_UNLIMITED_MS = 10**9
Milliseconds = Annotated[int, Field(ge=0, le=60_000)]


@dataclass(frozen=True, slots=True)
class HouseRules:
    """A house's rules for one language; see ``caption_rules.toml``. Zero: there is no such rule."""

    title: str
    source: str
    line_columns: Annotated[int, Field(ge=12, le=120)]
    lines: Annotated[int, Field(ge=1, le=4)]
    columns_per_second: Annotated[int, Field(ge=0, le=60)] = 0
    words_per_minute: Annotated[int, Field(ge=0, le=600)] = 0
    verbatim: bool = False
    shortest_ms: Annotated[int, Field(ge=0, le=5_000)] = 0
    longest_ms: Milliseconds = 0
    gap_frames: Annotated[int, Field(ge=0, le=25)] = 0
    closed_gap_ms: Milliseconds = 0
    early_ms: Milliseconds = 0
    late_ms: Milliseconds = 0
    balance_percent: Annotated[int, Field(ge=0, le=100)] = 0
    dash: Annotated[str, Field(max_length=4)] = "- "
    sound: Annotated[str, Field(max_length=40)] = "[{sound}]"
    speaker: Annotated[str, Field(max_length=40)] = "{speaker}:"
    frame_rate: Fraction = NO_PICTURE_RATE
    """Frames a second of the picture; not part of the table."""

    @property
    def limits(self) -> CaptionLimits:
        """What a cue holds, and the speed at which cues are cut."""
        speed = self.columns_per_second or USUAL.columns_per_second
        return CaptionLimits(
            self.line_columns,
            self.lines,
            speed,
            is_strict=not self.verbatim,
            gap_ms=self.gap_ms,
            shortest_ms=self.shortest_ms,
            longest_ms=self.longest_ms or CUE_MAX_MS,
            balance_percent=self.balance_percent,
        )

    @property
    def gap_ms(self) -> int:
        """Between two cues: the frames in whole milliseconds, rounded up."""
        return -int(-self.gap_frames * 1000 // self.frame_rate)

    def needed_ms(self, text: str) -> int:
        """Return how long ``text``, in one line, is to stay."""
        needed = self.shortest_ms
        if self.columns_per_second:
            needed = max(needed, -(-columns(text) * 1000 // self.columns_per_second))
        if self.words_per_minute and not SPACELESS.search(text):
            needed = max(needed, -(-len(text.split()) * 60_000 // self.words_per_minute))
        return min(needed, self.longest_ms or needed)


HouseTable = Mapping[str, Mapping[str, HouseRules]]
"""House -> language, ``""`` for all that have no rules of their own -> its rules."""


class CaptionRulesError(ValueError):
    """The table cannot be read: one sentence that names the file and the place."""


@lru_cache(maxsize=8)
def read_rules(path: Path | None = None) -> HouseTable:
    """The shipped table, with the houses of the TOML file at ``path`` beside or instead of its own.
    Raises CaptionRulesError."""
    shipped = files("pipelines.speech").joinpath("caption_rules.toml").read_text()
    table = _parsed(shipped, "caption_rules.toml")
    if path is not None:
        try:
            table |= _parsed(path.read_text(), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise CaptionRulesError(f"caption rules {path}: {error}") from None
    return table


def _parsed(text: str, name: str) -> dict[str, dict[str, HouseRules]]:
    table: dict[str, dict[str, HouseRules]] = {}
    place = ""
    try:
        for house, values in tomllib.loads(text).items():
            place = house
            base = dict(values)
            languages = base.pop("languages", {})
            table[house] = {"": from_json(HouseRules, base)}
            for language, others in languages.items():
                place = f"{house}.languages.{language}"
                table[house][language] = from_json(HouseRules, base | others)
            for rules in table[house].values():
                rules.sound.format(sound="music", SOUND="MUSIC")
                rules.speaker.format(speaker="Anna", SPEAKER="ANNA")
    except tomllib.TOMLDecodeError as error:
        raise CaptionRulesError(f"caption rules {name}: {error}") from None
    except (CodecError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise CaptionRulesError(f"caption rules {name}: {place}: {error}") from None
    return table


def find_rules(
    table: HouseTable, house: str, language: str | None, frame_rate: Fraction | None = None
) -> HouseRules | None:
    """Return the house's rules for text of a BCP 47 language; None where there is no such house."""
    if house not in table:
        return None
    of_language = table[house]
    rules = of_language.get((language or "").partition("-")[0].lower(), of_language[""])
    return replace(rules, frame_rate=frame_rate or NO_PICTURE_RATE)


def cues_of(segments: Sequence[TranscriptSegment], limits: CaptionLimits | HouseRules) -> list[Cue]:
    """Cues in order, never overlapping: by a house's rules, or within limits alone."""
    if isinstance(limits, CaptionLimits):
        return build_cues(segments, limits)
    spoken = [cue for cue, _ in cut_cues(_joined_segments(segments, limits), limits.limits)]
    return _timed(_shared(spoken, limits), limits)


def _joined_segments(
    segments: Iterable[TranscriptSegment], rules: HouseRules
) -> list[TranscriptSegment]:
    """Return segments that have too little time, joined to one of the same speaker beside them."""
    found: list[TranscriptSegment] = []
    for segment in segments:
        last = found[-1] if found else None
        if (
            last is not None
            and last.speaker == segment.speaker
            and segment.start_ms - last.end_ms <= _JOIN_MS
            and any(
                rules.needed_ms(each.text) > each.end_ms - each.start_ms for each in (last, segment)
            )
        ):
            text = joined((last.text, segment.text))
            words = last.words + segment.words
            found[-1] = replace(last, end_ms=segment.end_ms, text=text, words=words)
        else:
            found.append(segment)
    return found


def _shared(cues: Sequence[Cue], rules: HouseRules) -> list[Cue]:
    """Return two speakers in one cue, each with a dash, where one alone would be gone too soon."""
    found: list[Cue] = []
    for cue in cues:
        last = found[-1] if found else None
        if last is not None and _can_share(last, cue, rules):
            lines = tuple(rules.dash + line for line in (*last.lines, *cue.lines))
            found[-1] = Cue(last.start_ms, cue.end_ms, lines, None)
        else:
            found.append(cue)
    return found


def _can_share(first: Cue, second: Cue, rules: HouseRules) -> bool:
    if first.speaker is None or second.speaker is None or first.speaker == second.speaker:
        return False
    lines = first.lines + second.lines
    if len(lines) != 2 or rules.lines < 2:
        return False
    if any(columns(rules.dash + line) > rules.line_columns for line in lines):
        return False
    if second.end_ms - first.start_ms > rules.limits.longest_ms:
        return False
    rooms = second.start_ms - first.start_ms, second.end_ms - second.start_ms
    needs = (rules.needed_ms(line) for line in lines)
    return any(need > room + rules.late_ms for need, room in zip(needs, rooms, strict=True))


def _timed(cues: Sequence[Cue], rules: HouseRules) -> list[Cue]:
    """Return the cues with the time that they need, as far as those after and before them give
    way."""
    longest_ms, gap_ms = rules.longest_ms or _UNLIMITED_MS, rules.gap_ms
    needs = [rules.needed_ms(joined(cue.lines)) for cue in cues]
    latest = [0] * len(cues) + [_UNLIMITED_MS * 10]
    for i in range(len(cues) - 1, -1, -1):
        latest_ms = latest[i + 1] - gap_ms - needs[i]
        start_ms = cues[i].start_ms
        latest[i] = max(min(start_ms + rules.late_ms, latest_ms), start_ms - rules.early_ms, 0)
    found: list[Cue] = []
    earliest_ms = 0
    for i, cue in enumerate(cues):
        start_ms = max(earliest_ms, min(cue.start_ms, latest[i]))
        end_ms = max(cue.end_ms, start_ms + needs[i])
        if i + 1 < len(cues):
            closed_ms = cues[i + 1].start_ms - gap_ms
            if 0 < closed_ms - end_ms < rules.closed_gap_ms:
                end_ms = closed_ms
        end_ms = max(start_ms + 1, min(end_ms, latest[i + 1] - gap_ms, start_ms + longest_ms))
        found.append(cue._replace(start_ms=start_ms, end_ms=end_ms))
        earliest_ms = end_ms + gap_ms
    return found


def with_speakers(
    segments: Iterable[TranscriptSegment], speakers: Sequence[Speaker], template: str
) -> Iterator[TranscriptSegment]:
    """Yield the segments, each that begins a turn with its speaker's name, where there are several.

    ``template`` has ``{speaker}`` or, in capitals, ``{SPEAKER}``.
    """
    labels = {each.id: each.label for each in speakers} if len(speakers) > 1 else {}
    before: str | None = None
    for segment in segments:
        label = labels.get(segment.speaker or "")
        if label and segment.speaker != before:
            name = template.format(speaker=label, SPEAKER=label.upper())
            begin_ms = segment.start_ms
            word = TranscriptWord(name, begin_ms, begin_ms, 1.0, segment.speaker)
            text = f"{name} {segment.text}"
            yield replace(segment, text=text, words=(word, *segment.words))
        else:
            yield segment
        before = segment.speaker


class CaptionRule(StrEnum):
    """What a caption is checked for."""

    LINE_LENGTH = "line_length"
    LINES = "lines"
    READING_SPEED = "reading_speed"
    DURATION = "duration"
    GAP = "gap"
    LINE_BALANCE = "line_balance"


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a cue does not keep. ``cue`` counts from 1, as SubRip does."""

    cue: int
    start_ms: int
    end_ms: int
    rule: CaptionRule
    message: str
    is_advice: bool = False
    """The house leaves it to the person who writes."""


def find_violations(cues: Sequence[Cue], rules: HouseRules) -> Iterator[Violation]:
    """Yield what the cues break of the rules, in their order."""
    for number, (cue, after) in enumerate(zip(cues, [*cues[1:], None], strict=True), 1):
        for rule, message, is_advice in _broken(cue, after, rules):
            yield Violation(number, cue.start_ms, cue.end_ms, rule, message, is_advice)


def _broken(
    cue: Cue, after: Cue | None, rules: HouseRules
) -> Iterator[tuple[CaptionRule, str, bool]]:
    text, duration_ms = joined(cue.lines), cue.end_ms - cue.start_ms
    for line in cue.lines:
        if columns(line) > rules.line_columns:
            message = f"{columns(line)} columns, at most {rules.line_columns}"
            yield CaptionRule.LINE_LENGTH, message, False
    if len(cue.lines) > rules.lines:
        yield CaptionRule.LINES, f"{len(cue.lines)} lines, at most {rules.lines}", False
    if duration_ms < rules.shortest_ms:
        yield CaptionRule.DURATION, f"{duration_ms} ms, at least {rules.shortest_ms}", False
    if duration_ms > (rules.longest_ms or duration_ms):
        yield CaptionRule.DURATION, f"{duration_ms} ms, at most {rules.longest_ms}", False
    speed = rules.columns_per_second
    if speed and columns(text) * 1000 > speed * duration_ms:
        message = f"{columns(text) * 1000 / duration_ms:.1f} columns a second, at most {speed}"
        yield CaptionRule.READING_SPEED, message, rules.verbatim
    speed, words = rules.words_per_minute, len(text.split())
    if speed and words * 60_000 > speed * duration_ms and not SPACELESS.search(text):
        message = f"{words * 60_000 / duration_ms:.0f} words a minute, at most {speed}"
        yield CaptionRule.READING_SPEED, message, rules.verbatim
    pause_ms = after.start_ms - cue.end_ms if after else _UNLIMITED_MS
    if pause_ms < rules.gap_ms:
        yield CaptionRule.GAP, f"{pause_ms} ms to the next, at least {rules.gap_ms}", False
    elif rules.gap_ms < pause_ms < rules.closed_gap_ms:
        message = f"{pause_ms} ms to the next, which is neither closed nor {rules.closed_gap_ms}"
        yield CaptionRule.GAP, message, True
    if _is_unbalanced(cue.lines, rules):
        widths = " and ".join(str(columns(line)) for line in cue.lines)
        yield CaptionRule.LINE_BALANCE, f"{widths} columns, although the text divides better", False


def _is_unbalanced(lines: Sequence[str], rules: HouseRules) -> bool:
    """Return whether two lines are less even than the house's rule, where another space divides
    better."""
    if len(lines) != 2 or _balanced(lines, rules) or lines[1].startswith(rules.dash):
        return False
    words = " ".join(lines).split()
    divided = ((" ".join(words[:i]), " ".join(words[i:])) for i in range(1, len(words)))
    return any(
        _balanced(each, rules) and max(map(columns, each)) <= rules.line_columns for each in divided
    )


def _balanced(lines: Sequence[str], rules: HouseRules) -> bool:
    shorter, longer = sorted(map(columns, lines))
    return shorter * 100 >= longer * rules.balance_percent
