"""A stop in the middle of everything, and a kill: the next start goes on with the work."""

from __future__ import annotations

import contextlib
import json
import signal
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.service_jobs import first_seconds
from serve_app.deployment import local as local_service
from serve_app.errors import ApiError
from serve_app.jobs.service import cancel_job
from storage.database import embedded_postgres
from tests.acceptance.service import Service, running, wait_until
from tests.places import DEMO, PROJECT

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

STOP_SECONDS = 60
CLIP_SECONDS = 6.0
SPOKEN = PROJECT / "tests" / "media" / "speech" / "one_voice.flac"
SETTINGS = {
    "VAS_SEGMENT_SECONDS": "3",
    "VAS_MODEL_REPLICAS": '{"transcribe": 1}',
}
TUS = {"Tus-Resumable": "1.0.0"}
PATCH = TUS | {"Content-Type": "application/offset+octet-stream"}


@pytest.mark.long
def test_what_was_under_way_goes_on_after_a_stop_in_order_and_after_a_hard_kill(
    tmp_path: Path,
) -> None:
    """Three starts on one folder: the first is stopped, the second killed, the third looks."""
    data = tmp_path / "data"
    clip = first_seconds(DEMO, tmp_path / "clip.mp4", CLIP_SECONDS)
    with running(data, tmp_path / "first.log", **SETTINGS) as first:
        waiting, upload = half_an_upload(first, clip)
        busy = [first.submit(clip) for _ in range(3)]
        wait_until(lambda: processing(first) == 2, 60, "two jobs run and one waits")
        family = first.processes()
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(STOP_SECONDS) == 0
        gone = psutil.wait_procs(family, 15)
        assert gone[1] == [], "processes are left over"
    with running(data, tmp_path / "second.log", **SETTINGS) as second:
        service = Service(second.process, second.base_url, first.api_key, data, second.port)
        # Requeued, not lost: a stop in order does not count towards the most leases of a job.
        assert leases(service, busy) <= {0, 1}
        rest_of_an_upload(service, upload, clip)
        for job_id in (waiting, *busy):
            service.completed(job_id)
            # Nothing disturbed the analysis of the one that waited for its upload.
            assert service.results(job_id) == service.results(waiting)
        held = service.query("SELECT sum(held_cents) FROM accounts")
        assert held == [(0,)]
        assert list((data / "objects").rglob(".tmp-*")) == []

        assert haproxies(data)
        orphans = second.processes() + haproxies(data)
        interrupted = service.submit(SPOKEN)
        second.process.kill()
        second.process.wait(10)
    with running(data, tmp_path / "third.log", **SETTINGS) as third:
        assert [process for process in orphans if process.is_running()] == []
        shows_its_jobs_to_us_alone(third, first.api_key, interrupted)
        service = Service(third.process, third.base_url, first.api_key, data, third.port)
        service.completed(interrupted)
        leftover = third.processes()
    assert third.process.returncode == 0
    wait_until(lambda: not any(p.is_running() for p in leftover), 15, f"still there: {leftover}")
    assert not (data / "run.json").exists()


def shows_its_jobs_to_us_alone(service: Service, key: str, job_id: str) -> None:
    answer = httpx.get(
        f"{service.base_url}/jobs/{job_id}", headers={"X-API-Key": key}, trust_env=False
    )
    assert answer.status_code == 200
    # Every answer carries one request id, ours, and the side doors are not open to the world.
    assert len(answer.headers.get_list("x-request-id")) == 1
    assert answer.headers["x-request-id"] == answer.json()["requestId"]
    for process in haproxies(service.data):
        for connection in process.net_connections(kind="tcp"):
            assert connection.laddr.ip == "127.0.0.1"


def haproxies(data: Path) -> list[psutil.Process]:
    """HAProxy processes below this service, or left by it."""
    record = json.loads((data / "run.json").read_text())
    return local_service._proxies(Path(record["run_dir"]))


def test_after_a_hard_kill_work_goes_on_and_a_stop_requeues_it(
    service: Service, tmp_path: Path
) -> None:
    """The last of the shared service: it is killed, and another on its folder stopped in order."""
    first, data = service, service.data
    clip = first_seconds(DEMO, tmp_path / "clip.mp4", CLIP_SECONDS)
    wait_until(lambda: cancelled_all(first), 60, "nothing is left of other tests")
    waiting, upload = half_an_upload(first, clip)
    interrupted = first.submit(clip)
    wait_until(lambda: processing(first) == 1, 60, "the job runs")
    assert haproxies(data)
    orphans = first.processes() + haproxies(data)
    first.process.kill()
    first.process.wait(10)
    with running(data, tmp_path / "second.log", **first.settings) as second:
        assert [process for process in orphans if process.is_running()] == []
        shows_its_jobs_to_us_alone(second, first.api_key, interrupted)
        service = Service(second.process, second.base_url, first.api_key, data, second.port)
        rest_of_an_upload(service, upload, clip)
        for job_id in (interrupted, waiting):
            service.completed(job_id)
        assert service.results(interrupted) == service.results(waiting)
        busy = [service.submit(clip) for _ in range(3)]
        wait_until(lambda: processing(service) == 2, 60, "two jobs run and one waits")
        family = second.processes()
        second.process.send_signal(signal.SIGINT)
        assert second.process.wait(STOP_SECONDS) == 0
        assert psutil.wait_procs(family, 15)[1] == [], "processes are left over"
    assert not (data / "run.json").exists()
    with embedded_postgres(data / "postgres"):
        # Requeued, not lost: a stop in order does not count towards the most leases of a job.
        assert leases(service, busy) == {0}
        assert service.query("SELECT count(*) FROM stages WHERE status = 'running'") == [(0,)]


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


def cancelled_all(service: Service) -> bool:
    """Cancel the jobs of every account; whether none is under way."""
    under_way = "SELECT account_id, id FROM jobs WHERE state IN ('queued', 'processing')"
    for account, job in service.query(under_way):
        # It may have ended by itself meanwhile.
        with contextlib.suppress(ApiError):
            service.transact(partial(cancel_job, account_id=account, job_id=str(job)))
    return not service.query(under_way)


def leases(service: Service, job_ids: list[str]) -> set[int]:
    """How many leases the jobs have had that count towards the most."""
    rows = service.query("SELECT lease_count FROM jobs WHERE id::text = ANY(%s)", job_ids)
    return {int(row[0]) for row in rows}
