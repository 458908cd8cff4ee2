"""A run of the tests in a script's background ends and passes as one in the foreground."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.background import in_background
from tests.places import PROJECT

CONFTEST = """
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
    (tmp_path / "conftest.py").write_text(CONFTEST)
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
