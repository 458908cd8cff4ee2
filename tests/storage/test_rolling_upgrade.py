"""A new version comes up beside the old one: its migration only adds, and both go on working."""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import sqlalchemy

from serve_app.settings import Settings
from storage import keys
from storage.database import (
    LOCK_SECONDS,
    MIGRATIONS,
    driver_url,
    migrate,
    newest_revision,
)
from tests.databases import fresh_database
from tests.money.runner_process import run_until_done
from tests.serve_app.running_api import SECRET, Customer, RunningApi
from tests.storage.old_statements import create_account, play_every_state, restore

JOBS = 12
CLIENTS = 3
PAUSE_SECONDS = 0.3
"""Keeps each client's account below its rates."""

NEXT_MIGRATION = '''
"""What the next version may need: added to what is there.

Revision ID: 9000
Revises: {newest}
"""

import sqlalchemy as sa
from alembic import op

revision = "9000"
down_revision = "{newest}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    nothing, here = sa.text("0"), sa.text("'here'")
    op.add_column("jobs", sa.Column("rank", sa.Integer(), server_default=nothing, nullable=False))
    op.add_column("stages", sa.Column("attempts", sa.SmallInteger()))
    op.add_column("accounts", sa.Column("region", sa.Text(), server_default=here, nullable=False))
    job_id = sa.Column("job_id", sa.Uuid(), sa.ForeignKey("jobs.id"), primary_key=True)
    op.create_table("labels", job_id)
    op.create_index("ix_jobs_rank", "jobs", ["rank", "created_at"])
'''
"""Columns on the tables that every request and every runner writes, and a foreign key to one."""


REWRITTEN = {
    # 0031: results in the form of versions before 0.3.0, as the oldest statements write them.
    ("transcripts", "document"),
}
"""Columns whose values a migration changes, and why."""

EXCEPTIONS: set[str] = set()
"""What the migrations since version 0.3.0 take away or narrow: such a change takes two versions,
one that no longer uses and one that removes."""


@pytest.fixture
def former_url(postgres_url: str) -> Iterator[str]:
    """A database with the schema of version 0.3.0."""
    with fresh_database(postgres_url, migrated=False) as url:
        restore(url, with_rows=False)
        yield url


@pytest.fixture
def next_version(tmp_path: Path) -> Path:
    """The migrations of a version that does not exist yet."""
    scripts = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (scripts / "versions" / "9000_next.py").write_text(
        NEXT_MIGRATION.replace("{newest}", newest_revision())
    )
    return scripts


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(
        data_dir=tmp_path / "data",
        database_url=database_url,
        secret_key=SECRET,
        max_active_jobs=1000,
    )


# What comes up beside what runs.


@dataclass(slots=True)
class Clients:
    """Create jobs and read everything until they are told to stop; each has its own account."""

    api: RunningApi
    answers: Counter[int] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        customers = [self.api.customer(10**9) for _ in range(CLIENTS)]
        threads = [threading.Thread(target=self._work, args=(it,)) for it in customers]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join(120)

    def _work(self, customer: Customer) -> None:
        job_id = _created(self.api, customer)
        with httpx.Client(
            base_url=f"{self.api.root}/v1/api",
            headers=customer.headers,
            timeout=30,
            trust_env=False,
        ) as client:
            while not self.stopping.wait(PAUSE_SECONDS):
                body = {"url": "https://media.example.com/clip.mp4"}
                created = self._note(client.post("/jobs/from-url", json=body))
                if created.status_code == 201:
                    job_id = created.json()["data"]["jobId"]
                for path in (f"/jobs/{job_id}", "/jobs", "/quota"):
                    self._note(client.get(path))

    def _note(self, answer: httpx.Response) -> httpx.Response:
        self.answers[answer.status_code] += 1
        if answer.status_code not in {200, 201, 429}:
            self.refused.append(f"{answer.status_code} {answer.text}")
        return answer


@pytest.mark.long
def test_the_next_version_migrates_while_this_one_serves_and_drives_jobs(
    settings: Settings, next_version: Path
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.money.runner_process"])
    url = settings.database_url or ""
    with RunningApi(settings) as api:
        clients = Clients(api)
        with clients.at_work():
            _until(lambda: clients.answers[201] >= JOBS // 2)
            runner = context.Process(target=run_until_done, args=(settings, 1, None))
            runner.start()
            migrate(url, scripts=next_version)
            after = clients.answers[200]
            _until(lambda: clients.answers[200] > after + JOBS)
        runner.join(60)
        assert runner.exitcode == 0
        assert clients.refused == []
        assert api.client.get(f"{api.root}/readyz").status_code == 200
    assert _states(url) == {"completed"}


def _states(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        return {row[0] for row in connection.execute("SELECT DISTINCT state FROM jobs")}


def _created(api: RunningApi, customer: Customer) -> str:
    body = {"url": "https://media.example.com/clip.mp4"}
    answer = api.client.post("/jobs/from-url", json=body, headers=customer.headers)
    job_id: str = answer.json()["data"]["jobId"]
    return job_id


def _until(condition: Callable[[], object]) -> None:
    pause = threading.Event()
    for _ in range(1500):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come to that in 30 s")


def test_this_version_starts_on_a_database_that_the_next_one_has_migrated(
    settings: Settings, next_version: Path
) -> None:
    migrate(settings.database_url or "", scripts=next_version)
    migrate(settings.database_url or "")
    with RunningApi(settings) as api:
        assert api.client.get(f"{api.root}/readyz").status_code == 200
        assert _created(api, api.customer())


def test_a_migration_that_waits_for_a_table_keeps_nobody_else_waiting(
    settings: Settings, next_version: Path
) -> None:
    """Who asks for the table meanwhile gets it well within the time that a statement has."""
    url = settings.database_url or ""
    with RunningApi(settings) as api, psycopg.connect(url) as long_reader:
        _created(api, api.customer())
        long_reader.execute("SELECT count(*) FROM jobs")
        migrating = threading.Thread(target=migrate, args=(url,), kwargs={"scripts": next_version})
        migrating.start()
        patience = f"{20 * LOCK_SECONDS}s"
        with psycopg.connect(url, options=f"-c statement_timeout={patience}") as reader:
            _until(lambda: _waits_for_a_lock(url))
            reader.execute("SELECT count(*) FROM jobs")
        assert migrating.is_alive()
        long_reader.rollback()
        migrating.join(60)
        assert not migrating.is_alive()
        assert _states(url) == {"queued"}
        assert api.client.get(f"{api.root}/readyz").json()["checks"]["migrations"] == "ok"
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT rank FROM jobs").fetchall() == [(0,)]


def test_no_request_is_ended_by_a_deadlock_with_a_migration(
    database_url: str, next_version: Path
) -> None:
    """The migration wants ``jobs`` and ``stages``; somebody has the second and wants the first."""
    with psycopg.connect(database_url) as request:
        request.execute("LOCK TABLE stages IN ROW EXCLUSIVE MODE")
        arguments = {"scripts": next_version}
        migrating = threading.Thread(target=migrate, args=(database_url,), kwargs=arguments)
        migrating.start()
        _until(lambda: _waits_for_a_lock(database_url))
        request.execute("SELECT count(*) FROM jobs")
        request.commit()
        migrating.join(60)
        assert not migrating.is_alive()
        assert request.execute("SELECT rank, attempts FROM jobs, stages").fetchall() == []


def _waits_for_a_lock(url: str) -> bool:
    with psycopg.connect(url) as connection:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        row = connection.execute(waiting).fetchone()
    return row is not None and row[0] > 0


# What was written before, and who still writes as before.


def test_rows_and_statements_of_an_earlier_version_go_on_working(
    former_url: str, tmp_path: Path
) -> None:
    with psycopg.connect(former_url, autocommit=True, prepare_threshold=1) as old:
        account = create_account(old)
        jobs = play_every_state(old, account)
        columns, rows = _columns(old), _rows(old, _columns(old))
        migrate(former_url)
        assert _rows(old, columns) == rows
        later = play_every_state(old, account)
        create_account(old)
    settings = Settings(data_dir=tmp_path, database_url=former_url, secret_key=SECRET)
    with RunningApi(settings) as api:
        shown = _shown(api, account)
    assert shown == {str(job): state for played in (jobs, later) for state, job in played.items()}
    _drive_to_the_end(settings, awaiting=(jobs["awaiting_upload"], later["awaiting_upload"]))
    with psycopg.connect(former_url) as connection:
        assert _books(connection, account) == [(0, 0, 0)]


def _columns(connection: psycopg.Connection[Any]) -> dict[str, list[str]]:
    found = connection.execute(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'public' AND table_name <> 'alembic_version'"
    ).fetchall()
    tables: dict[str, list[str]] = {}
    for table, column in found:
        tables.setdefault(table, []).append(column)
    return tables


def _rows(
    connection: psycopg.Connection[Any], columns: dict[str, list[str]]
) -> dict[str, list[str]]:
    found = {}
    for table, names in columns.items():
        listed = ", ".join(f'"{name}"' for name in names if (table, name) not in REWRITTEN)
        rows = connection.execute(f"SELECT ROW({listed})::text FROM {table} ORDER BY 1").fetchall()  # noqa: S608
        found[table] = [row[0] for row in rows]
    return found


def _shown(api: RunningApi, account: uuid.UUID) -> dict[str, str]:
    async def create(connection: Any) -> str:
        return (await keys.create_key(connection, account)).secret

    headers = {"X-API-Key": api.transact(create)}
    page = api.client.get("/jobs", params={"limit": 100}, headers=headers).json()
    return {job["jobId"]: job["state"] for job in page["data"]}


def _drive_to_the_end(settings: Settings, awaiting: tuple[uuid.UUID, ...]) -> None:
    """This version's runner takes up what the old one left; uploads that never come expire."""
    url = settings.database_url or ""
    with psycopg.connect(url) as connection:
        past = "UPDATE jobs SET upload_expires_at = now() WHERE id = ANY(%s)"
        connection.execute(past, [list(awaiting)])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.money.runner_process"])
    runner = context.Process(target=run_until_done, args=(settings, 1, None))
    runner.start()
    runner.join(60)
    assert runner.exitcode == 0


def _books(connection: psycopg.Connection[Any], account: uuid.UUID) -> list[tuple[Any, ...]]:
    """What is held, unfinished, and missing from the balance: all nothing."""
    return connection.execute(
        "SELECT held_cents, (SELECT count(*) FROM jobs WHERE completed_at IS NULL),"
        " balance_cents - (SELECT sum(balance_delta_cents) FROM ledger_entries"
        " WHERE account_id = a.id) FROM accounts a WHERE id = %s",
        [account],
    ).fetchall()


# Expand now, contract in a later version.

Shape = dict[tuple[str, ...], str]
"""Tables, columns, constraints and what they are; what only narrows is marked by its first word."""


def test_migrations_only_add(former_url: str) -> None:
    old = _shape(former_url)
    migrate(former_url)
    new = _shape(former_url)
    gone = {name for name, what in old.items() if new.get(name) != what and name[0] != "check"}
    narrowed = {name for name in new.keys() - old.keys() if _narrows(name, new[name], old)}
    assert {name[-1] for name in gone | narrowed} == EXCEPTIONS


def _shape(url: str) -> Shape:
    engine = sqlalchemy.create_engine(driver_url(url))
    inspector = sqlalchemy.inspect(engine)
    shape: Shape = {}
    for table in inspector.get_table_names():
        shape["table", table] = ""
        for column in inspector.get_columns(table):
            needed = not (column["nullable"] or column["default"] or column.get("computed"))
            what = f"{column['type']!r}{' needed' if needed else ''}"
            shape["column", table, column["name"]] = what
        for check in inspector.get_check_constraints(table):
            shape["check", table, str(check["name"])] = str(check["sqltext"])
        for unique in inspector.get_unique_constraints(table):
            shape["unique", table, str(unique["name"])] = ""
        for index in inspector.get_indexes(table):
            if index["unique"]:
                shape["unique", table, str(index["name"])] = ""
    engine.dispose()
    return shape


def _narrows(name: tuple[str, ...], what: str, old: Shape) -> bool:
    """Whether something new may refuse what the old version writes; new tables cannot."""
    kind, table = name[:2]
    if kind == "table" or ("table", table) not in old:
        return False
    if kind == "column":
        return what.endswith(" needed")
    return not _is_about_new_columns(table, what, old)


def _is_about_new_columns(table: str, what: str, old: Shape) -> bool:
    """A check of nothing but new columns: the old version leaves them empty."""
    known = {name[2] for name in old if name[:2] == ("column", table)}
    return bool(what) and not any(re.search(rf"\b{column}\b", what) for column in known)
