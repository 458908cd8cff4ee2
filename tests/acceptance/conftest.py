"""One service for all acceptance tests that do not need one of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from tests.acceptance.service import Service, running
from tests.benchmarks.service_jobs import first_seconds
from tests.pipelines.fetch_servers import Authority
from tests.places import DEMO

EXCERPT_SECONDS = 12.0


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
def service(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Service]:
    """One service for all acceptance tests: starting Ray is paid once."""
    folder = tmp_path_factory.mktemp("service")
    with running(
        folder / "data",
        folder / "service.log",
        VAS_LEASE_SECONDS="4",
        VAS_SEGMENT_SECONDS="5",
        VAS_ALLOWED_NETWORKS='["127.0.0.0/8"]',
        VAS_WEBHOOK_CA_FILE=str(authority.folder / "authority.pem"),
    ) as started:
        yield started
        for client in started.clients:
            client.close()
