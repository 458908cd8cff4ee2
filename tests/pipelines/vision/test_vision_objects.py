"""Objects with times in the vision stage: sampled frames in, tracks of scenes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import av
import numpy as np
import pytest

from models.contracts import (
    Box,
    DetectedObject,
    Picture,
    SceneDescription,
    SceneStills,
    ShotAngle,
    ShotType,
)
from models.provider import LocalModels
from models.tasks import DESCRIBE_SCENES, DETECT_OBJECTS, Contract, Task
from pipelines.codec import from_json, to_json
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.types import ObjectTrack, Scene, VideoStream, VisionResult
from pipelines.vision import stills as vision_stills
from pipelines.vision.detections import ObjectsConfig
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from pipelines.vision.scenes import DescribeConfig
from serve_app.results.scenes import scene_json
from tests.pipelines.media_builders import folder_workspace, still_shot, video_source, write_video

HALF = Box(0.0, 0.0, 0.5, 0.5)


class Plain:
    """A SceneDescriber that sees a wall in everything."""

    def describe(self, scenes: Sequence[SceneStills]) -> list[SceneDescription]:
        seen = SceneDescription("A wall.", ("wall",), ShotType.WIDE, ShotAngle.EYE_LEVEL)
        return [seen for _ in scenes]


class Corners:
    """An ObjectDetector: a ``square`` where the lower left corner is white."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def find(self, stills: Sequence[Picture]) -> list[tuple[DetectedObject, ...]]:
        self.batches.append(len(stills))
        square = (DetectedObject("square", 0.9, HALF), DetectedObject("square", 0.7, HALF))
        return [square if still[-24:-8, 8:24].mean() > 220 else () for still in stills]


class WithDetector(LocalModels):
    """Models of this test; ``detector`` is shared by all who ask."""

    detector = Corners()

    def find(self, task: Task[Contract]) -> Contract | None:
        replaced = {DESCRIBE_SCENES.name: Plain(), DETECT_OBJECTS.name: self.detector}
        return cast("Contract | None", replaced.get(task.name)) or super().find(task)


class WithoutDetector(WithDetector):
    def find(self, task: Task[Contract]) -> Contract | None:
        return None if task is DETECT_OBJECTS else super().find(task)


@pytest.fixture(autouse=True)
def detector(monkeypatch: pytest.MonkeyPatch) -> Corners:
    fresh = Corners()
    monkeypatch.setattr(WithDetector, "detector", fresh)
    return fresh


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 seconds, a cut at 6 s; a white square from 2.5 to 4.5 s and from 6 s to the end."""
    pictures = [*still_shot(1, 150), *still_shot(2, 150)]
    for index, picture in enumerate(pictures):
        if 2.5 <= index / 25 < 4.5 or index >= 150:
            pictures[index] = marked(picture)
    return write_video(tmp_path_factory.mktemp("film") / "film.mp4", pictures, keyframe_every=25)


def test_objects_are_the_same_between_bars(film: Path, tmp_path: Path) -> None:
    with av.open(str(film)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    boxed = [np.pad(frame, ((40, 40), (60, 60), (0, 0))) for frame in frames]
    plain = analysed(film, folder_workspace(tmp_path / "plain"))
    between = analysed(
        write_video(tmp_path / "boxed.mp4", boxed, keyframe_every=25),
        folder_workspace(tmp_path / "between"),
    )
    assert any(scene.object_tracks for scene in plain.scenes)
    assert tracks(between) == tracks(plain)


def marked(picture: Picture) -> Picture:
    copy = picture.copy()
    copy[-32:, :32] = 255
    return copy


def analysed(
    path: Path,
    workspace: Workspace,
    *,
    segment_ms: int | None = None,
    models: LocalModels | None = None,
    **changes: object,
) -> VisionResult:
    config = VisionConfig(objects=replace(ObjectsConfig(every_ms=1_000), **changes))  # type: ignore[arg-type]
    return analyse_vision(
        video_source(workspace, path, segment_ms=segment_ms),
        workspace=workspace,
        models=models or WithDetector(),
        control=FreeRun(),
        config=config,
        mapper=map_here,
    )


def tracks(result: VisionResult) -> list[tuple[ObjectTrack, ...]]:
    """Return the tracks of each scene, without their boxes."""
    return [
        tuple(replace(track, boxes=None) for track in scene.object_tracks)
        for scene in result.scenes
    ]


def test_things_are_found_with_times_and_their_labels_are_objects(
    film: Path, tmp_path: Path
) -> None:
    result = analysed(film, folder_workspace(tmp_path))
    assert tracks(result) == [
        # Samples are a second apart: each stands for half a second on both sides.
        (ObjectTrack("square", 2_500, 4_500, 0.9),),
        (ObjectTrack("square", 6_000, 12_000, 0.9),),
    ]
    assert [scene.objects for scene in result.scenes] == [("square", "wall")] * 2


def test_a_frame_that_shows_more_than_the_stills_of_its_scene_is_its_still(tmp_path: Path) -> None:
    pictures = [*still_shot(1, 150), *still_shot(2, 150)]
    pictures[75:85] = map(marked, pictures[75:85])  # Stills are at 2 and 4 s.
    path = write_video(tmp_path / "film.mp4", pictures, keyframe_every=250)
    [first, _] = analysed(path, folder_workspace(tmp_path)).scenes
    assert [still.time_ms for still in first.stills] == [3_000]


def test_a_profile_without_a_detector_has_no_tracks(film: Path, tmp_path: Path) -> None:
    result = analysed(film, folder_workspace(tmp_path), models=WithoutDetector())
    assert tracks(result) == [(), ()]
    assert [scene.objects for scene in result.scenes] == [("wall",)] * 2


@pytest.mark.parametrize("segment_ms", [5_000, 7_300])
def test_tracks_are_the_same_however_the_video_is_cut_into_segments(
    film: Path, tmp_path: Path, segment_ms: int
) -> None:
    whole = analysed(film, folder_workspace(tmp_path, "whole"))
    parts = analysed(film, folder_workspace(tmp_path, "parts"), segment_ms=segment_ms)
    assert tracks(parts) == tracks(whole)


def test_a_retry_detects_nothing_again(film: Path, tmp_path: Path, detector: Corners) -> None:
    workspace = folder_workspace(tmp_path)
    first = analysed(film, workspace, segment_ms=5_000)
    looked_at = sum(detector.batches)
    assert looked_at == 12
    second = analysed(film, workspace, segment_ms=5_000)
    assert (tracks(second), sum(detector.batches)) == (tracks(first), looked_at)
    assert second.shards_computed == 0
    assert second.shards_reused == first.shards_computed


def test_other_models_detect_anew(film: Path, tmp_path: Path, detector: Corners) -> None:
    workspace = folder_workspace(tmp_path)
    video = video_source(workspace, film)
    for digest in ("one", "other"):
        config = VisionConfig(
            objects=ObjectsConfig(every_ms=1_000), describe=DescribeConfig(models=digest)
        )
        analyse_vision(
            video,
            workspace=workspace,
            models=WithDetector(),
            control=FreeRun(),
            config=config,
            mapper=map_here,
        )
    assert sum(detector.batches) == 24


def test_frames_in_memory_and_frames_of_a_video_are_limited(
    film: Path, tmp_path: Path, detector: Corners
) -> None:
    analysed(film, folder_workspace(tmp_path), frames_at_once=4, max_frames=6)
    assert detector.batches == [4, 2]


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of interlaced pictures."""
    for module in ("features", "stills", "cuts.pipeline"):
        monkeypatch.setattr(f"pipelines.vision.{module}.keeps_pictures", lambda _: False)


def test_no_frame_is_decoded_again_where_pictures_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = [*still_shot(1, 150), *still_shot(2, 150)]
    film = write_video(tmp_path / "film.mp4", pictures, keyframe_every=150)
    monkeypatch.setattr(vision_stills, "fetch_stills", None)
    assert len(analysed(film, folder_workspace(tmp_path)).scenes) == 2


@pytest.mark.usefixtures("nothing_kept")
def test_frames_that_are_no_key_frames_are_read_by_decord_in_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = [*still_shot(1, 150), *still_shot(2, 150)]
    film = write_video(tmp_path / "film.mp4", pictures, keyframe_every=150)
    asked: list[int] = []

    def counted(path: Path, stream: VideoStream, origin_ms: int, wanted: object, *rest: object):  # type: ignore[no-untyped-def]
        found = by_decord(path, stream, origin_ms, wanted, *rest)  # type: ignore[arg-type]
        asked.append(len(found))
        return found

    by_decord = vision_stills.by_decord
    monkeypatch.setattr(vision_stills, "by_decord", counted)
    analysed(film, folder_workspace(tmp_path))
    assert asked == [10], "of 12 frames two are key frames; so few stills are sought"


@pytest.mark.usefixtures("nothing_kept")
def test_what_decord_cannot_read_comes_from_pyav(
    film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_decord = analysed(film, folder_workspace(tmp_path, "decord"))

    def refused(*_: object) -> None:
        raise vision_stills.DecordUnsuitableError("no codec")

    monkeypatch.setattr(vision_stills, "by_decord", refused)
    assert tracks(analysed(film, folder_workspace(tmp_path, "pyav"))) == tracks(by_decord)


def test_tracks_go_out_with_the_scene_and_older_results_stay_readable(
    film: Path, tmp_path: Path
) -> None:
    scene = analysed(film, folder_workspace(tmp_path)).scenes[0]
    assert scene_json(scene, str)["objectTracks"] == [
        {"label": "square", "start": 2.5, "end": 4.5, "confidence": 0.9}
    ]
    stored = to_json(scene)
    assert from_json(Scene, stored) == scene
    del stored["object_tracks"]
    assert from_json(Scene, stored) == replace(scene, object_tracks=())
