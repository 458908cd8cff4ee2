"""States, transitions and kinds of what is stored, as tables of data. No SQLAlchemy and no pydantic
here: every confined child process imports this."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class JobState(StrEnum):
    """State of a job."""

    AWAITING_UPLOAD = "awaiting_upload"
    QUEUED = "queued"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class StageName(StrEnum):
    """The stages of a job, in the order in which their errors name the job's."""

    INGEST = "ingest"
    VISION = "vision"
    TRANSCRIPT = "transcript"


class StageStatus(StrEnum):
    """Status of a stage."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    SKIPPED = "skipped"
    FAILED = "failed"


class SkipReason(StrEnum):
    """Why a stage did not run."""

    PROCESSING_MODE = "processing_mode"
    AUDIO_ONLY_INPUT = "audio_only_input"
    NO_AUDIO = "no_audio"
    STAGE_SKIPPED = "stage_skipped"
    """For no reason that another value names; part of the API, though no stage needs it today."""
    STAGE_FAILED = "stage_failed"
    JOB_CANCELLED = "job_cancelled"
    JOB_EXPIRED = "job_expired"
    JOB_FAILED = "job_failed"


class PreviewStatus(StrEnum):
    """What became of the preview of media that browsers cannot play."""

    WAITING = "waiting"
    """It is to be made, or being made."""
    MADE = "made"
    FAILED = "failed"


class ComparisonState(StrEnum):
    """What became of a comparison."""

    PENDING = "pending"
    """It is to be made, or being made."""
    COMPLETED = "completed"
    FAILED = "failed"


class TranslationStatus(StrEnum):
    """What became of a translation."""

    PENDING = "pending"
    """It is to be made, or being made."""
    COMPLETED = "completed"
    FAILED = "failed"


class ProcessingMode(StrEnum):
    """Which analysis stages a job runs."""

    ALL = "all"
    TRANSCRIPT = "transcript"
    VISION = "vision"


class Priority(StrEnum):
    """How urgent a job is beside others, of its own account and of all; least urgent first."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


class Cause(StrEnum):
    """Why there is another version of a result."""

    MADE = "made"
    """A stage has published its first version."""
    EDITED = "edited"
    """People, or what measures the times of their words, have changed a part of it."""
    REDACTED = "redacted"
    RENEWED = "renewed"
    """A rerun has exchanged it for its own."""
    ERASED = "erased"


@dataclass(frozen=True, slots=True)
class ResultChange:
    """Another version of what stages of a job have found."""

    job_id: uuid.UUID
    stages: frozenset[StageName]
    cause: Cause
    rows: tuple[list[Any], list[Any]] = ([], [])
    """Of what was made or edited: what a search finds of it, before and after."""
    rerun_id: uuid.UUID | None = None
    """Of what was renewed: the job that has the former version now."""


class SearchKind(StrEnum):
    """What a search finds."""

    TRANSCRIPT = "transcript"
    """What is spoken."""
    SCENE = "scene"
    """A scene by its description."""
    TEXT = "text"
    """Writing on the screen."""
    OBJECT = "object"
    """Things in a scene."""
    FILE = "file"
    """A job by the name of its file."""


class Tier(StrEnum):
    """Price tier, by the kind of file."""

    STANDARD = "standard"
    RAW = "raw"


class Role(StrEnum):
    """What a person is in an account; what each may do: serve_app/api/authentication.py."""

    OWNER = "owner"
    EDITOR = "editor"
    VIEWER = "viewer"
    BILLER = "biller"


class ActorKind(StrEnum):
    """Who acts."""

    KEY = "key"
    USER = "user"
    LINK = "link"
    """A session of a one-time link of the account, which belongs to nobody in particular."""
    OPERATOR = "operator"
    SERVICE = "service"
    """By itself: what is due, or events of a payment provider."""


class KeyStatus(StrEnum):
    """Whether an API key may be used."""

    ACTIVE = "active"
    ROTATED = "rotated"
    REVOKED = "revoked"
    EXPIRED = "expired"


class LedgerKind(StrEnum):
    """What a ledger entry records."""

    PURCHASE = "purchase"
    GRANT = "grant"
    HOLD = "hold"
    RELEASE = "release"
    CHARGE = "charge"
    ADJUSTMENT = "adjustment"


class EventType(StrEnum):
    """Webhook events of jobs. A ``callbackUrl`` gets the first three, an endpoint what it
    subscribes to."""

    JOB_COMPLETED = "job.completed"
    JOB_FAILED = "job.failed"
    JOB_CANCELLED = "job.cancelled"
    JOB_ERASED = "job.erased"
    JOB_PROGRESS = "job.progress"
    TRANSLATION_COMPLETED = "translation.completed"
    TRANSLATION_FAILED = "translation.failed"


class DeliveryStatus(StrEnum):
    """Status of an event's delivery."""

    IN_FLIGHT = "in_flight"
    """Being delivered now, or about to be for the first time."""
    PENDING_RETRY = "pending_retry"
    DELIVERED = "delivered"
    FAILED = "failed"
    DISABLED = "disabled"


MODE_STAGES: dict[ProcessingMode, frozenset[StageName]] = {
    ProcessingMode.ALL: frozenset(StageName),
    ProcessingMode.TRANSCRIPT: frozenset({StageName.INGEST, StageName.TRANSCRIPT}),
    ProcessingMode.VISION: frozenset({StageName.INGEST, StageName.VISION}),
}
"""Stages of a mode; the others are skipped with reason ``processing_mode``."""

ANALYSES = (StageName.VISION, StageName.TRANSCRIPT)
"""The stages after ingest, which run side by side."""

TERMINAL_STATES = frozenset(
    {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}
)
UNFINISHED_STATES = frozenset(JobState) - TERMINAL_STATES

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.AWAITING_UPLOAD: frozenset({JobState.QUEUED, JobState.CANCELLED, JobState.EXPIRED}),
    JobState.QUEUED: frozenset({JobState.PROCESSING, JobState.CANCELLED}),
    JobState.PROCESSING: frozenset(
        {JobState.QUEUED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}
    ),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
    JobState.EXPIRED: frozenset(),
}

ENDED_STATUSES = frozenset({StageStatus.COMPLETED, StageStatus.SKIPPED, StageStatus.FAILED})

TERMINAL_EVENTS: dict[JobState, EventType] = {
    JobState.COMPLETED: EventType.JOB_COMPLETED,
    JobState.FAILED: EventType.JOB_FAILED,
    JobState.CANCELLED: EventType.JOB_CANCELLED,
}
"""The event that goes with a terminal state; ``expired`` has none."""

LEDGER_SIGNS: dict[LedgerKind, tuple[int, int]] = {
    LedgerKind.PURCHASE: (1, 0),
    LedgerKind.GRANT: (1, 0),
    LedgerKind.HOLD: (0, 1),
    LedgerKind.RELEASE: (0, -1),
    LedgerKind.CHARGE: (-1, -1),
}
"""Sign of an entry's effect on (balance, held). ``adjustment`` may have either sign on balance."""


class ArchiveState(StrEnum):
    """State of an archive: a client's bucket that is analysed object by object."""

    ACTIVE = "active"
    PAUSED = "paused"
    """By its owner, or because of the error that it names."""
    COMPLETED = "completed"
    """All was listed and has ended; nothing is watched."""


class ObjectState(StrEnum):
    """State of an archive's object."""

    WAITING = "waiting"
    """A job is to be created."""
    RUNNING = "running"
    """Its job has not ended."""
    COMPLETED = "completed"
    FAILED = "failed"
    REFUSED = "refused"
    """It is nothing that a job could be created of."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file of a collection as its reader lists it."""

    key: str
    """What the reader calls it; bytes that are no text as halves of surrogate pairs."""
    size_bytes: int
    etag: str | None = None
    """Without its quotes; of a file on a disk, when it was changed, in nanoseconds."""
    modified_at: datetime | None = None

    @property
    def version(self) -> tuple[int, str | datetime | None]:
        """What another file under the same key differs in."""
        return self.size_bytes, self.etag or self.modified_at


@dataclass(frozen=True, slots=True)
class Retention:
    """How long ended jobs keep things where neither they nor their accounts have a value, and the
    most that these may have."""

    source_seconds: int | None = None
    """None: as long as the results."""
    most_source_seconds: int | None = None
    result_days: int | None = None
    """None: for good."""
    most_result_days: int | None = None
