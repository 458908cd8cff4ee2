"""Leases, transitions and the reaper's queries, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import text

from pipelines.codec import encode
from pipelines.types import TranscriptResult
from storage import jobs, keys
from storage.database import Database
from storage.job_records import JobSource, NewJob
from storage.jobs import ImportedJob, LeaseLostError
from storage.results import TrackTranscript, usual_languages
from storage.types import (
    TERMINAL_STATES,
    TRANSITIONS,
    JobState,
    ProcessingMode,
    SkipReason,
    StageName,
    StageStatus,
)
from tests.tables import every

LEASE = timedelta(seconds=30)
OVER = timedelta(seconds=-1)


async def new_account(database: Database) -> uuid.UUID:
    async with database.transaction() as connection:
        return (await keys.create_account(connection, uuid.uuid4().hex)).id


async def new_job(
    database: Database,
    account_id: uuid.UUID,
    state: JobState = JobState.QUEUED,
    mode: ProcessingMode = ProcessingMode.ALL,
) -> uuid.UUID:
    job = NewJob(account_id, state, mode, "clip.mp4", JobSource(kind="upload", base_url="http://x"))
    await database.write(jobs.insert_job, job)
    return job.id


async def leased(database: Database, lease: timedelta = LEASE) -> tuple[uuid.UUID, uuid.UUID]:
    found = await database.write(jobs.lease_next, lease=lease)
    assert found is not None
    return found


async def test_every_state_of_the_enum_stands_in_the_transition_table() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert {state for state, after in TRANSITIONS.items() if not after} == TERMINAL_STATES


async def test_a_new_job_has_three_stages_and_skips_those_its_mode_does_not_ask_for(
    database: Database,
) -> None:
    job_id = await new_job(database, await new_account(database), mode=ProcessingMode.VISION)
    job = await database.write(jobs.find_job, job_id)
    assert job is not None
    assert job.stages[StageName.INGEST].status is StageStatus.PENDING
    assert job.stages[StageName.VISION].status is StageStatus.PENDING
    assert job.stages[StageName.TRANSCRIPT].status is StageStatus.SKIPPED
    assert job.stages[StageName.TRANSCRIPT].skip_reason is SkipReason.PROCESSING_MODE


async def test_leases_go_out_oldest_first_and_each_job_once(database: Database) -> None:
    account = await new_account(database)
    created = [await new_job(database, account) for _ in range(3)]
    taken = [(await leased(database))[0] for _ in range(3)]
    assert taken == created
    async with database.transaction() as connection:
        assert await jobs.lease_next(connection, lease=LEASE) is None


async def test_a_queued_job_notifies_listeners_once_they_listen(database: Database) -> None:
    account_id = await new_account(database)
    notified = database.listen(jobs.QUEUE_CHANNEL)
    async with asyncio.timeout(60):
        await anext(notified)
        job_id = await new_job(database, account_id, JobState.AWAITING_UPLOAD)
        await database.write(
            jobs.set_state, job_id, expected=JobState.AWAITING_UPLOAD, state=JobState.QUEUED
        )
        await anext(notified)
    await notified.aclose()


async def test_twenty_runners_at_once_never_get_the_same_job(database: Database) -> None:
    account = await new_account(database)
    created = {await new_job(database, account) for _ in range(10)}

    async def take() -> uuid.UUID | None:
        async with database.transaction() as connection:
            found = await jobs.lease_next(connection, lease=LEASE)
            await asyncio.sleep(0.01)
        return found[0] if found else None

    taken = [job for job in await asyncio.gather(*(take() for _ in range(20))) if job]
    assert len(taken) == len(set(taken)) == 10
    assert set(taken) == created


async def test_another_lease_token_cannot_renew_or_lock(database: Database) -> None:
    await new_job(database, await new_account(database))
    job_id, _ = await leased(database)
    stranger = uuid.uuid4()
    with pytest.raises(LeaseLostError):
        await database.write(jobs.extend_lease, job_id, stranger, lease=LEASE, progress={})
    with pytest.raises(LeaseLostError):
        await database.write(jobs.lock_leased, job_id, stranger)


async def test_a_lost_runner_puts_the_job_back_and_its_running_stage_to_pending(
    database: Database,
) -> None:
    await new_job(database, await new_account(database))
    job_id, _ = await leased(database, OVER)
    async with database.transaction() as connection:
        await jobs.set_stage(connection, job_id, StageName.INGEST, StageStatus.COMPLETED)
        await jobs.set_stage(connection, job_id, StageName.VISION, StageStatus.RUNNING)
        assert await jobs.requeue_lost(connection) == [(job_id, True)]
        job = await jobs.find_job(connection, job_id)
    assert job is not None
    assert job.state is JobState.QUEUED
    assert job.lease_token is None
    assert job.stages[StageName.INGEST].status is StageStatus.COMPLETED
    assert job.stages[StageName.VISION].status is StageStatus.PENDING


async def test_the_third_lost_runner_is_the_last(database: Database) -> None:
    await new_job(database, await new_account(database))
    again = []
    for _ in range(jobs.MAX_LEASES):
        await leased(database, OVER)
        async with database.transaction() as connection:
            again.append((await jobs.requeue_lost(connection))[0][1])
    assert again == [True, True, False]


async def test_a_stage_that_ended_is_never_changed_again(database: Database) -> None:
    await new_job(database, await new_account(database))
    job_id, _ = await leased(database)
    async with database.transaction() as connection:
        await jobs.set_stage(connection, job_id, StageName.VISION, StageStatus.COMPLETED)
        await jobs.skip_open_stages(connection, job_id, SkipReason.JOB_CANCELLED)
        job = await jobs.find_job(connection, job_id)
    assert job is not None
    assert job.stages[StageName.VISION].status is StageStatus.COMPLETED
    assert job.stages[StageName.TRANSCRIPT].status is StageStatus.SKIPPED


async def test_a_state_change_that_comes_too_late_changes_nothing(database: Database) -> None:
    job_id = await new_job(database, await new_account(database))
    async with database.transaction() as connection:
        first = await jobs.set_state(
            connection, job_id, expected=JobState.QUEUED, state=JobState.CANCELLED
        )
        second = await jobs.set_state(
            connection, job_id, expected=JobState.QUEUED, state=JobState.CANCELLED
        )
    assert (first, second) == (True, False)


@every(
    ("expected", "state"),
    [
        (before, after)
        for before in JobState
        for after in JobState
        if after not in TRANSITIONS[before]
    ],
    ids=str,
)
async def test_transitions_outside_the_table_are_refused(
    money: Database, expected: JobState, state: JobState
) -> None:
    with pytest.raises(ValueError, match="no transition"):
        await money.write(jobs.set_state, uuid.uuid4(), expected=expected, state=state)


async def test_the_database_itself_refuses_a_processing_job_without_a_lease(
    database: Database,
) -> None:
    job_id = await new_job(database, await new_account(database))
    with pytest.raises(Exception, match="lease_is_processing"):
        async with database.transaction() as connection:
            await connection.execute(
                text("UPDATE jobs SET state = 'processing' WHERE id = :id"), {"id": job_id}
            )


async def test_heartbeats_carry_progress_of_running_stages_only(database: Database) -> None:
    await new_job(database, await new_account(database))
    job_id, token = await leased(database)
    async with database.transaction() as connection:
        await jobs.set_stage(connection, job_id, StageName.VISION, StageStatus.RUNNING)
        await jobs.extend_lease(
            connection,
            job_id,
            token,
            lease=LEASE,
            progress={StageName.VISION: 0.5, StageName.TRANSCRIPT: 0.5},
        )
        job = await jobs.find_job(connection, job_id)
    assert job is not None
    assert job.stages[StageName.VISION].progress == 0.5
    assert job.stages[StageName.TRANSCRIPT].progress == 0


async def test_progress_never_goes_back_not_even_when_a_stage_is_taken_up_again(
    database: Database,
) -> None:
    await new_job(database, await new_account(database))
    job_id, token = await leased(database)
    seen: list[float] = []
    async with database.transaction() as connection:
        for reopened, fraction in [(False, 0.4), (False, 0.3), (True, 0.1), (False, 0.6)]:
            if reopened:
                await jobs.reopen_running_stages(connection, job_id)
            await jobs.set_stage(connection, job_id, StageName.VISION, StageStatus.RUNNING)
            await jobs.extend_lease(
                connection, job_id, token, lease=LEASE, progress={StageName.VISION: fraction}
            )
            job = await jobs.find_job(connection, job_id)
            assert job is not None
            seen.append(job.stages[StageName.VISION].progress)
    assert seen == [0.4, 0.4, 0.4, 0.6]


async def test_a_stage_knows_how_long_it_has_been_running(database: Database) -> None:
    await new_job(database, await new_account(database))
    job_id, _ = await leased(database)
    await database.write(jobs.set_stage, job_id, StageName.VISION, StageStatus.RUNNING)
    job = await database.write(jobs.find_job, job_id)
    assert job is not None
    assert job.stages[StageName.VISION].seconds > 0
    assert job.stages[StageName.TRANSCRIPT].seconds == 0


CLIP = {"url": "https://media.example.com/a.mp4", "provider": None, "sealed_token": "c2VhbGVk"}
SYNC = {"sync_mode": "auto", "offset_ms": None}
TRACK = SYNC | {"label": None, "per_channel": True, "channels": [1, 2]}
SHARED = {"base_url": "http://x", "keyterms": ["sea"], "speakers_expected": None}

ROWS: dict[str, dict[str, Any]] = {
    "upload": {"kind": "upload", "clips": [], "audio": [], **SHARED},
    "uploaded audio": {
        "kind": "upload",
        "clips": [],
        "audio": [SYNC | {"slot": "audio", "name": "a.wav"}, TRACK | {"slot": "t", "name": "b"}],
        **SHARED,
    },
    "fetched": {"kind": "url", "clips": [CLIP], "audio": [TRACK | CLIP | {"name": "b"}], **SHARED},
    "batch": {
        "kind": "url",
        "clips": [CLIP | {"name": "a.mp4", "metadata": {"take": 2}}],
        "audio": [],
        "continuous": True,
        **SHARED,
    },
    "backfill": {"kind": "backfill", "clips": [], "audio": [], **SHARED},
}


@every("row", ROWS.values(), ids=ROWS.keys())
def test_a_row_of_the_version_before_is_written_again_as_it_was(row: dict[str, Any]) -> None:
    """A runner of that version may be the one that leases the job."""
    assert JobSource.model_validate(row).stored() == row


def test_fields_that_a_row_lacks_have_defaults() -> None:
    row = {"kind": "url", "base_url": "http://x", "clips": [CLIP], "audio": [], "keyterms": []}
    source = JobSource.model_validate(row)
    assert (source.speakers_expected, source.continuous) == (None, False)
    assert (source.clips[0].name, source.clips[0].metadata) == (None, {})


def test_fields_of_the_next_version_are_ignored() -> None:
    row = ROWS["fetched"] | {"later": 1, "clips": [CLIP | {"later": 1}]}
    assert JobSource.model_validate(row).stored()["clips"] == [CLIP]


def test_a_source_of_no_known_kind_is_refused() -> None:
    with pytest.raises(ValidationError):
        JobSource.model_validate({"kind": "tape", **SHARED})


async def test_the_usual_languages_of_an_account_are_those_of_several_of_its_latest_tracks(
    database: Database,
) -> None:
    async def spoken(account_id: uuid.UUID, *languages: str | None) -> None:
        for language in languages:
            found = encode(TranscriptResult(language, (), ())).decode()
            heard = TrackTranscript(0, "Mic", StageStatus.COMPLETED, None, language, found)
            source = JobSource(kind="backfill")
            over = ImportedJob(
                uuid.uuid4(), account_id, ProcessingMode.TRANSCRIPT, "a.wav", {}, source, 1000, [],
                {StageName.VISION: SkipReason.PROCESSING_MODE}, None, None, [heard],
            )  # fmt: skip
            async with database.transaction() as connection:
                assert await jobs.import_job(connection, over)

    async def usual(account_id: uuid.UUID, before: datetime) -> list[str]:
        return await database.write(usual_languages, account_id, before)

    account, other = await new_account(database), await new_account(database)
    await spoken(account, *["de"] * 6, *["fr"] * 5, *["it"] * 4, *[None] * 9)
    await spoken(other, *["ja"] * 5)
    later = datetime.now(UTC) + timedelta(minutes=1)
    assert await usual(account, later) == ["de", "fr"]
    assert await usual(other, later) == ["ja"]
    assert await usual(account, later - timedelta(hours=1)) == []
