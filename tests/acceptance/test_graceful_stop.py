"""SIGTERM in the middle of everything: work is handed over, and the next start goes on with it."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import psutil
import pytest

from tests.acceptance.service import Service, running, wait_until

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

STOP_SECONDS = 60
TUS = {"Tus-Resumable": "1.0.0"}
PATCH = TUS | {"Content-Type": "application/offset+octet-stream"}


def test_a_stopped_service_hands_over_its_jobs_and_uploads(tmp_path: Path, excerpt: Path) -> None:
    data = tmp_path / "data"
    with running(data, tmp_path / "first.log", VAS_SEGMENT_SECONDS="5") as first:
        undisturbed = first.submit(excerpt)
        assert first.ended(undisturbed)["state"] == "completed"
        expected = first.results(undisturbed)
        waiting, upload = half_an_upload(first, excerpt)
        busy = [first.submit(excerpt) for _ in range(3)]
        wait_until(lambda: processing(first) == 2, 60, "two jobs run and one waits")
        family = first.processes()
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(STOP_SECONDS) == 0
        gone = psutil.wait_procs(family, 15)
        assert gone[1] == [], "processes are left over"
    with running(data, tmp_path / "second.log", VAS_SEGMENT_SECONDS="5") as second:
        service = Service(second.process, second.base_url, first.api_key, data, second.port)
        # Handed back, not lost: a stop in order is none of the three lives of a job.
        assert leases(service, busy) <= {0, 1}
        rest_of_an_upload(service, upload, excerpt)
        for job_id in (*busy, waiting):
            assert service.ended(job_id)["state"] == "completed"
            assert service.results(job_id) == expected
        held = service.query("SELECT sum(held_cents) FROM accounts")
        assert held == [(0,)]
        assert list((data / "objects").rglob(".tmp-*")) == []


def half_an_upload(service: Service, clip: Path) -> tuple[str, str]:
    """A job with half of its media; the job's id and the path of its resumable upload."""
    with service.client() as client:
        job = client.create_job(clip.name, clip.stat().st_size)
    url = job["resumableUploadUrl"]
    content = clip.read_bytes()[: clip.stat().st_size // 2]
    headers = PATCH | {"Upload-Offset": "0"}
    answer = httpx.patch(url, content=content, headers=headers, trust_env=False, timeout=60)
    assert answer.status_code == 204, answer.text
    return job["jobId"], url.removeprefix(service.root)


def rest_of_an_upload(service: Service, path: str, clip: Path) -> None:
    url = service.root + path
    standing = httpx.head(url, headers=TUS, trust_env=False, timeout=60)
    offset = int(standing.headers["upload-offset"])
    assert offset == clip.stat().st_size // 2
    headers = PATCH | {"Upload-Offset": str(offset)}
    content = clip.read_bytes()[offset:]
    answer = httpx.patch(url, content=content, headers=headers, trust_env=False, timeout=60)
    assert answer.status_code == 204, answer.text


def processing(service: Service) -> int:
    [(count,)] = service.query("SELECT count(*) FROM jobs WHERE state = 'processing'")
    return int(count)


def leases(service: Service, job_ids: list[str]) -> set[int]:
    """How many leases the jobs have had that were not handed back."""
    rows = service.query("SELECT lease_count FROM jobs WHERE id::text = ANY(%s)", job_ids)
    return {int(row[0]) for row in rows}
