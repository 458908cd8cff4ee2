"""Untrusted files in a confined child process, or in a confined program: the parent's side.

The child is a fresh interpreter (``pipelines.sandbox.child``) with an empty environment. It reads
one JSON line, the request, and writes JSON lines to its standard output: events while it works,
each acknowledged by the parent before it goes on, and one result or refusal at the end. The request
has the program and its order pickled; nothing that the child sends is evaluated.

A third-party program gets a folder of its own, no network where the kernel permits that, its share
of memory, time and disk, and is ended together with every process that it started.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import psutil

import pipelines
from pipelines.codec import CodecError, from_json
from pipelines.sandbox.confinement import Allowance, ProgramPlaces

Message = dict[str, Any]
Answer = TypeVar("Answer")

_NONSENSE = "The process that reads the file answered nonsense."
_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PATH": os.defpath, "OPENBLAS_NUM_THREADS": "1"}
"""decord searches for its library along the path; numpy's threads would only take memory."""
_POLL_SECONDS = 0.2
_LONGEST_LINE_BYTES = 4 << 20
_STDERR_TAIL_BYTES = 2_000


class TaskRefusedError(Exception):
    """The child looked at the file and refused it; ``code`` is a StageCode's value."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class TaskCrashedError(Exception):
    """The child ended without an answer, or with one that makes no sense."""


class TaskTimeoutError(TaskCrashedError):
    """The child took longer than its wall or processor time."""


@dataclass(frozen=True, slots=True)
class ConfinedTask:
    """One piece of work for a confined child process."""

    program: Callable[[Any, Callable[[object], None]], object]
    """A function of a module; called in the child with ``order`` and a way to send events. Events
    and result are dataclasses or JSON values."""
    order: object
    """Picklable."""
    allowance: Allowance
    wall_seconds: float
    readable: tuple[Path, ...]
    writable: tuple[Path, ...] = ()
    descriptors: tuple[int, ...] = ()
    """Open files that the child gets, under the same numbers."""
    gives_way: bool = False
    """It gets the processor time that is otherwise idle."""
    imports: tuple[str, ...] = ()
    """Modules that ``program`` imports late, so that this process need not: from within the
    confinement they could not be read."""


def run_confined(
    task: ConfinedTask,
    answer: type[Answer],
    *,
    on_event: Callable[[Any], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> Answer:
    """Run ``task`` in a child process and return its result, an ``answer`` to the codec.

    ``on_event`` receives the child's events as JSON values, to be read with ``from_json``; the
    child waits until it returns. ``check`` is called several times a second; whatever it or
    ``on_event`` raises ends the child at once. Raises TaskRefusedError, TaskTimeoutError,
    TaskCrashedError, and OSError where the disk is full.
    """
    request = {
        "work": pickle.dumps((task.program, task.order)).hex(),
        "imports": task.imports,
        "allowance": asdict(task.allowance),
        "parent": os.getpid(),
        "readable": [str(path) for path in task.readable],
        "writable": [str(path) for path in task.writable],
        "gives_way": task.gives_way,
    }
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    environment = {**_ENVIRONMENT, **kept}
    with _started("child", subprocess.PIPE, environment, task.descriptors) as child:
        send(child, request)
        try:
            found = _answer(child, _lines(child, task.wall_seconds, check), on_event)
            return from_json(answer, found)
        except CodecError:
            raise TaskCrashedError(_NONSENSE) from None


@contextlib.contextmanager
def _started(
    module: str, stdout: int, environment: dict[str, str], descriptors: tuple[int, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """A fresh, isolated interpreter for the block, which runs ``main`` of a module of this package;
    nothing of it is left afterwards."""
    start = f"from {__package__}.{module} import main; main()"
    bootstrap = f"import sys; sys.path.insert(0, sys.argv[1]); {start}"
    root = str(Path(pipelines.__file__).resolve().parents[1])
    child = subprocess.Popen(  # noqa: S603 - our own interpreter, fixed arguments
        [sys.executable, "-I", "-c", bootstrap, root],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=environment,
        cwd="/",
        start_new_session=True,
        pass_fds=descriptors,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        for pipe in filter(None, (child.stdin, child.stdout, child.stderr)):
            pipe.close()


def send(child: subprocess.Popen[bytes], message: Message) -> None:
    """Write a JSON line; a child that is gone shows in its status."""
    with contextlib.suppress(BrokenPipeError):
        cast("IO[bytes]", child.stdin).write(json.dumps(message).encode() + b"\n")


def _answer(
    child: subprocess.Popen[bytes], lines: Iterator[bytes], on_event: Callable[[Any], None]
) -> object:
    for line in lines:
        try:
            message = json.loads(line)
        except ValueError as error:
            raise TaskCrashedError(_NONSENSE) from error
        match message.get("kind") if isinstance(message, dict) else None:
            case "event":
                on_event(message["value"])
                send(child, {})
            case "done":
                return message["value"]
            case "refused":
                raise TaskRefusedError(str(message["code"]), str(message["message"]))
            case "full":
                raise OSError(errno.ENOSPC, "There is no room for what is cut out of the file.")
            case _:
                raise TaskCrashedError(_NONSENSE)
    raise TaskCrashedError("The process that reads the file ended early.")


def _lines(
    child: subprocess.Popen[bytes], wall_seconds: float, check: Callable[[], None]
) -> Iterator[bytes]:
    """Lines of the child's standard output, until it ends; raises if it ended badly."""
    started = due = time.monotonic()
    pending, errors = b"", b""
    for name, data in _chunks(child):
        now = time.monotonic()
        if now >= due:
            due = now + _POLL_SECONDS
            check()
            if now - started > wall_seconds:
                raise TaskTimeoutError(f"Reading the file took longer than {wall_seconds:.0f} s.")
        if name == "stderr":
            errors = (errors + data)[-_STDERR_TAIL_BYTES:]
            continue
        *complete, pending = (pending + data).split(b"\n")
        yield from complete
        if len(pending) > _LONGEST_LINE_BYTES:
            raise TaskCrashedError(_NONSENSE)
    status = child.wait()
    await_own_end(status, check)
    if status == -signal.SIGXCPU:
        raise TaskTimeoutError("Reading the file took more processor time than is allowed.")
    if status < 0:
        name = signal.Signals(-status).name
        raise TaskCrashedError(f"The process that reads the file crashed ({name}).")
    if status > 0:
        last = errors.decode(errors="replace").strip().rsplit("\n", 1)[-1][:300]
        raise TaskCrashedError(f"The process that reads the file failed: {last}")


def _chunks(child: subprocess.Popen[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield what the child writes, as it comes; ("stdout", b"") when nothing came for a while."""
    with selectors.DefaultSelector() as selector:
        selector.register(cast("IO[bytes]", child.stdout), selectors.EVENT_READ, "stdout")
        selector.register(cast("IO[bytes]", child.stderr), selectors.EVENT_READ, "stderr")
        while selector.get_map():
            ready = selector.select(_POLL_SECONDS)
            if not ready:
                yield "stdout", b""
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                yield key.data, data


OWN_END_SECONDS = 4.0
"""How long a process whose child was killed waits for its own end."""


def await_own_end(status: int, check: Callable[[], None]) -> None:
    """Where a child's exit ``status`` is a kill by a third party, delay reporting it for a moment.

    Ray kills the children of a worker that it ends before the worker, as does a kill of a process
    tree: without the delay the file would get the blame, for good, in this process's last moments.
    Whatever ``check`` raises ends the wait.
    """
    if status != -signal.SIGKILL:
        return
    until = time.monotonic() + OWN_END_SECONDS
    while time.monotonic() < until:
        check()
        time.sleep(0.1)


_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/etc", "/proc", "/sys")
_DEVICES = ("null", "zero", "full", "random", "urandom", "shm", "dri", "kfd")
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

    It may read ``readable``, the system's folders, and files named in the command. Raises
    ProgramFailedError; whatever ``check`` raises ends the program within a fraction of a second.
    """
    program = shutil.which(command[0])
    if program is None:
        raise ProgramFailedError("could not be started", f"{command[0]} is not there")
    with _started("confinement", subprocess.DEVNULL, {"LC_ALL": "C.UTF-8"}) as child:
        watch = _Watch(child, folder, shares, check)
        try:
            send(child, _request([program, *command[1:]], folder, readable, shares))
            watch.until_exit()
        finally:
            # Everything that it started ends with it.
            family = _family(child)
            child.kill()
            for process in family:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            child.wait()
            psutil.wait_procs(family, timeout=2)


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
