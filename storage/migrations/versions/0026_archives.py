"""Archives: buckets of clients that are analysed object by object.

Revision ID: 0026
Revises: 0025
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_STATES = ("waiting", "running", "completed", "failed", "refused")


def _time(name: str, *, now: bool = False) -> sa.Column[object]:
    default = sa.func.now() if now else None
    return sa.Column(name, sa.DateTime(timezone=True), nullable=not now, server_default=default)


def upgrade() -> None:
    op.create_table(
        "archives",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("patterns", ARRAY(sa.Text()), nullable=False),
        sa.Column("watch_seconds", sa.Integer()),
        sa.Column("max_active_jobs", sa.Integer(), nullable=False),
        sa.Column("sealed_access", sa.Text()),
        sa.Column("options", JSONB(), nullable=False),
        sa.Column("base_url", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="active", nullable=False),
        sa.Column("error_code", sa.Text()),
        sa.Column("error_message", sa.Text()),
        sa.Column("list_after", sa.LargeBinary()),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        *(
            sa.Column(f"{state}_objects", sa.BigInteger(), server_default="0", nullable=False)
            for state in _STATES
        ),
        _time("created_at", now=True),
        _time("listed_at"),
        _time("next_list_at"),
        _time("due_at", now=True),
        sa.Column("lease_token", sa.Uuid()),
        _time("lease_expires_at"),
        _time("removed_at"),
        sa.PrimaryKeyConstraint("id", name="pk_archives"),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_archives_account_id_accounts"
        ),
        sa.CheckConstraint(
            "state IN ('active', 'paused', 'completed')", name=op.f("ck_archives_state")
        ),
        sa.CheckConstraint(
            "max_active_jobs > 0", name=op.f("ck_archives_max_active_jobs_positive")
        ),
        sa.CheckConstraint("watch_seconds > 0", name=op.f("ck_archives_watch_seconds_positive")),
        sa.CheckConstraint(
            "sealed_access IS NULL OR removed_at IS NULL",
            name=op.f("ck_archives_removed_without_access"),
        ),
        *(
            sa.CheckConstraint(
                f"{state}_objects >= 0", name=op.f(f"ck_archives_{state}_not_negative")
            )
            for state in _STATES
        ),
    )
    op.create_index("ix_archives_account_id", "archives", ["account_id"])
    op.create_index(
        "ix_archives_due",
        "archives",
        ["due_at"],
        postgresql_where=sa.text("state = 'active' OR removed_at IS NOT NULL"),
    )
    op.create_table(
        "archive_objects",
        sa.Column("archive_id", sa.Uuid(), nullable=False),
        sa.Column("key_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("position", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("key", sa.Text()),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("etag", sa.Text()),
        _time("modified_at"),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Uuid()),
        sa.Column("error_code", sa.Text()),
        sa.Column("error_message", sa.Text()),
        sa.PrimaryKeyConstraint("archive_id", "key_sha256", name="pk_archive_objects"),
        sa.ForeignKeyConstraint(
            ["archive_id"], ["archives.id"], name="fk_archive_objects_archive_id_archives"
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_archive_objects_job_id_jobs"),
        sa.CheckConstraint(
            "state IN ('waiting', 'running', 'completed', 'failed', 'refused')",
            name=op.f("ck_archive_objects_state"),
        ),
        sa.CheckConstraint(
            "state <> 'running' OR job_id IS NOT NULL",
            name=op.f("ck_archive_objects_running_has_job"),
        ),
    )
    op.create_index("ix_archive_objects_position", "archive_objects", ["archive_id", "position"])
    op.create_index(
        "ix_archive_objects_state", "archive_objects", ["archive_id", "state", "position"]
    )
    op.create_index(
        "ix_archive_objects_job_id",
        "archive_objects",
        ["job_id"],
        postgresql_where=sa.text("job_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_table("archive_objects")
    op.drop_table("archives")
