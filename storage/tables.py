"""All tables, with the reason for each constraint and index.

What must never happen is made impossible here, not merely avoided in code: CHECKs state what a row
may be, partial unique indexes what may exist once. The rules of the ledger also rest on triggers
(``functions.sql``): the running totals on accounts, jobs and refunds move with ledger entries and
with nothing else; a stage is charged its price exactly if it is completed; a purchase is credited
in the transaction that records it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB, TSVECTOR
from sqlalchemy.schema import SchemaItem

from storage import types

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _one_of(column: str, values: Iterable[StrEnum]) -> str:
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


def _time(name: str, *, nullable: bool = False, now: bool = False) -> sa.Column[object]:
    default = sa.func.now() if now else None
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, server_default=default)


def _table(name: str, *parts: SchemaItem, prefixes: Sequence[str] = ()) -> sa.Table:
    return sa.Table(name, metadata, *parts, prefixes=[*prefixes])


def _check(condition: str, name: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=name)


def _index(name: str, *columns: str, where: str | None = None, **options: Any) -> sa.Index:
    """Return an index of the rows ``where`` something holds; a column may be "… DESC"."""
    parts = [sa.text(column) if " " in column else column for column in columns]
    return sa.Index(
        name, *parts, postgresql_where=None if where is None else sa.text(where), **options
    )


def _of_transcript(table: str) -> sa.ForeignKeyConstraint:
    names = ["job_id", "track_index"]
    of = [f"transcripts.{name}" for name in names]
    return sa.ForeignKeyConstraint(names, of, name=f"fk_{table}_transcript", ondelete="CASCADE")


accounts = _table(
    "accounts",
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    _time("created_at", now=True),
    _time("suspended_at", nullable=True),
    _time("throttled_at", nullable=True),
    sa.Column("pay_as_you_go", sa.Boolean, nullable=False, server_default=sa.text("false")),
    sa.Column("credit_limit_cents", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("max_active_jobs", sa.Integer),
    # Its share of the queue, how many of its jobs run at once, and the most urgent priority that
    # they may have; NULL: as the service's settings have it.
    sa.Column("queue_weight", sa.Float, nullable=False, server_default=sa.text("1")),
    sa.Column("max_running_jobs", sa.Integer),
    sa.Column("highest_priority", sa.Text),
    # How long its jobs keep their media and their content; NULL: as the service does.
    sa.Column("source_retention_seconds", sa.Integer),
    sa.Column("result_retention_days", sa.Integer),
    # Key terms and replacements of its jobs, in the form of the API; NULL: none.
    sa.Column("vocabulary", JSONB(none_as_null=True)),
    # Nothing of it may be deleted.
    _time("legal_hold_at", nullable=True),
    # Its jobs are to be erased, one after the other.
    _time("erased_at", nullable=True),
    # Running totals, kept by the trigger on ledger_entries and by nothing else.
    sa.Column("balance_cents", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("held_cents", sa.BigInteger, nullable=False, server_default=sa.text("0")),
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
    _check(_one_of("highest_priority", types.Priority), "highest_priority"),
)

users = _table(
    "users",
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False),
    # In lower case.
    sa.Column("email", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    # Who they are to the issuer of OIDC by whom they signed in.
    sa.Column("issuer", sa.Text),
    sa.Column("subject", sa.Text),
    _time("created_at", now=True),
    # They stay: the audit log and keys refer to them.
    _time("removed_at", nullable=True),
    _check(_one_of("role", types.Role), "role"),
    _check("(issuer IS NULL) = (subject IS NULL)", "subject_has_issuer"),
    _index("uq_users_email", "account_id", "email", unique=True, where="removed_at IS NULL"),
    _index(
        "uq_users_subject",
        "issuer",
        "subject",
        "account_id",
        unique=True,
        where="removed_at IS NULL",
    ),
    _index("ix_users_email", "email", where="removed_at IS NULL"),
)

invitations = _table(
    "invitations",
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False, index=True),
    sa.Column("email", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("token_sha256", sa.LargeBinary, nullable=False, unique=True),
    _time("created_at", now=True),
    _time("expires_at"),
    _time("used_at", nullable=True),
    _check(_one_of("role", types.Role), "role"),
)

# Sign-ins by OIDC that an issuer has not answered yet.
oidc_flows = _table(
    "oidc_flows",
    sa.Column("state_sha256", sa.LargeBinary, primary_key=True),
    sa.Column("browser_sha256", sa.LargeBinary, nullable=False),
    sa.Column("nonce", sa.Text, nullable=False),
    sa.Column("code_verifier", sa.Text, nullable=False),
    sa.Column("account_id", sa.Uuid),
    sa.Column("user_id", sa.Uuid),
    sa.Column("invitation_id", sa.Uuid),
    # Whom the issuer has named, while the browser is asked whether to sign in.
    sa.Column("subject", sa.Text),
    _time("expires_at"),
)

api_keys = _table(
    "api_keys",
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False, index=True),
    sa.Column("secret_sha256", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("last_four", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("benefit_id", sa.Text),
    _time("created_at", now=True),
    _time("expires_at", nullable=True),
    # NULL: the operator, or a session that is nobody's in particular.
    sa.Column("made_by", sa.ForeignKey("users.id")),
    # The first of those that it replaced by rotation: caps count the jobs of all of them.
    sa.Column("first_id", sa.Uuid),
    # What jobs that it creates may cost in a month, and how many are unfinished at once.
    sa.Column("max_monthly_cents", sa.BigInteger),
    sa.Column("max_active_jobs", sa.Integer),
    _check(_one_of("status", types.KeyStatus), "status"),
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

jobs = _table(
    "jobs",
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("processing_mode", sa.Text, nullable=False),
    sa.Column("tier", sa.Text, nullable=False),
    sa.Column("file_name", sa.Text, nullable=False),
    sa.Column("callback_url", sa.Text),
    # JSON, not JSONB, where the client sees the value: order and numbers stay as they came.
    sa.Column("metadata", JSON, nullable=False, server_default=sa.text("'{}'")),
    # Where the media comes from and how its audio is aligned, as requested.
    sa.Column("source", JSONB, nullable=False),
    sa.Column("batch_id", sa.Uuid),
    sa.Column("batch_index", sa.Integer),
    _time("created_at", now=True),
    _time("started_at", nullable=True),
    _time("completed_at", nullable=True),
    _time("upload_expires_at", nullable=True),
    sa.Column("duration_ms", sa.BigInteger),
    sa.Column("ingest_result", JSONB),
    # What the job will be charged, stage by stage, fixed once its duration is known.
    sa.Column("billable_seconds", sa.BigInteger),
    sa.Column("quote_cents", JSONB),
    _time("quoted_at", nullable=True),
    sa.Column("audio_track_names", JSONB),
    sa.Column("warnings", JSONB, nullable=False, server_default=sa.text("'[]'")),
    sa.Column("error_code", sa.Text),
    sa.Column("error_message", sa.Text),
    sa.Column("held_cents", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("charged_cents", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("lease_token", sa.Uuid),
    _time("lease_expires_at", nullable=True),
    sa.Column("lease_count", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("priority", sa.Text, nullable=False, server_default=sa.text("'normal'")),
    # Of its account and priority together, as they were when it was created.
    sa.Column("queue_weight", sa.Float, nullable=False, server_default=sa.text("1")),
    # How many jobs of its account may be ahead of it or run; the others are parked.
    sa.Column("running_limit", sa.Integer),
    sa.Column("parked", sa.Boolean, nullable=False, server_default=sa.text("false")),
    # Its place among all that were ever queued: given by a trigger (functions.sql), which
    # explains it.
    sa.Column("finish_tag", sa.BigInteger),
    # The job whose results it renews.
    sa.Column("rerun_of", sa.ForeignKey("jobs.id", name="fk_jobs_rerun_of")),
    # Objects of a job that ended are removed, in several rounds: when the next one is due
    # (or, while one runs, when another may take it over), and when the last one was done.
    _time("cleaning_after", nullable=True),
    _time("cleaned_at", nullable=True),
    # Its content is gone from the database; its objects go with the next round.
    _time("erased_at", nullable=True),
    # Nothing of it may be deleted.
    _time("legal_hold_at", nullable=True),
    # Since when personal data is to be redacted (the kinds are in source), until it is, and why it
    # could not be.
    _time("redact_after", nullable=True),
    sa.Column("redact_error", sa.Text),
    # By these, and by redact_after, version 0.3.0 leases it for what storage.work is for now.
    _time("compare_after", nullable=True),
    sa.Column("redact_attempts", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
    # The key that created it, the first of those it was rotated from, where that has caps.
    sa.Column("capped_key_id", sa.Uuid),
    # [[start, end], …] in milliseconds, in order: where what shows the media is silent.
    sa.Column("muted", JSON(none_as_null=True)),
    _check("cleaned_at IS NULL OR cleaning_after IS NULL", "cleaned_once"),
    _check(_one_of("state", types.JobState), "state"),
    _check(_one_of("processing_mode", types.ProcessingMode), "processing_mode"),
    _check(_one_of("tier", types.Tier), "tier"),
    _check(_one_of("priority", types.Priority), "priority"),
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
    _index("ix_jobs_listing", "account_id", "created_at DESC", "id DESC"),
    # Those that failed or were cancelled among many that did not: lists by state.
    _index(
        "ix_jobs_unsuccessful",
        "account_id",
        "state",
        "created_at DESC",
        "id DESC",
        where="state IN ('failed', 'cancelled', 'expired')",
    ),
    # What runners lease, in order; small, because only waiting jobs are in it.
    _index("ix_jobs_turns", "finish_tag", "created_at", where="state = 'queued' AND NOT parked"),
    # The last tag of an account and priority, and how many jobs an account has in the queue.
    _index(
        "ix_jobs_tagged",
        "account_id",
        "parked",
        "priority",
        "finish_tag",
        where="completed_at IS NULL AND finish_tag IS NOT NULL",
    ),
    _index(
        "ix_jobs_parked",
        "account_id",
        "finish_tag",
        "created_at",
        where="state = 'queued' AND parked",
    ),
    # How long the oldest has waited; what versions before 0.3.0 lease by.
    _index("ix_jobs_waiting", "created_at", where="state = 'queued'"),
    _index("ix_jobs_leased", "lease_expires_at", where="state = 'processing'"),
    _index("ix_jobs_uploading", "upload_expires_at", where="state = 'awaiting_upload'"),
    _index("ix_jobs_capped_key", "capped_key_id", "created_at", where="capped_key_id IS NOT NULL"),
    # Counting an account's unfinished jobs must not read its history.
    _index("ix_jobs_unredacted", "redact_after", where="redact_after IS NOT NULL"),
    _index("ix_jobs_uncompared", "compare_after", where="compare_after IS NOT NULL"),
    _index("ix_jobs_unfinished", "account_id", where="completed_at IS NULL"),
    # A month's usage is the sum over its quoted jobs.
    _index("ix_jobs_usage", "account_id", "quoted_at", where="quoted_at IS NOT NULL"),
    # What ended of late, for operators.
    _index("ix_jobs_ended", "state", "completed_at", where="completed_at IS NOT NULL"),
    # First rounds come so long after the end, which depends on how it ended; later ones by date.
    _index(
        "ix_jobs_uncleaned",
        "state",
        "completed_at",
        where="completed_at IS NOT NULL AND cleaned_at IS NULL AND cleaning_after IS NULL",
    ),
    # Results whose time is over, by their account's retention, or by their own.
    _index("ix_jobs_kept", "account_id", "completed_at", where="erased_at IS NULL"),
    _index("ix_jobs_own_days", "completed_at", where=f"erased_at IS NULL AND {OWN_DAYS}"),
    _index("ix_jobs_cleaning", "cleaning_after", where="cleaning_after IS NOT NULL"),
)

stages = _table(
    "stages",
    sa.Column("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("progress", sa.Float, nullable=False, server_default=sa.text("0")),
    sa.Column("skip_reason", sa.Text),
    sa.Column("error_code", sa.Text),
    sa.Column("error_message", sa.Text),
    _time("started_at", nullable=True),
    _time("ended_at", nullable=True),
    # Seconds that each part of the stage took.
    sa.Column("timings", JSONB, nullable=False, server_default=sa.text("'{}'")),
    # Whether its result is in search_rows; versions before 0.2.0 publish without.
    sa.Column("indexed", sa.Boolean),
    # Digest of the models, versions and settings of its result.
    sa.Column("made_with", sa.Text),
    # What a receipt names of it.
    sa.Column("receipt", JSONB),
    # Of its price what is not charged: for tracks in which there was nothing new.
    sa.Column("waived_cents", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.PrimaryKeyConstraint("job_id", "stage"),
    _check(_one_of("stage", types.StageName), "stage"),
    _check(_one_of("status", types.StageStatus), "status"),
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
    _check(_one_of("stage", types.StageName), "stage"),
)

uploads = _table(
    "uploads",
    sa.Column("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    # 'media', 'audio', or 'track-N'.
    sa.Column("slot", sa.Text, nullable=False),
    sa.Column("file_name", sa.Text, nullable=False),
    sa.Column("object_key", sa.Text, nullable=False),
    sa.Column("declared_bytes", sa.BigInteger),
    sa.Column("received_bytes", sa.BigInteger),
    _time("completed_at", nullable=True),
    # Length given by a resumable upload where the job's creation left it open.
    sa.Column("resumable_bytes", sa.BigInteger),
    # A block with a checksum is being received: bytes beyond this offset do not count yet.
    sa.Column("unverified_from_bytes", sa.BigInteger),
    # When to check next for a direct upload.
    _time("look_after", nullable=True),
    # The client terminated the resumable upload; its URL returns 410.
    _time("terminated_at", nullable=True),
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

transcripts = _table(
    "transcripts",
    sa.Column("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("track_index", sa.SmallInteger, nullable=False),
    sa.Column("track_name", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("error_code", sa.Text),
    sa.Column("language", sa.Text),
    # As people have corrected it so often; what each of them changed is in transcript_revisions.
    sa.Column("document", JSON),
    sa.Column("revision", sa.Integer, nullable=False, server_default=sa.text("0")),
    # Earlier revisions have what was redacted.
    sa.Column("redacted_revision", sa.Integer),
    # Version 0.3.0 leases it by this.
    _time("align_after", nullable=True),
    # Of its sound, as pipelines.media.audio writes it.
    sa.Column("sound_print", sa.LargeBinary),
    sa.PrimaryKeyConstraint("job_id", "track_index"),
    _check(_one_of("status", types.StageStatus), "status"),
    _check("(status = 'completed') = (document IS NOT NULL)", "completed_has_text"),
    _index("ix_transcripts_unaligned", "align_after", where="align_after IS NOT NULL"),
)

# What each correction took the place of: undone from the last to the first they lead back to
# revision 0, which is what the machine wrote.
transcript_revisions = _table(
    "transcript_revisions",
    sa.Column("job_id", sa.Uuid, nullable=False),
    sa.Column("track_index", sa.SmallInteger, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),
    _time("created_at", now=True),
    sa.Column("reverted_to", sa.Integer),
    sa.Column("changed_segments", sa.Integer, nullable=False),
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

# What is to be done beside the jobs: a row until it is done (storage.work).
work = _table(
    "work",
    sa.Column("kind", sa.Text, nullable=False),
    # A job, an archive or a comparison.
    sa.Column("subject_id", sa.Uuid, nullable=False),
    # Which one of several of the subject: a language, a track.
    sa.Column("part", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False),
    # When it is due, or, while its holder does it, when another may take it over.
    _time("due_at", now=True),
    sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
    # Its holder's.
    sa.Column("token", sa.Uuid),
    sa.PrimaryKeyConstraint("kind", "subject_id", "part"),
    # The earliest of each account.
    _index("ix_work_due", "kind", "account_id", "due_at"),
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
    _check(_one_of("status", types.PreviewStatus), "status"),
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
duplicates = _table(
    "duplicates",
    sa.Column("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("other_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("start_ms", sa.BigInteger, nullable=False),
    sa.Column("end_ms", sa.BigInteger, nullable=False),
    sa.Column("other_start_ms", sa.BigInteger, nullable=False),
    sa.Column("other_end_ms", sa.BigInteger, nullable=False),
    sa.Column("track", sa.SmallInteger),
    sa.Column("other_track", sa.SmallInteger),
    sa.Column("score", sa.Float, nullable=False),
    sa.Column("speed", sa.Float, nullable=False),
    sa.PrimaryKeyConstraint("job_id", "other_id", "number"),
    _check("kind IN ('file', 'shot', 'sound')", "kind"),
    _check("job_id < other_id", "once"),
)

translations = _table(
    "translations",
    sa.Column("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("language", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False, server_default=sa.text("'pending'")),
    # A sentence for whoever requested it.
    sa.Column("reason", sa.Text),
    sa.Column("price_cents", sa.Integer, nullable=False),
    # The key whose cap of a month the price counts for.
    sa.Column("capped_key_id", sa.Uuid),
    # Versions of the transcripts that it is made of.
    sa.Column("source", sa.Text, nullable=False),
    # A transcript a track, by its index.
    sa.Column("documents", JSON(none_as_null=True)),
    # Version 0.3.0 leases it by these.
    sa.Column("attempts", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("lease_token", sa.Uuid),
    _time("lease_expires_at", nullable=True),
    _time("created_at", now=True),
    _time("completed_at", nullable=True),
    sa.PrimaryKeyConstraint("job_id", "language"),
    _check(_one_of("status", types.TranslationStatus), "status"),
    _check("(status = 'failed') = (reason IS NOT NULL)", "failed_has_reason"),
    _check("(status = 'completed') = (documents IS NOT NULL)", "completed_has_text"),
    _check("(status = 'pending') = (completed_at IS NULL)", "ended_has_time"),
    _check("(lease_token IS NULL) = (lease_expires_at IS NULL)", "lease_has_deadline"),
    _index("ix_translations_pending", "created_at", where="status = 'pending'"),
)

comparisons = _table(
    "comparisons",
    sa.Column("id", sa.Uuid, primary_key=True, server_default=sa.text("gen_random_uuid()")),
    sa.Column("account_id", sa.ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    sa.Column("before_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("after_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    # Versions of the results that it is made of.
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False, server_default=sa.text("'pending'")),
    sa.Column("error", JSON(none_as_null=True)),
    sa.Column("document", JSON(none_as_null=True)),
    _time("created_at", now=True),
    # When somebody requested or read it last.
    _time("asked_at", now=True),
    _time("completed_at", nullable=True),
    _check(_one_of("state", types.ComparisonState), "state"),
    _check("(state = 'failed') = (error IS NOT NULL)", "failed_has_error"),
    _check("(state = 'completed') = (document IS NOT NULL)", "completed_has_document"),
    _check("(state = 'pending') = (completed_at IS NULL)", "ended_has_time"),
    _index("uq_comparisons_pair", "account_id", "before_id", "after_id", unique=True),
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
    _check(_one_of("kind", types.SearchKind), "kind"),
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

# Voices that an account has named.
voices = _table(
    "voices",
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    _time("created_at", now=True),
    _index("uq_voices_account_id_name", "account_id", "name", unique=True),
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

# Where an account receives the events that it subscribes to, beside jobs' callback URLs.
webhook_endpoints = _table(
    "webhook_endpoints",
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False, index=True),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("event_types", ARRAY(sa.Text), nullable=False),
    # Encrypted, as in signing_secrets.
    sa.Column("current", sa.LargeBinary, nullable=False),
    sa.Column("previous", sa.LargeBinary),
    _time("created_at", now=True),
    _time("rotated_at", nullable=True),
    _check("(previous IS NULL) = (rotated_at IS NULL)", "rotation_has_time"),
    _check("cardinality(event_types) > 0", "subscribes"),
)

webhook_events = _table(
    "webhook_events",
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False),
    sa.Column("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("event_type", sa.Text, nullable=False),
    # Of an event for an endpoint, which signs it; NULL for one to the callback URL.
    sa.Column("endpoint_id", sa.ForeignKey("webhook_endpoints.id", ondelete="CASCADE")),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    # Account and origin of the URL: what may be slow, and gets its share of the senders.
    sa.Column(
        "endpoint",
        sa.Text(collation="C"),
        sa.Computed(WEBHOOK_ENDPOINT_SQL, persisted=True),
        nullable=False,
    ),
    sa.Column("status", sa.Text, nullable=False, server_default=sa.text("'in_flight'")),
    # Attempts whose end is known; one that died with its sender is not counted.
    sa.Column("attempts", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("last_status", sa.Integer),
    sa.Column("last_error", sa.Text),
    _time("created_at", now=True),
    # Of an event that is leased: when the lease ends and the event is due again.
    _time("next_attempt_at", nullable=True, now=True),
    sa.Column("lease_token", sa.Uuid),
    _time("delivered_at", nullable=True),
    _check(_one_of("status", types.DeliveryStatus), "status"),
    _check("lease_token IS NULL OR status = 'in_flight'", "leased_is_in_flight"),
    # An open event always has a time at which it is due.
    _check(
        "(status IN ('in_flight', 'pending_retry')) = (next_attempt_at IS NOT NULL)",
        "open_has_time",
    ),
    # From endpoint to endpoint in steps, then an endpoint's due events in order.
    _index(
        "ix_webhook_events_due",
        "endpoint",
        "next_attempt_at",
        where="status IN ('in_flight', 'pending_retry')",
    ),
    _index("ix_webhook_events_leased", "endpoint", where="lease_token IS NOT NULL"),
    _index(
        "ix_webhook_events_subscribed", "endpoint_id", "job_id", where="endpoint_id IS NOT NULL"
    ),
    _index("ix_webhook_events_log", "account_id", "created_at DESC", "id DESC"),
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

# Who did what, when and from where; no content of a customer. Rows are appended, never changed: the
# trigger (functions.sql) gives each its place in its account's chain, and refuses the rest.
audit_log = _table(
    "audit_log",
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False),
    sa.Column("position", sa.BigInteger),
    sa.Column("actor_kind", sa.Text, nullable=False, server_default=sa.text("'key'")),
    sa.Column("actor_id", sa.Uuid),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("job_id", sa.Uuid),
    sa.Column("target", sa.Text),
    sa.Column("detail", sa.Text),
    # "" where none did it.
    sa.Column("request_id", sa.Text, nullable=False),
    _time("created_at", now=True),
    # The chain has the hash; the address and its salt may be erased.
    sa.Column("address", sa.Text),
    sa.Column("address_salt", sa.Text),
    sa.Column("address_sha256", sa.Text),
    sa.Column("hash", sa.Text),
    _index("uq_audit_log_place", "account_id", "position", unique=True),
)

# Buckets of clients that are analysed object by object.
archives = _table(
    "archives",
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False, index=True),
    # s3:// or gs://, bucket and prefix.
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("patterns", ARRAY(sa.Text), nullable=False),
    sa.Column("watch_seconds", sa.Integer),
    sa.Column("max_active_jobs", sa.Integer, nullable=False),
    # Endpoint and credentials, encrypted with the service's key.
    sa.Column("sealed_access", sa.Text),
    # What its jobs are created with.
    sa.Column("options", JSONB, nullable=False),
    sa.Column("vocabulary", JSONB(none_as_null=True)),
    sa.Column("base_url", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False, server_default=types.ArchiveState.ACTIVE),
    sa.Column("error_code", sa.Text),
    sa.Column("error_message", sa.Text),
    # The key that the list goes on after; null while none is under way. Bytes: not all are text.
    sa.Column("list_after", sa.LargeBinary),
    # Steps that failed, one after the other.
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
    # How many objects there are in each state, changed with them.
    *(
        sa.Column(f"{state}_objects", sa.BigInteger, nullable=False, server_default="0")
        for state in types.ObjectState
    ),
    _time("created_at", now=True),
    _time("listed_at", nullable=True),
    _time("next_list_at", nullable=True),
    # When its next step is due.
    _time("due_at", now=True),
    # Version 0.3.0 leases it by these.
    sa.Column("lease_token", sa.Uuid),
    _time("lease_expires_at", nullable=True),
    # Its objects are deleted a few at a time, then the row.
    _time("removed_at", nullable=True),
    _check(_one_of("state", types.ArchiveState), "state"),
    _check("max_active_jobs > 0", "max_active_jobs_positive"),
    _check("watch_seconds > 0", "watch_seconds_positive"),
    _check("sealed_access IS NULL OR removed_at IS NULL", "removed_without_access"),
    *(_check(f"{state}_objects >= 0", f"{state}_not_negative") for state in types.ObjectState),
    _index("ix_archives_due", "due_at", where="state = 'active' OR removed_at IS NOT NULL"),
)

archive_objects = _table(
    "archive_objects",
    sa.Column("archive_id", sa.ForeignKey("archives.id"), nullable=False),
    # SHA-256 of the key, which is known still when the key was erased with its job.
    sa.Column("key_sha256", sa.LargeBinary, nullable=False),
    # In the order in which they were found.
    sa.Column("position", sa.BigInteger, sa.Identity(), nullable=False),
    sa.Column("key", sa.Text),
    # What a change shows in.
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("etag", sa.Text),
    _time("modified_at", nullable=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("job_id", sa.ForeignKey("jobs.id")),
    sa.Column("error_code", sa.Text),
    sa.Column("error_message", sa.Text),
    sa.PrimaryKeyConstraint("archive_id", "key_sha256"),
    _check(_one_of("state", types.ObjectState), "state"),
    _check("state <> 'running' OR job_id IS NOT NULL", "running_has_job"),
    _index("ix_archive_objects_position", "archive_id", "position"),
    _index("ix_archive_objects_state", "archive_id", "state", "position"),
    _index("ix_archive_objects_job_id", "job_id", where="job_id IS NOT NULL"),
)

signing_secrets = _table(
    "signing_secrets",
    sa.Column("account_id", sa.ForeignKey("accounts.id"), primary_key=True),
    # Encrypted with the service's key; a stolen dump signs nothing.
    sa.Column("current", sa.LargeBinary, nullable=False),
    sa.Column("previous", sa.LargeBinary),
    _time("created_at", now=True),
    _time("rotated_at", nullable=True),
    _check("(previous IS NULL) = (rotated_at IS NULL)", "rotation_has_time"),
)


purchases = _table(
    "purchases",
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("account_id", sa.ForeignKey("accounts.id"), nullable=False),
    # Counted without gaps, as receipts are.
    sa.Column("receipt_number", sa.BigInteger, nullable=False, unique=True),
    sa.Column("amount_cents", sa.BigInteger, nullable=False),
    # Who took the money ('stripe', 'operator') and their reference of the payment.
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("reference", sa.Text, nullable=False),
    _time("created_at", now=True),
    _check("amount_cents > 0", "amount_is_positive"),
    # A payment is credited once, however often and by whichever event it is reported.
    sa.UniqueConstraint("provider", "reference", name="uq_purchases_payment"),
    # What a ledger entry of the purchase must agree with.
    sa.UniqueConstraint("id", "account_id", "amount_cents", name="uq_purchases_entry"),
    _index("ix_purchases_account", "account_id", "receipt_number"),
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
    _index("ix_refunds_payment", "provider", "payment_reference"),
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
    _check(_one_of("kind", types.LedgerKind), "kind"),
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
    _check(_one_of("stage", types.StageName), "stage_is_known"),
    _check("(kind = 'purchase') = (purchase_id IS NOT NULL)", "purchase_has_receipt"),
    _check("refund_id IS NULL OR kind = 'adjustment'", "refund_is_adjustment"),
    _check("reason <> ''", "reason_is_given"),
    # An entry of a purchase credits its account with its amount, no other.
    sa.ForeignKeyConstraint(
        ["purchase_id", "account_id", "balance_delta_cents"],
        ["purchases.id", "purchases.account_id", "purchases.amount_cents"],
        name="fk_ledger_entries_purchase",
    ),
    _index("ix_ledger_entries_account", "account_id", "id"),
    _index("ix_ledger_entries_job", "job_id", where="job_id IS NOT NULL"),
    _index(
        "ix_ledger_entries_capped_key",
        "capped_key_id",
        "created_at",
        where="capped_key_id IS NOT NULL",
    ),
    # A stage is charged at most once, whatever the code does.
    _index("uq_ledger_entries_charge", "job_id", "stage", unique=True, where="kind = 'charge'"),
    _index(
        "uq_ledger_entries_purchase", "purchase_id", unique=True, where="purchase_id IS NOT NULL"
    ),
)
