"""`voices`: named from a speaker, recognised in later jobs, forgotten."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from pipelines.types import SpeakerVoice
from serve_app.work.publishing import KeptVoices
from storage import cleaning, jobs, voices
from storage.database import Connection
from storage.tables import jobs as jobs_table
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.tables import every

MODEL = "a model"
ANNA = np.eye(8, dtype=np.float32)[0]
OTHER = np.eye(8, dtype=np.float32)[1]
NEAR_ANNA = 0.9 * ANNA + np.sqrt(1 - 0.81) * np.eye(8, dtype=np.float32)[2]


@pytest.fixture(scope="module")
def allowing(api: RunningApi) -> Iterator[RunningApi]:
    with RunningApi(api.settings.model_copy(update={"voices": True})) as running:
        yield running


def job_of(
    api: RunningApi, customer: Customer, vector: Any | None = ANNA, model: str = MODEL
) -> str:
    """A job whose one speaker sounds so."""
    job_id = created(api, customer)
    kept = None if vector is None else voices_of(vector, model)
    complete(api, job_id, [track(0)], [], voices=kept)
    return job_id


def voices_of(vector: Any, model: str = MODEL) -> KeptVoices:
    return KeptVoices(model, {0: (SpeakerVoice("speaker_0", tuple(vector.tolist())),)})


def name(api: RunningApi, customer: Customer, job_id: str, given: Any = "Anna") -> httpx.Response:
    path = f"/jobs/{job_id}/speakers/speaker_0/voice"
    return api.client.put(path, json={"name": given}, headers=customer.headers)


def speaker(api: RunningApi, customer: Customer, job_id: str) -> tuple[str, str | None]:
    answer = api.client.get(f"/jobs/{job_id}/transcript?format=json", headers=customer.headers)
    [found] = answer.json()["data"]["speakers"]
    return found["label"], found.get("voiceId")


def listed(api: RunningApi, customer: Customer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.client.get("/voices", headers=customer.headers).json()["data"]
    return found


def test_a_service_that_does_not_do_it_refuses_the_job_by_name(api: RunningApi) -> None:
    body = {"fileName": "a.mp4", "voices": True}
    answer = api.client.post("/jobs", json=body, headers=api.customer().headers)
    assert (answer.status_code, answer.json()["param"]) == (400, "voices")


@pytest.mark.parametrize(("given", "kept"), [({}, False), ({"voices": True}, True)])
def test_a_service_that_does_it_does_so_for_jobs_that_ask(
    allowing: RunningApi, given: dict[str, Any], kept: bool
) -> None:
    headers = allowing.customer().headers
    answer = allowing.client.post("/jobs", json={"fileName": "a.mp4", **given}, headers=headers)

    async def source(connection: Connection) -> bool:
        job = await jobs.find_job(connection, uuid.UUID(answer.json()["data"]["jobId"]))
        assert job is not None
        return job.source.voices

    assert allowing.transact(source) is kept


@pytest.mark.parametrize(
    ("vector", "model", "is_known"),
    [
        pytest.param(NEAR_ANNA, MODEL, True, id="the same voice"),
        pytest.param(OTHER, MODEL, False, id="another voice"),
        pytest.param(ANNA, "another model", False, id="vectors of another model"),
        pytest.param(None, MODEL, False, id="a job that does not ask"),
    ],
)
def test_a_named_voice_is_recognised_in_later_jobs(
    api: RunningApi, vector: Any, model: str, is_known: bool
) -> None:
    customer = api.customer()
    first = job_of(api, customer)
    named = name(api, customer, first).json()["data"]
    assert (named["name"], named["samples"]) == ("Anna", 1)
    assert speaker(api, customer, first) == ("Anna", named["id"])
    later = job_of(api, customer, vector, model)
    expected = ("Anna", named["id"]) if is_known else ("Speaker 1", None)
    assert speaker(api, customer, later) == expected


def test_what_shows_labels_shows_the_recognised_name(api: RunningApi) -> None:
    customer = api.customer()
    name(api, customer, job_of(api, customer))
    later = job_of(api, customer)
    path = f"/jobs/{later}/transcript"
    assert "<v Anna>" in api.client.get(f"{path}?format=vtt", headers=customer.headers).text
    found = api.client.get("/search?q=morning", headers=customer.headers).json()["data"]
    assert {hit["speakerLabel"] for hit in found} == {"Anna"}


def test_another_accounts_voice_is_not_recognised(api: RunningApi) -> None:
    owner, other = api.customer(), api.customer()
    voice = name(api, owner, job_of(api, owner)).json()["data"]
    assert speaker(api, other, job_of(api, other)) == ("Speaker 1", None)
    assert listed(api, other) == []
    gone = api.client.delete(f"/voices/{voice['id']}", headers=other.headers)
    assert gone.status_code == 404
    assert [each["id"] for each in listed(api, owner)] == [voice["id"]]


def test_a_voice_is_learnt_from_several_speakers(api: RunningApi) -> None:
    customer = api.customer()
    first, second = job_of(api, customer), job_of(api, customer, OTHER)
    voice = name(api, customer, first).json()["data"]
    assert name(api, customer, first).json()["data"]["samples"] == 1
    assert name(api, customer, second).json()["data"] == {**voice, "samples": 2}
    assert speaker(api, customer, job_of(api, customer, OTHER)) == ("Anna", voice["id"])


def test_a_label_that_somebody_gives_takes_the_place_of_the_voice(api: RunningApi) -> None:
    customer = api.customer()
    name(api, customer, job_of(api, customer))
    later = job_of(api, customer)
    path = f"/jobs/{later}/speakers/speaker_0"
    api.client.put(path, json={"label": "Berta"}, headers=customer.headers)
    assert speaker(api, customer, later) == ("Berta", None)


def test_a_deleted_voice_is_nowhere(api: RunningApi) -> None:
    customer = api.customer()
    voice = name(api, customer, job_of(api, customer)).json()["data"]
    later = job_of(api, customer)
    answer = api.client.delete(f"/voices/{voice['id']}", headers=customer.headers)
    assert answer.json()["data"]["id"] == voice["id"]
    assert listed(api, customer) == []
    assert speaker(api, customer, later) == ("Speaker 1", None)
    assert speaker(api, customer, job_of(api, customer)) == ("Speaker 1", None)


def test_an_erased_job_takes_the_voice_that_is_learnt_from_it_alone_along(api: RunningApi) -> None:
    customer = api.customer()
    first, second = job_of(api, customer), job_of(api, customer, OTHER)
    name(api, customer, first)
    kept = name(api, customer, second, "Berta").json()["data"]
    later = job_of(api, customer)

    async def erase(connection: Connection) -> None:
        job = await jobs.find_job(connection, uuid.UUID(first))
        assert job is not None
        await cleaning.erase_content(connection, job)

    api.transact(erase)
    assert listed(api, customer) == [kept]
    assert speaker(api, customer, later) == ("Speaker 1", None)
    query = "SELECT count(*) FROM speaker_voices WHERE job_id = :job"
    assert api.sql(query, job=first) == [(0,)]


def test_an_erased_account_has_no_voices(api: RunningApi) -> None:
    customer = api.customer()
    name(api, customer, job_of(api, customer))
    api.transact(lambda connection: cleaning.erase_account(connection, customer.account_id))
    found = api.transact(lambda connection: voices.list_voices(connection, customer.account_id))
    assert found == []


@pytest.mark.parametrize("held", ["learnt from", "recognised in"])
def test_a_voice_of_a_job_under_a_legal_hold_stays(api: RunningApi, held: str) -> None:
    customer = api.customer()
    first, other = job_of(api, customer), job_of(api, customer, OTHER)
    voice = name(api, customer, first).json()["data"]
    free = name(api, customer, other, "Berta").json()["data"]
    later = job_of(api, customer)
    job = uuid.UUID(first if held == "learnt from" else later)
    api.transact(lambda c: cleaning.set_legal_hold(c, jobs_table, job, holds=True))
    path = f"/voices/{voice['id']}"
    refused = api.client.delete(path, headers=customer.headers)
    assert (refused.status_code, refused.json()["code"]) == (409, "LEGAL_HOLD")
    assert api.client.delete(f"/voices/{free['id']}", headers=customer.headers).status_code == 200
    assert speaker(api, customer, later) == ("Anna", voice["id"])
    name(api, customer, other, "Berta")
    assert api.transact(lambda c: cleaning.erase_account(c, customer.account_id))
    kept = api.transact(lambda c: voices.list_voices(c, customer.account_id))
    assert [str(each.id) for each in kept] == [voice["id"]]

    async def erase(connection: Connection) -> None:
        await cleaning.set_legal_hold(connection, jobs_table, job, holds=False)
        for each in (first, later):
            found = await jobs.find_job(connection, uuid.UUID(each))
            assert found is not None
            await cleaning.erase_content(connection, found)

    api.transact(erase)
    assert api.transact(lambda c: voices.list_voices(c, customer.account_id)) == []


@every(
    "given",
    ["", " ", "\u3000", "a\nb", "x" * 101, 7],
    ids=["none", "a space", "a wide space", "two lines", "too long", "no text"],
)
def test_a_name_that_is_none_is_refused(api: RunningApi, given: Any) -> None:
    customer = api.customer()
    answer = name(api, customer, job_of(api, customer), given)
    assert (answer.status_code, answer.json()["param"]) == (400, "name")


def test_a_job_that_did_not_ask_has_nothing_to_learn_from(api: RunningApi) -> None:
    customer = api.customer()
    answer = name(api, customer, job_of(api, customer, None))
    assert answer.json()["code"] == "RESULTS_UNAVAILABLE"
    assert listed(api, customer) == []


def test_the_numbers_of_voices_and_of_samples_are_bounded(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.voices.MOST_VOICES", 1)
    monkeypatch.setattr("serve_app.results.people.MOST_SAMPLES", 1)
    customer = api.customer()
    first, second = job_of(api, customer), job_of(api, customer)
    assert name(api, customer, first).status_code == 200
    for given in ("Anna", "Berta"):
        answer = name(api, customer, second, given)
        assert (answer.status_code, answer.json()["param"]) == (400, "name")
    assert [each["samples"] for each in listed(api, customer)] == [1]
