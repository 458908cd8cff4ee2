"""Probing: what a file holds, measured from its packets in a confined child process."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.ingest import headers, measure
from pipelines.ingest.streams import ProbeLimits
from pipelines.ingest.sync.timecode import WavLabels
from pipelines.sandbox.confinement import Allowance
from pipelines.sandbox.parent import (
    Answer,
    ConfinedTask,
    TaskCrashedError,
    TaskRefusedError,
    run_confined,
)
from pipelines.types import MediaInfo, StageCode, StageError

_LABEL_SECONDS = 30


def run_media_task(
    task: ConfinedTask,
    answer: type[Answer],
    *,
    on_event: Callable[[Any], None] = lambda _: None,
    check: Callable[[], None],
) -> Answer:
    """``run_confined`` with its errors as StageErrors: the refusal's code, or INGEST_FAILED."""
    try:
        return run_confined(task, answer, on_event=on_event, check=check)
    except TaskRefusedError as error:
        raise StageError(StageCode(error.code), error.message) from None
    except TaskCrashedError as error:
        raise StageError(StageCode.INGEST_FAILED, str(error)) from error


def probe(
    path: Path,
    limits: ProbeLimits | None = None,
    *,
    check: Callable[[], None] = lambda: None,
    on_progress: Callable[[float], None] = lambda _: None,
) -> MediaInfo:
    """Measure the file at ``path``; ``on_progress`` receives the share read so far, 0 to 1.

    Raises StageError: VALIDATION_FAILED where the file cannot be analysed or exceeds a limit,
    INGEST_FAILED where reading it failed. Whatever ``check`` raises ends the child.
    """
    limits = limits or ProbeLimits()
    path = path.resolve()
    seconds = limits.seconds_for(path.stat().st_size)
    task = ConfinedTask(
        program=measure.probe,
        order=(path, limits),
        allowance=Allowance(limits.memory_bytes, math.ceil(seconds), file_bytes=0),
        wall_seconds=seconds,
        readable=(path,),
    )

    def on_event(event: Any) -> None:
        on_progress(float(event["fraction"]))

    return run_media_task(task, MediaInfo, on_event=on_event, check=check)


def read_wav_labels(path: Path, limits: ProbeLimits, check: Callable[[], None]) -> WavLabels:
    """Labels that a recorder wrote into a WAV file. Raises StageError EXTERNAL_AUDIO_FAILED."""
    path = path.resolve()
    task = ConfinedTask(
        program=headers.labels,
        order={"path": str(path)},
        allowance=Allowance(limits.memory_bytes, _LABEL_SECONDS, file_bytes=0),
        wall_seconds=_LABEL_SECONDS,
        readable=(path,),
    )
    try:
        return run_confined(task, WavLabels, check=check)
    except (TaskRefusedError, TaskCrashedError) as error:
        raise StageError(StageCode.EXTERNAL_AUDIO_FAILED, str(error)) from error
