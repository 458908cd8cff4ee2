"""Models of the profile ``gpu`` without weights or a GPU, and what they were called with."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from models.contracts import (
    ACTIVITY_FRAMES,
    LOCAL_SPEAKERS,
    PICTURE_DIMENSIONS,
    SAMPLE_RATE_HZ,
    AudioChunk,
    Box,
    ChunkTranscript,
    DetectedObject,
    PhraseVector,
    Picture,
    Samples,
    SceneDescription,
    SceneStills,
    ShotAngle,
    ShotType,
    SpeakerActivity,
    Word,
)
from models.provider import LocalModels
from models.tasks import (
    DESCRIBE_SCENES,
    DETECT_OBJECTS,
    EMBED_PHRASES,
    EMBED_PICTURES,
    EMBED_VOICE,
    READ_TEXT,
    SEGMENT_SPEAKERS,
    TRANSCRIBE,
    Contract,
    Task,
)

_WORD_SECONDS = 0.4


def _words(chunk: AudioChunk) -> ChunkTranscript:
    size = int(_WORD_SECONDS * SAMPLE_RATE_HZ)
    starts = range(0, len(chunk.samples) - size, size) if chunk.has_words else ()
    words = tuple(
        Word(
            f" word{int(1e4 * np.abs(chunk.samples[at : at + size]).mean())}",
            at / SAMPLE_RATE_HZ,
            (at + size) / SAMPLE_RATE_HZ,
            0.9,
        )
        for at in starts
    )
    return ChunkTranscript(words, "en", 0.99, -0.1, (("en", 0.99),))


def _activity(window: Samples) -> SpeakerActivity:
    speaking = np.zeros((ACTIVITY_FRAMES, LOCAL_SPEAKERS), np.bool_)
    speaking[:, 0] = True
    return SpeakerActivity(np.full(ACTIVITY_FRAMES, 0.9, np.float32), speaking)


def _unit(size: int, value: float) -> Samples:
    vector = np.zeros(size, np.float32)
    vector[int(value) % size] = 1.0
    return vector


def _described(scene: SceneStills) -> SceneDescription:
    shade = int(np.mean([still.mean() for still in scene.stills]))
    return SceneDescription(f"Shade {shade}.", (), ShotType.WIDE, ShotAngle.EYE_LEVEL)


def _objects(still: Picture) -> tuple[DetectedObject, ...]:
    return (DetectedObject(f"shade {int(still.mean()) // 64}", 0.9, Box(0.1, 0.1, 0.5, 0.5)),)


_ANSWERS: dict[Task[Any], Callable[[Any], Any]] = {
    TRANSCRIBE: _words,
    SEGMENT_SPEAKERS: _activity,
    EMBED_VOICE: lambda samples: _unit(192, 1e4 * float(np.abs(samples).mean())),
    DETECT_OBJECTS: _objects,
    READ_TEXT: lambda _: (),
    DESCRIBE_SCENES: _described,
    EMBED_PICTURES: lambda still: _unit(PICTURE_DIMENSIONS, float(still.mean())),
    EMBED_PHRASES: lambda text: PhraseVector(_unit(PICTURE_DIMENSIONS, len(text)), 100.0, -10.0),
}
"""Each follows from one input alone."""


class MadeUpModel:
    """A task's contract; each call takes ``seconds``, however many inputs it has."""

    def __init__(self, task: Task[Any], seconds: float) -> None:
        def method(inputs: Sequence[Any]) -> Any:
            time.sleep(seconds)
            return task.gathered([_ANSWERS[task](each) for each in inputs])

        setattr(self, task.method_name, method)


@dataclass(frozen=True)
class MadeUpModels(LocalModels):
    """The packaged models, but for those that the profile ``gpu`` has on a card."""

    seconds: float = 0.05
    has_tags: bool = True

    def has(self, task: Task[Any]) -> bool:
        if task in {EMBED_PICTURES, EMBED_PHRASES}:
            return self.has_tags
        return task in _ANSWERS or super().has(task)

    def find(self, task: Task[Contract]) -> Contract | None:
        if not self.has(task):
            return None
        if task in _ANSWERS:
            return cast("Contract", MadeUpModel(task, self.seconds))
        return super().find(task)


@dataclass(frozen=True, slots=True)
class Notes:
    """What processes of this machine did, in files of a folder. Picklable."""

    folder: Path

    def __call__(self, name: str, size: int, seconds: float) -> None:
        note = json.dumps([name, size, seconds, time.time(), os.getpid()])
        with (self.folder / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(note + "\n")

    def read(self) -> list[tuple[str, int, float, float, int]]:
        """All of them: name, size, seconds, when it ended, process."""
        lines = [line for path in self.folder.iterdir() for line in path.read_text().splitlines()]
        return [tuple(json.loads(line)) for line in lines]

    def batches(self) -> dict[str, list[int]]:
        """Sizes of the batches of each task, and the rows of each operator."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for name, size, *_ in self.read():
            found[name].append(size)
        return dict(found)
