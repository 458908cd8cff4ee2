"""Timelines and chapters as files: EDL, OpenTimelineIO, FCPXML, FFmetadata, YouTube, WebVTT.

EDL and FCPXML are written here. OpenTimelineIO's adapters read what is written (the tests do), but
``otio-cmx3600-adapter`` 1.0 writes every 29.97 and 59.94 timeline as drop frame, without a start,
and ``otio-fcpx-xml-adapter`` 1.0 leaves the frame duration of fractional rates empty.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from urllib.parse import quote
from xml.etree import ElementTree as ET

from pipelines.speech.caption_rules import plain
from pipelines.speech.captions import escaped, vtt_time, xml_text
from serve_app.errors import invalid
from serve_app.exports.spreadsheets import csv_table
from serve_app.exports.timeline import Event, ExportSource, FrameTimeline, Section

_FASTEST_EDL = 60
YOUTUBE_SHORTEST_MS = 10_000
"""YouTube shows no chapters where one is shorter."""


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
    formats = {
        source: _format(resources, f"r{number}", source)
        for number, source in enumerate(timeline.sources, start=1)
    }
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


def _format(resources: ET.Element, name: str, source: ExportSource) -> str:
    ET.SubElement(
        resources,
        "format",
        id=name,
        frameDuration=_seconds(1, source.rate),
        width=str(source.width),
        height=str(source.height),
    )
    return name


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
        start=_seconds(source.start_frame, source.rate),
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
        start=_seconds(shot.source.start_frame + shot.first, shot.source.rate),
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


def to_table(sections: Sequence[Section], timeline: FrameTimeline | None) -> str:
    """A line a section; frames and timecodes of the timeline where there is one."""
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
    """Lines for a description, the first at 0:00, each at least ten seconds long."""
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
    return "\n".join(lines) + "\n"


def to_webvtt_chapters(sections: Sequence[Section]) -> str:
    """WebVTT for ``<track kind="chapters">``."""
    cues = [
        f"{vtt_time(section.start_ms)} --> {vtt_time(section.end_ms)}\n"
        f"{escaped(plain(section.name))}\n"
        for section in sections
    ]
    return "WEBVTT\n\n" + "\n".join(cues)
