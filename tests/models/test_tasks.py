"""The declarations of the tasks, and what is generic over them."""

from __future__ import annotations

import inspect
import pickle
from typing import Any, assert_type

import pytest

from models.profiles import digest_of, replicas_of
from models.provider import LocalModels
from models.registry import FORMER_OPENERS, REGISTRY
from models.tasks import (
    DESCRIBE_SCENES,
    DETECT_OBJECTS,
    DETECT_SPEECH,
    EMBED_TEXT,
    EMBED_VOICE,
    SEGMENT_SPEAKERS,
    SUMMARIZE,
    TASKS,
    TRANSCRIBE,
    ObjectDetector,
    Purpose,
    Shape,
    Summarizer,
    Task,
    Transcriber,
    get_task,
    tasks_for,
)
from tests.tables import every

every_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)


@every_task
def test_a_task_is_one_object_wherever_it_is_sent(task: Task[Any]) -> None:
    assert pickle.loads(pickle.dumps(task)) is task  # noqa: S301
    assert get_task(task.name) is task


@every_task
def test_a_contract_is_called_by_one_method_with_one_parameter(task: Task[Any]) -> None:
    """A served model has no other, and one input or one sequence of them is what it sends."""
    assert len(inspect.signature(task.call.method).parameters) == 2
    assert task.call.dimensions is None or task.call.shape is Shape.VECTORS


def test_names_of_tasks_and_of_their_deployments_are_used_once() -> None:
    for names in ([each.name for each in TASKS], [each.contract_name for each in TASKS]):
        assert len(set(names)) == len(names)


@every(
    ("former", "task"),
    [
        ("detect", "detect_speech"),
        ("embed", "embed_voice"),
        ("read", "read_text"),
        ("find", "detect_objects"),
        ("describe", "describe_scenes"),
        ("classify", "classify_content"),
        ("embed_picture", "embed_pictures"),
    ],
)
def test_former_names_are_accepted(former: str, task: str) -> None:
    assert get_task(former).name == task


def test_models_have_the_types_of_their_contracts() -> None:
    """Held by mypy; at run time the packaged profile has the one and lacks the other."""
    models = LocalModels()
    assert_type(models.get(TRANSCRIBE), Transcriber)
    assert_type(models.get(DETECT_OBJECTS), ObjectDetector)
    assert assert_type(models.find(SUMMARIZE), Summarizer | None) is None
    with pytest.raises(KeyError, match="summarize"):
        models.get(SUMMARIZE)


@every(
    ("profile", "task", "replicas"),
    [
        ("packaged", TRANSCRIBE, TRANSCRIBE),
        ("packaged", DETECT_SPEECH, None),
        ("cpu", TRANSCRIBE, TRANSCRIBE),
        ("cpu", SEGMENT_SPEAKERS, None),
        ("gpu", SEGMENT_SPEAKERS, SEGMENT_SPEAKERS),
        ("cpu", SUMMARIZE, DESCRIBE_SCENES),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_model_is_served_by_replicas_where_it_is_large(
    profile: str, task: Task[Any], replicas: Task[Any] | None
) -> None:
    assert replicas_of(profile, task) is replicas


def test_no_inputs_give_a_matrix_without_rows() -> None:
    assert EMBED_TEXT.gathered([]).shape == (0, 512)
    assert EMBED_VOICE.gathered([]).shape[0] == 0


def test_only_tasks_of_the_table_are_in_profiles() -> None:
    assert {task for rows in REGISTRY.values() for task in rows} <= set(TASKS)


def test_openers_that_moved_are_those_of_rows_and_name_results_as_before() -> None:
    openers = {row.opener for rows in REGISTRY.values() for row in rows.values()}
    assert set(FORMER_OPENERS) <= openers
    # The calibration of words, voices of people and vectors of search are kept under these.
    assert digest_of("packaged", (EMBED_VOICE,)) == "77561b265c5e8879"
    assert digest_of("packaged", (EMBED_TEXT,)) == "64bf27d2e23af176"
    assert digest_of("packaged", tasks_for(Purpose.VISION)) == "5700f28e46f0d17c"
