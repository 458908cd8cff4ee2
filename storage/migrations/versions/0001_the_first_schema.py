"""The first schema

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


LEDGER_TRIGGERS = """
CREATE FUNCTION ledger_apply() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The running totals move with the entry, in one statement, and the CHECKs on
    -- accounts and jobs refuse an entry that would overdraw either of them.
    UPDATE accounts
       SET balance_cents = balance_cents + NEW.balance_delta_cents,
           held_cents = held_cents + NEW.hold_delta_cents
     WHERE id = NEW.account_id;
    IF NEW.job_id IS NOT NULL THEN
        UPDATE jobs
           SET held_cents = held_cents + NEW.hold_delta_cents,
               charged_cents = charged_cents - NEW.balance_delta_cents
         WHERE id = NEW.job_id AND account_id = NEW.account_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'ledger entry of another account''s job';
        END IF;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER ledger_apply AFTER INSERT ON ledger_entries
    FOR EACH ROW EXECUTE FUNCTION ledger_apply();

CREATE FUNCTION ledger_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'ledger_entries is append-only';
END $$;
CREATE TRIGGER ledger_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_is_append_only();
"""


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("suspended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("throttled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("pay_as_you_go", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "credit_limit_cents", sa.BigInteger(), server_default=sa.text("0"), nullable=False
        ),
        sa.Column("max_active_jobs", sa.Integer(), nullable=True),
        sa.Column("balance_cents", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("held_cents", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint(
            "credit_limit_cents >= 0", name=op.f("ck_accounts_credit_limit_not_negative")
        ),
        sa.CheckConstraint(
            "held_cents = 0 OR balance_cents - held_cents >= -(CASE WHEN pay_as_you_go THEN credit_limit_cents ELSE 0 END)",
            name=op.f("ck_accounts_holds_are_covered"),
        ),
        sa.CheckConstraint("held_cents >= 0", name=op.f("ck_accounts_held_not_negative")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
        sa.UniqueConstraint("name", name=op.f("uq_accounts_name")),
    )
    op.create_table(
        "rate_limits",
        sa.Column("bucket", sa.Text(), nullable=False),
        sa.Column("minute", sa.BigInteger(), nullable=False),
        sa.Column("used", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("bucket", name=op.f("pk_rate_limits")),
        prefixes=["UNLOGGED"],
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("secret_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("last_four", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("benefit_id", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "status IN ('active', 'rotated', 'revoked', 'expired')", name=op.f("ck_api_keys_status")
        ),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_api_keys_account_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_api_keys_secret_sha256")),
    )
    op.create_index(op.f("ix_api_keys_account_id"), "api_keys", ["account_id"], unique=False)
    op.create_table(
        "idempotency_records",
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        sa.Column("headers", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_idempotency_records_account_id")
        ),
        sa.PrimaryKeyConstraint(
            "account_id", "operation", "key", name=op.f("pk_idempotency_records")
        ),
    )
    op.create_index(
        "ix_idempotency_records_age", "idempotency_records", ["created_at"], unique=False
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("processing_mode", sa.Text(), nullable=False),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("file_name", sa.Text(), nullable=False),
        sa.Column("callback_url", sa.Text(), nullable=True),
        sa.Column(
            "metadata",
            postgresql.JSON(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column("source", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("batch_id", sa.Uuid(), nullable=True),
        sa.Column("batch_index", sa.Integer(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("upload_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("duration_ms", sa.BigInteger(), nullable=True),
        sa.Column("ingest_result", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("billable_seconds", sa.BigInteger(), nullable=True),
        sa.Column("quote_cents", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("quoted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("audio_track_names", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column(
            "warnings",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'[]'"),
            nullable=False,
        ),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("held_cents", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("charged_cents", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_token", sa.Uuid(), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lease_count", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("cleaned_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(state = 'failed') = (error_code IS NOT NULL)", name=op.f("ck_jobs_failed_has_code")
        ),
        sa.CheckConstraint(
            "(state = 'processing') = (lease_token IS NOT NULL)",
            name=op.f("ck_jobs_lease_is_processing"),
        ),
        sa.CheckConstraint(
            "(state IN ('completed', 'failed', 'cancelled', 'expired')) = (completed_at IS NOT NULL)",
            name=op.f("ck_jobs_ended_has_time"),
        ),
        sa.CheckConstraint(
            "processing_mode IN ('all', 'transcript', 'vision')",
            name=op.f("ck_jobs_processing_mode"),
        ),
        sa.CheckConstraint(
            "state IN ('awaiting_upload', 'queued', 'processing', 'completed', 'failed', 'cancelled', 'expired')",
            name=op.f("ck_jobs_state"),
        ),
        sa.CheckConstraint("tier IN ('standard', 'raw')", name=op.f("ck_jobs_tier")),
        sa.CheckConstraint(
            "(lease_token IS NULL) = (lease_expires_at IS NULL)",
            name=op.f("ck_jobs_lease_has_deadline"),
        ),
        sa.CheckConstraint(
            "completed_at IS NULL OR held_cents = 0", name=op.f("ck_jobs_ended_holds_nothing")
        ),
        sa.CheckConstraint("held_cents >= 0", name=op.f("ck_jobs_held_not_negative")),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_jobs_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(
        "ix_jobs_leased",
        "jobs",
        ["lease_expires_at"],
        unique=False,
        postgresql_where=sa.text("state = 'processing'"),
    )
    op.create_index(
        "ix_jobs_listing",
        "jobs",
        ["account_id", sa.literal_column("created_at DESC"), sa.literal_column("id DESC")],
        unique=False,
    )
    op.create_index(
        "ix_jobs_uncleaned",
        "jobs",
        ["completed_at"],
        unique=False,
        postgresql_where=sa.text("completed_at IS NOT NULL AND cleaned_at IS NULL"),
    )
    op.create_index(
        "ix_jobs_unfinished",
        "jobs",
        ["account_id"],
        unique=False,
        postgresql_where=sa.text("completed_at IS NULL"),
    )
    op.create_index(
        "ix_jobs_uploading",
        "jobs",
        ["upload_expires_at"],
        unique=False,
        postgresql_where=sa.text("state = 'awaiting_upload'"),
    )
    op.create_index(
        "ix_jobs_usage",
        "jobs",
        ["account_id", "quoted_at"],
        unique=False,
        postgresql_where=sa.text("quoted_at IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_waiting",
        "jobs",
        ["created_at"],
        unique=False,
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_table(
        "sessions",
        sa.Column("token_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_sessions_account_id")
        ),
        sa.PrimaryKeyConstraint("token_sha256", name=op.f("pk_sessions")),
    )
    op.create_table(
        "sign_in_links",
        sa.Column("token_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_sign_in_links_account_id")
        ),
        sa.PrimaryKeyConstraint("token_sha256", name=op.f("pk_sign_in_links")),
    )
    op.create_table(
        "signing_secrets",
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("current", sa.LargeBinary(), nullable=False),
        sa.Column("previous", sa.LargeBinary(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("rotated_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(previous IS NULL) = (rotated_at IS NULL)",
            name=op.f("ck_signing_secrets_rotation_has_time"),
        ),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_signing_secrets_account_id")
        ),
        sa.PrimaryKeyConstraint("account_id", name=op.f("pk_signing_secrets")),
    )
    op.create_table(
        "ledger_entries",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("balance_delta_cents", sa.BigInteger(), nullable=False),
        sa.Column("hold_delta_cents", sa.BigInteger(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("stage", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "(kind = 'charge') = (stage IS NOT NULL)",
            name=op.f("ck_ledger_entries_charge_names_stage"),
        ),
        sa.CheckConstraint(
            "(kind IN ('hold', 'release', 'charge')) = (job_id IS NOT NULL)",
            name=op.f("ck_ledger_entries_job_fits_kind"),
        ),
        sa.CheckConstraint(
            "CASE kind WHEN 'purchase' THEN balance_delta_cents > 0 AND hold_delta_cents = 0 WHEN 'grant' THEN balance_delta_cents > 0 AND hold_delta_cents = 0 WHEN 'adjustment' THEN balance_delta_cents <> 0 AND hold_delta_cents = 0 WHEN 'hold' THEN balance_delta_cents = 0 AND hold_delta_cents > 0 WHEN 'release' THEN balance_delta_cents = 0 AND hold_delta_cents < 0 WHEN 'charge' THEN balance_delta_cents < 0 AND hold_delta_cents = balance_delta_cents ELSE false END",
            name=op.f("ck_ledger_entries_amounts_fit_kind"),
        ),
        sa.CheckConstraint(
            "kind IN ('purchase', 'grant', 'hold', 'release', 'charge', 'adjustment')",
            name=op.f("ck_ledger_entries_kind"),
        ),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_ledger_entries_account_id")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_ledger_entries_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_entries")),
    )
    op.create_index(
        "ix_ledger_entries_account", "ledger_entries", ["account_id", "id"], unique=False
    )
    op.create_index(
        "uq_ledger_entries_charge",
        "ledger_entries",
        ["job_id", "stage"],
        unique=True,
        postgresql_where=sa.text("kind = 'charge'"),
    )
    op.create_table(
        "scene_lists",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("scenes", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("scene_count", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_scene_lists_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_scene_lists")),
    )
    op.create_table(
        "stages",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("progress", sa.Float(), server_default=sa.text("0"), nullable=False),
        sa.Column("skip_reason", sa.Text(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "timings",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "(status = 'failed') <= (error_code IS NOT NULL)",
            name=op.f("ck_stages_failed_has_code"),
        ),
        sa.CheckConstraint(
            "(status = 'skipped') = (skip_reason IS NOT NULL)",
            name=op.f("ck_stages_skipped_has_reason"),
        ),
        sa.CheckConstraint(
            "stage IN ('ingest', 'vision', 'transcript')", name=op.f("ck_stages_stage")
        ),
        sa.CheckConstraint(
            "status IN ('pending', 'running', 'completed', 'skipped', 'failed')",
            name=op.f("ck_stages_status"),
        ),
        sa.CheckConstraint("progress BETWEEN 0 AND 1", name=op.f("ck_stages_progress")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_stages_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "stage", name=op.f("pk_stages")),
    )
    op.create_table(
        "transcripts",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("track_index", sa.SmallInteger(), nullable=False),
        sa.Column("track_name", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("language", sa.Text(), nullable=True),
        sa.Column("document", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.CheckConstraint(
            "(status = 'completed') = (document IS NOT NULL)",
            name=op.f("ck_transcripts_completed_has_text"),
        ),
        sa.CheckConstraint(
            "status IN ('pending', 'running', 'completed', 'skipped', 'failed')",
            name=op.f("ck_transcripts_status"),
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_transcripts_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "track_index", name=op.f("pk_transcripts")),
    )
    op.create_table(
        "uploads",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("slot", sa.Text(), nullable=False),
        sa.Column("file_name", sa.Text(), nullable=False),
        sa.Column("object_key", sa.Text(), nullable=False),
        sa.Column("declared_bytes", sa.BigInteger(), nullable=True),
        sa.Column("received_bytes", sa.BigInteger(), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(completed_at IS NULL) = (received_bytes IS NULL)",
            name=op.f("ck_uploads_complete_has_size"),
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_uploads_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "slot", name=op.f("pk_uploads")),
    )
    op.create_table(
        "webhook_events",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.Text(), server_default=sa.text("'pending_retry'"), nullable=False),
        sa.Column("attempts", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "next_attempt_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=True,
        ),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "status IN ('in_flight', 'pending_retry', 'delivered', 'failed', 'disabled')",
            name=op.f("ck_webhook_events_status"),
        ),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_webhook_events_account_id")
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_webhook_events_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_events")),
    )
    op.create_index(
        "ix_webhook_events_due",
        "webhook_events",
        ["next_attempt_at"],
        unique=False,
        postgresql_where=sa.text("status IN ('in_flight', 'pending_retry')"),
    )
    op.create_index(
        "ix_webhook_events_log",
        "webhook_events",
        ["account_id", sa.literal_column("created_at DESC"), sa.literal_column("id DESC")],
        unique=False,
    )
    op.execute(LEDGER_TRIGGERS)


def downgrade() -> None:
    op.execute(
        "DROP FUNCTION ledger_apply() CASCADE; DROP FUNCTION ledger_is_append_only() CASCADE;"
    )
    op.drop_index("ix_webhook_events_log", table_name="webhook_events")
    op.drop_index(
        "ix_webhook_events_due",
        table_name="webhook_events",
        postgresql_where=sa.text("status IN ('in_flight', 'pending_retry')"),
    )
    op.drop_table("webhook_events")
    op.drop_table("uploads")
    op.drop_table("transcripts")
    op.drop_table("stages")
    op.drop_table("scene_lists")
    op.drop_index(
        "uq_ledger_entries_charge",
        table_name="ledger_entries",
        postgresql_where=sa.text("kind = 'charge'"),
    )
    op.drop_index("ix_ledger_entries_account", table_name="ledger_entries")
    op.drop_table("ledger_entries")
    op.drop_table("signing_secrets")
    op.drop_table("sign_in_links")
    op.drop_table("sessions")
    op.drop_index(
        "ix_jobs_waiting", table_name="jobs", postgresql_where=sa.text("state = 'queued'")
    )
    op.drop_index(
        "ix_jobs_usage", table_name="jobs", postgresql_where=sa.text("quoted_at IS NOT NULL")
    )
    op.drop_index(
        "ix_jobs_uploading",
        table_name="jobs",
        postgresql_where=sa.text("state = 'awaiting_upload'"),
    )
    op.drop_index(
        "ix_jobs_unfinished", table_name="jobs", postgresql_where=sa.text("completed_at IS NULL")
    )
    op.drop_index(
        "ix_jobs_uncleaned",
        table_name="jobs",
        postgresql_where=sa.text("completed_at IS NOT NULL AND cleaned_at IS NULL"),
    )
    op.drop_index("ix_jobs_listing", table_name="jobs")
    op.drop_index(
        "ix_jobs_leased", table_name="jobs", postgresql_where=sa.text("state = 'processing'")
    )
    op.drop_table("jobs")
    op.drop_index("ix_idempotency_records_age", table_name="idempotency_records")
    op.drop_table("idempotency_records")
    op.drop_index(op.f("ix_api_keys_account_id"), table_name="api_keys")
    op.drop_table("api_keys")
    op.drop_table("rate_limits")
    op.drop_table("accounts")
