"""The audit log as a chain of hashes an account, with who acted and from where.

Revision ID: 0022
Revises: 0021
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

# An entry gets its place as its transaction commits: the lock of its account's chain is the last
# that the transaction takes, so that nobody waits for one that goes on, and none waits in a circle.
# storage.audit.entry_hash makes the same bytes of an entry.
CHAIN = """
CREATE FUNCTION audit_log_place(entry bigint, account uuid) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    former record;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('audit_log ' || account, 0));
    SELECT position, hash INTO former FROM audit_log
     WHERE account_id = account AND position IS NOT NULL ORDER BY position DESC LIMIT 1;
    UPDATE audit_log
       SET position = coalesce(former.position, 0) + 1,
           hash = encode(sha256(convert_to(json_build_array(
               coalesce(former.hash, ''),
               (coalesce(former.position, 0) + 1)::text,
               account_id::text,
               to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               actor_kind, actor_id::text, action, job_id::text, target, detail, request_id,
               address_sha256)::text, 'UTF8')), 'hex')
     WHERE id = entry;
END $$;
CREATE FUNCTION audit_log_chain() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM audit_log_place(NEW.id, NEW.account_id);
    RETURN NULL;
END $$;
SELECT audit_log_place(id, account_id) FROM (SELECT id, account_id FROM audit_log ORDER BY id) AS e;
CREATE CONSTRAINT TRIGGER audit_log_chain AFTER INSERT ON audit_log
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION audit_log_chain();

CREATE FUNCTION audit_log_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF OLD.hash IS NULL OR (
            NEW.address IS NULL AND NEW.address_salt IS NULL
            AND to_jsonb(NEW) - '{address,address_salt}'::text[]
                = to_jsonb(OLD) - '{address,address_salt}'::text[]
        ) THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'audit_log is append-only';
END $$;
CREATE TRIGGER audit_log_is_append_only BEFORE UPDATE OR DELETE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION audit_log_is_append_only();
CREATE TRIGGER audit_log_is_never_emptied BEFORE TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION audit_log_is_append_only();
"""
ADDED = ("target", "detail", "address", "address_salt", "address_sha256", "hash")


def upgrade() -> None:
    key = sa.Column("actor_kind", sa.Text(), server_default=sa.text("'key'"), nullable=False)
    op.add_column("audit_log", key)
    op.add_column("audit_log", sa.Column("actor_id", sa.Uuid()))
    op.add_column("audit_log", sa.Column("position", sa.BigInteger()))
    for name in ADDED:
        op.add_column("audit_log", sa.Column(name, sa.Text()))
    op.drop_index("ix_audit_log_account", "audit_log")
    op.create_index("uq_audit_log_place", "audit_log", ["account_id", "position"], unique=True)
    op.execute(CHAIN)


def downgrade() -> None:
    functions = "audit_log_chain, audit_log_place, audit_log_is_append_only"
    op.execute(f"DROP FUNCTION {functions} CASCADE")
    op.drop_index("uq_audit_log_place", "audit_log")
    op.create_index("ix_audit_log_account", "audit_log", ["account_id", "id"])
    for name in (*ADDED, "position", "actor_id", "actor_kind"):
        op.drop_column("audit_log", name)
