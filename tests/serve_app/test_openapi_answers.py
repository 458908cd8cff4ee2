"""Answers of the running API, held to the interface document: every operation, and its errors."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from models.contracts import Box
from pipelines.codec import to_json
from pipelines.types import Appearance, Person, PipelineWarning, SpeakerVoice, WarningCode
from serve_app.exports.routes import ExportFormat
from serve_app.jobs.answers import warning_document
from serve_app.work.publishing import KeptVoices
from storage import keys, ledger
from storage.types import StageName
from tests.serve_app.interface_contract import BY_ID, Contract
from tests.serve_app.published_jobs import SENTENCES, complete, created, fail, signed_in, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.tables import every


@dataclass(frozen=True, slots=True)
class Scenery:
    """An account with jobs in every state that matters, and a session."""

    customer: Customer
    session: dict[str, str]
    key_id: str
    endpoint: str
    archive: str
    voice: str
    comment: str
    waiting: str
    done: str
    several_tracks: str
    failed: str


@pytest.fixture(scope="module")
def contract(api: RunningApi) -> Contract:
    return Contract(api.client.get("/openapi.json").json())


@pytest.fixture(scope="module")
def scenery(api: RunningApi) -> Iterator[Scenery]:
    customer = api.customer()
    callback = "https://hooks.example.com/video"
    done = created(api, customer, callbackUrl=callback, metadata={"a": 1, "b": None})
    about = PipelineWarning(
        WarningCode.AUDIO_SYNC_UNCERTAIN, "Not sure.", track_index=0, start_ms=1500, end_ms=2000
    )
    warnings = [warning_document(about, StageName.INGEST)]
    somebody = (Person("person_0", (Appearance(400, Box(0.1, 0.2, 0.3, 0.4), 0),), "jobs/x/0.jpg"),)
    voices = KeptVoices("a model", {0: (SpeakerVoice("speaker_0", (1.0, 0.0)),)})
    complete(api, done, [track(0)], warnings, SENTENCES, people=to_json(somebody), voices=voices)
    voiced = f"/jobs/{done}/speakers/speaker_0/voice"
    voice = api.client.put(voiced, json={"name": "Anna"}, headers=customer.headers).json()["data"]
    several = created(api, customer)
    complete(api, several, [track(0), track(1, "TRANSCRIPT_FAILED")], [])
    failed = created(api, customer, callbackUrl=callback)
    fail(api, failed)
    waiting = api.client.post("/jobs", json={"fileName": "a.mp4"}, headers=customer.headers)
    session, key_id = signed_in(api, customer)
    waiting_id = waiting.json()["data"]["jobId"]
    hook = {"url": "https://hooks.example.com/all"}
    made = api.client.post("/webhooks/endpoints", json=hook, headers=customer.headers)
    Contract(api.client.get("/openapi.json").json()).check("createWebhookEndpoint", made)
    endpoint = made.json()["data"]["id"]
    made = api.client.post("/archives", json={"url": "gs://films"}, headers=customer.headers)
    archive = made.json()["data"]["archiveId"]
    body = {"time": 2.5, "text": "Is this it?"}
    made = api.client.post(f"/jobs/{done}/comments", json=body, headers=customer.headers)
    comment = made.json()["data"]["id"]
    made_ids = (key_id, endpoint, archive, voice["id"], comment)
    yield Scenery(customer, session, *made_ids, waiting_id, done, several, failed)
    api.client.post(f"/jobs/{waiting_id}/cancel", headers=customer.headers)


@dataclass(frozen=True, slots=True)
class Call:
    """A request to an operation and the status it must have."""

    operation_id: str
    status: int
    path: str = ""
    """The operation's own if empty; ``{name}`` is filled from the scenery."""
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()

    def send(self, api: RunningApi, scenery: Scenery) -> httpx.Response:
        operation = BY_ID[self.operation_id]
        names = {name: getattr(scenery, name) for name in ("waiting", "done", "failed", "key_id")}
        names |= {
            "endpoint": scenery.endpoint,
            "archive": scenery.archive,
            "voice": scenery.voice,
            "comment": scenery.comment,
            "several": scenery.several_tracks,
            "new": "",
            "missing": str(uuid.uuid4()),
        }
        path = (self.path or operation.path).format_map(names)
        credential = {
            "key": scenery.customer.headers,
            "session": scenery.session,
            "none": {},
        }[operation.auth]
        return api.client.request(
            operation.method, path, json=self.body, headers={**credential, **dict(self.headers)}
        )


TRACKS = [{"fileName": "a.wav"}, {"fileName": "b.wav", "syncMode": "offset", "offsetMs": 5}]
CLIP = {"sourceUrl": "https://media.example.com/a.mp4"}

SUCCESSES = [
    Call("createJob", 201, body={"fileName": "a.mp4"}),
    Call("createJob", 201, body={"fileName": "a.mp4", "audioFileName": "a.wav"}),
    Call("createJob", 201, body={"fileName": "a.mp4", "audioTracks": TRACKS}),
    Call("createJobFromUrl", 201, body={"url": "https://media.example.com/a.mp4"}),
    Call("createBatch", 201, body={"mode": "independent", "clips": [CLIP, CLIP]}),
    Call("createBatch", 201, body={"mode": "continuous", "clips": [CLIP, CLIP]}),
    Call("listJobs", 200),
    Call("listJobs", 200, "/jobs?limit=1"),
    Call("listJobs", 200, "/jobs?state=failed"),
    Call("listJobs", 200, "/jobs?name=a&from=2024-01-01&to=2124-01-01T00:00:00Z"),
    Call("changeJob", 200, "/jobs/{waiting}", {"fileName": "a.mp4"}),
    Call("getJob", 200, "/jobs/{waiting}"),
    Call("getJob", 200, "/jobs/{done}"),
    Call("getJob", 200, "/jobs/{done}?include=scenes"),
    Call("getJob", 200, "/jobs/{done}?include=none"),
    Call("getJob", 200, "/jobs/{several}"),
    Call("getJob", 200, "/jobs/{failed}"),
    Call("getScenes", 200, "/jobs/{done}/scenes"),
    Call("getTranscript", 200, "/jobs/{done}/transcript"),
    Call("getTranscript", 200, "/jobs/{several}/transcript"),
    Call("getTranscript", 200, "/jobs/{several}/transcript?track=0"),
    Call("getTranscript", 200, "/jobs/{done}/transcript?format=srt"),
    Call("getTranscript", 200, "/jobs/{done}/transcript?format=vtt"),
    Call("getTranscript", 200, "/jobs/{several}/transcript?format=txt&track=0"),
    *(
        Call("exportJob", 400 if name == "youtube" else 200, f"/jobs/{{done}}/export?format={name}")
        for name in ExportFormat
    ),
    Call("search", 200, "/search?q=morning"),
    Call("ask", 200, "/ask", {"question": "Who says good morning in the kitchen?"}),
    Call("addComment", 201, "/jobs/{done}/comments", {"time": 1.5, "text": "Who?"}),
    Call("changeComment", 200, "/jobs/{done}/comments/{comment}", {"resolved": True}),
    Call("listComments", 200, "/jobs/{done}/comments"),
    Call("deleteComment", 200, "/jobs/{done}/comments/{comment}"),
    Call("shareJob", 201, "/jobs/{done}/share", {"days": 2}),
    Call("search", 200, "/search?q=kitchen+OR+clip*&kinds=scene,file&limit=1&from=2026-01-01"),
    Call("exportJob", 200, "/jobs/{done}/export?format=edl&content=chapters"),
    Call("getTranscript", 200, "/jobs/{done}/transcript?format=ttml&maxLines=1"),
    Call("getTranscript", 200, "/jobs/{done}/transcript?format=ebu-tt-d&rules=ebu"),
    Call("getTranscript", 200, "/jobs/{done}/transcript?format=ass&speakerLabels=true"),
    Call("lintCaptions", 200, "/jobs/{done}/captions/lint?rules=netflix&sounds=true"),
    Call("getTranscript", 200, "/jobs/{done}/transcript?format=md"),
    Call("getTranscript", 200, "/jobs/{done}/transcript?format=csv"),
    Call("getChapters", 200, "/jobs/{done}/chapters"),
    Call("getReview", 200, "/jobs/{done}/review?budgetSeconds=60"),
    Call("getSummary", 200, "/jobs/{done}/summary"),
    Call("listTranslations", 200, "/jobs/{done}/translations"),
    Call("getPeople", 200, "/jobs/{done}/people"),
    Call("deletePeople", 200, "/jobs/{several}/people"),
    Call(
        "editTranscript",
        200,
        "/jobs/{done}/transcript",
        {"revision": 0, "segments": [{"index": 0, "text": "Good evening."}]},
    ),
    Call("revertTranscript", 200, "/jobs/{done}/transcript/revert", {"revision": 1}),
    Call("listTranscriptRevisions", 200, "/jobs/{done}/transcript/revisions"),
    Call("nameSpeaker", 200, "/jobs/{done}/speakers/speaker_0", {"label": "Anna"}),
    Call("resetSpeaker", 200, "/jobs/{done}/speakers/speaker_0"),
    Call("nameSpeaker", 200, "/jobs/{several}/speakers/speaker_0?track=0", {"label": ""}),
    Call("listAudioTracks", 200, "/jobs/{several}/audioTracks"),
    Call("getAudioTrack", 200, "/jobs/{several}/audioTracks/0"),
    Call("getAudioTrack", 200, "/jobs/{several}/audioTracks/1"),
    Call("getQuota", 200),
    Call("listWebhookDeliveries", 200),
    Call("listWebhookDeliveries", 200, "/webhooks/deliveries?jobId={done}"),
    Call("streamJobEvents", 200, "/jobs/{done}/events"),
    Call("listWebhookEndpoints", 200),
    Call("getWebhookEndpoint", 200, "/webhooks/endpoints/{endpoint}"),
    Call(
        "changeWebhookEndpoint", 200, "/webhooks/endpoints/{endpoint}", {"events": ["job.failed"]}
    ),
    Call("rotateWebhookEndpoint", 200, "/webhooks/endpoints/{endpoint}/rotate"),
    Call("deleteWebhookEndpoint", 200, "/webhooks/endpoints/{endpoint}"),
    Call("nameVoice", 200, "/jobs/{done}/speakers/speaker_0/voice", {"name": "Anna"}),
    Call("getTranscript", 200, "/jobs/{done}/transcript"),
    Call("createArchive", 201, body={"url": "s3://bucket/films/", "patterns": ["*.mp4"]}),
    Call("listArchives", 200),
    Call("getArchive", 200, "/archives/{archive}"),
    Call("listArchiveObjects", 200, "/archives/{archive}/objects?state=failed"),
    Call("listArchiveDuplicates", 200, "/archives/{archive}/duplicates"),
    Call("listDuplicates", 200, "/jobs/{done}/duplicates"),
    Call("changeArchive", 200, "/archives/{archive}", {"watchSeconds": 3600}),
    Call("pauseArchive", 200, "/archives/{archive}/pause"),
    Call("resumeArchive", 200, "/archives/{archive}/resume"),
    Call("deleteArchive", 200, "/archives/{archive}"),
    Call("listVoices", 200),
    Call("replaceVocabulary", 200, "/vocabulary", {"keyterms": [], "replacements": []}),
    Call("getVocabulary", 200, "/vocabulary"),
    Call("deleteVoice", 200, "/voices/{voice}"),
    Call("getOpenApi", 200),
    Call("getOpenApi", 304, headers=(("If-None-Match", "*"),)),
    Call("getPricing", 200),
    Call("estimatePrice", 200, "/pricing/estimate?durationSeconds=90.5&audioTracks=3"),
    Call("listFormats", 200),
    Call("listKeys", 200),
    Call("listAuditLog", 200),
    Call("rotateKey", 200, "/keys/{key_id}/rotate"),
    Call("getWebhookSecret", 200),
    Call("rotateWebhookSecret", 200),
]

FAILURES = [
    Call("createJob", 400, body={}),
    Call("createJob", 400, body={"fileName": "a.mp4", "callbackUrl": "http://x.example"}),
    Call(
        "createJob",
        413,
        body={"fileName": "a.mp4", "fileSizeBytes": 2**50},
    ),
    Call("createJob", 415, body={"fileName": "a.exe"}),
    Call(
        "createJob",
        422,
        body={"fileName": "a.mp4", "idempotencyKey": "a"},
        headers=(("Idempotency-Key", "b"),),
    ),
    Call("createJobFromUrl", 400, body={"url": "ftp://media.example.com/a.mp4"}),
    Call("createJobFromUrl", 400, body={"url": "http://127.0.0.1/a.mp4"}),
    Call("createBatch", 400, body={"mode": "independent", "clips": []}),
    Call("createBatch", 429, body={"mode": "independent", "clips": [CLIP] * 100}),
    Call("listJobs", 400, "/jobs?cursor=x"),
    Call("listJobs", 400, "/jobs?state=queued&status=QUEUED"),
    Call("changeJob", 400, "/jobs/{waiting}", {"fileName": ""}),
    Call("changeJob", 404, "/jobs/{missing}", {}),
    Call("getJob", 404, "/jobs/{missing}"),
    Call("getJob", 400, "/jobs/{waiting}?include=words"),
    Call("cancelJob", 409, "/jobs/{done}/cancel"),
    Call("cancelJob", 404, "/jobs/x/cancel"),
    Call("cancelJobDeprecated", 409, "/jobs/{done}"),
    Call("cancelJobDeprecated", 404, "/jobs/%E2%82%AC%0D%0AX-Evil:1"),
    Call("getScenes", 409, "/jobs/{waiting}/scenes"),
    Call("getScenes", 404, "/jobs/{failed}/scenes"),
    Call("getTranscript", 400, "/jobs/{done}/transcript?format=doc"),
    Call("getTranscript", 400, "/jobs/{done}/transcript?format=srt&rules=nobody"),
    Call("eraseJob", 404, "/jobs/{missing}/erase"),
    Call("lintCaptions", 400, "/jobs/{done}/captions/lint"),
    Call("lintCaptions", 400, "/jobs/{done}/captions/lint?rules=nobody"),
    Call("lintCaptions", 400, "/jobs/{several}/captions/lint?rules=bbc"),
    Call("lintCaptions", 404, "/jobs/{failed}/captions/lint?rules=bbc"),
    Call("lintCaptions", 409, "/jobs/{waiting}/captions/lint?rules=bbc"),
    Call("getTranscript", 400, "/jobs/{several}/transcript?format=srt"),
    Call("getTranscript", 404, "/jobs/{several}/transcript?track=1"),
    Call("getTranscript", 404, "/jobs/{several}/transcript?track=7"),
    Call("getTranscript", 409, "/jobs/{waiting}/transcript"),
    Call("getTranscript", 400, "/jobs/{done}/transcript?format=srt&maxLineLength=11"),
    Call("getTranscript", 400, "/jobs/{done}/transcript?format=srt&maxLines=5"),
    Call("getTranscript", 400, "/jobs/{done}/transcript?maxCharactersPerSecond=x"),
    Call("getChapters", 409, "/jobs/{waiting}/chapters"),
    Call("getChapters", 404, "/jobs/{failed}/chapters"),
    Call("getReview", 400, "/jobs/{done}/review?budgetSeconds=0"),
    Call("getReview", 409, "/jobs/{waiting}/review"),
    Call("getReview", 404, "/jobs/{failed}/review"),
    Call("getSummary", 409, "/jobs/{waiting}/summary"),
    Call("compareJobs", 404, "/comparisons", {"from": "none", "to": "{done}"}),
    Call("getComparison", 404, "/comparisons/none"),
    Call("getReceipt", 409, "/jobs/{waiting}/receipt"),
    Call("getReceipt", 404, "/jobs/{done}/receipt"),
    Call("getReceipt", 404, "/jobs/{failed}/receipt"),
    Call("getPeople", 409, "/jobs/{waiting}/people"),
    Call("getPeople", 404, "/jobs/{several}/people"),
    Call("deletePeople", 409, "/jobs/{waiting}/people"),
    Call("deletePeople", 404, "/jobs/{failed}/people"),
    Call("getSummary", 404, "/jobs/{failed}/summary"),
    Call("getSummary", 404, "/jobs/{several}/summary"),
    Call("editTranscript", 400, "/jobs/{done}/transcript", {"revision": 0}),
    Call(
        "editTranscript",
        409,
        "/jobs/{done}/transcript",
        {"revision": 9, "split": [{"index": 0, "word": 1}]},
    ),
    Call("revertTranscript", 409, "/jobs/{waiting}/transcript/revert", {"revision": 0}),
    Call("revertTranscript", 404, "/jobs/{failed}/transcript/revert", {"revision": 0}),
    Call("listTranscriptRevisions", 400, "/jobs/{done}/transcript/revisions?limit=0"),
    Call("nameSpeaker", 400, "/jobs/{done}/speakers/speaker_0", {"label": "a" * 101}),
    Call("nameSpeaker", 400, "/jobs/{done}/speakers/speaker_0", {"label": "a\nb"}),
    Call("nameSpeaker", 400, "/jobs/{several}/speakers/speaker_0", {"label": "Anna"}),
    Call("nameSpeaker", 404, "/jobs/{done}/speakers/speaker_7", {"label": "Anna"}),
    Call("nameSpeaker", 404, "/jobs/{several}/speakers/speaker_0?track=1", {"label": "Anna"}),
    Call("resetSpeaker", 409, "/jobs/{waiting}/speakers/speaker_0"),
    Call("nameVoice", 400, "/jobs/{done}/speakers/speaker_0/voice", {"name": " "}),
    Call("nameVoice", 400, "/jobs/{done}/speakers/speaker_0/voice", {"name": "a\nb"}),
    Call("replaceVocabulary", 400, "/vocabulary", {"keyterms": []}),
    Call("nameVoice", 404, "/jobs/{done}/speakers/speaker_7/voice", {"name": "Anna"}),
    Call("nameVoice", 404, "/jobs/{several}/speakers/speaker_0/voice?track=0", {"name": "Anna"}),
    Call("nameVoice", 409, "/jobs/{waiting}/speakers/speaker_0/voice", {"name": "Anna"}),
    Call("deleteVoice", 404, "/voices/{missing}"),
    Call("getClip", 400, "/jobs/{done}/clip?start=5&end=5"),
    Call("getClip", 400, "/jobs/{done}/clip?start=0&end=600.001"),
    Call("getClip", 400, "/jobs/{done}/clip?start=0&end=95.3"),
    Call("getClip", 400, "/jobs/{done}/clip?start=96&end=97"),
    Call("getClip", 400, "/jobs/{done}/clip?start=-1&end=5"),
    Call("getClip", 400, "/jobs/{done}/clip?start=1"),
    Call("getClip", 404, "/jobs/{done}/clip?start=1&end=5"),
    Call("getClip", 404, "/jobs/{failed}/clip?start=1&end=5"),
    Call("getClip", 409, "/jobs/{waiting}/clip?start=1&end=5"),
    Call("exportJob", 400, "/jobs/{done}/export"),
    Call("exportJob", 400, "/jobs/{done}/export?format=edl&content=words"),
    Call("exportJob", 400, "/jobs/{done}/export?format=aaf"),
    Call("exportJob", 409, "/jobs/{waiting}/export?format=edl"),
    Call("exportJob", 404, "/jobs/{failed}/export?format=edl"),
    Call("search", 400),
    Call("ask", 400, "/ask", {"question": "?"}),
    Call("ask", 404, "/ask", {"question": "Who?", "archiveId": "{missing}"}),
    Call("addComment", 400, "/jobs/{done}/comments", {"time": -1.0, "text": "Who?"}),
    Call("changeComment", 404, "/jobs/{done}/comments/{missing}", {"resolved": True}),
    Call("search", 400, "/search?q=%22open"),
    Call("search", 400, "/search?q=a&cursor=x"),
    Call("search", 400, "/search?like=a"),
    Call("search", 404, "/search?like={done}:0"),
    Call("search", 404, "/search?like={missing}:0"),
    Call("listAudioTracks", 404, "/jobs/{done}/audioTracks"),
    Call("getAudioTrack", 404, "/jobs/{several}/audioTracks/2"),
    Call("getAudioTrack", 400, "/jobs/{several}/audioTracks/first"),
    Call("listWebhookDeliveries", 400, "/webhooks/deliveries?jobId=a&jobId=b"),
    Call("streamJobEvents", 404, "/jobs/{missing}/events"),
    Call("createArchive", 400, body={"url": "https://bucket.example.com/"}),
    Call("createArchive", 400, body={"url": "s3://bucket/", "watchSeconds": 59}),
    Call(
        "createArchive",
        400,
        body={"url": "s3://bucket/", "bucketAccess": {"endpoint": "http://10.0.0.1"}},
    ),
    Call("getArchive", 404, "/archives/{missing}"),
    Call("listArchiveObjects", 400, "/archives/{archive}/objects?cursor=x"),
    Call("listArchiveObjects", 400, "/archives/{archive}/objects?state=lost"),
    Call("listArchiveObjects", 404, "/archives/{missing}/objects"),
    Call("listArchiveDuplicates", 400, "/archives/{archive}/duplicates?cursor=x"),
    Call("listArchiveDuplicates", 404, "/archives/{missing}/duplicates"),
    Call("listDuplicates", 400, "/jobs/{done}/duplicates?cursor=x"),
    Call("listDuplicates", 400, "/jobs/{done}/duplicates?kind=word"),
    Call("listDuplicates", 404, "/jobs/{missing}/duplicates"),
    Call("listDuplicates", 409, "/jobs/{waiting}/duplicates"),
    Call("changeArchive", 400, "/archives/{archive}", {"maxActiveJobs": 0}),
    Call("changeArchive", 404, "/archives/{missing}", {}),
    Call("pauseArchive", 404, "/archives/{missing}/pause"),
    Call("resumeArchive", 404, "/archives/x/resume"),
    Call("deleteArchive", 404, "/archives/{missing}"),
    Call("createWebhookEndpoint", 400, body={"url": "http://hooks.example.com"}),
    Call("createWebhookEndpoint", 400, body={"url": "https://hooks.example.com", "events": []}),
    Call("getWebhookEndpoint", 404, "/webhooks/endpoints/{missing}"),
    Call("changeWebhookEndpoint", 400, "/webhooks/endpoints/{missing}", {"events": ["x"]}),
    Call("changeWebhookEndpoint", 404, "/webhooks/endpoints/{missing}", {}),
    Call("deleteWebhookEndpoint", 404, "/webhooks/endpoints/x"),
    Call("rotateWebhookEndpoint", 404, "/webhooks/endpoints/{missing}/rotate"),
    Call("sendTestWebhook", 400, body={"url": "http://hooks.example.com"}),
    Call("sendTestWebhook", 400, body={"url": "https://hooks.example.com:8443/"}),
    Call("sendTestWebhook", 400, body={}),
    Call("estimatePrice", 400),
    Call("getKeysPortal", 404),
    Call("createSession", 401, body={"token": "unknown"}),
    Call("createSession", 400, body={}),
    Call("rotateKey", 404, "/keys/{missing}/rotate"),
]


def case_id(call: Call) -> str:
    return f"{call.operation_id} {call.status} {call.path or call.body or ''}"[:80]


@every("call", SUCCESSES, ids=case_id)
def test_a_success_is_as_documented(
    api: RunningApi, contract: Contract, scenery: Scenery, call: Call
) -> None:
    answer = call.send(api, scenery)
    assert answer.status_code == call.status, answer.text
    contract.check(call.operation_id, answer)
    if call.status == 201:
        data = answer.json()["data"]
        for job in data.get("jobs", [data] if "jobId" in data else []):
            api.client.post(f"/jobs/{job['jobId']}/cancel", headers=scenery.customer.headers)


@every("call", FAILURES, ids=case_id)
def test_an_error_is_as_documented(
    api: RunningApi, contract: Contract, scenery: Scenery, call: Call
) -> None:
    answer = call.send(api, scenery)
    assert answer.status_code == call.status, answer.text
    contract.check(call.operation_id, answer)


def test_cancellations_and_erasing_are_as_documented(
    api: RunningApi, contract: Contract, scenery: Scenery
) -> None:
    job_id = created(api, scenery.customer)
    headers = scenery.customer.headers
    contract.check("cancelJob", api.client.post(f"/jobs/{job_id}/cancel", headers=headers))
    job_id = created(api, scenery.customer)
    contract.check("cancelJobDeprecated", api.client.delete(f"/jobs/{job_id}", headers=headers))
    contract.check("eraseJob", api.client.post(f"/jobs/{job_id}/erase", headers=headers))


def test_a_replay_is_as_documented(api: RunningApi, contract: Contract, scenery: Scenery) -> None:
    headers = scenery.customer.headers | {"Idempotency-Key": uuid.uuid4().hex}
    body = {"fileName": "a.mp4"}
    first, second = (api.client.post("/jobs", json=body, headers=headers) for _ in range(2))
    assert second.headers["idempotent-replayed"] == "true"
    contract.check("createJob", second)
    job_id = first.json()["data"]["jobId"]
    contract.check("cancelJob", api.client.post(f"/jobs/{job_id}/cancel", headers=headers))


def test_the_portal_link_is_as_documented(api: RunningApi, contract: Contract) -> None:
    customer = api.customer()
    api.transact(
        lambda c: ledger.record_purchase(
            c, customer.account_id, 500, provider=ledger.OPERATOR, reference="INV-1"
        )
    )
    session, _ = signed_in(api, customer)
    answer = api.client.get("/keys/portal", headers=session)
    assert answer.status_code == 200
    contract.check("getKeysPortal", answer)


def test_a_session_is_as_documented(api: RunningApi, contract: Contract) -> None:
    customer = api.customer()
    token = api.transact(lambda c: keys.create_sign_in_link(c, customer.account_id))
    answer = api.client.post("/sessions", json={"token": token})
    assert answer.status_code == 201
    contract.check("createSession", answer)


@every("operation_id", [name for name, operation in BY_ID.items() if operation.auth != "none"])
def test_without_a_credential_every_operation_answers_401_as_documented(
    api: RunningApi, contract: Contract, operation_id: str
) -> None:
    operation = BY_ID[operation_id]
    path = re.sub(r"\{\w+\}", "0", operation.path)
    answer = api.client.request(operation.method, path)
    assert answer.status_code == 401
    contract.check(operation_id, answer)


@every("operation_id", [name for name, operation in BY_ID.items() if operation.auth != "none"])
def test_a_suspended_account_gets_403_as_documented(
    api: RunningApi,
    contract: Contract,
    suspended: tuple[Customer, dict[str, str]],
    operation_id: str,
) -> None:
    operation = BY_ID[operation_id]
    customer, session = suspended
    headers = session if operation.auth == "session" else customer.headers
    path = re.sub(r"\{\w+\}", "0", operation.path)
    answer = api.client.request(operation.method, path, headers=headers)
    assert answer.status_code == 403
    contract.check(operation_id, answer)


@pytest.fixture(scope="module")
def suspended(api: RunningApi) -> tuple[Customer, dict[str, str]]:
    customer = api.customer()
    session, _ = signed_in(api, customer)

    async def suspend(connection: AsyncConnection) -> None:
        await keys.set_restrictions(connection, customer.account_id, suspended=True)

    api.transact(suspend)
    return customer, session


def test_poverty_and_throttling_are_as_documented(api: RunningApi, contract: Contract) -> None:
    poor = api.customer(credits_cents=0)
    answer = api.client.post("/jobs", json={"fileName": "a.mp4"}, headers=poor.headers)
    assert answer.status_code == 402
    contract.check("createJob", answer)

    async def throttle(connection: AsyncConnection) -> None:
        await keys.set_restrictions(connection, poor.account_id, throttled=True)

    api.transact(throttle)
    answer = api.client.post("/jobs", json={"fileName": "a.mp4"}, headers=poor.headers)
    assert (answer.status_code, answer.json()["code"]) == (429, "THROTTLED")
    contract.check("createJob", answer)


def test_a_test_webhook_is_as_documented(api: RunningApi, contract: Contract) -> None:
    # A name that never resolves (RFC 2606): nothing leaves this machine.
    body = {"url": "https://hooks.example.invalid/"}
    answer = api.client.post("/webhooks/test", json=body, headers=api.customer().headers)
    if answer.status_code == 200:
        assert answer.json()["data"]["delivered"] is False
    contract.check("sendTestWebhook", answer)


@pytest.mark.parametrize(
    ("operation_id", "limit", "send"),
    [
        (
            "sendTestWebhook",
            5,
            lambda api, headers: api.client.post("/webhooks/test", json={}, headers=headers),
        ),
        (
            "getPricing",
            120,
            lambda api, headers: api.client.get(
                "/pricing", headers={"X-Forwarded-For": "198.51.100.7"}
            ),
        ),
    ],
    ids=["keyed", "keyless"],
)
def test_one_request_too_many_is_refused_as_documented(
    api: RunningApi,
    contract: Contract,
    operation_id: str,
    limit: int,
    send: Callable[[RunningApi, dict[str, str]], httpx.Response],
) -> None:
    headers = api.customer().headers
    answers = [send(api, headers) for _ in range(limit + 1)]
    if answers[-1].status_code != 429:  # the minute turned meanwhile
        answers = [send(api, headers) for _ in range(limit + 1)]
    assert answers[-1].status_code == 429
    contract.check(operation_id, answers[-1])


def test_a_failure_of_the_database_is_as_documented(
    api: RunningApi, contract: Contract, scenery: Scenery
) -> None:
    async def rename(connection: AsyncConnection, *names: str) -> None:
        await connection.exec_driver_sql("ALTER TABLE {} RENAME TO {}".format(*names))

    api.transact(lambda connection: rename(connection, "stages", "stages_away"))
    try:
        answer = api.client.get(f"/jobs/{scenery.done}", headers=scenery.customer.headers)
    finally:
        api.transact(lambda connection: rename(connection, "stages_away", "stages"))
    assert answer.status_code == 500
    contract.check("getJob", answer)


def test_every_operation_is_among_the_successes() -> None:
    checked_apart = {
        "getClip",
        "getReceipt",
        "compareJobs",
        "getComparison",
        "createSession",
        "createWebhookEndpoint",
        "createTranslation",
        "getTranslation",
        "cancelJob",
        "cancelJobDeprecated",
        "eraseJob",
        "rerunJob",
        "redactJob",
        "getKeysPortal",
        "sendTestWebhook",
    }
    assert {call.operation_id for call in SUCCESSES} | checked_apart == set(BY_ID)
