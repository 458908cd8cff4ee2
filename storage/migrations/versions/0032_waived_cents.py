"""What is not charged of a stage's price, where 0031 came without it.

Revision ID: 0032
Revises: 0031
"""

from __future__ import annotations

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Added by 0031 too, whose functions name it.
    name, check = "ck_stages_waived_not_negative", "CHECK (waived_cents >= 0)"
    column = "waived_cents bigint NOT NULL DEFAULT 0"
    op.execute(f"ALTER TABLE stages ADD COLUMN IF NOT EXISTS {column}")
    op.execute(f"ALTER TABLE stages DROP CONSTRAINT IF EXISTS {name}")
    op.execute(f"ALTER TABLE stages ADD CONSTRAINT {name} {check}")
