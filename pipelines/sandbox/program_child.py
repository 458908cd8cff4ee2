"""Starts a program that is not ours, confined; the process between it and the service.

Reads one JSON line, gives up what ``confinement`` takes, and forks a keeper: the first
process of a space of their own. The keeper runs the program and ends when the program ends,
and with the keeper everything that the program left running. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from pipelines.sandbox.confinement import Allowance, ProgramPlaces, confine_program, die_with

_CANNOT_START = 127


def main() -> None:
    """Serve one request from standard input; exits with the program's status."""
    request: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    confine_program(
        Allowance(**request["allowance"]),
        parent=request["parent"],
        readable=request["readable"],
        places=ProgramPlaces(**request["places"]),
    )
    keeper = os.fork()
    if keeper == 0:
        die_with(None)
        _keep(request)
    _exit_like(os.waitpid(keeper, 0)[1])


def _keep(request: dict[str, Any]) -> NoReturn:
    program = os.fork()
    if program == 0:
        die_with(None)
        _run(request)
    status = 0
    while True:
        ended, code = os.wait()
        if ended == program:
            status = code
            break
    _kill_what_is_left()
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def _run(request: dict[str, Any]) -> NoReturn:
    os.chdir(request["folder"])
    with contextlib.suppress(OSError):
        os.execve(request["command"][0], request["command"], request["environment"])  # noqa: S606
    os._exit(_CANNOT_START)


def _kill_what_is_left() -> None:
    """For kernels that gave no process space: at least the program's own children."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    with contextlib.suppress(OSError):
        for pid in listed.read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def _exit_like(status: int) -> NoReturn:
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
