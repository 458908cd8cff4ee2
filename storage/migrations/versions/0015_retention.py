"""Retention of accounts, legal holds, and accounts that are erased.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("accounts", sa.Column("source_retention_seconds", sa.Integer()))
    op.add_column("accounts", sa.Column("result_retention_days", sa.Integer()))
    op.add_column("accounts", sa.Column("legal_hold_at", sa.DateTime(timezone=True)))
    op.add_column("accounts", sa.Column("erased_at", sa.DateTime(timezone=True)))
    op.add_column("jobs", sa.Column("legal_hold_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("jobs", "legal_hold_at")
    for name in ("erased_at", "legal_hold_at", "result_retention_days", "source_retention_seconds"):
        op.drop_column("accounts", name)
