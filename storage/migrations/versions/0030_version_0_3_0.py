"""The schema of version 0.3.0, from which upgrades start.

Revision ID: 0030
Revises:
"""

from __future__ import annotations

revision = "0030"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing: a new database gets the newest schema at once (``storage/migrations/env.py``)."""
