"""One service for all acceptance tests that do not need one of their own."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from benchmarks.service_jobs import first_seconds
from serve_app.client.api import ApiClient
from tests.acceptance.camera_raw import decoders
from tests.acceptance.service import ANSWER_SECONDS, JOB_SECONDS, Service, running
from tests.pipelines.net.fetch_servers import Authority
from tests.places import DEMO

EXCERPT_SECONDS = 12.0
LAST = ["test_edge.py", "test_stop_and_kill.py"]
"""The one stops replicas and fills the queue with nonsense, the other ends the shared service."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First what has a service of its own, then what shares one: no two run at a time."""
    ours = [place for place, item in enumerate(items) if _is_ours(item)]
    for place, item in zip(ours, sorted((items[place] for place in ours), key=_turn), strict=True):
        items[place] = item


def _is_ours(item: pytest.Item) -> bool:
    return item.path.is_relative_to(Path(__file__).parent)


def _turn(item: pytest.Item) -> int:
    if "service" not in getattr(item, "fixturenames", ()):
        return 0
    return LAST.index(item.path.name) + 2 if item.path.name in LAST else 1


@pytest.fixture(scope="session")
def excerpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's first EXCERPT_SECONDS, for tests of what happens around a job."""
    target = tmp_path_factory.mktemp("excerpt") / "excerpt.mp4"
    return first_seconds(DEMO, target, EXCERPT_SECONDS)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whom the service trusts beside the public authorities: receivers of the tests' own."""
    made = Authority.new(tmp_path_factory.mktemp("authority"))
    pem = made.certificate.public_bytes(Encoding.PEM)
    (made.folder / "authority.pem").write_bytes(pem)
    return made


@pytest.fixture(scope="session")
def service(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, until_group_ends: ExitStack
) -> Service:
    """One service for all acceptance tests: starting Ray is paid once."""
    folder = tmp_path_factory.mktemp("service")
    started = running(
        folder / "data",
        folder / "service.log",
        VAS_SEGMENT_SECONDS="5",
        VAS_ALLOWED_NETWORKS='["127.0.0.0/8"]',
        VAS_WEBHOOK_CA_FILE=str(authority.folder / "authority.pem"),
        VAS_RAW_DECODERS=decoders(folder),
        VAS_MAX_ACTIVE_JOBS="100000",
        VAS_PROXY_TIMEOUT_SECONDS=str(ANSWER_SECONDS),
        HOME=str(folder),
    )
    service = until_group_ends.enter_context(started)
    until_group_ends.callback(service.close_clients)
    return service


@pytest.fixture(scope="session")
def polled() -> list[dict[str, Any]]:
    """What a client saw of ``demo_job`` while it waited."""
    return []


@pytest.fixture(scope="session")
def demo_job(service: Service, polled: list[dict[str, Any]]) -> str:
    """The demo video, analysed once, undisturbed."""
    job_id = service.submit(DEMO)
    with ApiClient(service.base_url, service.api_key) as client:
        job = client.wait(job_id, on_progress=polled.append, timeout_seconds=JOB_SECONDS)
    assert job["state"] == "completed"
    return job_id
