"""Probing: what a file holds, or the sentence that says why it cannot be analysed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.codec import from_json
from pipelines.sandbox.confinement import Allowance
from pipelines.sandbox.parent import (
    Task,
    TaskCrashedError,
    TaskRefusedError,
    run_confined,
)
from pipelines.types import MediaInfo, StageCode, StageError

_SLOWEST_READ_BYTES_PER_SECOND = 10 << 20
"""A file is given the time to be read at this speed, beside a fixed allowance."""


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """What a file may ask for at most."""

    max_duration_seconds: int = 86_400
    max_width: int = 8_192
    max_height: int = 8_192
    max_streams: int = 32
    memory_bytes: int = 4 << 30
    """Address space of the process that reads the file."""
    seconds: float = 120.0
    """Processor and wall time for a small file; large ones get more by their size. A day of
    tiny packets takes most of it."""

    def seconds_for(self, size_bytes: int) -> float:
        """Time to read a file of this size."""
        return self.seconds + size_bytes / _SLOWEST_READ_BYTES_PER_SECOND


def probe(
    path: Path,
    limits: ProbeLimits | None = None,
    *,
    check: Callable[[], None] = lambda: None,
    on_progress: Callable[[float], None] = lambda _: None,
) -> MediaInfo:
    """Measure the file at ``path`` in a confined child process.

    ``on_progress`` hears how much of it is read, 0 to 1.
    Raises StageError: VALIDATION_FAILED where the file cannot be analysed or
    exceeds a limit, INGEST_FAILED where reading it failed. Whatever ``check``
    raises passes through and ends the child.
    """
    limits = limits or ProbeLimits()
    path = path.resolve()
    seconds = limits.seconds_for(path.stat().st_size)
    task = Task(
        name="probe",
        arguments={"path": str(path), "limits": asdict(limits)},
        allowance=Allowance(limits.memory_bytes, math.ceil(seconds), file_bytes=0),
        wall_seconds=seconds,
        readable=(path,),
    )

    def told(event: dict[str, Any]) -> None:
        on_progress(float(event["fraction"]))

    try:
        return from_json(MediaInfo, run_confined(task, on_event=told, check=check))
    except TaskRefusedError as error:
        raise StageError(StageCode(error.code), error.message) from None
    except TaskCrashedError as error:
        raise StageError(StageCode.INGEST_FAILED, str(error)) from error
