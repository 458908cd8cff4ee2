"""What translations cost counts for the cap of the key that requested them.

Revision ID: 0029
Revises: 0028
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("translations", sa.Column("capped_key_id", sa.Uuid()))
    op.add_column("ledger_entries", sa.Column("capped_key_id", sa.Uuid()))
    op.create_index(
        "ix_ledger_entries_capped_key",
        "ledger_entries",
        ["capped_key_id", "created_at"],
        postgresql_where=sa.text("capped_key_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_ledger_entries_capped_key", "ledger_entries")
    op.drop_column("ledger_entries", "capped_key_id")
    op.drop_column("translations", "capped_key_id")
