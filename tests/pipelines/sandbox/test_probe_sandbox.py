"""The confined child process: what is taken from it, and what its end by force means."""

from __future__ import annotations

import json
import operator
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelines.ingest.measure import probe
from pipelines.ingest.streams import ProbeLimits
from pipelines.sandbox.confinement import Allowance
from pipelines.sandbox.parent import (
    OWN_END_SECONDS,
    ConfinedTask,
    TaskCrashedError,
    await_own_end,
    run_confined,
)
from pipelines.types import MediaInfo
from tests.tables import every

PROJECT = Path(__file__).resolve().parents[3]

PRELUDE = """
import ctypes, json, os, resource, socket, sys
from pipelines.sandbox import confinement
from pipelines.sandbox.confinement import Allowance, confine, leave_network, restrict_files
inside, outside, folder = sys.argv[1:4]
def attempt(action):
    try:
        action()
    except OSError as error:
        return type(error).__name__
    return "allowed"
def confined(**changes):
    amounts = {"memory_bytes": 1 << 30, "cpu_seconds": 5, "file_bytes": 1000, **changes}
    confine(Allowance(**amounts), parent=os.getppid(), readable=[inside], writable=[folder])
def answer(**values):
    print(json.dumps(values))
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Run lines of Python in a process of their own; returns what they answer."""
    inside, outside, folder = tmp_path / "inside", tmp_path / "outside", tmp_path / "folder"
    inside.write_text("in")
    outside.write_text("out")
    folder.mkdir()

    def run_lines(lines: str, *, status: int = 0) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + lines, inside, outside, folder],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout or "{}")
        return answer

    return run_lines


def test_files_other_than_those_named_are_out_of_reach(run: Any) -> None:
    answer = run(
        """
supported = restrict_files(ctypes.CDLL(None, use_errno=True), [inside], [folder])
answer(
    supported=supported,
    inside=attempt(lambda: open(inside).read()),
    change=attempt(lambda: open(inside, "w")),
    outside=attempt(lambda: open(outside).read()),
    beside=attempt(lambda: open(outside + "2", "w")),
    folder=attempt(lambda: open(folder + "/new", "w").write("x")),
    remove=attempt(lambda: os.remove(folder + "/new")),
)
"""
    )
    if not answer["supported"]:
        pytest.skip("this kernel has no Landlock")
    assert answer == {
        "supported": True,
        "inside": "allowed",
        "change": "PermissionError",
        "outside": "PermissionError",
        "beside": "PermissionError",
        "folder": "allowed",
        "remove": "allowed",
    }


def test_the_network_is_gone(run: Any) -> None:
    answer = run(
        """
server = socket.create_server(("127.0.0.1", 0))
port = server.getsockname()[1]
before = attempt(lambda: socket.create_connection(("127.0.0.1", port), 2))
supported = leave_network(ctypes.CDLL(None, use_errno=True))
after = attempt(lambda: socket.create_connection(("127.0.0.1", port), 2))
answer(before=before, supported=supported, after=after)
"""
    )
    assert answer["before"] == "allowed"
    if not answer["supported"]:
        pytest.skip("this process may not make network namespaces")
    assert answer["after"] != "allowed"


def test_memory_files_and_cores_are_limited(run: Any) -> None:
    answer = run(
        """
confined(file_bytes=1000, open_files=32)
def hog():
    try:
        bytearray(2 << 30)
    except MemoryError:
        raise OSError from None
def large_file():
    with open(folder + "/large", "wb", 0) as stream:
        for _ in range(100):
            stream.write(b"x" * 100)
answer(
    memory=attempt(hog),
    file=attempt(large_file),
    size=os.path.getsize(folder + "/large"),
    descriptors=attempt(lambda: [os.dup(0) for _ in range(100)]),
    core=resource.getrlimit(resource.RLIMIT_CORE),
)
"""
    )
    assert answer == {
        "memory": "OSError",
        "file": "OSError",
        "size": 1000,
        "descriptors": "OSError",
        "core": [0, 0],
    }


def test_an_allowance_of_no_file_bytes_lets_nothing_be_written(run: Any) -> None:
    answer = run(
        """
confined(file_bytes=0)
def write():
    with open(folder + "/a", "wb", 0) as stream:
        stream.write(b"x")
answer(write=attempt(write))
"""
    )
    assert answer == {"write": "OSError"}


def test_processor_time_runs_out_with_a_signal_that_says_so(run: Any) -> None:
    run("confined(cpu_seconds=1)\nwhile True: pass\n", status=-signal.SIGXCPU)


def test_a_child_whose_parent_is_gone_does_not_begin(run: Any) -> None:
    run(
        """
try:
    confine(Allowance(1 << 30, 5, 0), parent=1 << 22, readable=[], writable=[])
except ProcessLookupError:
    sys.exit(7)
""",
        status=7,
    )


def _task(program: Any, order: object, **changes: Any) -> ConfinedTask:
    allowance = Allowance(memory_bytes=2 << 30, cpu_seconds=10, file_bytes=0)
    values: dict[str, Any] = {"wall_seconds": 20.0, "readable": (), **changes}
    return ConfinedTask(program, order, allowance, **values)


def test_a_child_that_fails_on_its_own_says_how_in_one_line() -> None:
    with pytest.raises(TaskCrashedError, match="failed: TypeError: unsupported operand"):
        run_confined(_task(operator.add, 1), int)


def test_an_answer_of_another_type_is_nonsense() -> None:
    assert run_confined(_task(operator.is_, 1), bool) is False
    with pytest.raises(TaskCrashedError, match="nonsense"):
        run_confined(_task(operator.is_, 1), int)


def test_what_a_program_imports_late_is_imported_before_the_confinement() -> None:
    with pytest.raises(TaskCrashedError, match="ModuleNotFoundError: No module named 'nothing'"):
        run_confined(_task(operator.is_, 1, imports=("nothing",)), bool)


def test_nothing_of_the_parents_environment_or_pipes_reaches_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from outside: /proc shows the environment and open files of the waiting child."""
    monkeypatch.setenv("VAS_SECRET", "hunter2")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    secret = (tmp_path / "secret").open("w")
    os.set_inheritable(secret.fileno(), True)
    seen: dict[str, Any] = {}

    def look() -> None:
        for child in psutil.Process().children():
            try:
                seen.setdefault("environment", child.environ())
                seen["files"] = [entry.path for entry in child.open_files()]
            except psutil.AccessDenied:
                pytest.skip("a confined process is closed to all but root")
        if len(seen) == 2:
            raise InterruptedError

    task = _task(probe, (pipe, ProbeLimits()), readable=(pipe,))
    with pytest.raises(InterruptedError):
        run_confined(task, MediaInfo, check=look)
    secret.close()

    assert "VAS_SECRET" not in seen["environment"]
    assert str(tmp_path / "secret") not in seen["files"]


BLAMING = """
import sys
from pathlib import Path
from pipelines.sandbox.confinement import Allowance
from pipelines.sandbox.parent import ProgramFailedError, Shares, run_program
from pipelines.ingest.measure import probe
from pipelines.ingest.streams import ProbeLimits
from pipelines.sandbox.parent import ConfinedTask, TaskCrashedError, run_confined
way, pipe, folder = sys.argv[1], *map(Path, sys.argv[2:])
try:
    if way == "task":
        allowance = Allowance(2 << 30, 10, 0)
        order = (pipe, ProbeLimits())
        run_confined(ConfinedTask(probe, order, allowance, 20.0, (pipe,)), dict)
    else:
        shares = Shares(20.0, 1 << 30, 1 << 20)
        run_program(["sleep", "20"], folder, readable=[], shares=shares, check=lambda: None)
except (TaskCrashedError, ProgramFailedError) as error:
    print(f"the file is to blame: {error}")
"""


@pytest.mark.parametrize("way", ["task", "program"])
def test_a_worker_whose_children_are_ended_before_itself_blames_no_file(
    way: str, tmp_path: Path
) -> None:
    """As Ray ends a worker: its children, what holds it up, itself."""
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    command = [sys.executable, "-c", BLAMING, way, str(pipe), str(folder)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as worker:
        try:
            _the_child_of(worker.pid).kill()
            time.sleep(OWN_END_SECONDS / 4)
        finally:
            worker.kill()
        told, _ = worker.communicate(timeout=120)
    assert worker.returncode == -signal.SIGKILL
    assert told == ""


def _the_child_of(pid: int) -> psutil.Process:
    for _ in range(2400):
        time.sleep(0.05)
        if children := psutil.Process(pid).children():
            return children[0]
    raise AssertionError("no child was started")


@every("status", [0, 1, -signal.SIGSEGV, -signal.SIGXCPU])
def test_other_ends_are_told_at_once(status: int) -> None:
    def check() -> None:
        raise AssertionError("it waited")

    await_own_end(status, check)


def test_the_wait_ends_where_the_work_is_to_stop() -> None:
    def check() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        await_own_end(-signal.SIGKILL, check)
