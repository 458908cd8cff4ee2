"""Lists of jobs that failed or were cancelled read these jobs only.

Revision ID: 0030
Revises: 0029
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_jobs_unsuccessful",
        "jobs",
        ["account_id", "state", sa.text("created_at DESC"), sa.text("id DESC")],
        postgresql_where=sa.text("state IN ('failed', 'cancelled', 'expired')"),
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_unsuccessful", "jobs")
