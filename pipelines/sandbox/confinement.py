"""Confinement of a child process before it opens an untrusted file, and of third-party programs.

Limits on memory, processor time, open files and file size are set always. The network and the
rest of the file system are taken away where the kernel lets an ordinary process do that (network
namespaces, Landlock); where it does not, the limits and the format list stand alone. Imports
nothing but the standard library: every import is paid for each time a file is probed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_CLONE_NEWPID = 0x20000000
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38

# System calls that every Linux architecture numbers alike (they are newer than 5.0).
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_ADD_RULE = 445
_LANDLOCK_RESTRICT_SELF = 446
_LANDLOCK_RULE_PATH_BENEATH = 1
_LANDLOCK_VERSION = 1

# Access bits from linux/landlock.h.
_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_FOLDER = 1 << 3
_REMOVE_FILE = 1 << 5
_MAKE_FILE = 1 << 8
_MAKE_DEVICES = (1 << 6) | (1 << 11)
_TRUNCATE = 1 << 14
_DEVICE_CONTROL = 1 << 15
_FIRST_VERSION_BITS = (1 << 13) - 1
_BITS_BY_VERSION = ((2, 1 << 13), (3, _TRUNCATE), (5, _DEVICE_CONTROL))
_FILE_BITS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE_CONTROL

_READ = _READ_FILE | _READ_FOLDER
_READ_AND_WRITE = _READ | _WRITE_FILE | _TRUNCATE | _MAKE_FILE | _REMOVE_FILE
_RUN = _READ | _EXECUTE
_OWN = _FIRST_VERSION_BITS & ~_MAKE_DEVICES | (1 << 13) | _TRUNCATE
_USE_DEVICE = _READ | _WRITE_FILE | _DEVICE_CONTROL

_ALWAYS_READABLE = tuple(
    path
    for path in (sys.prefix, sys.base_prefix, "/dev/urandom")
    if os.path.exists(path)  # noqa: PTH110
)
"""Modules that Python imports late; and without random numbers FFmpeg's muxers gather
some from the clock, which takes a tenth of a second."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a confined process may use up."""

    memory_bytes: int
    """Address space, code and libraries included."""
    cpu_seconds: int
    file_bytes: int
    """The largest file it may write; 0 lets it write none."""
    open_files: int = 64


@dataclass(frozen=True, slots=True)
class ProgramPlaces:
    """What a third-party program may access beside the files it works on."""

    programs: tuple[str, ...]
    """Files and folders that it may read and run."""
    own: tuple[str, ...]
    """Folders with all rights but making devices."""
    devices: tuple[str, ...]


def confine(
    allowance: Allowance, *, parent: int, readable: Iterable[str], writable: Iterable[str]
) -> None:
    """Confine this process for good; it dies together with its parent process.

    ``readable`` and ``writable`` are the files and folders that it still needs.
    Raises ProcessLookupError if ``parent`` is gone already.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    die_with(parent)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    leave_network(libc)
    restrict_files(libc, [*readable, *_ALWAYS_READABLE], writable)
    _limit(allowance)


def confine_program(
    allowance: Allowance, *, parent: int, readable: Iterable[str], places: ProgramPlaces
) -> None:
    """Confine this process and the programs that it will start, in a process space of their own.

    Whoever is forked next is the first in that space, where the kernel gives one: as soon as
    it ends, everything started inside is killed. Memory is limited for what a program really
    takes, not for addresses that it sets aside. Raises ProcessLookupError if ``parent`` is gone.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    die_with(parent)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    leave_network(libc)
    libc.unshare(_CLONE_NEWPID)
    restrict_files(libc, [*readable, *_ALWAYS_READABLE], (), places)
    _limit(allowance, memory=resource.RLIMIT_DATA)


def give_way() -> None:
    """Run only where a processor has nothing else to do; analyses have low priority too.

    Linux shares processors between sessions first (autogroups), so this process's own session has
    to stand back as well: its class counts within the session only. See sched(7).
    """
    if not hasattr(os, "SCHED_IDLE"):
        os.nice(19)
        return
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    for _ in range(20):
        try:
            Path("/proc/self/autogroup").write_text("19")
        except BlockingIOError:  # ten a second are taken, of all processes together
            time.sleep(0.05)
        except OSError:  # a kernel without them
            return
        else:
            return


def die_with(parent: int | None) -> None:
    """Have this process killed when its parent ends; ``parent``: who that should be now."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        raise ProcessLookupError(parent)


def _limit(allowance: Allowance, *, memory: int = resource.RLIMIT_AS) -> None:
    for kind, amount, spare in (
        (resource.RLIMIT_CORE, 0, 0),
        (memory, allowance.memory_bytes, 0),
        # At the hard limit the process is killed without saying why.
        (resource.RLIMIT_CPU, allowance.cpu_seconds, 1),
        (resource.RLIMIT_FSIZE, allowance.file_bytes, 0),
        (resource.RLIMIT_NOFILE, allowance.open_files, 0),
    ):
        _, hard = resource.getrlimit(kind)
        most = amount + spare if hard == resource.RLIM_INFINITY else min(amount + spare, hard)
        resource.setrlimit(kind, (min(amount, most), most))


def leave_network(libc: ctypes.CDLL) -> bool:
    """Move into a network namespace with nothing in it; False where that is not permitted.

    A user namespace comes with it only if it must: it would take from root the
    right to read other users' files.
    """
    if libc.unshare(_CLONE_NEWNET) == 0:
        return True
    return bool(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0)


def restrict_files(
    libc: ctypes.CDLL,
    readable: Iterable[str],
    writable: Iterable[str],
    places: ProgramPlaces | None = None,
) -> bool:
    """Leave only these files and folders open to this process; False without Landlock."""
    version = libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)
    if version < 1:
        return False
    handled = _FIRST_VERSION_BITS
    for since, bit in _BITS_BY_VERSION:
        handled |= bit if version >= since else 0
    attributes = struct.pack("Q", handled)
    ruleset = libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return False
    rules = [(_READ, readable), (_READ_AND_WRITE, writable)]
    if places is not None:
        rules += [(_RUN, places.programs), (_OWN, places.own), (_USE_DEVICE, places.devices)]
    for bits, paths in rules:
        for path in paths:
            _allow(libc, ruleset, path, bits & handled)
    restricted = bool(libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0) == 0)
    os.close(ruleset)
    return restricted


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, bits: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        bits = bits if os.path.isdir(path) else bits & _FILE_BITS  # noqa: PTH112
        rule = struct.pack("=Qi", bits, descriptor)
        libc.syscall(_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


_CANNOT_START = 127


def main() -> None:
    """Start a third-party program, confined; exits with the program's status.

    Reads one JSON line, confines itself, and forks a keeper: the first process of a space of their
    own. The keeper runs the program and ends when it ends, and with the keeper everything that the
    program left running.
    """
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
        os.chdir(request["folder"])
        with contextlib.suppress(OSError):
            os.execve(request["command"][0], request["command"], request["environment"])  # noqa: S606
        os._exit(_CANNOT_START)
    ended, status = os.wait()
    while ended != program:
        ended, status = os.wait()
    # For kernels that gave no process space: at least the program's own children.
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    with contextlib.suppress(OSError):
        for pid in listed.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    _exit_like(status)


def _exit_like(status: int) -> NoReturn:
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
