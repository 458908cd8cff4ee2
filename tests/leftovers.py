"""A run of the tests leaves nothing behind: a check at its end, and a temporary folder of its own.

Everything that the run starts inherits the folder as ``TMPDIR``, and pytest's own folders lie below
it. What a process has open, where it works, and its command line name it too: so the processes of
other runs on the same machine are told apart. Nor do other runs change who may enter the folder: in
its usual place pytest does so at each start, and takes databases from under servers of other users.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import string
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.util import Finalize
from pathlib import Path

import psutil
import pytest

from tests.places import in_memory

LONGEST_PATH = 8
"""Of a temporary folder below which a service can keep the sockets of its proxy; see there."""
OF_PYTEST = "pytest"
"""Folders of single tests; those of failed ones stay where they are for a day."""
KEPT = "kept"
"""In the folder of a run that failed."""
KEPT_SECONDS = 86_400
PATIENCE_SECONDS = 20.0
"""Ray's processes end some seconds after the one that they were started for."""
SHARED = {".lockfile", "ray", "torchinductor_root", f"vas-node-cache-{os.getuid()}"}
"""What is kept in the temporary folder for the processes that come after."""
OF_MULTIPROCESSING = "pymp-"
"""Folders of sockets that Python removes when a process ends, which xdist's workers do abruptly."""
_HELPERS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")
"""Children of this very process that end with it."""


class Leftovers:
    """The plugin of the process that a run was started with."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._usual = tempfile.gettempdir()
        self._has_failed = True
        place = short_place(self._usual)
        _remove_kept(place)
        self.folder = _new_folder(place)
        # When the interpreter ends: what is imported later may write its lock once more, and
        # multiprocessing removes its own folder, with a priority of -100.
        Finalize(None, self._remove, exitpriority=-200)
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.folder)
        if config.option.basetemp is None:
            config.option.basetemp = str(self.folder / OF_PYTEST)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        """Once fixtures and workers have ended: the run fails where something of it is left."""
        found = yield
        if left := self.left():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self._report(left)
        self._has_failed = bool(session.testsfailed) or bool(left)
        return found

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """What comes after the run has the usual place again."""
        tempfile.tempdir = os.environ["TMPDIR"] = self._usual

    def _remove(self) -> None:
        """The folder goes, but for what failed tests left in theirs."""
        for path in in_memory(self.folder):
            shutil.rmtree(path, ignore_errors=True)
        kept = self.folder / OF_PYTEST
        if not (self._has_failed and kept.is_dir()):
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for path in set(self.folder.iterdir()) - {kept}:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
        (self.folder / KEPT).touch()

    def left(self) -> list[str]:
        """Sentences on what is left; processes among it are ended."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (living := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.2)
        sentences = [f"process {pid}: {line}" for pid, line in _described(living)]
        for process in living:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(living, PATIENCE_SECONDS)
        with contextlib.suppress(OSError):
            # Empty where a worker was killed as it went: whoever uses the next one removes it.
            (self.folder / f"vas-objects-{os.getuid()}").rmdir()
        return (
            sentences
            + [
                f"in the temporary folder: {path.relative_to(self.folder)}"
                for name in sorted(path.name for path in self.folder.iterdir())
                if name not in {*SHARED, OF_PYTEST} and not name.startswith(OF_MULTIPROCESSING)
                for path in (self.folder / name, *sorted((self.folder / name).glob("*")))
            ]
            + [f"in memory: {path}" for path in in_memory(self.folder)]
        )

    def _processes(self) -> list[psutil.Process]:
        """Living processes of the run, this one and those above it excepted."""
        own = psutil.Process()
        others = {own.pid, *(parent.pid for parent in own.parents())}
        children = {child.pid for child in own.children(recursive=True)}
        marks = [str(self.folder)]
        factory = getattr(self._config, "_tmp_path_factory", None)
        if factory is not None and factory._basetemp is not None:
            marks.append(str(factory._basetemp))
        return [
            process
            for process in psutil.process_iter()
            if process.pid not in others
            and (process.pid in children or _names(process, marks))
            and not _ends_with(own, process)
        ]

    def _report(self, left: Sequence[str]) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None:
            return
        report = pytest.TestReport(
            nodeid="what the run left behind",
            location=("", None, ""),
            keywords={},
            outcome="failed",
            longrepr="\n".join(left),
            when="teardown",
        )
        reporter.stats.setdefault("error", []).append(report)


def short_place(usual: str) -> str:
    """The usual place of temporary files where its path is short enough."""
    return usual if len(usual) <= LONGEST_PATH - 4 else "/tmp"  # noqa: S108


def _remove_kept(place: str) -> None:
    """What is kept of failed runs, a day after."""
    for mark in Path(place).glob(f"*/{KEPT}"):
        with contextlib.suppress(OSError):
            if mark.stat().st_mtime < time.time() - KEPT_SECONDS and _is_name(mark.parent.name):
                shutil.rmtree(mark.parent, ignore_errors=True)


def _is_name(name: str) -> bool:
    return len(name) < LONGEST_PATH and set(name) <= set(string.hexdigits)


def _new_folder(place: str) -> Path:
    """A folder with the shortest of names."""
    for _ in range(1000):
        folder = Path(place) / secrets.token_hex(2)[: LONGEST_PATH - len(place) - 1]
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o755)
            return folder
    raise RuntimeError(f"no free name in {place}")


def _names(process: psutil.Process, marks: Sequence[str]) -> bool:
    """Whether a living process has one of the folders in anything that can be known of it."""
    with contextlib.suppress(psutil.Error, OSError):
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        known = [*process.environ().values(), *process.cmdline(), process.cwd()]
        known += [file.path for file in process.open_files()]
        return any(f"{mark}/" in f"{text}/" for mark in marks for text in known)
    return False


def _ends_with(own: psutil.Process, process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        is_helper = any(name in " ".join(process.cmdline()) for name in _HELPERS)
        return process.status() == psutil.STATUS_ZOMBIE or (is_helper and process.ppid() == own.pid)
    return True


def _described(processes: Sequence[psutil.Process]) -> Iterator[tuple[int, str]]:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            yield process.pid, " ".join(process.cmdline())[:300] or process.name()
