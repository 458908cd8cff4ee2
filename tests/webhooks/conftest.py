"""The authority that senders trust, and a harness of each test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from tests.pipelines.net.fetch_servers import Authority
from tests.webhooks.harness import WebhookHarness, open_desk, settings_for


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that the sender is told to trust."""
    return Authority.new(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def ca_file(authority: Authority) -> Path:
    path = authority.folder / "authority.pem"
    path.write_bytes(authority.certificate.public_bytes(Encoding.PEM))
    return path


@pytest.fixture
async def harness(
    database_url: str, ca_file: Path, tmp_path: Path, authority: Authority
) -> AsyncIterator[WebhookHarness]:
    async with open_desk(settings_for(database_url, ca_file, tmp_path), authority) as made:
        yield made
