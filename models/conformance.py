"""What the contract of a task requires of an answer, and inputs that try a model on it: for answers
of plug-ins, ``vas models check`` and the tests of all models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, is_dataclass, replace
from enum import Enum
from itertools import pairwise
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from models import contracts, tasks
from models.contracts import ACTIVITY_FRAMES, SOUND_FRAME_SAMPLES, SPEECH_FRAME_SAMPLES
from models.tasks import Shape, Task, WrongAnswerError

_MOST = {str: 20_000, tuple: 10_000, dict: 10_000}
"""Characters or items in an answer to one input."""
_SHARES = {"confidence", "language_probability", "left", "top", "width", "height", "score"}
"""Fields that are from 0 to 1; ``score`` is any value of a dictionary."""
_NAMES = {"text", "label", "description"}
"""Fields that are neither empty nor have spaces around them."""


def check_answers(task: Task[Any], inputs: Sequence[Any], answers: Sequence[Any]) -> None:
    """Raise WrongAnswerError where the answers are not as the contract requires."""
    _require(len(answers) == len(inputs), f"{len(answers)} answers to {len(inputs)} inputs")
    kind = get_type_hints(task.call.method)["return"]
    kind = get_args(kind)[0] if task.call.shape is Shape.BATCHED else kind
    name = "vector" if task.call.shape is Shape.VECTORS else "answer"
    for given, answer in zip(inputs, answers, strict=True):
        _check_value(answer, kind, name)
        fits = task not in _FITS or _FITS[task](given, answer)
        fits = fits and task.call.dimensions in {None, np.size(answer)}
        _require(fits, f"no answer as in: {task.call.method.__doc__}")


def _require(holds: object, otherwise: str) -> None:
    if not holds:
        raise WrongAnswerError(otherwise)


def _check_value(value: Any, kind: Any, name: str) -> None:
    """Raise WrongAnswerError where it is not of its type, finite and bounded, all through."""
    origin, of = get_origin(kind) or kind, get_args(kind)
    if origin is UnionType:  # with None
        return _check_value(value, type(None) if value is None else of[0], name)
    right: Any = isinstance(value, (float, int) if origin is float else origin)
    _require(right, f"{name}: a {type(value).__name__} in place of {origin.__name__}")
    parts: list[tuple[Any, Any, str]] = []
    if origin is float:
        right = 0 <= value <= 1 if name in _SHARES else -1e9 <= value <= 1e9
    elif origin is np.ndarray:
        right = value.dtype == get_args(of[1])[0] and np.isfinite(value).all()
    elif origin in _MOST:
        right = len(value) <= _MOST[origin]
        right = right and (name not in _NAMES or value.strip() == value != "")
    if name == "vector":
        right = right and np.ndim(value) == 1 and abs(np.linalg.norm(value) - 1) < 1e-3
    _require(right, f"{name}: {value!r:.60} is out of bounds")
    if is_dataclass(origin):
        hints = get_type_hints(origin)
        parts = [(getattr(value, field), hint, field) for field, hint in hints.items()]
    elif origin is dict:
        parts = [(each, of[1], "score") for each in value.values()]
    elif origin is tuple:
        several = of[:1] * len(value) if of[-1] is ... else of
        parts = [(each, hint, "item") for each, hint in zip(value, several, strict=True)]
    for part in parts:
        _check_value(*part)
    return None


def _in_order(samples: contracts.Samples, words: Sequence[contracts.Word]) -> bool:
    edges = [edge for word in words for edge in (word.start_seconds, word.end_seconds)]
    bounds = [0.0, *edges, len(samples) / contracts.SAMPLE_RATE_HZ]
    return all(before <= after + 1e-6 for before, after in pairwise(bounds))


def _inside(_: object, found: Sequence[Any]) -> bool:
    boxes = [each.box for each in found]
    return all(max(it.left + it.width, it.top + it.height) <= 1 + 1e-6 for it in boxes)


def _probable(found: contracts.Probabilities, *shape: int) -> bool:
    return found.shape == shape and bool(((found >= 0) & (found <= 1)).all())


def _spans(text: str, found: Sequence[tasks.Entity]) -> bool:
    edges = [0, *(edge for each in found for edge in (each.start, each.end)), len(text)]
    return edges == sorted(edges)


_FITS: dict[Task[Any], Callable[[Any, Any], bool]] = {
    tasks.TRANSCRIBE: lambda chunk, it: _in_order(chunk.samples, it.words),
    tasks.ALIGN: lambda given, it: (
        _in_order(given.samples, it) and tuple(word.text for word in it) in {given.words, ()}
    ),
    tasks.DETECT_SPEECH: lambda given, it: _probable(it, -(-len(given) // SPEECH_FRAME_SAMPLES)),
    tasks.DETECT_SOUNDS: lambda given, it: _probable(
        it, max(0, len(given) // SOUND_FRAME_SAMPLES - 2), len(contracts.SoundKind)
    ),
    tasks.SEGMENT_SPEAKERS: lambda _, it: (
        _probable(it.speech, ACTIVITY_FRAMES)
        and it.speaking.shape == (ACTIVITY_FRAMES, contracts.LOCAL_SPEAKERS)
    ),
    tasks.DESCRIBE_SCENES: lambda scene, it: (
        [*it.objects] == sorted({each.lower() for each in it.objects})
        and {*it.stills} <= {*range(len(scene.stills))}
    ),
    tasks.CLASSIFY_CONTENT: lambda _, it: len(it) > 0,
    tasks.READ_TEXT: _inside,
    tasks.DETECT_OBJECTS: lambda given, it: (
        _inside(given, it)
        and all(each.label == each.label.lower() for each in it)
        and all(one.confidence >= other.confidence for one, other in pairwise(it))
    ),
    tasks.DETECT_BOUNDARIES: lambda frames, it: _probable(it, len(frames)),
    tasks.EMBED_FACES: _inside,
    tasks.SUMMARIZE: lambda given, it: (
        1 <= len(it) <= given.max_sentences
        and all(0 <= each.line < len(given.lines) for each in it)
    ),
    tasks.RECOGNIZE_ENTITIES: _spans,
}
"""Whether an answer fits its input."""


def varied(value: Any) -> list[Any]:
    """Return a task's sample and others: shorter, longer, louder, or with other words."""
    if is_dataclass(value) and not isinstance(value, type):
        fields = [
            each for each in get_type_hints(type(value)) if each not in {"language", "target"}
        ]
        changes = [(each, varied(getattr(value, each))[1:]) for each in fields]
        if isinstance(value, contracts.AudioChunk):
            changes += [("language", ["en", "zz"]), ("keyterms", [("Zürich", "音楽", "x" * 100)])]
        return [value, *(replace(value, **{name: it}) for name, all_ in changes for it in all_)]
    if isinstance(value, str) and not isinstance(value, Enum):
        return [value, "fox", "Zürich, 你好。", "good " * 500]
    if isinstance(value, tuple) and value:
        return [value, value[:1], value[:1] * 4]
    if isinstance(value, np.ndarray) and value.ndim == 3:
        noise = np.random.default_rng(0).integers(0, 255, value.shape, np.uint8)
        return [value, value // 4, value[:27, :48], noise]
    if isinstance(value, np.ndarray):
        return [value, value[:1], value[: len(value) // 2], np.concatenate([value * 30] * 2)]
    return [value]


def examinations(task: Task[Any], model: Any) -> Iterator[tuple[str, Callable[[], str]]]:
    """Each check of a model by name; it returns what was seen. Raises WrongAnswerError where the
    contract is not kept, and what the model raises."""

    alone: list[Any] = []

    def checked(given: Sequence[Any]) -> str:
        found = task.answers(model, given)
        check_answers(task, given, found)
        if len(given) == 1:
            alone.extend(found)
        elif given and len(alone) == len(given):
            _require(_alike(found, alone), "an answer depends on the inputs beside it")
        return f"{len(given)} answers as the contract requires"

    inputs = varied(task.call.sample())
    yield "sample", lambda: task.call.report(task.probe(model))
    for number, given in enumerate(inputs):
        yield f"input {number}", functools.partial(checked, [given])
    yield "all inputs", functools.partial(checked, inputs)
    yield "no inputs", functools.partial(checked, [])


def _alike(one: Any, other: Any) -> bool:
    """Return whether texts, sizes and arrays agree: a batch is rounded otherwise than an input."""
    if is_dataclass(one) and is_dataclass(other):
        return _alike(astuple(one), astuple(other))  # type: ignore[arg-type]
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and bool(np.allclose(one, other, atol=0.1))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    return not isinstance(one, str) or one == other
