"""What must not be written, as SQL, with the rule that refuses it. Statements end at semicolons.

``:account`` has 100 cents, of which ``:job`` holds 60; so has ``:other_job``'s account.
"""

from __future__ import annotations

import pytest

# ruff: noqa: S608  (constants)

ENTRY = "INSERT INTO ledger_entries (account_id, kind, balance_delta_cents, hold_delta_cents"
CHARGE = f"{ENTRY}, job_id, stage, reason) VALUES (:account, 'charge', {{0}}, {{0}}, :job, "
RELEASE = f"{ENTRY}, job_id, reason) VALUES (:account, 'release', 0, "
PURCHASE = (
    "INSERT INTO purchases (id, account_id, receipt_number, amount_cents, provider, reference)"
    " VALUES (:fresh, :account, 99, 500, 'x', 'y')"
)
REFUND = (
    "INSERT INTO refunds (id, provider, reference, payment_reference, account_id, amount_cents)"
    " VALUES (:fresh, 'x', 'r', 'y', :account, 30)"
)
BY_REFUND = f"{ENTRY}, refund_id, reason) VALUES (:account, 'adjustment', "
BY_PURCHASE = f"{ENTRY}, purchase_id, reason) VALUES (:account, "

FORBIDDEN = [
    pytest.param(
        f"{ENTRY}, reason) VALUES (:account, 'adjustment', -41, 0, 'x')",
        "available_within_limit",
        id="an adjustment below what is promised to jobs",
    ),
    pytest.param(
        f"{RELEASE}-60, :job, 'x'); {ENTRY}, reason) VALUES (:account, 'adjustment', -101, 0, 'x')",
        "available_within_limit",
        id="a negative balance while nothing is held",
    ),
    pytest.param(
        f"{ENTRY}, job_id, reason) VALUES (:account, 'hold', 0, 41, :job, 'x')",
        "available_within_limit",
        id="a hold that is not covered",
    ),
    pytest.param(
        "UPDATE accounts SET pay_as_you_go = true, credit_limit_cents = 50;"
        f"{ENTRY}, reason) VALUES (:account, 'adjustment', -91, 0, 'x')",
        "available_within_limit",
        id="debts beyond the credit limit",
    ),
    pytest.param(
        CHARGE.format(-61) + "'vision', 'x')",
        "held_not_negative",
        id="a charge beyond the job's hold",
    ),
    pytest.param(
        f"{RELEASE}-60, :job, 'x');" + CHARGE.format(-40) + "'vision', 'x')",
        "held_not_negative",
        id="a charge without a hold",
    ),
    pytest.param(
        f"{ENTRY}, job_id, stage, reason) VALUES (:account, 'charge', -40, 0, :job, 'vision', 'x')",
        "amounts_fit_kind",
        id="a charge that is not taken out of the hold",
    ),
    pytest.param(
        CHARGE.format(-40) + "'vision', 'x')",
        "stages_are_charged",
        id="a charge for a stage that is not completed",
    ),
    pytest.param(
        CHARGE.format(-39) + "'vision', 'x'); UPDATE stages SET status = 'completed'"
        " WHERE job_id = :job AND stage = 'vision'",
        "stages_are_charged",
        id="a charge of another amount than was quoted",
    ),
    pytest.param(
        "UPDATE stages SET status = 'completed' WHERE job_id = :job AND stage = 'vision'",
        "stages_are_charged",
        id="a completed stage without its charge",
    ),
    pytest.param(
        CHARGE.format(-40) + "'vision', 'x'); UPDATE stages SET status = 'failed',"
        " error_code = 'X' WHERE job_id = :job AND stage = 'vision'",
        "stages_are_charged",
        id="a charge for a failed stage",
    ),
    pytest.param(
        CHARGE.format(-1) + "'upload', 'x')", "stage_is_known", id="a charge for no stage at all"
    ),
    pytest.param(
        "UPDATE jobs SET quote_cents = '{}' WHERE id = :job",
        "quote_is_fixed",
        id="another price than was promised",
    ),
    pytest.param(
        f"{RELEASE}-61, :job, 'x')", "held_not_negative", id="a release of more than was held"
    ),
    pytest.param(
        f"{RELEASE}-10, :other_job, 'x')", "another account", id="a release of another's hold"
    ),
    pytest.param(f"{RELEASE}10, :job, 'x')", "amounts_fit_kind", id="a release that holds more"),
    pytest.param(
        "UPDATE jobs SET state = 'completed', completed_at = now() WHERE id = :job",
        "ended_holds_nothing",
        id="a job that ends without its release",
    ),
    pytest.param(
        f"{RELEASE}-60, :job, 'x'); UPDATE jobs SET state = 'cancelled', completed_at = now()"
        f" WHERE id = :job; {ENTRY}, job_id, reason) VALUES (:account, 'hold', 0, 1, :job, 'x')",
        "ended_holds_nothing",
        id="a hold for a job that has ended",
    ),
    pytest.param(
        f"{ENTRY}, reason) VALUES (:account, 'grant', -5, 0, 'x')",
        "amounts_fit_kind",
        id="a grant that takes",
    ),
    pytest.param(
        f"{ENTRY}, reason) VALUES (:account, 'grant', 5, 0, '')",
        "reason_is_given",
        id="an entry without a reason",
    ),
    pytest.param(
        f"{ENTRY}, reason) VALUES (:account, 'purchase', 500, 0, 'x')",
        "purchase_has_receipt",
        id="a purchase without a receipt",
    ),
    pytest.param(PURCHASE, "purchases_are_credited", id="a receipt that is not credited"),
    pytest.param(
        f"{PURCHASE}; {BY_PURCHASE}'purchase', 501, 0, :fresh, 'x')",
        "fk_ledger_entries_purchase",
        id="a purchase of another amount than its receipt's",
    ),
    pytest.param(
        f"{PURCHASE}; {BY_PURCHASE}'purchase', 500, 0, :fresh, 'x');"
        f"{BY_PURCHASE}'purchase', 500, 0, :fresh, 'x')",
        "uq_ledger_entries_purchase",
        id="a purchase credited twice",
    ),
    pytest.param(
        f"{REFUND}; {BY_REFUND}-20, 0, :fresh, 'x'); {BY_REFUND}-11, 0, :fresh, 'x')",
        "taken_within_amount",
        id="a refund taken twice",
    ),
    pytest.param(
        f"{REFUND}; {BY_REFUND}20, 0, :fresh, 'x')",
        "taken_within_amount",
        id="a refund that gives",
    ),
    pytest.param("UPDATE ledger_entries SET reason = 'y'", "append-only", id="rewriting history"),
    pytest.param("DELETE FROM ledger_entries", "append-only", id="deleting history"),
    pytest.param("TRUNCATE ledger_entries", "append-only", id="emptying the ledger"),
    pytest.param(
        "TRUNCATE accounts CASCADE", "append-only", id="emptying the ledger by the back door"
    ),
    pytest.param("DELETE FROM jobs WHERE id = :job", "fk_ledger_entries_job_id", id="losing a job"),
    pytest.param(
        "UPDATE accounts SET balance_cents = 9999 WHERE id = :account",
        "follow ledger_entries only",
        id="a balance without an entry",
    ),
    pytest.param(
        "UPDATE accounts SET held_cents = 0 WHERE id = :account",
        "follow ledger_entries only",
        id="an account's hold gone without an entry",
    ),
    pytest.param(
        "UPDATE jobs SET held_cents = 0 WHERE id = :job",
        "follow ledger_entries only",
        id="a job's hold gone without an entry",
    ),
    pytest.param(
        "UPDATE jobs SET charged_cents = 5 WHERE id = :job",
        "follow ledger_entries only",
        id="a job's charge without an entry",
    ),
    pytest.param(
        "INSERT INTO accounts (id, name, balance_cents) VALUES (:fresh, 'rich', 5)",
        "follow ledger_entries only",
        id="an account that begins with money",
    ),
]

AFTERWARDS = [
    pytest.param(
        CHARGE.format(-20) + "'vision', 'x')", "uq_ledger_entries_charge", id="a second charge"
    ),
    pytest.param(
        "UPDATE stages SET status = 'failed', error_code = 'X'"
        " WHERE job_id = :job AND stage = 'vision'",
        "stages_are_charged",
        id="failing a stage that was charged",
    ),
    pytest.param(
        "UPDATE stages SET waived_cents = 1 WHERE job_id = :job AND stage = 'vision'",
        "stages_are_charged",
        id="waiving what was charged",
    ),
    pytest.param(
        "DELETE FROM stages WHERE job_id = :job AND stage = 'vision'",
        "stages_are_charged",
        id="removing a stage that was charged",
    ),
]
