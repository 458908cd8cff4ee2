"""Work on untrusted files in a confined child process: the child's side.

Starts in about a tenth of a second, so it imports PyAV and nothing heavier:
not numpy, not ``pipelines.types``.
"""

from __future__ import annotations

import errno
import importlib
import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import av
import av.error

from pipelines.sandbox.confinement import Allowance, confine, give_way

Message = dict[str, Any]
Emit = Callable[[object], None]
"""Sends an event: a dataclass or JSON values."""


class MediaRefusedError(Exception):
    """The file cannot be analysed; the message is a sentence for whoever sent it."""


class MediaUnreadableError(Exception):
    """The file is media, but next to nothing of it is there; the message is for its sender."""


def main() -> None:
    """Serve one request from standard input."""
    request = json.loads(sys.stdin.buffer.readline())
    # This imports the program, while files can still be read.
    program, order = pickle.loads(bytes.fromhex(request["work"]))  # noqa: S301 - of our parent
    for name in request["imports"]:
        importlib.import_module(name)
    av.logging.set_level(None)
    if request["gives_way"]:
        give_way()
    confine(
        Allowance(**request["allowance"]),
        parent=request["parent"],
        readable=request["readable"],
        writable=request["writable"],
    )
    _write(_outcome(program, order))


_LEAST_ROOM_BYTES = 16 << 20
"""FFmpeg checks its large allocations well, some of its first small ones not at all."""


def _outcome(program: Callable[[Any, Emit], object], order: object) -> Message:
    try:
        bytearray(_LEAST_ROOM_BYTES)
        value = program(order, _emit)
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


def _emit(value: object) -> None:
    """Send an event and wait for the parent's acknowledgement."""
    _write({"kind": "event", "value": value})
    if not sys.stdin.buffer.readline():
        raise SystemExit(1)


def _write(message: Message) -> None:
    sys.stdout.buffer.write(json.dumps(message, default=asdict).encode() + b"\n")
    sys.stdout.buffer.flush()
