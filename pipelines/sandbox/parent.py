"""Running work on files that nobody vouches for, in a child process that can do no harm.

The child is a fresh interpreter (see ``worker``) with an empty environment. It
reads one JSON line, the request, and answers in JSON lines on its standard
output: events while it works, each answered by the parent before it goes on,
and one result or refusal at the end. Nothing it sends is evaluated.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

import pipelines
from pipelines.sandbox.confinement import Allowance

Message = dict[str, Any]

_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); from pipelines.sandbox.child import main; main()"
)
_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PATH": os.defpath, "OPENBLAS_NUM_THREADS": "1"}
"""decord looks for its library along the path; numpy's threads would take memory for nothing."""
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
class Task:
    """One piece of work for a confined child process."""

    name: str
    """Which function of ``worker`` to run."""
    arguments: Message
    allowance: Allowance
    wall_seconds: float
    readable: tuple[Path, ...]
    writable: tuple[Path, ...] = ()
    descriptors: tuple[int, ...] = ()
    """Open files that the child gets, under the same numbers."""


def run_confined(
    task: Task,
    *,
    on_event: Callable[[Message], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> Message:
    """Run ``task`` in a child process and return what it answers.

    ``on_event`` takes the child's events; the child waits until it returns.
    ``check`` is called several times a second; whatever it or ``on_event``
    raises ends the child at once. Raises TaskRefusedError, TaskTimeoutError,
    TaskCrashedError, and OSError where the disk is full.
    """
    with _started(task.descriptors) as child:
        _send(child, _request(task))
        return _answer(child, _lines(child, task.wall_seconds, check), on_event)


@contextlib.contextmanager
def _started(descriptors: tuple[int, ...]) -> Iterator[subprocess.Popen[bytes]]:
    """A child process for the block; nothing of it is left afterwards."""
    child = _start(descriptors)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            cast("IO[bytes]", pipe).close()


def _start(descriptors: tuple[int, ...]) -> subprocess.Popen[bytes]:
    root = str(Path(pipelines.__file__).resolve().parents[1])
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return subprocess.Popen(  # noqa: S603 - our own interpreter, fixed arguments
        [sys.executable, "-I", "-c", _BOOTSTRAP, root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env={**_ENVIRONMENT, **kept},
        cwd="/",
        start_new_session=True,
        pass_fds=descriptors,
    )


def _request(task: Task) -> Message:
    return {
        "task": task.name,
        "arguments": task.arguments,
        "allowance": asdict(task.allowance),
        "parent": os.getpid(),
        "readable": [str(path) for path in task.readable],
        "writable": [str(path) for path in task.writable],
    }


def _send(child: subprocess.Popen[bytes], message: Message) -> None:
    with contextlib.suppress(BrokenPipeError):  # it is gone; its output says how it ended
        cast("IO[bytes]", child.stdin).write(json.dumps(message).encode() + b"\n")


def _answer(
    child: subprocess.Popen[bytes], lines: Iterator[bytes], on_event: Callable[[Message], None]
) -> Message:
    for line in lines:
        message = _parsed(line)
        match message.get("kind"):
            case "event":
                on_event(message["value"])
                _send(child, {})
            case "done":
                result: Message = message["value"]
                return result
            case "refused":
                raise TaskRefusedError(str(message["code"]), str(message["message"]))
            case "full":
                raise OSError(errno.ENOSPC, "There is no room for what is cut out of the file.")
            case _:
                raise TaskCrashedError("The process that reads the file answered nonsense.")
    raise TaskCrashedError("The process that reads the file ended early.")


def _parsed(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except ValueError as error:
        raise TaskCrashedError("The process that reads the file answered nonsense.") from error
    if not isinstance(message, dict):
        raise TaskCrashedError("The process that reads the file answered nonsense.")
    return message


def _lines(
    child: subprocess.Popen[bytes], wall_seconds: float, check: Callable[[], None]
) -> Iterator[bytes]:
    """Lines of the child's standard output, until it ends; raises if it ended badly."""
    checks = _Checks(wall_seconds, check)
    pending, errors = b"", b""
    for name, data in _chunks(child):
        checks.run()
        if name == "stderr":
            errors = (errors + data)[-_STDERR_TAIL_BYTES:]
            continue
        *complete, pending = (pending + data).split(b"\n")
        yield from complete
        if len(pending) > _LONGEST_LINE_BYTES:
            raise TaskCrashedError("The process that reads the file answered nonsense.")
    await_own_end(child.wait(), check)
    _raise_exit(child.returncode, errors.decode(errors="replace"))


class _Checks:
    """Looks at the clock, and asks whether to go on, no more often than needed."""

    def __init__(self, wall_seconds: float, check: Callable[[], None]) -> None:
        self._wall_seconds, self._check = wall_seconds, check
        self._started = self._next = time.monotonic()

    def run(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _POLL_SECONDS
        self._check()
        if now - self._started > self._wall_seconds:
            seconds = f"{self._wall_seconds:.0f} s"
            raise TaskTimeoutError(f"Reading the file took longer than {seconds}.")


def _chunks(child: subprocess.Popen[bytes]) -> Iterator[tuple[str, bytes]]:
    """What the child writes, as it comes; ("stdout", b"") when nothing came for a while."""
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


def _raise_exit(status: int, errors: str) -> None:
    if status == -signal.SIGXCPU:
        raise TaskTimeoutError("Reading the file took more processor time than is allowed.")
    if status < 0:
        name = signal.Signals(-status).name
        raise TaskCrashedError(f"The process that reads the file crashed ({name}).")
    if status > 0:
        last = errors.strip().rsplit("\n", 1)[-1][:300]
        raise TaskCrashedError(f"The process that reads the file failed: {last}")


OWN_END_SECONDS = 4.0
"""How long a process whose child was killed waits for its own end."""
_KILL_POLL_SECONDS = 0.1


def await_own_end(status: int, check: Callable[[], None]) -> None:
    """Where a child's exit ``status`` is a kill by another hand, wait a moment before it is told.

    Ray kills the children of a worker that it ends before the worker, and so may whoever ends a
    tree of processes: told at once, the file would be blamed, for good, in the process's last
    moments. Whatever ``check`` raises ends the wait.
    """
    if status != -signal.SIGKILL:
        return
    until = time.monotonic() + OWN_END_SECONDS
    while time.monotonic() < until:
        check()
        time.sleep(_KILL_POLL_SECONDS)
