"""Names for speakers: what is shown follows, what is stored stays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from pipelines.codec import decode
from pipelines.speech.caption_rules import CaptionLimits
from serve_app.exports import captions
from serve_app.results import scenes, transcripts
from serve_app.results.transcripts import transcript_of
from storage.results import SceneSpan, get_scene_spans, list_transcripts
from tests.serve_app.published_jobs import SCENES, complete, created, track
from tests.serve_app.running_api import Customer, RunningApi


@pytest.fixture
def job(api: RunningApi, customer: Customer) -> str:
    job_id = created(api, customer)
    complete(api, job_id, [track(0)], [])
    return job_id


def name(
    api: RunningApi, customer: Customer, job: str, label: Any, query: str = ""
) -> dict[str, Any]:
    path = f"/jobs/{job}/speakers/speaker_0{query}"
    answer = api.client.put(path, json={"label": label}, headers=customer.headers)
    assert answer.status_code == 200, answer.text
    data: dict[str, Any] = answer.json()["data"]
    return data


def get(api: RunningApi, customer: Customer, path: str) -> str:
    answer = api.client.get(path, headers=customer.headers)
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/jobs/{job}/transcript", '"label":"Anna <Weber>"'),
        ("/jobs/{job}/transcript?format=vtt", "<v Anna &lt;Weber&gt;>"),
        ("/jobs/{job}/transcript?format=ttml", "Anna &lt;Weber&gt;"),
        ("/jobs/{job}/transcript?format=csv", '"Anna <Weber>"'),
        ("/jobs/{job}", '"Speaker":"Anna <Weber>"'),
    ],
)
def test_everything_that_shows_a_speaker_shows_the_label(
    api: RunningApi, customer: Customer, job: str, path: str, expected: str
) -> None:
    shown = name(api, customer, job, "  Anna <Weber> ")
    assert shown == {"id": "speaker_0", "label": "Anna <Weber>", "speakingSeconds": 0.86}
    found = get(api, customer, path.format(job=job)).replace('": "', '":"')
    assert expected in found
    assert "Speaker 1" not in found


def test_what_is_read_without_words_is_the_same_but_for_them(
    api: RunningApi, customer: Customer
) -> None:
    job_id = created(api, customer)
    complete(api, job_id, [track(0), track(1, error="TRANSCRIPT_FAILED")], [])
    name(api, customer, job_id, "Anna", "?track=0")
    job = uuid.UUID(job_id)
    whole = api.transact(lambda c: list_transcripts(c, job))
    found = api.transact(lambda c: list_transcripts(c, job, words=False))
    [segment] = transcript_of(whole[0]).segments
    assert transcript_of(found[0]).segments == (replace(segment, words=()),)
    assert [replace(each, document=None) for each in found] == [
        replace(each, document=None) for each in whole
    ]
    [span] = api.transact(lambda c: get_scene_spans(c, job))
    assert span == SceneSpan(0, 0, 12_480, SCENES[0]["description"])


def test_a_search_shows_the_label_beside_the_id(
    api: RunningApi, customer: Customer, job: str
) -> None:
    name(api, customer, job, "Anna")
    query = {"q": "morning", "kinds": "transcript"}
    answer = api.client.get("/search", params=query, headers=customer.headers)
    [hit] = answer.json()["data"]
    assert (hit["speaker"], hit["speakerLabel"]) == ("speaker_0", "Anna")


def test_the_stored_transcript_keeps_its_own(api: RunningApi, customer: Customer, job: str) -> None:
    name(api, customer, job, "Anna")
    stored = api.transact(lambda connection: _stored(connection, job))
    assert '"label": "Speaker 1"' in stored.replace('":"', '": "')
    assert "Anna" not in stored


def test_a_file_that_was_read_before_follows_every_change(
    api: RunningApi, customer: Customer, job: str
) -> None:
    def read() -> str:
        path = f"/jobs/{job}/transcript?format=vtt"
        assert get(api, customer, path) == get(api, customer, path)
        return get(api, customer, path).split("\n", 3)[3]

    assert read() == "<v Speaker 1>Good morning.\n"
    name(api, customer, job, "Anna")
    assert read() == "<v Anna>Good morning.\n"
    name(api, customer, job, "")
    assert read() == "<v Speaker 1>Good morning.\n"
    api.transact(lambda connection: _rewritten(connection, job))
    assert read() == "<v Speaker 1>Good evening.\n"


def test_a_transcript_has_turns_and_sounds(api: RunningApi, customer: Customer, job: str) -> None:
    data = json.loads(get(api, customer, f"/jobs/{job}/transcript"))["data"]
    assert data["turns"] == [{"speaker": "speaker_0", "startTime": 1.18, "endTime": 2.08}]
    assert data["sounds"] == [
        {"kind": "music", "startTime": 2.0, "endTime": 9.0, "confidence": 0.75}
    ]


@pytest.mark.parametrize("extension", ["srt", "vtt", "ttml", "ebu-tt-d", "ass"])
def test_captions_name_sounds_on_request(
    api: RunningApi, customer: Customer, job: str, extension: str
) -> None:
    path = f"/jobs/{job}/transcript?format={extension}"
    assert "[music]" not in get(api, customer, path)
    assert "[music]" in get(api, customer, f"{path}&sounds=true")
    assert "[music]" not in get(api, customer, f"{path}&sounds=false")


def test_files_are_kept_up_to_a_limit(
    api: RunningApi, customer: Customer, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/jobs/{job}/transcript?format=srt&maxLineLength="
    text = get(api, customer, f"{path}40")
    monkeypatch.setattr(captions, "_KEPT_CHARACTERS", 3 * len(text))
    for width in (41, 42, 43, 41):
        assert get(api, customer, f"{path}{width}") == text
    assert [getattr(key[3], "limits", None) for key in captions._kept] == [
        *map(CaptionLimits, (42, 43, 41))
    ]


async def _rewritten(connection: AsyncConnection, job: str) -> None:
    query = text(
        "UPDATE transcripts SET document = replace(document::text, 'morning', 'evening')::jsonb"
        " WHERE job_id = :job"
    )
    await connection.execute(query, {"job": job})


async def _stored(connection: AsyncConnection, job: str) -> str:
    query = text("SELECT document::text FROM transcripts WHERE job_id = :job")
    found: str = (await connection.execute(query, {"job": job})).scalar_one()
    return found


def test_an_empty_label_or_a_deletion_gives_the_first_one_back(
    api: RunningApi, customer: Customer, job: str
) -> None:
    for reset in ("", "   "):
        assert name(api, customer, job, "Anna")["label"] == "Anna"
        assert name(api, customer, job, reset)["label"] == "Speaker 1"
    name(api, customer, job, "Berta")
    for _ in range(2):
        answer = api.client.delete(f"/jobs/{job}/speakers/speaker_0", headers=customer.headers)
        assert answer.json()["data"]["label"] == "Speaker 1"


def test_speakers_of_several_tracks_are_named_apart(api: RunningApi, customer: Customer) -> None:
    job = created(api, customer)
    complete(api, job, [track(0), track(1)], [])
    name(api, customer, job, "Anna", "?track=1")
    for index, expected in enumerate(("Speaker 1", "Anna")):
        shown = get(api, customer, f"/jobs/{job}/audioTracks/{index}")
        assert expected in shown
    answer = api.client.put(
        f"/jobs/{job}/speakers/speaker_0", json={"label": "x"}, headers=customer.headers
    )
    assert (answer.status_code, answer.json()["param"]) == (400, "track")


@pytest.mark.parametrize("label", [None, 5, "a" * 101, "a\nb", "a\u0000"], ids=repr)
def test_a_bad_label_is_refused_by_name(
    api: RunningApi, customer: Customer, job: str, label: Any
) -> None:
    path = f"/jobs/{job}/speakers/speaker_0"
    answer = api.client.put(path, json={"label": label}, headers=customer.headers)
    assert (answer.status_code, answer.json()["param"]) == (400, "label")


def test_labels_go_with_the_job(api: RunningApi, customer: Customer, job: str) -> None:
    name(api, customer, job, "Anna")
    api.sql("DELETE FROM transcripts WHERE job_id = :j", j=job)
    assert api.sql("SELECT count(*) FROM speaker_labels WHERE job_id = :j", j=job) == [(0,)]


@pytest.mark.parametrize(
    "path", ["", "/scenes", "/transcript", "/transcript?format=srt", "/transcript?format=md"]
)
def test_long_results_are_read_and_written_aside_of_other_requests(
    api: RunningApi,
    customer: Customer,
    job: str,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    """Ten hours take a second: the event loop, which all share, goes on meanwhile."""
    on_the_loop: list[bool] = []

    def noted(*args: Any, **named: Any) -> Any:
        with contextlib.suppress(RuntimeError):
            on_the_loop.append(bool(asyncio.get_running_loop()))
        return decode(*args, **named)

    for module in (scenes, transcripts):
        monkeypatch.setattr(module, "decode", noted)
    get(api, customer, f"/jobs/{job}{path}")
    assert on_the_loop == []
