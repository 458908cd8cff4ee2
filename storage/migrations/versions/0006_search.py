"""What can be searched. Existing results are indexed afterwards, by the runners, in batches.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_KINDS = "kind IN ('transcript', 'scene', 'text', 'object', 'file')"


def upgrade() -> None:
    op.create_table(
        "search_rows",
        sa.Column("id", sa.BigInteger(), sa.Identity(), primary_key=True),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("job_created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("language", sa.Text()),
        sa.Column("start_ms", sa.BigInteger(), nullable=False),
        sa.Column("end_ms", sa.BigInteger(), nullable=False),
        sa.Column("track_index", sa.SmallInteger()),
        sa.Column("scene_index", sa.Integer()),
        sa.Column("speaker", sa.Text()),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("ahead", sa.Text(), nullable=False),
        sa.Column("vector", TSVECTOR(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_search_rows_job_id", ondelete="CASCADE"
        ),
        sa.CheckConstraint(_KINDS, name=op.f("ck_search_rows_kind")),
    )
    op.create_index("ix_search_rows_job_id", "search_rows", ["job_id"])
    op.create_index(
        "ix_search_rows_vector",
        "search_rows",
        ["vector"],
        postgresql_using="gin",
        postgresql_with={"gin_pending_list_limit": 16384},
    )
    op.create_table(
        "search_configs",
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "config"),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_search_configs_account_id"
        ),
    )
    op.add_column("stages", sa.Column("indexed", sa.Boolean()))


def downgrade() -> None:
    op.drop_column("stages", "indexed")
    op.drop_table("search_configs")
    op.drop_table("search_rows")
