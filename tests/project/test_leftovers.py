"""A run that leaves a process or a file behind fails and names it; one that leaves none passes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.background import in_background
from tests.places import PROJECT

CONFTEST = """
import os
from tests import leftovers
from tests.leftovers import Leftovers

leftovers.PATIENCE_SECONDS = 3.0

def pytest_configure(config):
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Leftovers(config))
"""
PROCESS = """
import subprocess, sys

def test_it():
    # It has a session of its own, is nobody's child, and does not show its environment.
    program = "import time; time.sleep(300)"
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {program!r}])"
    subprocess.run([sys.executable, "-c", start], start_new_session=True, check=True)
"""
FOLDER = """
import tempfile

def test_it():
    tempfile.mkdtemp(prefix="vas-forgotten-")
"""
NOTHING = """
import multiprocessing.util, subprocess, sys, tempfile

def test_it(tmp_path):
    (tmp_path / "file").write_text("x")
    # Python removes it when the interpreter ends.
    multiprocessing.util.get_temp_dir()
    with tempfile.TemporaryDirectory(prefix="vas-"):
        subprocess.run([sys.executable, "-c", ""], check=True)
"""


def run(folder: Path, test: str, *options: str) -> subprocess.CompletedProcess[str]:
    """One run of pytest over ``test``, with the check."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(test)
    # With CI set, pytest prints what failed a second time, in its summary.
    environment = {k: v for k, v in os.environ.items() if "PYTEST" not in k and k != "CI"}
    environment |= {"PYTHONPATH": str(PROJECT), "TMPDIR": str(folder)}
    # Loading the plugins of the suite takes longer than the run.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(folder)]
    command += [
        "-p",
        "xdist",
        "-p",
        "no:cacheprovider",
        "--basetemp",
        str(folder / "base"),
        *options,
    ]
    command += [str(folder / "test_it.py")]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "with a worker"])
def test_a_process_that_lives_on_fails_the_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    ended = run(tmp_path, PROCESS, *options)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout + ended.stderr
    [line] = [line for line in ended.stdout.splitlines() if "time.sleep(300)" in line]
    assert "1 passed, 1 error" in ended.stdout
    pid = int(line.split(":")[0].removeprefix("process "))
    assert not psutil.pid_exists(pid)


def test_a_folder_that_stays_fails_the_run(tmp_path: Path) -> None:
    ended = run(tmp_path, FOLDER)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout + ended.stderr
    assert "in the temporary folder: vas-forgotten-" in ended.stdout


def test_a_run_that_leaves_nothing_passes(tmp_path: Path) -> None:
    ended = run(tmp_path, NOTHING)
    assert ended.returncode == pytest.ExitCode.OK, ended.stdout + ended.stderr
    assert ended.stderr == ""
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} <= {"__pycache__", "base"}


BACKGROUND_CONFTEST = """
from tests.background import restore_signals

def pytest_configure():
    restore_signals()
"""
TEST = """
import os, pathlib, signal, subprocess, sys

def test_it():
    program = "import signal; signal.raise_signal(signal.SIGINT)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == -signal.SIGINT
    pathlib.Path("helper was interrupted").touch()
    os.kill(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid(), signal.SIGINT)
    signal.pause()
"""
INTERRUPTED = 2


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_in_the_background_can_be_interrupted_with_all_that_it_starts(
    tmp_path: Path, workers: str
) -> None:
    (tmp_path / "conftest.py").write_text(BACKGROUND_CONFTEST)
    (tmp_path / "test_it.py").write_text(TEST)
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment |= {"PYTHONPATH": str(PROJECT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider"]
    command += ["--basetemp", str(tmp_path / "base"), "-p", "xdist", "-n", workers]
    command += [str(tmp_path / "test_it.py")]
    ended = subprocess.run(
        in_background(command),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == INTERRUPTED, ended.stdout + ended.stderr
    assert (tmp_path / "helper was interrupted").exists()
    assert "KeyboardInterrupt" in ended.stdout
