"""Overviews of videos beside their scenes.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scene_lists", sa.Column("overview", sa.JSON()))


def downgrade() -> None:
    op.drop_column("scene_lists", "overview")
