"""What the removal of ended jobs' objects takes and keeps, over both kinds of store."""

from __future__ import annotations

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest

from serve_app.context import build_context
from storage.objects import ObjectStore, ObjectStoreUnavailableError
from storage.objects.folder import FolderStore
from tests.serve_app.beside_jobs import clean_due, make_due
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_jobs_api import create
from tests.storage.s3_server import fresh_store
from tests.tables import every


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "objects")
    return fresh_store(request.getfixturevalue("endpoint"))


def remove(api: RunningApi, store: ObjectStore) -> None:
    """Everything that is due."""

    async def run() -> None:
        context = replace(build_context(api.settings), objects=store)
        await clean_due(context)
        await context.database.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(run())).result()


def end(api: RunningApi, customer: Customer, job_id: str, state: str, *, seconds_ago: int) -> None:
    """Let the job be over for so long."""
    # The first time it gives its credits back in order.
    api.client.post(f"/jobs/{job_id}/cancel", headers=customer.headers)
    code = "'X'" if state == "failed" else "NULL"
    api.sql(
        f"UPDATE jobs SET state = '{state}', error_code = {code},"  # noqa: S608
        f" cleaning_after = NULL, cleaned_at = NULL,"
        f" completed_at = now() - interval '{seconds_ago} seconds' WHERE id = :id",
        id=uuid.UUID(job_id),
    )


def fill(store: ObjectStore, job_id: str) -> str:
    """What a job leaves: footage, a resumable upload, segments, stills, a stop marker."""
    prefix = f"jobs/{job_id}"
    for name in ("source/media", "work/segment.mkv", "work/still-1.jpg", "work/stop-1"):
        store.write_bytes(f"{prefix}/{name}", b"x")
    with store.append_partial(f"{prefix}/source/audio", 0) as stream:
        stream.write(b"half")
    return prefix


def show(api: RunningApi, job_id: str, thumbnail_key: str, *, cuts: bool) -> None:
    """Publish a scene with this still, or an overview without scenes."""
    seen = f'{{"index": 0, "thumbnail_key": "{thumbnail_key}"}}'
    api.sql(
        "INSERT INTO scene_lists VALUES (:id, CAST(:scenes AS json), 1, CAST(:overview AS json))",
        id=uuid.UUID(job_id),
        scenes=f"[{seen}]" if cuts else "[]",
        overview=None if cuts else seen,
    )
    api.sql(
        "UPDATE stages SET status = 'completed' WHERE job_id = :id AND stage = 'vision'",
        id=uuid.UUID(job_id),
    )


DAY = 86_400
"""That the tests' service keeps media."""


def left(store: ObjectStore, prefix: str) -> list[str]:
    names = [key.removeprefix(f"{prefix}/") for key in store.list_keys(prefix)]
    return names + [f"{key} (partial)" for key in store.list_partials(prefix)]


@every(("state", "cuts"), [("completed", True), ("completed", False), ("failed", True)])
def test_the_stills_that_scenes_or_the_overview_show_stay_and_all_else_goes(
    api: RunningApi, customer: Customer, store: ObjectStore, state: str, cuts: bool
) -> None:
    job_id = create(api, customer)["jobId"]
    prefix = fill(store, job_id)
    show(api, job_id, f"{prefix}/work/still-1.jpg", cuts=cuts)
    end(api, customer, job_id, state, seconds_ago=DAY - 5)
    remove(api, store)
    assert len(left(store, prefix)) == 5
    end(api, customer, job_id, state, seconds_ago=DAY + 60)
    remove(api, store)
    assert left(store, prefix) == ["work/still-1.jpg"]


def test_of_a_cancelled_job_only_what_tells_its_tasks_to_stop_stays_a_little_longer(
    api: RunningApi, customer: Customer, store: ObjectStore
) -> None:
    job_id = create(api, customer)["jobId"]
    prefix = fill(store, job_id)
    end(api, customer, job_id, "cancelled", seconds_ago=20)
    remove(api, store)
    assert left(store, prefix) == ["work/stop-1"]
    end(api, customer, job_id, "cancelled", seconds_ago=200)
    remove(api, store)
    assert left(store, prefix) == []


def test_what_is_written_after_the_first_removal_goes_with_the_next(
    api: RunningApi, customer: Customer, store: ObjectStore
) -> None:
    job_id = create(api, customer)["jobId"]
    end(api, customer, job_id, "cancelled", seconds_ago=20)
    remove(api, store)
    prefix = fill(store, job_id)
    remove(api, store)
    assert len(left(store, prefix)) == 5, "the next round is not due yet"
    api.sql("UPDATE jobs SET cleaning_after = now(), completed_at = now() - interval '1 h'")
    remove(api, store)
    assert left(store, prefix) == []


@dataclass(frozen=True, slots=True)
class FailingStore(FolderStore):
    """Refuses to delete, as a bucket without the right to does."""

    def delete_prefix(self, prefix: str) -> int:
        raise ObjectStoreUnavailableError("object store: AccessDenied")


def test_a_removal_that_fails_is_tried_again_after_a_pause(
    api: RunningApi, customer: Customer, tmp_path: Path
) -> None:
    store = FolderStore(tmp_path / "objects")
    job_id = create(api, customer)["jobId"]
    prefix = fill(store, job_id)
    end(api, customer, job_id, "expired", seconds_ago=3600)
    with pytest.raises(ObjectStoreUnavailableError, match="AccessDenied"):
        remove(api, FailingStore(store.root))
    remove(api, store)
    assert left(store, prefix), "the failed round is put off"
    make_due(api)
    remove(api, store)
    assert left(store, prefix) == []


@dataclass(frozen=True, slots=True)
class WatchedStore(FolderStore):
    """Asks the database, whenever it is used, whether a transaction stands open meanwhile."""

    database_url: str = ""

    def delete_prefix(self, prefix: str) -> int:
        with psycopg.connect(self.database_url) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'"
            ).fetchone()
        assert row == (0,), "a transaction is open while objects are removed"
        return FolderStore.delete_prefix(self, prefix)


def test_no_transaction_is_open_while_objects_are_removed(
    api: RunningApi, customer: Customer, tmp_path: Path
) -> None:
    store = WatchedStore(tmp_path / "objects", api.settings.database_url or "")
    job_id = create(api, customer)["jobId"]
    prefix = fill(store, job_id)
    end(api, customer, job_id, "expired", seconds_ago=3600)
    remove(api, store)
    assert left(store, prefix) == []
