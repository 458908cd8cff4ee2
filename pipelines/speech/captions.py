"""Transcripts as captions: SubRip, WebVTT, plain text. Pure.

The usual limits of readable subtitles: 42 characters a line, two lines and seven seconds a cue,
20 characters a second. Within them cues and lines end at pauses, after punctuation and before the
words that open a phrase (BBC's and Netflix's subtitle guidelines). Each segment is cut by dynamic
programming, so that one bad break early on does not force another later.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from pipelines.speech.words import ends_sentence, joined
from pipelines.types import Speaker, TranscriptSegment, TranscriptWord

LINE_CHARACTERS = 42
CUE_LINES = 2
CUE_MAX_MS = 7_000
CHARACTERS_PER_SECOND = 20
CUE_COMFORT_MS = 1_000
"""A cue is left on the screen at least this long where no other cue follows."""


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CLAUSE_OPENERS = _set(
    "and but or so because that which who whom whose when where while if then as after before"
    " until unless although though since"
)
"""English words that open a clause: a break before one is natural."""
_PHRASE_OPENERS = _set(
    "than for with without from into onto over under through between about against of to in on"
    " at by"
)
_CLINGERS = _set(
    "a an the my your his her its our their this that these those is are was were am be been being"
    " have has had do does did will would can could shall should may might must not no very more"
    " i you he she it we they and or but of to in on at by for with from as than if when"
)
"""English words that belong to what follows: a break after one disturbs."""
_CLAUSE_ENDS = (",", ";", ":", "–", "—", "、", "，")

_LONG_PAUSE_MS = 400
_CUE_COST = 1.0
_FULLNESS_COST = 0.5
"""Two cues of fifty characters read better than one of eighty and one of twenty."""
_HURRY_COST = 2.0


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Cue:
    """One caption: one or two lines of text shown from ``start_ms`` to ``end_ms``."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]
    speaker: str | None


@dataclass(frozen=True, slots=True)
class _Piece:
    """A word, or a part of one that is longer than a line."""

    text: str
    start_ms: int
    end_ms: int
    ends_word: bool = True


def build_cues(segments: Sequence[TranscriptSegment]) -> list[Cue]:
    """Cues in order, never overlapping, each at least 1 ms long and at most CUE_MAX_MS."""
    cues: list[Cue] = []
    earliest_ms = 0
    for segment in segments:
        for pieces in _cut(list(_pieces(segment.words))):
            start_ms = max(pieces[0].start_ms, earliest_ms)
            end_ms = min(max(pieces[-1].end_ms, start_ms + 1), start_ms + CUE_MAX_MS)
            cues.append(Cue(start_ms, end_ms, _lines(pieces), segment.speaker))
            earliest_ms = end_ms
    return _lingering(cues)


def plain(text: str) -> str:
    """``text`` in one line: a line end inside a word would end its cue and begin another."""
    return " ".join(_CONTROL.sub(" ", text).split())


def _pieces(words: Iterable[TranscriptWord]) -> Iterator[_Piece]:
    """The words as pieces that fit a line; parts of a long word share its time evenly."""
    for word in words:
        text = plain(word.text)
        count = -(-len(text) // LINE_CHARACTERS)
        length_ms = word.end_ms - word.start_ms
        for i in range(count):
            yield _Piece(
                text[i * LINE_CHARACTERS : (i + 1) * LINE_CHARACTERS],
                word.start_ms + length_ms * i // count,
                word.start_ms + length_ms * (i + 1) // count,
                ends_word=i == count - 1,
            )


def _cut(pieces: Sequence[_Piece]) -> list[Sequence[_Piece]]:
    """The pieces in cues within the limits, at the least cost over all of them."""
    best = [0.0] + [math.inf] * len(pieces)
    came_from = [0] * (len(pieces) + 1)
    for end in range(1, len(pieces) + 1):
        for start in range(end - 1, -1, -1):
            part = pieces[start:end]
            if end - start > 1 and not _fits_cue(part):
                break
            following = pieces[end] if end < len(pieces) else None
            cost = best[start] + _cue_cost(part, following)
            if cost < best[end]:
                best[end], came_from[end] = cost, start
    bounds = [len(pieces)]
    while bounds[-1]:
        bounds.append(came_from[bounds[-1]])
    return [pieces[start:end] for end, start in pairwise(bounds)][::-1]


def _fits_cue(pieces: Sequence[_Piece]) -> bool:
    short = pieces[-1].end_ms - pieces[0].start_ms <= CUE_MAX_MS
    return short and len(_greedy_lines([piece.text for piece in pieces])) <= CUE_LINES


def _cue_cost(pieces: Sequence[_Piece], following: _Piece | None) -> float:
    characters = sum(len(piece.text) + 1 for piece in pieces) - 1
    fullness = characters / (CUE_LINES * LINE_CHARACTERS)
    cost = _CUE_COST + _FULLNESS_COST * fullness**2
    until_ms = pieces[-1].end_ms if following is None else following.start_ms
    rate = characters * 1000 / max(1, until_ms - pieces[0].start_ms)
    cost += _HURRY_COST * max(0.0, rate / CHARACTERS_PER_SECOND - 1)
    return cost if following is None else cost + _break_cost(pieces[-1], following)


def _break_cost(left: _Piece, right: _Piece) -> float:
    """How much a break between two pieces disturbs: 0 at the end of a sentence, 3 in a word."""
    if not left.ends_word:
        return 3.0
    if ends_sentence(left.text):
        return 0.0
    if left.text.endswith(_CLAUSE_ENDS):
        return 0.15
    cost = 1.0
    if left.text.lower() in _CLINGERS:
        cost += 0.7
    elif right.text.lower() in _CLAUSE_OPENERS:
        cost -= 0.6
    elif right.text.lower() in _PHRASE_OPENERS:
        cost -= 0.2
    pause_ms = min(_LONG_PAUSE_MS, max(0, right.start_ms - left.end_ms))
    return cost * (1 - 0.9 * pause_ms / _LONG_PAUSE_MS)


def _greedy_lines(words: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and len(longer := joined([lines[-1], word])) <= LINE_CHARACTERS:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _lines(pieces: Sequence[_Piece]) -> tuple[str, ...]:
    """One line if it fits, else two: about equally long, and broken between phrases."""
    words = [piece.text for piece in pieces]
    if len(joined(words)) <= LINE_CHARACTERS:
        return (joined(words),)
    best_cost, best = math.inf, ("", "")
    for n in range(1, len(words)):
        split = joined(words[:n]), joined(words[n:])
        lengths = [len(line) for line in split]
        uneven = abs(lengths[0] - lengths[1]) / LINE_CHARACTERS
        cost = uneven + 0.4 * _break_cost(pieces[n - 1], pieces[n])
        if max(lengths) <= LINE_CHARACTERS and cost < best_cost:
            best_cost, best = cost, split
    return best


def _lingering(cues: Sequence[Cue]) -> list[Cue]:
    """The cues, left on the screen into the pause after them as long as they take to read.

    The last one is not: where the media ends is not known here.
    """
    longer = []
    for cue, following in pairwise(cues):
        characters = sum(map(len, cue.lines)) + len(cue.lines) - 1
        needed_ms = max(CUE_COMFORT_MS, math.ceil(characters * 1000 / CHARACTERS_PER_SECOND))
        read_ms = cue.start_ms + min(CUE_MAX_MS, needed_ms)
        longer.append(replace(cue, end_ms=max(cue.end_ms, min(read_ms, following.start_ms))))
    return [*longer, *cues[-1:]]


def to_srt(segments: Sequence[TranscriptSegment]) -> str:
    """SubRip (index from 1, comma before the milliseconds); empty without segments."""
    blocks = []
    for number, cue in enumerate(build_cues(segments), start=1):
        times = f"{vtt_time(cue.start_ms)} --> {vtt_time(cue.end_ms)}".replace(".", ",")
        # SubRip has no escapes; an arrow in the text would read as a timing line.
        text = "\n".join(cue.lines).replace("-->", "—>")
        blocks.append(f"{number}\n{times}\n{text}\n")
    return "\n".join(blocks)


def to_vtt(segments: Sequence[TranscriptSegment], speakers: Sequence[Speaker]) -> str:
    """WebVTT (https://www.w3.org/TR/webvtt1/) with ``<v Speaker 1>`` voice spans."""
    labels = {speaker.id: speaker.label for speaker in speakers}
    blocks = [
        f"{vtt_time(cue.start_ms)} --> {vtt_time(cue.end_ms)}\n{_vtt_text(cue, labels)}\n"
        for cue in build_cues(segments)
    ]
    return "WEBVTT\n\n" + "\n".join(blocks)


def to_txt(segments: Sequence[TranscriptSegment], speakers: Sequence[Speaker]) -> str:
    """A paragraph a speaker turn, with the speaker's label where there are several."""
    labels = {speaker.id: speaker.label for speaker in speakers} if len(speakers) > 1 else {}
    turns = groupby(segments, key=lambda segment: segment.speaker)
    paragraphs = []
    for name, turn in turns:
        label, text = labels.get(name or ""), " ".join(plain(each.text) for each in turn)
        paragraphs.append(f"{plain(label)}: {text}\n" if label else f"{text}\n")
    return "\n".join(paragraphs)


def _vtt_text(cue: Cue, labels: dict[str, str]) -> str:
    text = escaped("\n".join(cue.lines))
    label = plain(labels.get(cue.speaker or "", ""))
    return f"<v {escaped(label)}>{text}" if label else text


def escaped(text: str) -> str:
    """``text`` in a WebVTT cue."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def vtt_time(ms: int) -> str:
    """``HH:MM:SS.mmm``."""
    seconds, millis = divmod(ms, 1000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}.{millis:03d}"
