"""The vision pipeline from segments to scenes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest

from models.contracts import CameraMotion
from models.provider import LocalModels
from pipelines.execution.chain import (
    Control,
    FreeRun,
    In,
    Out,
    Step,
    Workspace,
    map_here,
    parts_of,
    vision_work,
)
from pipelines.media_types import Orientation
from pipelines.types import (
    Scene,
    Segment,
    StageCode,
    StageError,
    StageStoppedError,
    VideoPart,
    VideoSource,
    VideoStream,
    VisionResult,
)
from pipelines.vision.cuts.selection import SearchCuts
from pipelines.vision.features import (
    FeaturesConfig,
    ReadFrames,
    features_key,
    segment_features,
)
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from pipelines.vision.scenes import STILLS_APART, ScenePlan
from pipelines.vision.sections import sections_of
from tests.pipelines.media_builders import (
    dissolve,
    folder_workspace,
    mixed,
    moving_shot,
    solid_shot,
    still_shot,
    video_source,
    write_video,
)

MEDIA = Path(__file__).resolve().parents[3] / "../shared/media"


@pytest.fixture(scope="module")
def programme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """26 seconds: a hard cut at 6 s, a dissolve around 11.4 s, a fade through black
    around 17 s, a hard cut at 22 s into a pan."""
    black = next(iter(solid_shot(0, 1)))
    second, third = list(still_shot(2, 145)), list(moving_shot(3, 150, growth=0.004))
    fade_out = [
        mixed(picture, black, (index + 1) / 20) for index, picture in enumerate(third[130:])
    ]
    fourth = list(still_shot(4, 125))
    fade_in = [mixed(black, picture, (index + 1) / 20) for index, picture in enumerate(fourth[:20])]
    pictures = [
        *still_shot(1, 150),
        *second[:125],
        *dissolve(second[125:], third[:20]),
        *third[20:130],
        *fade_out,
        *fade_in,
        *fourth[20:],
        *moving_shot(5, 100, across=4),
    ]
    folder = tmp_path_factory.mktemp("programme")
    return write_video(folder / "programme.mp4", pictures, keyframe_every=50)


def analysed(
    workspace: Workspace, video: VideoSource, control: FreeRun | None = None
) -> VisionResult:
    return analyse_vision(
        video,
        workspace=workspace,
        models=LocalModels(),
        control=control or FreeRun(),
        config=VisionConfig(),
    )


@pytest.fixture(scope="module")
def unsharded(
    ray_session: None, programme: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Workspace, VideoSource, VisionResult, list[float]]:
    workspace = folder_workspace(tmp_path_factory.mktemp("store"))
    video = video_source(workspace, programme)
    control = FreeRun()
    return workspace, video, analysed(workspace, video, control), control.fractions


Unsharded = tuple[Workspace, VideoSource, VisionResult, list[float]]


def test_scenes_begin_where_the_shots_do_and_cover_the_video(unsharded: Unsharded) -> None:
    _, video, result, _ = unsharded
    starts = [scene.start_ms for scene in result.scenes]
    assert starts == pytest.approx([0, 6000, 11_400, 17_000, 22_000], abs=160)
    assert starts[1] == 6000
    assert result.scenes[-1].end_ms == video.duration_ms
    assert all(one.end_ms == two.start_ms for one, two in pairwise(result.scenes))
    assert [scene.index for scene in result.scenes] == list(range(5))


def test_each_scene_has_all_that_the_api_promises(unsharded: Unsharded) -> None:
    workspace, _, result, _ = unsharded
    for scene in result.scenes:
        jpeg = workspace.store.read_bytes(scene.thumbnail_key)
        picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
        assert picture is not None
        assert picture.shape == (180, 320, 3)
        assert [still.key for still in scene.stills] == [scene.thumbnail_key]
        assert scene.start_ms <= scene.stills[0].time_ms < scene.end_ms
        assert 1 <= len(scene.color_palette) <= 5
        assert scene.description.endswith(".")
        assert list(scene.objects) == sorted(set(scene.objects))
        assert 0 <= scene.confidence <= 1


def test_camera_motion_is_that_of_the_shot(unsharded: Unsharded) -> None:
    motions = [scene.camera_motion for scene in unsharded[2].scenes]
    static, zoom, pan = CameraMotion.STATIC, CameraMotion.ZOOM_IN, CameraMotion.PAN_RIGHT
    assert motions == [static, static, zoom, static, pan]


def test_progress_rises_from_nothing_to_all(unsharded: Unsharded) -> None:
    fractions = unsharded[3]
    assert fractions == sorted(fractions)
    assert 0 < fractions[0] <= fractions[-1] == 1.0


def without_keys(scenes: tuple[Scene, ...]) -> list[Scene]:
    return [
        scene.at_keys({key: key.rsplit("/", 1)[1] for key in scene.still_names("")})
        for scene in scenes
    ]


@pytest.mark.parametrize("segment_ms", [5_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_the_scenes_are_the_same_however_the_video_is_cut_into_segments(
    unsharded: Unsharded, programme: Path, tmp_path: Path, segment_ms: int
) -> None:
    workspace = folder_workspace(tmp_path, prefix="other")
    video = video_source(workspace, programme, segment_ms=segment_ms)
    assert len(video.segments) == -(-video.duration_ms // segment_ms)
    scenes = analysed(workspace, video).scenes
    assert without_keys(scenes) == without_keys(unsharded[2].scenes)


def test_features_of_segments_joined_are_byte_for_byte_those_of_the_whole(
    unsharded: Unsharded, programme: Path, tmp_path: Path
) -> None:
    workspace, video, _, _ = unsharded
    whole = segment_features(video, video.segments[0], workspace, FeaturesConfig())
    parts_of = video_source(workspace, programme, segment_ms=5_000)
    parts = [
        segment_features(parts_of, segment, workspace, FeaturesConfig(decode_threads=2))
        for segment in parts_of.segments
    ]
    for name in ("times_ms", "luma", "chroma"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        assert joined.tobytes() == getattr(whole, name).tobytes()


def test_a_second_run_computes_nothing_and_gives_the_same(unsharded: Unsharded) -> None:
    workspace, video, first, _ = unsharded
    second = analysed(workspace, video)
    assert (second.scenes, second.overview) == (first.scenes, first.overview)
    # Features, objects, five scenes and the whole.
    assert (second.shards_computed, second.shards_reused) == (0, 1 + 1 + 5 + 1)
    assert (first.shards_computed, first.shards_reused) == (1 + 1 + 5 + 1, 0)


def test_only_what_is_missing_is_computed_again(
    ray_session: None, programme: Path, tmp_path: Path
) -> None:
    workspace = folder_workspace(tmp_path)
    video = video_source(workspace, programme, segment_ms=5_000)
    first = analysed(workspace, video)
    workspace.store.delete(features_key(video, video.segments[2], workspace))
    scene_key = next(workspace.store.list_keys("job/vision/scenes"))
    workspace.store.delete(scene_key)
    second = analysed(workspace, video)
    assert second.scenes == first.scenes
    assert second.shards_computed == 2


def test_a_video_of_one_shot_has_no_scenes_but_an_overview(
    ray_session: None, tmp_path: Path
) -> None:
    workspace = folder_workspace(tmp_path)
    path = write_video(tmp_path / "one.mp4", moving_shot(1, 60, across=2))
    found = analysed(workspace, video_source(workspace, path))
    assert found.scenes == ()
    assert (found.overview.start_ms, found.overview.end_ms) == (0, 2_400)
    assert found.overview.description
    assert found.overview.camera_motion is CameraMotion.PAN_RIGHT
    assert workspace.store.read_bytes(found.overview.thumbnail_key)[:2] == b"\xff\xd8"


def test_what_is_longer_than_half_a_minute_has_two_stills_from_apart(
    ray_session: None, tmp_path: Path
) -> None:
    workspace = folder_workspace(tmp_path)
    path = write_video(tmp_path / "long.mp4", moving_shot(1, 320, across=0.5), rate=10)
    overview = analysed(workspace, video_source(workspace, path)).overview
    first, second = overview.stills
    assert overview.thumbnail_key == first.key != second.key
    assert abs(first.time_ms - second.time_ms) >= STILLS_APART * 32_000
    assert all(workspace.store.exists(still.key) for still in overview.stills)


def test_the_overview_of_an_edited_video_is_of_all_its_scenes(unsharded: Unsharded) -> None:
    result = unsharded[2]
    overview, scenes = result.overview, result.scenes
    assert (overview.start_ms, overview.end_ms) == (0, scenes[-1].end_ms)
    [said] = [it for it in scenes if it.start_ms <= overview.stills[0].time_ms < it.end_ms]
    assert overview.description == f"One of 5 shots: {said.description}"
    assert 1 <= len(overview.color_palette) <= 5
    assert {name for scene in scenes for name in scene.objects} <= {*overview.objects}


def test_what_reads_pictures_and_what_finds_cuts_ask_for_the_share_of_a_gpu(tmp_path: Path) -> None:
    workspace = folder_workspace(tmp_path / "store")
    asked: dict[type[object], float] = {}
    path = write_video(tmp_path / "two.mp4", [*still_shot(1, 20), *still_shot(2, 20)])

    def mapper(items: Sequence[In], step: Step[In, Out], control: Control) -> list[Out]:
        asked[type(step)] = step.resources.gpus
        return map_here(items, step, control)

    found = analyse_vision(
        video_source(workspace, path),
        workspace=workspace,
        models=LocalModels(),
        control=FreeRun(),
        config=VisionConfig(features=FeaturesConfig(gpus=0.2)),
        mapper=mapper,
    )
    assert len(found.scenes) == 2
    of_a_gpu = {step for step, gpus in asked.items() if gpus}
    assert of_a_gpu == {ReadFrames, SearchCuts} < {*asked}
    assert {asked[step] for step in of_a_gpu} == {0.2}


def test_uneven_frame_times_do_not_move_a_cut(ray_session: None, tmp_path: Path) -> None:
    times = np.cumsum([0, *np.random.default_rng(1).integers(15, 90, 99)]).tolist()
    path = write_video(
        tmp_path / "uneven.mkv", [*still_shot(1, 50), *still_shot(2, 50)], times_ms=times
    )
    workspace = folder_workspace(tmp_path / "store")
    scenes = analysed(workspace, video_source(workspace, path)).scenes
    assert [scene.start_ms for scene in scenes] == [0, times[50]]


def test_a_video_that_cannot_be_decoded_fails_the_stage(ray_session: None, tmp_path: Path) -> None:
    workspace = folder_workspace(tmp_path)
    path = write_video(tmp_path / "clip.mp4", still_shot(1, 30))
    video = video_source(workspace, path)
    elsewhere = replace(video, segments=(Segment(0, "source", 90_000, 95_000),))
    with pytest.raises(StageError) as failure:
        analysed(workspace, elsewhere)
    assert failure.value.code is StageCode.VISION_FAILED


def test_a_missing_segment_fails_the_stage_by_name(ray_session: None, tmp_path: Path) -> None:
    workspace = folder_workspace(tmp_path)
    path = write_video(tmp_path / "clip.mp4", still_shot(1, 30))
    video = video_source(workspace, path)
    gone = replace(video, segments=(*video.segments, Segment(1, "gone", 1200, 2000)))
    with pytest.raises(StageError, match="Reading the pictures"):
        analysed(workspace, gone)


@dataclass(slots=True)
class StoppingControl:
    """Lets so many checks pass, then stops the work."""

    left: int
    fractions: list[float] = field(default_factory=list)

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise StageStoppedError("test")

    def progress(self, fraction: float) -> None:
        self.fractions.append(fraction)


def test_a_stop_from_the_control_ends_the_stage(
    ray_session: None, programme: Path, tmp_path: Path
) -> None:
    workspace = folder_workspace(tmp_path)
    video = video_source(workspace, programme, segment_ms=5_000)
    with pytest.raises(StageStoppedError):
        analyse_vision(
            video,
            workspace=workspace,
            models=LocalModels(),
            control=StoppingControl(left=2),
            config=VisionConfig(),
        )


def test_a_video_without_any_segment_fails_by_name(programme: Path, tmp_path: Path) -> None:
    workspace = folder_workspace(tmp_path)
    video = replace(video_source(workspace, programme), segments=())
    with pytest.raises(StageError) as caught:
        analysed(workspace, video)
    assert caught.value.code is StageCode.VISION_FAILED


def test_a_task_hears_the_stop_marker_and_stores_nothing(programme: Path, tmp_path: Path) -> None:
    workspace = folder_workspace(tmp_path)
    video = video_source(workspace, programme)
    workspace.request_stop()
    segment = video.segments[0]
    with pytest.raises(StageStoppedError):
        ReadFrames(video, workspace, FeaturesConfig()).process(segment)
    assert not workspace.store.exists(features_key(video, segment, workspace))


def test_stored_findings_are_plain_json(unsharded: Unsharded) -> None:
    workspace = unsharded[0]
    for key in workspace.store.list_keys("job/vision/scenes"):
        found = json.loads(workspace.store.read_bytes(key))
        assert set(found) >= {"description", "objects", "color_palette", "thumbnail_key"}


def plan(index: int, start_ms: int, end_ms: int) -> ScenePlan:
    return ScenePlan(index, start_ms, end_ms, 1.0, ((start_ms + end_ms) // 2,), ())


def test_a_scene_is_looked_at_with_those_of_its_middle_and_a_long_one_by_segment(
    unsharded: Unsharded,
) -> None:
    bounds = [*pairwise(range(0, 150_001, 30_000))]
    segments = tuple(Segment(index, "", *each) for index, each in enumerate(bounds))
    video = replace(unsharded[1], segments=segments, duration_ms=150_000)
    scenes = [plan(0, 0, 28_000), plan(1, 28_000, 35_000), plan(2, 35_000, 130_000)]
    scenes.append(plan(3, 130_000, 150_000))
    times_ms = [*range(500, 150_000, 1_000)]
    sections = sections_of(scenes, video, times_ms, [45_000, 65_000], [500, 65_000])
    assert [[each.index for each in own.plans] for own in sections] == [[0], [1], [], [], [3]]
    assert [own.object_times_ms for own in sections] == [
        tuple(at for at in times_ms if start <= at < end)
        for start, end in pairwise((0, 28_000, 60_000, 90_000, 120_000, 150_000))
    ]
    assert [own.text_times_ms for own in sections] == [(), (45_000,), (65_000,), (), ()]
    assert [own.face_times_ms for own in sections] == [(500,), (), (65_000,), (), ()]


@pytest.mark.shared_media
@pytest.mark.parametrize(
    ("name", "cuts_ms"),
    [
        ("cuts/bikes.mp4", [1200, 3040, 5480, 7480, 9680]),
        ("cuts/flower.mp4", []),
        ("odd/bbb-telecine-480i-a.mpg", [1800, 5680, 12_970]),
    ],
)
def test_cuts_of_real_media(
    ray_session: None, tmp_path: Path, name: str, cuts_ms: list[int]
) -> None:
    path = MEDIA / name
    if not path.is_file():
        pytest.skip(f"{name} is not beside the project")
    workspace = folder_workspace(tmp_path)
    scenes = analysed(workspace, video_source(workspace, path)).scenes
    assert [scene.start_ms for scene in scenes[1:]] == pytest.approx(cuts_ms, abs=40)


STREAM = VideoStream(0, "h264", 640, 360, Orientation(), 1.0, 25.0, 15_000)
SMALL = VideoSource(STREAM, 600_000, 0, ())


def ends(video: VideoSource, *, policy: bool = False) -> list[float]:
    """At which part of the stage each chain ends."""
    *spans, _ = parts_of(FreeRun(), vision_work(video, policy=policy))
    return [span.end for span in spans]


def test_the_chains_of_a_small_and_of_a_large_video_end_where_they_were_seen_to() -> None:
    """Shares of one core's time, measured by ``benchmarks.vision_speed --shares``."""
    assert ends(SMALL)[:2] == pytest.approx((0.14, 0.21), abs=0.12)
    stream = replace(STREAM, width=1920, height=1080)
    assert ends(replace(SMALL, stream=stream))[:2] == pytest.approx((0.47, 0.56), abs=0.12)


def test_parts_count_by_their_own_length_and_size() -> None:
    large = replace(STREAM, width=1920, height=1080)
    parts = (VideoPart(STREAM, 0, 0, 300_000), VideoPart(large, 0, 300_000, 600_000))
    mixed = ends(replace(SMALL, parts=parts))
    assert ends(SMALL)[0] < mixed[0] < ends(replace(SMALL, stream=large))[0]


def test_a_policy_has_a_part_of_what_the_cuts_leave() -> None:
    read, cut, checked, looked = ends(SMALL, policy=True)
    assert read < cut < checked < looked < 1
    assert ends(SMALL)[1] == ends(SMALL)[2]


@pytest.mark.parametrize("duration_ms", [0, 40])
def test_a_single_frame_has_its_shares_too(duration_ms: int) -> None:
    still = replace(STREAM, frame_rate=0.0, frame_count=1)
    found = ends(VideoSource(still, duration_ms, 0, ()), policy=True)
    assert found == sorted(found)
    assert found[0] >= 0
    assert found[-1] <= 1
