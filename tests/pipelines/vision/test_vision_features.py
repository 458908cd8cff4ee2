"""Features of the frames: the same however the video is cut into segments."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle
from pathlib import Path

import av
import numpy as np
import pytest

from pipelines.execution.chain import Workspace
from pipelines.types import VideoSource
from pipelines.vision.cuts.selection import detect_cuts
from pipelines.vision.features import FeaturesConfig, FrameFeatures, joined, segment_features
from tests.pipelines.ingest.ingest_material import Clip, Ingested, ingested, write_clip
from tests.pipelines.ingest.test_ingest_segments import CLIPS
from tests.pipelines.media_builders import (
    Picture,
    folder_workspace,
    moving_shot,
    video_source,
    write_video,
)

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
