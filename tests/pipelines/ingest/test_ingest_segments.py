"""Segments hold the source's frames: each once, at its time, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.pipelines.ingest.clock_material import seen
from tests.pipelines.ingest.ingest_material import (
    Clip,
    ingested,
    segment_frames,
    source_frames,
    write_clip,
)

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


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS.keys())
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
