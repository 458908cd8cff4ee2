"""Exports for editing programs: every frame where it was, at every rate.

EDL and FCPXML are read back by OpenTimelineIO's own adapters, which share no code with what writes.
"""

from __future__ import annotations

import csv
import io
import random
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any
from xml.etree import ElementTree as ET

import av
import opentimelineio as otio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.codec import to_json
from pipelines.ingest.pipeline import probe
from pipelines.ingest.timecode import parse_timecode, timecode_at
from pipelines.media.files import rounded_ms
from pipelines.media_types import Orientation
from pipelines.types import (
    AudioStream,
    ClipSpan,
    IngestResult,
    MediaInfo,
    VideoPart,
    VideoSource,
    VideoStream,
)
from serve_app.errors import ApiError
from serve_app.exports.timeline import (
    FrameTimeline,
    Section,
    find_sources,
    frame_timeline,
    timeline_rate,
    to_edl,
    to_fcpxml,
    to_ffmetadata,
    to_otio,
    to_table,
    to_webvtt_chapters,
    to_youtube,
)
from tests.tables import every

NTSC = Fraction(1000, 1001)
HOURS = 2


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate of frames and how its timecodes are written."""

    exact: Fraction
    start: str
    edl_mode: str = "NON-DROP FRAME"


RATES = [
    pytest.param(Rate(24 * NTSC, "01:00:00:00"), id="23.976"),
    pytest.param(Rate(Fraction(24), "23:59:59:23"), id="24, over midnight"),
    pytest.param(Rate(Fraction(25), "10:11:12:13"), id="25"),
    pytest.param(Rate(30 * NTSC, "00:59:59;29", "DROP FRAME"), id="29.97 drop"),
    pytest.param(Rate(30 * NTSC, "00:59:59:29"), id="29.97 non-drop"),
    pytest.param(Rate(Fraction(30), "09:00:00:00"), id="30"),
    pytest.param(Rate(Fraction(50), "10:00:00:49"), id="50"),
    pytest.param(Rate(60 * NTSC, "00:08:59;59", "DROP FRAME"), id="59.94 drop"),
    pytest.param(Rate(60 * NTSC, "00:08:59:59"), id="59.94 non-drop"),
    pytest.param(Rate(Fraction(60), "00:00:00:00"), id="60"),
]


RATES_OF_CLIPS = [24 * NTSC, Fraction(24), Fraction(25), 30 * NTSC, Fraction(50), 60 * NTSC]


def stream(rate: Fraction, frames: int, *, named: bool = True, start_ms: int = 0) -> VideoStream:
    return VideoStream(
        0, "h264", 1920, 1080, Orientation(), 1.0, float(rate), frames,
        end_ms=start_ms + round(frames * 1000 / rate), start_ms=start_ms,
        exact_rate=str(rate) if named else None,
    )  # fmt: skip


def one_file(video: VideoStream, timecode: str | None) -> dict[str, Any]:
    sound = (AudioStream(1, "aac", 48_000, 2, None, None),)
    media = MediaInfo("mov", 1, video.end_ms / 1000, video, sound, timecode)
    found: dict[str, Any] = to_json(IngestResult(media, None, ()))
    return found


def sections_at(frames: Sequence[int], rate: Fraction, start_ms: int = 0) -> list[Section]:
    """Scenes that begin at these frames, with times as the pipeline gives them."""
    times = [start_ms + rounded_ms(frame, 1 / rate) for frame in frames]
    times[0] = 0
    return [
        Section(begin, end, f"Scene {number}", "A woman, <at> 50 % & more;\n=1+1 é")
        for number, (begin, end) in enumerate(pairwise(times), start=1)
    ]


def timeline_of(ingested: dict[str, Any], sections: Sequence[Section]) -> FrameTimeline:
    sources = find_sources("Interview Ümit.mov", ingested)
    return frame_timeline("Interview Ümit.mov", sources, sections, has_audio=True)


def cut_frames(rate: Fraction) -> list[int]:
    """Cuts over two hours: on every kind of minute, a frame apart, and anywhere."""
    total, minute = int(HOURS * 3600 * rate), int(60 * rate)
    edges = [minute * n + step for n in (1, 2, 9, 10, 11, 60, 119) for step in (-2, -1, 0, 1, 2, 3)]
    anywhere = random.Random(7).sample(range(1, total), 300)
    return sorted({0, 1, *edges, *anywhere, total})


def cut_timeline(rate: Rate) -> FrameTimeline:
    """What editing programs get of a file with those cuts."""
    frames = cut_frames(rate.exact)
    ingested = one_file(stream(rate.exact, frames[-1]), rate.start)
    return timeline_of(ingested, sections_at(frames, rate.exact))


def start_of(rate: Rate) -> int:
    moment = parse_timecode(rate.start, float(rate.exact))
    assert moment is not None
    return round(moment.seconds * rate.exact)


def clips_of(read: otio.schema.Timeline) -> list[Any]:
    return list(read.find_clips())


def starts_and_lengths(clips: Sequence[Any]) -> list[tuple[int, int]]:
    ranges = [clip.source_range for clip in clips]
    return [(round(each.start_time.value), round(each.duration.value)) for each in ranges]


def expected_ranges(rate: Rate, frames: Sequence[int]) -> list[tuple[int, int]]:
    start = start_of(rate)
    return [(start + a, b - a) for a, b in pairwise(frames)]


@every("rate", RATES)
def test_an_otio_has_every_cut_at_its_frame(rate: Rate) -> None:
    frames = cut_frames(rate.exact)
    read = otio.adapters.read_from_string(to_otio(cut_timeline(rate)), "otio_json")
    clips = clips_of(read)
    assert starts_and_lengths(clips) == expected_ranges(rate, frames)
    assert {clip.source_range.start_time.rate for clip in clips} == {float(rate.exact)}
    assert {clip.media_reference.name for clip in clips} == {"Interview Ümit.mov"}
    assert clips[0].media_reference.available_range.duration.value == frames[-1]
    assert round(read.global_start_time.value) == start_of(rate)
    assert clips[1].name == "Scene 2"


@every("rate", RATES)
def test_an_edl_has_every_cut_at_its_frame(rate: Rate) -> None:
    text = to_edl(cut_timeline(rate))
    assert f"\nFCM: {rate.edl_mode}\n" in text
    rows = re.findall(r"V     C        (\S+) (\S+) (\S+) (\S+)", text)
    assert all(row[:2] == row[2:] for row in rows), "records count with the sources of one file"
    read = otio.adapters.read_from_string(text, "cmx_3600", rate=float(rate.exact))
    day = int(parse_day(rate) * rate.exact)
    ranges = expected_ranges(rate, cut_frames(rate.exact))
    expected = [(start % day, length) for start, length in ranges]
    if rate.start.startswith("23"):
        # The adapter takes an event over midnight for one that ends before it begins.
        got = [tuple(round(otio.opentime.from_timecode(each, 24).value) for each in row[:2])
               for row in rows]  # fmt: skip
        assert [(a, (b - a) % day) for a, b in got] == expected
        return
    clips = clips_of(read)
    assert starts_and_lengths(clips) == expected
    assert {clip.metadata["cmx_3600"]["reel"] for clip in clips} == {"INTERVIE"}
    assert {clip.name for clip in clips} == {"Interview Ümit.mov"}


def parse_day(rate: Rate) -> Fraction:
    moment = parse_timecode(rate.start, float(rate.exact))
    assert moment is not None
    return moment.day_seconds


@every("rate", RATES)
def test_an_fcpxml_has_every_cut_at_its_frame(rate: Rate) -> None:
    root = tree(to_fcpxml(cut_timeline(rate)))
    start = start_of(rate)
    clips = root.findall(".//asset-clip")
    got = [
        [int(seconds(clip.get(name)) * rate.exact) for name in ("offset", "start", "duration")]
        for clip in clips
    ]
    frames = cut_frames(rate.exact)
    assert got == [[start + a, start + a, b - a] for a, b in pairwise(frames)]
    [sequence] = root.findall(".//sequence")
    drop = rate.edl_mode == "DROP FRAME"
    assert sequence.get("tcFormat") == ("DF" if drop else "NDF")
    assert seconds(sequence.get("tcStart")) * rate.exact == start
    [shape] = root.findall(".//format")
    assert seconds(shape.get("frameDuration")) == 1 / rate.exact


def tree(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - our own


def seconds(text: str | None) -> Fraction:
    return Fraction((text or "").removesuffix("s"))


@every("rate", RATES)
def test_opentimelineio_reads_the_clips_of_an_fcpxml(rate: Rate) -> None:
    """Its adapter truncates rates, and then times, to whole numbers: to the frame, the test above
    reads the same fractions."""
    video = stream(rate.exact, 400)
    cuts = [0, 1, 99, 100, 250, 400]
    text = to_fcpxml(timeline_of(one_file(video, rate.start), sections_at(cuts, rate.exact)))
    read = otio.adapters.read_from_string(text, "fcpx_xml")
    clips = list(read.find_children(descended_from_type=otio.schema.Clip))
    assert [clip.name for clip in clips] == [f"Scene {number}" for number in range(1, 6)]
    slack = 1 if rate.exact.denominator == 1 else 400 / 23
    for clip, length in zip(clips, (1, 98, 1, 150, 150), strict=True):
        assert abs(clip.source_range.duration.value - length) <= slack


@every("rate", RATES)
def test_times_in_milliseconds_find_the_frame_again_at_every_rate(rate: Rate) -> None:
    total = int(HOURS * 3600 * rate.exact)
    [source] = find_sources("a.mov", one_file(stream(rate.exact, total, start_ms=21), None))
    for frame in random.Random(1).sample(range(total), 5000):
        assert source.frame_at(21 + rounded_ms(frame, 1 / rate.exact)) == frame


@every("rate", RATES)
def test_timecodes_are_those_of_opentimelineio(rate: Rate) -> None:
    drop = rate.edl_mode == "DROP FRAME"
    day = int(parse_day(rate) * rate.exact)
    # OpenTimelineIO begins a non-drop day anew after 24 hours of the clock on the wall.
    last = day - 1 if drop or rate.exact.denominator == 1 else 0
    for frame in [*cut_frames(rate.exact), last]:
        time = otio.opentime.RationalTime(frame, float(rate.exact))
        expected = otio.opentime.to_timecode(time, float(rate.exact), drop)
        assert timecode_at(frame, rate.exact, drop_frame=drop) == expected
    assert timecode_at(day, rate.exact, drop_frame=drop).replace(";", ":") == "00:00:00:00"


@every(
    ("named", "measured", "expected"),
    [
        ("24000/1001", 23.9, 24 * NTSC), ("30000/1001", 29.97, 30 * NTSC), ("25", 25.0, 25),
        (None, 29.83, 30 * NTSC), (None, 24.0003, 24), ("25/2", 12.5, 25), ("10", 10.0, 30),
        ("15", 15.0, 30), ("15000/1001", 14.985, 30 * NTSC), ("120", 120.0, 60), ("100", 100.0, 50),
        (None, 20.022, 30), ("1", 1.0, 30), ("48", 48.0, 48), ("120000/1001", 119.88, 60 * NTSC),
    ],
)  # fmt: skip
def test_the_rate_of_a_timeline_is_one_that_editing_programs_have(
    named: str | None, measured: float, expected: Fraction
) -> None:
    assert timeline_rate({"exact_rate": named, "frame_rate": measured}) == expected


@every("timecode", [None, "nonsense", "25:00:00:00", "00:00:00:99"])
def test_a_file_without_a_timecode_begins_at_zero(timecode: str | None) -> None:
    timeline = timeline_of(
        one_file(stream(Fraction(25), 50), timecode), sections_at([0, 50], Fraction(25))
    )
    assert (timeline.start_frame, timeline.drop_frame) == (0, False)
    assert "00:00:00:00 00:00:02:00 00:00:00:00 00:00:02:00" in to_edl(timeline)


@every(
    ("rate", "own", "timecode", "start_frame", "seconds", "drops"),
    [
        (60 * NTSC, "30000/1001", "01:00:00;15", 215_814, Fraction(107_907 * 1001, 30_000), True),
        (
            Fraction(30),
            "30000/1001",
            "01:00:00;15",
            107_907,
            Fraction(107_907 * 1001, 30_000),
            True,
        ),
        (Fraction(50), "25", "10:00:00:12", 1_800_024, Fraction(36_000 * 25 + 12, 25), False),
        (Fraction(25), "25", "10:00:00:12", 900_012, Fraction(36_000 * 25 + 12, 25), False),
    ],
)
def test_a_timecode_counts_at_the_rate_of_its_own_track(
    rate: Fraction, own: str, timecode: str, start_frame: int, seconds: Fraction, drops: bool
) -> None:
    ingested = one_file(stream(rate, 60), timecode)
    ingested["media"]["timecode_rate"] = own
    timeline = timeline_of(ingested, sections_at([0, 60], rate))
    [source] = timeline.sources
    found = source.start_frame, source.start_seconds, source.drop_frame
    assert found == (start_frame, seconds, drops)
    [asset] = tree(to_fcpxml(timeline)).iter("asset")
    assert Fraction(str(asset.get("start"))[:-1]) == seconds
    assert ("FCM: DROP FRAME" in to_edl(timeline)) is drops


def test_a_semicolon_drops_nothing_at_a_rate_that_has_nothing_to_drop() -> None:
    ingested = one_file(stream(Fraction(30), 60), "01:00:00;00")
    timeline = timeline_of(ingested, sections_at([0, 60], Fraction(30)))
    assert (timeline.start_frame, timeline.drop_frame) == (108_000, False)


def test_nothing_in_a_description_or_name_ends_a_line_or_an_element() -> None:
    evil = "a\n002  X V C 00:00:00:00\r\x00<clip/>&]]>\ud7ff"
    sections = [Section(0, 2000, evil, evil)]
    ingested = one_file(stream(Fraction(25), 50), None)
    timeline = frame_timeline(f"{evil}.mov", find_sources(f"{evil}.mov", ingested), sections,
                              has_audio=False)  # fmt: skip
    assert len(to_edl(timeline).splitlines()) == 6
    root = tree(to_fcpxml(timeline))
    assert len(root.findall(".//asset-clip")) == 1
    assert len(clips_of(otio.adapters.read_from_string(to_otio(timeline), "otio_json"))) == 1
    assert len(to_ffmetadata(sections).splitlines()) == 6
    assert len(to_webvtt_chapters(sections).splitlines()) == 4
    long = [replace(sections[0], start_ms=at, end_ms=at + 10_000) for at in (0, 10_000, 20_000)]
    assert len(to_youtube(long).splitlines()) == 3


@settings(max_examples=200, deadline=None)
@given(
    clips=st.lists(
        st.tuples(st.sampled_from(RATES_OF_CLIPS), st.integers(2, 300)), min_size=1, max_size=6
    ),
    cuts=st.lists(st.integers(1, 60_000), max_size=12),
)
def test_no_clip_of_a_timeline_reaches_past_its_file_and_none_leaves_a_hole(
    clips: list[tuple[Fraction, int]], cuts: list[int]
) -> None:
    ingested = programme(*(rate for rate, _ in clips), lengths=[count for _, count in clips])
    end_ms = round(ingested["media"]["duration_seconds"] * 1000)
    times = [0, *sorted({cut for cut in cuts if cut < end_ms}), end_ms]
    sections = [Section(a, b, f"Scene {a}") for a, b in pairwise(times)]
    timeline = timeline_of(ingested, sections)
    root = tree(to_fcpxml(timeline))

    def value(element: ET.Element, name: str) -> Fraction:
        return Fraction(str(element.get(name)).removesuffix("s"))

    assets = {it.get("id"): it for it in root.iter("asset")}
    at = value(next(root.iter("sequence")), "tcStart")
    for clip in root.iter("asset-clip"):
        asset = assets[clip.get("ref")]
        ends = value(asset, "start") + value(asset, "duration")
        assert value(clip, "start") + value(clip, "duration") <= ends
        assert value(clip, "offset") == at
        at += value(clip, "duration")


def programme(*rates: Fraction, gap_ms: int = 0, lengths: Sequence[int] = ()) -> dict[str, Any]:
    """Clips of 100 frames or of ``lengths``, each with its own timecode; the second one is sound
    only where there is a ``gap_ms``."""
    parts: list[VideoPart] = []
    clips: list[ClipSpan] = []
    start_ms = 0
    for index, rate in enumerate(rates):
        if index == 1 and gap_ms:
            clips.append(ClipSpan(len(clips), "sound.wav", start_ms, gap_ms))
            start_ms += gap_ms
        video = stream(rate, lengths[index] if lengths else 100)
        end_ms = start_ms + video.end_ms + 20  # sound outlasts the picture a little
        parts.append(VideoPart(video, -start_ms, start_ms, end_ms))
        clips.append(ClipSpan(len(clips), "clip.mov", start_ms, end_ms - start_ms,
                              f"{index + 1:02d}:00:00:00"))  # fmt: skip
        start_ms = end_ms
    video_source = VideoSource(parts[0].stream, start_ms, 0, (), tuple(parts))
    media = MediaInfo("timeline", 1, start_ms / 1000, parts[0].stream, ())
    found: dict[str, Any] = to_json(IngestResult(media, video_source, (), clips=tuple(clips)))
    return found


def test_the_clips_of_a_programme_follow_each_other_with_their_own_timecodes() -> None:
    rate = Fraction(25)
    # Clips of 4 s and 20 ms more; the second scene ends a second into the second clip.
    sections = [Section(0, 2000, "A"), Section(2000, 5020, "B"), Section(5020, 8040, "C")]
    text = to_edl(timeline_of(programme(rate, rate), sections))
    read = otio.adapters.read_from_string(text, "cmx_3600", rate=25)
    assert starts_and_lengths(clips_of(read)) == [
        (90_000, 50), (90_050, 50), (180_000, 25), (180_025, 75)
    ]  # fmt: skip
    records = re.findall(r"V     C        \S+ \S+ (\S+) (\S+)", text)
    assert records == [
        ("01:00:00:00", "01:00:02:00"), ("01:00:02:00", "01:00:04:00"),
        ("01:00:04:00", "01:00:05:00"), ("01:00:05:00", "01:00:08:00"),
    ]  # fmt: skip
    assert re.findall(r"^\d+  (\w+)", text, re.MULTILINE) == ["CLIP", "CLIP", "CLIP2", "CLIP2"]


def test_a_clip_of_sound_leaves_a_gap_as_long_as_it_is() -> None:
    rate = Fraction(25)
    sections = [Section(0, 6020, "A"), Section(6020, 10_040, "B")]
    timeline = timeline_of(programme(rate, rate, gap_ms=2000), sections)
    assert [(event.at, event.length, event.shot is None) for event in timeline.events] == [
        (0, 100, False), (100, 50, True), (150, 100, False)
    ]  # fmt: skip
    read = otio.adapters.read_from_string(to_otio(timeline), "otio_json")
    assert [type(each).__name__ for each in read.tracks[0]] == ["Clip", "Gap", "Clip"]
    assert len(tree(to_fcpxml(timeline)).findall(".//gap")) == 1
    assert "01:00:06:00 01:00:10:00" in to_edl(timeline)


def test_clips_of_several_rates_keep_theirs_and_have_no_edl() -> None:
    sections = [Section(0, 20_000, "A")]
    timeline = timeline_of(programme(Fraction(25), 30 * NTSC), sections)
    read = otio.adapters.read_from_string(to_otio(timeline), "otio_json")
    rates = [clip.source_range.start_time.rate for clip in clips_of(read)]
    assert rates == [25.0, float(30 * NTSC)]
    # 100 frames of 29.97 last 83.4 of 25.
    assert [(event.at, event.length) for event in timeline.events] == [(0, 100), (100, 83)]
    for clip in tree(to_fcpxml(timeline)).findall(".//asset-clip"):
        assert (seconds(clip.get("offset")) * 25).denominator == 1
    with pytest.raises(ApiError) as raised:
        to_edl(timeline)
    assert (raised.value.code, raised.value.param) == ("INVALID_REQUEST", "format")


def test_a_table_has_times_and_timecodes_and_no_formula() -> None:
    ingested = one_file(stream(Fraction(25), 100), "10:00:00:00")
    sections = [Section(0, 2000, "Scene 1", "=1+1"), Section(2000, 4000, "Scene 2")]
    rows = list(csv.DictReader(io.StringIO(to_table(sections, timeline_of(ingested, sections)))))
    assert rows[0]["note"] == "'=1+1"
    assert [row["startTimecode"] for row in rows] == ["10:00:00:00", "10:00:02:00"]
    assert [row["endTime"] for row in rows] == ["2.000", "4.000"]
    plain_rows = list(csv.DictReader(io.StringIO(to_table(sections, None))))
    assert {row["startTimecode"] for row in plain_rows} == {""}


def test_youtube_gets_a_first_chapter_at_zero_and_none_shorter_than_ten_seconds() -> None:
    starts = [0, 4_000, 12_000, 61_000, 65_000, 3_661_000, 3_700_000, 3_705_000]
    sections = [Section(a, b, f"<{a}>") for a, b in pairwise(starts)]
    assert to_youtube(sections).splitlines() == [
        "0:00:00 ‹0›", "0:00:12 ‹12000›", "0:01:01 ‹61000›", "1:01:01 ‹3661000›",
    ]  # fmt: skip


@every(("count", "shown"), [(1, "is one"), (2, "are 2")])
def test_chapters_that_youtube_would_not_show_are_refused(count: int, shown: str) -> None:
    sections = [Section(at * 10_000, (at + 1) * 10_000, "Part") for at in range(count)]
    with pytest.raises(ApiError, match=f"from 3 on, .* {shown}") as caught:
        to_youtube(sections)
    assert caught.value.param == "format"
    sections += [Section(at * 10_000, (at + 1) * 10_000, "Part") for at in range(count, 3)]
    assert to_youtube(sections).startswith("0:00 Part\n0:10 Part\n0:20 Part")


def test_ffmpeg_reads_the_chapters(tmp_path: Path) -> None:
    sections = [Section(0, 1500, "One; = # \\ two"), Section(1500, 4000, "Drei é")]
    path = tmp_path / "chapters.txt"
    path.write_text(to_ffmetadata(sections))
    with av.open(str(path), format="ffmetadata") as container:
        found = container.chapters()
    assert [(each["start"], each["end"], each["metadata"]["title"]) for each in found] == [
        (0, 1500, "One; = # \\ two"), (1500, 4000, "Drei é")
    ]  # fmt: skip


def test_chapters_for_players_are_webvtt() -> None:
    text = to_webvtt_chapters([Section(0, 1500, "A & <b>"), Section(1500, 3_723_004, "C")])
    assert text == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nA &amp; &lt;b&gt;\n\n"
        "00:00:01.500 --> 01:02:03.004\nC\n"
    )


def steps_of(work: Callable[[], object]) -> int:
    """Instructions of Python that ``work`` takes: the same on a busy machine."""
    count = 0

    def on_event(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return on_event

    before = sys.gettrace()
    sys.settrace(on_event)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


WRITERS: dict[str, Callable[[Sequence[Section], FrameTimeline], str]] = {
    "edl": lambda _, timeline: to_edl(timeline),
    "otio": lambda _, timeline: to_otio(timeline),
    "fcpxml": lambda _, timeline: to_fcpxml(timeline),
    "csv": to_table,
    "ffmetadata": lambda sections, _: to_ffmetadata(sections),
    "youtube": lambda sections, _: to_youtube(sections),
    "webvtt-chapters": lambda sections, _: to_webvtt_chapters(sections),
}


@every("writer", WRITERS.values(), ids=WRITERS)
def test_four_times_the_scenes_take_four_times_the_work(
    writer: Callable[[Sequence[Section], FrameTimeline], str],
) -> None:
    def written(files: int) -> int:
        ingested = programme(*[Fraction(25)] * files)
        sections = sections_at(range(0, 100 * files + 1, 10), Fraction(25))
        return steps_of(lambda: writer(sections, timeline_of(ingested, sections)))

    written(10)  # what is loaded on first use
    assert written(40) < 5 * written(10)


@every("container", ["mov", "mkv", "mp4", "mxf"])
@every("rate", RATES)
def test_a_real_file_comes_out_with_its_rate_timecode_and_frames(
    rate: Rate, container: str, tmp_path: Path
) -> None:
    """Also where the container has times in milliseconds only, and few of them."""
    path = tmp_path / f"clip.{container}"
    write_black(path, rate)
    media = probe(path)
    timecode = None if container == "mkv" and media.timecode is None else rate.start
    ingested: dict[str, Any] = to_json(IngestResult(media, None, ()))
    [source] = find_sources(path.name, ingested)
    assert (source.rate, source.frames) == (rate.exact, 12)
    assert source.timecode(0) == (timecode or "00:00:00:00")


def write_black(path: Path, rate: Rate) -> None:
    """Twelve frames with a start timecode."""
    with av.open(str(path), "w") as target:
        target.metadata["timecode"] = rate.start
        codec = (
            "mpeg2video" if path.suffix == ".mxf" else "mjpeg" if path.suffix == ".mov" else "mpeg4"
        )
        video: Any = target.add_stream(codec, rate=rate.exact)
        video.width, video.height = 64, 48
        video.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        video.metadata["timecode"] = rate.start
        for number in range(12):
            frame = av.VideoFrame(64, 48, "yuv420p")
            frame.pts, frame.time_base = number, 1 / rate.exact
            target.mux(video.encode(frame))
        target.mux(video.encode(None))
