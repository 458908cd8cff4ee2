"""Tags of jobs, names of API keys and their last use, accounts whose jobs recognise people.

Revision ID: 0035
Revises: 0034
"""

from __future__ import annotations

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN IF NOT EXISTS tags text[] NOT NULL DEFAULT '{}'")
    op.execute(
        "ALTER TABLE accounts ADD COLUMN IF NOT EXISTS recognises boolean NOT NULL DEFAULT false"
    )
    op.execute(
        "ALTER TABLE api_keys ADD COLUMN IF NOT EXISTS name text,"
        " ADD COLUMN IF NOT EXISTS last_used_at timestamptz"
    )
