"""The endpoints table, row by row; and the tables of discovery and dashboard endpoints."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from storage import keys, ledger
from tests.contract.calling import RATE_HEADERS, Caller, ContractApi, refusal, shown
from tests.contract.runner_side import TWO_TRACKS, RunnerSide
from tests.contract.spec_rows import ROWS, covers, covers_each, row_cells, rows_of
from tests.tables import every


@dataclass(frozen=True, slots=True)
class House:
    """An account with everything that an endpoint may be asked for."""

    caller: Caller
    session: dict[str, str]
    finished_job: str

    def spare_key(self) -> str:
        account = self.caller.customer.account_id
        return str(self.caller.api.transact(lambda c: keys.create_key(c, account)).id)


@pytest.fixture(scope="module")
def house(api: ContractApi, runner: RunnerSide) -> House:
    caller = api.caller()
    finished = runner.complete(caller, TWO_TRACKS)
    buy(caller)
    return House(caller, caller.sign_in(), finished)


def buy(caller: Caller) -> None:
    """A purchase in the account's ledger."""
    account_id = caller.customer.account_id
    caller.api.transact(
        lambda c: ledger.record_purchase(
            c, account_id, 500, provider=ledger.OPERATOR, reference=str(account_id)
        )
    )


FETCHED = {"url": "https://media.example.com/clip.mp4"}
BATCH = {"mode": "independent", "clips": [{"sourceUrl": FETCHED["url"]}]}
BODIES: dict[str, Any] = {
    "createJob": {"fileName": "clip.mp4"},
    "createJobFromUrl": FETCHED,
    "createBatch": BATCH,
    "sendTestWebhook": {"url": "https://127.0.0.1/hook"},
}
STATUSES = {"createJob": 201, "createJobFromUrl": 201, "createBatch": 201}
ITEMS: dict[str, Callable[[House], dict[str, str]]] = {
    "cancelJob": lambda house: {"jobId": house.caller.create()["jobId"]},
    "cancelJobDeprecated": lambda house: {"jobId": house.caller.create()["jobId"]},
    "rotateKey": lambda house: {"id": house.spare_key()},
    "getAudioTrack": lambda house: {"jobId": house.finished_job, "trackIndex": "1"},
}


def the_finished_job(house: House) -> dict[str, str]:
    return {"jobId": house.finished_job}


def send(house: House, operation: str, headers: dict[str, str]) -> httpx.Response:
    """A good request for ``operation``, with these credentials."""
    method, path, *_ = row_cells(f"endpoints/{operation}")
    named = ITEMS.get(operation, the_finished_job)(house)
    query = {"durationSeconds": 60} if operation == "estimatePrice" else None
    return house.caller.api.client.request(
        method, path.format(**named), headers=headers, params=query, json=BODIES.get(operation)
    )


@covers_each("endpoints", {name: name for name in rows_of("endpoints")}, "operation")
def test_endpoint_with_its_method_path_authentication_and_name(
    house: House, operation: str
) -> None:
    method, path, auth, name = row_cells(f"endpoints/{operation}")
    document = house.caller.api.discover("/openapi.json").json()
    assert document["paths"][path][method.lower()]["operationId"] == name == operation
    key = {"X-API-Key": house.caller.customer.key}
    opens: dict[str, list[dict[str, str]]] = {"key": [key], "session": [house.session]}
    closed = {"key": [{}, house.session], "session": [{}, key], "none": []}
    for headers in opens.get(auth, [{}, key, house.session]):
        answer = send(house, operation, headers)
        assert answer.status_code == STATUSES.get(operation, 200), answer.text
    for headers in closed[auth]:
        refusal(send(house, operation, headers), 401, "UNAUTHORIZED")


@covers_each("endpoint-errors", {name: name for name in rows_of("endpoint-errors")}, "operation")
def test_the_interface_document_tells_the_errors_of(api: ContractApi, operation: str) -> None:
    method, path, *_ = row_cells(f"endpoints/{operation}")
    documented = api.discover("/openapi.json").json()["paths"][path][method.lower()]
    stated = set(re.findall(r"[345][0-9]{2}", ROWS[f"endpoint-errors/{operation}"]))
    assert stated
    assert stated <= set(documented["responses"])


@covers("discovery/GET-openapi.json")
def test_openapi_is_the_document_itself(api: ContractApi) -> None:
    document = api.discover("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert not {"data", "requestId"} & set(document)


@covers("discovery/GET-pricing")
def test_pricing_has_rates_for_both_tiers_and_all_stages(api: ContractApi) -> None:
    table = shown(api.discover("/pricing"))
    assert set(table["rates"]) == {"standard", "raw"}
    for tier in table["rates"].values():
        assert set(tier) == {"ingest", "vision", "transcript"}
        assert all(rate["base"] >= rate["volume"] >= 0 for rate in tier.values())
    terms = {"volumeThresholdSeconds", "minBillableSeconds", "currency", "unit", "rounding"}
    assert terms <= set(table)
    assert (table["currency"], table["minBillableSeconds"]) == ("usd", 30)


@covers("discovery/GET-pricing-estimate")
def test_the_estimate_is_the_exact_charge(api: ContractApi, runner: RunnerSide) -> None:
    """Of a job of the same length in which every requested stage completed."""
    caller = api.caller()
    job_id = runner.complete(caller)
    duration = caller.job(job_id)["durationSeconds"]
    estimate = api.discover("/pricing/estimate", durationSeconds=duration)
    assert caller.job(job_id)["chargedCents"] == shown(estimate)["cents"] > 0


@covers("discovery/GET-formats")
def test_formats_lists_types_and_limits(api: ContractApi) -> None:
    formats = shown(api.discover("/formats"))
    assert set(formats["raw"]) == {"r3d", "braw", "arri"}
    assert formats["rawExtensions"] == [name for names in formats["raw"].values() for name in names]
    for name in ("standard", "audioOnly", "blocked"):
        assert formats[name]
    assert "unknownExtensions" in formats
    assert set(formats["limits"]) == {
        "standardMaxBytes",
        "rawMaxBytes",
        "maxDurationSec",
        "uploadUrlExpirySeconds",
    }


@covers("notes/discovery-headers", "limits/discovery-cache-lifetime")
@every("path", ["/openapi.json", "/pricing", "/pricing/estimate?durationSeconds=1", "/formats"])
def test_discovery_is_counted_cacheable_and_the_same_with_a_key(caller: Caller, path: str) -> None:
    anonymous, keyed = caller.api.discover(path), caller.get(path)
    for answer in (anonymous, keyed):
        assert answer.headers["cache-control"] == "public, max-age=300"
        assert answer.headers["x-ratelimit-limit"] == "120"
        assert all(name in answer.headers for name in RATE_HEADERS)
    bodies = [answer.json() for answer in (anonymous, keyed)]
    assert bodies[0].get("data", bodies[0]) == bodies[1].get("data", bodies[1])


@covers("dashboard/GET-keys", "objects/key")
def test_keys_are_listed_without_their_secrets(caller: Caller) -> None:
    answer = caller.api.client.get("/keys", headers=caller.sign_in())
    [key] = shown(answer)
    fields = {"id", "displayKey", "status", "expiresAt", "benefitId", "createdAt"}
    assert set(key) == fields | {"name", "lastUsedAt"}
    assert key["status"] == "active"
    assert caller.customer.key not in answer.text


@covers("dashboard/GET-keys-portal")
def test_the_portal_is_a_link_once_something_was_purchased(caller: Caller) -> None:
    session = caller.sign_in()
    refusal(caller.api.client.get("/keys/portal", headers=session), 404, "NOT_FOUND")
    buy(caller)
    link = shown(caller.api.client.get("/keys/portal", headers=session))
    assert set(link) == {"url"}
    assert link["url"].startswith(caller.api.root)


@covers("dashboard/POST-keys-id-rotate")
def test_rotation_shows_the_new_secret_once(caller: Caller) -> None:
    session = caller.sign_in()
    client = caller.api.client
    [old] = shown(client.get("/keys", headers=session))
    rotated = shown(client.post(f"/keys/{old['id']}/rotate", headers=session))
    assert set(rotated) == {*old, "key"}
    listed = client.get("/keys", headers=session)
    assert rotated["id"] in {key["id"] for key in shown(listed)}
    assert rotated["key"] not in listed.text
    assert client.get("/quota", headers={"X-API-Key": rotated["key"]}).status_code == 200


@covers("dashboard/GET-webhooks-secret", "objects/signing-secret")
def test_the_signing_secret_is_made_on_the_first_call(caller: Caller) -> None:
    session = caller.sign_in()
    count = "SELECT count(*) FROM signing_secrets WHERE account_id = :id"
    assert caller.api.sql(count, id=caller.customer.account_id) == [(0,)]
    first = shown(caller.api.client.get("/webhooks/secret", headers=session))
    assert set(first) == {"secret", "createdAt", "rotatedAt"}
    assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{32,}={0,2}", first["secret"])
    assert shown(caller.api.client.get("/webhooks/secret", headers=session)) == first
