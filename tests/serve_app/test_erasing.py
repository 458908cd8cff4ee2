"""Erasing a job: what it was made of is nowhere any more, what it cost is."""

from __future__ import annotations

import logging
import multiprocessing
import re
import signal
import subprocess
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.codec import encode
from pipelines.types import Speaker, TranscriptResult
from storage.backup import dump_database
from storage.database import postgres_package
from storage.results import TrackTranscript
from tests.serve_app import eraser_process
from tests.serve_app.beside_jobs import make_due
from tests.serve_app.dashboard.test_dashboard_pages import signed_in
from tests.serve_app.published_jobs import SCENES, SENTENCES, SPOKEN, complete, created, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_retention import fill, remove
from tests.tables import every

MARKER = "zebrafish"
WARNING = {"code": "AUDIO_QUIET", "message": f"{MARKER} is quiet.", "stage": "ingest"}


def marked_track() -> TrackTranscript:
    words = tuple(replace(word, text=MARKER) for word in SPOKEN.words)
    segment = replace(SPOKEN, text=f"{MARKER} {MARKER}", words=words)
    speaker = Speaker("speaker_0", f"{MARKER} 1", 0.9)
    document = encode(TranscriptResult("en", (speaker,), (segment,))).decode()
    return replace(track(0), track_name=MARKER, document=document)


@pytest.fixture
def job(api: RunningApi, customer: Customer) -> str:
    """A job with a marker in everything that its media or its client named."""
    scene = SCENES[0] | {
        "description": f"A {MARKER}.",
        "objects": [MARKER],
        "onScreenText": [{**SCENES[0]["onScreenText"][0], "text": MARKER}],
    }
    job_id = created(
        api,
        customer,
        fileName=f"{MARKER}.mp4",
        metadata={MARKER: MARKER},
        keyterms=[MARKER],
        callbackUrl=f"https://{MARKER}.example.com/hook",
        idempotencyKey=f"key of {MARKER}",
    )
    summary = [replace(SENTENCES[0], text=f"A {MARKER} speaks.")]
    complete(api, job_id, [marked_track()], [WARNING], summary, [scene], SCENES[0])
    path = f"/jobs/{job_id}/speakers/speaker_0"
    assert api.client.put(path, json={"label": MARKER}, headers=customer.headers).is_success
    corrected = {"revision": 0, "segments": [{"index": 0, "text": f"{MARKER} speaks"}]}
    path = f"/jobs/{job_id}/transcript"
    assert api.client.patch(path, json=corrected, headers=customer.headers).is_success
    return job_id


def places_of(api: RunningApi, word: str, job_id: str = "") -> set[str]:
    """Tables with a row, of a job or any, that has the word, as text or in bytes."""
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    pattern, found = f"{word}|{word.encode().hex()}", set()
    for (name,) in api.sql(tables):
        query = f'SELECT count(*) FROM "{name}" AS r WHERE r::text ~ :pattern'  # noqa: S608
        query += " AND strpos(r::text, :job_id) > 0"
        [(count,)] = api.sql(query, pattern=pattern, job_id=job_id)
        found |= {name} if count else set()
    return found


def erase(api: RunningApi, customer: Customer, job_id: str) -> dict[str, Any]:
    answer = api.client.post(f"/jobs/{job_id}/erase", headers=customer.headers)
    assert answer.status_code == 202, answer.text
    data: dict[str, Any] = answer.json()["data"]
    return data


def test_nothing_of_an_erased_job_is_in_any_table(
    api: RunningApi, customer: Customer, job: str
) -> None:
    assert places_of(api, MARKER) >= {
        "jobs", "scene_lists", "transcripts", "summaries", "search_rows", "speaker_labels",
        "transcript_revisions",
        "webhook_events", "idempotency_records",
    }  # fmt: skip
    before = api.client.get(f"/jobs/{job}", headers=customer.headers).json()["data"]
    shown = erase(api, customer, job)
    assert places_of(api, MARKER) == set()
    assert (shown["state"], shown["chargedCents"]) == ("completed", before["chargedCents"])
    assert shown["durationSeconds"] == before["durationSeconds"]
    assert (shown["fileName"], shown["metadata"], shown["warnings"]) == ("erased", {}, [])
    read = api.client.get(f"/jobs/{job}", headers=customer.headers).json()["data"]
    assert read["processedData"].keys() == {"length"}
    assert erase(api, customer, job)["erasedAt"] == shown["erasedAt"]
    found = api.client.get(f"/search?q={MARKER}", headers=customer.headers).json()
    assert found["data"] == []


def test_nothing_of_an_erased_job_is_in_a_backup_made_after_or_in_the_log(
    api: RunningApi,
    customer: Customer,
    job: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    fill(api.context.objects, job)
    for path in ("transcript", "scenes", "summary", "export?format=csv", "chapters"):
        assert api.client.get(f"/jobs/{job}/{path}", headers=customer.headers).is_success
    erase(api, customer, job)
    remove(api, api.context.objects)
    dump_database(api.settings.database_url or "", tmp_path / "dump")
    versions = postgres_package().utils.POSTGRES_VERSIONS
    command = [versions[max(versions)] / "pg_restore", "--file=-", tmp_path / "dump"]
    text_of_it = subprocess.run(command, capture_output=True, check=True).stdout
    assert job.encode() in text_of_it
    assert MARKER.encode() not in text_of_it
    assert MARKER.encode().hex().encode() not in text_of_it
    records = [*caplog.get_records("setup"), *caplog.get_records("call")]
    ours = [each for each in records if not each.name.startswith(("httpcore", "httpx"))]
    assert not [each for each in ours if MARKER in each.getMessage() + str(each.__dict__)]
    store = api.context.objects
    assert not [key for key in store.list_keys("jobs") if MARKER.encode() in store.read_bytes(key)]


@every(
    "path",
    ["scenes", "transcript", "transcript?format=srt", "chapters", "summary", "export?format=csv",
     "captions/lint?rules=bbc", "clip?start=0&end=0.5"],
)  # fmt: skip
def test_results_of_an_erased_job_are_gone_for_good(
    api: RunningApi, customer: Customer, job: str, path: str
) -> None:
    api.client.get(f"/jobs/{job}/{path}", headers=customer.headers)  # Whatever is kept of it.
    erase(api, customer, job)
    answer = api.client.get(f"/jobs/{job}/{path}", headers=customer.headers)
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
    assert answer.json()["error"] == "The job was erased."


def test_the_pages_of_an_erased_job_show_that_it_is(
    api: RunningApi, customer: Customer, job: str
) -> None:
    with signed_in(api, customer) as browser:
        page = browser.get(f"/dashboard/jobs/{job}").text
        token = re.search(r'name="csrf" value="([^"]+)"', page)
        assert token
        answer = browser.post(f"/dashboard/jobs/{job}/erase", data={"csrf": token[1]})
        assert (answer.status_code, answer.headers["Location"]) == (303, f"/dashboard/jobs/{job}")
        page = browser.get(f"/dashboard/jobs/{job}").text
        assert "This job was erased" in page
        assert MARKER not in page + browser.get("/dashboard").text
        for kind in ("scenes", "segments"):
            assert browser.get(f"/dashboard/jobs/{job}/{kind}").status_code == 404


def test_signed_addresses_end_at_once_and_objects_with_the_next_round(
    api: RunningApi, customer: Customer, job: str
) -> None:
    store = api.context.objects
    fill(store, job)
    still = "/jobs/{job}/scenes"
    scenes = api.client.get(still.format(job=job), headers=customer.headers).json()["data"]
    address = scenes["scenes"][0]["thumbnailUrl"]
    erase(api, customer, job)
    assert api.client.get(address).status_code == 404
    remove(api, store)
    assert list(store.list_keys(f"jobs/{job}")) in ([], [f"jobs/{job}/work/stop-1"])


def test_a_job_that_runs_is_cancelled_first(api: RunningApi, customer: Customer) -> None:
    job_id = created(api, customer, fileName=f"{MARKER}.mp4")
    held = "SELECT held_cents FROM jobs WHERE id = :id"
    assert api.sql(held, id=uuid.UUID(job_id))[0][0] > 0
    shown = erase(api, customer, job_id)
    assert (shown["state"], shown["fileName"]) == ("cancelled", "erased")
    assert api.sql(held, id=uuid.UUID(job_id))[0][0] == 0
    assert places_of(api, MARKER) == set()


__all__ = ["job"]

MOMENTS = (2, 5, 8, 11, 14, 17, 19, 21, 22, 23)


@pytest.mark.parametrize(
    "moment", [pytest.param(each, marks=pytest.mark.long) for each in MOMENTS[1:-1]]
    + [MOMENTS[0], MOMENTS[-1]],
)  # fmt: skip
def test_nothing_is_left_of_a_job_whose_erasing_was_killed(
    api: RunningApi, customer: Customer, job: str, moment: int
) -> None:
    store = api.context.objects
    fill(store, job)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.serve_app.eraser_process"])
    arguments = (api.settings, customer.account_id, job, moment)
    victim = processes.Process(target=eraser_process.erase, args=arguments)
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL, "the moment comes after the end"
    begun = api.sql("SELECT erased_at FROM jobs WHERE id = :id", id=uuid.UUID(job))[0][0]
    assert bool(places_of(api, MARKER)) == (not begun)
    if not begun:  # All of it is there still, and the client has no answer: it comes again.
        erase(api, customer, job)
    assert places_of(api, MARKER) == set()
    # The lease of who was killed ends by itself after two minutes.
    make_due(api)
    remove(api, store)
    assert list(store.list_keys(f"jobs/{job}")) in ([], [f"jobs/{job}/work/stop-1"])
    assert list(store.list_partials(f"jobs/{job}")) == []
