"""Stills: the right frame, upright; the same by decord, by seeking, by decoding all."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import psutil
import pytest

from models.contracts import Picture
from pipelines.execution.chain import Workspace
from pipelines.media.decoding import hlg_to_nits, pq_to_nits, rgb, rolled_off, upright
from pipelines.media_types import Orientation
from pipelines.types import VideoSource
from pipelines.vision import stills as vision_stills
from pipelines.vision.features import (
    FEATURES,
    LUMA_HEIGHT,
    LUMA_WIDTH,
    FeaturesConfig,
    FrameLook,
    ReadFrames,
    features_key,
    segment_features,
)
from pipelines.vision.kept import KeptFrames
from pipelines.vision.stills import (
    DecordUnsuitableError,
    by_decord,
    by_pyav,
    by_seeking,
    fetch_stills,
    stills_at,
)
from tests.pipelines.ingest.ingest_material import ingested, joined_as_turned, turned_by_pictures
from tests.pipelines.media_builders import (
    folder_workspace,
    moving_shot,
    texture,
    video_source,
    write_video,
)

MEDIA = Path(__file__).resolve().parents[3] / "../shared/media"


def wanted_of(video: VideoSource, folder: Path, times_ms: Sequence[int]) -> dict[int, FrameLook]:
    workspace = folder_workspace(folder)
    features = segment_features(video, video.segments[0], workspace, FeaturesConfig())
    looks = features.looks()
    return {time_ms: looks[time_ms] for time_ms in times_ms}


@pytest.mark.parametrize(
    ("name", "codec", "pixel_format"),
    [
        ("h264.mp4", "libx264", "yuv420p"),
        ("h264.mkv", "libx264", "yuv420p"),
        ("444.mp4", "libx264", "yuv444p"),
        ("mpeg4.avi", "mpeg4", "yuv420p"),
        ("vp8.webm", "libvpx", "yuv420p"),
    ],
)
def test_decord_and_pyav_give_the_same_pictures(
    tmp_path: Path, name: str, codec: str, pixel_format: str
) -> None:
    pictures = list(moving_shot(3, 50, across=4))
    path = write_video(tmp_path / name, pictures, codec=codec, pixel_format=pixel_format)
    video = video_source(folder_workspace(tmp_path / "store"), path)
    times = [200, 1000, 1960]
    wanted = wanted_of(video, tmp_path / "store", times)
    one = by_decord(path, video.stream, video.origin_ms, wanted)
    other = by_pyav(path, video.segments[0], video.stream, video.origin_ms, times)
    assert sorted(one) == sorted(other) == times
    for time_ms in times:
        difference = np.abs(one[time_ms].astype(int) - other[time_ms])
        assert difference.mean() < 1
        drawn = pictures[time_ms // 40].astype(int)
        assert np.abs(other[time_ms].astype(int) - drawn).mean() < 12


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("h264.mp4", "libx264"),
        ("h264.mkv", "libx264"),
        ("h265.mp4", "libx265"),
        ("mpeg4.avi", "mpeg4"),
        ("vp9.webm", "libvpx-vp9"),
    ],
)
def test_seeking_gives_the_very_pictures_of_decoding_all(
    tmp_path: Path, name: str, codec: str
) -> None:
    path = write_video(tmp_path / name, moving_shot(3, 60, across=4), codec=codec)
    video = video_source(folder_workspace(tmp_path / "store"), path)
    features = segment_features(
        video, video.segments[0], folder_workspace(tmp_path / "store"), FeaturesConfig()
    )
    times = [int(features.times_ms[index]) for index in (0, 7, 30, 31, 58)]
    sought = by_seeking(path, video.stream, video.origin_ms, times)
    decoded = by_pyav(path, video.segments[0], video.stream, video.origin_ms, times)
    assert len(sought) >= 3, "most can be sought; fetch_stills decodes the others from the start"
    for time_ms, picture in sought.items():
        assert np.array_equal(picture, decoded[time_ms])


def test_a_picture_a_second_is_kept_as_it_is_read_and_nobody_decodes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of frames that others refer to: only their blocks' edges are smoothed in that pass."""
    pictures = [cv2.resize(each, (640, 360)) for each in moving_shot(3, 75, across=4)]
    options = {"crf": "35", "bf": "3", "b_strategy": "0"}
    path = write_video(tmp_path / "clip.mp4", pictures, keyframe_every=75, options=options)
    workspace = folder_workspace(tmp_path / "store")
    video = video_source(workspace, path)
    ReadFrames(video, workspace, FeaturesConfig()).process(video.segments[0])
    features = FEATURES.load(workspace.store, features_key(video, video.segments[0], workspace))
    kept, between = features.kept_times_ms.tolist(), 520
    assert [time_ms // 1_000 for time_ms in kept] == [0, 1, 2]
    assert kept != [0, 1_000, 2_000], "some of these are B-frames"
    decoded = by_pyav(path, video.segments[0], video.stream, video.origin_ms, [*kept, between])
    fetched: list[int] = []
    fetch = vision_stills.fetch_stills

    def counted(*arguments: Any) -> dict[int, Picture]:
        fetched.extend(arguments[4])
        return fetch(*arguments)

    monkeypatch.setattr(vision_stills, "fetch_stills", counted)
    stills = stills_at(video, [*kept, between], workspace, 960)
    assert fetched == [between]
    for time_ms, still in stills.items():
        assert np.abs(still.astype(int) - decoded[time_ms]).mean() < 1.5
    assert stills_at(video, kept, workspace, 320)[0].shape == (180, 320, 3)
    assert fetched == [between]
    stills_at(video, kept, workspace, 1_920)
    assert fetched == [between, *kept], "they were kept smaller"


def test_of_a_stream_with_frequent_key_frames_only_these_are_kept(tmp_path: Path) -> None:
    """The others need the loop filter of all that they refer to."""
    options = {"crf": "35", "bf": "3", "b_strategy": "0"}
    pictures = [cv2.resize(each, (640, 360)) for each in moving_shot(3, 75, across=4)]
    path = write_video(tmp_path / "clip.mp4", pictures, keyframe_every=30, options=options)
    workspace = folder_workspace(tmp_path / "store")
    video = video_source(workspace, path)
    [segment] = video.segments
    ReadFrames(video, workspace, FeaturesConfig()).process(segment)
    features = FEATURES.load(workspace.store, features_key(video, segment, workspace))
    assert features.kept_times_ms.tolist() == [0, 1_200, 2_400]
    assert features.stroke_times_ms.tolist() == [0, 1_000, 2_000]
    decoded = by_pyav(path, segment, video.stream, video.origin_ms, [0, 1_200, 2_400])
    for time_ms, still in stills_at(video, [*decoded], workspace, 960).items():
        assert np.abs(still.astype(int) - decoded[time_ms]).mean() < 1.5


def test_pictures_are_kept_until_a_segment_has_no_room_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, picture = KeptFrames(), np.asarray(texture(3), np.uint8)
    kept.add(0, picture)
    monkeypatch.setattr("pipelines.vision.kept._MOST_BYTES", len(kept.encoded[0]))
    kept.add(1_000, picture)
    assert [*kept.encoded] == [0]


def test_the_stored_features_name_the_key_frames(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", moving_shot(3, 60, across=4))
    video = video_source(folder_workspace(tmp_path / "store"), path)
    workspace = folder_workspace(tmp_path / "store")
    features = segment_features(video, video.segments[0], workspace, FeaturesConfig())
    with av.open(str(path)) as container:
        keys = [
            frame.pts * frame.time_base for frame in container.decode(video=0) if frame.key_frame
        ]
    assert features.key_times_ms.tolist() == [round(time * 1000) for time in keys]
    assert 0 in features.key_times_ms


def test_what_decord_cannot_decode_comes_from_pyav(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", moving_shot(3, 25, across=4))
    video = video_source(folder_workspace(tmp_path / "store"), path)
    wanted = wanted_of(video, tmp_path / "store", [400])
    modern = replace(video.stream, codec="av1")
    with pytest.raises(DecordUnsuitableError):
        by_decord(path, modern, video.origin_ms, wanted)
    config = 960
    stills = fetch_stills(path, video.segments[0], modern, video.origin_ms, wanted, config)
    usual = fetch_stills(path, video.segments[0], video.stream, video.origin_ms, wanted, config)
    assert np.abs(stills[400].astype(int) - usual[400]).mean() < 1


def test_many_stills_but_key_frames_come_from_decord_if_it_can_read_them_and_else_from_pyav(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_video(tmp_path / "clip.mp4", moving_shot(3, 50, across=4))
    video = video_source(folder_workspace(tmp_path / "store"), path)
    times_ms = [*range(0, 2_000, 200)]
    wanted = wanted_of(video, tmp_path / "store", times_ms)
    keys = [time_ms for time_ms, look in wanted.items() if look.is_key]
    between = [time_ms for time_ms in times_ms if time_ms not in keys]
    assert 0 in keys
    read: list[int] = []
    by_child = vision_stills.pictures_by_decord

    def counted(*arguments: Any, take: Callable[[int, Picture], None], **named: Any) -> None:
        def counting(time_ms: int, picture: Picture) -> None:
            read.append(time_ms)
            take(time_ms, picture)

        by_child(*arguments, take=counting, **named)

    monkeypatch.setattr(vision_stills, "pictures_by_decord", counted)
    arguments = (path, video.segments[0], video.stream, video.origin_ms, wanted, 960)
    stills = fetch_stills(*arguments)
    assert (sorted(stills), read) == (times_ms, between)
    monkeypatch.setattr(vision_stills, "_DECORD_FILE_LIMIT_BYTES", 0)
    others = fetch_stills(*arguments)
    assert read == between, "decord was asked for a file that is too long for it"
    for time_ms, still in stills.items():
        assert np.abs(still.astype(int) - others[time_ms]).mean() < 1


def test_a_picture_that_is_not_the_frame_of_that_time_is_not_taken_from_decord(
    tmp_path: Path,
) -> None:
    path = write_video(tmp_path / "clip.mp4", moving_shot(3, 25, across=4))
    video = video_source(folder_workspace(tmp_path / "store"), path)
    other = cv2.cvtColor(cv2.resize(texture(99), (64, 36)), cv2.COLOR_RGB2GRAY)
    assert by_decord(path, video.stream, video.origin_ms, {400: FrameLook(other, 16 / 9)}) == {}


def readers() -> list[psutil.Process]:
    """Confined children of this process."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # It has just ended, or is a zombie.
            if "pipelines.sandbox.child" in " ".join(child.cmdline()):
                found.append(child)
    return found


def test_a_crash_of_decord_ends_a_child_only_and_the_stills_come_from_pyav(
    tmp_path: Path,
) -> None:
    path = write_video(tmp_path / "clip.mp4", moving_shot(3, 50, across=4))
    video = video_source(folder_workspace(tmp_path / "store"), path)
    wanted = wanted_of(video, tmp_path / "store", range(0, 2000, 40))
    crashed: list[int] = []

    def crash() -> None:
        """What a bitstream that finds a hole does to the process that reads it."""
        for child in readers()[: 1 - len(crashed)]:
            child.send_signal(signal.SIGSEGV)
            crashed.append(child.pid)

    arguments = (path, video.segments[0], video.stream, video.origin_ms, wanted, 960)
    stills = fetch_stills(*arguments, check=crash)
    assert crashed
    usual = fetch_stills(*arguments)
    assert sorted(stills) == sorted(usual) == sorted(wanted)
    for time_ms, still in stills.items():
        assert np.abs(still.astype(int) - usual[time_ms]).mean() < 1


class StopError(Exception):
    """Says that the work should stop."""


def test_reading_stills_stops_when_told(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", moving_shot(3, 50, across=4))
    video = video_source(folder_workspace(tmp_path / "store"), path)
    wanted = wanted_of(video, tmp_path / "store", [400])
    many = wanted_of(video, tmp_path / "store", range(0, 2000, 40))

    def stop() -> None:
        raise StopError

    for times in (wanted, many):
        with pytest.raises(StopError):
            fetch_stills(path, video.segments[0], video.stream, video.origin_ms, times, 960, stop)
    assert readers() == []


_LUMA = np.zeros((LUMA_HEIGHT, LUMA_WIDTH), np.uint8)


def corner_marked() -> Picture:
    """80 x 40, black with a white upper left corner."""
    picture = np.zeros((40, 80, 3), np.uint8)
    picture[:20, :20] = 255
    return picture


@pytest.mark.parametrize(
    ("orientation", "shape", "corner"),
    [
        (Orientation(0), (40, 80), (0, 0)),
        (Orientation(90), (80, 40), (0, -1)),
        (Orientation(180), (40, 80), (-1, -1)),
        (Orientation(270), (80, 40), (-1, 0)),
        (Orientation(0, mirrored=True), (40, 80), (0, -1)),
        (Orientation(90, mirrored=True), (80, 40), (-1, -1)),
        (Orientation(180, mirrored=True), (40, 80), (-1, 0)),
        (Orientation(270, mirrored=True), (80, 40), (0, 0)),
    ],
    ids=str,
)
def test_stills_stand_upright(
    orientation: Orientation, shape: tuple[int, int], corner: tuple[int, int]
) -> None:
    still = upright(corner_marked(), 2.0, orientation, 960)
    assert still.shape[:2] == shape
    assert still[corner].tolist() == [255, 255, 255]
    assert still[-1 - corner[0], -1 - corner[1]].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("width", "height", "limit", "shape"),
    [
        pytest.param(53, 40, 960, (40, 53), id="narrow pixels"),
        pytest.param(160, 40, 960, (40, 160), id="wide pixels"),
        pytest.param(80, 40, 40, (20, 40), id="too large"),
    ],
)
def test_stills_have_square_pixels_and_bounded_size(
    width: int, height: int, limit: int, shape: tuple[int, int]
) -> None:
    assert upright(corner_marked(), width / height, Orientation(), limit).shape[:2] == shape


ONE_FILM = ((320, 180, Fraction(1)), (320, 240, Fraction(1)), (320, 240, Fraction(16, 11)))
"""Sizes, and shapes of pixels, of pictures that follow each other in one stream."""


@pytest.mark.parametrize("segment_seconds", [0.5, 60.0], ids=["segments", "in one"])
def test_each_still_has_the_shape_of_its_own_picture(
    tmp_path: Path, segment_seconds: float
) -> None:
    """A second of each; as receivers write them where a channel changes from 4:3 to 16:9."""
    parts = []
    for number, (width, height, pixel) in enumerate(ONE_FILM):
        part = tmp_path / f"{number}.ts"
        pictures = [cv2.resize(texture(number + 5), (width, height))] * 25
        write_video(part, pictures, pixel_aspect=pixel)
        parts.append(part.read_bytes())
    (tmp_path / "joined.ts").write_bytes(b"".join(parts))
    done = ingested(tmp_path / "joined.ts", tmp_path / "store", segment_seconds=segment_seconds)
    video = done.result.video
    assert video is not None
    workspace = Workspace(done.store, "job")
    shapes = []
    for segment in video.segments:
        ReadFrames(video, workspace, FeaturesConfig()).process(segment)
        times = range(segment.start_ms, segment.end_ms, 200)
        stills = stills_at(video, times, workspace, 960)
        shapes += [(time_ms // 1000, still.shape[1::-1]) for time_ms, still in stills.items()]
    assert dict.fromkeys(shapes) == dict.fromkeys(
        [(0, (320, 180)), (1, (320, 240)), (2, (465, 240))]
    )


@pytest.mark.parametrize(
    ("write", "seconds"),
    [
        pytest.param(turned_by_pictures, 2, id="by pictures"),
        pytest.param(joined_as_turned, 6, id="by joined files"),
    ],
)
@pytest.mark.parametrize("segment_seconds", [2.0, 60.0], ids=["segments", "in one"])
def test_a_picture_that_turns_in_mid_stream_is_upright_before_and_after(
    write: Callable[[Path], Path], seconds: int, segment_seconds: float, tmp_path: Path
) -> None:
    done = ingested(write(tmp_path), tmp_path / "store", segment_seconds=segment_seconds)
    video = done.result.video
    assert video is not None
    workspace = Workspace(done.store, "job")
    times = [part * seconds * 1000 + 1_000 for part in range(3)]
    for segment in video.segments:
        ReadFrames(video, workspace, FeaturesConfig()).process(segment)
    stills = stills_at(video, times, workspace, 960)
    with av.open(str(tmp_path / "film.mp4")) as container:
        stored = [rgb(frame) for frame in container.decode(video=0)]
    for part, orientation in enumerate((Orientation(270), Orientation(180), Orientation())):
        expected = orientation.upright(stored[times[part] // 40 % len(stored)])
        assert stills[times[part]].shape == expected.shape
        assert np.abs(stills[times[part]].astype(int) - expected).mean() < 3


@pytest.mark.shared_media
@pytest.mark.parametrize("name", ["text-mirrored.mp4", "text-flipped.mp4"])
def test_writing_in_a_mirrored_film_is_readable(name: str, tmp_path: Path) -> None:
    path = MEDIA / "field/10-mirrored-video" / name
    if not path.is_file():
        pytest.skip(f"{name} is not beside the project")
    done = ingested(path, tmp_path, segment_seconds=60.0)
    video = done.result.video
    assert video is not None
    workspace = Workspace(done.store, "job")
    ReadFrames(video, workspace, FeaturesConfig()).process(video.segments[0])
    stills = stills_at(video, (1_000, 2_000, 4_000), workspace, 960)
    for time_ms, corner in ((1_000, (1, 0)), (4_000, (1, 1))):  # a red box, a yellow one
        red = stills[time_ms].astype(int)[..., 0] - stills[time_ms][..., 2]
        quarters = red.reshape(2, 180, 2, 320).mean(axis=(1, 3))
        assert divmod(int(quarters.argmax()), 2) == corner


def test_an_interlaced_picture_loses_its_comb() -> None:
    combed = np.zeros((40, 80, 3), np.uint8)
    combed[1::2] = 255
    still = upright(combed, 2.0, Orientation(), 960, interlaced=True)
    assert still.shape == (40, 80, 3)
    assert still.max() == 0


def test_pq_and_hlg_reference_levels() -> None:
    """ITU-R BT.2408: 203 cd/m2 is 58 % of PQ; 75 % of HLG is 203 cd/m2."""
    assert pq_to_nits(np.array([0.5806])) == pytest.approx(203, rel=0.01)
    assert hlg_to_nits(np.full((1, 3), 0.75)) == pytest.approx(203, rel=0.01)
    assert hlg_to_nits(np.full((1, 3), 1.0)) == pytest.approx(1000, rel=0.01)


def test_tones_are_rolled_off_in_order_and_within_range() -> None:
    tones = np.repeat(np.linspace(0, 50, 200)[:, None], 3, axis=1)
    mapped = rolled_off(tones)[:, 0]
    assert (np.diff(mapped) >= 0).all()
    assert mapped.max() <= 1
    assert rolled_off(np.full((1, 3), 0.4)) == pytest.approx(0.4)


@pytest.mark.shared_media
@pytest.mark.parametrize("name", ["hdr10-video-with-sdr-container.mp4", "hlg10-color-test.mp4"])
def test_hdr_media_become_a_picture_of_ordinary_contrast(name: str) -> None:
    path = MEDIA / "odd" / name
    if not path.is_file():
        pytest.skip(f"{name} is not beside the project")
    with av.open(str(path)) as container:
        picture = rgb(next(container.decode(video=0)))
    assert picture.dtype == np.uint8
    assert picture.std() > 20
    assert (picture == 255).mean() < 0.2
