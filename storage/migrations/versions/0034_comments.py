"""Who has a transcript open to edit it.

Revision ID: 0034
Revises: 0033
"""

from __future__ import annotations

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE sessions ADD COLUMN IF NOT EXISTS editing_job_id uuid,"
        " ADD COLUMN IF NOT EXISTS editing_until timestamptz"
    )
