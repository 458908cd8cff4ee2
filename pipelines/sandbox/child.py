"""The confined child process: takes a request, confines itself, works, answers.

Starts in about a tenth of a second, so it imports PyAV and nothing heavier:
not numpy, not ``pipelines.types``.
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import av.error

from pipelines.ingest.measure import measure
from pipelines.ingest.media_pass import cut_media
from pipelines.ingest.wav_chunks import wav_labels
from pipelines.media.files import MediaRefusedError, MediaUnreadableError
from pipelines.sandbox.confinement import Allowance, confine

Message = dict[str, Any]
Emit = Callable[[Message], None]


def _probe(arguments: Message, emit: Emit) -> Message:
    return measure(Path(arguments["path"]), arguments["limits"], emit)


def _cut(arguments: Message, emit: Emit) -> Message:
    return cut_media(Path(arguments["path"]), Path(arguments["folder"]), arguments, emit)


def _labels(arguments: Message, _: Emit) -> Message:
    return wav_labels(Path(arguments["path"]))


_TASKS: dict[str, Callable[[Message, Emit], Message]] = {
    "probe": _probe,
    "cut": _cut,
    "labels": _labels,
}


def _task(name: str) -> Callable[[Message, Emit], Message]:
    """The task's function; what it needs beyond PyAV is imported while files can be read."""
    if name == "decord":
        from pipelines.media.decord_reading import read_pictures

        return read_pictures
    return _TASKS[name]


def main() -> None:
    """Serve one request from standard input."""
    request = json.loads(sys.stdin.buffer.readline())
    task = _task(request["task"])
    av.logging.set_level(None)
    confine(
        Allowance(**request["allowance"]),
        parent=request["parent"],
        readable=request["readable"],
        writable=request["writable"],
    )
    _write(_outcome(task, request["arguments"]))


_LEAST_ROOM_BYTES = 16 << 20
"""FFmpeg checks its large allocations well, some of its first small ones not at all."""


def _outcome(task: Callable[[Message, Emit], Message], arguments: Message) -> Message:
    try:
        bytearray(_LEAST_ROOM_BYTES)
        value = task(arguments, _emit)
    except MediaRefusedError as error:
        return _refusal("VALIDATION_FAILED", str(error))
    except MediaUnreadableError as error:
        return _refusal("INGEST_FAILED", str(error))
    except (MemoryError, av.error.MemoryError):
        return _refusal("VALIDATION_FAILED", "The file needs more memory to read than is allowed.")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return {"kind": "full"}
        if error.errno != errno.EFBIG:
            raise
        return _refusal("INGEST_FAILED", "There was no room for what was cut out of the file.")
    return {"kind": "done", "value": value}


def _refusal(code: str, message: str) -> Message:
    return {"kind": "refused", "code": code, "message": message}


def _emit(value: Message) -> None:
    """Send an event and wait until the parent has dealt with it."""
    _write({"kind": "event", "value": value})
    if not sys.stdin.buffer.readline():
        raise SystemExit(1)


def _write(message: Message) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.flush()
