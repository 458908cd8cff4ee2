"""Resumable uploads

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("uploads", sa.Column("resumable_bytes", sa.BigInteger()))
    op.add_column("uploads", sa.Column("unverified_from_bytes", sa.BigInteger()))
    op.add_column("uploads", sa.Column("terminated_at", sa.DateTime(timezone=True)))
    op.add_column("uploads", sa.Column("arriving_until", sa.DateTime(timezone=True)))
    op.add_column("uploads", sa.Column("writer_token", sa.Uuid()))
    op.add_column("uploads", sa.Column("writer_expires_at", sa.DateTime(timezone=True)))
    op.create_check_constraint(
        op.f("ck_uploads_writer_has_deadline"),
        "uploads",
        "(writer_token IS NULL) = (writer_expires_at IS NULL)",
    )
    op.create_check_constraint(
        op.f("ck_uploads_unverified_not_negative"),
        "uploads",
        "unverified_from_bytes IS NULL OR unverified_from_bytes >= 0",
    )
    op.create_index(
        "ix_uploads_written",
        "uploads",
        ["writer_expires_at"],
        postgresql_where=sa.text("writer_token IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_uploads_written", table_name="uploads")
    op.drop_constraint(op.f("ck_uploads_unverified_not_negative"), "uploads")
    op.drop_constraint(op.f("ck_uploads_writer_has_deadline"), "uploads")
    for column in (
        "writer_expires_at",
        "writer_token",
        "arriving_until",
        "terminated_at",
        "unverified_from_bytes",
        "resumable_bytes",
    ):
        op.drop_column("uploads", column)
