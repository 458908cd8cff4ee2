"""Which packet goes into which segment, on made-up streams: no frame is lost or double."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.ingest.segments import SegmentCut, SegmentCutter, Timed, TimesNotInOrderError
from pipelines.media.files import is_clean_key
from tests.examples import examples
from tests.pipelines.ingest.ingest_material import (
    Clip,
    ingested,
    seen,
    segment_frames,
    source_frames,
    write_clip,
)
from tests.tables import every

FRAME_MS = 40


@dataclass
class Recorder:
    """Writers that keep what they are given."""

    files: list[list[int]] = field(default_factory=list)
    cuts: list[SegmentCut] = field(default_factory=list)

    def open_writer(self, index: int, start_ms: int) -> ListWriter:
        assert index == len(self.files)
        self.files.append([])
        return ListWriter(self.files[-1])


@dataclass
class ListWriter:
    times_ms: list[int]
    closed: bool = False

    def write(self, packet: Timed[None]) -> None:
        assert not self.closed
        self.times_ms.append(packet.shown_ms)

    def close(self) -> None:
        self.closed = True


def packet(
    shown_ms: int,
    decoded_ms: int | None,
    *,
    key: bool = False,
    clean: bool = True,
    hidden: bool = False,
    size_bytes: int = 1000,
) -> Timed[None]:
    return Timed(shown_ms, decoded_ms, key, key and clean, hidden, size_bytes, None)


def stream(
    groups: list[tuple[int, int]], *, clean: bool = True, decoding_times: bool = True
) -> list[Timed[None]]:
    """Open GOPs in decoding order: per GOP, how many frames lead the key frame and follow it."""
    packets: list[Timed[None]] = []
    first_shown = 0
    for leading, following in groups:
        lead = leading if packets else 0
        key_shown = first_shown + lead
        order = [key_shown, *range(first_shown, key_shown)]
        order += range(key_shown + 1, key_shown + 1 + following)
        for shown in order:
            decoded = (len(packets) - 16) * FRAME_MS if decoding_times else None
            is_key = shown == key_shown
            packets.append(packet(shown * FRAME_MS, decoded, key=is_key, clean=clean))
        first_shown = key_shown + 1 + following
    return packets


def cut(packets: list[Timed[None]], segment_ms: int, end_ms: int | None = None) -> Recorder:
    recorder = Recorder()
    end_ms = end_ms or max(item.shown_ms for item in packets) + FRAME_MS
    cutter = SegmentCutter(segment_ms, end_ms, recorder.open_writer, recorder.cuts.append)
    for item in packets:
        cutter.add(item)
    cutter.finish()
    return recorder


GROUPS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), min_size=1, max_size=30)


@settings(deadline=None, max_examples=examples(60))
@given(GROUPS, st.integers(40, 2000), st.booleans(), st.booleans())
def test_every_frame_lies_in_the_file_of_the_one_segment_that_owns_it(
    groups: list[tuple[int, int]], segment_ms: int, clean: bool, decoding_times: bool
) -> None:
    packets = stream(groups, clean=clean, decoding_times=decoding_times)

    recorder = cut(packets, segment_ms)

    owned = [
        time_ms
        for piece, file in zip(recorder.cuts, recorder.files, strict=True)
        for time_ms in file
        if piece.start_ms <= time_ms < piece.end_ms
    ]
    assert sorted(owned) == sorted(item.shown_ms for item in packets)


@settings(deadline=None, max_examples=examples(60))
@given(GROUPS, st.integers(40, 2000))
def test_segments_are_contiguous_and_at_least_as_long_as_asked_but_for_the_last(
    groups: list[tuple[int, int]], segment_ms: int
) -> None:
    cuts = cut(stream(groups), segment_ms).cuts

    assert cuts[0].start_ms == 0
    for earlier, later in itertools.pairwise(cuts):
        assert earlier.end_ms == later.start_ms
        assert later.start_ms - earlier.start_ms >= segment_ms
    assert len(cuts) == 1 or cuts[-1].end_ms - cuts[-1].start_ms >= segment_ms / 2


@settings(deadline=None, max_examples=examples(60))
@given(GROUPS, st.integers(40, 2000))
def test_a_file_begins_with_a_key_frame_that_its_decoder_can_start_at(
    groups: list[tuple[int, int]], segment_ms: int
) -> None:
    packets = stream(groups)
    keys = {item.shown_ms for item in packets if item.is_key}

    recorder = cut(packets, segment_ms)

    assert all(file[0] in keys for file in recorder.files)
    assert all(
        file[0] == piece.start_ms for piece, file in zip(recorder.cuts, recorder.files, strict=True)
    )


def test_a_key_frame_that_is_only_a_recovery_point_brings_the_gop_before_along() -> None:
    packets = stream([(0, 9)] * 5, clean=False)

    recorder = cut(packets, segment_ms=2 * 400)

    assert [piece.start_ms for piece in recorder.cuts] == [0, 800, 1600][: len(recorder.cuts)]
    assert [file[0] for file in recorder.files[1:]] == [
        piece.start_ms - 400 for piece in recorder.cuts[1:]
    ]


def test_a_gop_too_large_to_keep_delays_the_cut_to_a_clean_key_frame() -> None:
    huge = 97 << 20
    packets = [
        packet(0, 0, key=True, size_bytes=huge),
        packet(1000, 1000, key=True, clean=False),
        packet(2000, 2000, key=True, clean=True),
        packet(3000, 3000),
    ]

    assert [piece.start_ms for piece in cut(packets, segment_ms=900).cuts] == [0, 2000]


def test_frames_before_the_first_key_frame_stay_in_the_first_segment() -> None:
    packets = [packet(0, 0), packet(40, 40), packet(80, 80, key=True), packet(120, 120)]

    assert cut(packets, segment_ms=1000).files == [[0, 40, 80, 120]]


@every(
    "packets",
    [
        pytest.param(
            [packet(0, 0, key=True), packet(1000, 1000, key=True), packet(1040, 1040)]
            + [packet(1080 + n * 40, 1080 + n * 40) for n in range(3)]
            + [packet(200, 1300), packet(2000, 2000)],
            id="times that jump back behind a cut",
        ),
        pytest.param(
            [packet(0, 0, key=True), packet(40, 40, hidden=True)],
            id="a hidden frame where shown ones are",
        ),
    ],
)
def test_a_stream_that_cannot_be_cut_by_time_is_refused(packets: list[Timed[None]]) -> None:
    with pytest.raises(TimesNotInOrderError):
        cut(packets, segment_ms=1000)


AVCC = b"\x01\x64\x00\x1f\xff"


@every(
    ("codec", "data", "extradata", "clean"),
    [
        pytest.param("h264", b"\0\0\1\x67aa\0\0\1\x68b\0\0\1\x65c", None, True, id="idr"),
        pytest.param("h264", b"\0\0\0\1\x06aa\0\0\1\x41cc", None, False, id="recovery point"),
        pytest.param("h264", b"\0\0\0\2\x06a\0\0\0\2\x65c", AVCC, True, id="idr, lengths"),
        pytest.param("h264", b"\0\0\0\2\x06a\0\0\0\2\x41c", AVCC, False, id="no idr, lengths"),
        pytest.param("h264", b"\xff\xff\xff\xff\x65", AVCC, True, id="wrong length"),
        pytest.param("h264", b"", None, False, id="empty"),
        pytest.param("vp9", b"anything", None, True, id="vp9"),
    ],
)
def test_a_clean_key_frame_is_one_that_its_own_data_calls_so(
    codec: str, data: bytes, extradata: bytes | None, clean: bool
) -> None:
    assert is_clean_key(codec, data, extradata) is clean


X264 = "bframes=3:b-pyramid=normal:scenecut=0:keyint=15:min-keyint=15:threads=1"
X265 = "keyint=15:min-keyint=15:bframes=3:scenecut=0:pools=none:log-level=none"
OPEN = {"x264-params": f"{X264}:open-gop=1"}
CLOSED = {"x264-params": f"{X264}:open-gop=0"}
REFRESH = {"x264-params": "intra-refresh=1:keyint=15:scenecut=0:threads=1:bframes=0"}
VP9 = {"deadline": "realtime", "cpu-used": "8", "lag-in-frames": "10"}
UNEVEN_MS = np.cumsum(np.random.default_rng(1).integers(5, 120, 120)).tolist()

CLIPS = {
    "h264, closed GOPs": Clip("a.mp4", "libx264", CLOSED),
    "h264, open GOPs, mp4": Clip("a.mp4", "libx264", OPEN),
    "h264, open GOPs, matroska": Clip("a.mkv", "libx264", OPEN),
    "h264, intra refresh instead of key pictures": Clip("a.mkv", "libx264", REFRESH),
    "h264, fragmented": Clip("a.mp4", "libx264", OPEN, {"movflags": "frag_keyframe+empty_moov"}),
    "h264 in flv": Clip("a.flv", "libx264", CLOSED),
    "h264, transport stream that starts at 1.4 s": Clip(
        "a.ts", "libx264", OPEN, {"output_ts_offset": "1.4"}
    ),
    "h264, negative decoding times": Clip(
        "a.mp4", "libx264", OPEN, {"movflags": "+negative_cts_offsets"}
    ),
    "h264, edit list that starts inside a GOP": Clip(
        "a.mp4",
        "libx264",
        OPEN,
        {"movflags": "+negative_cts_offsets", "avoid_negative_ts": "disabled"},
        first_frame=-30,
    ),
    "h264, starts late": Clip("a.mp4", "libx264", OPEN, first_frame=40),
    "h264, variable frame rate": Clip("a.mp4", "libx264", OPEN, times_ms=UNEVEN_MS),
    "hevc, open GOPs": Clip("a.mp4", "libx265", {"x265-params": f"{X265}:open-gop=1"}),
    "hevc, transport stream": Clip("a.ts", "libx265", {"x265-params": f"{X265}:open-gop=1"}),
    "vp9 with hidden reference frames": Clip("a.webm", "libvpx-vp9", VP9),
    "mpeg-2, open GOPs, program stream": Clip("a.mpg", "mpeg2video", b_frames=2),
    "mpeg-4, open GOPs, avi": Clip("a.avi", "mpeg4", b_frames=2),
    "mpeg-4, open GOPs, mp4": Clip("a.mp4", "mpeg4", b_frames=2),
    "mjpeg, every frame a key frame": Clip("a.avi", "mjpeg", pixels="yuvj420p"),
}


@every("clip", CLIPS.values(), ids=CLIPS.keys())
def test_segments_together_hold_exactly_the_frames_of_the_source(
    clip: Clip, tmp_path: Path
) -> None:
    done = ingested(write_clip(tmp_path, clip), tmp_path)

    video = done.result.video
    assert video is not None
    assert len(video.segments) > 2
    assert all(segment.key != "source" for segment in video.segments)
    expected = source_frames(done)
    assert len(expected) >= 90
    assert sorted(segment_frames(done)) == sorted(expected)


@pytest.mark.parametrize("codec", ["wmv2", "msmpeg4v3"])
def test_a_codec_that_matroska_has_no_name_for_is_cut_into_ranges_of_the_source(
    codec: str, tmp_path: Path
) -> None:
    done = ingested(write_clip(tmp_path, Clip("a.asf", codec)), tmp_path)

    video = done.result.video
    assert video is not None
    assert len(video.segments) > 2
    assert {segment.key for segment in video.segments} == {"source"}
    assert sorted(segment_frames(done)) == sorted(source_frames(done))


@pytest.mark.parametrize("b_frames", [0, 1, 3])
def test_pictures_of_an_avi_have_their_times_although_it_stores_none(
    b_frames: int, tmp_path: Path
) -> None:
    """FFmpeg guesses that pictures are reordered by one; frames were late and out of order."""
    options = {"x264-params": f"{CLOSED['x264-params']}:bframes={b_frames}:b-adapt=0"}
    clip = Clip("a.avi", "libx264", options, frames=120)
    plain = ingested(write_clip(tmp_path, replace(clip, file_name="a.mp4")), tmp_path / "plain")

    done = ingested(write_clip(tmp_path, clip), tmp_path / "avi")

    assert seen(done) == seen(plain)
    assert done.result.media.video is not None
    assert done.result.media.video.start_ms == 0


@pytest.mark.parametrize(
    "clip",
    [
        pytest.param(Clip("a.mp4", "libx264", CLOSED, frames=35), id="shorter than 1.5 segments"),
        pytest.param(
            Clip("a.mp4", "libx264", {"x264-params": "keyint=infinite:scenecut=0"}),
            id="only one key frame",
        ),
    ],
)
def test_video_that_is_not_worth_cutting_is_one_segment_of_the_source_itself(
    clip: Clip, tmp_path: Path
) -> None:
    done = ingested(write_clip(tmp_path, clip), tmp_path)

    video = done.result.video
    assert video is not None
    assert [segment.key for segment in video.segments] == ["source"]
    assert list(done.store.list_keys("job")) == [
        key for key in done.store.list_keys("job") if key.endswith(".json")
    ]
    assert sorted(segment_frames(done)) == sorted(source_frames(done))


def test_segments_are_contiguous_about_as_long_as_asked_and_cover_the_video(
    tmp_path: Path,
) -> None:
    done = ingested(write_clip(tmp_path, CLIPS["h264, open GOPs, mp4"]), tmp_path)

    video = done.result.video
    assert video is not None
    ends = [segment.end_ms for segment in video.segments]
    assert [segment.start_ms for segment in video.segments] == [0, *ends[:-1]]
    assert [segment.index for segment in video.segments] == list(range(len(ends)))
    assert ends[-1] == video.duration_ms == 120 * 40
    lengths = [segment.end_ms - segment.start_ms for segment in video.segments]
    assert all(1000 <= length < 1000 + 600 for length in lengths[:-1])
    assert lengths[-1] >= 500


def test_cutting_the_same_source_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    path = write_clip(tmp_path, CLIPS["h264, open GOPs, mp4"])

    first, second = (ingested(path, tmp_path / name) for name in ("one", "two"))

    assert first.result == second.result
    assert first.result.video is not None
    for segment in first.result.video.segments:
        key = segment.key
        assert first.store.read_bytes(key) == second.store.read_bytes(key)
