"""The billing page: what it shows, to whom, for how long."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser

import httpx
import pytest

from serve_app.dashboard.pages import STATIC_PATH, dollars, static_version
from serve_app.keys.routes import PORTAL_LINK_SECONDS, PORTAL_PURPOSE
from storage import keys, ledger
from storage.ledger import OPERATOR, RefundKey
from tests.contract.calling import Caller, shown
from tests.contract.runner_side import RunnerSide
from tests.tables import every


def buy(caller: Caller, cents: int, reference: str) -> None:
    account_id = caller.customer.account_id
    caller.api.transact(
        lambda c: ledger.record_purchase(
            c, account_id, cents, provider=OPERATOR, reference=f"{reference} {account_id}"
        )
    )


def link(caller: Caller) -> str:
    url: str = shown(caller.api.client.get("/keys/portal", headers=caller.sign_in()))["url"]
    return url


def open_page(url: str) -> httpx.Response:
    return httpx.get(url, trust_env=False, timeout=120)


class Text(HTMLParser):
    """A page as a reader sees it: the cells and lines of its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.lines.append(data.strip())


def test_the_page_shows_balance_usage_receipts_and_keys(caller: Caller, runner: RunnerSide) -> None:
    buy(caller, 123_456, "INV-<1>")
    runner.complete(caller)
    runner.queued(caller)
    answer = open_page(link(caller))
    assert answer.status_code == 200
    page = Text(answer.text)
    figures = dict(zip(page.lines, page.lines[1:], strict=False))
    assert figures["Balance"] == "$1,244.53"
    assert figures["Held for running jobs"] == "$0.02"
    assert figures["Available"] == "$1,244.51"
    after = page.lines[page.lines.index("Charged") :]
    assert after[1:9] == ["vision", "1", "$0.02", "transcript", "1", "$0.01", "Total", "$0.03"]
    assert figures["Analysed this month"] == "1 min 6 s"
    assert f"operator · INV-<1> {caller.customer.account_id}" in page.lines
    assert f"vas_live_…{caller.customer.key[-4:]}" in page.lines
    assert caller.customer.key not in answer.text


def test_a_refund_that_still_waits_is_shown(caller: Caller) -> None:
    buy(caller, 500, "INV")
    account_id = caller.customer.account_id
    key = RefundKey(OPERATOR, f"R {account_id}", f"INV {account_id}")
    caller.api.transact(lambda c: ledger.record_refund(c, key, 9_999))
    page = Text(open_page(link(caller)).text)
    assert page.lines[page.lines.index("Refunded, still to be deducted") + 1] == "$84.99"


def test_the_page_is_private_and_loads_nothing_foreign_and_no_script(caller: Caller) -> None:
    buy(caller, 500, "INV")
    answer = open_page(link(caller))
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "script-src" not in policy
    assert "unsafe" not in policy
    page = Text(answer.text)
    assert not [tag for tag, _ in page.tags if tag in {"script", "iframe", "form"}]
    assert not [attrs for _, attrs in page.tags if any(n.startswith("on") for n in attrs)]
    assert not [attrs for _, attrs in page.tags if "style" in attrs]
    addresses = [attrs["href"] or "" for tag, attrs in page.tags if tag == "link"]
    own = f"{STATIC_PATH}/{static_version()}"
    assert addresses == [f"{own}/icon.svg", f"{own}/dashboard.css"]
    assert {attrs["src"] for tag, attrs in page.tags if tag == "img"} == {f"{own}/icon.svg"}
    style = httpx.get(f"{caller.api.root}{own}/dashboard.css", trust_env=False)
    assert not re.search(r"url\(|@import", style.text)
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in (
        page.tags
    )


def test_a_link_opens_for_a_quarter_of_an_hour(caller: Caller) -> None:
    buy(caller, 500, "INV")
    before = int(time.time())
    expires = int(httpx.URL(link(caller)).params["expires"])
    assert before + PORTAL_LINK_SECONDS <= expires <= int(time.time()) + PORTAL_LINK_SECONDS
    assert PORTAL_LINK_SECONDS == 900


def test_a_link_whose_time_is_over_opens_nothing(caller: Caller) -> None:
    buy(caller, 500, "INV")
    path = f"/portal/{caller.customer.account_id}"
    old = caller.api.context.signer.sign_path(PORTAL_PURPOSE, path, expires_at=int(time.time()) - 1)
    closed(open_page(caller.api.root + old), caller)


def closed(answer: httpx.Response, caller: Caller) -> None:
    assert answer.status_code == 403
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["cache-control"] == "no-store"
    assert "This link has expired" in answer.text
    assert caller.customer.key[-4:] not in answer.text


TAMPERED = [
    pytest.param(lambda url, other: url.copy_with(path=f"/portal/{other}"), id="another account"),
    pytest.param(lambda url, _: url.copy_set_param("expires", "99999999999"), id="a longer time"),
    pytest.param(lambda url, _: url.copy_set_param("signature", "0" * 64), id="another signature"),
    pytest.param(lambda url, _: url.copy_remove_param("signature"), id="no signature"),
    pytest.param(lambda url, _: url.copy_set_param("expires", "soon"), id="no number"),
    pytest.param(
        lambda url, _: url.copy_with(path=url.path.upper().replace("/PORTAL", "/portal")),
        id="the account written otherwise",
    ),
]


@every("tamper", TAMPERED)
def test_a_link_opens_its_own_account_only(caller: Caller, tamper: object) -> None:
    assert callable(tamper)
    other = caller.api.caller()
    for one in (caller, other):
        buy(one, 500, "INV")
    url = tamper(httpx.URL(link(caller)), other.customer.account_id)
    closed(open_page(str(url)), other)


def test_an_upload_signature_does_not_open_the_page(caller: Caller) -> None:
    path = f"/portal/{caller.customer.account_id}"
    later = int(time.time()) + 100
    foreign = caller.api.context.signer.sign_path("upload", path, expires_at=later)
    closed(open_page(caller.api.root + foreign), caller)


def test_a_suspended_account_is_refused(caller: Caller) -> None:
    buy(caller, 500, "INV")
    url = link(caller)
    account_id = caller.customer.account_id
    caller.api.transact(lambda c: keys.set_restrictions(c, account_id, suspended=True))
    closed(open_page(url), caller)


AMOUNTS = [(0, "$0.00"), (5, "$0.05"), (123_456_789, "$1,234,567.89"), (-150, "−$1.50")]


@every(("cents", "expected"), AMOUNTS)
def test_amounts_are_written_in_dollars(cents: int, expected: str) -> None:
    assert dollars(cents) == expected
