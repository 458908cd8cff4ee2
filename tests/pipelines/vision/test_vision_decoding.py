"""Frames of a segment: which ones, and at what times."""

from __future__ import annotations

import gc
from fractions import Fraction
from itertools import chain, pairwise
from pathlib import Path

import av
import numpy as np
import pytest

from pipelines.media.decoding import DecodeReport, decode_segment
from pipelines.media.files import NoVideoStreamError, rounded_ms
from pipelines.types import Segment
from pipelines.vision.features import frame_features
from tests.pipelines.media_builders import still_shot, texture, write_video
from tests.tables import every


def times_of(
    path: Path, start_ms: int, end_ms: int, origin_ms: int = 0, threads: int = 1
) -> list[int]:
    segment = Segment(0, "source", start_ms, end_ms)
    frames = decode_segment(path, segment, stream_index=0, origin_ms=origin_ms, threads=threads)
    return [timed.time_ms for timed in frames]


@pytest.mark.parametrize(
    ("ticks", "base", "expected"),
    [
        (1, Fraction(1, 2000), 1),
        (-1, Fraction(1, 2000), -1),
        (1, Fraction(1, 2001), 0),
        (1001, Fraction(1, 30000), 33),
        (90_000 * 86_400, Fraction(1, 90_000), 86_400_000),
    ],
)
def test_times_are_rounded_half_away_from_zero(ticks: int, base: Fraction, expected: int) -> None:
    assert rounded_ms(ticks, base) == expected


def test_every_frame_belongs_to_exactly_one_segment(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", still_shot(1, 100))
    borders = [0, 500, 1234, 2000, 2001, 4000]
    parts = [times_of(path, start, end) for start, end in pairwise(borders)]
    assert list(chain(*parts)) == times_of(path, 0, 4000) == list(range(0, 4000, 40))


def test_a_segment_far_into_a_long_file_is_reached_and_is_the_same_as_without_seeking(
    tmp_path: Path,
) -> None:
    path = write_video(tmp_path / "long.mp4", still_shot(1, 700), keyframe_every=60)
    assert times_of(path, 20_000, 21_000) == list(range(20_000, 21_000, 40))


def test_uneven_frame_times_are_kept_as_they_are(tmp_path: Path) -> None:
    times = [0, 33, 34, 150, 151, 700, 1100]
    path = write_video(tmp_path / "uneven.mkv", still_shot(1, 7), times_ms=times)
    assert times_of(path, 0, 2000) == times


def test_times_count_from_the_start_of_the_media(tmp_path: Path) -> None:
    path = write_video(tmp_path / "late.mkv", still_shot(1, 5), times_ms=range(5000, 5200, 40))
    assert times_of(path, 0, 120, origin_ms=5000) == [0, 40, 80]


def test_the_number_of_threads_changes_nothing(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", still_shot(1, 60))
    assert times_of(path, 0, 9999, threads=4) == times_of(path, 0, 9999)


def test_decoded_frames_are_freed_as_they_go_by(tmp_path: Path) -> None:
    """Without waiting for the search for cycles: until then there may be gigabytes of them."""
    path = write_video(tmp_path / "clip.mp4", still_shot(1, 60))
    segment = Segment(0, "source", 0, 9999)
    gc.collect()
    gc.disable()
    try:
        alive = [
            sum(isinstance(each, av.VideoFrame) for each in gc.get_objects())
            for _ in decode_segment(path, segment, stream_index=0, origin_ms=0)
        ]
    finally:
        gc.enable()
    assert max(alive) - alive[0] < 4


def test_damaged_packets_are_counted_and_the_rest_is_decoded(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mkv", still_shot(1, 100), keyframe_every=10)
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 3, len(data) // 2, 97):
        data[at] ^= 0xFF
    path.write_bytes(data)
    report = DecodeReport()
    segment = Segment(0, "source", 0, 99_999)
    frames = list(decode_segment(path, segment, stream_index=0, origin_ms=0, report=report))
    assert 20 < len(frames) < 100 or report.damaged_packets > 0


def test_a_file_that_breaks_off_gives_what_is_there(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mkv", still_shot(1, 100), keyframe_every=10)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    times = times_of(path, 0, 99_999)
    assert 20 < len(times) < 80
    assert times == [index * 40 for index in range(len(times))]


def test_a_file_without_pictures_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=16_000)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1600), np.int16), layout="mono")
        frame.sample_rate = 16_000
        container.mux(stream.encode(frame))
    with pytest.raises(NoVideoStreamError):
        times_of(path, 0, 1000)


@every(
    "name",
    ["yuv420p", "yuv422p", "yuv444p", "yuvj420p", "yuv420p10le", "nv12", "rgb24", "gray"],
)
def test_features_are_alike_whatever_the_pixel_format(name: str) -> None:
    picture = texture(4)
    if name == "gray":
        picture = np.repeat(picture[:, :, :1], 3, axis=2)
    frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
    luma, chroma = frame_features(frame.reformat(format=name))
    expected_luma, expected_chroma = frame_features(frame.reformat(format="yuv444p"))
    assert luma.shape == (36, 64)
    assert chroma.shape == (2, 9, 16)
    assert np.abs(luma.astype(int) - expected_luma).mean() < 2.5
    assert np.abs(chroma.astype(int) - expected_chroma).mean() < 2.5


@pytest.mark.parametrize("size", [(1, 1), (161, 121), (720, 576), (1920, 1080)])
def test_features_can_be_taken_of_pictures_of_any_size(size: tuple[int, int]) -> None:
    width, height = size
    frame = av.VideoFrame.from_ndarray(np.full((height, width, 3), 200, np.uint8), format="rgb24")
    luma, _ = frame_features(frame)
    assert np.abs(luma.astype(int) - 200).max() <= 3
