"""People in an account: users, invitations, whose a session is; keys with who made them and caps.

Revision ID: 0025
Revises: 0024
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

ROLES = "role IN ('owner', 'editor', 'viewer', 'biller')"


def _time(name: str, *, nullable: bool = True, now: bool = False) -> sa.Column[object]:
    default = sa.func.now() if now else None
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("issuer", sa.Text()),
        sa.Column("subject", sa.Text()),
        _time("created_at", nullable=False, now=True),
        _time("removed_at"),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_users_account_id_accounts"
        ),
        sa.CheckConstraint(ROLES, name=op.f("ck_users_role")),
        sa.CheckConstraint(
            "(issuer IS NULL) = (subject IS NULL)", name=op.f("ck_users_subject_has_issuer")
        ),
    )
    present = sa.text("removed_at IS NULL")
    op.create_index(
        "uq_users_email", "users", ["account_id", "email"], unique=True, postgresql_where=present
    )
    op.create_index(
        "uq_users_subject",
        "users",
        ["issuer", "subject", "account_id"],
        unique=True,
        postgresql_where=present,
    )
    op.create_index("ix_users_email", "users", ["email"], postgresql_where=present)
    op.create_table(
        "invitations",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("token_sha256", sa.LargeBinary(), nullable=False),
        _time("created_at", nullable=False, now=True),
        _time("expires_at", nullable=False),
        _time("used_at"),
        sa.PrimaryKeyConstraint("id", name="pk_invitations"),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_invitations_account_id_accounts"
        ),
        sa.UniqueConstraint("token_sha256", name="uq_invitations_token_sha256"),
        sa.CheckConstraint(ROLES, name=op.f("ck_invitations_role")),
    )
    op.create_index("ix_invitations_account_id", "invitations", ["account_id"])
    op.create_table(
        "oidc_flows",
        sa.Column("state_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("browser_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("nonce", sa.Text(), nullable=False),
        sa.Column("code_verifier", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Uuid()),
        _time("expires_at", nullable=False),
        sa.PrimaryKeyConstraint("state_sha256", name="pk_oidc_flows"),
    )
    for table in ("sessions", "sign_in_links"):
        op.add_column(table, sa.Column("user_id", sa.Uuid()))
        name = f"fk_{table}_user_id_users"
        op.create_foreign_key(name, table, "users", ["user_id"], ["id"])
    random = sa.text("gen_random_uuid()")
    op.add_column("sessions", sa.Column("id", sa.Uuid(), server_default=random, nullable=False))
    op.add_column("sessions", sa.Column("address", sa.Text()))
    op.create_index("ix_sessions_user_id", "sessions", ["user_id"])
    op.add_column("api_keys", sa.Column("made_by", sa.Uuid()))
    op.create_foreign_key("fk_api_keys_made_by_users", "api_keys", "users", ["made_by"], ["id"])
    op.add_column("api_keys", sa.Column("first_id", sa.Uuid()))
    op.add_column("api_keys", sa.Column("max_monthly_cents", sa.BigInteger()))
    op.add_column("api_keys", sa.Column("max_active_jobs", sa.Integer()))
    for name in ("max_monthly_cents", "max_active_jobs"):
        op.create_check_constraint(op.f(f"ck_api_keys_{name}_positive"), "api_keys", f"{name} > 0")
    op.add_column("jobs", sa.Column("capped_key_id", sa.Uuid()))
    op.create_index(
        "ix_jobs_capped_key",
        "jobs",
        ["capped_key_id", "created_at"],
        postgresql_where=sa.text("capped_key_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_capped_key", "jobs")
    op.drop_column("jobs", "capped_key_id")
    for name in ("max_active_jobs", "max_monthly_cents", "first_id", "made_by"):
        op.drop_column("api_keys", name)
    # Whose a session is cannot be kept: older versions would take it for an owner's.
    op.execute("DELETE FROM sessions WHERE user_id IS NOT NULL")
    op.execute("DELETE FROM sign_in_links WHERE user_id IS NOT NULL")
    for name in ("address", "id", "user_id"):
        op.drop_column("sessions", name)
    op.drop_column("sign_in_links", "user_id")
    op.drop_table("oidc_flows")
    op.drop_table("invitations")
    op.drop_table("users")
