"""How large each correction of a transcript is, which limits what is kept of a job's.

Revision ID: 0034
Revises: 0033
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    size = sa.Column("size_bytes", sa.Integer, nullable=False, server_default=sa.text("0"))
    op.add_column("transcript_revisions", size)
    op.execute("UPDATE transcript_revisions SET size_bytes = octet_length(before::text)")


def downgrade() -> None:
    op.drop_column("transcript_revisions", "size_bytes")
