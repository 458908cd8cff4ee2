"""Purchases and receipts, and what makes wrong money impossible in the database itself

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


APPLY_WITH_REFUNDS = """
CREATE OR REPLACE FUNCTION ledger_apply() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The running totals move with the entry, in one statement, and the CHECKs on
    -- accounts, jobs and refunds refuse an entry that would overdraw any of them.
    UPDATE accounts
       SET balance_cents = balance_cents + NEW.balance_delta_cents,
           held_cents = held_cents + NEW.hold_delta_cents
     WHERE id = NEW.account_id;
    IF NEW.job_id IS NOT NULL THEN
        UPDATE jobs
           SET held_cents = held_cents + NEW.hold_delta_cents,
               charged_cents = charged_cents - NEW.balance_delta_cents
         WHERE id = NEW.job_id AND account_id = NEW.account_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'ledger entry of another account''s job';
        END IF;
    END IF;
    IF NEW.refund_id IS NOT NULL THEN
        UPDATE refunds
           SET taken_cents = taken_cents - NEW.balance_delta_cents
         WHERE id = NEW.refund_id AND account_id = NEW.account_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'ledger entry of another account''s refund';
        END IF;
    END IF;
    RETURN NEW;
END $$;
"""

APPLY_AS_BEFORE = """
CREATE OR REPLACE FUNCTION ledger_apply() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE accounts
       SET balance_cents = balance_cents + NEW.balance_delta_cents,
           held_cents = held_cents + NEW.hold_delta_cents
     WHERE id = NEW.account_id;
    IF NEW.job_id IS NOT NULL THEN
        UPDATE jobs
           SET held_cents = held_cents + NEW.hold_delta_cents,
               charged_cents = charged_cents - NEW.balance_delta_cents
         WHERE id = NEW.job_id AND account_id = NEW.account_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'ledger entry of another account''s job';
        END IF;
    END IF;
    RETURN NEW;
END $$;
"""

# A total that anything but a ledger entry could change would be no total.
TOTALS_FOLLOW_THE_LEDGER = """
CREATE FUNCTION totals_follow_ledger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'running totals of % follow ledger_entries only', TG_TABLE_NAME
        USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER totals_follow_ledger BEFORE UPDATE ON accounts FOR EACH ROW
    WHEN (pg_trigger_depth() = 0 AND (NEW.balance_cents <> OLD.balance_cents
                                      OR NEW.held_cents <> OLD.held_cents))
    EXECUTE FUNCTION totals_follow_ledger();
CREATE TRIGGER totals_start_at_zero BEFORE INSERT ON accounts FOR EACH ROW
    WHEN (NEW.balance_cents <> 0 OR NEW.held_cents <> 0)
    EXECUTE FUNCTION totals_follow_ledger();
CREATE TRIGGER totals_follow_ledger BEFORE UPDATE ON jobs FOR EACH ROW
    WHEN (pg_trigger_depth() = 0 AND (NEW.charged_cents <> OLD.charged_cents
                                      OR NEW.held_cents <> OLD.held_cents))
    EXECUTE FUNCTION totals_follow_ledger();
CREATE TRIGGER totals_start_at_zero BEFORE INSERT ON jobs FOR EACH ROW
    WHEN (NEW.charged_cents <> 0 OR NEW.held_cents <> 0)
    EXECUTE FUNCTION totals_follow_ledger();
CREATE TRIGGER totals_follow_ledger BEFORE UPDATE ON refunds FOR EACH ROW
    WHEN (pg_trigger_depth() = 0 AND NEW.taken_cents <> OLD.taken_cents)
    EXECUTE FUNCTION totals_follow_ledger();
CREATE TRIGGER totals_start_at_zero BEFORE INSERT ON refunds FOR EACH ROW
    WHEN (NEW.taken_cents <> 0)
    EXECUTE FUNCTION totals_follow_ledger();
"""

# Completed stages are charged their price, all others nothing: looked at when the
# transaction commits, because result, charge and status are written one after the
# other. The share lock makes a rival change of the same stage wait for our commit.
STAGES_ARE_CHARGED = """
CREATE FUNCTION stages_are_charged() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    of_job uuid := CASE WHEN TG_OP = 'DELETE' THEN OLD.job_id ELSE NEW.job_id END;
    of_stage text := CASE WHEN TG_OP = 'DELETE' THEN OLD.stage ELSE NEW.stage END;
    due bigint;
    charged bigint;
BEGIN
    SELECT CASE WHEN s.status = 'completed'
                THEN coalesce((j.quote_cents ->> s.stage)::bigint, 0) ELSE 0 END
      INTO due
      FROM stages s JOIN jobs j ON j.id = s.job_id
     WHERE s.job_id = of_job AND s.stage = of_stage
       FOR SHARE OF s;
    SELECT coalesce(-sum(balance_delta_cents), 0)
      INTO charged
      FROM ledger_entries
     WHERE job_id = of_job AND stage = of_stage AND kind = 'charge';
    IF charged <> coalesce(due, 0) THEN
        RAISE EXCEPTION 'stages_are_charged: % of job % is due % and charged %',
            of_stage, of_job, coalesce(due, 0), charged
            USING ERRCODE = 'check_violation', CONSTRAINT = 'stages_are_charged';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER charge_fits_stage AFTER INSERT ON ledger_entries
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.kind = 'charge') EXECUTE FUNCTION stages_are_charged();
CREATE CONSTRAINT TRIGGER new_stage_fits_charge AFTER INSERT ON stages
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.status = 'completed') EXECUTE FUNCTION stages_are_charged();
CREATE CONSTRAINT TRIGGER stage_fits_charge AFTER UPDATE ON stages
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.status <> OLD.status AND 'completed' IN (NEW.status, OLD.status))
    EXECUTE FUNCTION stages_are_charged();
CREATE CONSTRAINT TRIGGER gone_stage_fits_charge AFTER DELETE ON stages
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.status = 'completed') EXECUTE FUNCTION stages_are_charged();

CREATE FUNCTION quote_is_fixed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'quote_is_fixed: the price of job % was promised', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'quote_is_fixed';
END $$;
CREATE TRIGGER quote_is_fixed BEFORE UPDATE ON jobs FOR EACH ROW
    WHEN (OLD.quote_cents IS NOT NULL AND NEW.quote_cents IS DISTINCT FROM OLD.quote_cents)
    EXECUTE FUNCTION quote_is_fixed();
"""

# Money that came in is in the ledger when the transaction that took it commits.
PURCHASES_ARE_CREDITED = """
CREATE FUNCTION purchases_are_credited() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM ledger_entries WHERE purchase_id = NEW.id) THEN
        RAISE EXCEPTION 'purchases_are_credited: purchase % has no ledger entry', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'purchases_are_credited';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER purchases_are_credited AFTER INSERT ON purchases
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION purchases_are_credited();

CREATE FUNCTION receipts_are_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'purchases are append-only';
END $$;
CREATE TRIGGER receipts_are_final BEFORE UPDATE OR DELETE OR TRUNCATE ON purchases
    FOR EACH STATEMENT EXECUTE FUNCTION receipts_are_final();
"""

LIMIT = "-(CASE WHEN pay_as_you_go THEN credit_limit_cents ELSE 0 END)"
STAGE_NAMES = "stage IN ('ingest', 'vision', 'transcript')"


def _time(name: str, *, nullable: bool = False) -> sa.Column[object]:
    default = None if nullable else sa.text("now()")
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, server_default=default)


def upgrade() -> None:
    _create_purchases()
    _create_refunds()
    _create_provider_tables()
    _extend_ledger()
    _tighten_totals()
    op.execute(APPLY_WITH_REFUNDS)
    op.execute(TOTALS_FOLLOW_THE_LEDGER)
    op.execute(STAGES_ARE_CHARGED)
    op.execute(PURCHASES_ARE_CREDITED)


def _create_purchases() -> None:
    op.create_table(
        "purchases",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("receipt_number", sa.BigInteger(), nullable=False),
        sa.Column("amount_cents", sa.BigInteger(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        _time("created_at"),
        sa.CheckConstraint("amount_cents > 0", name=op.f("ck_purchases_amount_is_positive")),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_purchases_account_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_purchases")),
        sa.UniqueConstraint("receipt_number", name=op.f("uq_purchases_receipt_number")),
        sa.UniqueConstraint("provider", "reference", name="uq_purchases_payment"),
        sa.UniqueConstraint("id", "account_id", "amount_cents", name="uq_purchases_entry"),
    )
    op.create_index("ix_purchases_account", "purchases", ["account_id", "receipt_number"])


def _create_refunds() -> None:
    op.create_table(
        "refunds",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("payment_reference", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=True),
        sa.Column("amount_cents", sa.BigInteger(), nullable=False),
        sa.Column("taken_cents", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        _time("created_at"),
        _time("reversed_at", nullable=True),
        sa.CheckConstraint(
            "taken_cents BETWEEN 0 AND amount_cents", name=op.f("ck_refunds_taken_within_amount")
        ),
        sa.CheckConstraint(
            "reversed_at IS NULL OR taken_cents = 0", name=op.f("ck_refunds_reversed_takes_nothing")
        ),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_refunds_account_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_refunds")),
        sa.UniqueConstraint("provider", "reference", name="uq_refunds_refund"),
    )
    op.create_index("ix_refunds_payment", "refunds", ["provider", "payment_reference"])
    op.create_index(
        "ix_refunds_outstanding",
        "refunds",
        ["account_id"],
        postgresql_where=sa.text("reversed_at IS NULL AND taken_cents < amount_cents"),
    )


def _create_provider_tables() -> None:
    op.create_table(
        "payment_events",
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        _time("received_at"),
        sa.PrimaryKeyConstraint("provider", "event_id", name=op.f("pk_payment_events")),
    )
    op.create_table(
        "payment_credentials",
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        _time("updated_at"),
        sa.PrimaryKeyConstraint("provider", name=op.f("pk_payment_credentials")),
    )


def _extend_ledger() -> None:
    op.add_column("ledger_entries", sa.Column("purchase_id", sa.Uuid(), nullable=True))
    op.add_column("ledger_entries", sa.Column("refund_id", sa.Uuid(), nullable=True))
    op.create_foreign_key(
        "fk_ledger_entries_purchase",
        "ledger_entries",
        "purchases",
        ["purchase_id", "account_id", "balance_delta_cents"],
        ["id", "account_id", "amount_cents"],
    )
    op.create_foreign_key(
        op.f("fk_ledger_entries_refund_id"), "ledger_entries", "refunds", ["refund_id"], ["id"]
    )
    for name, condition in LEDGER_CHECKS.items():
        op.create_check_constraint(op.f(f"ck_ledger_entries_{name}"), "ledger_entries", condition)
    op.create_index(
        "uq_ledger_entries_purchase",
        "ledger_entries",
        ["purchase_id"],
        unique=True,
        postgresql_where=sa.text("purchase_id IS NOT NULL"),
    )
    op.create_index(
        "ix_ledger_entries_job",
        "ledger_entries",
        ["job_id"],
        postgresql_where=sa.text("job_id IS NOT NULL"),
    )


LEDGER_CHECKS = {
    "purchase_has_receipt": "(kind = 'purchase') = (purchase_id IS NOT NULL)",
    "refund_is_adjustment": "refund_id IS NULL OR kind = 'adjustment'",
    "stage_is_known": STAGE_NAMES,
    "reason_is_given": "reason <> ''",
}


def _tighten_totals() -> None:
    op.drop_constraint(op.f("ck_accounts_holds_are_covered"), "accounts", type_="check")
    op.create_check_constraint(
        op.f("ck_accounts_available_within_limit"),
        "accounts",
        f"balance_cents - held_cents >= {LIMIT}",
    )
    op.create_check_constraint(
        op.f("ck_accounts_max_active_jobs_positive"), "accounts", "max_active_jobs > 0"
    )
    op.create_check_constraint(op.f("ck_jobs_charged_not_negative"), "jobs", "charged_cents >= 0")


def downgrade() -> None:
    for table in ("accounts", "jobs", "refunds"):
        op.execute(f"DROP TRIGGER totals_follow_ledger ON {table}")
        op.execute(f"DROP TRIGGER totals_start_at_zero ON {table}")
    op.execute(
        "DROP FUNCTION totals_follow_ledger(); DROP FUNCTION stages_are_charged() CASCADE;"
        "DROP FUNCTION quote_is_fixed() CASCADE; DROP FUNCTION purchases_are_credited() CASCADE;"
        "DROP FUNCTION receipts_are_final() CASCADE;"
    )
    op.execute(APPLY_AS_BEFORE)
    op.drop_constraint(op.f("ck_jobs_charged_not_negative"), "jobs", type_="check")
    op.drop_constraint(op.f("ck_accounts_max_active_jobs_positive"), "accounts", type_="check")
    op.drop_constraint(op.f("ck_accounts_available_within_limit"), "accounts", type_="check")
    op.create_check_constraint(
        op.f("ck_accounts_holds_are_covered"),
        "accounts",
        f"held_cents = 0 OR balance_cents - held_cents >= {LIMIT}",
    )
    op.drop_index("ix_ledger_entries_job", table_name="ledger_entries")
    for name in LEDGER_CHECKS:
        op.drop_constraint(op.f(f"ck_ledger_entries_{name}"), "ledger_entries", type_="check")
    op.drop_column("ledger_entries", "refund_id")
    op.drop_column("ledger_entries", "purchase_id")
    for table in ("payment_credentials", "payment_events", "refunds", "purchases"):
        op.drop_table(table)
