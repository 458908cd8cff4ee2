"""Reruns: what results were made with, and jobs that renew those of another.

Revision ID: 0019
Revises: 0018
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("stages", sa.Column("made_with", sa.Text()))
    op.add_column("jobs", sa.Column("rerun_of", sa.Uuid()))
    op.create_foreign_key(op.f("fk_jobs_rerun_of"), "jobs", "jobs", ["rerun_of"], ["id"])
    op.create_index(
        "ix_jobs_rerun_of", "jobs", ["rerun_of"], postgresql_where=sa.text("rerun_of IS NOT NULL")
    )
    op.create_table(
        "stage_versions",
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("made_with", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("stage", name="pk_stage_versions"),
        sa.CheckConstraint(
            "stage IN ('ingest', 'vision', 'transcript')", name=op.f("ck_stage_versions_stage")
        ),
    )


def downgrade() -> None:
    op.drop_table("stage_versions")
    op.drop_column("jobs", "rerun_of")
    op.drop_column("stages", "made_with")
