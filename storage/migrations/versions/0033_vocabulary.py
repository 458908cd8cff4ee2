"""The vocabulary of accounts and of archives.

Revision ID: 0033
Revises: 0032
"""

from __future__ import annotations

from alembic import op

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    for table in ("accounts", "archives"):
        op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS vocabulary jsonb")
