"""Features of the frames: the same in any segments and by any reader; motion of the camera."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, cycle, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import av
import cv2
import numpy as np
import pytest
import torch
from av.video.reformatter import ColorRange

from models.contracts import CameraMotion
from pipelines.execution.chain import Workspace
from pipelines.media.decoding import DecodeReport, decode_segment
from pipelines.media.files import NoVideoStreamError, rounded_ms
from pipelines.media_types import Orientation
from pipelines.types import Segment, VideoSource
from pipelines.vision.camera_motion import camera_motion, pair_times
from pipelines.vision.cuts.selection import detect_cuts
from pipelines.vision.features import (
    FeaturesConfig,
    FrameFeatures,
    MeasuredFrames,
    frame_features,
    joined,
    segment_features,
)
from tests.pipelines.ingest.ingest_material import Clip, Ingested, ingested, write_clip
from tests.pipelines.ingest.test_ingest_cutter import CLIPS
from tests.pipelines.media_builders import (
    Picture,
    folder_workspace,
    moving_shot,
    still_shot,
    texture,
    video_source,
    write_video,
)
from tests.tables import every

X264 = {"x264-params": "bframes=3:b-pyramid=normal:b-adapt=0:scenecut=0:keyint=50:threads=1"}


def features_of(video: VideoSource, workspace: Workspace) -> FrameFeatures:
    config = FeaturesConfig()
    return joined(
        [segment_features(video, segment, workspace, config) for segment in video.segments]
    )


def sought(done: Ingested) -> tuple[VideoSource, Workspace]:
    assert done.result.video is not None
    return done.result.video, Workspace(done.store, "job")


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS.keys())
def test_segments_have_the_features_of_the_whole(clip: Clip, tmp_path: Path) -> None:
    path = write_clip(tmp_path, clip)
    cut = sought(ingested(path, tmp_path / "cut", segment_seconds=1.0))
    whole = sought(ingested(path, tmp_path / "whole", segment_seconds=60.0))
    found, expected = features_of(*cut), features_of(*whole)
    assert np.array_equal(found.times_ms, expected.times_ms)
    assert np.array_equal(found.luma, expected.luma)
    assert np.array_equal(found.chroma, expected.chroma)


def encoded(folder: Path, pictures: Iterable[Picture]) -> tuple[VideoSource, Workspace]:
    path = write_video(folder / "clip.mp4", pictures, options=X264)
    workspace = folder_workspace(folder)
    return video_source(workspace, path), workspace


@pytest.fixture
def shots(tmp_path: Path) -> tuple[VideoSource, Workspace]:
    """Two calm shots with a cut between them where the encoder put no key frame."""
    pictures = [*moving_shot(1, 71, across=0.4), *moving_shot(2, 69, down=0.3)]
    return encoded(tmp_path, pictures)


def test_ranges_that_begin_anywhere_have_the_features_of_the_whole(
    shots: tuple[VideoSource, Workspace], tmp_path: Path
) -> None:
    whole, workspace = shots
    ranges = video_source(workspace, tmp_path / "clip.mp4", segment_ms=680)
    assert len(ranges.segments) > 5
    found, expected = features_of(ranges, workspace), features_of(whole, workspace)
    assert np.array_equal(found.times_ms, expected.times_ms)
    assert np.array_equal(found.luma, expected.luma)


def test_a_damaged_stream_has_the_frames_that_can_be_decoded(tmp_path: Path) -> None:
    video, workspace = encoded(tmp_path, moving_shot(1, 140, across=0.4))
    path = tmp_path / "source"
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    for packet in packets[60:90:7]:
        assert packet.pos is not None
        data[packet.pos : packet.pos + packet.size] = bytes(packet.size)
    path.write_bytes(data)
    found = features_of(video, workspace)
    assert 100 < len(found) < 140
    ranges = video_source(workspace, path, segment_ms=2_000)
    assert np.array_equal(features_of(ranges, workspace).luma, found.luma)


def test_telecined_film_has_the_cuts_of_the_film(tmp_path: Path) -> None:
    """Of four frames five are made, two of them woven of two; nothing in the file says so."""
    film = [*moving_shot(1, 50, across=2), *moving_shot(2, 51, across=3), *moving_shot(3, 43)]
    fields = [each for each, count in zip(film, cycle((2, 3)), strict=False) for _ in range(count)]
    woven = [one.copy() for one in fields[:-1:2]]
    for frame, second in zip(woven, fields[1::2], strict=True):
        frame[1::2] = second[1::2]
    path = write_video(tmp_path / "telecined.mp4", woven, options={"preset": "ultrafast"})
    workspace = folder_workspace(tmp_path / "store")
    video = video_source(workspace, path)
    features = segment_features(video, video.segments[0], workspace, FeaturesConfig())
    found = [cut.time_ms for cut in detect_cuts([features], video.duration_ms)]
    # The first frames whose upper fields are of the new shots.
    upper = [id(each) for each in fields[::2]]
    assert found == [40 * upper.index(id(film[cut])) for cut in (50, 101)]


def test_interlaced_pictures_have_the_cuts_of_one_field(tmp_path: Path) -> None:
    """The second field of each frame is of the next picture, at cuts of the next scene."""
    film = [*moving_shot(1, 50, across=2), *moving_shot(2, 50, across=3), *moving_shot(3, 50)]
    woven = [one.copy() for one in film[:-1]]
    for frame, following in zip(woven, film[1:], strict=True):
        frame[1::2] = following[1::2]
    options = {"preset": "ultrafast", "flags": "+ilme+ildct", "x264-params": "tff=1"}
    path = write_video(tmp_path / "interlaced.mp4", woven, options=options)
    workspace = folder_workspace(tmp_path / "store")
    video = video_source(workspace, path)
    features = segment_features(video, video.segments[0], workspace, FeaturesConfig())
    assert [cut.time_ms for cut in detect_cuts([features], video.duration_ms)] == [2_000, 4_000]


FRAME_MS = 40
UPRIGHT = Orientation()


def filmed(
    across: float = 0.0, down: float = 0.0, growth: float = 0.0, shake: float = 0.0
) -> FrameFeatures:
    """Two seconds of a camera over a smooth random ground; pixels of 64 x 36 a frame."""
    random = np.random.default_rng(5)
    ground = cv2.resize(random.integers(20, 235, (30, 54)).astype(np.uint8), (540, 300))
    views = []
    for index in range(50):
        scale = (1 + growth) ** -(index - 25)
        x = 240 + across * (index - 25) + random.normal(0, shake)
        y = 130 + down * (index - 25) + random.normal(0, shake)
        matrix = np.array([[scale, 0, x - 32 * scale], [0, scale, y - 18 * scale]])
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        views.append(cv2.warpAffine(ground, matrix, (64, 36), flags=flags))
    times = np.arange(50, dtype=np.int64) * FRAME_MS
    return FrameFeatures(times, np.stack(views), np.full((50, 2, 9, 16), 128, np.uint8))


def labelled(film: FrameFeatures, orientation: Orientation = UPRIGHT) -> CameraMotion:
    pairs = pair_times(film.times_ms, 0, 50 * FRAME_MS)
    return camera_motion(film, pairs, orientation)


@every(
    ("film", "motion"),
    [
        pytest.param(filmed(), CameraMotion.STATIC, id="nothing moves"),
        pytest.param(filmed(across=0.3), CameraMotion.PAN_RIGHT, id="camera goes right"),
        pytest.param(filmed(across=-0.3), CameraMotion.PAN_LEFT, id="camera goes left"),
        pytest.param(filmed(down=-0.2), CameraMotion.TILT_UP, id="camera goes up"),
        pytest.param(filmed(down=0.2), CameraMotion.TILT_DOWN, id="camera goes down"),
        pytest.param(filmed(growth=0.006), CameraMotion.ZOOM_IN, id="view gets closer"),
        pytest.param(filmed(growth=-0.006), CameraMotion.ZOOM_OUT, id="view gets wider"),
        pytest.param(filmed(shake=0.5), CameraMotion.HANDHELD, id="unsteady"),
        pytest.param(filmed(across=1.2), CameraMotion.PAN_RIGHT, id="fast pan"),
    ],
)
def test_camera_motion_is_named_after_what_the_camera_does(
    film: FrameFeatures, motion: CameraMotion
) -> None:
    assert labelled(film) is motion


def test_motion_is_named_as_seen_after_the_picture_is_turned_upright() -> None:
    assert labelled(filmed(across=0.3), Orientation(90)) is CameraMotion.TILT_DOWN
    assert labelled(filmed(across=0.3), Orientation(0, mirrored=True)) is CameraMotion.PAN_LEFT
    assert labelled(filmed(across=0.3), Orientation(90, mirrored=True)) is CameraMotion.TILT_UP


def test_something_small_that_moves_before_a_still_camera_is_not_the_camera() -> None:
    film = filmed()
    for index in range(50):
        film.luma[index, 10:22, index : index + 10] = 250
    assert labelled(film) is CameraMotion.STATIC


def test_a_drawn_figure_that_rocks_before_a_still_camera_is_no_shaken_camera() -> None:
    film = filmed()
    for index in range(50):
        ground = np.full((360, 640), 150, np.uint8)
        aside, up = 40 * np.sin(0.2 * index), 36 * np.sin(0.4 * index)
        middle = int(320 + aside), int(210 + up)
        cv2.ellipse(ground, middle, (90, 105), 0, 0, 360, 60, -1, cv2.LINE_AA)
        cv2.circle(ground, (middle[0], middle[1] - 98), 56, 220, -1, cv2.LINE_AA)
        film.luma[index] = cv2.resize(ground, (64, 36), interpolation=cv2.INTER_AREA)
    assert labelled(film) is CameraMotion.UNKNOWN


def test_a_cut_that_was_missed_is_no_shaken_camera() -> None:
    film = filmed()
    film.luma[25:] = np.roll(film.luma[25:], (7, 20), axis=(1, 2))
    assert labelled(film) is not CameraMotion.HANDHELD


def test_a_pan_that_starts_and_stops_is_no_shaken_camera() -> None:
    film = filmed()
    for index in range(50):
        moved = round(6 * np.sin(np.pi * index / 50))
        film.luma[index] = np.roll(film.luma[index], moved, axis=1)
    assert labelled(film) is not CameraMotion.HANDHELD


def test_a_plain_picture_tells_nothing_of_the_camera() -> None:
    times = np.arange(50, dtype=np.int64) * FRAME_MS
    plain = np.full((50, 36, 64), 90, np.uint8)
    film = FrameFeatures(times, plain, np.full((50, 2, 9, 16), 128, np.uint8))
    assert labelled(film) is CameraMotion.UNKNOWN


@pytest.mark.parametrize("frames", [0, 1])
def test_too_few_frames_make_no_pairs(frames: int) -> None:
    assert pair_times(np.arange(frames, dtype=np.int64) * FRAME_MS, 0, 1000) == []


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


@dataclass
class CardFrame:
    """A frame as it would be in a GPU's memory, in this machine's own."""

    planes: list[torch.Tensor]
    color_range: ColorRange
    interlaced_frame: bool = False
    format: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(name="cuda"))
    sw_format: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(name="nv12"))


@every("size", [(160, 120), (720, 576), (1920, 1080)])
@every("bits", [8, 10])
def test_frames_of_a_gpu_are_measured_as_those_of_a_processor(
    size: tuple[int, int], bits: int
) -> None:
    measured, expected = MeasuredFrames(), []
    for seed in range(40):
        picture = cv2.resize(texture(seed), size, interpolation=cv2.INTER_CUBIC)
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="nv12")
        expected.append(frame_features(frame))
        rows = np.frombuffer(frame.to_ndarray(), np.uint8).reshape(-1, size[0])
        planes = rows[: size[1]], rows[size[1] :].reshape(size[1] // 2, size[0] // 2, 2)
        wide = [plane.astype(np.uint16) << 8 if bits == 10 else plane.copy() for plane in planes]
        card = CardFrame([torch.from_numpy(plane) for plane in wide], frame.color_range)
        measured.add(cast("av.VideoFrame", card))
        if seed == 35:  # what NVDEC cannot decode comes from the processor
            measured.add(frame)
            expected.append(expected[-1])
    measured.finish()
    assert len(measured.luma) == len(expected)
    for luma, chroma, (own_luma, own_chroma) in zip(
        measured.luma, measured.chroma, expected, strict=True
    ):
        assert np.abs(luma.astype(int) - own_luma).mean() < 1.5  # ``_shrunk`` leaves out far edges
        assert np.abs(chroma.astype(int) - own_chroma).mean() < 1.5


def test_a_machine_without_a_gpu_decodes_on_its_processor(
    shots: tuple[VideoSource, Workspace],
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    video, workspace = shots
    found = segment_features(video, video.segments[0], workspace, FeaturesConfig(gpus=0.1))
    expected = segment_features(video, video.segments[0], workspace, FeaturesConfig())
    assert np.array_equal(found.luma, expected.luma)


@pytest.mark.parametrize("size", [(1, 1), (161, 121), (720, 576), (1920, 1080)])
def test_features_can_be_taken_of_pictures_of_any_size(size: tuple[int, int]) -> None:
    width, height = size
    frame = av.VideoFrame.from_ndarray(np.full((height, width, 3), 200, np.uint8), format="rgb24")
    luma, _ = frame_features(frame)
    assert np.abs(luma.astype(int) - 200).max() <= 3
