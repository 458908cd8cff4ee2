"""How a redaction ends that breaks, and indexes of what retention erases.

Revision ID: 0023
Revises: 0022
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    attempts = sa.Column(
        "redact_attempts", sa.SmallInteger(), server_default=sa.text("0"), nullable=False
    )
    op.add_column("jobs", attempts)
    op.add_column("jobs", sa.Column("redact_error", sa.Text()))
    op.create_index(
        "ix_jobs_kept",
        "jobs",
        ["account_id", "completed_at"],
        postgresql_where=sa.text("erased_at IS NULL"),
    )
    op.create_index(
        "ix_jobs_own_days",
        "jobs",
        ["completed_at"],
        postgresql_where=sa.text(
            "erased_at IS NULL AND (source ->> 'result_retention_days') IS NOT NULL"
        ),
    )


def downgrade() -> None:
    for name in ("ix_jobs_own_days", "ix_jobs_kept"):
        op.drop_index(name, "jobs")
    for name in ("redact_error", "redact_attempts"):
        op.drop_column("jobs", name)
