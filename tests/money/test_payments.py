"""Stripe's notifications over a socket: only true ones count, each payment counts once."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from serve_app.settings import ProviderNotInstalledError, Settings, require_provider
from storage import ledger
from tests.contract.calling import Caller, ContractApi, refusal, shown
from tests.money import stripe_side
from tests.money.stripe_side import STRIPE_SECRET, Event, post, send, signed


@pytest.fixture
def account(caller: Caller) -> str:
    return str(caller.customer.account_id)


@pytest.fixture
def payment() -> str:
    """Stripe's name of a payment, of this test's own."""
    return f"pi_{uuid.uuid4().hex}"


def balance(caller: Caller) -> int:
    assert caller.api.transact(ledger.find_discrepancies) == []
    cents: int = shown(caller.get("/quota"))["api"]["balanceCents"]
    return cents


def test_a_paid_session_is_credited_with_a_receipt(
    caller: Caller, account: str, payment: str
) -> None:
    assert send(caller.api, stripe_side.session(account, 2500, payment)).status_code == 200
    assert balance(caller) == 3500
    [receipt] = caller.api.transact(
        lambda c: ledger.list_receipts(c, caller.customer.account_id, limit=5)
    )
    assert (receipt.amount_cents, receipt.provider) == (2500, "stripe")
    assert receipt.reference == payment


def test_an_account_is_found_by_name_and_by_client_reference_too(
    caller: Caller, account: str, payment: str
) -> None:
    [(name,)] = caller.api.sql("SELECT name FROM accounts WHERE id = :id", id=account)
    send(caller.api, stripe_side.session(name, 100, payment))
    by_reference = stripe_side.session(
        "", 200, f"{payment}_2", metadata={}, client_reference_id=account
    )
    send(caller.api, by_reference)
    assert balance(caller) == 1300


def test_the_same_event_and_other_events_of_the_same_payment_credit_nothing_more(
    caller: Caller, account: str, payment: str
) -> None:
    told = stripe_side.session(account, 2500, payment)
    for again in (told, told, stripe_side.intent(account, 2500, payment)):
        assert send(caller.api, again).status_code == 200
    assert balance(caller) == 3500


def test_deliveries_at_the_same_moment_credit_once(
    caller: Caller, account: str, payment: str
) -> None:
    told = stripe_side.session(account, 2500, payment)
    other = stripe_side.intent(account, 2500, payment)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda e: send(caller.api, e), [told, other] * 8))
    assert {answer.status_code for answer in answers} == {200}
    assert balance(caller) == 3500


def failed_refund(account: str, payment: str) -> list[Event]:
    told = stripe_side.refund(f"re_{payment}", 1000, payment)
    failed = stripe_side.refund(f"re_{payment}", 1000, payment, "failed")
    return [stripe_side.session(account, 2500, payment), told, failed]


def plain_refund(account: str, payment: str) -> list[Event]:
    told = stripe_side.refund(f"re_{payment}", 1000, payment)
    return [stripe_side.session(account, 2500, payment), told, told]


def won_dispute(account: str, payment: str) -> list[Event]:
    name = f"dp_{payment}"
    return [
        stripe_side.intent(account, 2500, payment),
        stripe_side.dispute("funds_withdrawn", name, 2500, payment),
        stripe_side.dispute("funds_reinstated", name, 2500, payment),
    ]


def lost_dispute_after_a_refund(account: str, payment: str) -> list[Event]:
    return [
        stripe_side.intent(account, 2500, payment),
        stripe_side.refund(f"re_{payment}", 500, payment),
        stripe_side.dispute("funds_withdrawn", f"dp_{payment}", 2000, payment),
    ]


STORIES = [
    pytest.param(plain_refund, 1000 + 1500, id="a refund, told twice"),
    pytest.param(failed_refund, 1000 + 2500, id="a refund that failed"),
    pytest.param(won_dispute, 1000 + 2500, id="a dispute that was won"),
    pytest.param(lost_dispute_after_a_refund, 1000, id="a refund and a lost dispute"),
]


@pytest.mark.parametrize(("story", "expected"), STORIES)
def test_in_whatever_order_events_come_the_end_is_the_same(
    api: ContractApi, story: Callable[[str, str], list[Event]], expected: int
) -> None:
    for order in itertools.permutations(range(3)):
        caller = api.caller()
        events = story(str(caller.customer.account_id), f"pi_{uuid.uuid4().hex}")
        for index in order:
            assert send(api, events[index]).status_code == 200
        assert balance(caller) == expected, order


FORGED = [
    pytest.param({"secret": "whsec_of_somebody_else"}, id="signed with another secret"),
    pytest.param({"age_seconds": 301}, id="signed too long ago"),
]


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_or_stale_notification_is_refused(
    caller: Caller, account: str, payment: str, how: dict[str, str]
) -> None:
    body = json.dumps(stripe_side.session(account, 2500, payment))
    refusal(post(caller.api, body.encode(), signed(body, **how)), 400, "INVALID_REQUEST")  # type: ignore[arg-type]
    assert balance(caller) == 1000


UNSIGNED = [
    pytest.param({}, id="no signature"),
    pytest.param({"Stripe-Signature": "t=1,v1="}, id="an empty signature"),
    pytest.param({"Stripe-Signature": "nonsense"}, id="nonsense"),
]


@pytest.mark.parametrize("headers", UNSIGNED)
def test_an_unsigned_notification_is_refused(
    caller: Caller, account: str, payment: str, headers: dict[str, str]
) -> None:
    body = json.dumps(stripe_side.session(account, 2500, payment)).encode()
    refusal(post(caller.api, body, headers), 400, "INVALID_REQUEST")
    assert balance(caller) == 1000


def test_the_signature_is_checked_over_the_bytes_as_they_came(
    caller: Caller, account: str, payment: str
) -> None:
    body = json.dumps(stripe_side.session(account, 2500, payment), indent=4)
    compact = json.dumps(json.loads(body)).encode()
    refusal(post(caller.api, compact, signed(body)), 400, "INVALID_REQUEST")
    assert post(caller.api, body.encode(), signed(body)).status_code == 200
    assert balance(caller) == 3500


UNREADABLE = [
    pytest.param("[]", id="no object"),
    pytest.param('{"id": "evt_1"}', id="no type"),
    pytest.param("{", id="no JSON"),
    pytest.param(
        '{"id": "evt_1", "type": "payment_intent.succeeded", "data": {"object": {"id": "pi_1",'
        ' "metadata": {"vas_account": "x"}, "amount_received": "5", "currency": "usd"}}}',
        id="an amount that is no number",
    ),
]


@pytest.mark.parametrize("body", UNREADABLE)
def test_a_signed_notification_that_cannot_be_read_is_refused(api: ContractApi, body: str) -> None:
    refusal(post(api, body.encode(), signed(body)), 400, "INVALID_REQUEST")


OTHER_BUSINESS = [
    pytest.param({"payment_status": "unpaid"}, id="not paid yet"),
    pytest.param({"mode": "subscription"}, id="a subscription"),
    pytest.param({"metadata": {}}, id="no account named"),
    pytest.param({"amount_total": 0}, id="nothing to pay"),
]


@pytest.mark.parametrize("changes", OTHER_BUSINESS)
def test_what_is_no_purchase_of_credits_is_acknowledged_and_ignored(
    caller: Caller, account: str, payment: str, changes: dict[str, object]
) -> None:
    told = stripe_side.session(account, 2500, payment, **changes)
    assert send(caller.api, told).status_code == 200
    assert send(caller.api, stripe_side.event("invoice.paid", {"id": "in_1"})).status_code == 200
    assert balance(caller) == 1000


def test_a_payment_that_cannot_be_credited_is_refused_until_it_can(
    api: ContractApi, payment: str
) -> None:
    """The provider repeats what was refused, and shows it: no money disappears in silence."""
    told = stripe_side.session("nobody", 2500, payment)
    body = refusal(send(api, told), 400, "INVALID_REQUEST")
    assert told["id"] in body["error"]
    caller = api.caller()
    api.sql("UPDATE accounts SET name = 'nobody' WHERE id = :id", id=caller.customer.account_id)
    assert send(api, told).status_code == 200
    assert balance(caller) == 3500


def test_another_currency_is_refused(caller: Caller, account: str, payment: str) -> None:
    told = stripe_side.session(account, 2500, payment, currency="eur")
    refusal(send(caller.api, told), 400, "INVALID_REQUEST")
    assert balance(caller) == 1000


def test_a_body_beyond_the_limit_is_refused(api: ContractApi) -> None:
    body = " " * (api.settings.max_body_bytes + 1)
    refusal(post(api, body.encode(), signed(body)), 400, "INVALID_REQUEST")


@pytest.mark.parametrize("provider", ["stripe", "paypal"])
def test_without_a_provider_in_the_settings_there_is_no_such_address(
    settings: Settings, provider: str
) -> None:
    with ContractApi(settings.model_copy(update={"payment_provider": None})) as off:
        answer = httpx.post(f"{off.root}/payments/{provider}/events", trust_env=False)
        refusal(answer, 404, "NOT_FOUND")


def test_other_providers_than_the_one_configured_are_unknown(api: ContractApi) -> None:
    answer = httpx.post(f"{api.root}/payments/paypal/events", trust_env=False)
    refusal(answer, 404, "NOT_FOUND")


def test_the_address_is_not_part_of_the_interface_document(api: ContractApi) -> None:
    assert "/payments" not in api.discover("/openapi.json").text


def test_the_stored_secret_is_used_and_is_encrypted_at_rest(settings: Settings) -> None:
    own = settings.model_copy(update={"stripe_webhook_secret": None})
    with ContractApi(own) as api:
        caller = api.caller()
        told = stripe_side.session(str(caller.customer.account_id), 2500, "pi_stored_secret")
        api.sql("DELETE FROM payment_credentials")
        refusal(send(api, told), 503, "SERVICE_UNAVAILABLE", retry_after="30")
        sealed = api.context.encrypter.encrypt(STRIPE_SECRET)
        api.transact(lambda c: ledger.store_credential(c, "stripe", sealed))
        assert send(api, told).status_code == 200
        [(stored,)] = api.sql("SELECT sealed FROM payment_credentials")
        assert STRIPE_SECRET.encode() not in bytes(stored)
        assert balance(caller) == 3500


def test_the_library_is_imported_only_when_the_provider_is_on() -> None:
    modules = "serve_app.credits.payments"
    program = f"import sys, {modules}; sys.exit('stripe' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stripe", None)
    settings = Settings(data_dir=tmp_path, payment_provider="stripe")
    with pytest.raises(ProviderNotInstalledError, match="extra 'payments'"):
        require_provider(settings)
