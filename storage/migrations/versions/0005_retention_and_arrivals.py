"""When a job's objects are next looked at; when an upload past the service is.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_ENDED = "completed_at IS NOT NULL AND cleaned_at IS NULL AND cleaning_after IS NULL"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("cleaning_after", sa.DateTime(timezone=True)))
    op.drop_index("ix_jobs_uncleaned", table_name="jobs")
    op.create_index(
        "ix_jobs_uncleaned",
        "jobs",
        ["state", "completed_at"],
        postgresql_where=sa.text(_ENDED),
    )
    op.create_index(
        "ix_jobs_cleaning",
        "jobs",
        ["cleaning_after"],
        postgresql_where=sa.text("cleaning_after IS NOT NULL"),
    )
    op.create_check_constraint(
        op.f("ck_jobs_cleaned_once"), "jobs", "cleaned_at IS NULL OR cleaning_after IS NULL"
    )
    op.add_column("uploads", sa.Column("look_after", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("uploads", "look_after")
    op.drop_constraint(op.f("ck_jobs_cleaned_once"), "jobs")
    op.drop_index("ix_jobs_cleaning", table_name="jobs")
    op.drop_index("ix_jobs_uncleaned", table_name="jobs")
    op.create_index(
        "ix_jobs_uncleaned",
        "jobs",
        ["completed_at"],
        postgresql_where=sa.text("completed_at IS NOT NULL AND cleaned_at IS NULL"),
    )
    op.drop_column("jobs", "cleaning_after")
