"""What a child process gives up before it opens a file that nobody vouches for.

Limits on memory, processor time, open files and file size are set always. The
network and the rest of the file system are taken away where the kernel lets an
ordinary process do that (network namespaces, Landlock); where it does not, the
limits and the format list stand alone. Imports nothing but the standard library:
every import is paid for each time a file is probed.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
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
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_FOLDER = 1 << 3
_REMOVE_FILE = 1 << 5
_MAKE_FILE = 1 << 8
_TRUNCATE = 1 << 14
_FIRST_VERSION_BITS = (1 << 13) - 1
_BITS_BY_VERSION = ((2, 1 << 13), (3, _TRUNCATE), (5, 1 << 15))
_FILE_BITS = _WRITE_FILE | _READ_FILE | _TRUNCATE

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


def confine(
    allowance: Allowance, *, parent: int, readable: Iterable[str], writable: Iterable[str]
) -> None:
    """Confine this process for good; it dies together with its parent process.

    ``readable`` and ``writable`` are the files and folders that it still needs.
    Raises ProcessLookupError if ``parent`` is gone already.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise ProcessLookupError(parent)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    leave_network(libc)
    restrict_files(libc, [*readable, *_ALWAYS_READABLE], writable)
    _limit(allowance)


def _limit(allowance: Allowance) -> None:
    for kind, amount, spare in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_AS, allowance.memory_bytes, 0),
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


def restrict_files(libc: ctypes.CDLL, readable: Iterable[str], writable: Iterable[str]) -> bool:
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
    for path in readable:
        _allow(libc, ruleset, path, (_READ_FILE | _READ_FOLDER) & handled)
    for path in writable:
        bits = _READ_FILE | _READ_FOLDER | _WRITE_FILE | _TRUNCATE | _MAKE_FILE | _REMOVE_FILE
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
