"""Whose end it is when a child that reads a file is killed: mostly the parent's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pipelines.sandbox.parent import OWN_END_SECONDS, await_own_end

PROJECT = Path(__file__).resolve().parents[3]

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


@pytest.mark.parametrize("status", [0, 1, -signal.SIGSEGV, -signal.SIGXCPU])
def test_other_ends_are_told_at_once(status: int) -> None:
    def check() -> None:
        raise AssertionError("it waited")

    await_own_end(status, check)


def test_the_wait_ends_where_the_work_is_to_stop() -> None:
    def check() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        await_own_end(-signal.SIGKILL, check)
