"""Jobs as stored: the records, the query that reads them, and the lists of an account."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field

from storage.database import Connection
from storage.tables import jobs, scene_lists, stages, transcripts
from storage.types import (
    UNFINISHED_STATES,
    JobState,
    Priority,
    ProcessingMode,
    SkipReason,
    StageName,
    StageStatus,
    Tier,
)


class SourceFile(BaseModel):
    """A file at an address. Fields that this version does not know are ignored, as its runners
    read rows that the API of the next version writes during an upgrade."""

    model_config = ConfigDict(frozen=True)

    url: str | None = None
    provider: str | None = None
    sealed_token: str | None = None
    """The download token, encrypted, in base64."""
    sealed_access: str | None = None
    """Endpoint and credentials of an address in a bucket, encrypted likewise."""
    archive_id: uuid.UUID | None = None
    """Whose credentials read it, as they are when it is read."""
    name: str | None = None


class SourceClip(SourceFile):
    """A clip of a job from URLs."""

    metadata: dict[str, Any] = Field(default_factory=dict)


class SourceAudio(SourceFile):
    """An external audio file: at an address, or uploaded into ``slot``."""

    name: str
    slot: str | None = None
    label: str | None = None
    sync_mode: str
    offset_ms: int | None = None
    per_channel: bool | None = None
    channels: tuple[int, ...] | None = None

    @property
    def track_names(self) -> list[str]:
        """Of the tracks that the request makes of it: each of its channels where it names them."""
        name = self.label or self.name
        if self.per_channel and self.channels:
            return [f"{name} ch{channel}" for channel in dict.fromkeys(self.channels)]
        return [name]


class JobSource(BaseModel):
    """Where a job's media comes from, and the client's options; the JSON of ``source``."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["upload", "url", "backfill"]
    base_url: str = ""
    """Of the service, for the links of the job's webhook."""
    clips: tuple[SourceClip, ...] = ()
    audio: tuple[SourceAudio, ...] = ()
    keyterms: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()
    """Further ones: of its archive and its account when it was created, as the replacements."""
    replacements: tuple[tuple[str, str], ...] = ()
    people: bool = False
    voices: bool = False
    redact: tuple[str, ...] = ()
    """Kinds of personal data."""
    language: str | None = None
    languages: tuple[str, ...] = ()
    speakers_expected: int | None = None
    speakers_at_most: int | None = None
    channels: Literal["auto", "separate", "mixed"] = "auto"
    """How those of its own sound are transcribed: ``ChannelUse`` of ``pipelines.media_types``."""
    source_retention_seconds: int | None = None
    result_retention_days: int | None = None
    """Chosen for this job; None: as its account's."""
    continuous: bool = False
    """The clips are laid end to end on one timeline."""
    protocol: dict[str, Any] = Field(default_factory=dict)
    """The interface of another service that the request came through, and what its answers follow
    from; empty for the native one."""
    traceparent: str | None = None
    """Of the request that created the job (W3C Trace Context), for the spans of its stages."""

    def stored(self) -> dict[str, Any]:
        """Return the column's JSON: what was given, so that defaults of later versions apply."""
        return self.model_dump(mode="json", exclude_unset=True)


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage of a job as stored."""

    status: StageStatus
    progress: float
    skip_reason: SkipReason | None
    error_code: str | None
    error_message: str | None
    timings: dict[str, float]
    seconds: float = 0.0
    """How long it has been running, or ran, by the database's clock."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as stored, with its stages."""

    id: uuid.UUID
    account_id: uuid.UUID
    state: JobState
    processing_mode: ProcessingMode
    tier: Tier
    file_name: str
    callback_url: str | None
    metadata: dict[str, Any]
    source: JobSource
    batch_id: uuid.UUID | None
    batch_index: int | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    upload_expires_at: datetime | None
    duration_ms: int | None
    audio_track_names: list[str] | None
    warnings: list[dict[str, Any]]
    error_code: str | None
    error_message: str | None
    erased_at: datetime | None
    redact_after: datetime | None
    redact_error: str | None
    held_cents: int
    charged_cents: int
    billable_seconds: int | None
    quote_cents: dict[str, int] | None
    lease_token: uuid.UUID | None
    lease_count: int
    priority: Priority
    rerun_of: uuid.UUID | None
    scene_count: int | None
    tracks_completed: int
    clips: list[dict[str, Any]] | None
    """Of a batch's job after ingest: where its clips lie (``pipelines.types.ClipSpan``)."""
    stages: dict[StageName, StageRecord]

    @property
    def track_names(self) -> list[str]:
        """Of the audio tracks, by index: as ingest found them, before it as the request names
        them."""
        if self.audio_track_names is not None:
            return self.audio_track_names
        return [name for each in self.source.audio for name in each.track_names]

    @property
    def shows_personal_data(self) -> bool:
        """Whether some is to be hidden that is not yet, or could not be."""
        return self.redact_after is not None or self.redact_error is not None

    @property
    def hides_sound(self) -> bool:
        """Whether its media is given out only once it was muted."""
        reason = self.stages[StageName.TRANSCRIPT].skip_reason
        return bool(self.source.redact) and reason is not SkipReason.NO_AUDIO


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


_OF_STAGE = [name for name in StageRecord.__dataclass_fields__ if name != "seconds"]
_STAGES_JSON = (
    sa.select(
        sa.func.json_object_agg(
            stages.c.stage,
            sa.func.json_build_object(
                *(part for name in _OF_STAGE for part in (name, stages.c[name])),
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
_PLAIN_COLUMNS = [
    jobs.c[name]
    for name in JobRecord.__dataclass_fields__
    if name not in {"stages", "scene_count", "tracks_completed", "clips"}
]
# A job as everything reads it: in one statement.
JOB_QUERY = sa.select(*_PLAIN_COLUMNS, _CLIPS, _SCENE_COUNT, _TRACKS_COMPLETED, _STAGES_JSON)


_FIELDS = tuple(JobRecord.__dataclass_fields__)


def job_record(row: Mapping[str, Any] | sa.RowMapping) -> JobRecord:
    """Return a row of JOB_QUERY as a record; its other columns are left out."""
    values: dict[str, Any] = {name: row[name] for name in _FIELDS}
    values["source"] = JobSource.model_validate(values["source"])
    values["state"] = JobState(values["state"])
    values["processing_mode"] = ProcessingMode(values["processing_mode"])
    values["tier"] = Tier(values["tier"])
    values["priority"] = Priority(values["priority"])
    raw_stages = values["stages"]
    values["stages"] = {name: _stage(raw_stages[name]) for name in StageName}
    return JobRecord(**values)


def _stage(raw: dict[str, Any]) -> StageRecord:
    reason = raw["skip_reason"]
    values = {
        "status": StageStatus(raw["status"]),
        "skip_reason": SkipReason(reason) if reason else None,
        "seconds": float(raw["seconds"] or 0.0),
    }
    return StageRecord(**raw | values)


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


async def list_jobs(
    connection: Connection,
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
        query = query.where(sa.tuple_(jobs.c.created_at, jobs.c.id) < sa.tuple_(*after))
    if state is not None:
        # As a constant, so that the planner sees which index has these jobs alone.
        query = query.where(jobs.c.state == sa.literal(state, literal_execute=True))
        if state in UNFINISHED_STATES:
            query = query.where(jobs.c.completed_at.is_(None))
    if legacy_status is not None:
        query = query.where(LEGACY_FILTERS[legacy_status])
    return [job_record(row) for row in (await connection.execute(query)).mappings()]
