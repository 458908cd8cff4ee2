"""Jobs as stored: the records, the query that reads them, and the lists of an account."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from storage.database import Connection
from storage.records import columns, from_row
from storage.tables import (
    JobRecord,
    JobSource,
    SourceAudio,
    SourceClip,
    SourceFile,
    StageRecord,
    jobs,
    scene_lists,
    speaker_labels,
    stages,
    transcripts,
)
from storage.types import (
    UNFINISHED_STATES,
    JobState,
    Priority,
    ProcessingMode,
    StageName,
    StageStatus,
    Tier,
)

__all__ = ["JobRecord", "JobSource", "SourceAudio", "SourceClip", "SourceFile", "StageRecord"]


@dataclass(frozen=True, slots=True)
class NewJob:
    """What a job is created from."""

    account_id: uuid.UUID
    state: JobState
    processing_mode: ProcessingMode
    file_name: str
    source: JobSource
    tier: Tier = Tier.STANDARD
    callback_url: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    batch_id: uuid.UUID | None = None
    batch_index: int | None = None
    upload_lifetime: timedelta | None = None
    warnings: list[dict[str, Any]] = field(default_factory=list)
    priority: Priority = Priority.NORMAL
    queue_weight: float = 1.0
    """Of its account and priority together."""
    rerun_of: uuid.UUID | None = None
    """The job whose results it renews."""
    capped_key_id: uuid.UUID | None = None
    """The key that creates it, the first of those it was rotated from, where it has caps."""
    running_limit: int | None = None
    """How many jobs of its account run at once; None: as many as there are runners for."""
    id: uuid.UUID = field(default_factory=uuid.uuid4)


_STAGES_JSON = (
    sa.select(
        sa.func.json_object_agg(
            stages.c.stage,
            sa.func.json_build_object(
                *(part for each in columns(StageRecord) for part in (str(each.name), each)),
                "seconds",
                sa.func.extract(
                    "epoch",
                    sa.func.coalesce(stages.c.ended_at, sa.func.now()) - stages.c.started_at,
                ),
            ),
        )
    )
    .where(stages.c.job_id == jobs.c.id)
    .correlate(jobs)
    .scalar_subquery()
    .label("stages")
)
_SCENE_COUNT = (
    sa.select(scene_lists.c.scene_count)
    .where(scene_lists.c.job_id == jobs.c.id)
    .correlate(jobs)
    .scalar_subquery()
    .label("scene_count")
)
_TRACKS_COMPLETED = (
    sa.select(sa.func.count())
    .select_from(transcripts)
    .where(transcripts.c.job_id == jobs.c.id, transcripts.c.status == StageStatus.COMPLETED)
    .correlate(jobs)
    .scalar_subquery()
    .label("tracks_completed")
)
# The rest of what ingest found is long, and not read for every glance at a job.
_CLIPS = sa.case((jobs.c.batch_id.is_not(None), jobs.c.ingest_result["clips"])).label("clips")
# A job as everything reads it: in one statement.
JOB_QUERY = sa.select(*columns(JobRecord), _CLIPS, _SCENE_COUNT, _TRACKS_COMPLETED, _STAGES_JSON)


def job_record(row: Mapping[str, Any] | sa.RowMapping) -> JobRecord:
    """Return a row of JOB_QUERY as a record; its other columns are left out."""
    own_stages = {
        name: from_row(StageRecord, raw | {"seconds": float(raw["seconds"] or 0.0)})
        for name in StageName
        for raw in [row["stages"][name]]
    }
    source = JobSource.model_validate(row["source"])
    return from_row(JobRecord, {**row, "source": source, "stages": own_stages})


_FETCH_FAILED = "FETCH_FAILED"


def _stage_failed(stage: StageName) -> sa.ColumnElement[bool]:
    return sa.exists().where(
        stages.c.job_id == jobs.c.id, stages.c.stage == stage, stages.c.status == StageStatus.FAILED
    )


def _failed_at(stage: StageName) -> sa.ColumnElement[bool]:
    """The first failed stage is ``stage``; a job that failed without one counts as ingest."""
    order = list(StageName)
    earlier = order[: order.index(stage)]
    failed = [_stage_failed(name) for name in order]
    first = sa.and_(*(sa.not_(_stage_failed(name)) for name in earlier), _stage_failed(stage))
    if stage is StageName.INGEST:
        first = sa.or_(first, sa.and_(*(sa.not_(condition) for condition in failed)))
    return sa.and_(jobs.c.state == JobState.FAILED, jobs.c.error_code != _FETCH_FAILED, first)


_HAS_SCENES = sa.exists().where(scene_lists.c.job_id == jobs.c.id, scene_lists.c.scene_count > 0)
_COMPLETED = jobs.c.state == JobState.COMPLETED

LEGACY_STATUSES: dict[str, sa.ColumnElement[bool]] = {
    "AWAITING_UPLOAD": jobs.c.state == JobState.AWAITING_UPLOAD,
    "QUEUED": jobs.c.state == JobState.QUEUED,
    "PROCESSING": jobs.c.state == JobState.PROCESSING,
    "VISION_COMPLETED": sa.and_(_COMPLETED, _HAS_SCENES),
    "VIDEO_COMPLETED_NO_SCENES": sa.and_(_COMPLETED, sa.not_(_HAS_SCENES)),
    "FAILED_FETCH": sa.and_(jobs.c.state == JobState.FAILED, jobs.c.error_code == _FETCH_FAILED),
    **{f"{stage.upper()}_FAILED": _failed_at(stage) for stage in StageName},
    "FAILED_CANCELLED": jobs.c.state == JobState.CANCELLED,
    "FAILED_EXPIRED": jobs.c.state == JobState.EXPIRED,
}
"""The legacy statuses, as jobs show them."""

OLDER_FILTERS: dict[str, sa.ColumnElement[bool]] = {
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


class JobOrder(StrEnum):
    """How a list of jobs is sorted."""

    NEWEST = "newest"
    OLDEST = "oldest"
    NAME = "name"
    LONGEST = "longest"


_ORDERS: dict[JobOrder, tuple[sa.ColumnElement[Any], ...]] = {
    JobOrder.NEWEST: (),
    JobOrder.OLDEST: (jobs.c.created_at,),
    JobOrder.NAME: (sa.func.lower(jobs.c.file_name),),
    JobOrder.LONGEST: (jobs.c.duration_ms.desc().nulls_last(),),
}


async def list_jobs(
    connection: Connection,
    account_id: uuid.UUID,
    *,
    limit: int,
    after: tuple[datetime, uuid.UUID] | None = None,
    state: JobState | None = None,
    legacy_status: str | None = None,
    name: str | None = None,
    tag: str | None = None,
    speaker: str | None = None,
    created_from: datetime | None = None,
    created_to: datetime | None = None,
    order: JobOrder = JobOrder.NEWEST,
) -> list[JobRecord]:
    """At most ``limit`` jobs in this order; of the newest those after ``(created_at, id)``.

    ``name`` is a part of a file's name, ``speaker`` the name of one who speaks, in any case."""
    query = JOB_QUERY.where(jobs.c.account_id == account_id).limit(limit)
    query = query.order_by(*_ORDERS[order], jobs.c.created_at.desc(), jobs.c.id.desc())
    if after is not None:
        query = query.where(sa.tuple_(jobs.c.created_at, jobs.c.id) < sa.tuple_(*after))
    if name is not None:
        query = query.where(jobs.c.file_name.icontains(name, autoescape=True))
    if tag is not None:
        query = query.where(jobs.c.tags.contains([tag]))
    if speaker is not None:
        named = sa.exists().where(
            speaker_labels.c.job_id == jobs.c.id,
            sa.func.lower(speaker_labels.c.label) == speaker.lower(),
        )
        query = query.where(named)
    if created_from is not None:
        query = query.where(jobs.c.created_at >= created_from)
    if created_to is not None:
        query = query.where(jobs.c.created_at < created_to)
    if state is not None:
        # As a constant, so that the planner sees which index has these jobs alone.
        query = query.where(jobs.c.state == sa.literal(state, literal_execute=True))
        if state in UNFINISHED_STATES:
            query = query.where(jobs.c.completed_at.is_(None))
    if legacy_status is not None:
        query = query.where(LEGACY_FILTERS[legacy_status])
    return [job_record(row) for row in (await connection.execute(query)).mappings()]
