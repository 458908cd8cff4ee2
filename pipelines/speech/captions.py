"""Transcripts as captions: SubRip, WebVTT, plain text. Pure.

The usual limits of readable subtitles: 42 characters a line, two lines and seven seconds a cue,
20 characters a second; all but the seconds can be chosen. Within them cues and lines end at pauses,
after punctuation and before the words that open a phrase (BBC's and Netflix's subtitle guidelines).
Each segment is cut by dynamic programming, so that one bad break early on does not force another
later.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from pipelines.speech.words import ends_sentence, joined
from pipelines.types import Speaker, TranscriptSegment, TranscriptWord

CUE_MAX_MS = 7_000
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
_XML_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#+!|~-])")


@dataclass(frozen=True, slots=True)
class CaptionLimits:
    """What a cue may hold, and how fast it is to be read."""

    line_characters: int = 42
    lines: int = 2
    characters_per_second: int = 20
    """A target: speech that is faster makes cues that are too."""


@dataclass(frozen=True, slots=True)
class Cue:
    """One caption: lines of text shown from ``start_ms`` to ``end_ms``."""

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


def build_cues(
    segments: Sequence[TranscriptSegment], limits: CaptionLimits = CaptionLimits()
) -> list[Cue]:
    """Cues in order, never overlapping, each at least 1 ms long and at most CUE_MAX_MS."""
    cues: list[Cue] = []
    earliest_ms = 0
    for segment in segments:
        for pieces in _cut(list(_pieces(segment.words, limits)), limits):
            start_ms = max(pieces[0].start_ms, earliest_ms)
            end_ms = min(max(pieces[-1].end_ms, start_ms + 1), start_ms + CUE_MAX_MS)
            cues.append(Cue(start_ms, end_ms, _lines(pieces, limits), segment.speaker))
            earliest_ms = end_ms
    return _lingering(cues, limits)


def plain(text: str) -> str:
    """``text`` in one line: a line end inside a word would end its cue and begin another."""
    return " ".join(_CONTROL.sub(" ", text).split())


def _pieces(words: Iterable[TranscriptWord], limits: CaptionLimits) -> Iterator[_Piece]:
    """The words as pieces that fit a line; parts of a long word share its time evenly."""
    for word in words:
        text = plain(word.text)
        width = limits.line_characters
        count = -(-len(text) // width)
        length_ms = word.end_ms - word.start_ms
        for i in range(count):
            yield _Piece(
                text[i * width : (i + 1) * width],
                word.start_ms + length_ms * i // count,
                word.start_ms + length_ms * (i + 1) // count,
                ends_word=i == count - 1,
            )


def _cut(pieces: Sequence[_Piece], limits: CaptionLimits) -> list[Sequence[_Piece]]:
    """The pieces in cues within the limits, at the least cost over all of them."""
    best = [0.0] + [math.inf] * len(pieces)
    came_from = [0] * (len(pieces) + 1)
    for end in range(1, len(pieces) + 1):
        for start in range(end - 1, -1, -1):
            part = pieces[start:end]
            if end - start > 1 and not _fits_cue(part, limits):
                break
            following = pieces[end] if end < len(pieces) else None
            cost = best[start] + _cue_cost(part, following, limits)
            if cost < best[end]:
                best[end], came_from[end] = cost, start
    bounds = [len(pieces)]
    while bounds[-1]:
        bounds.append(came_from[bounds[-1]])
    return [pieces[start:end] for end, start in pairwise(bounds)][::-1]


def _fits_cue(pieces: Sequence[_Piece], limits: CaptionLimits) -> bool:
    short = pieces[-1].end_ms - pieces[0].start_ms <= CUE_MAX_MS
    texts = [piece.text for piece in pieces]
    return short and len(_greedy_lines(texts, limits.line_characters)) <= limits.lines


def _cue_cost(pieces: Sequence[_Piece], following: _Piece | None, limits: CaptionLimits) -> float:
    characters = sum(len(piece.text) + 1 for piece in pieces) - 1
    fullness = characters / (limits.lines * limits.line_characters)
    cost = _CUE_COST + _FULLNESS_COST * fullness**2
    until_ms = pieces[-1].end_ms if following is None else following.start_ms
    rate = characters * 1000 / max(1, until_ms - pieces[0].start_ms)
    cost += _HURRY_COST * max(0.0, rate / limits.characters_per_second - 1)
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


def _greedy_lines(words: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and len(longer := joined([lines[-1], word])) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _lines(pieces: Sequence[_Piece], limits: CaptionLimits) -> tuple[str, ...]:
    """As few lines as hold the pieces: about equally long, and broken between phrases."""
    words, width = [piece.text for piece in pieces], limits.line_characters
    count = len(_greedy_lines(words, width))
    even = len(joined(words)) / count
    # best[k][n]: the least cost of the first n words in k lines, and where the last one begins.
    best = [[(math.inf, 0)] * (len(words) + 1) for _ in range(count + 1)]
    best[0][0] = (0.0, 0)
    for line in range(1, count + 1):
        for end in range(line, len(words) + 1):
            for start in range(end - 1, line - 2, -1):
                length = len(joined(words[start:end]))
                if length > width:
                    break
                cost = best[line - 1][start][0] + abs(length - even) / width
                if start:
                    cost += 0.4 * _break_cost(pieces[start - 1], pieces[start])
                if cost < best[line][end][0]:
                    best[line][end] = (cost, start)
    lines, end = list[str](), len(words)
    for line in range(count, 0, -1):
        start = best[line][end][1]
        lines.append(joined(words[start:end]))
        end = start
    return tuple(reversed(lines))


def _lingering(cues: Sequence[Cue], limits: CaptionLimits) -> list[Cue]:
    """The cues, left on the screen into the pause after them as long as they take to read.

    The last one is not: where the media ends is not known here.
    """
    longer = []
    for cue, following in pairwise(cues):
        characters = sum(map(len, cue.lines)) + len(cue.lines) - 1
        needed_ms = max(CUE_COMFORT_MS, math.ceil(characters * 1000 / limits.characters_per_second))
        read_ms = cue.start_ms + min(CUE_MAX_MS, needed_ms)
        longer.append(replace(cue, end_ms=max(cue.end_ms, min(read_ms, following.start_ms))))
    return [*longer, *cues[-1:]]


def to_srt(segments: Sequence[TranscriptSegment], limits: CaptionLimits = CaptionLimits()) -> str:
    """SubRip (index from 1, comma before the milliseconds); empty without segments."""
    blocks = []
    for number, cue in enumerate(build_cues(segments, limits), start=1):
        times = f"{vtt_time(cue.start_ms)} --> {vtt_time(cue.end_ms)}".replace(".", ",")
        # SubRip has no escapes; an arrow in the text would read as a timing line.
        text = "\n".join(cue.lines).replace("-->", "—>")
        blocks.append(f"{number}\n{times}\n{text}\n")
    return "\n".join(blocks)


def to_vtt(
    segments: Sequence[TranscriptSegment],
    speakers: Sequence[Speaker],
    limits: CaptionLimits = CaptionLimits(),
) -> str:
    """WebVTT (https://www.w3.org/TR/webvtt1/) with ``<v Speaker 1>`` voice spans."""
    labels = {speaker.id: speaker.label for speaker in speakers}
    blocks = [
        f"{vtt_time(cue.start_ms)} --> {vtt_time(cue.end_ms)}\n{_vtt_text(cue, labels)}\n"
        for cue in build_cues(segments, limits)
    ]
    return "WEBVTT\n\n" + "\n".join(blocks)


def to_ttml(
    segments: Sequence[TranscriptSegment],
    speakers: Sequence[Speaker],
    language: str | None,
    limits: CaptionLimits = CaptionLimits(),
) -> str:
    """TTML (IMSC 1.1 Text, https://www.w3.org/TR/ttml-imsc1.1/); speakers as agents."""
    agents = "".join(
        f'      <ttm:agent xml:id="{_xml(speaker.id)}" type="person">'
        f'<ttm:name type="full">{_xml(speaker.label)}</ttm:name></ttm:agent>\n'
        for speaker in speakers
    )
    known = {speaker.id for speaker in speakers}
    cues = "".join(
        f'      <p begin="{vtt_time(cue.start_ms)}" end="{vtt_time(cue.end_ms)}"'
        + (f' ttm:agent="{_xml(cue.speaker or "")}"' if cue.speaker in known else "")
        + f">{'<br/>'.join(map(_xml, cue.lines))}</p>\n"
        for cue in build_cues(segments, limits)
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<tt xmlns="http://www.w3.org/ns/ttml" xmlns:ttm="http://www.w3.org/ns/ttml#metadata"'
        ' xmlns:ttp="http://www.w3.org/ns/ttml#parameter" ttp:timeBase="media"'
        ' ttp:contentProfiles="http://www.w3.org/ns/ttml/profile/imsc1.1/text"'
        f' xml:lang="{_xml(language or "")}">\n'
        f"  <head>\n    <metadata>\n{agents}    </metadata>\n  </head>\n"
        f"  <body>\n    <div>\n{cues}    </div>\n  </body>\n</tt>\n"
    )


def to_markdown(segments: Sequence[TranscriptSegment], speakers: Sequence[Speaker]) -> str:
    """A paragraph a speaker turn with the time at which it begins, as Markdown."""
    labels = {speaker.id: speaker.label for speaker in speakers} if len(speakers) > 1 else {}
    paragraphs = []
    for name, turn in groupby(segments, key=lambda segment: segment.speaker):
        said = list(turn)
        label = _MARKDOWN.sub(r"\\\1", plain(labels.get(name or "", "")))
        text = _MARKDOWN.sub(r"\\\1", " ".join(plain(each.text) for each in said))
        who = f"**{label}** " if label else ""
        paragraphs.append(f"{who}`{vtt_time(said[0].start_ms)[:8]}` {text}\n")
    return "\n".join(paragraphs)


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


def xml_text(text: str) -> str:
    """``text`` in one line, without what XML cannot hold; not yet escaped."""
    return _XML_FORBIDDEN.sub("", plain(text))


def _xml(text: str) -> str:
    return escaped(xml_text(text)).replace('"', "&quot;")


def escaped(text: str) -> str:
    """``text`` in a WebVTT cue."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def vtt_time(ms: int) -> str:
    """``HH:MM:SS.mmm``."""
    seconds, millis = divmod(ms, 1000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}.{millis:03d}"
