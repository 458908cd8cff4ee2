"""Comparisons of two cuts, made in the background.

Revision ID: 0031
Revises: 0030
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def _time(name: str, default: sa.TextClause | None = None) -> sa.Column[object]:
    kind = sa.DateTime(timezone=True)
    return sa.Column(name, kind, nullable=default is None, server_default=default)


def _of(name: str, table: str) -> list[sa.Column[object] | sa.ForeignKeyConstraint]:
    key = sa.ForeignKeyConstraint(
        [name], [f"{table}.id"], name=f"fk_comparisons_{name}_{table}", ondelete="CASCADE"
    )
    return [sa.Column(name, sa.Uuid(), nullable=False), key]


def upgrade() -> None:
    now = sa.text("now()")
    op.create_table(
        "comparisons",
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        *_of("account_id", "accounts"),
        *_of("before_id", "jobs"),
        *_of("after_id", "jobs"),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'pending'"), nullable=False),
        sa.Column("error", sa.JSON()),
        sa.Column("document", sa.JSON()),
        sa.Column("attempts", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_token", sa.Uuid()),
        _time("lease_expires_at"),
        _time("leased_at"),
        _time("created_at", now),
        _time("asked_at", now),
        _time("completed_at"),
        sa.PrimaryKeyConstraint("id", name="pk_comparisons"),
        sa.CheckConstraint("state IN ('pending', 'completed', 'failed')", name="state"),
        sa.CheckConstraint("(state = 'failed') = (error IS NOT NULL)", name="failed_has_error"),
        sa.CheckConstraint(
            "(state = 'completed') = (document IS NOT NULL)", name="completed_has_document"
        ),
        sa.CheckConstraint("(state = 'pending') = (completed_at IS NULL)", name="ended_has_time"),
        sa.CheckConstraint(
            "(lease_token IS NULL) = (lease_expires_at IS NULL)", name="lease_has_deadline"
        ),
    )
    op.create_index(
        "uq_comparisons_pair", "comparisons", ["account_id", "before_id", "after_id"], unique=True
    )
    op.create_index("ix_comparisons_before_id", "comparisons", ["before_id"])
    op.create_index("ix_comparisons_after_id", "comparisons", ["after_id"])
    op.create_index(
        "ix_comparisons_pending",
        "comparisons",
        ["created_at"],
        postgresql_where=sa.text("state = 'pending'"),
    )


def downgrade() -> None:
    op.drop_table("comparisons")
