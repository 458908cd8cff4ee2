"""What clients see while the database is away, and that it passes."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest

from serve_app.settings import Settings
from storage.database import embedded_postgres, migrate
from tests.acceptance.chaos.database_server import DatabaseServer
from tests.serve_app.running_api import SECRET, RunningApi
from tests.serve_app.test_jobs_api import create, expect_error
from tests.serve_app.uploads.test_uploads import MIB, Sender
from tests.storage.tcp_postgres import tcp_postgres


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
        session = {"Cookie": f"vas_session=vas_sess_{43 * 'a'}"}
        page = api.client.get(f"{api.root}/dashboard", headers=session)
        assert (page.status_code, page.headers["retry-after"]) == (503, "30")
        with embedded_postgres(folder):
            for _ in range(3):
                answer = api.client.get("/quota", headers=customer.headers)
            assert answer.status_code == 200
    finally:
        api.__exit__()


DOWN_SECONDS = 3.0
"""Longer than a heartbeat of an upload is trusted."""


@pytest.mark.parametrize(
    "moment", [pytest.param("in the middle", marks=pytest.mark.long), "at the end"]
)
def test_a_put_outlasts_a_database_that_is_away_for_a_moment(tmp_path: Path, moment: str) -> None:
    folder = tmp_path / "pg"
    with tcp_postgres(folder) as url:
        migrate(url)
        settings = Settings(data_dir=tmp_path / "data", database_url=url, secret_key=SECRET)
        with RunningApi(settings) as api:
            customer = api.customer()
            job = create(api, customer)
            with contextlib.closing(Sender(job["uploadUrl"], 8 * MIB)) as sender:
                sender.send(b"a" * 3 * MIB)
                time.sleep(0.5)
                server = DatabaseServer(folder, url)
                crash = threading.Thread(target=server.crash, args=(DOWN_SECONDS,))
                crash.start()
                time.sleep(0.5)
                if moment == "at the end":
                    sender.send(b"a" * 5 * MIB)
                else:
                    for _ in range(5):
                        sender.send(b"a" * MIB)
                        time.sleep(0.6)
                assert sender.answer().status == 200
                crash.join()
            # Connections that were idle meanwhile tell only when they are used: 503, once each.
            for _ in range(10):
                answer = api.client.get(f"/jobs/{job['jobId']}", headers=customer.headers)
                if answer.status_code == 200:
                    break
            assert answer.json()["data"]["state"] == "queued"
