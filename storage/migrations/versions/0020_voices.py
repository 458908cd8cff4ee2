"""Voices that accounts have named, and what speakers of jobs sound like.

Revision ID: 0020
Revises: 0019
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "voices",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
        sa.PrimaryKeyConstraint("id", name="pk_voices"),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_voices_account_id_accounts"
        ),
        sa.CheckConstraint("name <> ''", name=op.f("ck_voices_name_not_empty")),
    )
    op.create_index("uq_voices_account_id_name", "voices", ["account_id", "name"], unique=True)
    op.create_table(
        "speaker_voices",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("track_index", sa.SmallInteger(), nullable=False),
        sa.Column("speaker_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.Column("voice_id", sa.Uuid()),
        sa.PrimaryKeyConstraint("job_id", "track_index", "speaker_id", name="pk_speaker_voices"),
        sa.ForeignKeyConstraint(
            ["job_id", "track_index"],
            ["transcripts.job_id", "transcripts.track_index"],
            name="fk_speaker_voices_transcript",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["voice_id"],
            ["voices.id"],
            name="fk_speaker_voices_voice_id_voices",
            ondelete="SET NULL",
        ),
    )
    op.create_index("ix_speaker_voices_voice_id", "speaker_voices", ["voice_id"])
    op.add_column("speaker_labels", sa.Column("voice_id", sa.Uuid()))
    op.create_foreign_key(
        "fk_speaker_labels_voice_id_voices",
        "speaker_labels",
        "voices",
        ["voice_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.create_index("ix_speaker_labels_voice_id", "speaker_labels", ["voice_id"])


def downgrade() -> None:
    op.drop_column("speaker_labels", "voice_id")
    op.drop_table("speaker_voices")
    op.drop_table("voices")
