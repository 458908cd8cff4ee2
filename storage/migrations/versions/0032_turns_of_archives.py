"""Accounts take turns with the steps of their archives.

Revision ID: 0032
Revises: 0031
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("archives", sa.Column("leased_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("archives", "leased_at")
