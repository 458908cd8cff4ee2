"""The vision-language describer on a tiny random Qwen3-VL: whatever it thinks, the schema holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor

from models.backends.questions import (
    MAX_OBJECTS,
    SceneAnswer,
    UnusableAnswerError,
    middle_stills,
    scene_description,
    scene_question,
)
from models.backends.transformers import pick_hardware
from models.backends.transformers.describer import SchemaRows, VisionLanguageDescriber
from models.contracts import Box, CameraMotion, Excerpt, SceneStills, ShotAngle, ShotType, TextLine
from tests.models.tiny_models import save_tiny_vision_language
from tests.tables import every


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def describer(tmp_path_factory: pytest.TempPathFactory) -> VisionLanguageDescriber:
    folder = save_tiny_vision_language(tmp_path_factory.mktemp("describer"))
    return VisionLanguageDescriber(str(folder), pick_hardware("cpu"), max_batch=2)


def scene(stills: int, seed: int) -> SceneStills:
    generator = np.random.default_rng(seed)
    pictures = [generator.integers(0, 255, (72, 128, 3), dtype=np.uint8) for _ in range(stills)]
    return SceneStills(tuple(pictures), 2.5, CameraMotion.PAN_LEFT)


def test_every_description_keeps_the_schema(describer: VisionLanguageDescriber) -> None:
    found = describer.describe([scene(1, 0), scene(2, 1), scene(3, 2)])
    assert len(found) == 3
    for description in found:
        assert description.description[-1] in ".!?"
        assert 12 <= len(description.description) <= 240
        assert description.objects == tuple(sorted(set(description.objects)))
        assert len(description.objects) <= MAX_OBJECTS
        assert isinstance(description.shot_type, ShotType)
        assert isinstance(description.shot_angle, ShotAngle)


def test_an_answer_cut_off_is_asked_for_again_with_more_room(
    describer: VisionLanguageDescriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms: list[int] = []
    ask = describer._answers

    def watched(scenes: Sequence[SceneStills], room: int) -> list[SceneAnswer | None]:
        rooms.append(room)
        return ask(scenes, 5 if len(rooms) == 1 else room)

    monkeypatch.setattr(describer, "_answers", watched)
    assert describer.describe([scene(1, 3)])[0].description
    assert len(rooms) == 2
    assert rooms[1] > rooms[0]


def test_an_answer_cut_off_twice_is_an_error(
    describer: VisionLanguageDescriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = describer._answers
    monkeypatch.setattr(describer, "_answers", lambda scenes, room: ask(scenes, 5))
    with pytest.raises(UnusableAnswerError):
        describer.describe([scene(1, 3)])


class Held(LogitsProcessor):  # type: ignore[misc]
    """The grammar for the library's own loop."""

    def __init__(self, rows: SchemaRows, prompt: int) -> None:
        self.rows, self.prompt = rows, prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for row, (tokens, own) in enumerate(zip(input_ids, scores, strict=True)):
            if input_ids.shape[1] > self.prompt:
                assert self.rows.taken(row, [int(tokens[-1])]) is not None
            if not self.rows._matchers[row].is_stopped():
                allowed = self.rows.allowed(row)[: len(own)]
                own[: len(allowed)][~torch.from_numpy(allowed)] = float("-inf")
        return scores


def test_what_is_written_is_what_the_librarys_own_loop_writes(
    describer: VisionLanguageDescriber,
) -> None:
    """Outside view: ``generate`` with a growing cache, questions of unlike lengths in one batch."""
    scenes = [scene(1, 0), scene(3, 1), scene(2, 2)]
    _, inputs = describer._questions(scenes)
    prompt, schema = inputs["input_ids"].shape[1], SceneAnswer.model_json_schema()
    ours = describer._writer.write(inputs, 90, describer._grammar.rows(schema, 3))
    with torch.inference_mode():
        expected = describer._model.generate(
            **inputs,
            max_new_tokens=90,
            do_sample=False,
            logits_processor=[Held(describer._grammar.rows(schema, 3), prompt)],
        )[:, prompt:]
    assert ours == expected.tolist()
    assert len({tuple(row) for row in ours}) == 3


def test_a_summary_after_pictures_is_as_before_them(describer: VisionLanguageDescriber) -> None:
    """What the model keeps of the pictures' positions does not move those of a text alone."""
    excerpt = Excerpt(("Good morning.", "It rains."), 1)
    before = describer.summarize([excerpt])
    describer.describe([scene(3, 1)])
    assert describer.summarize([excerpt]) == before


@every(
    ("stills", "most", "shown"),
    [(3, 5, [0, 1, 2]), (3, 1, [1]), (4, 1, [1]), (5, 3, [1, 2, 3]), (1, 1, [0])],
)
def test_of_many_stills_the_middle_ones_are_shown(stills: int, most: int, shown: list[int]) -> None:
    own = scene(stills, 0).stills
    assert [id(each) for each in middle_stills(own, most)] == [id(own[index]) for index in shown]


@every(
    "text",
    [
        "",
        "no json",
        '{"description": "A dog runs."}',
        '{"description": "A dog runs over the lawn.", "objects": ["Dog"], '
        '"shot_type": "wide", "shot_angle": "high"}',
        '{"description": "A dog runs over the lawn.", "objects": ["dog"], '
        '"shot_type": "huge", "shot_angle": "high"}',
    ],
    ids=["nothing", "prose", "fields missing", "a capital noun", "an unknown label"],
)
def test_what_is_no_answer_is_not_passed_on(text: str) -> None:
    assert SceneAnswer.find(text) is None


def test_objects_are_sorted_and_not_repeated() -> None:
    answer = SceneAnswer.find(
        '{"description": "A dog runs over the lawn.", "objects": ["tree", "dog", "tree"], '
        '"shot_type": "wide", "shot_angle": "eye_level"}'
    )
    assert answer is not None
    assert scene_description(answer).objects == ("dog", "tree")


def test_the_question_quotes_what_was_read_on_the_screen() -> None:
    still = np.zeros((8, 8, 3), np.uint8)
    line = TextLine('SAY "HI"\nnow', 0.95, Box(0, 0, 1, 1))
    question = scene_question(SceneStills((still,), 1.0, text=(line,)))
    assert question.endswith(r'as read in one still: ["SAY \"HI\"\nnow"].')
    assert "Writing on the screen" not in scene_question(SceneStills((still,), 1.0))
