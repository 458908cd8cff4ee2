"""Results that version 0.1 stored, in the API's form, are answered as those that are stored now."""

from __future__ import annotations

import functools
import json
import uuid
from typing import Any

import pytest

from storage.results import list_thumbnail_keys
from storage.search_index import index_stage
from storage.types import StageName
from tests.serve_app import published_jobs
from tests.serve_app.dashboard.test_dashboard import run_sql
from tests.serve_app.dashboard.test_dashboard_pages import plain, signed_in
from tests.serve_app.published_jobs import SENTENCES, complete, created, track
from tests.serve_app.running_api import Customer, RunningApi

TRANSCRIPT: dict[str, Any] = {
    "speakers": [{"id": "speaker_0", "label": "Speaker 1", "speakingSeconds": 0.86}],
    "text": "Good morning.",
    "segments": [
        {
            "index": 0,
            "startTime": 1.2,
            "endTime": 2.06,
            "text": "Good morning.",
            "speaker": "speaker_0",
            "confidence": 0.96,
            "words": [
                {
                    "text": "Good",
                    "startTime": 1.2,
                    "endTime": 1.5,
                    "confidence": 0.98,
                    "speaker": "speaker_0",
                },
                {
                    "text": "morning.",
                    "startTime": 1.5,
                    "endTime": 2.06,
                    "confidence": 0.95,
                    "speaker": "speaker_0",
                },
            ],
        }
    ],
}
SCENES = [
    {name: value for name, value in scene.items() if name not in {"objectTracks", "onScreenText"}}
    for scene in published_jobs.SCENES
]
SUMMARY = [{"text": "Somebody says good morning.", "startTime": 1.2, "endTime": 2.06}]


@pytest.fixture(scope="module")
def owner(api: RunningApi) -> Customer:
    return api.customer()


def completed(api: RunningApi, customer: Customer) -> str:
    job_id = created(api, customer)
    scenes = [scene | {"objectTracks": [], "onScreenText": []} for scene in SCENES]
    complete(api, job_id, [track(0)], [], SENTENCES, scenes=scenes)
    return job_id


@pytest.fixture(scope="module")
def older(api: RunningApi, owner: Customer) -> str:
    """A job whose rows are as version 0.1 wrote them."""
    job_id = completed(api, owner)
    for table, column, value in (
        ("transcripts", "document", TRANSCRIPT),
        ("scene_lists", "scenes", SCENES),
        ("summaries", "sentences", SUMMARY),
    ):
        statement = f"UPDATE {table} SET {column} = CAST(:value AS json) WHERE job_id = :id"  # noqa: S608
        run_sql(api, statement, value=json.dumps(value), id=job_id)
    return job_id


@pytest.fixture(scope="module")
def newer(api: RunningApi, owner: Customer) -> str:
    return completed(api, owner)


PATHS = (
    "scenes",
    "export?format=csv",
    "transcript",
    *(f"transcript?format={name}" for name in ("srt", "vtt", "ttml", "txt", "md", "csv")),
    "chapters",
    "summary",
    "export?format=csv&content=chapters",
    "?include=transcript",
    "?include=scenes",
)


@pytest.mark.parametrize("path", PATHS)
def test_the_answers_are_the_same(
    api: RunningApi, owner: Customer, older: str, newer: str, path: str
) -> None:
    answers = []
    for job_id in (older, newer):
        address = f"/jobs/{job_id}{path if path.startswith('?') else f'/{path}'}"
        answer = api.client.get(address, headers=owner.headers)
        assert answer.status_code == 200, answer.text
        content: Any = answer.text
        if answer.headers["content-type"] == "application/json":
            data = answer.json()["data"]
            content = data.get("processedData", data)
            for name in ("jobId", "turns", "sounds"):  # version 0.1 had no turns and no sounds
                content.pop(name, None)
            for scene in content.get("scenes", []):
                assert scene.pop("thumbnailUrl").partition("?")[0].endswith("/thumbnails/0.jpg")
        answers.append(content)
    assert answers[0] == answers[1]
    assert "orning" in str(answers[0]) or "kitchen" in str(answers[0])


def test_a_transcript_without_speech_is_empty(api: RunningApi, owner: Customer, newer: str) -> None:
    job_id = completed(api, owner)
    silent = json.dumps({"speakers": [], "text": "", "segments": []})
    statement = "UPDATE transcripts SET document = CAST(:value AS json) WHERE job_id = :id"
    run_sql(api, statement, value=silent, id=job_id)
    data = api.client.get(f"/jobs/{job_id}/transcript", headers=owner.headers).json()["data"]
    nothing = {"speakers": [], "text": "", "segments": [], "turns": [], "sounds": []}
    kept = {"revision": 0, "calibrated": False}
    assert data == {"jobId": job_id, "language": "en", **kept, **nothing}


def test_the_pages_are_the_same(api: RunningApi, owner: Customer, older: str, newer: str) -> None:
    with signed_in(api, owner) as browser:
        for path in ("segments?from=0", "segments/outline", "segments/texts", "scenes?from=0",
                     "scenes/outline", "scenes/texts"):  # fmt: skip
            shown = [
                plain(browser.get(f"/dashboard/jobs/{job_id}/{path}")).replace(job_id, "")
                for job_id in (older, newer)
            ]
            assert shown[0] == shown[1]
        assert "Somebody says good morning." in plain(browser.get(f"/dashboard/jobs/{older}"))


def test_what_is_said_is_found_once_it_is_indexed(
    api: RunningApi, owner: Customer, older: str
) -> None:
    run_sql(api, "DELETE FROM search_rows WHERE job_id = :id", id=older)
    api.transact(lambda c: index_stage(c, uuid.UUID(older), StageName.TRANSCRIPT))
    api.transact(lambda c: index_stage(c, uuid.UUID(older), StageName.VISION))
    query = {"q": "morning", "kinds": "transcript", "jobId": older}
    [hit] = api.client.get("/search", params=query, headers=owner.headers).json()["data"]
    assert (hit["startTime"], hit["endTime"], hit["speaker"]) == (1.2, 2.06, "speaker_0")
    query |= {"q": "kitchen", "kinds": "scene"}
    [hit] = api.client.get("/search", params=query, headers=owner.headers).json()["data"]
    assert (hit["startTime"], hit["endTime"], hit["sceneIndex"]) == (0, 12.48, 0)


def test_its_stills_are_kept(api: RunningApi, older: str, newer: str) -> None:
    for job_id in map(uuid.UUID, (older, newer)):
        keys = api.transact(functools.partial(list_thumbnail_keys, job_id=job_id))
        assert keys == {"jobs/x/0.jpg"}
