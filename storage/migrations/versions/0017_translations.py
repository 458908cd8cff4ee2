"""Translations of transcripts.

Revision ID: 0017
Revises: 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "translations",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("language", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default=sa.text("'pending'"), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("price_cents", sa.Integer(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("documents", sa.JSON()),
        sa.Column("attempts", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_token", sa.Uuid()),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True)),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
        sa.Column("completed_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("job_id", "language", name="pk_translations"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_translations_job_id_jobs", ondelete="CASCADE"
        ),
        sa.CheckConstraint(
            "status IN ('pending', 'completed', 'failed')", name=op.f("ck_translations_status")
        ),
        sa.CheckConstraint(
            "(status = 'failed') = (reason IS NOT NULL)",
            name=op.f("ck_translations_failed_has_reason"),
        ),
        sa.CheckConstraint(
            "(status = 'completed') = (documents IS NOT NULL)",
            name=op.f("ck_translations_completed_has_text"),
        ),
        sa.CheckConstraint(
            "(status = 'pending') = (completed_at IS NULL)",
            name=op.f("ck_translations_ended_has_time"),
        ),
        sa.CheckConstraint(
            "(lease_token IS NULL) = (lease_expires_at IS NULL)",
            name=op.f("ck_translations_lease_has_deadline"),
        ),
    )
    op.create_index(
        "ix_translations_pending",
        "translations",
        ["created_at"],
        postgresql_where=sa.text("status = 'pending'"),
    )


def downgrade() -> None:
    op.drop_table("translations")
