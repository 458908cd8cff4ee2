"""Correcting a transcript: all that shows it follows, the rest stays, nothing is lost."""

from __future__ import annotations

import ast
import json
import multiprocessing
import signal
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json
from sqlalchemy import text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from benchmarks.speech.material import load
from models.contracts import SAMPLE_RATE_HZ
from pipelines.codec import encode
from pipelines.types import Speaker, SpeakerTurn, TranscriptResult
from serve_app.api import downloads
from serve_app.api.downloads import Download
from serve_app.client.api import ApiClient
from serve_app.results import edits
from storage import history, jobs
from storage.history import applied, difference
from storage.results import TrackTranscript
from storage.tables import stages, transcripts
from tests.pipelines.speech.test_edits import segment
from tests.places import DEMO, PROJECT
from tests.serve_app import eraser_process
from tests.serve_app.dashboard.test_dashboard_pages import signed_in
from tests.serve_app.interface_contract import DOCUMENT, Contract
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.tables import every

LINES = [("Good morning to the bakers.", "speaker_0"), ("Today it rains.", "speaker_1"),
         ("We sell green tees.", "speaker_0"), ("Come by.", "speaker_1")]  # fmt: skip


def said(index: int = 0) -> TrackTranscript:
    segments = tuple(
        segment(at, line, 5000 * at + 1000, who) for at, (line, who) in enumerate(LINES)
    )
    speakers = tuple(Speaker(f"speaker_{n}", f"Speaker {n + 1}", 5.0) for n in (0, 1))
    turns = tuple(SpeakerTurn(it.speaker or "", it.start_ms, it.end_ms) for it in segments)
    found = TranscriptResult("en", speakers, segments, turns=turns)
    return replace(track(index), document=encode(found).decode())


@pytest.fixture
def job(api: RunningApi, customer: Customer) -> str:
    job_id = created(api, customer)
    complete(api, job_id, [said()], [])
    return job_id


def patch(api: RunningApi, customer: Customer, job: str, **body: Any) -> httpx.Response:
    path = f"/jobs/{job}/transcript"
    return api.client.patch(path, json={"revision": 0} | body, headers=customer.headers)


def edit(api: RunningApi, customer: Customer, job: str, **body: Any) -> dict[str, Any]:
    answer = patch(api, customer, job, **body)
    assert answer.status_code == 200, answer.text
    data: dict[str, Any] = answer.json()["data"]
    return data


def revert(api: RunningApi, customer: Customer, job: str, **body: Any) -> httpx.Response:
    return api.client.post(f"/jobs/{job}/transcript/revert", json=body, headers=customer.headers)


def get(api: RunningApi, customer: Customer, path: str) -> Any:
    answer = api.client.get(path, headers=customer.headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"] if "json" in answer.headers["content-type"] else answer.text


def hits(api: RunningApi, customer: Customer, words: str) -> list[str]:
    found = api.client.get("/search", params={"q": words}, headers=customer.headers).json()["data"]
    return [hit["snippet"]["text"] for hit in found]


def test_all_that_shows_the_transcript_follows_a_correction(
    api: RunningApi, customer: Customer, job: str
) -> None:
    views = [f"/jobs/{job}/transcript?format={it}" for it in ("srt", "vtt", "ttml", "txt", "csv")]
    views += [f"/jobs/{job}", f"/jobs/{job}/transcript"]
    before = {path: json.dumps(get(api, customer, path)) for path in views}
    assert "tees" in before[views[0]]
    made = edit(api, customer, job, segments=[{"index": 2, "text": "We sell green quinoa."}])
    assert made["revision"] == 1
    assert [each["index"] for each in made["changes"]] == [2]
    for path in views:
        now = json.dumps(get(api, customer, path))
        assert ("quinoa" in now, "tees" in now) == (True, False), path
    assert hits(api, customer, "quinoa") == ["We sell green quinoa."]
    assert hits(api, customer, "tees") == []
    # A phrase over the border of two segments: the one before has what comes after it.
    assert hits(api, customer, '"rains we sell"') == ["Today it rains. We sell green quinoa."]
    chapters = json.dumps(get(api, customer, f"/jobs/{job}/chapters"))
    assert "tees" not in chapters
    with signed_in(api, customer) as browser:
        page = browser.get(f"/dashboard/jobs/{job}").text
        assert ("quinoa" in page, "tees" in page) == (True, False)


def test_what_is_not_corrected_stays_as_it_is(
    api: RunningApi, customer: Customer, job: str
) -> None:
    def rows(connection: AsyncConnection) -> Any:
        query = "SELECT id, text FROM search_rows WHERE job_id = :id AND kind = 'transcript'"
        return connection.execute(text(query), {"id": uuid.UUID(job)})

    before = get(api, customer, f"/jobs/{job}/transcript")
    ids = {row.text: row.id for row in api.transact(rows)}
    edit(api, customer, job, segments=[{"index": 2, "text": "We sell white teas."}])
    after = get(api, customer, f"/jobs/{job}/transcript")
    for at in (0, 1, 3):
        assert after["segments"][at] == before["segments"][at]
    assert after["segments"][2]["words"][:2] == before["segments"][2]["words"][:2]
    assert [word.get("timing") for word in after["segments"][2]["words"]] == [
        None, None, "estimated", "estimated"
    ]  # fmt: skip
    assert after["segments"][2]["timing"] == "estimated"
    # Their rows stay too, and with them their vectors.
    kept = {row.text: row.id for row in api.transact(rows)}
    for line in ("Good morning to the bakers.", "Come by."):
        assert kept[line] == ids[line]
    machine = get(api, customer, f"/jobs/{job}/transcript?revision=0")
    assert machine == before
    assert "tees" in get(api, customer, f"/jobs/{job}/transcript?revision=0&format=srt")


def test_a_speaker_who_is_changed_is_changed_everywhere(
    api: RunningApi, customer: Customer, job: str
) -> None:
    edit(api, customer, job, segments=[{"index": 1, "speaker": "speaker_0"}])
    found = get(api, customer, f"/jobs/{job}/transcript")
    assert {found["segments"][1]["speaker"], found["segments"][1]["words"][0]["speaker"]} == {
        "speaker_0"
    }
    assert [turn["speaker"] for turn in found["turns"]] == ["speaker_0"] * 3 + ["speaker_1"]
    assert [each["speakingSeconds"] for each in found["speakers"]] == [5.7, 0.9]
    assert "<v Speaker 1>Today" in get(api, customer, f"/jobs/{job}/transcript?format=vtt")
    before = get(api, customer, f"/jobs/{job}/transcript?revision=0")
    assert [each["speakingSeconds"] for each in before["speakers"]] == [5.0, 5.0]


def test_a_line_and_a_speaker_that_the_machine_missed_are_added(
    api: RunningApi, customer: Customer, job: str
) -> None:
    before = get(api, customer, f"/jobs/{job}/transcript")
    free = before["segments"][0]["endTime"] + 0.1
    line = {"startTime": free, "endTime": free + 0.8, "text": "Quite so.", "speaker": "speaker_2"}
    made = edit(api, customer, job, insert=[line], speakers=["speaker_2"])
    assert [(it["index"], it["removed"]) for it in made["changes"]] == [(1, 0)]
    after = get(api, customer, f"/jobs/{job}/transcript")
    assert [it["text"] for it in after["segments"]] == [
        before["segments"][0]["text"], "Quite so.", *(it["text"] for it in before["segments"][1:])
    ]  # fmt: skip
    assert [it["index"] for it in after["segments"]] == [*range(len(before["segments"]) + 1)]
    assert after["segments"][1]["timing"] == "estimated"
    new = after["speakers"][-1]
    assert (new["id"], new["label"]) == ("speaker_2", "Speaker 3")
    assert new["speakingSeconds"] == pytest.approx(0.8)
    assert hits(api, customer, "quite") == ["Quite so."]
    assert "Quite so." in get(api, customer, f"/jobs/{job}/transcript?format=srt")
    assert api.client.put(
        f"/jobs/{job}/speakers/speaker_2", json={"label": "Ann"}, headers=customer.headers
    ).is_success
    assert revert(api, customer, job, revision=1, to=0).is_success
    assert get(api, customer, f"/jobs/{job}/transcript")["segments"] == before["segments"]


def test_a_transcript_without_words_is_written_by_hand(api: RunningApi, customer: Customer) -> None:
    job = created(api, customer)
    empty = encode(TranscriptResult(None, (), ())).decode()
    complete(api, job, [replace(track(0), document=empty, language=None)], [])
    lines = [
        {"startTime": 4.0, "endTime": 5.0, "text": "Good evening.", "speaker": "speaker_0"},
        {"startTime": 1.0, "endTime": 2.0, "text": "Hello?"},
    ]
    edit(api, customer, job, insert=lines, speakers=["speaker_0"])
    found = get(api, customer, f"/jobs/{job}/transcript")
    assert [(it["text"], it["speaker"]) for it in found["segments"]] == [
        ("Hello?", None), ("Good evening.", "speaker_0")
    ]  # fmt: skip
    assert [it["speakingSeconds"] for it in found["speakers"]] == [1.0]


@every(
    ("body", "param"),
    [
        ({"insert": [{"startTime": 1.1, "endTime": 1.2, "text": "In"}]}, "insert[0].startTime"),
        ({"insert": [{"startTime": 0.2, "endTime": 5.5, "text": "In"}]}, "insert[0].endTime"),
        ({"insert": [{"startTime": 90, "endTime": 99, "text": "In"}]}, "insert[0].endTime"),
        ({"insert": [{"startTime": 0.5, "endTime": 0.4, "text": "In"}]}, "insert[0].endTime"),
        ({"insert": [{"startTime": 0.1, "endTime": 0.4, "text": " "}]}, "insert[0].text"),
        (
            {"insert": [{"startTime": 0, "endTime": 0.4, "text": "I", "speaker": "speaker_9"}]},
            "insert[0].speaker",
        ),
        (
            {"insert": [{"startTime": at, "endTime": 0.6, "text": "I"} for at in (0.1, 0.3)]},
            "insert[1].startTime",
        ),
        ({"speakers": ["speaker_0"]}, "speakers[0]"),
        ({"speakers": ["Ann"]}, "speakers[0]"),
        ({"speakers": ["speaker_5", "speaker_5"]}, "speakers[1]"),
    ],
)
def test_what_cannot_be_added_is_named(
    api: RunningApi, customer: Customer, job: str, body: dict[str, Any], param: str
) -> None:
    answer = patch(api, customer, job, **body)
    assert (answer.status_code, answer.json()["param"]) == (400, param), answer.text


def test_of_ten_writers_at_once_one_wins_each_time_and_nothing_is_lost(
    api: RunningApi, customer: Customer, job: str
) -> None:
    def write(revision: int, writer: int) -> httpx.Response:
        line = {"index": writer % 4, "text": f"Round {revision} of {writer}."}
        return patch(api, customer, job, revision=revision, segments=[line])

    expected = dict(enumerate(line for line, _ in LINES))
    with ThreadPoolExecutor(10) as writers:
        for revision in range(8):
            answers = [*writers.map(write, [revision] * 10, range(10))]
            [winner] = [at for at, answer in enumerate(answers) if answer.status_code == 200]
            lost = [answer.json() for at, answer in enumerate(answers) if at != winner]
            assert {(it["code"], it["currentRevision"]) for it in lost} == {
                ("REVISION_CONFLICT", revision + 1)
            }
            expected[winner % 4] = f"Round {revision} of {winner}."
            shown = get(api, customer, f"/jobs/{job}/transcript")
            assert shown["revision"] == revision + 1
            assert [each["text"] for each in shown["segments"]] == [*expected.values()]
    first = get(api, customer, f"/jobs/{job}/transcript?revision=0")
    assert [each["text"] for each in first["segments"]] == [line for line, _ in LINES]


def changed_while_prepared(
    api: RunningApi, job: str, monkeypatch: pytest.MonkeyPatch
) -> list[history.Change]:
    """Changes as they are prepared; another transaction locks the job meanwhile, and makes the
    first one stale."""
    prepare, prepared = history.prepare, list[history.Change]()

    async def touch(connection: AsyncConnection) -> None:
        await connection.execute(text("SET LOCAL lock_timeout = '20s'"))
        assert await jobs.find_job(connection, uuid.UUID(job), for_update=True)
        same = update(transcripts).where(transcripts.c.job_id == uuid.UUID(job))
        if len(prepared) == 1:
            await connection.execute(same.values(align_after=transcripts.c.align_after))

    def noted(read: history.ReadTranscript, change: history.Change) -> Any:
        prepared.append(change)
        api.transact(touch)
        return prepare(read, change)

    monkeypatch.setattr(history, "prepare", noted)
    return prepared


def test_an_edit_locks_nothing_while_it_is_made_and_is_made_again_of_what_changed_meanwhile(
    api: RunningApi, customer: Customer, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = edits._change
    seen: list[int] = []

    async def settle(connection: AsyncConnection) -> None:
        await connection.execute(text("SET LOCAL lock_timeout = '20s'"))
        assert await jobs.find_job(connection, uuid.UUID(job), for_update=True)
        held = await history.read_transcript(connection, uuid.UUID(job), 0)
        assert held is not None
        [first, *_] = held.document["segments"]
        made = history.prepare_aligned(held, [(first, first | {"end_ms": 1500})])
        await history.store_aligned(connection, made)

    def change(*given: Any) -> Any:
        seen.append(given[1].document["segments"][0]["end_ms"])
        if len(seen) == 1:
            api.transact(settle)
        return made(*given)

    edit(api, customer, job, segments=[{"index": 0, "text": "Good evening to the bakers."}])
    monkeypatch.setattr(edits, "_change", change)
    edit(api, customer, job, revision=1, segments=[{"index": 3, "text": "Come in."}])
    shown = get(api, customer, f"/jobs/{job}/transcript")
    assert (shown["segments"][0]["endTime"], shown["segments"][3]["text"]) == (1.5, "Come in.")
    assert (seen[1], len(seen)) == (1500, 2)


def test_an_edit_that_breaks_half_way_leaves_nothing(
    api: RunningApi, customer: Customer, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = get(api, customer, f"/jobs/{job}/transcript")

    async def break_down(*_: object, **__: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(edits, "record", break_down)  # the last statement of the transaction
        answer = patch(api, customer, job, segments=[{"index": 0, "text": "Good evening."}])
        assert answer.status_code == 500
    assert get(api, customer, f"/jobs/{job}/transcript") == before
    listed = get(api, customer, f"/jobs/{job}/transcript/revisions")["revisions"]
    assert [each["revision"] for each in listed] == [0]
    assert hits(api, customer, "morning") == ["Good morning to the bakers."]


@pytest.mark.parametrize("at_once", [1, history.MOST_CHANGE_BYTES])
def test_history_is_listed_and_taken_back(
    api: RunningApi, customer: Customer, job: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_READ_AT_ONCE_BYTES", at_once)
    states = [get(api, customer, f"/jobs/{job}/transcript")]
    bodies: list[dict[str, Any]] = [
        {"segments": [{"index": 0, "text": "Good evening to the bakers."}]},
        {"split": [{"index": 0, "word": 2}]},
        {"merge": [{"index": 2.0, "count": 3.0}], "segments": [{"index": 0, "text": ""}]},
        {"segments": [{"index": 0, "startTime": 1.5, "endTime": 3.25}]},
    ]
    for revision, body in enumerate(bodies):
        assert edit(api, customer, job, revision=revision, **body)["revision"] == revision + 1
        states.append(get(api, customer, f"/jobs/{job}/transcript"))
    for revision, state in enumerate(states):
        assert get(api, customer, f"/jobs/{job}/transcript?revision={revision}") == state
    assert [each["text"] for each in states[3]["segments"]] == [
        "to the bakers.", "Today it rains. We sell green tees. Come by."
    ]  # fmt: skip
    assert (states[4]["segments"][0]["startTime"], states[4]["segments"][0]["endTime"]) == (
        1.5,
        3.25,
    )
    made = revert(api, customer, job, revision=4, to=0)
    assert made.status_code == 200, made.text
    assert get(api, customer, f"/jobs/{job}/transcript") == states[0] | {"revision": 5}
    assert hits(api, customer, '"good morning"') == ["Good morning to the bakers."]
    listed = get(api, customer, f"/jobs/{job}/transcript/revisions")["revisions"]
    assert [each["revision"] for each in listed] == [5, 4, 3, 2, 1, 0]
    assert listed[0]["revertedTo"] == 0
    paged = get(api, customer, f"/jobs/{job}/transcript/revisions?before=3&limit=2")["revisions"]
    assert [each["revision"] for each in paged] == [2, 1]
    assert revert(api, customer, job, revision=5, to=6).json()["param"] == "to"
    assert revert(api, customer, job, revision=4).json()["code"] == "REVISION_CONFLICT"
    missing = api.client.get(f"/jobs/{job}/transcript?revision=6", headers=customer.headers)
    assert (missing.status_code, missing.json()["param"]) == (404, "revision")


def test_an_edit_that_changes_nothing_makes_no_revision(
    api: RunningApi, customer: Customer, job: str
) -> None:
    made = edit(api, customer, job, segments=[{"index": 3, "text": "Come by."}])
    assert (made["revision"], made["changes"]) == (0, [])


@every(
    ("body", "param"),
    [
        ({"segments": [{"index": 4, "text": "x"}]}, "segments[0].index"),
        ({"segments": [{"index": -1, "text": "x"}]}, "segments[0].index"),
        ({"segments": [{"index": 0, "text": "x" * 10_001}]}, "segments[0].text"),
        ({"segments": [{"index": 0, "text": "a\nb"}]}, "segments[0].text"),
        ({"segments": [{"index": 0, "text": "a\u0085b"}]}, "segments[0].text"),
        ({"segments": [{"index": 0, "text": "a\u202eb"}]}, "segments[0].text"),
        ({"segments": [{"index": 0, "text": "a\u2066b"}]}, "segments[0].text"),
        ({"segments": [{"index": 0, "speaker": "speaker_9"}]}, "segments[0].speaker"),
        ({"segments": [{"index": 0, "startTime": 3, "endTime": 2}]}, "segments[0].endTime"),
        ({"segments": [{"index": 0, "endTime": 9}]}, "segments[0].endTime"),
        ({"segments": [{"index": 3, "endTime": 96}]}, "segments[0].endTime"),
        ({"split": [{"index": 0, "word": 9}]}, "split[0].word"),
        ({"merge": [{"index": 3}]}, "merge[0].count"),
        ({"merge": [{"index": 0, "count": 1001}]}, "merge[0].count"),
        ({"segments": [{"index": 0, "text": "x"}] * 1001}, "segments"),
        ({"revision": -1, "split": [{"index": 0, "word": 1}]}, "revision"),
        ({"trackIndex": 1, "split": [{"index": 0, "word": 1}]}, "trackIndex"),
        ({}, None),
    ],
)
def test_bad_input_is_refused_and_named(
    api: RunningApi, customer: Customer, job: str, body: dict[str, Any], param: str | None
) -> None:
    before = get(api, customer, f"/jobs/{job}/transcript")
    answer = patch(api, customer, job, **body)
    assert answer.status_code == (404 if param == "trackIndex" else 400), answer.text
    assert answer.json().get("param") == param
    assert get(api, customer, f"/jobs/{job}/transcript") == before


def test_markup_is_text_like_any_other(api: RunningApi, customer: Customer, job: str) -> None:
    markup = "<b onclick=x()>Rain</b> {\\b1}tea"
    edit(api, customer, job, segments=[{"index": 1, "text": markup}])
    assert get(api, customer, f"/jobs/{job}/transcript")["segments"][1]["text"] == markup
    for form in ("vtt", "ttml", "ebu-tt-d", "srt"):
        file = get(api, customer, f"/jobs/{job}/transcript?format={form}")
        assert "<b onclick" not in file, form
    for form in ("srt", "ass"):
        assert "{\\b1}" not in get(api, customer, f"/jobs/{job}/transcript?format={form}"), form
    with signed_in(api, customer) as browser:
        page = browser.get(f"/dashboard/jobs/{job}").text
        assert ("<b onclick" in page, "&lt;b" in page) == (False, True)


def test_tracks_are_corrected_apart(api: RunningApi, customer: Customer) -> None:
    job = created(api, customer)
    complete(api, job, [said(0), track(1, error="TRANSCRIPT_FAILED"), said(2)], [])
    which = patch(api, customer, job, segments=[{"index": 3, "text": "Come in."}])
    assert (which.status_code, which.json()["param"]) == (400, "trackIndex")
    failed = patch(api, customer, job, trackIndex=1, segments=[{"index": 3, "text": "Come in."}])
    assert (failed.status_code, failed.json()["code"]) == (404, "RESULTS_UNAVAILABLE")
    edit(api, customer, job, trackIndex=2, segments=[{"index": 3, "text": "Come in."}])
    first, last = [get(api, customer, f"/jobs/{job}/transcript?track={n}") for n in (0, 2)]
    assert (first["revision"], first["segments"][3]["text"]) == (0, "Come by.")
    assert (last["revision"], last["segments"][3]["text"]) == (1, "Come in.")


def test_what_was_published_without_an_index_gets_all_of_it(
    api: RunningApi, customer: Customer, job: str
) -> None:
    async def forget(connection: AsyncConnection) -> None:
        await connection.execute(text("DELETE FROM search_rows"))
        await connection.execute(update(stages).values(indexed=None))

    api.transact(forget)
    edit(api, customer, job, segments=[{"index": 2, "text": "We sell quinoa."}])
    assert hits(api, customer, "quinoa") == ["We sell quinoa."]
    assert hits(api, customer, "bakers") == ["Good morning to the bakers."]


def test_revisions_are_finite(
    api: RunningApi, customer: Customer, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = update(transcripts).where(transcripts.c.job_id == uuid.UUID(job))
    api.transact(lambda c: c.execute(most.values(revision=history.MOST_REVISIONS)))
    body = {"revision": history.MOST_REVISIONS, "segments": [{"index": 0, "text": "x"}]}
    answer = patch(api, customer, job, **body)
    assert (answer.status_code, answer.json()["param"]) == (400, "revision")


@pytest.mark.parametrize(
    ("limit", "bound"),
    [
        ("MOST_CHANGE_BYTES", 1500),
        ("MOST_DOCUMENT_BYTES", 0),
        ("MOST_HISTORY_BYTES", 2500),
        ("MOST_ACCOUNT_HISTORY_BYTES", 2500),
    ],
)
def test_what_is_kept_of_corrections_is_finite(
    api: RunningApi,
    customer: Customer,
    job: str,
    limit: str,
    bound: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edit(api, customer, job, segments=[{"index": 0, "text": "Good day to the bakers."}])
    before = get(api, customer, f"/jobs/{job}/transcript")
    monkeypatch.setattr(edits, limit, bound)
    line = {"index": 0, "text": " ".join(["Good evening to the bakers"] * 5)}
    many = [line, *({"index": at, "text": f"{LINES[at][0]} So."} for at in (1, 2, 3))]
    answer = patch(api, customer, job, revision=1, segments=many)
    assert (answer.status_code, answer.json()["param"]) == (400, "segments"), answer.text
    assert get(api, customer, f"/jobs/{job}/transcript") == before
    # What fits is taken still, if need be in parts.
    edit(api, customer, job, revision=1, segments=[{"index": 3, "text": "Come"}])


def test_what_is_kept_of_corrections_is_counted_over_the_jobs_of_an_account_until_they_are_erased(
    api: RunningApi, customer: Customer, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(api, customer, job, segments=[{"index": 0, "text": "Good day to the bakers."}])
    other = created(api, customer)
    complete(api, other, [said()], [])
    monkeypatch.setattr(edits, "MOST_ACCOUNT_HISTORY_BYTES", 1000)
    line = {"index": 3, "text": "Come"}
    answer = patch(api, customer, other, segments=[line])
    assert (answer.status_code, answer.json()["param"]) == (400, "segments"), answer.text
    assert "account" in answer.json()["error"]
    assert api.client.post(f"/jobs/{job}/erase", headers=customer.headers).is_success
    edit(api, customer, other, segments=[line])


def test_going_back_stores_what_differs_and_no_more(
    api: RunningApi, customer: Customer, job: str
) -> None:
    for revision, at in enumerate((0, 3)):
        edit(api, customer, job, revision=revision, segments=[{"index": at, "text": "Hello."}])
    made = revert(api, customer, job, revision=2, to=0).json()["data"]
    assert [(each["index"], each["removed"]) for each in made["changes"]] == [(0, 1), (3, 1)]
    shown = get(api, customer, f"/jobs/{job}/transcript")
    assert [each["text"] for each in shown["segments"]] == [line for line, _ in LINES]


def test_a_correction_waits_for_an_erasure_and_finds_nothing(
    api: RunningApi, customer: Customer, job: str
) -> None:
    assert api.client.post(f"/jobs/{job}/erase", headers=customer.headers).is_success
    answer = patch(api, customer, job, segments=[{"index": 0, "text": "x"}])
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


_COMMITTED = 18


@pytest.mark.parametrize("moment", [8, 13, 17, _COMMITTED])
def test_a_correction_that_was_killed_is_made_whole_or_not_at_all(
    api: RunningApi, customer: Customer, job: str, moment: int
) -> None:
    lines = [{"index": 0, "text": "Good evening to the millers."}, {"index": 2, "text": "We rest."}]
    body = {"revision": 0, "segments": lines, "split": [{"index": 0, "word": 2}]}
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.serve_app.eraser_process"])
    arguments = (api.settings, customer.key, job, body, moment)
    victim = processes.Process(target=eraser_process.edit, args=arguments)
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL, "the moment comes after the end"
    before = [line for line, _ in LINES]
    after = ["Good evening", "to the millers.", "Today it rains.", "We rest.", "Come by."]

    def assert_whole(revision: int, texts: list[str]) -> None:
        shown = get(api, customer, f"/jobs/{job}/transcript")
        assert (shown["revision"], [each["text"] for each in shown["segments"]]) == (
            revision, texts
        )  # fmt: skip
        listed = get(api, customer, f"/jobs/{job}/transcript/revisions")["revisions"]
        assert [each["revision"] for each in listed] == [*range(revision, -1, -1)]
        query = "SELECT text FROM search_rows WHERE job_id = :job AND kind = 'transcript'"
        rows = api.sql(query, job=uuid.UUID(job))
        assert sorted(text for (text,) in rows) == sorted(texts)

    if moment == _COMMITTED:  # the client has no answer, and reads what became of it
        assert patch(api, customer, job, **body).json()["currentRevision"] == 1
    else:
        assert_whole(0, before)
        assert patch(api, customer, job, **body).status_code == 200
    assert_whole(1, after)


_SPLICES = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3)), max_size=3),
    max_size=5,
)


@given(_SPLICES)
def test_changes_lead_back_to_every_state(rounds: list[list[tuple[int, int, int]]]) -> None:
    document: dict[str, Any] = {"segments": [{"index": at, "text": at} for at in range(6)]}
    states, undo = [document], []
    for number, splices in enumerate(rounds):
        places, at = [], 0
        for gap, count, new in splices:  # in order, apart from each other
            first = at + gap
            if first + count > len(document["segments"]):
                break
            made = [{"index": 0, "text": f"{number}/{first}/{n}"} for n in range(new)]
            places.append((first, count, made))
            at = first + count + 1
        document, before = applied(document, {"splices": places})
        assert [it["index"] for it in document["segments"]] == [*range(len(document["segments"]))]
        states.append(document)
        undo.append(json.loads(json.dumps(before)))
    for state, change in zip(states[-2::-1], undo[::-1], strict=True):
        again = applied(document, difference(document, state))[0]
        document, _ = applied(document, change)
        assert document == again == state


@pytest.mark.parametrize("gaps", [{}, {"indent": 1}, {"separators": (",", ":")}])
@pytest.mark.parametrize("count", [0, 1, 250])
def test_a_document_is_decoded_and_written_in_short_parts(
    count: int, gaps: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [
        {"index": at, "text": '"segments": [ü', "words": [{"text": "a"}]} for at in range(count)
    ]
    document = {"language": "en", "segments": said, "turns": [{"speaker": "a"}]}
    stored, written = json.dumps(document, **gaps), json.dumps(document)
    sizes, decode, write = list[int](), from_json, json.dumps

    def decoded(text: str) -> Any:
        sizes.append(len(text))
        return decode(text)

    def noted(value: object) -> str:
        made = write(value)
        sizes.append(len(made))
        return made

    monkeypatch.setattr(history, "from_json", decoded)
    monkeypatch.setattr(json, "dumps", noted)
    found = history.document_of(stored)
    assert (found, [*found]) == (document, [*document])
    assert history.text_of(document) == written
    assert max(sizes) <= len(written) / 2 or count < 250


def test_a_large_transcript_is_corrected_in_its_accounts_turn_and_a_small_one_at_once(
    api: RunningApi, customer: Customer, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = api.app.state.downloads[Download.FILE].turns
    taken, turn = list[uuid.UUID](), turns.turn

    def noted(account_id: uuid.UUID) -> Any:
        taken.append(account_id)
        return turn(account_id)

    monkeypatch.setattr(turns, "turn", noted)
    edit(api, customer, job, segments=[{"index": 0, "text": "Good day."}])
    assert taken == []
    monkeypatch.setattr(downloads, "LARGE_CHARACTERS", 1)
    edit(api, customer, job, revision=1, segments=[{"index": 0, "text": "Good night."}])
    assert taken == [customer.account_id]


CONTRACT = Contract(DOCUMENT)


def review(api: RunningApi, customer: Customer, job: str, query: str = "") -> dict[str, Any]:
    answer = api.client.get(f"/jobs/{job}/review{query}", headers=customer.headers)
    CONTRACT.check("getReview", answer)
    assert answer.status_code == 200, answer.text
    data: dict[str, Any] = answer.json()["data"]
    return data


def test_a_review_has_stretches_within_the_budget_and_what_remains(
    api: RunningApi, customer: Customer, job: str
) -> None:
    whole = review(api, customer, job)
    assert whole["budgetSeconds"] == 300
    assert whole["calibrated"] is False
    words = sum(len(each["text"].split()) for each in whole["stretches"])
    assert whole["before"]["wrongWords"] == words / 2  # each has a confidence of 0.5
    assert set(whole["after"].values()) == {0}
    short = review(api, customer, job, "?budgetSeconds=4")
    assert 0 < short["reviewSeconds"] <= 4
    assert [each["text"] for each in short["stretches"]] == ["Good morning to the bakers."]
    assert short["after"]["wrongWords"] == words / 2 - 2.5


def test_what_was_corrected_is_not_offered_again(
    api: RunningApi, customer: Customer, job: str
) -> None:
    before = review(api, customer, job)
    edit(api, customer, job, segments=[{"index": 2, "text": "We sell green teas."}])
    after = review(api, customer, job)
    assert after["revision"] == 1
    assert after["uncheckedShare"] < before["uncheckedShare"] == 1
    offered = [index for each in after["stretches"] for index in each["segments"]]
    assert sorted(offered) == [0, 1, 3]
    edit(api, customer, job, revision=1, segments=[{"index": 2, "text": "We sell green tees."}])
    assert review(api, customer, job)["before"]["wrongWords"] <= before["before"]["wrongWords"]


@every("budget", ["0", "-1", "86401", "1.5", "many", ""])
def test_a_budget_is_a_whole_number_of_seconds_up_to_a_day(
    api: RunningApi, customer: Customer, job: str, budget: str
) -> None:
    path = f"/jobs/{job}/review?budgetSeconds={budget}"
    answer = api.client.get(path, headers=customer.headers)
    assert answer.status_code == 400
    assert answer.json()["param"] == "budgetSeconds"


def test_a_job_of_several_tracks_is_reviewed_track_by_track(
    api: RunningApi, customer: Customer
) -> None:
    job_id = created(api, customer)
    complete(api, job_id, [said(0), said(1)], [])
    answer = api.client.get(f"/jobs/{job_id}/review", headers=customer.headers)
    assert (answer.status_code, answer.json()["param"]) == (400, "track")
    assert review(api, customer, job_id, "?track=1")["trackIndex"] == 1
    assert get(api, customer, f"/jobs/{job_id}/review?track=0")["trackIndex"] == 0


SPANS = ((1.0, 3.4), (6.0, 7.4))
"""Of the first two lines that are said, in seconds."""


def notebook() -> dict[str, Any]:
    """The names that the notebook defines for reading corrections, and what these need."""
    cells = json.loads((PROJECT / "notebooks/04_fine_tune_whisper.ipynb").read_text())["cells"]
    [source] = [
        "".join(c["source"]) for c in cells if "def corrected_clips" in "".join(c["source"])
    ]
    defined = [
        node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    names: dict[str, Any] = {
        "np": np,
        "load": load,
        "json": json,
        "tempfile": tempfile,
        "Path": Path,
        "dataclass": dataclass,
        "SAMPLE_RATE_HZ": SAMPLE_RATE_HZ,
        "ApiClient": ApiClient,
        "__name__": __name__,
    }
    exec(compile(ast.Module([*defined], []), "notebook", "exec"), names)  # noqa: S102
    return names


def read(api: RunningApi, customer: Customer, job: str) -> list[Any]:
    with ApiClient(f"{api.root}/v1/api", customer.key) as client:
        found: list[Any] = notebook()["corrected_clips"](client, job)
        return found


def test_corrected_sentences_come_with_their_sound(api: RunningApi, customer: Customer) -> None:
    job = created(api, customer)
    complete(api, job, [said()], [])
    with api.context.objects.writer(f"jobs/{job}/source/clip-000") as stream:
        stream.write(DEMO.read_bytes())
    assert read(api, customer, job) == []
    lines = ["Good morning to Zorvane.", "Today it snows."]
    edit(api, customer, job, segments=[{"index": n, "text": it} for n, it in enumerate(lines)])
    clips = read(api, customer, job)
    assert [clip.text for clip in clips] == lines
    source = load(DEMO)
    for (start, end), clip in zip(SPANS, clips, strict=True):
        there = source[round(16_000 * (start - 0.2)) : round(16_000 * (end + 0.2))]
        assert abs(len(clip.samples) - len(there)) < 32
        energy = float((there**2).sum())
        assert abs(float((clip.samples**2).sum()) - energy) < 0.05 * energy


def test_a_redacted_job_is_left_out(api: RunningApi, customer: Customer) -> None:
    job = created(api, customer, redact=["name"])
    complete(api, job, [said()], [])
    assert read(api, customer, job) == []
