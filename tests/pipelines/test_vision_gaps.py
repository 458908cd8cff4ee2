"""Frames that nothing refers to are left out where they tell nothing, brought where they may."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from pipelines.execution.chain import Workspace
from pipelines.media.decoding import DecodeReport, decode_segment
from pipelines.types import VideoSource
from pipelines.vision import features as vision_features
from pipelines.vision.cuts.detector import CutConfig, detect_cuts
from pipelines.vision.cuts.hard import HardEvidence, confidence
from pipelines.vision.cuts.measures import change
from pipelines.vision.features import FeaturesConfig, segment_features
from pipelines.vision.frame_features import FrameFeatures, joined
from pipelines.vision.frame_skipping import MOVING, RESTLESS, mixed, told_apart
from tests.pipelines.ingest_material import Clip, Ingested, ingested, write_clip
from tests.pipelines.media_builders import (
    Picture,
    folder_workspace,
    moving_shot,
    still_shot,
    video_source,
    write_video,
)
from tests.pipelines.test_ingest_segments import CLIPS

X264 = {"x264-params": "bframes=3:b-pyramid=normal:b-adapt=0:scenecut=0:keyint=50:threads=1"}


def all_frames(
    video: VideoSource, workspace: Workspace, patch: pytest.MonkeyPatch
) -> FrameFeatures:
    with patch.context() as changed:
        changed.setattr(vision_features, "_SPARING", frozenset())
        return features_of(video, workspace)


def features_of(video: VideoSource, workspace: Workspace) -> FrameFeatures:
    config = FeaturesConfig()
    return joined(
        [segment_features(video, segment, workspace, config) for segment in video.segments]
    )


def sought(done: Ingested) -> tuple[VideoSource, Workspace]:
    assert done.result.video is not None
    return done.result.video, Workspace(done.store, "job")


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS.keys())
def test_segments_have_the_features_of_the_whole(
    clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_clip(tmp_path, clip)
    cut = sought(ingested(path, tmp_path / "cut", segment_seconds=1.0))
    whole = sought(ingested(path, tmp_path / "whole", segment_seconds=60.0))
    found, expected = features_of(*cut), features_of(*whole)
    assert np.array_equal(found.times_ms, expected.times_ms)
    assert np.array_equal(found.luma, expected.luma)
    assert np.array_equal(found.chroma, expected.chroma)
    assert np.array_equal(found.times_ms, all_frames(*whole, monkeypatch).times_ms)


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


def test_half_of_the_frames_are_not_decoded(shots: tuple[VideoSource, Workspace]) -> None:
    video, workspace = shots
    report, (segment,) = DecodeReport(), video.segments
    with workspace.store.local_copy(segment.key) as path:
        frames = decode_segment(
            path, segment, stream_index=0, origin_ms=0, sparse=True, report=report
        )
        decoded = len(list(frames))
    assert decoded < 0.6 * 140
    assert decoded + len(report.left_out_ms) == 140


def test_frames_around_a_cut_are_what_they_are_and_the_others_nearly(
    shots: tuple[VideoSource, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, expected = features_of(*shots), all_frames(*shots, monkeypatch)
    assert np.array_equal(found.times_ms, expected.times_ms)
    near = slice(70, 72)
    assert np.array_equal(found.luma[near], expected.luma[near])
    apart = np.abs(found.luma.astype(int) - expected.luma).mean(axis=(1, 2))
    assert apart.max() < 3
    assert (apart > 0).sum() > 40
    (cut,) = detect_cuts([found], shots[0].duration_ms)
    assert cut.time_ms == 71 * 40


def test_what_flashes_up_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key frames and cuts everywhere: whatever differs from its neighbours is looked at."""
    pictures = [picture for seed in range(30) for picture in still_shot(seed, 5)]
    at = encoded(tmp_path, pictures)
    found, expected = features_of(*at), all_frames(*at, monkeypatch)
    steps = np.abs(np.diff(expected.luma.astype(int), axis=0)).mean(axis=(1, 2))
    changes = np.flatnonzero(steps > 10)
    assert len(changes) == 29
    for index in changes:
        assert np.array_equal(found.luma[index : index + 2], expected.luma[index : index + 2])


def test_a_damaged_stream_has_the_frames_that_can_be_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video, workspace = encoded(tmp_path, moving_shot(1, 140, across=0.4))
    path = tmp_path / "source"
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    for packet in packets[60:90:7]:
        assert packet.pos is not None
        data[packet.pos : packet.pos + packet.size] = bytes(packet.size)
    path.write_bytes(data)
    found, expected = features_of(video, workspace), all_frames(video, workspace, monkeypatch)
    assert 100 < len(expected) < 140
    assert np.array_equal(found.times_ms, expected.times_ms)
    ranges = video_source(workspace, path, segment_ms=2_000)
    assert np.array_equal(features_of(ranges, workspace).luma, found.luma)


def test_only_between_two_frames_that_hardly_differ_is_mixed() -> None:
    random = np.random.default_rng(3)
    scenes = random.integers(0, 255, (2, 36, 64)).astype(np.uint8)
    decoded = FrameFeatures(
        np.array([0, 80, 160, 900, 980]),
        np.stack([scenes[0], scenes[0] + 0, scenes[1], scenes[1], scenes[1]]),
        np.full((5, 2, 9, 16), 128, np.uint8),
    )
    keys = np.array([0, 980])
    left_out = np.array([-40, 40, 120, 500, 940, 1_020])
    to_mix, to_decode = told_apart(decoded, left_out, keys, ())
    assert to_mix.tolist() == [40]
    assert to_decode.tolist() == [-40, 120, 500, 940, 1_020]
    assert told_apart(decoded, left_out, keys, {0})[1].tolist() == left_out.tolist()


def test_the_faintest_cut_is_not_mixed_away() -> None:
    """In still footage in fog a step below 0.2 is a hard cut; what lies in it is decoded."""
    random = np.random.default_rng(5)
    first, second = (100 + random.normal(0, 2.2, (2, 36, 64))).round().astype(np.uint8)
    luma = np.stack([first] * 40 + [second] * 40)
    still = FrameFeatures(np.arange(80) * 40, luma, np.full((80, 2, 9, 16), 128, np.uint8))
    assert change(still, np.array([39]), np.array([40]), (3, 5))[0] < 0.2
    assert [cut.time_ms for cut in detect_cuts([still], 3_200)] == [1_600]
    seen = np.delete(np.arange(80), [39, 41])
    decoded = FrameFeatures(still.times_ms[seen], luma[seen], still.chroma[seen])
    to_mix, to_decode = told_apart(decoded, np.array([1_560, 1_640]), np.array([0]), ())
    assert (to_mix.tolist(), to_decode.tolist()) == ([1_640], [1_560])


@pytest.mark.parametrize("moves", [False, True])
def test_a_small_step_is_mixed_only_where_all_around_moves(moves: bool) -> None:
    """A step below 0.2: the same between still frames, and between frames that move as much."""
    random = np.random.default_rng(5)
    wide = (100 + random.normal(0, 2.2, (36, 64 + 80 * 8))).round().astype(np.uint8)
    starts = np.arange(80) * 8 if moves else np.repeat([0, 8], 40)
    luma = np.stack([wide[:, start : start + 64] for start in starts])
    shown = FrameFeatures(np.arange(80) * 40, luma, np.full((80, 2, 9, 16), 128, np.uint8))
    step = change(shown, np.array([38]), np.array([40]), (3, 5))[0]
    assert 0.12 <= step < 0.2
    assert len(detect_cuts([shown], 3_200)) == (not moves)
    seen = np.delete(np.arange(80), [39])
    left_out = FrameFeatures(shown.times_ms[seen], luma[seen], shown.chroma[seen])
    _, to_decode = told_apart(left_out, np.array([1_560]), np.array([0]), ())
    assert to_decode.tolist() == ([] if moves else [1_560])


def test_what_is_mixed_in_moving_footage_is_no_hard_cut() -> None:
    """The best evidence that a step so small can have where frames around move so much."""
    around = MOVING / 3
    evidence = HardEvidence(
        step=RESTLESS,
        around=around,
        lasting=RESTLESS,
        beside=around,
        within=2 * around,
        alike=0,
        residue=1,
        gone=1,
    )
    assert confidence(evidence) < CutConfig().min_confidence
    assert confidence(replace(evidence, around=0, beside=0, within=0)) > CutConfig().min_confidence


def test_a_mixture_is_as_far_on_as_its_time() -> None:
    luma = np.stack([np.full((36, 64), level, np.uint8) for level in (100, 140)])
    chroma = np.stack([np.full((2, 9, 16), level, np.uint8) for level in (128, 120)])
    between = mixed(FrameFeatures(np.array([0, 100]), luma, chroma), np.array([25, 75]))
    assert between.luma[:, 0, 0].tolist() == [110, 130]
    assert between.chroma[:, 0, 0, 0].tolist() == [126, 122]


def test_nothing_decoded_leaves_nothing_to_mix() -> None:
    to_mix, to_decode = told_apart(joined([]), np.array([40]), np.array([0]), ())
    assert (to_mix.tolist(), to_decode.tolist()) == ([], [40])
