"""Scenes on a timeline of frames, as files of editing programs and players.

Results have times in milliseconds. A frame of a constant rate is found again from its rounded time
exactly, as long as a frame lasts longer than a millisecond. Sources keep the rate and the start
timecode of the file; a rate that no editing program has is put on one that has all its frames (12.5
on 25), and a variable one on the nearest, by time.

Files are EDL, OpenTimelineIO, FCPXML, FFmetadata, YouTube's chapters, WebVTT and CSV that a
spreadsheet never executes. EDL and FCPXML are written here. OpenTimelineIO's adapters read them
(the tests do), but ``otio-cmx3600-adapter`` 1.0 writes every 29.97 and 59.94 timeline as drop
frame, without a start, and ``otio-fcpx-xml-adapter`` 1.0 leaves the frame duration of fractional
rates empty.
"""

from __future__ import annotations

import csv
import io
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

from pipelines.ingest.timecode import parse_rate, parse_timecode, rate_near, timecode_at
from pipelines.speech.caption_rules import plain
from pipelines.speech.captions import escaped, vtt_time, xml_text
from serve_app.errors import invalid

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What makes a spreadsheet take a cell for a formula, full-width forms included.

https://owasp.org/www-community/attacks/CSV_Injection
"""
_FORMULA_IN_NEXT_CELL = re.compile("([;\r\n][ \u00a0\ufeff]*)(?=[\t=+@＝＋－＠-])")
"""Where the comma writes decimals, spreadsheets take a semicolon for the end of a cell; and the
quotes are not where they then look for them, so that a line end is the end of a row."""


def csv_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a header and a line a row; every cell quoted, text that looks like a formula
    defused."""
    target = io.StringIO(newline="")
    writer = csv.writer(target, quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([harmless(cell) if isinstance(cell, str) else cell for cell in row])
    return target.getvalue()


def harmless(cell: str) -> str:
    """``cell``, with an apostrophe before what a spreadsheet would run."""
    cell = _FORMULA_IN_NEXT_CELL.sub(r"\1'", cell)
    return f"'{cell}" if cell.lstrip(" \u00a0\ufeff").startswith(_FORMULA_STARTS) else cell


Values = Mapping[str, Any]

_NTSC = Fraction(1000, 1001)
RATES = tuple(
    sorted([*map(Fraction, (24, 25, 30, 48, 50, 60)), *(n * _NTSC for n in (24, 30, 60))])
)
"""Frames a second that editing programs count in."""
_DROP_RATES = (30 * _NTSC, 60 * _NTSC)
_DROPPING = (30, 60)
"""Frames a second, rounded, of which numbers can be dropped."""
_DROP_MARK = re.compile("[;.,]")
_VARIABLE_RATE = Fraction(30)
_SAME_RATE = Fraction(1, 10_000)
_SHORTEST_GAP_MS = 500
"""Sound that outlasts the pictures of a clip by less leaves no hole between it and the next."""
_REEL_LENGTH = 8
_SEVERAL_START = "01:00:00"
"""Where a timeline of several files begins, as editors do."""


@dataclass(frozen=True, slots=True)
class Section:
    """A named interval of the media: a scene or a chapter."""

    start_ms: int
    end_ms: int
    name: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class ExportSource:
    """A file of the timeline. ``start_frame`` is its start timecode in frames after midnight,
    ``start_seconds`` the same by the rate of the timecode's own track."""

    name: str
    reel: str
    rate: Fraction
    start_frame: int
    start_seconds: Fraction
    frames: int
    drop_frame: bool
    width: int
    height: int
    start_ms: int
    """Of its first frame, on the media's timeline."""
    end_ms: int
    """Where the next file begins there."""

    def frame_at(self, time_ms: int) -> int:
        """Return the number of the frame that begins nearest to a time, within the file."""
        frame = round((time_ms - self.start_ms) * self.rate / 1000)
        return min(max(0, frame), self.frames)

    def timecode(self, frame: int) -> str:
        return timecode_at(self.start_frame + frame, self.rate, drop_frame=self.drop_frame)


@dataclass(frozen=True, slots=True)
class Shot:
    """``frames`` frames of a source from the ``first``, which counts from 0: a section's."""

    source: ExportSource
    section: Section
    first: int
    frames: int

    @property
    def title(self) -> str:
        return ": ".join(filter(None, (self.section.name, self.section.note)))


@dataclass(frozen=True, slots=True)
class Event:
    """A shot, or nothing, at a place of the timeline; ``at`` and ``length`` in its frames."""

    shot: Shot | None
    at: int
    length: int


@dataclass(frozen=True, slots=True)
class FrameTimeline:
    """Events laid end to end; the first source's rate is that of the timeline."""

    name: str
    sources: tuple[ExportSource, ...]
    events: tuple[Event, ...]
    start_frame: int
    has_audio: bool

    @property
    def rate(self) -> Fraction:
        return self.sources[0].rate

    @property
    def drop_frame(self) -> bool:
        return self.sources[0].drop_frame

    @property
    def frames(self) -> int:
        return self.events[-1].at + self.events[-1].length

    def timecode(self, frame: int) -> str:
        return timecode_at(self.start_frame + frame, self.rate, drop_frame=self.drop_frame)


def find_sources(file_name: str, ingested: Values | None) -> tuple[ExportSource, ...]:
    """Return the files of a job's picture by its ``IngestResult`` as stored, which an earlier
    version may have written; empty where nothing is known of a picture and its rate."""
    video = (ingested or {}).get("video")
    media = (ingested or {}).get("media") or {}
    clips = (ingested or {}).get("clips") or []
    if not clips:
        stream = video["stream"] if video else media.get("video")
        if not stream or not stream["frame_rate"]:
            return ()
        return (_source(file_name, stream, media, 0, round(media["duration_seconds"] * 1000)),)
    parts = (video or {}).get("parts") or []
    names = {clip["start_ms"]: clip for clip in clips}
    found = [
        _source(
            names[part["start_ms"]]["name"],
            part["stream"],
            names[part["start_ms"]],
            part["start_ms"],
            part["end_ms"],
        )
        for part in parts
        if part["stream"]["frame_rate"]
    ]
    return tuple(_with_own_reels(found))


def _source(name: str, stream: Values, clock: Values, begin_ms: int, end_ms: int) -> ExportSource:
    """``clock`` has the file's ``timecode`` and ``timecode_rate``, if any."""
    rate = timeline_rate(stream)
    start_frame, start_seconds, drops = _start_of(clock, rate)
    first_ms = stream.get("start_ms", 0)
    last_ms = stream.get("end_ms") or end_ms - begin_ms
    letters = re.sub(r"[^A-Z0-9_]", "", PurePosixPath(name).stem.upper())
    return ExportSource(
        name=name,
        reel=letters[:_REEL_LENGTH] or "AX",
        rate=rate,
        start_frame=start_frame,
        start_seconds=start_seconds,
        frames=max(1, round((last_ms - first_ms) * rate / 1000)),
        drop_frame=drops,
        width=stream["width"],
        height=stream["height"],
        start_ms=begin_ms + first_ms,
        end_ms=end_ms,
    )


def _start_of(clock: Values, rate: Fraction) -> tuple[int, Fraction, bool]:
    """Return a start timecode in frames of ``rate`` and in seconds, and whether it drops numbers.

    It counts at the rate of its own track, of which the picture's may be a multiple (30 drop frame
    beside 59.94p), or nearly the same: programs on phones mark 30p as 29.97 drop frame, and
    editors believe the mark. Without a rate of its own only 29.97 and 59.94 drop numbers.
    """
    timecode, own = clock.get("timecode") or "", parse_rate(clock.get("timecode_rate"))
    counted = own or rate
    is_marked = bool(_DROP_MARK.search(timecode))
    drops = is_marked and counted in _DROP_RATES and round(rate) in _DROPPING
    start = parse_timecode(timecode if drops else _DROP_MARK.sub(":", timecode), float(counted))
    if start is None:
        return 0, Fraction(0), False if own is None else drops
    factor = Fraction(round(rate), round(counted))
    return round(start.seconds * counted * factor), start.seconds, drops


def timeline_rate(stream: Values) -> Fraction:
    """Return one of RATES for a stream as ingest describes it."""
    named = stream.get("exact_rate")
    rate = Fraction(named) if named else Fraction(stream["frame_rate"]).limit_denominator(100_000)
    for same in RATES:
        if abs(same - rate) <= same * _SAME_RATE:
            return same
    near = rate_near(float(rate))
    if near in RATES:
        return near
    for factor in (2, 3, 4, 5, 6, 10, Fraction(1, 2), Fraction(1, 4)):
        for whole in RATES:
            if abs(whole - rate * factor) <= whole * _SAME_RATE:
                return whole
    return _VARIABLE_RATE


def _with_own_reels(sources: Sequence[ExportSource]) -> Iterator[ExportSource]:
    """Yield the sources; one whose reel an earlier one has gets a number."""
    taken: set[str] = set()
    for source in sources:
        reel, number = source.reel, 1
        while reel in taken:
            number += 1
            reel = f"{source.reel[: _REEL_LENGTH - len(str(number))]}{number}"
        taken.add(reel)
        yield replace(source, reel=reel)


def frame_timeline(
    file_name: str, sources: Sequence[ExportSource], sections: Sequence[Section], *, has_audio: bool
) -> FrameTimeline:
    """Return the sections, which follow each other, as events on one or more sources."""
    first, start = sources[0], sources[0].start_frame
    if len(sources) > 1:
        timecode = f"{_SEVERAL_START}{';' if first.drop_frame else ':'}00"
        parsed = parse_timecode(timecode, float(first.rate))
        start = 0 if parsed is None else round(parsed.seconds * first.rate)
    events: list[Event] = []
    seconds, at = Fraction(0), 0
    for piece in _pieces(sources, sections):
        shot = None if isinstance(piece, Fraction) else piece
        seconds += piece if isinstance(piece, Fraction) else piece.frames / piece.source.rate
        length = round(seconds * first.rate) - at
        if shot is not None:
            # No clip reaches past the end of its file; the next one begins that much earlier.
            left = shot.source.frames - shot.first
            length = min(length, math.floor(left / shot.source.rate * first.rate))
        if length > 0:
            events.append(Event(shot, at, length))
            at += length
    name = PurePosixPath(file_name).stem or "timeline"
    return FrameTimeline(name, tuple(sources), tuple(events), start, has_audio)


def _pieces(
    sources: Sequence[ExportSource], sections: Sequence[Section]
) -> Iterator[Shot | Fraction]:
    """Yield the sections' shots of every source from its first frame to its last; seconds of
    nothing."""
    until_ms = 0
    for source in sources:
        gap_ms = source.start_ms - until_ms
        if len(sources) > 1 and gap_ms >= _SHORTEST_GAP_MS:
            yield Fraction(gap_ms, 1000)
        frame = 0
        # Those of a timeline's many clips are found by bisection: each looks at its own only.
        after = bisect_left(sections, source.end_ms, key=lambda each: each.start_ms)
        begun = bisect_right(sections, source.start_ms, key=lambda each: each.end_ms)
        for section in sections[min(begun, after - 1) : after]:
            is_last = section is sections[after - 1]
            end = source.frames if is_last else source.frame_at(section.end_ms)
            if end > frame:
                yield Shot(source, section, frame, end - frame)
                frame = end
        until_ms = source.start_ms + round(source.frames * 1000 / source.rate)


YOUTUBE_SHORTEST_MS, YOUTUBE_FEWEST = 10_000, 3
"""YouTube shows no chapters where one is shorter, and none of a list of fewer
(support.google.com/youtube/answer/9884579)."""


def to_edl(timeline: FrameTimeline) -> str:
    """CMX 3600 as editing programs read it today: names in comments, long event numbers.

    Raises INVALID_REQUEST for ``format`` where sources differ in rate: an EDL counts at one.
    """
    if len({(source.rate, source.drop_frame) for source in timeline.sources}) > 1:
        raise invalid("An EDL counts at one rate; the clips of this job have several.", "format")
    lines = [
        f"TITLE: {plain(timeline.name)}",
        f"FCM: {'DROP FRAME' if timeline.drop_frame else 'NON-DROP FRAME'}",
        "",
    ]
    shots = [(event, event.shot) for event in timeline.events if event.shot is not None]
    for number, (event, shot) in enumerate(shots, start=1):
        source = shot.source
        times = (
            source.timecode(shot.first),
            source.timecode(shot.first + shot.frames),
            timeline.timecode(event.at),
            timeline.timecode(event.at + event.length),
        )
        lines.append(f"{number:03d}  {source.reel:<8} V     C        {' '.join(times)}")
        lines.append(f"* FROM CLIP NAME: {plain(source.name)}")
        lines.append(f"* COMMENT: {plain(shot.title)}")
    return "\n".join(lines) + "\n"


def to_otio(timeline: FrameTimeline) -> str:
    """OpenTimelineIO's own JSON: a video track of clips, with the notes as metadata."""
    import opentimelineio as otio

    def span(first: int, count: int, rate: Fraction) -> otio.opentime.TimeRange:
        start, length = (otio.opentime.RationalTime(n, float(rate)) for n in (first, count))
        return otio.opentime.TimeRange(start, length)

    def clip_of(source: ExportSource) -> otio.schema.Clip:
        whole = span(source.start_frame, source.frames, source.rate)
        reference = otio.schema.ExternalReference(quote(source.name), whole)
        reference.name = source.name
        metadata = {"vas": {"note": ""}, "cmx_3600": {"reel": source.reel}}
        return otio.schema.Clip(media_reference=reference, metadata=metadata)

    # A copy takes a third of the time of a new clip with all that is in it.
    clips = {source: clip_of(source) for source in timeline.sources}
    track = otio.schema.Track("Video", kind=otio.schema.TrackKind.Video)
    for event in timeline.events:
        if event.shot is None:
            track.append(otio.schema.Gap(source_range=span(0, event.length, timeline.rate)))
            continue
        source, section = event.shot.source, event.shot.section
        clip = clips[source].clone()
        clip.name, clip.metadata["vas"]["note"] = section.name, section.note
        clip.source_range = span(
            source.start_frame + event.shot.first, event.shot.frames, source.rate
        )
        track.append(clip)
    whole = otio.schema.Timeline(timeline.name, tracks=[track])
    whole.global_start_time = span(timeline.start_frame, 0, timeline.rate).start_time
    # Indented, it is three times as long.
    text: str = whole.to_json_string(indent=0)
    return text


def to_fcpxml(timeline: FrameTimeline) -> str:
    """FCPXML 1.8, which Final Cut Pro 10.4.1 and later, DaVinci Resolve and Premiere's
    converters read. All times are whole frames as fractions of a second."""
    root = ET.Element("fcpxml", version="1.8")
    resources = ET.SubElement(root, "resources")
    formats = {source: f"r{number}" for number, source in enumerate(timeline.sources, start=1)}
    for source, name in formats.items():
        counted = {"id": name, "frameDuration": _seconds(1, source.rate)}
        width, height = str(source.width), str(source.height)
        ET.SubElement(resources, "format", counted, width=width, height=height)
    assets = {
        source: _asset(resources, f"r{number}", source, formats[source], timeline.has_audio)
        for number, source in enumerate(timeline.sources, start=len(formats) + 1)
    }
    event = ET.SubElement(ET.SubElement(root, "library"), "event", name=xml_text(timeline.name))
    project = ET.SubElement(event, "project", name=xml_text(timeline.name))
    sequence = ET.SubElement(
        project,
        "sequence",
        format=formats[timeline.sources[0]],
        duration=_seconds(timeline.frames, timeline.rate),
        tcStart=_seconds(timeline.start_frame, timeline.rate),
        tcFormat=_tc_format(drop_frame=timeline.drop_frame),
    )
    spine = ET.SubElement(sequence, "spine")
    for each in timeline.events:
        _element(spine, each, timeline, assets, formats)
    ET.indent(root, "  ")
    body = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE fcpxml>\n{body}\n'


def _asset(
    resources: ET.Element, name: str, source: ExportSource, format_id: str, has_audio: bool
) -> str:
    sound = {"hasAudio": "1"} if has_audio else {}
    ET.SubElement(
        resources,
        "asset",
        sound,
        id=name,
        name=xml_text(source.name),
        src=f"./{quote(source.name)}",
        start=_fraction(source.start_seconds, source.rate),
        duration=_seconds(source.frames, source.rate),
        hasVideo="1",
        format=format_id,
    )
    return name


def _element(
    spine: ET.Element,
    event: Event,
    timeline: FrameTimeline,
    assets: dict[ExportSource, str],
    formats: dict[ExportSource, str],
) -> None:
    place = {
        # In the time of the sequence, which begins at its start timecode.
        "offset": _seconds(timeline.start_frame + event.at, timeline.rate),
        "duration": _seconds(event.length, timeline.rate),
    }
    shot = event.shot
    if shot is None:
        ET.SubElement(spine, "gap", place, name="Gap", start="0s")
        return
    clip = ET.SubElement(
        spine,
        "asset-clip",
        place,
        name=xml_text(shot.section.name),
        ref=assets[shot.source],
        start=_fraction(
            shot.source.start_seconds + shot.first / shot.source.rate, shot.source.rate
        ),
        format=formats[shot.source],
        tcFormat=_tc_format(drop_frame=shot.source.drop_frame),
    )
    if shot.section.note:
        ET.SubElement(clip, "note").text = xml_text(shot.section.note)


def _tc_format(*, drop_frame: bool) -> str:
    return "DF" if drop_frame else "NDF"


def _seconds(frames: int, rate: Fraction) -> str:
    """``frames`` as FCPXML writes times: over the rate's own denominator, not reduced further."""
    if frames == 0:
        return "0s"
    return f"{frames * rate.denominator}/{rate.numerator}s"


def _fraction(seconds: Fraction, rate: Fraction) -> str:
    """``seconds`` likewise, where they are whole frames of the rate."""
    frames = seconds * rate
    return _seconds(int(frames), rate) if frames.denominator == 1 else f"{seconds}s"


def to_table(sections: Sequence[Section], timeline: FrameTimeline | None) -> str:
    """Return a line a section; frames and timecodes of the timeline where there is one."""
    # The first and the last event of each section, which several files may share.
    spans: dict[int, tuple[Event, Event]] = {}
    for event in () if timeline is None else timeline.events:
        if event.shot is not None:
            first, _ = spans.get(id(event.shot.section), (event, event))
            spans[id(event.shot.section)] = first, event

    def timecodes(section: Section) -> tuple[str, str]:
        if timeline is None or id(section) not in spans:
            return "", ""
        first, last = spans[id(section)]
        return timeline.timecode(first.at), timeline.timecode(last.at + last.length)

    return csv_table(
        ("index", "startTime", "endTime", "startTimecode", "endTimecode", "name", "note"),
        (
            (
                index,
                f"{section.start_ms / 1000:.3f}",
                f"{section.end_ms / 1000:.3f}",
                *timecodes(section),
                section.name,
                section.note,
            )
            for index, section in enumerate(sections)
        ),
    )


def to_ffmetadata(sections: Sequence[Section]) -> str:
    """FFmpeg's metadata file: ``ffmpeg -i in -i chapters.txt -map_chapters 1 -c copy out``."""
    lines = [";FFMETADATA1"]
    for section in sections:
        lines += [
            "[CHAPTER]",
            "TIMEBASE=1/1000",
            f"START={section.start_ms}",
            f"END={section.end_ms}",
            "title=" + re.sub(r"([=;#\\])", r"\\\1", plain(section.name)),
        ]
    return "\n".join(lines) + "\n"


def to_youtube(sections: Sequence[Section]) -> str:
    """Return lines for a description, the first at 0:00, each at least ten seconds long.

    Raises INVALID_REQUEST for ``format`` where there are too few for YouTube to show any.
    """
    lines: list[str] = []
    earliest_ms = 0
    end_ms = sections[-1].end_ms
    with_hours = end_ms >= 3_600_000
    for section in sections:
        if lines and not earliest_ms <= section.start_ms <= end_ms - YOUTUBE_SHORTEST_MS:
            continue
        earliest_ms = section.start_ms + YOUTUBE_SHORTEST_MS
        minutes, second = divmod(section.start_ms // 1000 if lines else 0, 60)
        clock = f"{minutes // 60}:{minutes % 60:02d}" if with_hours else str(minutes)
        # Descriptions may not contain angle brackets.
        title = plain(section.name).replace("<", "‹").replace(">", "›")
        lines.append(f"{clock}:{second:02d} {title}")
    if len(lines) < YOUTUBE_FEWEST:
        message = (
            f"YouTube shows chapters from {YOUTUBE_FEWEST} on, each of ten seconds at least; "
            f"here {'is one' if len(lines) == 1 else f'are {len(lines)}'}."
        )
        raise invalid(message, "format")
    return "\n".join(lines) + "\n"


def to_webvtt_chapters(sections: Sequence[Section]) -> str:
    """WebVTT for ``<track kind="chapters">``."""
    cues = [
        f"{vtt_time(section.start_ms)} --> {vtt_time(section.end_ms)}\n"
        f"{escaped(plain(section.name))}\n"
        for section in sections
    ]
    return "WEBVTT\n\n" + "\n".join(cues)
