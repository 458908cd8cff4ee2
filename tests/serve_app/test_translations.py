"""Transcripts in other languages: asked for, made beside the jobs, read in every format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from models.provider import ModelProvider
from models.tasks import TRANSLATE_TEXT
from pipelines.codec import encode
from pipelines.types import Speaker, TranscriptResult
from serve_app import pricing
from serve_app.results import routes
from serve_app.work.translating import translate
from storage import keys
from storage.database import Connection
from storage.results import TrackTranscript
from storage.tables import webhook_events
from tests.pipelines.speech.test_edits import segment
from tests.pipelines.speech.test_summary import Dictionary
from tests.serve_app.beside_jobs import do, make_due
from tests.serve_app.interface_contract import DOCUMENT, Contract
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.tables import every

CONTRACT = Contract(DOCUMENT)
LINES = ("Guten Morgen.", "Heute regnet es.")
FORMATS = ("srt", "vtt", "ttml", "ebu-tt-d", "ass", "txt", "md", "csv")


def said(index: int = 0) -> TrackTranscript:
    segments = tuple(
        replace(segment(at, line, 5000 * at + 1000, "speaker_0"), language=None)
        for at, line in enumerate(LINES)
    )
    found = TranscriptResult("de", (Speaker("speaker_0", "Speaker 1", 5.0),), segments)
    return replace(track(index), language="de", document=encode(found).decode())


@pytest.fixture
def job(api: RunningApi, customer: Customer) -> Iterator[str]:
    job_id = created(api, customer)
    complete(api, job_id, [said()], [])
    yield job_id
    api.sql("DELETE FROM work")


def ask(api: RunningApi, customer: Customer, job: str, language: Any = "en") -> httpx.Response:
    path = f"/jobs/{job}/translations"
    return api.client.post(path, json={"language": language}, headers=customer.headers)


def read(
    api: RunningApi, customer: Customer, job: str, query: str = "language=en"
) -> httpx.Response:
    return api.client.get(f"/jobs/{job}/transcript?{query}", headers=customer.headers)


def at_work(api: RunningApi, models: ModelProvider, times: int = 1) -> None:
    """A runner's translator."""
    for _ in range(times):
        do(api, translate, models)


def test_a_translation_is_asked_for_made_and_read_in_every_format(
    api: RunningApi, customer: Customer, job: str
) -> None:
    assert read(api, customer, job).status_code == 404
    asked = ask(api, customer, job, "en-GB")
    assert asked.status_code == 202, asked.text
    CONTRACT.check("createTranslation", asked)
    shown = asked.json()["data"]
    assert (shown["language"], shown["status"], shown["priceCents"]) == ("en", "pending", 0)
    assert read(api, customer, job).json()["code"] == "RESULTS_NOT_READY"
    assert read(api, customer, job, "format=srt&language=en").json()["code"] == "RESULTS_NOT_READY"

    at_work(api, Dictionary(TRANSLATE_TEXT))
    found = api.client.get(f"/jobs/{job}/translations/en", headers=customer.headers)
    CONTRACT.check("getTranslation", found)
    status = found.json()["data"]
    assert (status["status"], "completedAt" in status) == ("completed", True)
    before = read(api, customer, job, "").json()["data"]
    after = read(api, customer, job).json()["data"]
    assert (after["language"], after["text"]) == ("en", "GUTEN MORGEN.\nHEUTE REGNET ES.")
    for was, now in zip(before["segments"], after["segments"], strict=True):
        assert [now[name] for name in ("startTime", "endTime", "speaker")] == [
            was[name] for name in ("startTime", "endTime", "speaker")
        ]
        assert now["timing"] == "estimated"
    for form in FORMATS:
        text = read(api, customer, job, f"format={form}&language=en").text
        assert "HEUTE REGNET ES." in text
        assert "Heute" not in text
        assert "Heute regnet es." in read(api, customer, job, f"format={form}").text
    assert read(api, customer, job, "format=srt&language=en&rules=bbc").status_code == 200
    listed = api.client.get(f"/jobs/{job}/translations", headers=customer.headers).json()["data"]
    assert [each["language"] for each in listed["translations"]] == ["en"]


def test_it_is_made_once_and_anew_after_a_correction(
    api: RunningApi, customer: Customer, job: str
) -> None:
    ask(api, customer, job)
    at_work(api, Dictionary(TRANSLATE_TEXT))
    assert ask(api, customer, job).json()["data"]["status"] == "completed"
    edit = {"revision": 0, "segments": [{"index": 0, "text": "Guten Abend."}]}
    path = f"/jobs/{job}/transcript"
    assert api.client.patch(path, json=edit, headers=customer.headers).status_code == 200
    assert "GUTEN MORGEN." in read(api, customer, job).text, "until another is asked for"
    assert ask(api, customer, job).json()["data"]["status"] == "pending"
    at_work(api, Dictionary(TRANSLATE_TEXT))
    srt = read(api, customer, job, "format=srt&language=en")
    assert "GUTEN ABEND." in srt.text
    assert srt.headers["content-disposition"] == 'attachment; filename="clip.en.srt"'


@every(
    ("language", "param"),
    [("de", "language"), ("de-AT", "language"), ("fr", "language"), ("english!", "language"),
     (7, "language"), (None, "language")],
)  # fmt: skip
def test_a_language_that_cannot_be_is_refused(
    api: RunningApi, customer: Customer, job: str, language: Any, param: str
) -> None:
    refused = ask(api, customer, job, language)
    assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_REQUEST")
    assert refused.json()["param"] == param


def test_before_the_transcript_is_there_there_is_nothing_to_translate(
    api: RunningApi, customer: Customer
) -> None:
    job = created(api, customer)
    assert ask(api, customer, job).json()["code"] == "RESULTS_NOT_READY"
    api.client.post(f"/jobs/{job}/cancel", headers=customer.headers)


def test_what_cannot_be_made_fails_with_a_sentence_and_may_be_asked_for_again(
    api: RunningApi, customer: Customer, job: str
) -> None:
    ask(api, customer, job)
    at_work(api, Dictionary())
    status = api.client.get(f"/jobs/{job}/translations/en", headers=customer.headers).json()["data"]
    assert status["status"] == "failed"
    assert "no model" in status["reason"]
    assert read(api, customer, job).json()["code"] == "RESULTS_UNAVAILABLE"
    assert ask(api, customer, job).json()["data"]["status"] == "pending"


class Broken(Dictionary):
    def translate_texts(self, texts: Any) -> list[str]:
        raise RuntimeError("broken")


def test_a_model_that_breaks_is_tried_again_and_given_up(
    api: RunningApi, customer: Customer, job: str
) -> None:
    ask(api, customer, job)
    for _ in range(translate.attempts or 0):
        with pytest.raises(RuntimeError):
            at_work(api, Broken(TRANSLATE_TEXT))
        make_due(api)
    status = api.client.get(f"/jobs/{job}/translations/en", headers=customer.headers).json()["data"]
    assert status["status"] == "failed"


def test_a_price_is_charged_at_once_and_given_back_where_it_fails(
    api: RunningApi, customer: Customer, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pricing, "translation_cents", lambda *_: 40)

    def balance() -> int:
        shown = api.client.get("/quota", headers=customer.headers).json()["data"]
        cents: int = shown["api"]["balanceCents"]
        return cents

    before = balance()
    price = ask(api, customer, job).json()["data"]["priceCents"]
    assert balance() == before - price == before - 40
    edit = {"revision": 0, "segments": [{"index": 0, "text": "Guten Abend."}]}
    path = f"/jobs/{job}/transcript"
    assert api.client.patch(path, json=edit, headers=customer.headers).status_code == 200
    assert ask(api, customer, job).json()["data"]["priceCents"] == price
    assert balance() == before - price, "once, however often the transcript changes before"
    at_work(api, Dictionary())
    assert balance() == before
    ask(api, customer, job)
    assert balance() == before - price
    assert api.client.post(f"/jobs/{job}/erase", headers=customer.headers).status_code == 202
    assert balance() == before


def test_many_languages_at_once_are_charged_once_each_and_never_beyond_the_balance(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    languages = ["en", "fr", "es", "it", "nl", "pl"]
    monkeypatch.setattr(routes, "translation_targets", lambda *_: frozenset(languages))
    customer = api.customer(credits_cents=500)
    job = created(api, customer)
    complete(api, job, [said()], [])

    def balance() -> int:
        shown = api.client.get("/quota", headers=customer.headers).json()["data"]
        cents: int = shown["api"]["balanceCents"]
        return cents

    before = balance()
    price = before // 3
    monkeypatch.setattr(pricing, "translation_cents", lambda *_: price)
    with ThreadPoolExecutor(12) as everybody:
        asked = [*everybody.map(lambda it: ask(api, customer, job, it), languages * 4)]
    made = {it.json()["data"]["language"] for it in asked if it.status_code == 202}
    refused = {(it.status_code, it.json()["code"]) for it in asked if it.status_code != 202}
    assert (len(made), refused) == (3, {(402, "INSUFFICIENT_CREDITS")})
    assert balance() == before - 3 * price
    at_work(api, Dictionary(), times=3)  # each fails
    assert balance() == before
    assert ask(api, customer, job, "fr").status_code == 202
    assert api.client.post(f"/jobs/{job}/erase", headers=customer.headers).status_code == 202
    assert balance() == before
    assert ask(api, customer, job, "fr").status_code == 404


def test_a_price_counts_for_the_cap_of_the_key_that_requests_it(
    api: RunningApi, customer: Customer, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pricing, "translation_cents", lambda *_: 40)
    caps = keys.KeyCaps(max_monthly_cents=79)
    issued = api.transact(lambda c: keys.create_key(c, customer.account_id, caps=caps))
    capped = Customer(customer.account_id, issued.secret)
    assert ask(api, capped, job).status_code == 202
    at_work(api, Dictionary(TRANSLATE_TEXT))
    edit = {"revision": 0, "segments": [{"index": 0, "text": "Guten Abend."}]}
    path = f"/jobs/{job}/transcript"
    assert api.client.patch(path, json=edit, headers=customer.headers).status_code == 200
    refused = ask(api, capped, job)
    assert (refused.status_code, refused.json()["code"]) == (402, "INSUFFICIENT_CREDITS")
    assert "what the key may use in a month" in refused.json()["error"]
    assert ask(api, customer, job).status_code == 202, "another key of the account goes on"
    at_work(api, Dictionary())
    api.sql("UPDATE api_keys SET max_monthly_cents = 80 WHERE max_monthly_cents = 79")
    assert ask(api, capped, job).status_code == 202
    at_work(api, Dictionary())  # and is given back
    assert ask(api, capped, job).status_code == 202
    body = {"fileName": "a.mp4", "fileSizeBytes": 10, "processingMode": "vision"}
    refused = api.client.post("/jobs", json=body, headers=capped.headers)
    assert (refused.status_code, refused.json()["code"]) == (402, "INSUFFICIENT_CREDITS")


class Meanwhile(Dictionary):
    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__(TRANSLATE_TEXT)
        self._then = then

    def translate_texts(self, texts: Any) -> list[str]:
        self._then()
        return super().translate_texts(texts)


def test_a_job_that_is_erased_meanwhile_gets_no_translation(
    api: RunningApi, customer: Customer, job: str
) -> None:
    ask(api, customer, job)
    erase = f"/jobs/{job}/erase"
    at_work(api, Meanwhile(lambda: api.client.post(erase, headers=customer.headers)))
    assert read(api, customer, job).status_code == 404


@pytest.mark.parametrize(
    ("models", "kind"),
    [(Dictionary(TRANSLATE_TEXT), "translation.completed"), (Dictionary(), "translation.failed")],
    ids=["completed", "failed"],
)
def test_endpoints_that_subscribe_get_an_event_of_each_end(
    api: RunningApi, customer: Customer, job: str, models: Dictionary, kind: str
) -> None:
    body = {"url": "https://hooks.example.com/vas", "events": [kind]}
    made = api.client.post("/webhooks/endpoints", json=body, headers=customer.headers)
    assert made.status_code == 201, made.text
    ask(api, customer, job)
    at_work(api, models)

    async def read_event(connection: Connection) -> dict[str, Any]:
        query = select(webhook_events.c.body).where(webhook_events.c.event_type == kind)
        event: dict[str, Any] = json.loads((await connection.execute(query)).scalar_one())
        return event

    event = api.transact(read_event)
    assert (event["type"], event["data"]["jobId"]) == (kind, job)
    assert event["data"]["translation"]["status"] == kind.rpartition(".")[2]
    path = ("webhooks", kind, "post", "requestBody", "content", "application/json", "schema")
    CONTRACT.validator(*path).validate(event)
