"""A disk that fills up under the object store: uploads are put off, jobs wait for room."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.chaos.clips import make_clips
from tests.acceptance.service import Service, running, wait_until
from tests.disks import mounted

pytestmark = [pytest.mark.service, pytest.mark.long, pytest.mark.timeout(900)]

DISK_BYTES = 160 * 1024**2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own where the service keeps its objects."""
    folder = tmp_path / "data" / "objects"
    folder.mkdir(parents=True)
    with mounted(folder, DISK_BYTES):
        yield folder


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """Not a byte more fits for the block."""
    ballast = folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
            while True:
                stream.write(bytes(4096))
        assert os.statvfs(folder).f_bavail == 0
        yield
    finally:
        ballast.unlink()


def put(job: dict[str, str], data: bytes) -> httpx.Response:
    headers = {"Content-Type": "application/octet-stream"}
    return httpx.put(job["uploadUrl"], content=data, headers=headers, trust_env=False, timeout=60)


def test_a_full_disk_costs_time_and_nothing_else(
    small_disk: Path, tmp_path: Path, excerpt: Path
) -> None:
    clip = make_clips(tmp_path / "clips")["opening"]
    log = tmp_path / "service.log"
    with running(tmp_path / "data", log, VAS_SEGMENT_SECONDS="3") as service:
        undisturbed = {path: service.submit(path) for path in (excerpt, clip.path)}
        expected = {path: completed(service, job_id) for path, job_id in undisturbed.items()}
        with service.client() as client:
            late = client.create_job(clip.path.name, len(clip.data))
        disturbed = service.submit(excerpt)
        wait_until(lambda: state(service, disturbed) == "processing", 60, "it runs")
        with full(small_disk):
            refused = put(late, clip.data)
            wait_until(lambda: waited(tmp_path / "data"), 60, "a stage waits for room")
        assert refused.status_code == 503
        assert refused.headers["retry-after"].isdigit()
        assert put(late, clip.data).status_code == 200
        assert completed(service, disturbed) == expected[excerpt]
        assert completed(service, late["jobId"]) == expected[clip.path]


def completed(service: Service, job_id: str) -> dict[str, object]:
    service.completed(job_id)
    return service.results(job_id)


def state(service: Service, job_id: str) -> str:
    with service.client() as client:
        return str(client.get_job(job_id)["state"])


def waited(data: Path) -> bool:
    """Whether the log says that a stage waits."""
    return any(" waits: " in path.read_text() for path in (data / "logs").glob("*.log*"))
