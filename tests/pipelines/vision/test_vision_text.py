"""Writing on the screen and faces, from the demo film to the document of the API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.contracts import Box, CameraMotion, ShotAngle, ShotType
from models.provider import LocalModels
from pipelines.backfill import output
from pipelines.codec import from_json
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.types import Scene, ScreenText, VisionResult
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from pipelines.vision.scenes import SCENES
from serve_app.results.scenes import scene_json
from tests.pipelines.media_builders import folder_workspace, video_source

DEMO = Path(__file__).resolve().parents[2] / "media" / "demo.mp4"

Analysed = tuple[Workspace, VisionResult]


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Analysed:
    workspace = folder_workspace(tmp_path_factory.mktemp("store"))
    result = analyse_vision(
        video_source(workspace, DEMO),
        workspace=workspace,
        models=LocalModels(),
        control=FreeRun(),
        config=VisionConfig(),
        mapper=map_here,
    )
    return workspace, result


def test_titles_are_read_and_quoted(analysed: Analysed) -> None:
    first, last = analysed[1].scenes[0], analysed[1].scenes[-1]
    assert [line.text for line in first.on_screen_text] == [
        "A DAY BY THE SEA",
        "a short drawn film",
    ]
    assert first.description.startswith("Title “A DAY BY THE SEA” and “a short drawn film”")
    assert [line.text for line in last.on_screen_text] == ["THE END", "thank you for watching"]
    assert "text" in first.objects


def test_scenes_without_writing_have_none(analysed: Analysed) -> None:
    assert [bool(scene.on_screen_text) for scene in analysed[1].scenes[1:-1]] == [False] * 5


def test_faces_are_counted_and_give_the_shot_type(analysed: Analysed) -> None:
    presenter, talk = analysed[1].scenes[1], analysed[1].scenes[5]
    assert presenter.shot_type is ShotType.MEDIUM_CLOSE_UP
    assert "of a person" in presenter.description
    assert talk.shot_type is ShotType.MEDIUM
    assert "of two or more people" in talk.description


def test_the_document_has_the_lines_with_their_boxes(analysed: Analysed) -> None:
    document = json.loads(json.dumps(scene_json(analysed[1].scenes[0], str)))
    title = document["onScreenText"][0]
    assert title["text"] == "A DAY BY THE SEA"
    assert 0.9 <= title["confidence"] <= 1
    assert title["box"].keys() == {"left", "top", "width", "height"}
    assert all(0 <= edge <= 1 for edge in title["box"].values())
    assert scene_json(analysed[1].scenes[2], str)["onScreenText"] == []


def test_findings_of_an_earlier_version_can_be_read(analysed: Analysed) -> None:
    workspace = analysed[0]
    keys = sorted(workspace.store.list_keys("job/vision/scenes"))
    stored = json.loads(workspace.store.read_bytes(keys[0]))
    del stored["on_screen_text"]
    key = workspace.key("vision/earlier.json")
    workspace.store.write_bytes(key, json.dumps(stored).encode())
    assert SCENES.load(workspace.store, key).on_screen_text == ()


def test_a_table_of_an_earlier_version_can_be_read() -> None:
    line = ScreenText("NEWS", 0.97, Box(0.1, 0.2, 0.3, 0.05), 0, 800)
    scene = _plain_scene(on_screen_text=(line,))
    row = output._scene_row(scene)
    assert row.keys() == set(output.SCHEMAS["scenes"].names) - {"item_id"}
    assert from_json(Scene, output._scene(dict(row))) == scene
    del row["on_screen_text"]
    assert from_json(Scene, output._scene(dict(row))) == _plain_scene(on_screen_text=())


def _plain_scene(on_screen_text: tuple[ScreenText, ...]) -> Scene:
    return Scene(
        index=0,
        start_ms=0,
        end_ms=1000,
        description="A picture in black and white.",
        objects=(),
        color_palette=("#000000",),
        shot_type=ShotType.UNKNOWN,
        shot_angle=ShotAngle.UNKNOWN,
        camera_motion=CameraMotion.STATIC,
        confidence=1.0,
        thumbnail_key="stills/0.jpg",
        on_screen_text=on_screen_text,
    )
