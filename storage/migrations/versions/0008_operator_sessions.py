"""Sessions of operators, and ended jobs by the time of their end.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "operator_sessions",
        sa.Column("link_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("link_expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("token_sha256", sa.LargeBinary(), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(token_sha256 IS NULL) = (expires_at IS NULL)",
            name=op.f("ck_operator_sessions_session_has_end"),
        ),
        sa.PrimaryKeyConstraint("link_sha256", name=op.f("pk_operator_sessions")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_operator_sessions_token_sha256")),
    )
    op.create_index(
        "ix_jobs_ended",
        "jobs",
        ["state", "completed_at"],
        postgresql_where=sa.text("completed_at IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_ended", table_name="jobs")
    op.drop_table("operator_sessions")
