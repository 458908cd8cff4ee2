"""Transcripts as SubRip, WebVTT and plain text. Pure.

SubRip: index from 1, comma before the milliseconds.
WebVTT: https://www.w3.org/TR/webvtt1/, with ``<v Speaker 1>`` voice spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from pipelines.speech.captions.cues import Cue, build_cues, plain
from pipelines.types import Speaker, TranscriptSegment


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


def _srt_text(cue: Cue) -> str:
    # SubRip has no escapes; an arrow in the text would read as a timing line.
    return "\n".join(cue.lines).replace("-->", "—>")


def _vtt_text(cue: Cue, labels: dict[str, str]) -> str:
    text = _escaped("\n".join(cue.lines))
    label = plain(labels.get(cue.speaker or "", ""))
    return f"<v {_escaped(label)}>{text}" if label else text


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _paragraph(label: str | None, turn: Iterable[TranscriptSegment]) -> str:
    text = " ".join(plain(segment.text) for segment in turn)
    return f"{plain(label)}: {text}\n" if label else f"{text}\n"


def _srt_time(ms: int) -> str:
    return _vtt_time(ms).replace(".", ",")


def _vtt_time(ms: int) -> str:
    seconds, millis = divmod(ms, 1000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}.{millis:03d}"
