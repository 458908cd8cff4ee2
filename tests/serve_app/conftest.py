"""The running API for the tests of a module; no Ray, no runner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serve_app.settings import Settings
from tests.databases import fresh_database
from tests.serve_app.running_api import SECRET, Customer, RunningApi


@pytest.fixture(scope="module")
def api_settings(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings over a database of this module's own; small limits, so that tests can reach them."""
    with fresh_database(postgres_url) as url:
        yield Settings(
            data_dir=Path(tmp_path_factory.mktemp("data")),
            database_url=url,
            secret_key=SECRET,
            standard_max_bytes=4 * 1024**2,
            max_active_jobs=5,
            upload_concurrency=4,
            source_retention_seconds=86_400,
        )


@pytest.fixture(scope="module")
def api(api_settings: Settings) -> Iterator[RunningApi]:
    """The running API."""
    with RunningApi(api_settings) as running:
        yield running


@pytest.fixture
def customer(api: RunningApi) -> Customer:
    """An account with credits, of this test's own."""
    return api.customer()
