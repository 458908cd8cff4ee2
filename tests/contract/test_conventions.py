"""Response conventions, the error envelope, versioning."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from serve_app.errors import ErrorCode
from tests.contract.calling import Caller, ContractApi, refusal, shown
from tests.contract.runner_side import RunnerSide
from tests.contract.spec_rows import covers, row_cells, rows_of
from tests.tables import every

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
REQUEST_ID = re.compile(r"req_[0-9a-f]{32}")

WRONG: dict[str, Callable[[Caller], httpx.Response]] = {
    "unknown path": lambda caller: caller.get("/nothing"),
    "wrong method": lambda caller: caller.ask("PUT", "/jobs"),
    "no key": lambda caller: caller.api.client.get("/jobs"),
    "bad query": lambda caller: caller.get("/jobs", limit=0),
    "bad body": lambda caller: caller.post("/jobs", []),
    "not JSON": lambda caller: caller.ask("POST", "/jobs", content=b"{"),
    "bad field": lambda caller: caller.post("/jobs", {"fileName": 5}),
    "missing job": lambda caller: caller.get(f"/jobs/{uuid.uuid4()}"),
    "blocked file": lambda caller: caller.post("/jobs", {"fileName": "setup.exe"}),
    "no session": lambda caller: caller.get("/keys"),
    "discovery": lambda caller: caller.api.discover("/pricing/estimate"),
}


@pytest.fixture(scope="module")
def finished(api: ContractApi, runner: RunnerSide) -> tuple[Caller, str]:
    """A caller with a completed job."""
    caller = api.caller()
    return caller, runner.complete(caller)


@covers("response-conventions/1")
def test_a_success_is_data_and_request_id(finished: tuple[Caller, str]) -> None:
    caller, job_id = finished
    session = caller.sign_in()
    answers = [
        caller.post("/jobs", {"fileName": "a.mp4"}),
        *(caller.get(f"/jobs/{job_id}{rest}") for rest in ("", "/scenes", "/transcript")),
        *(caller.get(path) for path in ("/quota", "/webhooks/deliveries")),
        *(caller.api.discover(path) for path in ("/pricing", "/formats")),
        caller.api.client.get("/keys", headers=session),
    ]
    for answer in answers:
        assert answer.is_success
        assert answer.headers["content-type"] == "application/json"
        assert set(answer.json()) == {"data", "requestId"}
    assert "data" not in caller.api.discover("/openapi.json").json()


@covers("response-conventions/2")
def test_a_list_of_jobs_has_its_own_envelope(finished: tuple[Caller, str]) -> None:
    caller, job_id = finished
    caller.post("/jobs", {"fileName": "another.mp4", "fileSizeBytes": 1})
    body = caller.get("/jobs", limit=1).json()
    assert {"data", "hasMore", "nextCursor"} <= set(body)
    assert isinstance(body["data"], list)
    assert body["hasMore"] is True
    assert isinstance(body["nextCursor"], str)
    last = caller.get("/jobs", state="completed").json()
    assert [job["jobId"] for job in last["data"]] == [job_id]
    assert (last["hasMore"], last["nextCursor"]) == (False, None)


@covers("response-conventions/3")
@every(
    ("form", "media_type"),
    [("srt", "application/x-subrip"), ("vtt", "text/vtt"), ("txt", "text/plain")],
)
def test_caption_and_text_transcripts_are_files(
    finished: tuple[Caller, str], form: str, media_type: str
) -> None:
    caller, job_id = finished
    answer = caller.get(f"/jobs/{job_id}/transcript", format=form)
    assert answer.headers["content-type"].split(";")[0] == media_type
    assert answer.headers["content-disposition"] == f'attachment; filename="clip.{form}"'
    assert REQUEST_ID.fullmatch(answer.headers["x-request-id"])
    with pytest.raises(ValueError, match=r"Expecting value|Extra data"):
        answer.json()


@covers("response-conventions/4")
@every("ask", list(WRONG.values()), ids=list(WRONG))
def test_every_error_comes_in_the_envelope(
    caller: Caller, ask: Callable[[Caller], httpx.Response]
) -> None:
    answer = ask(caller)
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert 400 <= answer.status_code < 500
    assert {"error", "code", "docUrl", "requestId"} <= set(body)
    assert body["code"] in set(ErrorCode)


@covers("response-conventions/5", "envelope/requestId")
def test_the_request_id_stands_in_body_and_header(caller: Caller) -> None:
    answers = [caller.get("/quota"), caller.get("/jobs"), *(ask(caller) for ask in WRONG.values())]
    for answer in answers:
        assert answer.json()["requestId"] == answer.headers["x-request-id"]
        assert REQUEST_ID.fullmatch(answer.headers["x-request-id"])
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)


OF_A_JOB = [
    ("GET", ""),
    ("DELETE", ""),
    ("POST", "/cancel"),
    ("GET", "/transcript"),
    ("GET", "/scenes"),
    ("GET", "/audioTracks"),
    ("GET", "/audioTracks/0"),
]


@covers("response-conventions/6")
@every(("method", "rest"), OF_A_JOB)
def test_an_id_that_is_no_uuid_is_not_found(caller: Caller, method: str, rest: str) -> None:
    job_id = caller.create()["jobId"]
    assert str(uuid.UUID(job_id)) == job_id
    for bad in ("1", "job", job_id[:-1], job_id.replace("-", ""), f"{{{job_id}}}", "%00"):
        refusal(caller.ask(method, f"/jobs/{bad}{rest}"), 404, "NOT_FOUND")


@covers("response-conventions/7")
def test_timestamps_are_iso_8601_in_utc(finished: tuple[Caller, str]) -> None:
    caller, job_id = finished
    job = caller.job(job_id)
    session = caller.sign_in()
    [key] = shown(caller.api.client.get("/keys", headers=session))
    secret = shown(caller.api.client.get("/webhooks/secret", headers=session))
    for moment in (
        *(job[name] for name in ("createdAt", "startedAt", "completedAt")),
        key["createdAt"],
        secret["createdAt"],
    ):
        assert TIMESTAMP.fullmatch(moment)


@covers("envelope/error")
def test_the_message_is_for_people(caller: Caller) -> None:
    for ask in WRONG.values():
        message = ask(caller).json()["error"]
        assert len(message.split()) >= 3
        assert message not in set(ErrorCode)


@covers("envelope/code")
def test_the_code_is_one_of_the_specifications(caller: Caller) -> None:
    specified = set(rows_of("error-codes"))
    assert {code.value for code in ErrorCode} == specified | ADDED_CODES
    for ask in WRONG.values():
        assert ask(caller).json()["code"] in specified


@covers("envelope/docUrl")
def test_doc_url_leads_to_the_codes_entry(caller: Caller) -> None:
    for ask in WRONG.values():
        body = ask(caller).json()
        address = urlsplit(body["docUrl"])
        assert f"{address.scheme}://{address.netloc}" == caller.api.root
        assert address.fragment == body["code"]


@covers("envelope/docUrl")
def test_the_error_reference_has_an_entry_for_every_code(caller: Caller) -> None:
    page = caller.api.client.get(f"{caller.api.root}/docs/errors")
    assert page.headers["content-type"].startswith("text/html")
    for code in rows_of("error-codes"):
        assert f'id="{code}"' in page.text


TRACKS = [{"fileName": "a.wav"}, {"fileName": "b.wav"}, {"fileName": "c.wav", "offsetMs": "soon"}]
CLIPS = [{"sourceUrl": "https://media.example.com/a.mp4"}] * 3
PARAMS: dict[str, Callable[[Caller], httpx.Response]] = {
    "fileName": lambda caller: caller.post("/jobs", {}),
    "audioTracks[2].offsetMs": lambda caller: caller.post(
        "/jobs", {"fileName": "a.mp4", "audioTracks": TRACKS}
    ),
    "clips[3].sourceUrl": lambda caller: caller.post(
        "/jobs/batch", {"mode": "independent", "clips": [*CLIPS, {"sourceUrl": 7}]}
    ),
    "metadata.assetId": lambda caller: caller.post(
        "/jobs", {"fileName": "a.mp4", "metadata": {"assetId": []}}
    ),
    "cursor": lambda caller: caller.get("/jobs", cursor="nonsense"),
}


@covers("envelope/param")
@every("param", list(PARAMS))
def test_param_is_the_json_path_of_the_field_at_fault(caller: Caller, param: str) -> None:
    refusal(PARAMS[param](caller), 400, "INVALID_REQUEST", param=param)
    refusal(caller.get(f"/jobs/{uuid.uuid4()}"), 404, "NOT_FOUND")  # nothing to blame: no param


@covers("versioning/1")
def test_the_version_stands_in_the_base_path(caller: Caller) -> None:
    links = caller.create()["links"]
    for link in links.values():
        assert link.startswith(f"{caller.api.root}/v1/api/jobs/")
    client = caller.api.client
    for other in ("/jobs", "/v2/api/jobs", "/v1/jobs"):
        refusal(client.get(f"{caller.api.root}{other}"), 404, "NOT_FOUND")


ADDED_CODES = {
    "INVITATION_NOT_VALID", "LAST_OWNER", "LEGAL_HOLD", "OIDC_SIGN_IN_FAILED",
    "REVISION_CONFLICT", "ROLE_NOT_ALLOWED", "SOURCE_GONE",
}  # fmt: skip
"""Codes beside those of the specification."""

ADDED = {
    ("GET", "/search", "search"),
    ("GET", "/jobs/{jobId}/export", "exportJob"),
    ("GET", "/jobs/{jobId}/chapters", "getChapters"),
    ("GET", "/jobs/{jobId}/summary", "getSummary"),
    ("GET", "/jobs/{jobId}/captions/lint", "lintCaptions"),
    ("PATCH", "/jobs/{jobId}/transcript", "editTranscript"),
    ("POST", "/jobs/{jobId}/transcript/revert", "revertTranscript"),
    ("GET", "/jobs/{jobId}/transcript/revisions", "listTranscriptRevisions"),
    ("POST", "/jobs/{jobId}/translations", "createTranslation"),
    ("GET", "/jobs/{jobId}/translations", "listTranslations"),
    ("GET", "/jobs/{jobId}/translations/{language}", "getTranslation"),
    ("GET", "/jobs/{jobId}/receipt", "getReceipt"),
    ("GET", "/jobs/{jobId}/review", "getReview"),
    ("POST", "/comparisons", "compareJobs"),
    ("GET", "/comparisons/{comparisonId}", "getComparison"),
    ("GET", "/jobs/{jobId}/people", "getPeople"),
    ("DELETE", "/jobs/{jobId}/people", "deletePeople"),
    ("GET", "/jobs/{jobId}/clip", "getClip"),
    ("PUT", "/jobs/{jobId}/speakers/{speakerId}", "nameSpeaker"),
    ("DELETE", "/jobs/{jobId}/speakers/{speakerId}", "resetSpeaker"),
    ("PUT", "/jobs/{jobId}/speakers/{speakerId}/voice", "nameVoice"),
    ("GET", "/voices", "listVoices"),
    ("DELETE", "/voices/{voiceId}", "deleteVoice"),
    ("GET", "/vocabulary", "getVocabulary"),
    ("PUT", "/vocabulary", "replaceVocabulary"),
    ("POST", "/ask", "ask"),
    ("GET", "/jobs/{jobId}/comments", "listComments"),
    ("POST", "/jobs/{jobId}/comments", "addComment"),
    ("PATCH", "/jobs/{jobId}/comments/{commentId}", "changeComment"),
    ("DELETE", "/jobs/{jobId}/comments/{commentId}", "deleteComment"),
    ("POST", "/jobs/{jobId}/share", "shareJob"),
    ("PATCH", "/jobs/{jobId}", "changeJob"),
    ("POST", "/jobs/{jobId}/erase", "eraseJob"),
    ("POST", "/jobs/{jobId}/rerun", "rerunJob"),
    ("POST", "/jobs/{jobId}/redact", "redactJob"),
    ("POST", "/sessions", "createSession"),
    ("GET", "/jobs/{jobId}/events", "streamJobEvents"),
    ("GET", "/audit", "listAuditLog"),
    ("GET", "/webhooks/endpoints", "listWebhookEndpoints"),
    ("POST", "/webhooks/endpoints", "createWebhookEndpoint"),
    ("GET", "/webhooks/endpoints/{endpointId}", "getWebhookEndpoint"),
    ("PATCH", "/webhooks/endpoints/{endpointId}", "changeWebhookEndpoint"),
    ("DELETE", "/webhooks/endpoints/{endpointId}", "deleteWebhookEndpoint"),
    ("POST", "/webhooks/endpoints/{endpointId}/rotate", "rotateWebhookEndpoint"),
    ("GET", "/archives", "listArchives"),
    ("POST", "/archives", "createArchive"),
    ("GET", "/archives/{archiveId}", "getArchive"),
    ("PATCH", "/archives/{archiveId}", "changeArchive"),
    ("DELETE", "/archives/{archiveId}", "deleteArchive"),
    ("GET", "/archives/{archiveId}/objects", "listArchiveObjects"),
    ("GET", "/archives/{archiveId}/duplicates", "listArchiveDuplicates"),
    ("GET", "/jobs/{jobId}/duplicates", "listDuplicates"),
    ("POST", "/archives/{archiveId}/pause", "pauseArchive"),
    ("POST", "/archives/{archiveId}/resume", "resumeArchive"),
}
"""Operations beside those of the specification."""


@covers("versioning/2")
def test_operation_ids_are_the_operation_names(api: ContractApi) -> None:
    document = api.discover("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    documented = {
        (method.upper(), path, operation["operationId"])
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }
    rows = [row_cells(f"endpoints/{name}") for name in rows_of("endpoints")]
    assert documented - ADDED == {(method, path, name) for method, path, _, name in rows}


@covers("versioning/3")
def test_delete_and_the_status_filter_are_deprecated(caller: Caller) -> None:
    job_id = caller.create()["jobId"]
    successor = f'</v1/api/jobs/{job_id}/cancel>; rel="successor-version"'
    first, again = (caller.ask("DELETE", f"/jobs/{job_id}") for _ in range(2))
    unknown = caller.api.client.delete(f"/jobs/{job_id}")
    assert [a.status_code for a in (first, again, unknown)] == [200, 409, 401]
    for answer in (first, again, unknown):
        assert answer.headers["deprecation"] == "true"
        assert answer.headers["link"] == successor
    paths = caller.api.discover("/openapi.json").json()["paths"]
    assert paths["/jobs/{jobId}"]["delete"]["deprecated"] is True
    filters = {item["name"]: item for item in paths["/jobs"]["get"]["parameters"]}
    assert filters["status"]["deprecated"] is True
    assert not filters["state"].get("deprecated")


@covers("versioning/4", "auth-rules/4", "error-codes/INSUFFICIENT_SCOPE")
def test_keys_have_no_scopes_and_the_scope_code_is_reserved(api: ContractApi) -> None:
    """Known to clients, returned by no operation; that a key opens all is the endpoints' test."""
    document = api.discover("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert "INSUFFICIENT_SCOPE" in schemas["Error"]["properties"]["code"]["enum"]
    answers: Any = [
        answer.get("content")
        for item in document["paths"].values()
        for operation in item.values()
        for answer in operation["responses"].values()
    ]
    assert "INSUFFICIENT_SCOPE" not in str(answers)
    assert "InsufficientScope" not in str(answers)
    for scheme in document["components"]["securitySchemes"].values():
        assert scheme["type"] in {"http", "apiKey"}


@covers("versioning/6")
def test_no_end_of_a_deprecated_operation_is_announced(caller: Caller) -> None:
    answer = caller.ask("DELETE", f"/jobs/{caller.create()['jobId']}")
    assert "sunset" not in answer.headers
