"""Comparisons in the background, turns of accounts, sizes of revisions, sign-ins that ask.

Revision ID: 0031
Revises: 0030
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from storage.database import schema_functions
from storage.tables import comparisons

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # As it is today: what is added to it later must not be there yet.
    comparisons.create(op.get_bind())
    op.add_column("archives", sa.Column("leased_at", sa.DateTime(timezone=True)))
    size = sa.Column("size_bytes", sa.Integer, nullable=False, server_default=sa.text("0"))
    op.add_column("transcript_revisions", size)
    op.execute("UPDATE transcript_revisions SET size_bytes = octet_length(before::text)")
    for column in ("user_id", "invitation_id"):
        op.add_column("oidc_flows", sa.Column(column, sa.Uuid()))
    op.add_column("oidc_flows", sa.Column("subject", sa.Text()))
    # Foreign keys were named after the table that they refer to as well, some of them.
    op.execute(
        """
        DO $$ DECLARE each record; BEGIN
            FOR each IN
                SELECT conrelid::regclass AS held_by, conname,
                       left(conname, -1 - length(confrelid::regclass::text)) AS shorter
                  FROM pg_constraint
                 WHERE contype = 'f' AND connamespace = current_schema()::regnamespace
                   AND conname LIKE 'fk\\_%\\_' || confrelid::regclass::text
            LOOP
                EXECUTE format('ALTER TABLE %s RENAME CONSTRAINT %I TO %I',
                               each.held_by, each.conname, each.shorter);
            END LOOP;
        END $$
        """
    )
    op.execute(schema_functions())


def downgrade() -> None:
    """Leave the additions, which version 0.3.0 does not look at, and the functions."""
