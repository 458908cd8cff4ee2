"""The ledger's and the purchases' tables, with the reason for each constraint and index.

Migration 0003 adds the triggers that these rules rest on: the running totals on
accounts, jobs and refunds move with ledger entries and with nothing else; a
stage is charged its price exactly if it is completed; a purchase is credited in
the transaction that records it.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)

from storage.tables import metadata
from storage.types import LedgerKind, StageName


def _time(name: str, *, nullable: bool = False) -> Column[object]:
    default = None if nullable else func.now()
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=default)


def _names(values: type[LedgerKind] | type[StageName]) -> str:
    return ", ".join(f"'{value}'" for value in values)


purchases = Table(
    "purchases",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    # Counted without gaps, as receipts are.
    Column("receipt_number", BigInteger, nullable=False, unique=True),
    Column("amount_cents", BigInteger, nullable=False),
    # Who took the money ('stripe', 'operator') and their reference of the payment.
    Column("provider", Text, nullable=False),
    Column("reference", Text, nullable=False),
    _time("created_at"),
    CheckConstraint("amount_cents > 0", name="amount_is_positive"),
    # A payment is credited once, however often and by whichever event it is reported.
    UniqueConstraint("provider", "reference", name="uq_purchases_payment"),
    # What a ledger entry of the purchase must agree with.
    UniqueConstraint("id", "account_id", "amount_cents", name="uq_purchases_entry"),
    Index("ix_purchases_account", "account_id", "receipt_number"),
)

refunds = Table(
    "refunds",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("provider", Text, nullable=False),
    Column("reference", Text, nullable=False),
    Column("payment_reference", Text, nullable=False),
    # Unknown where the refund is reported before its purchase.
    Column("account_id", ForeignKey("accounts.id")),
    Column("amount_cents", BigInteger, nullable=False),
    # How much of it the ledger has taken back; spent credits cannot be.
    Column("taken_cents", BigInteger, nullable=False, server_default=text("0")),
    _time("created_at"),
    _time("reversed_at", nullable=True),
    CheckConstraint("taken_cents BETWEEN 0 AND amount_cents", name="taken_within_amount"),
    CheckConstraint("reversed_at IS NULL OR taken_cents = 0", name="reversed_takes_nothing"),
    UniqueConstraint("provider", "reference", name="uq_refunds_refund"),
    Index("ix_refunds_payment", "provider", "payment_reference"),
    # What is still to be taken: looked at whenever an account gets credits back.
    Index(
        "ix_refunds_outstanding",
        "account_id",
        postgresql_where=text("reversed_at IS NULL AND taken_cents < amount_cents"),
    ),
)

payment_events = Table(
    "payment_events",
    metadata,
    # A provider sends an event until it is acknowledged, and sometimes once more.
    Column("provider", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    Column("event_type", Text, nullable=False),
    _time("received_at"),
    PrimaryKeyConstraint("provider", "event_id"),
)

payment_credentials = Table(
    "payment_credentials",
    metadata,
    Column("provider", Text, primary_key=True),
    # Encrypted with the service's key; a stolen dump forges no purchase.
    Column("sealed", LargeBinary, nullable=False),
    _time("updated_at"),
)

ledger_entries = Table(
    "ledger_entries",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("balance_delta_cents", BigInteger, nullable=False),
    Column("hold_delta_cents", BigInteger, nullable=False),
    Column("job_id", ForeignKey("jobs.id")),
    Column("stage", Text),
    Column("reason", Text, nullable=False),
    _time("created_at"),
    Column("purchase_id", Uuid),
    Column("refund_id", ForeignKey("refunds.id")),
    # The key whose cap of a month it counts for, of jobs' entries that of the job.
    Column("capped_key_id", Uuid),
    CheckConstraint(f"kind IN ({_names(LedgerKind)})", name="kind"),
    CheckConstraint(
        "CASE kind"
        " WHEN 'purchase' THEN balance_delta_cents > 0 AND hold_delta_cents = 0"
        " WHEN 'grant' THEN balance_delta_cents > 0 AND hold_delta_cents = 0"
        " WHEN 'adjustment' THEN balance_delta_cents <> 0 AND hold_delta_cents = 0"
        " WHEN 'hold' THEN balance_delta_cents = 0 AND hold_delta_cents > 0"
        " WHEN 'release' THEN balance_delta_cents = 0 AND hold_delta_cents < 0"
        # A charge is taken out of the job's hold, cent for cent: no charge without a hold.
        " WHEN 'charge' THEN balance_delta_cents < 0 AND hold_delta_cents = balance_delta_cents"
        " ELSE false END",
        name="amounts_fit_kind",
    ),
    CheckConstraint(
        "(kind IN ('hold', 'release', 'charge')) = (job_id IS NOT NULL)", name="job_fits_kind"
    ),
    CheckConstraint("(kind = 'charge') = (stage IS NOT NULL)", name="charge_names_stage"),
    CheckConstraint(f"stage IN ({_names(StageName)})", name="stage_is_known"),
    CheckConstraint("(kind = 'purchase') = (purchase_id IS NOT NULL)", name="purchase_has_receipt"),
    CheckConstraint("refund_id IS NULL OR kind = 'adjustment'", name="refund_is_adjustment"),
    CheckConstraint("reason <> ''", name="reason_is_given"),
    # An entry of a purchase credits its account with its amount, no other.
    ForeignKeyConstraint(
        ["purchase_id", "account_id", "balance_delta_cents"],
        ["purchases.id", "purchases.account_id", "purchases.amount_cents"],
        name="fk_ledger_entries_purchase",
    ),
    Index("ix_ledger_entries_account", "account_id", "id"),
    Index("ix_ledger_entries_job", "job_id", postgresql_where=text("job_id IS NOT NULL")),
    Index(
        "ix_ledger_entries_capped_key",
        "capped_key_id",
        "created_at",
        postgresql_where=text("capped_key_id IS NOT NULL"),
    ),
    # A stage is charged at most once, whatever the code does.
    Index(
        "uq_ledger_entries_charge",
        "job_id",
        "stage",
        unique=True,
        postgresql_where=text("kind = 'charge'"),
    ),
    Index(
        "uq_ledger_entries_purchase",
        "purchase_id",
        unique=True,
        postgresql_where=text("purchase_id IS NOT NULL"),
    ),
)
