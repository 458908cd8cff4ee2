"""A sign-in by OIDC names what it is for: a user who connects, or an invitation that is accepted.

Revision ID: 0035
Revises: 0034
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in ("user_id", "invitation_id"):
        op.add_column("oidc_flows", sa.Column(column, sa.Uuid()))
    op.add_column("oidc_flows", sa.Column("subject", sa.Text()))


def downgrade() -> None:
    for column in ("user_id", "invitation_id", "subject"):
        op.drop_column("oidc_flows", column)
