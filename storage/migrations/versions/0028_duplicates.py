"""Near duplicates across an account: fingerprints of sound, keys of both kinds, what was found.

Revision ID: 0028
Revises: 0027
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def _job(name: str, table: str) -> list[sa.Column[object] | sa.ForeignKeyConstraint]:
    key = sa.ForeignKeyConstraint(
        [name], ["jobs.id"], name=f"fk_{table}_{name}_jobs", ondelete="CASCADE"
    )
    return [sa.Column(name, sa.Uuid(), nullable=False), key]


def upgrade() -> None:
    op.add_column("transcripts", sa.Column("sound_print", sa.LargeBinary()))
    op.add_column("jobs", sa.Column("compare_after", sa.DateTime(timezone=True)))
    op.create_index(
        "ix_jobs_uncompared",
        "jobs",
        ["compare_after"],
        postgresql_where=sa.text("compare_after IS NOT NULL"),
    )
    op.create_table(
        "fingerprint_keys",
        *_job("job_id", "fingerprint_keys"),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("keys", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "kind", "part", name="pk_fingerprint_keys"),
        sa.CheckConstraint("kind IN ('shot', 'sound')", name=op.f("ck_fingerprint_keys_kind")),
    )
    op.create_index(
        "ix_fingerprint_keys_keys", "fingerprint_keys", ["keys"], postgresql_using="gin"
    )
    op.create_table(
        "duplicates",
        *_job("job_id", "duplicates"),
        *_job("other_id", "duplicates"),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("start_ms", "end_ms", "other_start_ms", "other_end_ms")
        ),
        *(sa.Column(name, sa.SmallInteger()) for name in ("track", "other_track")),
        *(sa.Column(name, sa.Float(), nullable=False) for name in ("score", "speed")),
        sa.PrimaryKeyConstraint("job_id", "other_id", "number", name="pk_duplicates"),
        sa.CheckConstraint("kind IN ('file', 'shot', 'sound')", name=op.f("ck_duplicates_kind")),
        sa.CheckConstraint("job_id < other_id", name=op.f("ck_duplicates_once")),
    )
    op.create_index("ix_duplicates_other_id", "duplicates", ["other_id"])


def downgrade() -> None:
    op.drop_table("duplicates")
    op.drop_table("fingerprint_keys")
    op.drop_index("ix_jobs_uncompared", "jobs")
    op.drop_column("jobs", "compare_after")
    op.drop_column("transcripts", "sound_print")
