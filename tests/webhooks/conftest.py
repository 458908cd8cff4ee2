"""The authority that senders trust, and a desk of each test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from tests.pipelines.fetch_servers import Authority
from tests.webhooks.desk import Desk, open_desk, settings_for


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
async def desk(
    database_url: str, ca_file: Path, tmp_path: Path, authority: Authority
) -> AsyncIterator[Desk]:
    async with open_desk(settings_for(database_url, ca_file, tmp_path), authority) as made:
        yield made
