"""A service with one logical CPU and two API replicas: no deadlock, and limits that still hold."""

from __future__ import annotations

import collections
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from serve_app.http.rate_limits import LIMITS, Bucket
from serve_app.operator_commands import create_account, create_key, in_transaction
from serve_app.settings import Settings
from tests.acceptance.service import Service, running
from tests.api.running_api import wait_for_a_fresh_minute
from tests.benchmarks.service_jobs import first_seconds
from tests.places import DEMO

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

CLIENTS = 20


@pytest.fixture(scope="module")
def small_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("small")
    environment = {
        "VAS_RAY_CPUS": "1",
        "VAS_API_REPLICAS": "2",
        "VAS_RUNNER_CONCURRENCY": "4",
        "VAS_TRANSCRIBER_REPLICAS": "1",
    }
    with running(folder / "data", folder / "service.log", **environment) as started:
        yield started


def test_twenty_jobs_on_one_logical_cpu_all_complete_alike(
    small_service: Service, tmp_path_factory: pytest.TempPathFactory
) -> None:
    clip = first_seconds(DEMO, tmp_path_factory.mktemp("clip") / "clip.mp4", 4.0)
    jobs = [small_service.submit(clip) for _ in range(20)]
    states = [small_service.ended(job, timeout_seconds=300)["state"] for job in jobs]
    assert states == ["completed"] * 20
    first = small_service.results(jobs[0])
    assert len(first["scenes"]) == 2
    assert all(small_service.results(job) == first for job in jobs[1:])


def fresh_key(service: Service) -> str:
    """A key of an account that has not been counted yet, made beside the running service."""
    settings = Settings(data_dir=service.data)
    name = uuid.uuid4().hex
    in_transaction(settings, lambda connection: create_account(connection, name))
    key: str = in_transaction(settings, lambda connection: create_key(connection, name))["key"]
    return key


def test_two_replicas_behind_the_proxy_count_as_one(small_service: Service) -> None:
    limit = LIMITS[Bucket.READS]
    each = limit // CLIENTS + 5
    headers = {"X-API-Key": fresh_key(small_service)}
    wait_for_a_fresh_minute(30)
    started = int(time.time()) // 60

    def work(_: int) -> list[int]:
        with httpx.Client(headers=headers, trust_env=False, timeout=30) as client:
            url = f"{small_service.base_url}/jobs/{uuid.uuid4()}"
            return [client.get(url).status_code for _ in range(each)]

    with ThreadPoolExecutor(CLIENTS) as pool:
        counts = collections.Counter(
            status for part in pool.map(work, range(CLIENTS)) for status in part
        )
    assert int(time.time()) // 60 == started, "the machine was too slow for one window"
    assert counts == {404: limit, 429: each * CLIENTS - limit}
    titles = [" ".join(process.cmdline()) for process in small_service.processes()]
    assert sum("ServeReplica:vas:Api" in title for title in titles) == 2
