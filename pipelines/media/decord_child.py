"""The parent's side of reading pictures by decord: a confined child, memory shared with it."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.contracts import Picture
from pipelines.sandbox.confinement import Allowance
from pipelines.sandbox.parent import Task, TaskCrashedError, TaskRefusedError, run_confined

_MEMORY_BYTES = 6 << 30
_LARGEST_PICTURE_BYTES = 8_192 * 8_192 * 3
_SECONDS = 600.0
"""For a segment of a minute; decord decodes every frame between those asked for."""


class DecordUnsuitableError(Exception):
    """decord cannot give the stills of this file; the message says why."""


def pictures_by_decord(
    path: Path,
    *,
    stream_index: int,
    origin_ms: int,
    times_ms: Sequence[int],
    take: Callable[[int, Picture], None],
    check: Callable[[], None],
) -> None:
    """Read the pictures at ``times_ms`` and hand each to ``take``, in order of time.

    Times at which the file has no frame are passed over. ``check`` is called
    several times a second, and whatever it raises ends the reading. Raises
    DecordUnsuitableError if decord cannot read the file as PyAV does, or at all.
    """
    with _shared_memory() as memory:

        def on_event(event: dict[str, Any]) -> None:
            height, width = int(event["height"]), int(event["width"])
            take(int(event["time_ms"]), _picture(memory, height, width))

        order = {
            "path": str(path.resolve()),
            "stream_index": stream_index,
            "origin_ms": origin_ms,
            "times_ms": list(times_ms),
            "memory": memory,
        }
        task = Task(
            name="decord",
            arguments=order,
            allowance=Allowance(_MEMORY_BYTES, math.ceil(_SECONDS), _LARGEST_PICTURE_BYTES),
            wall_seconds=_SECONDS,
            readable=(path.resolve(),),
            descriptors=(memory,),
        )
        try:
            answer = run_confined(task, on_event=on_event, check=check)
        except (TaskRefusedError, TaskCrashedError) as error:
            raise DecordUnsuitableError(str(error)) from error
        if answer["unsuitable"] is not None:
            raise DecordUnsuitableError(str(answer["unsuitable"]))


@contextlib.contextmanager
def _shared_memory() -> Iterator[int]:
    descriptor = os.memfd_create("picture")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _picture(memory: int, height: int, width: int) -> Picture:
    """The picture that lies in the shared memory; raises TaskCrashedError if it does not fit."""
    size = height * width * 3
    if not 0 < size <= _LARGEST_PICTURE_BYTES:
        raise TaskCrashedError("The process that reads the pictures answered nonsense.")
    data = bytearray(size)
    if os.preadv(memory, [data], 0) != size:
        raise TaskCrashedError("The process that reads the pictures answered nonsense.")
    return np.frombuffer(data, np.uint8).reshape(height, width, 3)
