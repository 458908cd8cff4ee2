"""Damaged, lying and hostile files, several at a time: what becomes of the service itself.

A service of their own is watched while they are its jobs. ``test_damaged_files`` has what becomes
of single ones, ``tests/pipelines/ingest/test_damaged.py`` each kind of damage.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.service import Service, running
from tests.pipelines.ingest.damaged_media import BOMBS, damaged_files
from tests.pipelines.ingest.format_samples import STANDARD, write_sample

MEMORY_BOUND_BYTES = 10 << 30
"""Of all the service's processes together, databases and models included."""

HOSTILE = {
    "billion.mp4": "VALIDATION_FAILED",
    "packets.mka": None,
    "list.m3u8": "VALIDATION_FAILED",
    "rate.wav": "VALIDATION_FAILED",
}
"""Bombs, and the code of each; one is media all the same, and takes long."""

pytestmark = [pytest.mark.service, pytest.mark.long, pytest.mark.timeout(900)]


@dataclass(slots=True)
class Memory:
    """Samples the service's memory in a thread of its own."""

    service: Service
    peak_bytes: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def sample(self) -> None:
        while not self._stop.wait(2.0):
            self.peak_bytes = max(self.peak_bytes, self.service.resident_bytes())

    def stop(self) -> None:
        self._stop.set()


@dataclass(slots=True)
class Run:
    """All files sent through one service, and what was seen of it meanwhile."""

    service: Service
    jobs: dict[str, dict[str, Any]]
    """By the names of their files."""
    replicas_before: set[tuple[str, int]]
    replicas_after: set[tuple[str, int]]
    peak_bytes: int


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Two whole files, six damaged variants of them, and the bombs."""
    folder = tmp_path_factory.mktemp("damaged")
    originals = [write_sample(folder, STANDARD[0]), write_sample(folder, STANDARD[8])]
    files = [*originals]
    files += [file.path for file in damaged_files(originals, folder, seed=1, count=6)]
    for name in HOSTILE:
        (folder / name).write_bytes(BOMBS[name]())
        files.append(folder / name)
    settings = {
        "VAS_SEGMENT_SECONDS": "5",
        # What grows with the load shrinks again: that would look like a death.
        "VAS_MODEL_REPLICAS": '{"transcribe": 1}',
    }
    with running(folder / "data", folder / "service.log", **settings) as service:

        def send(path: Path) -> dict[str, Any]:
            return service.ended(service.submit(path))

        before, memory = replicas(service), Memory(service)
        watcher = threading.Thread(target=memory.sample, daemon=True)
        watcher.start()
        with ThreadPoolExecutor(8) as pool:
            ended = dict(zip((path.name for path in files), pool.map(send, files), strict=True))
        memory.stop()
        watcher.join()
        yield Run(service, ended, before, replicas(service), memory.peak_bytes)


def replicas(service: Service) -> set[tuple[str, int]]:
    """Deployments' replicas with their processes."""
    found = set()
    for process in service.processes():
        # Ray puts what a replica is called for at the moment behind its name.
        name = re.match(r"ray::ServeReplica:vas:\w+", " ".join(process.cmdline()))
        if name:
            found.add((name.group(), process.pid))
    return found


def test_bombs_are_refused_and_one_that_is_media_is_analysed(run: Run) -> None:
    for name, code in HOSTILE.items():
        assert (run.jobs[name].get("error") or {"code": None})["code"] == code, run.jobs[name]


def test_no_worker_died_and_nobody_was_run_twice(run: Run) -> None:
    assert run.replicas_after >= run.replicas_before
    [(leases,)] = run.service.query("SELECT max(lease_count) FROM jobs")
    assert leases == 1


def test_memory_stays_bounded(run: Run) -> None:
    assert 0 < run.peak_bytes < MEMORY_BOUND_BYTES
