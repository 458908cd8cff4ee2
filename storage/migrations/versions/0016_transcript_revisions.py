"""Corrections of transcripts.

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "transcripts", sa.Column("revision", sa.Integer(), nullable=False, server_default="0")
    )
    op.add_column("transcripts", sa.Column("align_after", sa.DateTime(timezone=True)))
    op.create_index(
        "ix_transcripts_unaligned",
        "transcripts",
        ["align_after"],
        postgresql_where=sa.text("align_after IS NOT NULL"),
    )
    op.create_table(
        "transcript_revisions",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("track_index", sa.SmallInteger(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
        sa.Column("reverted_to", sa.Integer()),
        sa.Column("changed_segments", sa.Integer(), nullable=False),
        sa.Column("before", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint(
            "job_id", "track_index", "revision", name="pk_transcript_revisions"
        ),
        sa.ForeignKeyConstraint(
            ["job_id", "track_index"],
            ["transcripts.job_id", "transcripts.track_index"],
            name="fk_transcript_revisions_transcript",
            ondelete="CASCADE",
        ),
    )


def downgrade() -> None:
    op.drop_table("transcript_revisions")
    op.drop_index("ix_transcripts_unaligned", table_name="transcripts")
    op.drop_column("transcripts", "align_after")
    op.drop_column("transcripts", "revision")
