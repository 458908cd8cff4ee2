"""What the contract of a task requires of an answer, and inputs that try a model on it: for answers
of plug-ins, ``vas models check`` and the tests of all models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, is_dataclass
from itertools import pairwise
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from models import contracts, tasks
from models.contracts import ACTIVITY_FRAMES, LOCAL_SPEAKERS, SAMPLE_RATE_HZ, Picture, Samples
from models.tasks import Shape, Task, WrongAnswerError

_MOST = {str: 20_000, tuple: 10_000, dict: 10_000}
"""Characters or items in an answer to one input."""
_SHARES = {"confidence", "language_probability", "left", "top", "width", "height", "score"}
_TEXTS = {"text", "label", "description"}
"""Fields that are from 0 to 1, and fields that are neither empty nor have spaces around them."""
_ROUNDING = 1e-3


def check_answers(task: Task[Any], inputs: Sequence[Any], answers: Sequence[Any]) -> None:
    """Raise WrongAnswerError where the answers are not as the contract requires."""
    _require(len(answers) == len(inputs), f"{len(answers)} answers to {len(inputs)} inputs")
    kind = get_type_hints(task.call.method)["return"]
    kind = get_args(kind)[0] if task.call.shape is Shape.BATCHED else kind
    for given, answer in zip(inputs, answers, strict=True):
        name = "vector" if task.call.shape is Shape.VECTORS else "answer"
        _check_value(answer, kind, name, task.call.dimensions)
        if task in _FITS:
            _require(_FITS[task](given, answer), f"no answer as in: {task.call.method.__doc__}")


def _require(holds: object, otherwise: str) -> None:
    if not holds:
        raise WrongAnswerError(otherwise)


def _check_value(value: Any, kind: Any, name: str, dimensions: int | None = None) -> None:
    """Raise WrongAnswerError where it is not of its type, finite and bounded, all through."""
    origin, of = get_origin(kind) or kind, get_args(kind)
    if origin is UnionType:  # with None
        if value is not None:
            _check_value(value, of[0], name)
        return
    right: Any = isinstance(value, (float, int) if origin is float else origin)
    _require(right, f"{name}: a {type(value).__name__} in place of {origin.__name__}")
    if origin is float:
        least, most = (0.0, 1.0 + _ROUNDING) if name in _SHARES else (-1e9, 1e9)
        _require(least <= value <= most, f"{name}: {value}")
    elif origin is np.ndarray:
        dtype = get_args(of[1])[0]
        right = value.dtype == dtype and np.isfinite(value).all()
        _require(right, f"{name}: not of finite {dtype.__name__}")
    elif origin in _MOST:
        _require(len(value) <= _MOST[origin], f"{name}: {len(value)} long")
        _require(name not in _TEXTS or value.strip() == value != "", f"{name}: empty, or spaces")
    if name == "vector":
        right = dimensions in {None, len(value)} and abs(np.linalg.norm(value) - 1) < _ROUNDING
        _require(np.ndim(value) == 1 and right, "vector: not of its size, or of unit length")
    for each, hint, part in _parts(value, origin, of, name):
        _check_value(each, hint, part)


def _parts(value: Any, origin: Any, of: Any, name: str) -> list[tuple[Any, Any, str]]:
    if is_dataclass(origin):
        hints = get_type_hints(origin)
        return [(getattr(value, field), hint, field) for field, hint in hints.items()]
    if origin is dict:
        return [(each, of[1], "score") for each in value.values()]
    if origin is tuple:
        hints = of[:1] * len(value) if of[-1] is ... else of
        return [(each, hint, "item") for each, hint in zip(value, hints, strict=True)]
    return []


def _in_order(samples: Samples, words: Sequence[contracts.Word]) -> bool:
    edges = [edge for word in words for edge in (word.start_seconds, word.end_seconds)]
    bounds = [0.0, *edges, len(samples) / SAMPLE_RATE_HZ]
    return all(before <= after + 1e-6 for before, after in pairwise(bounds))


def _are_inside(found: Sequence[Any]) -> bool:
    sides = [(each.box.left + each.box.width, each.box.top + each.box.height) for each in found]
    return all(max(each) <= 1 + _ROUNDING for each in sides)


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
    tasks.DETECT_SPEECH: lambda given, it: _probable(
        it, -(-len(given) // contracts.SPEECH_FRAME_SAMPLES)
    ),
    tasks.DETECT_SOUNDS: lambda given, it: _probable(
        it, max(0, len(given) // contracts.SOUND_FRAME_SAMPLES - 2), len(contracts.SoundKind)
    ),
    tasks.SEGMENT_SPEAKERS: lambda _, it: (
        _probable(it.speech, ACTIVITY_FRAMES)
        and it.speaking.shape == (ACTIVITY_FRAMES, LOCAL_SPEAKERS)
    ),
    tasks.DESCRIBE_SCENES: lambda scene, it: (
        [*it.objects] == sorted({each.lower() for each in it.objects})
        and {*it.stills} <= {*range(len(scene.stills))}
    ),
    tasks.CLASSIFY_CONTENT: lambda _, it: len(it) > 0,
    tasks.READ_TEXT: lambda _, it: _are_inside(it),
    tasks.DETECT_OBJECTS: lambda _, it: (
        _are_inside(it)
        and all(each.label == each.label.lower() for each in it)
        and all(one.confidence >= other.confidence for one, other in pairwise(it))
    ),
    tasks.DETECT_BOUNDARIES: lambda frames, it: _probable(it, len(frames)),
    tasks.EMBED_FACES: lambda _, it: _are_inside(it),
    tasks.SUMMARIZE: lambda given, it: (
        1 <= len(it) <= given.max_sentences
        and all(0 <= each.line < len(given.lines) for each in it)
    ),
    tasks.RECOGNIZE_ENTITIES: _spans,
}
"""What an answer has to do with its input."""


def sound(seconds: float, seed: int = 0) -> Samples:
    """Syllable-like bursts: louder and softer, with pauses."""
    generator = np.random.default_rng(seed)
    count = round(seconds * SAMPLE_RATE_HZ)
    times = np.arange(count) / SAMPLE_RATE_HZ
    loudness = np.clip(np.sin(2 * np.pi * 3 * times), 0, 1)
    tone = sum(np.sin(2 * np.pi * 130 * (n + 1) * times) / (n + 1) for n in range(8))
    noise = generator.standard_normal(count)
    return np.asarray(0.1 * loudness * (tone + 0.2 * noise), dtype=np.float32)


def picture(seed: int) -> Picture:
    """Coloured squares."""
    coarse = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    return np.asarray(np.kron(coarse, np.ones((20, 20, 1))), dtype=np.uint8)


def inputs_of(task: Task[Any]) -> list[Any]:
    """Inputs that a model of the task must take: its sample, ordinary ones and extremes."""
    sample = task.call.sample()
    sounds = [sound(seconds, seed) for seed, seconds in enumerate((2.0, 0.4, 7.3, 10.0))]
    if task.call.shape is not Shape.VECTORS:
        sounds += [sound(0.0), sound(0.01)]
    pictures = [*map(picture, range(4)), np.full((30, 40, 3), 200, np.uint8)]
    texts = ["My name is Anna Weber and I live in London.", "fox", "Zürich, 你好。", "good " * 500]
    terms, words = ("Kubernetes", "音楽", "x" * 100), ("Good", "mor-ning,", "42", "–", "你好。")
    hinted = [*zip(("en", "de", "zz", None), sounds[::-1], strict=False), (None, sound(30.0))]
    made: dict[Any, Callable[[], list[Any]]] = {
        contracts.AudioChunk: lambda: [contracts.AudioChunk(it, tag, terms) for tag, it in hinted],
        contracts.SpokenText: lambda: [contracts.SpokenText(each, words, "en") for each in sounds],
        contracts.SceneStills: lambda: [
            contracts.SceneStills(tuple(pictures[:n]), 2.0) for n in (1, 3, 5)
        ],
        contracts.Excerpt: lambda: [contracts.Excerpt(tuple(texts[:2]), most) for most in (1, 3)],
        contracts.SourceText: lambda: [contracts.SourceText(each, "en", "de") for each in texts],
        str: lambda: texts,
        1: lambda: sounds,
        3: lambda: pictures,
        4: lambda: [sample[:1], np.concatenate([sample, sample // 2])],
    }
    return [sample, *made[getattr(sample, "ndim", type(sample))]()]


def examinations(task: Task[Any], model: Any) -> Iterator[tuple[str, Callable[[], str]]]:
    """Each check of a model by name; it returns what was seen. Raises WrongAnswerError where the
    contract is not kept, and what the model raises."""
    inputs = inputs_of(task)

    def checked(given: Sequence[Any]) -> str:
        found = task.answers(model, given)
        check_answers(task, given, found)
        if len(given) > 1:
            alone = [task.answers(model, [each])[0] for each in given]
            _require(_is_alike(found, alone), "an answer depends on the inputs beside it")
        return f"{len(given)} answers as the contract requires"

    yield "sample", lambda: task.call.report(task.probe(model))
    for number, given in enumerate(inputs):
        yield f"input {number}", functools.partial(checked, [given])
    yield "all inputs", functools.partial(checked, inputs)
    yield "no inputs", functools.partial(checked, [])


def _is_alike(one: Any, other: Any) -> bool:
    """Return whether texts, sizes and arrays agree: a batch is rounded otherwise than an input."""
    if is_dataclass(one) and is_dataclass(other):
        one, other = astuple(one), astuple(other)  # type: ignore[arg-type]
    if isinstance(one, np.ndarray):
        near = one.shape == other.shape and np.isclose(one, other, atol=0.05)
        return near is not False and bool(np.sum(near) >= 0.99 * one.size)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_is_alike, one, other))
    return not isinstance(one, str) or one == other
