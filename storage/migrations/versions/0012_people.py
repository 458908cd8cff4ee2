"""People of a video, of jobs that were created with them.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scene_lists", sa.Column("people", sa.JSON()))


def downgrade() -> None:
    op.drop_column("scene_lists", "people")
