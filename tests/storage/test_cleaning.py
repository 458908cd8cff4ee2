"""When the objects of jobs that have ended are removed."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from storage.cleaning import (
    KIND,
    LATE_WRITES,
    UNWANTED_AFTER,
    CleaningRound,
    end_round,
    find_round,
    list_due_erasures,
    list_due_rounds,
    queue_round,
)
from storage.database import Database
from storage.types import JobState, Retention
from storage.uploads import MOST_LATE
from storage.work import Held, Terms, lease_next
from tests.storage.test_jobs import new_account, new_job
from tests.tables import every

END = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
RETENTION = timedelta(hours=1)
KEPT = Retention(3600, 3600)


def at(claimed_at: datetime, upload_expires_at: datetime | None = None) -> CleaningRound:
    return CleaningRound(uuid.uuid4(), END, upload_expires_at, claimed_at)


EXPIRY = END + timedelta(hours=1)
FOLLOWING = {
    "at the end, tasks may still write": (at(END), END + LATE_WRITES),
    "after their writes nothing comes": (at(END + LATE_WRITES), None),
    "long retention": (at(END + timedelta(days=30)), None),
    "an upload's address outlives its job": (at(END + LATE_WRITES, EXPIRY), EXPIRY),
    "an upload outlives its address": (at(EXPIRY, EXPIRY), EXPIRY + MOST_LATE),
    "tasks first, then the address": (at(END, EXPIRY), END + LATE_WRITES),
    "after the last late upload": (at(EXPIRY + MOST_LATE, EXPIRY), None),
}


@every(("done", "following"), FOLLOWING.values(), ids=FOLLOWING.keys())
def test_a_round_is_followed_by_another_while_something_may_come(
    done: CleaningRound, following: datetime | None
) -> None:
    assert done.next_at == following


async def ended(database: Database, state: JobState, ago: timedelta) -> uuid.UUID:
    """A job that ended so long ago."""
    job_id = await new_job(database, await new_account(database))
    code = "'X'" if state is JobState.FAILED else "NULL"
    async with database.transaction() as connection:
        await connection.execute(
            text(
                f"UPDATE jobs SET state = :state, error_code = {code},"  # noqa: S608
                " completed_at = now() - :ago WHERE id = :id"
            ),
            {"state": state, "ago": ago, "id": job_id},
        )
    return job_id


async def claimed(database: Database, limit: int = 10) -> list[uuid.UUID]:
    """Jobs whose rounds are due, which are queued."""
    async with database.transaction() as connection:
        due = [*await list_due_rounds(connection, KEPT, limit=limit)]
        for job_id in due:
            await queue_round(connection, job_id, KEPT)
    return due


async def leased(database: Database) -> Held:
    [held], _ = await lease_next(database, [Terms(KIND, timedelta(minutes=1))])
    return held


DUE = {
    "completed, within its retention": (JobState.COMPLETED, RETENTION - SECOND, False),
    "completed, past it": (JobState.COMPLETED, RETENTION + SECOND, True),
    "failed, within it": (JobState.FAILED, RETENTION - SECOND, False),
    "failed, past it": (JobState.FAILED, RETENTION + SECOND, True),
    "cancelled just now": (JobState.CANCELLED, UNWANTED_AFTER - 5 * SECOND, False),
    "cancelled a moment ago": (JobState.CANCELLED, UNWANTED_AFTER + SECOND, True),
    "expired a moment ago": (JobState.EXPIRED, UNWANTED_AFTER + SECOND, True),
}


@every(("state", "ago", "due"), DUE.values(), ids=DUE.keys())
async def test_material_goes_so_long_after_the_end(
    database: Database, state: JobState, ago: timedelta, due: bool
) -> None:
    job_id = await ended(database, state, ago)
    assert await claimed(database) == ([job_id] if due else [])


async def test_a_job_that_has_not_ended_is_left_alone(database: Database) -> None:
    await new_job(database, await new_account(database))
    assert await claimed(database) == []


async def test_the_last_round_is_the_last(database: Database) -> None:
    job_id = await ended(database, JobState.COMPLETED, RETENTION + SECOND)
    assert await claimed(database) == [job_id]
    assert await claimed(database) == [], "it is queued"
    held = await leased(database)
    async with database.transaction() as connection:
        found = await find_round(connection, job_id)
        assert found is not None
        await end_round(connection, held, found)
        row = (
            await connection.execute(
                text("SELECT cleaned_at, cleaning_after FROM jobs WHERE id = :id"), {"id": job_id}
            )
        ).one()
    assert row.cleaned_at is not None
    assert row.cleaning_after is None
    assert await claimed(database) == []


async def test_a_claim_is_bounded(database: Database) -> None:
    for _ in range(3):
        await ended(database, JobState.CANCELLED, timedelta(minutes=1))
    assert [len(await claimed(database, limit=2)) for _ in range(3)] == [2, 1, 0]


async def test_due_erasures_are_found_by_indexes(database: Database) -> None:
    due = await ended(database, JobState.COMPLETED, timedelta(days=9))
    own = await ended(database, JobState.COMPLETED, timedelta(days=4))
    many = (
        "INSERT INTO jobs SELECT (jsonb_populate_record(each, jsonb_build_object("
        "'id', gen_random_uuid(), 'completed_at', now()))).* FROM jobs AS each,"
        " generate_series(1, 5000) WHERE each.id = :id"
    )
    chosen = "UPDATE jobs SET source = source || '{\"result_retention_days\": 3}' WHERE id = :id"
    async with database.transaction() as connection:
        await connection.execute(text(many), {"id": due})
        await connection.execute(text(chosen), {"id": own})
        await connection.execute(text("ANALYZE jobs, accounts"))
    scans = text("SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'jobs'")
    async with database.transaction() as connection:
        before = await connection.scalar(scans)
        kept = Retention(3600, 3600, result_days=7, most_result_days=30)
        found = await list_due_erasures(connection, kept, limit=10)
        assert {job_id for _, job_id in found} == {due, own}
        assert await connection.scalar(scans) == before
