"""Transcripts as SubRip, WebVTT and plain text. Pure.

Captions follow the usual limits of readable subtitles: 42 characters a line, two
lines and seven seconds a cue. SubRip: index from 1, comma before the milliseconds.
WebVTT: https://www.w3.org/TR/webvtt1/, with ``<v Speaker 1>`` voice spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pipelines.contracts import Speaker, TranscriptSegment, TranscriptWord

LINE_CHARACTERS = 42
CUE_LINES = 2
CUE_MAX_MS = 7_000


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


def to_srt(segments: Sequence[TranscriptSegment]) -> str:
    """SubRip; an empty string where nothing was said."""
    blocks = [
        f"{number}\n{_srt_time(cue.start_ms)} --> {_srt_time(cue.end_ms)}\n{_srt_text(cue)}\n"
        for number, cue in enumerate(build_cues(segments), start=1)
    ]
    return "\n".join(blocks)


def to_vtt(segments: Sequence[TranscriptSegment], speakers: Sequence[Speaker]) -> str:
    """WebVTT with voice spans; only the header where nothing was said."""
    labels = {speaker.id: speaker.label for speaker in speakers}
    blocks = [
        f"{_vtt_time(cue.start_ms)} --> {_vtt_time(cue.end_ms)}\n{_vtt_text(cue, labels)}\n"
        for cue in build_cues(segments)
    ]
    return "WEBVTT\n\n" + "\n".join(blocks)


def to_txt(segments: Sequence[TranscriptSegment], speakers: Sequence[Speaker]) -> str:
    """A paragraph a speaker turn, with the speaker's label where there are several."""
    labels = {speaker.id: speaker.label for speaker in speakers} if len(speakers) > 1 else {}
    turns = groupby(segments, key=lambda segment: segment.speaker)
    return "\n".join(_paragraph(labels.get(name or ""), turn) for name, turn in turns)


def build_cues(segments: Sequence[TranscriptSegment]) -> list[Cue]:
    """Cues in order, never overlapping, each at least 1 ms long and at most CUE_MAX_MS."""
    cues: list[Cue] = []
    earliest_ms = 0
    for segment in segments:
        for pieces in _cue_pieces(_pieces(segment.words)):
            start_ms = max(pieces[0].start_ms, earliest_ms)
            end_ms = min(max(pieces[-1].end_ms, start_ms + 1), start_ms + CUE_MAX_MS)
            lines = _balanced_lines([piece.text for piece in pieces])
            cues.append(Cue(start_ms, end_ms, lines, segment.speaker))
            earliest_ms = end_ms
    return cues


def _pieces(words: Iterable[TranscriptWord]) -> Iterator[_Piece]:
    """The words as pieces that fit a line; parts of a long word share its time evenly."""
    for word in words:
        count = -(-len(word.text) // LINE_CHARACTERS)
        length_ms = word.end_ms - word.start_ms
        for i in range(count):
            yield _Piece(
                word.text[i * LINE_CHARACTERS : (i + 1) * LINE_CHARACTERS],
                word.start_ms + length_ms * i // count,
                word.start_ms + length_ms * (i + 1) // count,
            )


def _cue_pieces(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    current: list[_Piece] = []
    for piece in pieces:
        if current and not _fits_cue([*current, piece]):
            yield current
            current = []
        current.append(piece)
    if current:
        yield current


def _fits_cue(pieces: Sequence[_Piece]) -> bool:
    short = pieces[-1].end_ms - pieces[0].start_ms <= CUE_MAX_MS
    return short and len(_greedy_lines([piece.text for piece in pieces])) <= CUE_LINES


def _greedy_lines(words: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= LINE_CHARACTERS:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _balanced_lines(words: Sequence[str]) -> tuple[str, ...]:
    """One line if it fits, else the two lines whose lengths differ least."""
    if len(" ".join(words)) <= LINE_CHARACTERS:
        return (" ".join(words),)
    splits = [(" ".join(words[:n]), " ".join(words[n:])) for n in range(1, len(words))]
    return min(splits, key=lambda pair: max(len(pair[0]), len(pair[1])))


def _srt_text(cue: Cue) -> str:
    # SubRip has no escapes; an arrow in the text would read as a timing line.
    return "\n".join(cue.lines).replace("-->", "—>")


def _vtt_text(cue: Cue, labels: dict[str, str]) -> str:
    text = _escaped("\n".join(cue.lines))
    label = labels.get(cue.speaker or "")
    return text if label is None else f"<v {_escaped(' '.join(label.split()))}>{text}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _paragraph(label: str | None, turn: Iterable[TranscriptSegment]) -> str:
    text = " ".join(segment.text for segment in turn)
    return f"{text}\n" if label is None else f"{label}: {text}\n"


def _srt_time(ms: int) -> str:
    return _vtt_time(ms).replace(".", ",")


def _vtt_time(ms: int) -> str:
    seconds, millis = divmod(ms, 1000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}.{millis:03d}"
