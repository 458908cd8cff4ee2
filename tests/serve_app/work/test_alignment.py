"""Words of a correction get measured times beside the jobs, as long as their sound is kept."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, text, update

from benchmarks.speech.material import load
from models.provider import LocalModels
from pipelines.codec import encode, to_json
from pipelines.media.audio import write_flac
from pipelines.types import AudioTrack, TranscriptResult, TranscriptSegment, TranscriptWord
from serve_app.work.alignment import align as alignment
from storage.database import Connection
from storage.results import TrackTranscript
from storage.tables import jobs
from tests.places import SHARED_MEDIA
from tests.serve_app.beside_jobs import do, make_due
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_transcript_edits import (
    changed_while_prepared,
    edit,
    get,
    hits,
    patch,
    said,
)

LIBRIVOX = SHARED_MEDIA / "speech" / "librivox-austen-0880.wav"


def add_sound(api: RunningApi, job: str, samples: Any, offset_seconds: float = 0.0) -> None:
    key = f"jobs/{job}/audio/track-0.flac"
    with api.context.objects.writer(key) as stream:
        write_flac(stream, [samples])
    kept = to_json(AudioTrack(0, "Mic 0", key, len(samples) / 16_000, offset_seconds))

    async def note(connection: Connection) -> None:
        tracks = func.jsonb_set(
            jobs.c.ingest_result, text("'{tracks}'"), text(f"'{json.dumps([kept])}'")
        )
        await connection.execute(
            update(jobs).values(ingest_result=tracks).filter_by(id=uuid.UUID(job))
        )

    api.transact(note)


def align(api: RunningApi, models: Any = None) -> bool:
    return do(api, alignment, models)


def noise(seconds: float) -> Any:
    return (np.random.default_rng(0).standard_normal(round(16_000 * seconds)) * 0.1).astype(
        np.float32
    )


@pytest.fixture
def job(api: RunningApi, customer: Customer) -> str:
    while align(api):  # what other tests left
        pass
    job_id = created(api, customer)
    complete(api, job_id, [said()], [])
    return job_id


def words(api: RunningApi, customer: Customer, job: str, index: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get(api, customer, f"/jobs/{job}/transcript")["segments"][index][
        "words"
    ]
    return found


def test_measured_times_take_the_place_of_estimated_ones(
    api: RunningApi, customer: Customer, job: str
) -> None:
    add_sound(api, job, noise(20))
    before = get(api, customer, f"/jobs/{job}/transcript")
    edit(api, customer, job, segments=[{"index": 2, "text": "We sell green quinoa here."}])
    assert align(api)
    assert not align(api)
    after = get(api, customer, f"/jobs/{job}/transcript")
    assert after["revision"] == 1
    line = after["segments"][2]
    assert "timing" not in json.dumps(line)
    assert line["words"][:3] == before["segments"][2]["words"][:3]
    assert [after["segments"][at] for at in (0, 1, 3)] == [
        before["segments"][at] for at in (0, 1, 3)
    ]
    edges = [edge for word in line["words"] for edge in (word["startTime"], word["endTime"])]
    assert edges == sorted(edges)
    assert edges[-1] <= after["segments"][3]["startTime"]
    assert hits(api, customer, "quinoa") == ["We sell green quinoa here."]
    assert get(api, customer, f"/jobs/{job}/transcript?revision=0") == before


def test_without_the_sound_times_stay_estimated_and_say_so(
    api: RunningApi, customer: Customer, job: str
) -> None:
    edit(api, customer, job, segments=[{"index": 0, "text": "Good evening to the bakers."}])
    assert align(api)  # the job has no track of sound
    add_sound(api, job, noise(10))
    api.context.objects.delete_prefix(f"jobs/{job}")
    edit(api, customer, job, revision=1, segments=[{"index": 3, "text": "Come in."}])
    assert align(api)  # it is not kept any more
    assert not align(api)
    assert words(api, customer, job, 0)[1]["timing"] == "estimated"
    assert words(api, customer, job, 3)[1]["timing"] == "estimated"


def test_what_is_corrected_meanwhile_is_kept_and_aligned_next(
    api: RunningApi, customer: Customer, job: str
) -> None:
    add_sound(api, job, noise(20))
    first = [{"index": 0, "text": "Good evening to the bakers."}, {"index": 3, "text": "Come in."}]
    edit(api, customer, job, segments=first)

    class Slow:
        def find(self, task: Any) -> Any:
            return self.get(task)

        def get(self, task: Any) -> Any:
            body = {"revision": 1, "segments": [{"index": 0, "text": "Good night to the bakers."}]}
            patch(api, customer, job, **body)  # the first time; then it is stale
            return LocalModels().get(task)

    assert align(api, Slow())
    shown = get(api, customer, f"/jobs/{job}/transcript")
    assert shown["segments"][0]["text"] == "Good night to the bakers."
    assert shown["segments"][0]["timing"] == "estimated"
    assert "timing" not in shown["segments"][3]
    assert align(api)
    assert "timing" not in json.dumps(get(api, customer, f"/jobs/{job}/transcript"))


def test_aligned_words_are_prepared_without_a_lock_and_again_of_what_changed_meanwhile(
    api: RunningApi, customer: Customer, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_sound(api, job, noise(20))
    edit(api, customer, job, segments=[{"index": 3, "text": "Come in."}])
    prepared = changed_while_prepared(api, job, monkeypatch)
    assert align(api)
    assert len(prepared) == 2
    assert "timing" not in json.dumps(get(api, customer, f"/jobs/{job}/transcript"))


def test_a_model_that_fails_is_tried_again_and_given_up_after_an_hour(
    api: RunningApi, customer: Customer, job: str
) -> None:
    class Broken:
        def find(self, task: Any) -> Any:
            return None

        def get(self, task: Any) -> Any:
            raise RuntimeError("away")

    add_sound(api, job, noise(10))
    edit(api, customer, job, segments=[{"index": 0, "text": "Good evening to the bakers."}])
    attempts = alignment.attempts or 0
    assert attempts * alignment.pause >= timedelta(hours=1)
    for _ in range(attempts):
        with pytest.raises(RuntimeError):
            align(api, Broken())
        assert not align(api), "put off"
        make_due(api)
    assert not align(api)
    assert words(api, customer, job, 0)[1]["timing"] == "estimated"


def spoken(truth: list[tuple[str, int, int]]) -> TrackTranscript:
    timed = tuple(TranscriptWord(word, start, end, 0.9, None) for word, start, end in truth)
    line = " ".join(word.text for word in timed)
    found = TranscriptSegment(0, timed[0].start_ms, timed[-1].end_ms, line, None, 0.9, timed)
    return replace(track(0), document=encode(TranscriptResult("en", (), (found,))).decode())


@pytest.mark.shared_media
@pytest.mark.skipif(not LIBRIVOX.is_file(), reason="no shared media beside the project")
def test_a_wrong_word_that_is_corrected_is_where_it_is_spoken(
    api: RunningApi, customer: Customer, job: str
) -> None:
    found = json.loads(LIBRIVOX.with_suffix(".words.json").read_text())["w"]
    truth = [
        (each["t"].split("(")[0], round(1000 * each["b"]), round(1000 * (each["b"] + each["d"])))
        for each in found
        if each["t"] != "<sil>"
    ]
    job = created(api, customer)
    complete(api, job, [spoken(truth)], [])
    add_sound(api, job, load(LIBRIVOX))
    texts, off_ms = [word for word, _, _ in truth], []
    for at, (word, start_ms, _) in enumerate(truth[:3]):
        for nth, put in enumerate(("banana", word)):
            line = " ".join([*texts[:at], put, *texts[at + 1 :]])
            change = {"index": 0, "text": line}
            edit(api, customer, job, revision=2 * at + nth, segments=[change])
            align(api)
        off_ms.append(abs(1000 * words(api, customer, job, 0)[at]["startTime"] - start_ms))
    assert np.median(off_ms) <= 80
