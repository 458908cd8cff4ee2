"""Redacted jobs: nothing that shows them has what is hidden, but one request that is audited."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import threading
import uuid
import wave
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import av
import cv2
import httpx
import numpy as np
import numpy.typing as npt
import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from benchmarks.speech.plain_loop import transcribe_samples
from models.provider import LocalModels
from models.tasks import EntityRecognizer
from pipelines.across.redaction import Known, Places, cover_pictures, redact_scenes
from pipelines.across.redaction_patterns import PersonalData
from pipelines.codec import decode, encode, from_json, to_json
from pipelines.ingest.clip import NAME, ClipOrder, copy
from pipelines.ingest.pipeline import probe
from pipelines.media.files import Source
from pipelines.speech.pipeline import TranscriptConfig
from pipelines.types import (
    AudioTrack,
    IngestResult,
    Scene,
    Speaker,
    StageCode,
    StageError,
    TimedSentence,
    TrackOutcome,
    TranscriptResult,
    VisionResult,
)
from serve_app.app import operation_routes
from serve_app.context import AppContext, build_context
from serve_app.jobs import service
from serve_app.media.source import PlayableMedia, find_media
from serve_app.protocols import answers  # noqa: F401  (the form of the callback)
from serve_app.results import edits
from serve_app.results.redaction import want_preview
from serve_app.results.transcripts import track_transcript
from serve_app.work import publishing
from serve_app.work.previews import make_job_preview
from serve_app.work.publishing import Lease
from serve_app.work.redacting import redact as redact_job
from serve_app.work.redacting import redact_tracks
from serve_app.work.runner import JobDriver
from serve_app.work.stage_work import Calibration, StageWork
from storage import history, jobs
from storage.audit import list_entries
from storage.objects import ObjectStore
from storage.results import TrackTranscript
from storage.tables import AuditEntry, comparisons, search_rows, transcript_revisions, translations
from storage.types import StageName
from storage.work import lease_next
from tests.pipelines.speech.test_edits import segment
from tests.places import PROJECT
from tests.serve_app.beside_jobs import make_due, step
from tests.serve_app.dashboard.test_dashboard_pages import signed_in
from tests.serve_app.interface_contract import DOCUMENT, Contract
from tests.serve_app.published_jobs import SCENES, complete, created, lease_of, media, stored, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_erasing import places_of
from tests.serve_app.test_transcript_edits import changed_while_prepared
from tests.stills import RED, jpeg
from tests.tables import every

CONTRACT = Contract(DOCUMENT)
LINES = (
    "Hello, my name is Zebulon Quimby today.",
    "Write to zebulon dot quimby at example dot com soon.",
    "Or call five five five one two three four now.",
)
MARKERS = re.compile("zebulon|quimby|five five|5551234", re.IGNORECASE)
FORMATS = ("json", "srt", "vtt", "ttml", "ebu-tt-d", "ass", "txt", "md", "csv")
EXPORTS = ("edl", "otio", "fcpxml", "chapters", "csv", "json")
KINDS = ["email", "phone", "name"]
PARTS = (
    "", "/captions?rules=bbc&track=0", "/scenes", "/segments", "/scenes/outline", "/scenes/texts",
    "/segments/outline", "/segments/texts", "/changes",
)  # fmt: skip


def said(lines: Sequence[str] = LINES) -> TrackTranscript:
    segments = tuple(segment(at, line, 20_000 * at + 1000, "speaker_0") for at, line in
                     enumerate(lines))  # fmt: skip
    found = TranscriptResult("en", (Speaker("speaker_0", "Speaker 1", 9.0),), segments)
    return replace(track(0), document=encode(found).decode())


def written() -> list[dict[str, Any]]:
    [scene] = SCENES
    line = scene["onScreenText"][0] | {"text": "Zebulon Quimby, zebulon.quimby@example.com"}
    return [scene | {"onScreenText": [line], "description": "A note to Zebulon Quimby."}]


@pytest.fixture
def job(api: RunningApi, customer: Customer) -> Iterator[str]:
    job_id = created(api, customer)
    summary = [TimedSentence("Zebulon Quimby gives his address.", 1000, 9000)]
    complete(api, job_id, [said()], [], summary=summary, scenes=written(), overview=written()[0])
    yield job_id
    api.sql("DELETE FROM work")


def redact(api: RunningApi, customer: Customer, job: str, kinds: Any = KINDS) -> httpx.Response:
    body = {"kinds": kinds}
    return api.client.post(f"/jobs/{job}/redact", json=body, headers=customer.headers)


def read(api: RunningApi, customer: Customer, path: str) -> httpx.Response:
    return api.client.get(path, headers=customer.headers)


def at_work(api: RunningApi) -> None:
    """A runner's redactor, in a loop of its own."""

    async def redact_all(context: AppContext) -> None:
        while await step(context, redact_job):
            pass

    at_work_on(api, redact_all)


def at_work_on(api: RunningApi, work: Callable[[AppContext], Awaitable[None]]) -> None:
    async def run() -> None:
        context = build_context(api.settings, recognizer=api.context.recognizer)
        try:
            await work(context)
        finally:
            await context.database.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(run())).result()


def shown_everywhere(api: RunningApi, customer: Customer, job: str) -> dict[str, str]:
    """What every operation that reads a job, and every page of it, answers with 200."""
    named = {"jobId": job, "trackIndex": "0", "language": "de", "speakerId": "speaker_0"}
    paths = [
        path
        for route in operation_routes()
        if "GET" in (route.methods or ())
        and "{jobId}" in route.path
        and "/events" not in route.path
        for path in [route.path.removeprefix("/v1/api")]
        if {*re.findall(r"\{(\w+)\}", path)} <= {*named}
    ]
    paths = [re.sub(r"\{(\w+)\}", lambda it: named[it[1]], path) for path in paths]
    paths += [f"/jobs/{job}/transcript?format={form}" for form in FORMATS]
    paths += [f"/jobs/{job}/transcript?language=de", f"/jobs/{job}/captions/lint?rules=bbc"]
    paths += [f"/jobs/{job}/export?format={form}" for form in EXPORTS]
    paths += ["/jobs", *(f"/search?q={word}" for word in ("zebulon", "quimby", "hello", "write"))]
    shown = {path: read(api, customer, path) for path in paths}
    with signed_in(api, customer) as browser:
        for part in PARTS:
            shown[f"page {part}"] = browser.get(f"/dashboard/jobs/{job}{part}")
    return {path: answer.text for path, answer in shown.items() if answer.status_code == 200}


def test_nothing_that_reads_a_redacted_job_has_what_is_hidden(
    api: RunningApi, customer: Customer, job: str
) -> None:
    before = shown_everywhere(api, customer, job)
    having = {path for path, text in before.items() if MARKERS.search(text)}
    assert len(having) > 15, sorted(having)
    asked = redact(api, customer, job)
    assert asked.status_code == 202, asked.text
    CONTRACT.check("redactJob", asked)
    assert asked.json()["data"]["redaction"] == {"kinds": KINDS, "status": "pending"}
    at_work(api)
    after = shown_everywhere(api, customer, job)
    left = {path for path, text in after.items() if MARKERS.search(text)}
    assert left <= {"/search?q=zebulon", "/search?q=quimby"}, left  # the words of the question
    assert {path for path in before if path not in after} == set()
    found = read(api, customer, f"/jobs/{job}").json()["data"]
    CONTRACT.check("getJob", read(api, customer, f"/jobs/{job}"))
    assert found["redaction"] == {"kinds": KINDS, "status": "completed"}
    text = read(api, customer, f"/jobs/{job}/transcript?format=txt").text
    for line in ("my name is [name] today.", "Write to [email] soon.", "Or call [phone] now."):
        assert line in text
    for word in ("zebulon", "quimby"):
        hits = read(api, customer, f"/search?q={word}").json()["data"]
        assert [hit for hit in hits if hit.get("jobId") == job] == []


def test_a_callback_that_quotes_the_transcript_is_written_again(
    api: RunningApi, customer: Customer, job: str
) -> None:
    api.sql(
        "UPDATE jobs SET callback_url = 'https://example.com/hook', source = source || "
        """ '{"protocol": {"name": "deepgram", "punctuate": true}}' WHERE id = :id""",
        id=job,
    )

    async def write(context: AppContext) -> None:
        await context.database.write(service.replay, job)

    def body() -> str:
        query = "SELECT body FROM webhook_events WHERE job_id = :id"
        [(found,)] = api.sql(query, id=job)
        return bytes(found).decode()

    at_work_on(api, write)
    assert MARKERS.search(body())
    redact(api, customer, job)
    at_work(api)
    assert '"transcript": "Hello, my name is [name] today.' in body()
    assert not MARKERS.search(body())


def test_what_is_hidden_once_is_hidden_in_every_text_of_the_job(
    api: RunningApi, customer: Customer
) -> None:
    job = created(api, customer)
    shown = SCENES[0]["onScreenText"][0]
    scene = SCENES[0] | {
        "onScreenText": [
            shown | {"text": it} for it in ("PARIS", "CARLO", "OMAR", "BREAKING NEWS")
        ],
        "description": "A sign reads “PARIS” above elodie and carlo's shop.",
        "objects": ["omar", "sign"],
    }
    lines = ("We flew to Paris with Élodie Moreau.", "We met carlo and MOREAU in paris.")
    summary = [TimedSentence("Omar opens a shop with ELODIE in paris.", 1000, 9000)]
    complete(api, job, [said(lines)], [], summary=summary, scenes=[scene], overview=scene)
    path, label = f"/jobs/{job}/speakers/speaker_0", {"label": "Mr. Moreau"}
    assert api.client.put(path, json=label, headers=customer.headers).is_success
    markers = re.compile("paris|carlo|omar|[eé]lodie|moreau", re.IGNORECASE)
    before = shown_everywhere(api, customer, job)
    having = {path for path, text in before.items() if markers.search(text)}
    assert len(having) > 20, sorted(having)
    redact(api, customer, job, ["name", "place"])
    at_work(api)
    after = shown_everywhere(api, customer, job)
    assert not [path for path, text in after.items() if markers.search(text)]
    scenes = read(api, customer, f"/jobs/{job}/scenes").json()["data"]["scenes"]
    assert [it["text"] for it in scenes[0]["onScreenText"]] == [
        "[place]", "[name]", "[name]", "BREAKING NEWS"
    ]  # fmt: skip
    assert scenes[0]["description"] == "A sign reads “[place]” above [name] and [name]'s shop."
    speakers = read(api, customer, f"/jobs/{job}/transcript").json()["data"]["speakers"]
    assert [it["label"] for it in speakers] == ["Speaker 1"]
    for word in ("paris", "carlo", "omar", "moreau"):
        hits = read(api, customer, f"/search?q={word}").json()["data"]
        assert [hit for hit in hits if hit.get("jobId") == job] == []


def test_the_original_is_read_by_an_explicit_request_that_the_audit_log_has(
    api: RunningApi, customer: Customer, job: str
) -> None:
    redact(api, customer, job)
    at_work(api)
    refused = read(api, customer, f"/jobs/{job}/transcript?revision=0")
    assert (refused.status_code, refused.json()["param"]) == (404, "revision")
    for form in ("srt", "txt"):
        path = f"/jobs/{job}/transcript?original=true&format={form}"
        assert read(api, customer, path).json()["param"] == "original"

    def entries() -> list[AuditEntry]:
        found = api.transact(lambda c: list_entries(c, customer.account_id))
        return [each for each in found if each.action == "read_original_transcript"]

    assert entries() == []
    original = read(api, customer, f"/jobs/{job}/transcript?original=true")
    assert "Zebulon Quimby" in original.json()["data"]["text"]
    [entry] = entries()
    assert (str(entry.job_id), entry.request_id) == (job, original.json()["requestId"])


def test_corrections_of_a_redacted_job_are_redacted_before_they_are_stored(
    api: RunningApi, customer: Customer, job: str
) -> None:
    redact(api, customer, job)
    at_work(api)
    revision = read(api, customer, f"/jobs/{job}/transcript").json()["data"]["revision"]
    edit = {"index": 0, "text": "Hello, my name is Zebulon Quimby, zebulon@quimby.com, indeed."}
    answer = api.client.patch(
        f"/jobs/{job}/transcript",
        json={"revision": revision, "segments": [edit]},
        headers=customer.headers,
    )
    assert answer.status_code == 200, answer.text
    assert MARKERS.search(answer.text) is None
    reverted = api.client.post(
        f"/jobs/{job}/transcript/revert",
        json={"revision": answer.json()["data"]["revision"], "to": 0},
        headers=customer.headers,
    )
    assert reverted.status_code == 200, reverted.text
    assert MARKERS.search(reverted.text) is None
    after = shown_everywhere(api, customer, job)
    assert not [path for path, text in after.items() if MARKERS.search(text) and "q=" not in path]

    async def later(connection: AsyncConnection) -> list[Any]:
        query = select(transcript_revisions.c.before).where(
            transcript_revisions.c.job_id == uuid.UUID(job), transcript_revisions.c.revision > 1
        )
        return [*(await connection.execute(query)).scalars()]

    assert MARKERS.search(json.dumps(api.transact(later))) is None


def test_what_is_redacted_from_the_start_is_published_redacted(
    api: RunningApi, customer: Customer
) -> None:
    job = created(api, customer, redact=KINDS)
    document = said().document or ""
    outcome = TrackOutcome(0, "Mic 0", decode(TranscriptResult, document.encode()))
    kinds = frozenset(map(PersonalData, KINDS))
    made = redact_tracks([outcome], kinds, api.context.recognizer)
    complete(
        api, job, [*map(track_transcript, made.tracks)], [], before=made.before, muted=made.muted
    )
    after = shown_everywhere(api, customer, job)
    assert not [path for path, text in after.items() if MARKERS.search(text) and "q=" not in path]
    shown = read(api, customer, f"/jobs/{job}/transcript").json()["data"]
    assert (shown["revision"], "[name]" in shown["text"]) == (1, True)
    original = read(api, customer, f"/jobs/{job}/transcript?original=true").json()["data"]
    assert [each["text"] for each in original["segments"]] == [*LINES]
    muted = api.transact(lambda c: history.find_muted(c, uuid.UUID(job)))
    assert len(muted) == 3

    async def rows(connection: AsyncConnection) -> list[str]:
        query = select(search_rows.c.text).where(search_rows.c.job_id == uuid.UUID(job))
        return [*(await connection.execute(query)).scalars()]

    assert MARKERS.search(" ".join(api.transact(rows))) is None


def test_a_translation_is_made_again_of_what_is_left(
    api: RunningApi, customer: Customer, job: str
) -> None:
    document = json.dumps({"0": json.loads(said().document or "")})
    api.sql(
        "INSERT INTO translations (job_id, language, status, price_cents, source, documents,"
        " completed_at) VALUES (:id, 'de', 'completed', 7, 'x', CAST(:made AS json), now())",
        id=job,
        made=document,
    )
    assert MARKERS.search(read(api, customer, f"/jobs/{job}/transcript?language=de").text)
    redact(api, customer, job)
    at_work(api)
    answer = read(api, customer, f"/jobs/{job}/transcript?language=de").json()
    assert answer["code"] == "RESULTS_NOT_READY"

    async def kept(connection: AsyncConnection) -> Any:
        query = select(translations.c.documents, translations.c.price_cents)
        return (await connection.execute(query)).one()

    assert tuple(api.transact(kept)) == (None, 7)


def test_comparisons_that_quote_what_is_redacted_are_removed(
    api: RunningApi, customer: Customer, job: str
) -> None:
    api.sql(
        "INSERT INTO comparisons (account_id, before_id, after_id, source, state, document,"
        " completed_at) VALUES (:account, :id, :id, '', 'completed', '{}', now())",
        account=customer.account_id,
        id=job,
    )
    redact(api, customer, job)
    at_work(api)

    async def kept(connection: AsyncConnection) -> Any:
        return await connection.scalar(select(func.count()).select_from(comparisons))

    assert api.transact(kept) == 0


@every(
    ("kinds", "param"),
    [
        ([], "kinds"),
        (["email", "email"], "kinds"),
        (["email", "shoes"], "kinds[1]"),
        ("all", "kinds"),
    ],
)
def test_unknown_kinds_are_refused_by_name(
    api: RunningApi, customer: Customer, job: str, kinds: Any, param: str
) -> None:
    answer = redact(api, customer, job, kinds)
    assert (answer.status_code, answer.json()["param"]) == (400, param)
    body = {"url": "https://media.example.com/clip.mp4", "redact": kinds}
    answer = api.client.post("/jobs/from-url", json=body, headers=customer.headers)
    assert (answer.status_code, answer.json()["param"]) == (400, param.replace("kinds", "redact"))


def test_a_redaction_is_extended_never_undone(
    api: RunningApi, customer: Customer, job: str
) -> None:
    redact(api, customer, job, ["email"])
    at_work(api)
    assert "Zebulon Quimby" in read(api, customer, f"/jobs/{job}/transcript").text
    assert redact(api, customer, job, ["name"]).json()["data"]["redaction"]["kinds"] == [
        "email", "name",
    ]  # fmt: skip
    at_work(api)
    text = read(api, customer, f"/jobs/{job}/transcript").json()["data"]["text"]
    assert ("[name]" in text, "[email]" in text, "five five five" in text) == (True, True, True)


def test_nothing_is_redacted_before_its_job_has_ended_or_under_a_legal_hold(
    api: RunningApi, customer: Customer, job: str
) -> None:
    running = created(api, customer)
    assert redact(api, customer, running).json()["code"] == "RESULTS_NOT_READY"
    api.client.post(f"/jobs/{running}/cancel", headers=customer.headers)
    api.sql("UPDATE jobs SET legal_hold_at = now() WHERE id = :id", id=job)
    assert redact(api, customer, job).json()["code"] == "LEGAL_HOLD"


SPOKEN = PROJECT / "tests" / "media" / "speech" / "one_voice.flac"
TRUTH = json.loads((SPOKEN.parent / "truth.json").read_text())["one_voice.flac"]["sentences"]


@pytest.fixture
def silent(api: RunningApi, customer: Customer) -> Iterator[str]:
    """A job of spoken sentences whose second is redacted."""
    api.sql("DELETE FROM work")
    answer = api.client.post(
        "/jobs", json={"fileName": "spoken.flac", "redact": ["phone"]}, headers=customer.headers
    )
    job = answer.json()["data"]
    httpx.put(job["uploadUrl"], content=SPOKEN.read_bytes(), trust_env=False).raise_for_status()
    job_id: str = job["jobId"]
    media = probe(SPOKEN)
    span = TRUTH[1]["start_ms"] - 100, TRUTH[1]["end_ms"] + 100

    async def publish(connection: AsyncConnection) -> None:
        lease = await lease_of(connection, job_id)
        await publishing.start_stage(connection, lease, StageName.INGEST)
        await publishing.raise_hold(connection, lease, media, api.context.prices)
        await publishing.publish_ingest(
            connection, lease, media=media, result=to_json(IngestResult(media, None, ())),
            track_names=["Track 1"], warnings=[], timings={},
        )  # fmt: skip
        await publishing.publish_transcripts(
            connection, lease, [track(0)], {}, before={0: {"splices": []}}, muted=[span]
        )
        found = await jobs.find_job(connection, lease.job_id)
        assert found is not None
        await want_preview(api.context, connection, found)

    api.transact(publish)
    yield job_id
    api.sql("DELETE FROM work")


def heard(content: bytes) -> npt.NDArray[np.float32]:
    """Mono samples at 16 kHz, from the time 0 on."""
    resampler = av.AudioResampler(format="flt", layout="mono", rate=16_000)
    with av.open(io.BytesIO(content)) as container:
        frames = [*container.decode(audio=0), None]
    blocks = [out.to_ndarray()[0] for each in frames for out in resampler.resample(each)]
    return np.concatenate(blocks)


def assert_silent_in_the_second_sentence_only(content: bytes) -> None:
    samples = heard(content)
    for number, sentence in enumerate(TRUTH):
        stretch = samples[sentence["start_ms"] * 16 : sentence["end_ms"] * 16]
        loudest = float(np.abs(stretch).max())
        assert loudest < 0.01 if number == 1 else loudest > 0.1, (number, loudest)


def clip_of(api: RunningApi, customer: Customer, job: str) -> httpx.Response:
    end = TRUTH[2]["end_ms"] / 1000
    return read(api, customer, f"/jobs/{job}/clip?start=0&end={end}")


def test_clips_and_previews_are_silent_where_something_was_redacted(
    api: RunningApi, customer: Customer, silent: str
) -> None:
    clip = clip_of(api, customer, silent)
    assert clip.status_code == 200, clip.text
    assert_silent_in_the_second_sentence_only(clip.content)

    def media() -> PlayableMedia:
        async def find(connection: AsyncConnection) -> PlayableMedia:
            found = await jobs.find_job(connection, uuid.UUID(silent))
            assert found is not None
            return await find_media(api.context, connection, found)

        return api.transact(find)

    waiting = media()
    assert (waiting.player, waiting.source) == (None, None)
    with signed_in(api, customer) as browser:
        page = browser.get(f"/dashboard/jobs/{silent}").text
    assert (
        "the personal data of this job is hidden, so its media is not given out as it was" in page
    )
    assert "A copy that is silent there is being made." in page
    assert "as the operator has set" not in page

    async def make(context: AppContext) -> None:
        while await step(context, make_job_preview):
            pass

    at_work_on(api, make)
    made = media()
    assert (made.player is not None, made.source) == (True, None)
    address = str(api.client.base_url).removesuffix("/v1/api/").removesuffix("/v1/api")
    for query in ("", "&original=true"):
        answer = httpx.get(f"{address}{made.player}{query}", trust_env=False)
        assert answer.status_code == 200, answer.text
        assert_silent_in_the_second_sentence_only(answer.content)


@pytest.mark.long
def test_a_silent_clip_transcribed_again_has_nothing_of_what_was_redacted(
    api: RunningApi, customer: Customer, silent: str, tmp_path: Path
) -> None:
    samples = heard(clip_of(api, customer, silent).content)
    found = transcribe_samples(samples, tmp_path, LocalModels(), TranscriptConfig())
    text = " ".join(each.text.lower() for each in found.segments)
    assert "market" not in text
    assert "mountains" in text


def test_the_sound_of_a_job_that_waits_for_its_redaction_is_not_given_out(
    api: RunningApi, customer: Customer, silent: str
) -> None:
    api.sql("UPDATE jobs SET redact_after = now() + interval '1 hour' WHERE id = :id",
            id=silent)  # fmt: skip
    answer = clip_of(api, customer, silent)
    assert (answer.status_code, answer.json()["code"]) == (409, "RESULTS_NOT_READY")
    api.sql("UPDATE jobs SET redact_after = NULL WHERE id = :id", id=silent)


def test_what_a_rerun_replaced_is_redacted_too_and_none_undoes_it(
    api: RunningApi, customer: Customer, job: str
) -> None:
    other = created(api, customer)
    complete(api, other, [said()], [], scenes=written())
    api.sql("UPDATE jobs SET rerun_of = :first WHERE id = :id", first=job, id=other)
    redact(api, customer, job)
    at_work(api)
    for path in (f"/jobs/{other}/transcript", f"/jobs/{other}/scenes"):
        answer = read(api, customer, path)
        assert (answer.status_code, MARKERS.search(answer.text)) == (200, None)
    basis = api.transact(lambda c: history.get_basis(c, uuid.UUID(job)))
    assert basis.corrected, "a rerun would bring the words back"
    running = created(api, customer)
    api.sql("UPDATE jobs SET rerun_of = :first WHERE id = :id", first=job, id=running)
    answer = redact(api, customer, job, ["place"])
    assert (answer.status_code, answer.json()["code"]) == (409, "RESULTS_NOT_READY")
    api.client.post(f"/jobs/{running}/cancel", headers=customer.headers)


def test_a_file_that_states_no_layout_of_its_channels_is_silenced_too(tmp_path: Path) -> None:
    samples = np.full(4 * 16_000, 9_000, np.int16)
    samples[::40] = -9_000
    source = tmp_path / "tone.wav"
    with wave.open(str(source), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    order = ClipOrder(Source(source), False, None, tmp_path, 0, 4000, 0, ((1000, 3000),))
    assert copy(order, lambda _: None).container == "matroska"
    found = heard((tmp_path / NAME).read_bytes())
    loud, quiet = found[4_000:15_000], found[17_000:47_000]
    assert float(np.abs(loud).max()) > 0.2
    assert float(np.abs(quiet).max()) < 0.02


def test_a_redaction_that_breaks_ends_as_failed_and_is_tried_again_when_asked(
    api: RunningApi, customer: Customer, silent: str
) -> None:
    def broken() -> EntityRecognizer:
        raise RuntimeError("no model of names")

    async def try_once(context: AppContext) -> None:
        with contextlib.suppress(RuntimeError):
            await step(replace(context, recognizer=broken), redact_job)

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = read(api, customer, f"/jobs/{silent}").json()["data"]["redaction"]
        return found

    spoken = "UPDATE transcripts SET document = CAST(:document AS json) WHERE job_id = :id"
    api.sql(spoken, document=said().document, id=silent)
    redact(api, customer, silent, ["name"])
    for _ in range(redact_job.attempts or 0):
        assert shown()["status"] == "pending"
        make_due(api)
        at_work_on(api, try_once)
    assert shown() == {
        "kinds": ["phone", "name"],
        "status": "failed",
        "reason": "Redacting broke (RuntimeError).",
    }
    CONTRACT.check("getJob", read(api, customer, f"/jobs/{silent}"))
    assert clip_of(api, customer, silent).json()["code"] == "RESULTS_UNAVAILABLE"
    again = redact(api, customer, silent, ["name"])
    assert again.json()["data"]["redaction"]["status"] == "pending"
    at_work(api)
    assert shown() == {"kinds": ["phone", "name"], "status": "completed"}
    assert "Zebulon" not in read(api, customer, f"/jobs/{silent}/transcript").text


def test_a_redaction_whose_redactors_are_lost_is_given_up(
    api: RunningApi, customer: Customer, job: str
) -> None:
    async def lose(context: AppContext) -> None:
        assert (await lease_next(context.database, [redact_job.terms]))[0]

    redact(api, customer, job)
    for _ in range(redact_job.attempts or 0):
        at_work_on(api, lose)
        make_due(api)
    at_work(api)
    redaction = read(api, customer, f"/jobs/{job}").json()["data"]["redaction"]
    assert redaction["status"] == "failed"
    assert "lost" in redaction["reason"]


def test_stills_of_a_redacted_job_do_not_show_what_is_hidden(
    api: RunningApi, customer: Customer, job: str
) -> None:
    key = written()[0]["thumbnailKey"]
    api.context.objects.write_bytes(key, jpeg(RED))
    [scene] = read(api, customer, f"/jobs/{job}/scenes").json()["data"]["scenes"]
    redact(api, customer, job, ["card"])
    at_work(api)
    assert api.client.get(scene["thumbnailUrl"]).content == jpeg(RED)
    redact(api, customer, job, ["email"])
    at_work(api)
    answer = api.client.get(scene["thumbnailUrl"])
    still = cv2.imdecode(np.frombuffer(answer.content, np.uint8), cv2.IMREAD_COLOR)
    assert still is not None
    assert int(np.ptp(still)) < 8, "results of before there were times: all of it is covered"


def test_no_still_of_an_erased_job_comes_back(
    api: RunningApi, customer: Customer, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = written()[0]["thumbnailKey"]
    api.context.objects.write_bytes(key, jpeg(RED))

    def erased_meanwhile(store: ObjectStore, places: Places) -> None:
        answer = api.client.post(f"/jobs/{job}/erase", headers=customer.headers)
        assert answer.status_code == 202
        cover_pictures(store, places)

    redact(api, customer, job)
    monkeypatch.setattr("pipelines.across.redaction.cover_pictures", erased_meanwhile)
    at_work(api)
    assert not api.context.objects.exists(key)


def test_a_redacted_job_is_erased_with_what_redaction_hides(
    api: RunningApi, customer: Customer
) -> None:
    job = created(api, customer)
    complete(api, job, [said(["Hello, my name is Ottokar Wolfram today."])], [])
    redact(api, customer, job, ["name"])
    at_work(api)
    assert "Ottokar" not in read(api, customer, f"/jobs/{job}/transcript").text
    assert "Ottokar" in read(api, customer, f"/jobs/{job}/transcript?original=true").text
    assert places_of(api, "Ottokar") == {"transcript_revisions"}
    answer = api.client.post(f"/jobs/{job}/erase", headers=customer.headers)
    assert answer.status_code == 202, answer.text
    assert places_of(api, "[Oo]ttokar|[Ww]olfram") == set()
    assert "redaction" not in read(api, customer, f"/jobs/{job}").json()["data"]
    assert read(api, customer, f"/jobs/{job}/transcript?original=true").status_code == 404


def test_a_redaction_is_prepared_without_a_lock_and_again_of_what_changed_meanwhile(
    api: RunningApi, customer: Customer, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    redact(api, customer, job)
    prepared = changed_while_prepared(api, job, monkeypatch)
    at_work(api)
    assert len(prepared) == 2
    assert MARKERS.search(read(api, customer, f"/jobs/{job}/transcript").text) is None


class Planted:
    """What the analyses of a job find; the ``late`` one once the other was looked for often."""

    def __init__(self, spoken: str, seen: str, late: StageName | None = None) -> None:
        self.spoken, self.seen, self.late = spoken, seen, late
        self.rounds = threading.Semaphore(0)
        """Released after each time that everything was read."""

    def _found(self, stage: StageName) -> None:
        for _ in range(3 if stage is self.late else 0):
            assert self.rounds.acquire(timeout=60)

    def vision(self, *_: object) -> VisionResult:
        scene = replace(from_json(Scene, stored(SCENES)[0]), description=self.seen)
        self._found(StageName.VISION)
        return VisionResult((scene,), scene)

    def transcribe(self, *_: object) -> TranscriptResult:
        found = decode(TranscriptResult, (said(self.spoken.split("|")).document or "").encode())
        self._found(StageName.TRANSCRIPT)
        return found


def ingested(api: RunningApi, job: str) -> Lease:
    found = media(1)
    result = IngestResult(found, None, (AudioTrack(0, "Mic 0", "none", 95.2),))

    async def publish(connection: AsyncConnection) -> Lease:
        lease = await lease_of(connection, job)
        await publishing.start_stage(connection, lease, StageName.INGEST)
        await publishing.raise_hold(connection, lease, found, api.context.prices)
        await publishing.publish_ingest(
            connection, lease, media=found, result=to_json(result), track_names=["Mic 0"],
            warnings=[], timings={},
        )  # fmt: skip
        return lease

    return api.transact(publish)


def drive(api: RunningApi, lease: Lease) -> Thread:
    """A runner's work on a job whose media is there."""

    async def run(context: AppContext) -> None:
        with ThreadPoolExecutor(2) as threads:
            settings = context.settings.model_copy(update={"model_profile": "packaged"})
            packaged = replace(context, settings=settings)
            calibration = Calibration("packaged")
            await JobDriver(packaged, LocalModels(), lease, threads, calibration).run()

    thread = Thread(target=at_work_on, args=(api, run))
    thread.start()
    return thread


FOUND_IN_SOUND = "Hello, my name is Wendelin Thackeray today.", "the thackeray house by the river"
FOUND_IN_PICTURES = "well wendelin came home then", "A man waves, his name is Wendelin."
PLANTED = re.compile("wendelin|thackeray", re.IGNORECASE)


@pytest.mark.parametrize("late", [StageName.VISION, StageName.TRANSCRIPT])
@pytest.mark.parametrize("planted", [FOUND_IN_SOUND, FOUND_IN_PICTURES])
def test_what_one_stage_finds_is_hidden_in_the_other_before_any_of_it_is_shown(
    api: RunningApi,
    customer: Customer,
    monkeypatch: pytest.MonkeyPatch,
    planted: tuple[str, str],
    late: StageName,
) -> None:
    found = Planted(*planted, late=late)
    monkeypatch.setattr(StageWork, "_stages", lambda *_: found)
    job = created(api, customer, redact=["name"], callbackUrl="https://hooks.example.com/vas")
    working, shown = drive(api, ingested(api, job)), ""
    while working.is_alive():
        paths = [f"/jobs/{job}", f"/jobs/{job}/scenes", f"/jobs/{job}/transcript", "/search?q=the"]
        shown += "".join(read(api, customer, path).text for path in paths)
        found.rounds.release()
    assert PLANTED.search(shown) is None
    after = shown_everywhere(api, customer, job)
    assert read(api, customer, f"/jobs/{job}").json()["data"]["state"] == "completed"
    assert not [path for path, text in after.items() if PLANTED.search(text)]
    [scene] = read(api, customer, f"/jobs/{job}/scenes").json()["data"]["scenes"]
    [segment] = read(api, customer, f"/jobs/{job}/transcript").json()["data"]["segments"]
    assert "[name]" in scene["description"]
    assert "[name]" in segment["text"]
    # Webhooks, receipts and rows of the search have nothing of it either.
    assert places_of(api, "[Ww]endelin|[Tt]hackeray", job) == {"transcript_revisions"}


def test_a_stage_hides_what_an_earlier_runner_found_in_the_other(
    api: RunningApi, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = created(api, customer, redact=["name"])
    lease, known = ingested(api, job), Known(uuid.UUID(job).bytes)
    monkeypatch.setattr(StageWork, "_stages", lambda *_: Planted(*FOUND_IN_PICTURES))
    scenes = [replace(from_json(Scene, stored(SCENES)[0]), description=FOUND_IN_PICTURES[1])]
    made = redact_scenes(scenes, {PersonalData.NAME}, api.context.recognizer, known)
    api.transact(
        lambda c: publishing.publish_scenes(c, lease, to_json(made), {}, known=known)
    )  # and then it is lost
    drive(api, lease).join()
    [segment] = read(api, customer, f"/jobs/{job}/transcript").json()["data"]["segments"]
    assert segment["text"] == "well [name] came home then"


def test_a_rerun_hides_what_was_hidden_in_the_job_and_the_other_way_round(
    api: RunningApi, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = "Hello, my name is Theodor Thackeray today.|well wendelin came home then"
    monkeypatch.setattr(StageWork, "_stages", lambda *_: Planted(spoken, "A house."))
    job = created(api, customer, redact=["name"])
    drive(api, ingested(api, job)).join()
    assert "wendelin" in read(api, customer, f"/jobs/{job}/transcript").text
    seen = "A man waves, his name is Wendelin. the thackeray house by the river"
    monkeypatch.setattr(StageWork, "_stages", lambda *_: Planted("", seen))
    again = created(api, customer, redact=["name"], processingMode="vision")
    api.sql("UPDATE jobs SET rerun_of = :first WHERE id = :id", first=job, id=again)
    drive(api, ingested(api, again)).join()
    [scene] = read(api, customer, f"/jobs/{job}/scenes").json()["data"]["scenes"]
    assert "house by the river" in scene["description"]
    assert PLANTED.search(scene["description"]) is None
    at_work(api)
    assert "well [name] came" in read(api, customer, f"/jobs/{job}/transcript?format=txt").text


def test_a_stage_that_fails_keeps_the_other_one_not_waiting(
    api: RunningApi, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Planted(*FOUND_IN_SOUND)

    def broken(*_: object) -> VisionResult:
        raise StageError(StageCode.VISION_FAILED, "No picture.")

    monkeypatch.setattr(found, "vision", broken)
    monkeypatch.setattr(StageWork, "_stages", lambda *_: found)
    job = created(api, customer, redact=["name"])
    drive(api, ingested(api, job)).join()
    assert read(api, customer, f"/jobs/{job}").json()["data"]["state"] == "failed"
    assert "[name]" in read(api, customer, f"/jobs/{job}/transcript").text


def test_corrections_and_labels_hide_what_was_hidden_elsewhere_in_the_job(
    api: RunningApi, customer: Customer
) -> None:
    job = created(api, customer)
    scene = SCENES[0] | {"description": "A man waves, his name is Melchior."}
    complete(api, job, [said(["Well then, hello.", "So it goes."])], [], scenes=[scene])
    redact(api, customer, job, ["name"])
    at_work(api)
    path = f"/jobs/{job}/transcript"
    lines = [{"index": 0, "text": "then he saw melchior at the door"}]
    answer = api.client.patch(
        path, json={"revision": 0, "segments": lines}, headers=customer.headers
    )
    assert answer.status_code == 200, answer.text
    [change] = answer.json()["data"]["changes"]
    assert change["segments"][0]["text"] == "then he saw [name] at the door"
    label = {"label": "Mr. MELCHIOR"}
    named = api.client.put(f"/jobs/{job}/speakers/speaker_0", json=label, headers=customer.headers)
    assert named.json()["data"]["label"] == "Mr. [name]"
    after = shown_everywhere(api, customer, job)
    assert not [path for path, text in after.items() if "melchior" in text.lower()]
    assert places_of(api, "[Mm]elchior|MELCHIOR") == set(), "it is kept as a digest only"
    hidden = "SELECT kind FROM hidden_phrases WHERE job_id = :job"
    assert ("name",) in api.sql(hidden, job=uuid.UUID(job))
    api.client.post(f"/jobs/{job}/erase", headers=customer.headers)
    assert api.sql(hidden, job=uuid.UUID(job)) == []


def test_what_a_correction_has_is_hidden_in_the_texts_that_were_there_before(
    api: RunningApi, customer: Customer
) -> None:
    job = created(api, customer)
    scene = SCENES[0] | {"description": "the quimby house by the river"}
    complete(api, job, [said(["Well then, hello.", "So it goes."])], [], scenes=[scene])
    redact(api, customer, job, ["name"])
    at_work(api)
    assert MARKERS.search(read(api, customer, f"/jobs/{job}/scenes").text)
    lines = [{"index": 0, "text": "My name is Zebulon Quimby."}]
    body = {"revision": 0, "segments": lines}
    path = f"/jobs/{job}/transcript"
    assert api.client.patch(path, json=body, headers=customer.headers).is_success
    at_work(api)
    assert MARKERS.search(read(api, customer, f"/jobs/{job}/scenes").text) is None


def test_what_is_hidden_of_a_job_is_finite(
    api: RunningApi, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = created(api, customer)
    complete(api, job, [said(["Well then, hello.", "So it goes."])], [])
    redact(api, customer, job, ["name"])
    at_work(api)
    hidden = "SELECT count(*) FROM hidden_phrases WHERE job_id = :job"
    [(before,)] = api.sql(hidden, job=uuid.UUID(job))
    monkeypatch.setattr(edits, "MOST_PHRASES", before + 2)

    def patched(revision: int, text: str) -> httpx.Response:
        body = {"revision": revision, "segments": [{"index": 0, "text": text}]}
        return api.client.patch(f"/jobs/{job}/transcript", json=body, headers=customer.headers)

    made = patched(0, "My name is Zebulon Quimby.")
    assert made.is_success, made.text
    refused = patched(1, "My name is Ottokar Wolfram.")
    assert (refused.status_code, refused.json()["param"]) == (400, "segments")
    assert patched(1, "My name is Zebulon Quimby, hello.").is_success
