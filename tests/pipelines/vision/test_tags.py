"""Tags of scenes: a bank of captions, and a model that knows colours alone."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest

from models.contracts import Picture
from models.provider import LocalModels
from models.tasks import DESCRIBE_SCENES, EMBED_PHRASES, EMBED_PICTURES, Contract, Task
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.types import Tag, VisionResult
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from pipelines.vision.tags import DEFAULT_BANK, TagBank, TagBankError, load_tag_bank, open_tagger
from serve_app.client.rendering import labels_of
from serve_app.results.scenes import overview_json
from storage.search_index import scene_rows
from storage.types import SearchKind
from tests.models.tiny_models import fill_models_folder
from tests.pipelines.media_builders import folder_workspace, still_shot, video_source, write_video
from tests.pipelines.vision.test_vision_objects import Plain
from tests.stills import BLUE, GREEN, ORANGE, RED, ColourEmbedder

FILLER = [(f"grey {n}", f"a grey wall {n}") for n in range(6)]
BANK = TagBank((("fire", "a red thing"), ("sea", "a blue thing"), *FILLER), 0.1, 5.0, 3)


class WithColours(LocalModels):
    """Models that know colours alone."""

    def find(self, task: Task[Contract]) -> Contract | None:
        colours = ColourEmbedder()
        replaced = {EMBED_PHRASES: colours, EMBED_PICTURES: colours, DESCRIBE_SCENES: Plain()}
        return cast("Contract | None", replaced.get(task)) or super().find(task)


def shaded(colour: tuple[int, int, int], height: int = 90, width: int = 160) -> Picture:
    """Of a colour, but not of one alone: brighter to the right."""
    shades = np.linspace(0.8, 1, width)[None, :, None] * np.array(colour)[None, None]
    return np.asarray(np.broadcast_to(shades, (height, width, 3)), np.uint8)


def tags_of(*stills: Picture, bank: TagBank = BANK) -> list[list[str]]:
    colours = ColourEmbedder()
    found = open_tagger(colours, bank).tags(colours, stills)
    return [[tag.label for tag in tags] for tags in found]


def test_a_still_has_the_tags_whose_captions_are_probable_and_unusual() -> None:
    assert tags_of(shaded(RED), shaded(BLUE), shaded(GREEN)) == [["fire"], ["sea"], []]


@pytest.mark.parametrize(
    ("rules", "tags"),
    [
        pytest.param((0.1, 5.0, 3), ["fire"], id="as they are"),
        pytest.param((0.999, 5.0, 3), [], id="not so probable"),
        pytest.param((0.1, 1e6, 3), [], id="not so unusual"),
    ],
)
def test_the_rules_of_the_bank_decide(rules: tuple[float, float, int], tags: list[str]) -> None:
    assert tags_of(shaded(ORANGE), bank=TagBank(BANK.captions, *rules)) == [tags]


def test_no_more_tags_than_the_bank_allows_the_most_probable_first() -> None:
    reds = tuple((f"red {n}", "a red thing") for n in range(4))
    bank = TagBank((("sea", "a blue thing"), *reds, *FILLER), 0.1, 5.0, 2)
    assert tags_of(shaded(RED), bank=bank) == [["red 0", "red 1"]]


@pytest.mark.parametrize("size", [(90, 160), (2, 2), (1, 1), (4320, 7680)], ids=str)
def test_a_still_of_one_colour_has_no_tag(size: tuple[int, int]) -> None:
    assert tags_of(np.full((*size, 3), RED, np.uint8), shaded(RED)) == [[], ["fire"]]


def film(folder: Path, colours: list[tuple[int, int, int]]) -> Path:
    """A scene of each, of shapes in shades of it."""
    pictures = [
        np.asarray(0.2 * shape + 0.8 * np.array(colour), np.uint8)
        for number, colour in enumerate(colours)
        for shape in still_shot(number, 50)
    ]
    return write_video(folder / "film.mp4", pictures)


def analysed(path: Path, workspace: Workspace, models: LocalModels) -> VisionResult:
    return analyse_vision(
        video_source(workspace, path),
        workspace=workspace,
        models=models,
        control=FreeRun(),
        config=VisionConfig(tags=BANK),
        mapper=map_here,
    )


def test_scenes_and_the_whole_video_have_tags_which_are_shown_and_searched(tmp_path: Path) -> None:
    workspace = folder_workspace(tmp_path / "work")
    path = film(tmp_path, [RED, BLUE, GREEN])
    without = analysed(path, workspace, LocalModels())
    assert [scene.tags for scene in without.scenes] == [(), (), ()]
    result = analysed(path, workspace, WithColours())
    assert [[tag.label for tag in scene.tags] for scene in result.scenes] == [["fire"], ["sea"], []]
    assert {tag.label for tag in result.overview.tags} == {"fire", "sea"}
    assert analysed(path, workspace, WithColours()).shards_computed == 0
    scene = result.scenes[0]
    shown = overview_json(scene, str)
    assert shown["tags"] == [{"label": "fire", "score": scene.tags[0].score}]
    assert labels_of(shown) == [*scene.objects, "fire"]
    stored = {"start_ms": 0, "end_ms": 1, "index": 0, "objects": [], "tags": [{"label": "fire"}]}
    [row] = scene_rows([stored], None)
    assert (row.kind, row.text) == (SearchKind.OBJECT, "fire")


def written(folder: Path, name: str) -> Path:
    """Two seconds of red as the camera or program that makes such pictures writes it."""
    pictures = [shaded(RED, 64, 64)] * 50
    path = folder / name
    if name == "alpha.mov":
        return write_video(path, pictures, codec="qtrle", pixel_format="argb")
    if name == "sixteen.mkv":
        return write_video(path, pictures, codec="ffv1", pixel_format="rgb48le")
    if name == "tiny.mkv":
        tiny = [shaded(RED, 2, 2)] * 50
        return write_video(path, tiny, codec="ffv1", pixel_format="bgr0")
    wide = [shaded(RED, 4320, 7680)] * 2
    return write_video(path, wide, rate=1, codec="mjpeg", pixel_format="yuvj420p")


@pytest.mark.parametrize("name", ["alpha.mov", "sixteen.mkv", "tiny.mkv", "wide.mkv"])
def test_pictures_of_any_depth_and_size_are_tagged_and_one_colour_is_no_thing(
    name: str, tmp_path: Path
) -> None:
    workspace = folder_workspace(tmp_path / "work")
    result = analysed(written(tmp_path, name), workspace, WithColours())
    assert [tag.label for tag in result.overview.tags] == ["fire"]
    assert (result.overview.object_tracks, result.overview.on_screen_text) == ((), ())


def test_the_checkpoints_own_class_tags_scenes(tmp_path: Path) -> None:
    """With random weights: how many, not which."""
    models = LocalModels("packaged", fill_models_folder(tmp_path / "models", "packaged"))
    bank = load_tag_bank()
    tagger = open_tagger(models.get(EMBED_PHRASES), bank)
    assert tagger.vectors.shape == (len(bank.captions), 768)
    [tags] = tagger.tags(models.get(EMBED_PICTURES), [shaded(RED)])
    assert len(tags) <= bank.most
    assert all(isinstance(tag, Tag) and 0 <= tag.score <= 1 for tag in tags)


def test_the_shipped_bank_has_sixty_to_a_hundred_tags() -> None:
    assert 60 <= len(load_tag_bank().captions) <= 100


RULES = "least_probability = 0.1\nleast_odds = 20.0\nmost = 5\n"
TAGS = "[places]\n" + "".join(f'place{n} = "a photo of {n}"\n' for n in range(8))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "No such file", id="no file"),
        pytest.param(RULES + "[places]\nbeach\n", "line 5: Expected '=' after a key", id="no TOML"),
        pytest.param(RULES + '[places]\nbeach = "a', "line 5: ", id="an open quotation mark"),
        pytest.param(TAGS, "line 1: least_probability: is a number from 0 to 1", id="no rules"),
        pytest.param(
            RULES.replace("0.1", "1.5") + TAGS, "line 1: least_probability: is a", id="too high"
        ),
        pytest.param(RULES.replace("5", "5.5") + TAGS, "line 3: most: is a whole", id="half a tag"),
        pytest.param(RULES + TAGS + "sea = 3\n", "line 13: sea: a caption is text", id="number"),
        pytest.param(RULES + TAGS + 'sea = ""\n', "line 13: sea: a caption is text", id="empty"),
        pytest.param(RULES + TAGS + '" " = "a"\n', "line 13:  : a tag has 1 to 40", id="no tag"),
        pytest.param(
            RULES + TAGS + '[light]\n"place3" = "a"\n', "line 14: place3: stands in two", id="twice"
        ),
        pytest.param("limit = 3\n" + RULES + TAGS, "line 1: limit: is neither", id="unknown rule"),
        pytest.param(RULES + '[sea]\na = "b"\n', "line 4: sea: between 8 and 500 tags", id="few"),
        pytest.param(RULES, "line 3: most: between 8 and 500 tags are", id="none"),
    ],
)
def test_a_bank_with_an_error_is_refused_in_a_sentence_with_the_line(
    content: str | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "tags.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TagBankError) as caught:
        load_tag_bank(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"Tag bank {path}")


def test_a_copy_of_the_shipped_bank_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(DEFAULT_BANK.read_bytes())
    assert load_tag_bank(path) == load_tag_bank()
