"""Webhook endpoints of accounts, and notifications of a job's changes.

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_OF_ACCOUNT = "LEFT JOIN signing_secrets AS secret ON secret.account_id = before.account_id"
_OF_ENDPOINT_OR_ACCOUNT = """LEFT JOIN LATERAL (
        SELECT current, previous, rotated_at FROM webhook_endpoints WHERE id = before.endpoint_id
        UNION ALL
        SELECT current, previous, rotated_at FROM signing_secrets
         WHERE account_id = before.account_id AND before.endpoint_id IS NULL) AS secret ON true"""

NOTIFY_FUNCTION = """
CREATE FUNCTION notify_job_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('vas_job_changes', CASE TG_TABLE_NAME
        WHEN 'jobs' THEN to_jsonb(NEW) ->> 'id' ELSE to_jsonb(NEW) ->> 'job_id' END);
    RETURN NULL;
END $$
"""


def _replace_in_lease_function(old: str, new: str) -> None:
    """All else of the senders' function (migration 0002) stays."""
    op.execute(
        "DO $do$ BEGIN EXECUTE replace("
        f"pg_get_functiondef('lease_webhook_events'::regproc), $a${old}$a$, $b${new}$b$); END $do$"
    )


def upgrade() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("event_types", sa.ARRAY(sa.Text()), nullable=False),
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
            name=op.f("ck_webhook_endpoints_rotation_has_time"),
        ),
        sa.CheckConstraint(
            "cardinality(event_types) > 0", name=op.f("ck_webhook_endpoints_subscribes")
        ),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_webhook_endpoints_account_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_endpoints")),
    )
    op.create_index(op.f("ix_webhook_endpoints_account_id"), "webhook_endpoints", ["account_id"])
    op.add_column("webhook_events", sa.Column("endpoint_id", sa.Uuid(), nullable=True))
    op.create_foreign_key(
        op.f("fk_webhook_events_endpoint_id"),
        "webhook_events",
        "webhook_endpoints",
        ["endpoint_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.create_index(
        "ix_webhook_events_subscribed",
        "webhook_events",
        ["endpoint_id", "job_id"],
        postgresql_where=sa.text("endpoint_id IS NOT NULL"),
    )
    _replace_in_lease_function(_OF_ACCOUNT, _OF_ENDPOINT_OR_ACCOUNT)
    op.execute(NOTIFY_FUNCTION)
    op.execute(
        "CREATE TRIGGER job_changes AFTER UPDATE OF state, erased_at ON jobs FOR EACH ROW"
        " EXECUTE FUNCTION notify_job_change()"
    )
    # A runner's heartbeat writes the progress every second, moved or not.
    op.execute(
        "CREATE TRIGGER stage_changes AFTER UPDATE ON stages FOR EACH ROW"
        " WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION notify_job_change()"
    )


def downgrade() -> None:
    op.execute("DROP FUNCTION notify_job_change CASCADE")
    _replace_in_lease_function(_OF_ENDPOINT_OR_ACCOUNT, _OF_ACCOUNT)
    op.drop_index("ix_webhook_events_subscribed", table_name="webhook_events")
    op.drop_column("webhook_events", "endpoint_id")
    op.drop_table("webhook_endpoints")
