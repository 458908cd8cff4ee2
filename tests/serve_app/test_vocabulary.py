"""Vocabulary of an account: proposed from corrections, and used by every later job."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from pipelines.codec import encode
from pipelines.types import Speaker, TranscriptResult
from storage import jobs, keys
from storage.audit import list_entries
from storage.cleaning import erase_account
from storage.job_records import JobSource
from tests.pipelines.speech.test_edits import segment
from tests.serve_app.dashboard.test_dashboard_pages import csrf, signed_in
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_redaction import at_work, redact
from tests.tables import every

WEBER = {"from": "Webber", "to": "Weber"}
NOTHING: dict[str, Any] = {"keyterms": [], "replacements": []}


@pytest.fixture(autouse=True)
def idle(api: RunningApi) -> None:
    """No job of another test waits."""
    while api.transact(lambda connection: jobs.lease_next(connection, lease=timedelta(minutes=5))):
        pass


def put(api: RunningApi, customer: Customer, **body: Any) -> httpx.Response:
    return api.client.put("/vocabulary", json=NOTHING | body, headers=customer.headers)


def read(api: RunningApi, customer: Customer) -> dict[str, Any]:
    answer = api.client.get("/vocabulary", headers=customer.headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["data"]
    return found


def proposed(api: RunningApi, customer: Customer) -> list[tuple[str, str, int, int]]:
    found = read(api, customer)["proposals"]
    return [(it["from"], it["to"], it["times"], it["jobs"]) for it in found]


def corrected(
    api: RunningApi, customer: Customer, lines: list[str], changes: dict[int, str], **body: Any
) -> str:
    """A job whose lines were changed by people."""
    said = tuple(segment(at, line, 5000 * at, "speaker_0") for at, line in enumerate(lines))
    found = TranscriptResult("en", (Speaker("speaker_0", "Speaker 1", 5.0),), said)
    job = created(api, customer, **body)
    complete(api, job, [replace(track(0), document=encode(found).decode())], [])
    segments = [{"index": at, "text": line} for at, line in changes.items()]
    path, edit = f"/jobs/{job}/transcript", {"revision": 0, "segments": segments}
    answer = api.client.patch(path, json=edit, headers=customer.headers)
    assert answer.status_code == 200, answer.text
    return job


def source_of(api: RunningApi, job: str) -> JobSource:
    found = api.transact(lambda connection: jobs.find_job(connection, uuid.UUID(job)))
    assert found is not None
    return found.source


def test_it_is_replaced_as_a_whole_until_the_account_is_erased(
    api: RunningApi, customer: Customer
) -> None:
    given = {"keyterms": ["Weber", "Rye  bread"], "replacements": [WEBER]}
    kept = given | {"keyterms": ["Weber", "Rye bread"]}
    for body, found in ((NOTHING, NOTHING), (given, kept), (given, kept)):
        assert put(api, customer, **body).json()["data"] == found
        assert read(api, customer) == found | {"proposals": []}
    entry = api.transact(lambda connection: list_entries(connection, customer.account_id))[-1]
    assert (entry.action, entry.detail) == ("replaceVocabulary", "keyterms=2 replacements=1")
    api.transact(lambda connection: erase_account(connection, customer.account_id))
    name = str(customer.account_id)
    assert api.transact(lambda c: keys.get_account(c, name)).vocabulary is None


@every(
    ("body", "param"),
    [
        ({"keyterms": ["a"] * 101}, "keyterms"),
        ({"keyterms": ["a" * 101]}, "keyterms[0]"),
        ({"keyterms": [" "]}, "keyterms[0]"),
        ({"replacements": [{"from": f"a{n}", "to": "b"} for n in range(201)]}, "replacements"),
        ({"replacements": [WEBER, {"from": "«WEBBER»", "to": "W"}]}, "replacements"),
        ({"replacements": [{"from": "Webber", "to": ""}]}, "replacements[0].to"),
        ({"replacements": [{"from": "a\u202eb", "to": "b"}]}, "replacements[0].from"),
        ({"replacements": [{"to": "Weber"}]}, "replacements[0].from"),
    ],
)
def test_what_it_cannot_have_is_refused_by_its_field(
    api: RunningApi, customer: Customer, body: dict[str, Any], param: str
) -> None:
    answer = put(api, customer, **body)
    assert (answer.status_code, answer.json()["param"]) == (400, param)
    archive = {"url": "s3://films/", "vocabulary": NOTHING | body}
    answer = api.client.post("/archives", json=archive, headers=customer.headers)
    assert (answer.status_code, answer.json()["param"]) == (400, f"vocabulary.{param}")


def test_every_later_job_has_it_behind_its_own_list(api: RunningApi, customer: Customer) -> None:
    before = created(api, customer)
    terms = [f"term {n}" for n in range(99)]
    assert put(api, customer, keyterms=["own", *terms], replacements=[WEBER]).is_success
    source = source_of(api, created(api, customer, keyterms=["own", "other"]))
    assert (source.keyterms, source.vocabulary) == (("own", "other"), tuple(terms[:98]))
    assert source.replacements == (("Webber", "Weber"),)
    for job in (before, created(api, api.customer())):
        assert source_of(api, job).replacements == ()


def test_what_people_correct_is_proposed(api: RunningApi, customer: Customer) -> None:
    lines = ["Ask Webber's sister.", "The uber netties run.", "Webber met Mr. Webber.",
             "They see the whether.", "I can see it."]  # fmt: skip
    changes = {0: "Ask Weber's sister.", 1: "The Kubernetes run.", 3: "They Sea the weather."}
    corrected(api, customer, lines, changes)
    # Not in lower case, once; nor a word that is right elsewhere.
    expected = [("Webber", "Weber", 1, 1), ("uber netties", "Kubernetes", 1, 1)]
    assert proposed(api, customer) == expected
    newest = corrected(api, customer, ["Whether or webber!"], {0: "Weather or Weber!"})
    assert proposed(api, customer) == [
        ("webber", "Weber", 2, 2), ("Whether", "Weather", 1, 1), *expected[1:]]  # fmt: skip
    assert read(api, customer)["proposals"][0]["jobId"] == newest
    assert proposed(api, api.customer()) == []
    put(api, customer, replacements=[WEBER])
    assert "Weber" not in {written for _, written, *_ in proposed(api, customer)}


def test_nothing_that_is_taken_back_erased_or_redacted_is_proposed(
    api: RunningApi, customer: Customer
) -> None:
    names = ["Webber", "Smyth", "Penberley"]
    job, other, third = (corrected(api, customer, [f"Ask {it}."], {0: "Ask Anna."}) for it in names)
    assert len(proposed(api, customer)) == 3
    back = {"revision": 1, "to": 0}
    api.client.post(f"/jobs/{job}/transcript/revert", json=back, headers=customer.headers)
    api.client.post(f"/jobs/{other}/erase", headers=customer.headers)
    assert [heard for heard, *_ in proposed(api, customer)] == names[2:]
    assert redact(api, customer, third, ["name"]).is_success
    assert proposed(api, customer) == []  # at once
    at_work(api)
    corrected(api, customer, ["Ask Jon Smyth."], {0: "Ask Jon Smith."}, redact=["name"])
    assert proposed(api, customer) == []


def test_the_page_adds_what_is_proposed_and_names_a_wrong_line(
    api: RunningApi, customer: Customer
) -> None:
    corrected(api, customer, ["Ask Webber."], {0: "Ask Weber."})
    path = "/dashboard/vocabulary"
    with signed_in(api, customer) as browser:
        shown = browser.get(path)
        assert 'value="Webber = Weber"' in shown.text
        form = {"csrf": csrf(shown), "keyterms": "Weber\n\nRye bread", "replacements": "a = b"}
        answer = browser.post(path, data=form | {"add": "Webber = Weber"})
        assert (answer.status_code, answer.headers["location"]) == (303, path)
        shown = browser.get(path)
        assert "Weber\nRye bread</textarea>" in shown.text
        assert "a = b\nWebber = Weber" in shown.text
        assert 'name="add"' not in shown.text
        answer = browser.post(path, data=form | {"replacements": "a = b\nc"})
        assert (answer.status_code, "Replacements, line 2" in answer.text) == (400, True)
    assert read(api, customer)["replacements"] == [{"from": "a", "to": "b"}, WEBER]
