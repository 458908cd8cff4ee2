"""The usage export: a line a job, safe in a spreadsheet, adding up to the ledger."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serve_app.cli.main import app
from serve_app.cli.money import usage_csv
from serve_app.cli.output import UsageError
from serve_app.exports.timeline import harmless
from storage import ledger
from storage.ledger import Month
from tests.contract.calling import Caller
from tests.contract.runner_side import FOOTAGE, RunnerSide
from tests.tables import every

MONTHS = [
    pytest.param("2026-11", "2026-11-01", "2026-12-01", id="a month"),
    pytest.param("2026-12", "2026-12-01", "2027-01-01", id="December"),
    pytest.param("2028-02", "2028-02-01", "2028-03-01", id="a leap year's February"),
]


@every(("text", "start", "end"), MONTHS)
def test_a_month_lasts_from_its_first_moment_to_the_next_ones(
    text: str, start: str, end: str
) -> None:
    month = Month.parse(text)
    assert str(month) == text
    assert month.start == datetime.fromisoformat(f"{start}T00:00:00+00:00")
    assert month.end == datetime.fromisoformat(f"{end}T00:00:00+00:00")


@every("text", ["2026-13", "2026", "26-11", "2026-11-01", "now", ""])
def test_other_text_is_no_month(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Month.parse(text)


CELLS = [
    pytest.param("clip.mp4", "clip.mp4", id="a plain name"),
    pytest.param("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0", id="a formula"),
    pytest.param("+1", "'+1", id="a plus"),
    pytest.param("-1", "'-1", id="a minus"),
    pytest.param("@SUM(A1)", "'@SUM(A1)", id="an at sign"),
    pytest.param("\t=1", "'\t=1", id="a tab before it"),
    pytest.param(" =1", "' =1", id="a space before it"),
    pytest.param("＝1", "'＝1", id="a full-width sign"),
    pytest.param("a=1", "a=1", id="a sign inside"),
    pytest.param('a";=1', "a\";'=1", id="a formula behind another separator"),
    pytest.param("a; -1; +b", "a; '-1; '+b", id="several of them"),
    pytest.param("a;b", "a;b", id="a separator alone"),
]


@every(("cell", "expected"), CELLS)
def test_no_cell_is_a_formula(cell: str, expected: str) -> None:
    assert harmless(cell) == expected


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def ledger_charges(caller: Caller, month: Month) -> int:
    [(cents,)] = caller.api.sql(
        "SELECT coalesce(-sum(balance_delta_cents), 0) FROM ledger_entries WHERE kind = 'charge'"
        " AND account_id = :id AND to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM') = :month",
        id=caller.customer.account_id,
        month=str(month),
    )
    return int(cents)


def export(caller: Caller, month: Month) -> list[dict[str, str]]:
    account_id = caller.customer.account_id
    lines = caller.api.transact(lambda c: ledger.list_job_usage(c, account_id, month))
    return read_csv(usage_csv(lines))


def test_lines_add_up_to_the_ledger_and_to_the_quota(caller: Caller, runner: RunnerSide) -> None:
    names = ["=danger.mp4", 'with "quotes", commas.mp4', "line\u2028break.mp4"]
    for number, name in enumerate(names, 1):
        media = replace(FOOTAGE, duration_seconds=600.0 * number)
        runner.complete(caller, media, fileName=name)
    failed = runner.queued(caller, fileName="half.mp4")
    lease = runner.lease(failed)
    runner.ingest(lease)
    runner.publish_scenes(lease)
    runner.fail(lease, "transcript", "TRANSCRIPT_FAILED")
    unpaid = runner.lease(runner.queued(caller, fileName="failed.mp4"))
    runner.fail(unpaid, "ingest", "FETCH_FAILED")
    month = Month.of(datetime.now(UTC))
    lines = export(caller, month)
    assert [line["file_name"] for line in lines] == [f"'{names[0]}", *names[1:], "half.mp4"]
    assert [line["billable_seconds"] for line in lines] == ["600", "1200", "1800", "66"]
    assert lines[0]["vision_cents"] == "20"
    assert lines[3]["job_id"] == failed
    assert (lines[3]["transcript_cents"], lines[3]["total_cents"]) == ("0", "2")
    for line in lines:
        parts = [line[f"{stage}_cents"] for stage in ("ingest", "vision", "transcript")]
        assert sum(map(int, parts)) == int(line["total_cents"])
    assert sum(int(line["total_cents"]) for line in lines) == ledger_charges(caller, month)
    quota = caller.get("/quota").json()["data"]["api"]
    assert sum(int(line["billable_seconds"]) for line in lines) == quota["monthUsageSeconds"]


def test_a_job_that_runs_past_the_months_end_is_counted_once_and_charged_where_it_was(
    caller: Caller, runner: RunnerSide
) -> None:
    """Quoted and half charged in the month before; the rest is charged in this one."""
    job_id = runner.queued(caller)
    lease = runner.lease(job_id)
    runner.ingest(lease)
    runner.publish_scenes(lease)
    now = Month.of(datetime.now(UTC))
    caller.api.sql("ALTER TABLE ledger_entries DISABLE TRIGGER ledger_is_append_only")
    last_month = {"at": f"{now}-01T00:00:00Z", "id": job_id}
    for statement in (
        "UPDATE jobs SET quoted_at = CAST(:at AS timestamptz) - interval '1 s' WHERE id = :id",
        "UPDATE ledger_entries SET created_at = CAST(:at AS timestamptz) - interval '1 s'"
        " WHERE job_id = :id",
    ):
        caller.api.sql(statement, **last_month)
    caller.api.sql("ALTER TABLE ledger_entries ENABLE TRIGGER ledger_is_append_only")
    runner.publish_transcripts(lease)
    earlier = Month.of(datetime.fromtimestamp(now.start.timestamp() - 1, UTC))
    [before], [after] = export(caller, earlier), export(caller, now)
    assert (before["billable_seconds"], before["total_cents"]) == ("66", "2")
    assert (after["billable_seconds"], after["total_cents"]) == ("0", "1")
    for month, line in ((earlier, before), (now, after)):
        assert int(line["total_cents"]) == ledger_charges(caller, month)


class Operator:
    """The operator at the command line, beside the running service's database."""

    def __init__(self, caller: Caller, folder: Path) -> None:
        settings = caller.api.settings
        self.account = str(caller.customer.account_id)
        self._environment = {
            "VAS_DATABASE_URL": settings.database_url,
            "VAS_SECRET_KEY": settings.secret_key.get_secret_value(),
            "VAS_DATA_DIR": str(folder),
        }

    def run(self, *words: str, given: str | None = None) -> str:
        result = CliRunner().invoke(app, list(words), env=self._environment, input=given)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    def ask(self, *words: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.run(*words, "--json"))
        return found


@pytest.fixture
def operator(caller: Caller, tmp_path: Path) -> Operator:
    return Operator(caller, tmp_path)


def test_the_command_prints_what_the_ledger_holds(
    caller: Caller, runner: RunnerSide, operator: Operator
) -> None:
    job_id = runner.complete(caller)
    [line] = read_csv(operator.run("usage", operator.account, "--csv"))
    assert (line["job_id"], line["total_cents"]) == (job_id, "3")
    assert job_id in operator.run("usage", operator.account)
    entries = operator.ask("credits", "ledger", operator.account)["entries"]
    assert isinstance(entries, list)
    kinds = [entry["kind"] for entry in entries]
    assert kinds == ["charge", "charge", "hold", "hold", "grant"]
    assert (entries[0]["balanceCents"], entries[0]["heldCents"]) == (997, 0)
    assert operator.ask("credits", "audit") == {"discrepancies": 0}


def test_an_operator_sells_corrects_and_refunds(caller: Caller, operator: Operator) -> None:
    account, invoice = operator.account, f"INV {operator.account}"
    bought = operator.ask("credits", "purchase", account, "500", "--reference", invoice)
    assert (bought["balanceCents"], isinstance(bought["receiptNumber"], int)) == (1500, True)
    adjusted = operator.ask("credits", "adjust", account, "-100", "--reason", "wrong invoice")
    assert adjusted["balanceCents"] == 1400
    refunded = operator.ask("credits", "refund", invoice, "2000", "--refund", f"R {account}")
    assert (refunded["balanceCents"], refunded["outstandingRefundCents"]) == (0, 600)
    granted = operator.ask("credits", "grant", account, "700", "--reason", "goodwill")
    assert (granted["balanceCents"], granted["outstandingRefundCents"]) == (100, 0)
    reasons = operator.run("credits", "ledger", account)
    assert "wrong invoice" in reasons
    assert "goodwill" in reasons


def test_an_operator_sets_an_accounts_own_limits(caller: Caller, operator: Operator) -> None:
    limited = operator.ask(
        "accounts", "limit", operator.account, "--active-jobs", "1", "--pay-as-you-go",
        "--credit-limit", "50",
    )  # fmt: skip
    assert (limited["maxActiveJobs"], limited["creditLimitCents"]) == (1, 50)
    assert caller.post("/jobs", {"fileName": "a.mp4"}).status_code == 201
    answer = caller.post("/jobs", {"fileName": "a.mp4"})
    assert (answer.status_code, answer.json()["maxActiveJobs"]) == (429, 1)
    assert caller.get("/quota").json()["data"]["api"]["payAsYouGo"] is True
    reset = operator.ask("accounts", "limit", operator.account, "--active-jobs", "0")
    assert reset["maxActiveJobs"] is None


def test_a_providers_secret_is_stored_encrypted_and_not_shown(
    caller: Caller, operator: Operator
) -> None:
    shown = operator.run("payments", "set-secret", given="whsec_from_the_operator\n")
    assert "whsec_from_the_operator" not in shown
    [(sealed,)] = caller.api.sql("SELECT sealed FROM payment_credentials")
    assert b"whsec" not in bytes(sealed)
    assert caller.api.context.encrypter.decrypt(bytes(sealed)) == "whsec_from_the_operator"


@every(
    ("given", "explained"),
    [
        ("", "The secret is empty"),
        ("  \n", "The secret is empty"),
        ("sk_live_51HxTheKeyOfTheApiItself", "a key of Stripe's API"),
        ("whsec_short", "begins with whsec_"),
        ("whsec_with a blank in the middle", "begins with whsec_"),
        ("https://dashboard.stripe.com/webhooks", "begins with whsec_"),
        (f"whsec_{'a' * 300}", "begins with whsec_"),
    ],
)
def test_what_is_no_secret_of_the_provider_is_refused_unseen(
    caller: Caller, operator: Operator, given: str, explained: str
) -> None:
    before = caller.api.sql("SELECT sealed FROM payment_credentials")
    with pytest.raises(UsageError, match=explained) as refused:
        operator.run("payments", "set-secret", given=given)
    assert not given.strip() or given.strip() not in str(refused.value)
    assert caller.api.sql("SELECT sealed FROM payment_credentials") == before
