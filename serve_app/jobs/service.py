"""Use cases of jobs. Each takes the caller's transaction and commits nothing itself."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator

from fastapi import Request

from serve_app import pricing
from serve_app.api.authentication import parse_job_id
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode
from serve_app.jobs import answers
from serve_app.jobs.lifecycle import end_job
from serve_app.jobs.plans import JobPlan
from serve_app.results.scenes import read_seen
from serve_app.results.transcripts import legacy_entries, transcript_of
from serve_app.settings import Settings
from storage import jobs, keys, ledger, results
from storage.database import Connection, DatabaseError
from storage.job_records import JobRecord
from storage.types import TERMINAL_STATES, JobState, SkipReason, StageName, StageStatus

log = logging.getLogger("vas.credits")


async def create_jobs(
    connection: Connection, account_id: uuid.UUID, plans: list[JobPlan], context: AppContext
) -> list[JobRecord]:
    """All of the planned jobs, their minimum charges held, or none of them.

    Raises THROTTLED, TOO_MANY_ACTIVE_JOBS, INSUFFICIENT_CREDITS, or SERVICE_UNAVAILABLE
    where the balance cannot be verified.
    """
    await _check_admission(connection, account_id, len(plans), context.settings)
    created = []
    for plan in plans:
        await jobs.insert_job(connection, plan.job, plan.uploads)
        with _verifying_balance():
            amount = pricing.minimum_hold(context.prices, plan.job.tier, plan.job.processing_mode)
            try:
                await ledger.hold(
                    connection, plan.job.account_id, plan.job.id, amount, "minimum charge"
                )
            except ledger.InsufficientCreditsError as error:
                raise ApiError(ErrorCode.INSUFFICIENT_CREDITS) from error
        created.append(await get_job(connection, account_id, str(plan.job.id)))
    return created


async def _check_admission(
    connection: Connection, account_id: uuid.UUID, count: int, settings: Settings
) -> None:
    # The lock makes concurrent creations of one account count one after the other.
    with _verifying_balance():
        account = await keys.lock_account(connection, account_id)
    if account.throttled_at is not None:
        raise ApiError(ErrorCode.THROTTLED)
    limit = account.max_active_jobs or settings.max_active_jobs
    active = await jobs.count_unfinished(connection, account_id)
    if active + count > limit:
        raise ApiError(
            ErrorCode.TOO_MANY_ACTIVE_JOBS,
            extra={"maxActiveJobs": limit, "activeJobs": active},
        )


@contextlib.contextmanager
def _verifying_balance() -> Iterator[None]:
    """No job is created on credits that could not be looked at, whatever the reason."""
    try:
        yield
    except DatabaseError as error:
        log.exception("the balance could not be verified")
        raise ApiError(
            ErrorCode.SERVICE_UNAVAILABLE, "The credit balance could not be verified."
        ) from error


async def get_job(connection: Connection, account_id: uuid.UUID, job_id: str) -> JobRecord:
    """The account's job; NOT_FOUND for foreign, missing and malformed ids alike."""
    return _found(await jobs.find_job(connection, parse_job_id(job_id), account_id=account_id))


def _found(job: JobRecord | None) -> JobRecord:
    if job is None:
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such job.")
    return job


async def cancel_job(connection: Connection, account_id: uuid.UUID, job_id: str) -> JobRecord:
    """Cancel an unfinished job; raises JOB_NOT_CANCELLABLE for one that has ended."""
    job = _found(
        await jobs.find_job(
            connection, parse_job_id(job_id), account_id=account_id, for_update=True
        )
    )
    if job.state in TERMINAL_STATES:
        raise ApiError(
            ErrorCode.JOB_NOT_CANCELLABLE,
            f"The job is {job.state} already.",
            extra={"jobId": str(job.id), "state": str(job.state)},
        )
    await end_job(
        connection,
        job,
        JobState.CANCELLED,
        open_stages=SkipReason.JOB_CANCELLED,
        stage_error_code="CANCELLED",
    )
    return await get_job(connection, account_id, job_id)


async def processed_data(
    request: Request, connection: Connection, job: JobRecord, include: frozenset[str]
) -> answers.ProcessedData:
    """``{ length, scenes, overview, transcript }``, each only once its stage is completed."""
    length = None if job.duration_ms is None else job.duration_ms / 1000
    data: answers.ProcessedData = {"length": length}
    if "scenes" in include and job.stages[StageName.VISION].status is StageStatus.COMPLETED:
        seen = await read_seen(request, connection, job)
        data["scenes"] = [{**scene, "endTs": scene["endTime"]} for scene in seen["scenes"]]
        if "overview" in seen:
            data["overview"] = seen["overview"]
    transcribed = job.stages[StageName.TRANSCRIPT].status is StageStatus.COMPLETED
    if "transcript" in include and transcribed:
        tracks = await results.list_transcripts(connection, job.id, words=False)
        first = next((track for track in tracks if track.document), tracks[0])
        data["transcript"] = legacy_entries(transcript_of(first))
    return data
