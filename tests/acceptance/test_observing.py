"""What an operator sees of a running service: health, metrics over HTTP, the log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from serve_app.observability.logs import LOG_NAME
from serve_app.observability.metrics import (
    ACCOUNTS_CENTS,
    CATALOGUE,
    HTTP_REQUESTS,
    JOBS,
    JOBS_ENDED,
    LEDGER_CENTS,
    LEDGER_ENTRIES,
    MEDIA,
    MODEL_BATCHES,
    MODEL_SECONDS,
    QUEUE_AGE,
    STAGES,
    UPLOADS_UNDER_WAY,
    WEBHOOKS_OPEN,
)
from tests.acceptance.service import Service, wait_until

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

SCRAPED_SECONDS = 60
"""Ray hands values on every ten seconds, on a busy machine later."""

_LINE = re.compile(r"^(ray_vas_\w+)\{(.*)\} (\S+)$", re.MULTILINE)


def get(url: str) -> httpx.Response:
    return httpx.get(url, trust_env=False, timeout=120)


def scrape(service: Service) -> list[tuple[str, str, float]]:
    """Name, labels as they stand there, and value of each of our series."""
    text = get(f"http://127.0.0.1:{service.metrics_port}/metrics").text
    return [(name, labels, float(value)) for name, labels, value in _LINE.findall(text)]


def total(service: Service, name: str, *labels: str) -> float:
    return sum(
        value
        for found, shown, value in scrape(service)
        if found == name and all(label in shown for label in labels)
    )


def test_load_balancers_need_no_key(service: Service) -> None:
    assert get(f"{service.root}/healthz").json() == {"status": "alive"}
    answer = get(f"{service.root}/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready"), answer.text


@pytest.mark.parametrize(
    ("name", "labels", "least"),
    [
        (JOBS_ENDED.series[0], ('state="completed"',), 1),
        (STAGES.series[1], ('stage="ingest"', 'outcome="completed"'), 1),
        (STAGES.series[1], ('stage="vision"', 'outcome="completed"'), 1),
        (STAGES.series[1], ('stage="transcript"', 'outcome="completed"'), 1),
        (MEDIA.series[0], ('stage="vision"',), 29),
        (MEDIA.series[0], ('stage="transcript"',), 29),
        (MODEL_BATCHES.series[1], ('task="transcribe"',), 1),
        (MODEL_BATCHES.series[2], ('task="transcribe"',), 1),
        (MODEL_SECONDS.series[2], ('task="transcribe"',), 0.1),
        (HTTP_REQUESTS.series[1], ('operation="createJob"', 'status="2xx"'), 1),
        (HTTP_REQUESTS.series[1], ('operation="getJob"', 'status="2xx"'), 1),
        (ACCOUNTS_CENTS.series[0], ('part="balance"',), 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_job_shows_in_the_metrics(
    service: Service, demo_job: str, name: str, labels: tuple[str, ...], least: float
) -> None:
    wait_until(
        lambda: total(service, name, *labels) >= least,
        SCRAPED_SECONDS,
        f"{name} {labels} of {demo_job}",
    )


@pytest.mark.parametrize(
    "metric",
    [JOBS, QUEUE_AGE, UPLOADS_UNDER_WAY, WEBHOOKS_OPEN, LEDGER_CENTS, LEDGER_ENTRIES],
    ids=lambda metric: metric.name,
)
def test_levels_are_there_also_where_they_are_zero(
    service: Service, demo_job: str, metric: Any
) -> None:
    [series] = metric.series
    wait_until(
        lambda: any(name == series for name, _, _ in scrape(service)),
        SCRAPED_SECONDS,
        f"{series} after {demo_job}",
    )


def test_nothing_is_exported_that_the_table_does_not_name(service: Service, demo_job: str) -> None:
    known = {name for metric in CATALOGUE for name in metric.series}
    found = {name for name, _, _ in scrape(service)}
    assert found <= known, demo_job


def listeners(service: Service) -> Iterator[tuple[str, int]]:
    for process in service.processes():
        try:
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    yield connection.laddr.ip, connection.laddr.port
        except psutil.Error:
            continue


def test_the_metrics_are_for_this_machine_only(service: Service) -> None:
    addresses = {address for address, port in listeners(service) if port == service.metrics_port}
    assert addresses
    assert addresses <= {"127.0.0.1", "::1"}


def test_the_log_tells_of_the_job_in_json_and_knows_no_secret(
    service: Service, demo_job: str
) -> None:
    text = (service.data / "logs" / LOG_NAME).read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    about = [line for line in lines if line.get("jobId") == demo_job]
    said = " ".join(line["message"] for line in about)
    for stage in ("ingest", "vision", "transcript"):
        assert f"{stage} completed in" in said
    assert {line["process"] for line in about} == {"runner"}
    assert all(line["accountId"] for line in about if "completed" in line["message"])
    assert service.api_key not in text
    assert service.api_key.removeprefix("vas_live_") not in text
