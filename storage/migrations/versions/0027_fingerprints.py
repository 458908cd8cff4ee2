"""Fingerprints of shots, by which two cuts are compared.

Revision ID: 0027
Revises: 0026
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scene_lists", sa.Column("fingerprints", sa.LargeBinary()))


def downgrade() -> None:
    op.drop_column("scene_lists", "fingerprints")
