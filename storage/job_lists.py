"""Lists of an account's jobs: newest first, page by page, by state or by legacy status."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import ColumnElement, and_, exists, not_, or_, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.job_records import JOB_QUERY, JobRecord, job_record
from storage.tables import jobs, scene_lists, stages
from storage.types import JobState, StageName, StageStatus

_FETCH_FAILED = "FETCH_FAILED"


def _stage_failed(stage: StageName) -> ColumnElement[bool]:
    return exists().where(
        stages.c.job_id == jobs.c.id,
        stages.c.stage == stage,
        stages.c.status == StageStatus.FAILED,
    )


def _failed_at(stage: StageName) -> ColumnElement[bool]:
    """The first failed stage is ``stage``; a job that failed without one counts as ingest."""
    order = list(StageName)
    earlier = order[: order.index(stage)]
    failed = [_stage_failed(name) for name in order]
    first = and_(*(not_(_stage_failed(name)) for name in earlier), _stage_failed(stage))
    if stage is StageName.INGEST:
        first = or_(first, and_(*(not_(condition) for condition in failed)))
    return and_(jobs.c.state == JobState.FAILED, jobs.c.error_code != _FETCH_FAILED, first)


_HAS_SCENES = exists().where(scene_lists.c.job_id == jobs.c.id, scene_lists.c.scene_count > 0)
_COMPLETED = jobs.c.state == JobState.COMPLETED

LEGACY_STATUSES: dict[str, ColumnElement[bool]] = {
    "AWAITING_UPLOAD": jobs.c.state == JobState.AWAITING_UPLOAD,
    "QUEUED": jobs.c.state == JobState.QUEUED,
    "PROCESSING": jobs.c.state == JobState.PROCESSING,
    "VISION_COMPLETED": and_(_COMPLETED, _HAS_SCENES),
    "VIDEO_COMPLETED_NO_SCENES": and_(_COMPLETED, not_(_HAS_SCENES)),
    "FAILED_FETCH": and_(jobs.c.state == JobState.FAILED, jobs.c.error_code == _FETCH_FAILED),
    **{f"{stage.upper()}_FAILED": _failed_at(stage) for stage in StageName},
    "FAILED_CANCELLED": jobs.c.state == JobState.CANCELLED,
    "FAILED_EXPIRED": jobs.c.state == JobState.EXPIRED,
}
"""The legacy statuses, as jobs show them."""

OLDER_FILTERS: dict[str, ColumnElement[bool]] = {
    "CANCELLED": LEGACY_STATUSES["FAILED_CANCELLED"],
    "EXPIRED": LEGACY_STATUSES["FAILED_EXPIRED"],
    "PENDING_UPLOAD": LEGACY_STATUSES["AWAITING_UPLOAD"],
    "UPLOADING": LEGACY_STATUSES["AWAITING_UPLOAD"],
    "INGEST_PROCESSING": LEGACY_STATUSES["PROCESSING"],
    "VISION_PROCESSING": LEGACY_STATUSES["PROCESSING"],
    "VIDEO_PROCESSING": LEGACY_STATUSES["PROCESSING"],
    "INGEST_COMPLETED": _COMPLETED,
    "VIDEO_COMPLETED": _COMPLETED,
    "COMPLETED": _COMPLETED,
    "COMPLETED_NO_SCENES": LEGACY_STATUSES["VIDEO_COMPLETED_NO_SCENES"],
    "FAILED": jobs.c.state == JobState.FAILED,
}
"""Words that no job shows and published clients filter by."""

LEGACY_FILTERS = LEGACY_STATUSES | OLDER_FILTERS
"""What the deprecated ``status`` filter takes."""


async def list_jobs(
    connection: AsyncConnection,
    account_id: uuid.UUID,
    *,
    limit: int,
    after: tuple[datetime, uuid.UUID] | None = None,
    state: JobState | None = None,
    legacy_status: str | None = None,
) -> list[JobRecord]:
    """At most ``limit`` jobs, newest first, that come after ``(created_at, id)``."""
    query = (
        JOB_QUERY.where(jobs.c.account_id == account_id)
        .order_by(jobs.c.created_at.desc(), jobs.c.id.desc())
        .limit(limit)
    )
    if after is not None:
        query = query.where(tuple_(jobs.c.created_at, jobs.c.id) < tuple_(*after))
    if state is not None:
        query = query.where(jobs.c.state == state)
    if legacy_status is not None:
        query = query.where(LEGACY_FILTERS[legacy_status])
    return [job_record(row) for row in (await connection.execute(query)).mappings()]
