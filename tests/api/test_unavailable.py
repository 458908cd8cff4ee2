"""What clients see while the database is away, and that it passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_app.settings import Settings
from storage.database import embedded_postgres, migrate
from tests.api.conftest import SECRET, RunningApi
from tests.api.test_jobs_api import expect_error


@pytest.mark.timeout(120)
def test_without_its_database_the_api_says_503_and_recovers(tmp_path: Path) -> None:
    folder = tmp_path / "pg"
    with embedded_postgres(folder) as url:
        migrate(url)
        settings = Settings(data_dir=tmp_path / "data", database_url=url, secret_key=SECRET)
        api = RunningApi(settings)
        api.__enter__()
        customer = api.customer()
        assert api.client.get("/quota", headers=customer.headers).status_code == 200
    try:
        for path in ("/quota", "/jobs"):
            answer = api.client.get(path, headers=customer.headers)
            expect_error(answer, 503, "SERVICE_UNAVAILABLE")
            assert answer.headers["retry-after"] == "30"
        with embedded_postgres(folder):
            for _ in range(3):
                answer = api.client.get("/quota", headers=customer.headers)
            assert answer.status_code == 200
    finally:
        api.__exit__()
