"""All tables, with the reason for each constraint and index.

What must never happen is made impossible here, not merely avoided in code: CHECKs state what a row
may be, partial unique indexes what may exist once. The rules of the ledger also rest on triggers
(``functions.sql``): the running totals on accounts, jobs and refunds move with ledger entries and
with nothing else; a stage is charged its price exactly if it is completed; a purchase is credited
in the transaction that records it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB, TSVECTOR
from sqlalchemy.schema import SchemaItem
from typing_extensions import TypedDict

from storage import types
from storage.records import (
    COMPUTED,
    HIDDEN,
    KEY,
    NOW,
    OPTIONAL,
    As,
    Count,
    Record,
    Seconds,
    Url,
    Uuid,
    doc,
    of,
    one_of,
    table_of,
)

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


MOMENT = "%Y-%m-%dT%H:%M:%S.%fZ"
"""Of the audit log."""


def _time(name: str, *, nullable: bool = False, now: bool = False) -> sa.Column[object]:
    default = sa.func.now() if now else None
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, server_default=default)


ZERO = of(server_default=sa.text("0"))
BIG = of(sa.BigInteger)


def _table(name: str, *parts: SchemaItem, prefixes: Sequence[str] = ()) -> sa.Table:
    return sa.Table(name, metadata, *parts, prefixes=[*prefixes])


def _check(condition: str, name: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=name)


def _index(name: str, columns: str, where: str | None = None, **options: Any) -> sa.Index:
    """Return an index of the rows ``where`` something holds; a column may be "… DESC"."""
    parts = [sa.text(each) if " " in each else each for each in columns.split(", ")]
    return sa.Index(
        name, *parts, postgresql_where=None if where is None else sa.text(where), **options
    )


def _of_transcript(table: str) -> sa.ForeignKeyConstraint:
    names = ["job_id", "track_index"]
    of = [f"transcripts.{name}" for name in names]
    return sa.ForeignKeyConstraint(names, of, name=f"fk_{table}_transcript", ondelete="CASCADE")


@dataclass(frozen=True, slots=True)
class Account(Record):
    """An account with its running totals, in cents."""

    id: Annotated[uuid.UUID, KEY]
    name: Annotated[str, of(unique=True)]
    created_at: Annotated[datetime, NOW]
    # Kept by the trigger on ledger_entries and by nothing else.
    balance_cents: Annotated[int, BIG, ZERO]
    held_cents: Annotated[int, BIG, ZERO]
    suspended_at: datetime | None
    throttled_at: datetime | None
    max_active_jobs: int | None
    # Its share of the queue, how many of its jobs run at once, and the most urgent priority that
    # they may have; None: as the service's settings have it.
    queue_weight: Annotated[float, of(server_default=sa.text("1"))]
    max_running_jobs: int | None
    highest_priority: str | None
    pay_as_you_go: Annotated[bool, of(server_default=sa.text("false"))]
    credit_limit_cents: Annotated[int, BIG, ZERO]
    # How long its jobs keep their media and their content; None: as the service does.
    source_retention_seconds: int | None
    result_retention_days: int | None
    vocabulary: Annotated[dict[str, Any] | None, of(JSONB(none_as_null=True))]
    """Key terms and replacements of its jobs, in the form of the API; None: none."""
    recognises: Annotated[bool, of(server_default=sa.text("false"))]
    """Whether jobs that do not state it recognise people and voices, where the service does."""
    legal_hold_at: datetime | None
    """Nothing of it may be deleted."""
    erased_at: datetime | None
    """Its jobs are to be erased, one after the other."""

    @property
    def available_cents(self) -> int:
        return self.balance_cents - self.held_cents


accounts = table_of(
    metadata,
    Account,
    "accounts",
    _check("held_cents >= 0", "held_not_negative"),
    # No spending and no hold beyond what is available: the money rule of the service.
    _check(
        "balance_cents - held_cents >= "
        "-(CASE WHEN pay_as_you_go THEN credit_limit_cents ELSE 0 END)",
        "available_within_limit",
    ),
    _check("credit_limit_cents >= 0", "credit_limit_not_negative"),
    _check("max_active_jobs > 0", "max_active_jobs_positive"),
    _check("queue_weight > 0", "queue_weight_positive"),
    _check("max_running_jobs > 0", "max_running_jobs_positive"),
    _check(one_of("highest_priority", types.Priority), "highest_priority"),
)


@dataclass(frozen=True, slots=True)
class User(Record):
    """A person in an account."""

    id: Annotated[uuid.UUID, KEY]
    account_id: Annotated[uuid.UUID, of(sa.ForeignKey("accounts.id"))]
    email: str
    """In lower case."""
    role: types.Role
    created_at: Annotated[datetime, NOW]
    subject: str | None
    """What the issuer of OIDC calls them, once they have signed in by it."""


users = table_of(
    metadata,
    User,
    "users",
    sa.Column("issuer", sa.Text),
    # They stay: the audit log and keys refer to them.
    _time("removed_at", nullable=True),
    _check("(issuer IS NULL) = (subject IS NULL)", "subject_has_issuer"),
    _index("uq_users_email", "account_id, email", unique=True, where="removed_at IS NULL"),
    _index(
        "uq_users_subject", "issuer, subject, account_id", unique=True, where="removed_at IS NULL"
    ),
    _index("ix_users_email", "email", where="removed_at IS NULL"),
)


@dataclass(frozen=True, slots=True)
class Invitation(Record):
    """An invitation that is neither used nor over."""

    id: Annotated[uuid.UUID, KEY]
    email: str
    role: types.Role
    created_at: Annotated[datetime, NOW]
    expires_at: datetime


invitations = table_of(
    metadata,
    Invitation,
    "invitations",
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False, index=True),
    sa.Column("token_sha256", sa.LargeBinary, nullable=False, unique=True),
    _time("used_at", nullable=True),
)


@dataclass(frozen=True, slots=True)
class Flow(Record):
    """A sign-in by OIDC that has begun."""

    state: Annotated[str, COMPUTED]
    """Goes to the issuer and comes back, once."""
    browser: Annotated[str, COMPUTED]
    """Stays in the browser that began it."""
    nonce: str
    code_verifier: str
    account_id: uuid.UUID | None = None
    """The account that was chosen, where somebody is in several."""
    user_id: uuid.UUID | None = None
    """The user who was signed in as it began, and may connect themselves with the issuer."""
    invitation_id: uuid.UUID | None = None
    """The invitation that it accepts."""
    subject: str | None = None
    """Whom the issuer has named, once only the person's consent is missing."""


# Sign-ins by OIDC that an issuer has not answered yet.
oidc_flows = table_of(
    metadata,
    Flow,
    "oidc_flows",
    sa.Column("state_sha256", sa.LargeBinary, primary_key=True),
    sa.Column("browser_sha256", sa.LargeBinary, nullable=False),
    _time("expires_at"),
)


@dataclass(frozen=True, slots=True)
class Key(Record):
    """An API key; its secret is never listed."""

    id: Annotated[uuid.UUID, KEY, doc("The key's id.")]
    last_four: Annotated[
        str,
        As(Annotated[str, doc("Prefix and last four characters.", "vas_live_…q7Zk")], "displayKey"),
    ]
    status: types.KeyStatus
    expires_at: Annotated[datetime | None, doc("When it stops working; null for never.", None)]
    benefit_id: Annotated[str | None, doc("The purchase that it came with.", None)]
    created_at: Annotated[datetime, NOW, doc("When it was made.")]
    max_monthly_cents: Annotated[int | None, of(sa.BigInteger), HIDDEN] = None
    """What jobs that it creates may cost in a month."""
    max_active_jobs: Annotated[int | None, HIDDEN] = None
    """How many of its jobs are unfinished at once."""
    name: Annotated[str | None, doc("What it is for, as its maker wrote it.", "Newsroom")] = None
    last_used_at: Annotated[
        datetime | None, doc("When it was last used, to the hour; null for never.")
    ] = None
    made_by: Annotated[str | None, COMPUTED, HIDDEN] = None
    """Address of the user; None: the operator, or a link of the account."""

    def json(self, **given: Any) -> dict[str, Any]:
        return Record.json(self, displayKey=display_key(self.last_four), **given)


KEY_PREFIX = "vas_live_"


def display_key(last_four: str) -> str:
    """Return a key without its secret, as it is shown."""
    return f"{KEY_PREFIX}…{last_four}"


api_keys = table_of(
    metadata,
    Key,
    "api_keys",
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False, index=True),
    sa.Column("secret_sha256", sa.LargeBinary, nullable=False, unique=True),
    # NULL: the operator, or a session that is nobody's in particular.
    sa.Column("made_by", sa.ForeignKey("users.id")),
    # The first of those that it replaced by rotation: caps count the jobs of all of them.
    sa.Column("first_id", sa.Uuid),
    _check("max_monthly_cents > 0", "max_monthly_cents_positive"),
    _check("max_active_jobs > 0", "max_active_jobs_positive"),
)

sign_in_links = _table(
    "sign_in_links",
    sa.Column("token_sha256", sa.LargeBinary, primary_key=True),
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False),
    # NULL: the session that it is exchanged for has an owner's role, and is nobody's in particular.
    sa.Column("user_id", sa.ForeignKey("users.id")),
    _time("expires_at"),
    _time("used_at", nullable=True),
)

sessions = _table(
    "sessions",
    sa.Column("token_sha256", sa.LargeBinary, primary_key=True),
    # By which it is listed and ended; the token is known to its browser alone.
    sa.Column("id", sa.Uuid, nullable=False, server_default=sa.text("gen_random_uuid()")),
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False),
    sa.Column("user_id", sa.ForeignKey("users.id"), index=True),
    sa.Column("address", sa.Text),
    _time("created_at", now=True),
    _time("expires_at"),
    # The job whose transcript it edits, until then unless it says so again.
    sa.Column("editing_job_id", sa.Uuid),
    _time("editing_until", nullable=True),
)

# Of operators, who belong to no account: a table of their own, so that no query for an account's
# session can find one.
operator_sessions = _table(
    "operator_sessions",
    sa.Column("link_sha256", sa.LargeBinary, primary_key=True),
    _time("link_expires_at"),
    # Of the session that the link was exchanged for, which uses the link up.
    sa.Column("token_sha256", sa.LargeBinary, unique=True),
    _time("expires_at", nullable=True),
    _check("(token_sha256 IS NULL) = (expires_at IS NULL)", "session_has_end"),
)

OWN_DAYS = "(source ->> 'result_retention_days') IS NOT NULL"
"""That a job was created with a retention of its results."""


@dataclass(frozen=True, slots=True)
class StageRecord(Record):
    """One stage of a job as stored."""

    status: types.StageStatus
    progress: Annotated[float, ZERO]
    skip_reason: Annotated[types.SkipReason | None, of(sa.Text)]
    error_code: str | None
    error_message: str | None
    timings: Annotated[dict[str, float], of(JSONB, server_default=sa.text("'{}'"))]
    """Seconds that each part of the stage took."""
    seconds: Annotated[float, COMPUTED] = 0.0
    """How long it has been running, or ran, by the database's clock."""


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
    """The request's own."""
    vocabulary: tuple[str, ...] = ()
    """Further key terms, of its archive and its account as it was created."""
    replacements: tuple[tuple[str, str], ...] = ()
    """Of these too: words that are heard, and what is written in their place."""
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
class JobRecord(Record):
    """A job as stored, with its stages."""

    id: Annotated[uuid.UUID, KEY]
    account_id: Annotated[uuid.UUID, of(sa.ForeignKey("accounts.id"))]
    state: types.JobState
    processing_mode: types.ProcessingMode
    tier: types.Tier
    file_name: str
    callback_url: str | None
    # JSON, not JSONB, where the client sees the value: order and numbers stay as they came.
    metadata: Annotated[dict[str, Any], of(JSON, server_default=sa.text("'{}'"))]
    tags: Annotated[list[str], of(server_default=sa.text("'{}'"))]
    source: Annotated[JobSource, of(JSONB)]
    """Where the media comes from and how its audio is aligned, as requested."""
    batch_id: uuid.UUID | None
    batch_index: int | None
    created_at: Annotated[datetime, NOW]
    started_at: datetime | None
    completed_at: datetime | None
    upload_expires_at: datetime | None
    duration_ms: Annotated[int | None, BIG]
    audio_track_names: Annotated[list[str] | None, of(JSONB)]
    warnings: Annotated[list[dict[str, Any]], of(JSONB, server_default=sa.text("'[]'"))]
    error_code: str | None
    error_message: str | None
    erased_at: datetime | None
    """Its content is gone from the database; its objects go with the next round of cleaning."""
    redact_after: datetime | None
    """Since when personal data is to be redacted (the kinds are in ``source``), until it is."""
    redact_error: str | None
    """Why it could not be."""
    held_cents: Annotated[int, BIG, ZERO]
    charged_cents: Annotated[int, BIG, ZERO]
    billable_seconds: Annotated[int | None, BIG]
    quote_cents: Annotated[dict[str, int] | None, of(JSONB)]
    """What the job will be charged, stage by stage, fixed once its duration is known."""
    lease_token: uuid.UUID | None
    lease_count: Annotated[int, of(sa.SmallInteger), ZERO]
    priority: Annotated[types.Priority, of(server_default=sa.text("'normal'"))]
    rerun_of: Annotated[uuid.UUID | None, of(sa.ForeignKey("jobs.id", name="fk_jobs_rerun_of"))]
    """The job whose results it renews."""
    scene_count: Annotated[int | None, COMPUTED]
    tracks_completed: Annotated[int, COMPUTED]
    clips: Annotated[list[dict[str, Any]] | None, COMPUTED]
    """Of a batch's job after ingest: where its clips lie (``pipelines.types.ClipSpan``)."""
    stages: Annotated[dict[types.StageName, StageRecord], COMPUTED]

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
        reason = self.stages[types.StageName.TRANSCRIPT].skip_reason
        return bool(self.source.redact) and reason is not types.SkipReason.NO_AUDIO


jobs = table_of(
    metadata,
    JobRecord,
    "jobs",
    sa.Column("ingest_result", JSONB),
    _time("quoted_at", nullable=True),
    _time("lease_expires_at", nullable=True),
    # Of its account and priority together, as they were when it was created.
    sa.Column("queue_weight", sa.Float, nullable=False, server_default=sa.text("1")),
    # How many jobs of its account may be ahead of it or run; the others are parked.
    sa.Column("running_limit", sa.Integer),
    sa.Column("parked", sa.Boolean, nullable=False, server_default=sa.text("false")),
    # Its place among all that were ever queued: given by a trigger (functions.sql), which
    # explains it.
    sa.Column("finish_tag", sa.BigInteger),
    # Objects of a job that ended are removed, in several rounds: when the next one is due
    # (or, while one runs, when another may take it over), and when the last one was done.
    _time("cleaning_after", nullable=True),
    _time("cleaned_at", nullable=True),
    # Nothing of it may be deleted.
    _time("legal_hold_at", nullable=True),
    # By these, and by redact_after, version 0.3.0 leases it for what storage.work is for now.
    _time("compare_after", nullable=True),
    sa.Column("redact_attempts", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
    # The key that created it, the first of those it was rotated from, where that has caps.
    sa.Column("capped_key_id", sa.Uuid),
    # [[start, end], …] in milliseconds, in order: where what shows the media is silent.
    sa.Column("muted", JSON(none_as_null=True)),
    _check("cleaned_at IS NULL OR cleaning_after IS NULL", "cleaned_once"),
    _check("queue_weight > 0", "queue_weight_positive"),
    _check("running_limit > 0", "running_limit_positive"),
    _check("held_cents >= 0", "held_not_negative"),
    _check("charged_cents >= 0", "charged_not_negative"),
    _check("(state = 'processing') = (lease_token IS NOT NULL)", "lease_is_processing"),
    _check("(lease_token IS NULL) = (lease_expires_at IS NULL)", "lease_has_deadline"),
    _check(
        "(state IN ('completed', 'failed', 'cancelled', 'expired')) = (completed_at IS NOT NULL)",
        "ended_has_time",
    ),
    _check("(state = 'failed') = (error_code IS NOT NULL)", "failed_has_code"),
    # A job that has ended holds no money.
    _check("completed_at IS NULL OR held_cents = 0", "ended_holds_nothing"),
    _index("ix_jobs_rerun_of", "rerun_of", where="rerun_of IS NOT NULL"),
    # Newest first with a stable tie-break: the order of GET /jobs and its cursor.
    _index("ix_jobs_listing", "account_id, created_at DESC, id DESC"),
    # Those that failed or were cancelled among many that did not: lists by state.
    _index(
        "ix_jobs_unsuccessful",
        "account_id, state, created_at DESC, id DESC",
        where="state IN ('failed', 'cancelled', 'expired')",
    ),
    # What runners lease, in order; small, because only waiting jobs are in it.
    _index("ix_jobs_turns", "finish_tag, created_at", where="state = 'queued' AND NOT parked"),
    # The last tag of an account and priority, and how many jobs an account has in the queue.
    _index(
        "ix_jobs_tagged",
        "account_id, parked, priority, finish_tag",
        where="completed_at IS NULL AND finish_tag IS NOT NULL",
    ),
    _index(
        "ix_jobs_parked", "account_id, finish_tag, created_at", where="state = 'queued' AND parked"
    ),
    # How long the oldest has waited; what versions before 0.3.0 lease by.
    _index("ix_jobs_waiting", "created_at", where="state = 'queued'"),
    _index("ix_jobs_leased", "lease_expires_at", where="state = 'processing'"),
    _index("ix_jobs_uploading", "upload_expires_at", where="state = 'awaiting_upload'"),
    _index("ix_jobs_capped_key", "capped_key_id, created_at", where="capped_key_id IS NOT NULL"),
    # Counting an account's unfinished jobs must not read its history.
    _index("ix_jobs_unredacted", "redact_after", where="redact_after IS NOT NULL"),
    _index("ix_jobs_uncompared", "compare_after", where="compare_after IS NOT NULL"),
    _index("ix_jobs_unfinished", "account_id", where="completed_at IS NULL"),
    # A month's usage is the sum over its quoted jobs.
    _index("ix_jobs_usage", "account_id, quoted_at", where="quoted_at IS NOT NULL"),
    # What ended of late, for operators.
    _index("ix_jobs_ended", "state, completed_at", where="completed_at IS NOT NULL"),
    # First rounds come so long after the end, which depends on how it ended; later ones by date.
    _index(
        "ix_jobs_uncleaned",
        "state, completed_at",
        where="completed_at IS NOT NULL AND cleaned_at IS NULL AND cleaning_after IS NULL",
    ),
    # Results whose time is over, by their account's retention, or by their own.
    _index("ix_jobs_kept", "account_id, completed_at", where="erased_at IS NULL"),
    _index("ix_jobs_own_days", "completed_at", where=f"erased_at IS NULL AND {OWN_DAYS}"),
    _index("ix_jobs_cleaning", "cleaning_after", where="cleaning_after IS NOT NULL"),
)

stages = table_of(
    metadata,
    StageRecord,
    "stages",
    sa.Column("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("stage", sa.Text, nullable=False),
    _time("started_at", nullable=True),
    _time("ended_at", nullable=True),
    # Whether its result is in search_rows; versions before 0.2.0 publish without.
    sa.Column("indexed", sa.Boolean),
    # Digest of the models, versions and settings of its result.
    sa.Column("made_with", sa.Text),
    # What a receipt names of it.
    sa.Column("receipt", JSONB),
    # Of its price what is not charged: for tracks in which there was nothing new.
    sa.Column("waived_cents", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.PrimaryKeyConstraint("job_id", "stage"),
    _check(one_of("stage", types.StageName), "stage"),
    _check("progress BETWEEN 0 AND 1", "progress"),
    _check("waived_cents >= 0", "waived_not_negative"),
    _check("(status = 'failed') <= (error_code IS NOT NULL)", "failed_has_code"),
    _check("(status = 'skipped') = (skip_reason IS NOT NULL)", "skipped_has_reason"),
)

# What a stage's result is made with now, as the runner that started last found it.
stage_versions = _table(
    "stage_versions",
    sa.Column("stage", sa.Text, primary_key=True),
    sa.Column("made_with", sa.Text, nullable=False),
    _check(one_of("stage", types.StageName), "stage"),
)


@dataclass(frozen=True, slots=True)
class Upload(Record):
    """A file that was announced, and what of it has arrived."""

    job_id: Annotated[uuid.UUID, of(sa.ForeignKey("jobs.id", ondelete="CASCADE"))]
    slot: str
    """'media', 'audio', or 'track-N'."""
    file_name: str
    object_key: str
    declared_bytes: Annotated[int | None, of(sa.BigInteger)]
    """The size given at the job's creation."""
    received_bytes: Annotated[int | None, of(sa.BigInteger)]
    completed_at: datetime | None
    resumable_bytes: Annotated[int | None, of(sa.BigInteger)] = None
    """The size given by a resumable upload where the job's creation left it open."""
    unverified_from_bytes: Annotated[int | None, of(sa.BigInteger)] = None
    """A block with a checksum is being received: bytes beyond this offset do not count yet."""
    terminated_at: datetime | None = None
    """The client terminated the resumable upload; its URL returns 410."""

    @property
    def total_bytes(self) -> int | None:
        """The size that the file will have; None while it is not given."""
        return self.declared_bytes if self.declared_bytes is not None else self.resumable_bytes


uploads = table_of(
    metadata,
    Upload,
    "uploads",
    # When to check next for a direct upload.
    _time("look_after", nullable=True),
    # A PUT is under way: extended while its bytes arrive.
    _time("arriving_until", nullable=True),
    # Who may append to the resumable upload, and until when unless more bytes arrive.
    sa.Column("writer_token", sa.Uuid),
    _time("writer_expires_at", nullable=True),
    sa.PrimaryKeyConstraint("job_id", "slot"),
    _check("(completed_at IS NULL) = (received_bytes IS NULL)", "complete_has_size"),
    _check("(writer_token IS NULL) = (writer_expires_at IS NULL)", "writer_has_deadline"),
    _check(
        "unverified_from_bytes IS NULL OR unverified_from_bytes >= 0", "unverified_not_negative"
    ),
    # Writers whose process died; nearly always empty.
    _index("ix_uploads_written", "writer_expires_at", where="writer_token IS NOT NULL"),
)

scene_lists = _table(
    "scene_lists",
    sa.Column("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("scenes", JSON, nullable=False),
    sa.Column("scene_count", sa.Integer, nullable=False),
    sa.Column("overview", JSON),
    sa.Column("people", JSON),
    # Of the shots, as pipelines.vision.fingerprints writes them.
    sa.Column("fingerprints", sa.LargeBinary),
)


@dataclass(frozen=True, slots=True)
class TrackTranscript(Record):
    """The transcript of one track; ``document`` is None where transcription failed.

    Else it is a TranscriptResult as JSON of ``pipelines.codec``.
    """

    track_index: Annotated[int, of(sa.SmallInteger)]
    track_name: str
    status: types.StageStatus
    error_code: str | None
    language: str | None
    document: Annotated[str | None, COMPUTED]
    labels: Annotated[Mapping[str, str], COMPUTED] = field(default_factory=dict)
    """The names that its speakers were given, by their ids."""
    voices: Annotated[Mapping[str, str], COMPUTED] = field(default_factory=dict)
    """The ids of the account's named voices that its speakers are, by their ids."""
    version: Annotated[str, COMPUTED] = ""
    """Another one with every change of the row or of its speakers' names."""
    revision: Annotated[int, ZERO] = 0
    """How often people have corrected it."""
    redacted_revision: int | None = None
    """Earlier revisions have what was redacted."""


transcripts = table_of(
    metadata,
    TrackTranscript,
    "transcripts",
    sa.Column("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    # As people have corrected it so often; what each of them changed is in transcript_revisions.
    sa.Column("document", JSON),
    # Version 0.3.0 leases it by this.
    _time("align_after", nullable=True),
    # Of its sound, as pipelines.media.audio writes it.
    sa.Column("sound_print", sa.LargeBinary),
    sa.PrimaryKeyConstraint("job_id", "track_index"),
    _check("(status = 'completed') = (document IS NOT NULL)", "completed_has_text"),
    _index("ix_transcripts_unaligned", "align_after", where="align_after IS NOT NULL"),
)


@dataclass(frozen=True, slots=True)
class Revision(Record):
    """A correction that was made; ``reverted_to`` where it took others back."""

    revision: int
    created_at: Annotated[datetime, NOW]
    reverted_to: int | None
    changed_segments: int
    """As they were before."""


# What each correction took the place of: undone from the last to the first they lead back to
# revision 0, which is what the machine wrote.
transcript_revisions = table_of(
    metadata,
    Revision,
    "transcript_revisions",
    sa.Column("job_id", sa.Uuid, nullable=False),
    sa.Column("track_index", sa.SmallInteger, nullable=False),
    sa.Column("before", JSON, nullable=False),
    # Of that as text: what a job's corrections may replace in all is limited.
    sa.Column("size_bytes", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.PrimaryKeyConstraint("job_id", "track_index", "revision"),
    _of_transcript("transcript_revisions"),
    _index("ix_transcript_revisions_sizes", "job_id", postgresql_include=["size_bytes"]),
)

# What was found in texts of a redacted job, reruns of it included, and is hidden in those to come.
hidden_phrases = _table(
    "hidden_phrases",
    sa.Column("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    # How many words it has, and what they are kept as (pipelines.across.redaction.Known).
    sa.Column("words", sa.SmallInteger, nullable=False),
    sa.Column("digest", sa.LargeBinary, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.PrimaryKeyConstraint("job_id", "digest"),
)


@dataclass(frozen=True, slots=True)
class Held(Record):
    """A piece of work that its holder alone may end."""

    kind: str
    subject_id: uuid.UUID
    """A job, an archive or a comparison."""
    part: Annotated[str, of(server_default=sa.text("''"))]
    """Which one of several of the subject, a language, a track; mostly empty."""
    account_id: Annotated[uuid.UUID, of(sa.ForeignKey("accounts.id"))]
    attempts: Annotated[int, ZERO]
    """This one included."""
    token: Annotated[uuid.UUID, of(sa.Uuid, nullable=True)]


# What is to be done beside the jobs: a row until it is done (storage.work).
work = table_of(
    metadata,
    Held,
    "work",
    # When it is due, or, while its holder does it, when another may take it over.
    _time("due_at", now=True),
    sa.PrimaryKeyConstraint("kind", "subject_id", "part"),
    # The earliest of each account.
    _index("ix_work_due", "kind, account_id, due_at"),
    # All of a subject that is erased.
    _index("ix_work_subject_id", "subject_id"),
)

# When each account was last served with work of a kind: accounts take turns.
work_turns = _table(
    "work_turns",
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    _time("served_at"),
    sa.PrimaryKeyConstraint("account_id", "kind"),
)

# Of media that browsers cannot play; the object lies beside the source and goes with it.
previews = _table(
    "previews",
    sa.Column("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("source_key", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False, server_default=sa.text("'waiting'")),
    # A sentence for whoever looks at the job's page.
    sa.Column("reason", sa.Text),
    # Version 0.3.0 leases it by these.
    sa.Column("attempts", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("lease_token", sa.Uuid),
    _time("lease_expires_at", nullable=True),
    _time("created_at", now=True),
    _check(one_of("status", types.PreviewStatus), "status"),
    _check("(status = 'failed') = (reason IS NOT NULL)", "failed_has_reason"),
    _check("(lease_token IS NULL) = (lease_expires_at IS NULL)", "lease_has_deadline"),
    _check("lease_token IS NULL OR status = 'waiting'", "leased_is_waiting"),
    _index("ix_previews_waiting", "created_at", where="status = 'waiting'"),
)

# By which media are found that may be the same: integers of shots and of intervals of sound, mixed
# with the account.
fingerprint_keys = _table(
    "fingerprint_keys",
    sa.Column("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("account_id", sa.Uuid, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("part", sa.Integer, nullable=False),
    sa.Column("keys", ARRAY(sa.Integer), nullable=False),
    sa.PrimaryKeyConstraint("job_id", "kind", "part"),
    _check("kind IN ('shot', 'sound')", "kind"),
    _index("ix_fingerprint_keys_keys", "keys", postgresql_using="gin"),
)


# What two jobs of an account have in common, once: from the job with the lesser id.
@dataclass(frozen=True, slots=True)
class StoredDuplicate(Record):
    """An interval of a job's media that is in another job's too."""

    other_id: Annotated[uuid.UUID, of(sa.ForeignKey("jobs.id", ondelete="CASCADE"), index=True)]
    number: int
    kind: str
    start_ms: Annotated[int, BIG]
    end_ms: Annotated[int, BIG]
    other_start_ms: Annotated[int, BIG]
    other_end_ms: Annotated[int, BIG]
    track: Annotated[int | None, of(sa.SmallInteger)]
    other_track: Annotated[int | None, of(sa.SmallInteger)]
    score: float
    speed: float

    def swapped(self, job_id: uuid.UUID) -> StoredDuplicate:
        """Return the same from the other side; ``job_id`` is this one's."""
        mine, theirs = (self.start_ms, self.end_ms), (self.other_start_ms, self.other_end_ms)
        tracks = self.other_track, self.track
        how = self.score, 1 / self.speed
        return StoredDuplicate(job_id, self.number, self.kind, *theirs, *mine, *tracks, *how)


duplicates = table_of(
    metadata,
    StoredDuplicate,
    "duplicates",
    sa.Column("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    sa.PrimaryKeyConstraint("job_id", "other_id", "number"),
    _check("kind IN ('file', 'shot', 'sound')", "kind"),
    _check("job_id < other_id", "once"),
)


@dataclass(frozen=True, slots=True)
class Translation(Record):
    """A transcript in another language; what it reads: `GET …/transcript?language=`."""

    job_id: Annotated[uuid.UUID, of(sa.ForeignKey("jobs.id", ondelete="CASCADE")), doc("The job.")]
    language: Annotated[str, doc("BCP 47.", "en")]
    status: Annotated[types.TranslationStatus, of(server_default="pending")]
    reason: Annotated[str | None, OPTIONAL, doc("Why there is none, where it failed.")]
    price_cents: Annotated[Count, doc("Charged when it is requested; given back if it fails.", 0)]
    capped_key_id: Annotated[uuid.UUID | None, HIDDEN]
    """The key whose cap of a month the price counts for."""
    source: Annotated[str, HIDDEN]
    """Versions of the transcripts that it was made of, or is to be."""
    created_at: Annotated[datetime, NOW, doc("When it was requested.")]
    completed_at: Annotated[datetime | None, OPTIONAL, doc("When it was made, or failed.")]


translations = table_of(
    metadata,
    Translation,
    "translations",
    # A transcript a track, by its index.
    sa.Column("documents", JSON(none_as_null=True)),
    # Version 0.3.0 leases it by these.
    sa.Column("attempts", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("lease_token", sa.Uuid),
    _time("lease_expires_at", nullable=True),
    sa.PrimaryKeyConstraint("job_id", "language"),
    _check("(status = 'failed') = (reason IS NOT NULL)", "failed_has_reason"),
    _check("(status = 'completed') = (documents IS NOT NULL)", "completed_has_text"),
    _check("(status = 'pending') = (completed_at IS NULL)", "ended_has_time"),
    _check("(lease_token IS NULL) = (lease_expires_at IS NULL)", "lease_has_deadline"),
    _index("ix_translations_pending", "created_at", where="status = 'pending'"),
)


@dataclass(frozen=True, slots=True)
class CutComparison(Record):
    """What became of a comparison."""

    id: Annotated[uuid.UUID, of(primary_key=True, server_default=sa.text("gen_random_uuid()"))]
    before_id: Annotated[uuid.UUID, of(sa.ForeignKey("jobs.id", ondelete="CASCADE"))]
    after_id: Annotated[uuid.UUID, of(sa.ForeignKey("jobs.id", ondelete="CASCADE"))]
    state: Annotated[types.ComparisonState, of(server_default="pending")]
    error: Annotated[dict[str, Any] | None, of(JSON(none_as_null=True))]
    """The code, the message and what else the API answers with."""
    created_at: Annotated[datetime, NOW]
    completed_at: datetime | None


comparisons = table_of(
    metadata,
    CutComparison,
    "comparisons",
    sa.Column("account_id", sa.ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    # Versions of the results that it is made of.
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("document", JSON(none_as_null=True)),
    # When somebody requested or read it last.
    _time("asked_at", now=True),
    _check("(state = 'failed') = (error IS NOT NULL)", "failed_has_error"),
    _check("(state = 'completed') = (document IS NOT NULL)", "completed_has_document"),
    _check("(state = 'pending') = (completed_at IS NULL)", "ended_has_time"),
    _index("uq_comparisons_pair", "account_id, before_id, after_id", unique=True),
    _index("ix_comparisons_before_id", "before_id"),
    _index("ix_comparisons_after_id", "after_id"),
)

summaries = _table(
    "summaries",
    sa.Column("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("sentences", JSON, nullable=False),
)

search_rows = _table(
    "search_rows",
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("account_id", sa.Uuid, nullable=False),
    sa.Column("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, index=True),
    _time("job_created_at"),
    sa.Column("kind", sa.Text, nullable=False),
    # Text search configuration of the words in ``vector``.
    sa.Column("config", sa.Text, nullable=False),
    # Of a transcript: BCP 47.
    sa.Column("language", sa.Text),
    sa.Column("start_ms", sa.BigInteger, nullable=False),
    sa.Column("end_ms", sa.BigInteger, nullable=False),
    sa.Column("track_index", sa.SmallInteger),
    sa.Column("scene_index", sa.Integer),
    # A speaker's id in the transcript; names of speakers are joined when rows are read.
    sa.Column("speaker", sa.Text),
    sa.Column("text", sa.Text, nullable=False),
    # The beginning of the text after it, so that a phrase may cross the border.
    sa.Column("ahead", sa.Text, nullable=False),
    # Words of ``text`` with weight A, of ``ahead`` with D, and labels (storage.search_index).
    sa.Column("vector", TSVECTOR, nullable=False),
    _check(one_of("kind", types.SearchKind), "kind"),
    # Labels are in the vector because the extensions that would index account and words together
    # are not part of every server. Pending entries are merged by the runners, and by an insert
    # only where 16 MB (kB) of them have come together.
    _index(
        "ix_search_rows_vector",
        "vector",
        postgresql_using="gin",
        postgresql_with={"gin_pending_list_limit": 16384},
    ),
)

# Configurations that the rows of an account have: what a search reads its words in.
search_configs = _table(
    "search_configs",
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False),
    sa.Column("config", sa.Text, nullable=False),
    sa.PrimaryKeyConstraint("account_id", "config"),
)

# Names that people gave to speakers; the transcript keeps its own.
speaker_labels = _table(
    "speaker_labels",
    sa.Column("job_id", sa.Uuid, nullable=False),
    sa.Column("track_index", sa.SmallInteger, nullable=False),
    sa.Column("speaker_id", sa.Text, nullable=False),
    sa.Column("label", sa.Text, nullable=False),
    # Of the label of a named voice; people's own labels have none.
    sa.Column("voice_id", sa.ForeignKey("voices.id", ondelete="CASCADE"), index=True),
    sa.PrimaryKeyConstraint("job_id", "track_index", "speaker_id"),
    _of_transcript("speaker_labels"),
    _check("label <> ''", "label_not_empty"),
)


@dataclass(frozen=True, slots=True)
class Comment(Record):
    """What somebody wrote about a place in a job's media."""

    id: Annotated[uuid.UUID, KEY, doc("The comment.")]
    time_ms: Annotated[
        int, of(sa.BigInteger), As(Annotated[Seconds, doc("Where, in seconds.", 12.48)], "time")
    ]
    text: Annotated[str, doc("Plain text.", "Is this the right take?")]
    author: Annotated[
        str | None,
        COMPUTED,
        doc("Who wrote it; null: a key, or a link.", "anna@example.com"),
    ]
    created_at: Annotated[datetime, NOW, doc("When it was written.")]
    resolved_at: Annotated[datetime | None, doc("When it was resolved; null: it is open.")]


comments = table_of(
    metadata,
    Comment,
    "comments",
    sa.Column("job_id", sa.ForeignKey("jobs.id"), nullable=False, index=True),
    # NULL: a key, or a session that is nobody's in particular.
    sa.Column("made_by", sa.ForeignKey("users.id")),
    _check("text <> ''", "text_not_empty"),
)


@dataclass(frozen=True, slots=True)
class Voice(Record):
    """A voice that the account has named."""

    id: Annotated[uuid.UUID, KEY, doc("The voice; `voiceId` of speakers.")]
    name: Annotated[str, doc("Whose it is; the label of speakers that are taken for it.")]
    samples: Annotated[Count, COMPUTED, doc("How many speakers it is learnt from.", 1)]
    created_at: Annotated[datetime, NOW, doc("When it was first named.")]


voices = table_of(
    metadata,
    Voice,
    "voices",
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False),
    _index("uq_voices_account_id_name", "account_id, name", unique=True),
    _check("name <> ''", "name_not_empty"),
)

# What speakers sound like, of jobs with `voices`: float32, little-endian.
speaker_voices = _table(
    "speaker_voices",
    sa.Column("job_id", sa.Uuid, nullable=False),
    sa.Column("track_index", sa.SmallInteger, nullable=False),
    sa.Column("speaker_id", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("vector", sa.LargeBinary, nullable=False),
    # The voice that is learnt from it.
    sa.Column("voice_id", sa.ForeignKey("voices.id", ondelete="SET NULL"), index=True),
    sa.PrimaryKeyConstraint("job_id", "track_index", "speaker_id"),
    _of_transcript("speaker_voices"),
)

WEBHOOK_ENDPOINT_SQL = (
    "account_id::text || ' ' || lower(coalesce(substring(url from '^[^:]+://[^/?#]*'), url))"
)


@dataclass(frozen=True, slots=True)
class WebhookEndpoint(Record):
    """Where events are sent, beside the `callbackUrl` of jobs."""

    id: Annotated[uuid.UUID, KEY, doc("The endpoint.")]
    url: Annotated[Url, doc("Where its events are sent.")]
    event_types: Annotated[
        list[types.EventType],
        As(Annotated[list[types.EventType], doc("What it subscribes to.")], "events"),
    ]
    created_at: Annotated[datetime, NOW, doc("When it was made.")]
    rotated_at: Annotated[datetime | None, doc("When its secret was last rotated.")]

    def json(self, **given: Any) -> dict[str, Any]:
        return Record.json(self, events=self.event_types, **given)


webhook_endpoints = table_of(
    metadata,
    WebhookEndpoint,
    "webhook_endpoints",
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False, index=True),
    # Encrypted, as in signing_secrets.
    sa.Column("current", sa.LargeBinary, nullable=False),
    sa.Column("previous", sa.LargeBinary),
    _check("(previous IS NULL) = (rotated_at IS NULL)", "rotation_has_time"),
    _check("cardinality(event_types) > 0", "subscribes"),
)


@dataclass(frozen=True, slots=True)
class Delivery(Record):
    """An event and how its delivery stands."""

    id: Annotated[str, KEY]
    job_id: Annotated[uuid.UUID, of(sa.ForeignKey("jobs.id", ondelete="CASCADE"))]
    event_type: str
    url: str
    status: Annotated[types.DeliveryStatus, of(server_default="in_flight")]
    attempts: Annotated[int, of(sa.SmallInteger, server_default=sa.text("0"))]
    """Those whose end is known; one that died with its sender is not counted."""
    last_status: int | None
    last_error: str | None
    delivered_at: datetime | None
    created_at: Annotated[datetime, NOW]


webhook_events = table_of(
    metadata,
    Delivery,
    "webhook_events",
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False),
    # Of an event for an endpoint, which signs it; NULL for one to the callback URL.
    sa.Column("endpoint_id", sa.ForeignKey("webhook_endpoints.id", ondelete="CASCADE")),
    sa.Column("body", sa.LargeBinary, nullable=False),
    # Account and origin of the URL: what may be slow, and gets its share of the senders.
    sa.Column(
        "endpoint",
        sa.Text(collation="C"),
        sa.Computed(WEBHOOK_ENDPOINT_SQL, persisted=True),
        nullable=False,
    ),
    # Of an event that is leased: when the lease ends and the event is due again.
    _time("next_attempt_at", nullable=True, now=True),
    sa.Column("lease_token", sa.Uuid),
    _check("lease_token IS NULL OR status = 'in_flight'", "leased_is_in_flight"),
    # An open event always has a time at which it is due.
    _check(
        "(status IN ('in_flight', 'pending_retry')) = (next_attempt_at IS NOT NULL)",
        "open_has_time",
    ),
    # From endpoint to endpoint in steps, then an endpoint's due events in order.
    _index(
        "ix_webhook_events_due",
        "endpoint, next_attempt_at",
        where="status IN ('in_flight', 'pending_retry')",
    ),
    _index("ix_webhook_events_leased", "endpoint", where="lease_token IS NOT NULL"),
    _index("ix_webhook_events_subscribed", "endpoint_id, job_id", where="endpoint_id IS NOT NULL"),
    _index("ix_webhook_events_log", "account_id, created_at DESC, id DESC"),
)

rate_limits = _table(
    "rate_limits",
    sa.Column("bucket", sa.Text, primary_key=True),
    sa.Column("minute", sa.BigInteger, nullable=False),
    sa.Column("used", sa.Integer, nullable=False),
    # Losing a minute's counts in a crash is fine; writing them to the log is waste.
    prefixes=["UNLOGGED"],
)

idempotency_records = _table(
    "idempotency_records",
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False),
    sa.Column("operation", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("body_sha256", sa.LargeBinary, nullable=False),
    sa.Column("status", sa.SmallInteger, nullable=False),
    sa.Column("headers", JSONB, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    _time("created_at", now=True),
    sa.PrimaryKeyConstraint("account_id", "operation", "key"),
    _index("ix_idempotency_records_age", "created_at"),
)


class AuditActor(TypedDict):
    """Who acted."""

    kind: Annotated[types.ActorKind, doc("`link` is a session of the account's one-time link.")]
    id: Annotated[Uuid | None, doc("Of the key or the user.")]


@dataclass(frozen=True, slots=True)
class AuditEntry(Record):
    """Something that was done to the account."""

    account_id: Annotated[uuid.UUID, of(sa.ForeignKey("accounts.id")), doc("The account.")]
    position: Annotated[
        Count, of(sa.BigInteger, nullable=True), doc("Counts from 1 in the account.", 1)
    ]
    created_at: Annotated[
        datetime,
        NOW,
        As(Annotated[str, doc("To the microsecond, in UTC.", "2026-01-31T09:30:00.123456Z")]),
    ]
    actor_kind: Annotated[
        types.ActorKind, of(sa.Text, server_default="key"), As(AuditActor, "actor")
    ]
    actor_id: Annotated[uuid.UUID | None, HIDDEN]
    """Of the key or the user."""
    action: Annotated[str, doc("What was done: the operation's name where one does it.")]
    job_id: Annotated[uuid.UUID | None, doc("The job that it was done to.")]
    target: Annotated[str | None, doc("Id of the key, user, invitation, endpoint or voice.")]
    detail: Annotated[str | None, doc("What was set.", "role=viewer")]
    request_id: Annotated[str, doc("The request that did it; empty for a command.")]
    address: Annotated[str | None, doc("From where; null once it is erased.", "192.0.2.7")]
    address_salt: Annotated[str | None, doc("What the address is hashed with.", None)]
    address_sha256: Annotated[str | None, doc("Of salt and address together.", None)]
    hash: Annotated[
        str,
        of(sa.Text, nullable=True),
        doc("SHA-256 over this entry and the hash before.", "9f86d081…"),
    ]

    def json(self, **given: Any) -> dict[str, Any]:
        """With the time to the microsecond, which the hash covers."""
        actor_id = None if self.actor_id is None else str(self.actor_id)
        moment = self.created_at.astimezone(UTC).strftime(MOMENT)
        actor = {"kind": self.actor_kind, "id": actor_id}
        return Record.json(self, actor=actor, createdAt=moment, **given)


# No content of a customer. Rows are appended, never changed: the trigger (functions.sql) gives each
# its place in its account's chain, and refuses the rest. The chain has the address's hash; the
# address and its salt may be erased.
audit_log = table_of(
    metadata,
    AuditEntry,
    "audit_log",
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    _index("uq_audit_log_place", "account_id, position", unique=True),
)


COUNTED = of(sa.BigInteger, server_default="0")


@dataclass(frozen=True, slots=True)
class Archive(Record):
    """A bucket of a client that is analysed object by object."""

    id: Annotated[uuid.UUID, KEY]
    account_id: Annotated[uuid.UUID, of(sa.ForeignKey("accounts.id"), index=True)]
    url: str
    """s3:// or gs://, bucket and prefix."""
    patterns: list[str]
    watch_seconds: int | None
    max_active_jobs: int
    sealed_access: str | None
    """Endpoint and credentials, encrypted with the service's key."""
    options: Annotated[dict[str, object], of(JSONB)]
    """What its jobs are created with."""
    vocabulary: Annotated[dict[str, Any] | None, of(JSONB(none_as_null=True))]
    """As its account's."""
    base_url: str
    state: Annotated[types.ArchiveState, of(server_default=types.ArchiveState.ACTIVE)]
    error_code: str | None
    error_message: str | None
    list_after: bytes | None
    """The key that the list goes on after; None while none is under way. Not all are text."""
    failures: Annotated[int, of(server_default="0")]
    """Steps that failed, one after the other."""
    # How many objects there are in each state, changed with them.
    waiting_objects: Annotated[int, COUNTED]
    running_objects: Annotated[int, COUNTED]
    completed_objects: Annotated[int, COUNTED]
    failed_objects: Annotated[int, COUNTED]
    refused_objects: Annotated[int, COUNTED]
    created_at: Annotated[datetime, NOW]
    listed_at: datetime | None
    next_list_at: datetime | None
    due_at: Annotated[datetime, NOW]
    """When its next step is due."""
    removed_at: datetime | None
    """Its objects are deleted a few at a time, then the row."""

    @property
    def counts(self) -> dict[types.ObjectState, int]:
        """How many objects there are in each state."""
        return {state: getattr(self, f"{state}_objects") for state in types.ObjectState}

    @property
    def is_retried(self) -> bool:
        """Whether its last step failed, and another follows when it is due."""
        return self.failures > 0 and self.state is types.ArchiveState.ACTIVE


archives = table_of(
    metadata,
    Archive,
    "archives",
    # Version 0.3.0 leases it by these.
    sa.Column("lease_token", sa.Uuid),
    _time("lease_expires_at", nullable=True),
    _check("max_active_jobs > 0", "max_active_jobs_positive"),
    _check("watch_seconds > 0", "watch_seconds_positive"),
    _check("sealed_access IS NULL OR removed_at IS NULL", "removed_without_access"),
    *(_check(f"{state}_objects >= 0", f"{state}_not_negative") for state in types.ObjectState),
    _index("ix_archives_due", "due_at", where="state = 'active' OR removed_at IS NOT NULL"),
)


@dataclass(frozen=True, slots=True)
class ArchiveObject(Record):
    """An object and what became of it."""

    position: Annotated[int, of(sa.BigInteger, sa.Identity()), HIDDEN]
    """In the order in which they were found."""
    key_sha256: Annotated[bytes, HIDDEN]
    """Which is known still when the key was erased with its job."""
    key: Annotated[str | None, doc("Null once it was erased with its job.", "2024/a.mp4")]
    size_bytes: Annotated[Count, of(sa.BigInteger)]
    etag: str | None
    modified_at: datetime | None
    state: types.ObjectState
    job_id: Annotated[uuid.UUID | None, of(sa.ForeignKey("jobs.id")), doc("Its last job.")]
    error_code: Annotated[str | None, doc("Of the job, or why there is none.", "OBJECT_EMPTY")]
    error_message: Annotated[str | None, doc("For people.", "The object is empty.")]


archive_objects = table_of(
    metadata,
    ArchiveObject,
    "archive_objects",
    sa.Column("archive_id", sa.ForeignKey("archives.id"), nullable=False),
    sa.PrimaryKeyConstraint("archive_id", "key_sha256"),
    _check("state <> 'running' OR job_id IS NOT NULL", "running_has_job"),
    _index("ix_archive_objects_position", "archive_id, position"),
    _index("ix_archive_objects_state", "archive_id, state, position"),
    _index("ix_archive_objects_job_id", "job_id", where="job_id IS NOT NULL"),
)


@dataclass(frozen=True, slots=True)
class EncryptedSecret(Record):
    """An account's secret as stored; ``previous`` only while it still signs."""

    current: bytes
    previous: bytes | None
    created_at: Annotated[datetime, NOW]
    rotated_at: datetime | None


signing_secrets = table_of(
    metadata,
    EncryptedSecret,
    "signing_secrets",
    sa.Column("account_id", sa.ForeignKey("accounts.id"), primary_key=True),
    _check("(previous IS NULL) = (rotated_at IS NULL)", "rotation_has_time"),
)


@dataclass(frozen=True, slots=True)
class Receipt(Record):
    """A purchase as the customer sees it."""

    receipt_number: Annotated[int, of(sa.BigInteger, unique=True)]
    """Counted without gaps."""
    amount_cents: Annotated[int, of(sa.BigInteger)]
    provider: str
    """Who took the money ('stripe', 'operator')."""
    reference: str
    """Of the payment, the provider's."""
    created_at: Annotated[datetime, NOW]


purchases = table_of(
    metadata,
    Receipt,
    "purchases",
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False),
    _check("amount_cents > 0", "amount_is_positive"),
    # A payment is credited once, however often and by whichever event it is reported.
    sa.UniqueConstraint("provider", "reference", name="uq_purchases_payment"),
    # What a ledger entry of the purchase must agree with.
    sa.UniqueConstraint("id", "account_id", "amount_cents", name="uq_purchases_entry"),
    _index("ix_purchases_account", "account_id, receipt_number"),
)

refunds = _table(
    "refunds",
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("reference", sa.Text, nullable=False),
    sa.Column("payment_reference", sa.Text, nullable=False),
    # Unknown where the refund is reported before its purchase.
    sa.Column("account_id", sa.ForeignKey("accounts.id")),
    sa.Column("amount_cents", sa.BigInteger, nullable=False),
    # How much of it the ledger has taken back; spent credits cannot be.
    sa.Column("taken_cents", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    _time("created_at", now=True),
    _time("reversed_at", nullable=True),
    _check("taken_cents BETWEEN 0 AND amount_cents", "taken_within_amount"),
    _check("reversed_at IS NULL OR taken_cents = 0", "reversed_takes_nothing"),
    sa.UniqueConstraint("provider", "reference", name="uq_refunds_refund"),
    _index("ix_refunds_payment", "provider, payment_reference"),
    # What is still to be taken: looked at whenever an account gets credits back.
    _index(
        "ix_refunds_outstanding",
        "account_id",
        where="reversed_at IS NULL AND taken_cents < amount_cents",
    ),
)

payment_events = _table(
    "payment_events",
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("event_id", sa.Text, nullable=False),
    sa.Column("event_type", sa.Text, nullable=False),
    _time("received_at", now=True),
    sa.PrimaryKeyConstraint("provider", "event_id"),
)

payment_credentials = _table(
    "payment_credentials",
    sa.Column("provider", sa.Text, primary_key=True),
    # Encrypted with the service's key; a stolen dump forges no purchase.
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    _time("updated_at", now=True),
)

ledger_entries = _table(
    "ledger_entries",
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("balance_delta_cents", sa.BigInteger, nullable=False),
    sa.Column("hold_delta_cents", sa.BigInteger, nullable=False),
    sa.Column("job_id", sa.ForeignKey("jobs.id")),
    sa.Column("stage", sa.Text),
    sa.Column("reason", sa.Text, nullable=False),
    _time("created_at", now=True),
    sa.Column("purchase_id", sa.Uuid),
    sa.Column("refund_id", sa.ForeignKey("refunds.id")),
    # The key whose cap of a month it counts for, of jobs' entries that of the job.
    sa.Column("capped_key_id", sa.Uuid),
    _check(one_of("kind", types.LedgerKind), "kind"),
    _check(
        "CASE kind"
        " WHEN 'purchase' THEN balance_delta_cents > 0 AND hold_delta_cents = 0"
        " WHEN 'grant' THEN balance_delta_cents > 0 AND hold_delta_cents = 0"
        " WHEN 'adjustment' THEN balance_delta_cents <> 0 AND hold_delta_cents = 0"
        " WHEN 'hold' THEN balance_delta_cents = 0 AND hold_delta_cents > 0"
        " WHEN 'release' THEN balance_delta_cents = 0 AND hold_delta_cents < 0"
        # A charge is taken out of the job's hold, cent for cent: no charge without a hold.
        " WHEN 'charge' THEN balance_delta_cents < 0 AND hold_delta_cents = balance_delta_cents"
        " ELSE false END",
        "amounts_fit_kind",
    ),
    _check("(kind IN ('hold', 'release', 'charge')) = (job_id IS NOT NULL)", "job_fits_kind"),
    _check("(kind = 'charge') = (stage IS NOT NULL)", "charge_names_stage"),
    _check(one_of("stage", types.StageName), "stage_is_known"),
    _check("(kind = 'purchase') = (purchase_id IS NOT NULL)", "purchase_has_receipt"),
    _check("refund_id IS NULL OR kind = 'adjustment'", "refund_is_adjustment"),
    _check("reason <> ''", "reason_is_given"),
    # An entry of a purchase credits its account with its amount, no other.
    sa.ForeignKeyConstraint(
        ["purchase_id", "account_id", "balance_delta_cents"],
        ["purchases.id", "purchases.account_id", "purchases.amount_cents"],
        name="fk_ledger_entries_purchase",
    ),
    _index("ix_ledger_entries_account", "account_id, id"),
    _index("ix_ledger_entries_job", "job_id", where="job_id IS NOT NULL"),
    _index(
        "ix_ledger_entries_capped_key",
        "capped_key_id, created_at",
        where="capped_key_id IS NOT NULL",
    ),
    # A stage is charged at most once, whatever the code does.
    _index("uq_ledger_entries_charge", "job_id, stage", unique=True, where="kind = 'charge'"),
    _index(
        "uq_ledger_entries_purchase", "purchase_id", unique=True, where="purchase_id IS NOT NULL"
    ),
)

ERASED_WITH_JOB = (
    scene_lists, transcripts, summaries, previews, hidden_phrases, comments, webhook_events,
)  # fmt: skip
"""Whose rows go when a job is erased; labels and voices go with transcripts, vectors with rows."""
ERASED_WITH_ACCOUNT = (
    sessions, sign_in_links, invitations, webhook_endpoints, signing_secrets, idempotency_records,
)  # fmt: skip
