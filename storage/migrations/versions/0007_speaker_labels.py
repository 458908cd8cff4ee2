"""Names for speakers.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "speaker_labels",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("track_index", sa.SmallInteger(), nullable=False),
        sa.Column("speaker_id", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.CheckConstraint("label <> ''", name=op.f("ck_speaker_labels_label_not_empty")),
        sa.ForeignKeyConstraint(
            ["job_id", "track_index"],
            ["transcripts.job_id", "transcripts.track_index"],
            name=op.f("fk_speaker_labels_transcript"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "job_id", "track_index", "speaker_id", name=op.f("pk_speaker_labels")
        ),
    )


def downgrade() -> None:
    op.drop_table("speaker_labels")
