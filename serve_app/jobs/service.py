"""Use cases of jobs. Each takes the caller's transaction and commits nothing itself."""

from __future__ import annotations

import uuid
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from serve_app.credits import pricing
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.jobs.formats import tier_of
from serve_app.jobs.lifecycle import end_job
from serve_app.jobs.schemas import CreateJobBody, MetadataError, check_metadata
from serve_app.settings import Settings
from storage import jobs, ledger, uploads
from storage.jobs import JobRecord, NewJob
from storage.types import TERMINAL_STATES, JobState, ProcessingMode, SkipReason, Tier


def max_upload_bytes(settings: Settings, tier: Tier) -> int:
    """The tier's upload limit."""
    return settings.raw_max_bytes if tier is Tier.RAW else settings.standard_max_bytes


def source_prefix(job_id: uuid.UUID) -> str:
    """Where the footage of a job lies in the object store."""
    return f"jobs/{job_id}/source"


async def create_upload_job(
    connection: AsyncConnection,
    account_id: uuid.UUID,
    body: CreateJobBody,
    *,
    settings: Settings,
    base_url: str,
) -> JobRecord:
    """A job that waits for its media; its minimum charge is held."""
    tier = tier_of(body.fileName)
    _check_size(body, tier, settings)
    metadata = _checked_metadata(body)
    new = NewJob(
        account_id=account_id,
        state=JobState.AWAITING_UPLOAD,
        processing_mode=ProcessingMode(body.processingMode),
        file_name=body.fileName,
        tier=tier,
        metadata=metadata,
        source={"kind": "upload", "base_url": base_url},
        upload_lifetime=timedelta(seconds=settings.upload_lifetime_seconds),
    )
    await _check_active_jobs(connection, account_id, settings)
    await jobs.insert_job(connection, new)
    await uploads.insert_upload(
        connection,
        uploads.Upload(
            job_id=new.id,
            slot=uploads.MEDIA_SLOT,
            file_name=new.file_name,
            object_key=f"{source_prefix(new.id)}/{uploads.MEDIA_SLOT}",
            declared_bytes=body.fileSizeBytes,
            received_bytes=None,
            completed_at=None,
        ),
    )
    await _hold_minimum(connection, new)
    return await get_job(connection, account_id, str(new.id))


def _check_size(body: CreateJobBody, tier: Tier, settings: Settings) -> None:
    limit = max_upload_bytes(settings, tier)
    if body.fileSizeBytes is not None and body.fileSizeBytes > limit:
        raise ApiError(
            ErrorCode.FILE_TOO_LARGE,
            f"The file must not be larger than {limit} bytes.",
            param="fileSizeBytes",
            extra={"maxUploadBytes": limit, "formatTier": str(tier)},
        )


def _checked_metadata(body: CreateJobBody) -> dict[str, object]:
    try:
        return check_metadata(body.metadata or {})
    except MetadataError as error:
        param = "metadata" if error.key is None else f"metadata.{error.key}"
        raise invalid(f"{param}: {error.message}.", param) from error


async def _check_active_jobs(
    connection: AsyncConnection, account_id: uuid.UUID, settings: Settings
) -> None:
    # The lock makes concurrent creations of one account count one after the other.
    await ledger.lock_account(connection, account_id)
    active = await jobs.count_unfinished(connection, account_id)
    if active >= settings.max_active_jobs:
        raise ApiError(
            ErrorCode.TOO_MANY_ACTIVE_JOBS,
            extra={"maxActiveJobs": settings.max_active_jobs, "activeJobs": active},
        )


async def _hold_minimum(connection: AsyncConnection, new: NewJob) -> None:
    amount = pricing.minimum_hold(new.tier, new.processing_mode)
    try:
        await ledger.hold(connection, new.account_id, new.id, amount, "minimum charge")
    except ledger.InsufficientCreditsError as error:
        raise ApiError(ErrorCode.INSUFFICIENT_CREDITS) from error


async def get_job(connection: AsyncConnection, account_id: uuid.UUID, job_id: str) -> JobRecord:
    """The account's job; NOT_FOUND for foreign, missing and malformed ids alike."""
    identifier = _uuid(job_id)
    job = None
    if identifier is not None:
        job = await jobs.find_job(connection, identifier, account_id=account_id)
    if job is None:
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such job.")
    return job


async def get_any_job(connection: AsyncConnection, job_id: str) -> JobRecord:
    """A job of any account, for holders of a signed URL; raises NOT_FOUND."""
    identifier = _uuid(job_id)
    job = None if identifier is None else await jobs.find_job(connection, identifier)
    if job is None:
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such job.")
    return job


def _uuid(text: str) -> uuid.UUID | None:
    try:
        parsed = uuid.UUID(text)
    except ValueError:
        return None
    # uuid.UUID also takes braces, urn: and missing hyphens; a job id has one form.
    return parsed if str(parsed) == text.lower() else None


async def cancel_job(connection: AsyncConnection, account_id: uuid.UUID, job_id: str) -> JobRecord:
    """Cancel an unfinished job; raises JOB_NOT_CANCELLABLE for one that has ended."""
    identifier = (await get_job(connection, account_id, job_id)).id
    job = await jobs.find_job(connection, identifier, account_id=account_id, for_update=True)
    if job is None or job.state in TERMINAL_STATES:
        state = "expired" if job is None else str(job.state)
        raise ApiError(
            ErrorCode.JOB_NOT_CANCELLABLE,
            f"The job is {state} already.",
            extra={"jobId": str(identifier), "state": state},
        )
    await end_job(
        connection,
        job,
        JobState.CANCELLED,
        open_stages=SkipReason.JOB_CANCELLED,
        stage_error_code="CANCELLED",
    )
    return await get_job(connection, account_id, job_id)
