"""Redaction of personal data, and the log of who read what it hides.

Revision ID: 0021
Revises: 0020
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("redact_after", sa.DateTime(timezone=True)))
    op.add_column("jobs", sa.Column("muted", sa.JSON()))
    op.add_column("transcripts", sa.Column("redacted_revision", sa.Integer()))
    op.create_index(
        "ix_jobs_unredacted",
        "jobs",
        ["redact_after"],
        postgresql_where=sa.text("redact_after IS NOT NULL"),
    )
    op.create_table(
        "audit_log",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid()),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
        sa.PrimaryKeyConstraint("id", name="pk_audit_log"),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_audit_log_account_id_accounts"
        ),
    )
    op.create_index("ix_audit_log_account", "audit_log", ["account_id", "id"])


def downgrade() -> None:
    op.drop_table("audit_log")
    op.drop_column("transcripts", "redacted_revision")
    for name in ("muted", "redact_after"):
        op.drop_column("jobs", name)
