"""Third-party programs run on untrusted files.

A program gets a folder of its own, no network where the kernel permits that, its share of memory,
time and disk, and is ended together with every process that it started.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, cast

import psutil

from pipelines.sandbox.confinement import Allowance, ProgramPlaces
from pipelines.sandbox.parent import Message, await_own_end, send, spawn

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/etc", "/proc", "/sys")
_DEVICES = ("null", "zero", "full", "random", "urandom", "shm", "dri", "kfd")
_POLL_SECONDS = 0.2
_STDERR_TAIL_BYTES = 2_000
_LEAST_FREE_BYTES = 1 << 30
"""The disk is never filled up to the last of this: others write there too."""
_OPEN_FILES = 1024


class ProgramFailedError(Exception):
    """The program failed; the message is the reason, ``errors`` its own standard error."""

    def __init__(self, message: str, errors: str = "") -> None:
        super().__init__(message)
        self.errors = errors


@dataclass(frozen=True, slots=True)
class Shares:
    """What a program may use up, with all that it starts."""

    seconds: float
    memory_bytes: int
    output_bytes: int


def run_program(
    command: Sequence[str],
    folder: Path,
    *,
    readable: Sequence[Path],
    shares: Shares,
    check: Callable[[], None],
) -> None:
    """Run ``command`` in ``folder``, its own to write in, and wait for its end.

    It may read ``readable``, the system's folders, and files named in the command.
    Raises ProgramFailedError; whatever ``check`` raises ends the program within
    a fraction of a second.
    """
    program = shutil.which(command[0])
    if program is None:
        raise ProgramFailedError("could not be started", f"{command[0]} is not there")
    with _started() as child:
        watch = _Watch(child, folder, shares, check)
        send(child, _request([program, *command[1:]], folder, readable, shares))
        watch.until_exit()


@contextlib.contextmanager
def _started() -> Iterator[subprocess.Popen[bytes]]:
    """The program's process for the block; afterwards everything that it started is killed."""
    child = spawn(
        "confinement",
        stdout=subprocess.DEVNULL,
        environment={"LC_ALL": "C.UTF-8"},
    )
    try:
        yield child
    finally:
        family = _family(child)
        child.kill()
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        child.wait()
        psutil.wait_procs(family, timeout=2)
        for pipe in (child.stdin, child.stderr):
            cast("IO[bytes]", pipe).close()


def _family(child: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Everything that the child started and that still runs."""
    try:
        return psutil.Process(child.pid).children(recursive=True)
    except psutil.Error:
        return []


def _request(command: list[str], folder: Path, readable: Sequence[Path], shares: Shares) -> Message:
    seconds = round(shares.seconds * (os.cpu_count() or 1)) + 1
    return {
        "command": command,
        "folder": str(folder),
        "environment": {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C.UTF-8",
            "HOME": str(folder),
            "TMPDIR": str(folder),
        },
        "allowance": asdict(
            Allowance(shares.memory_bytes, seconds, shares.output_bytes, _OPEN_FILES)
        ),
        "parent": os.getpid(),
        "readable": [str(path) for path in readable],
        "places": asdict(_places(command, folder)),
    }


def _places(command: Sequence[str], folder: Path) -> ProgramPlaces:
    named = [Path(word) for word in command if word.startswith("/") and Path(word).is_file()]
    beside = [Path(command[0]).resolve().parent, *(path.resolve() for path in named)]
    programs = [*map(str, beside), *_SYSTEM]
    devices = [f"/dev/{name}" for name in _DEVICES]
    devices += [str(path) for path in Path("/dev").glob("nvidia*")]
    return ProgramPlaces(
        programs=tuple(path for path in programs if Path(path).exists()),
        own=(str(folder),),
        devices=tuple(path for path in devices if Path(path).exists()),
    )


@dataclass(slots=True)
class _Watch:
    """Checks a running program several times a second."""

    child: subprocess.Popen[bytes]
    folder: Path
    shares: Shares
    check: Callable[[], None]
    _errors: bytes = b""
    _begun: float = field(default_factory=time.monotonic)

    def until_exit(self) -> None:
        """Return when the program ended with status 0; raises as ``run_program``."""
        stderr = cast("IO[bytes]", self.child.stderr)
        due = 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(stderr, selectors.EVENT_READ)
            while self.child.poll() is None:
                if selector.select(_POLL_SECONDS):
                    data = os.read(stderr.fileno(), 1 << 16)
                    self._errors = (self._errors + data)[-_STDERR_TAIL_BYTES:]
                    if not data:
                        time.sleep(_POLL_SECONDS)  # it closed its standard error and goes on
                if time.monotonic() >= due:
                    self._check_shares()
                    due = time.monotonic() + _POLL_SECONDS
        await_own_end(self.child.returncode, self.check)
        if self.child.returncode != 0:
            raise self._failed(f"ended with status {self.child.returncode}")

    def _check_shares(self) -> None:
        self.check()
        if time.monotonic() - self._begun > self.shares.seconds:
            raise self._failed(f"took longer than {self.shares.seconds:.0f} s")
        memory_bytes = 0
        for process in _family(self.child):
            with contextlib.suppress(psutil.Error):
                memory_bytes += process.memory_info().rss
        if memory_bytes > self.shares.memory_bytes:
            raise self._failed("took more memory than is allowed")
        disk_bytes = 0
        for place, _, names in os.walk(self.folder):
            for name in names:
                with contextlib.suppress(OSError):  # files that vanish meanwhile count nothing
                    disk_bytes += os.lstat(Path(place) / name).st_blocks * 512
        if disk_bytes > self.shares.output_bytes:
            raise self._failed("wrote more than is allowed")
        if shutil.disk_usage(self.folder).free < _LEAST_FREE_BYTES:
            raise self._failed("would have filled the disk")

    def _failed(self, reason: str) -> ProgramFailedError:
        return ProgramFailedError(reason, self._errors.decode(errors="replace"))
