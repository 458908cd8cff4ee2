"""Two accounts on one service: what is another's looks like what is not there, everywhere.

Walks every operation of the interface document and every route of the application: one that
stands in no table here fails the first tests.
"""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import unescape
from typing import Any

import httpx
import pytest

from serve_app.app import ROUTERS
from serve_app.dashboard.routes import API_PATH
from tests.contract.calling import Caller, ContractApi, shown
from tests.security.furnished_accounts import BATCH_CLIPS, FurnishedAccount
from tests.serve_app.interface_contract import OPERATIONS
from tests.tables import every

BY_NAME = {operation.operation_id: operation for operation in OPERATIONS}
VARYING_HEADERS = {"date", "x-request-id", "x-ratelimit-remaining", "x-ratelimit-reset"}


@dataclass(frozen=True, slots=True)
class Item:
    """An operation on one thing: how its path names a thing of a account."""

    named: Callable[[FurnishedAccount], dict[str, str]]
    queries: tuple[str, ...] = ("",)


def _finished(account: FurnishedAccount) -> dict[str, str]:
    return {"jobId": account.finished["jobId"]}


def _uploading(account: FurnishedAccount) -> dict[str, str]:
    return {"jobId": account.uploading["jobId"]}


def _of_the_batch(account: FurnishedAccount) -> dict[str, str]:
    return {"jobId": account.batch["jobs"][0]["jobId"]}


def _track(account: FurnishedAccount) -> dict[str, str]:
    return _finished(account) | {"trackIndex": "1"}


def _speaker(account: FurnishedAccount) -> dict[str, str]:
    return _finished(account) | {"speakerId": "speaker_0"}


def _endpoint(account: FurnishedAccount) -> dict[str, str]:
    return {"endpointId": account.endpoint_id}


def _archive(account: FurnishedAccount) -> dict[str, str]:
    return {"archiveId": account.archive_id}


ITEMS: Mapping[str, tuple[Item, ...]] = {
    "getJob": (
        Item(_finished, ("", "?include=none", "?include=scenes,transcript")),
        Item(_uploading),
        Item(_of_the_batch),
    ),
    "cancelJob": (Item(_finished), Item(_uploading), Item(_of_the_batch)),
    "cancelJobDeprecated": (Item(_finished), Item(_uploading)),
    "getScenes": (Item(_finished), Item(_uploading)),
    "getTranscript": (
        Item(_finished, ("", "?track=0", "?track=9", "?format=srt", "?format=vtt&track=1")),
        Item(_uploading),
    ),
    "exportJob": (
        Item(_finished, ("?format=edl", "?format=csv")),
        Item(_uploading, ("?format=edl",)),
    ),
    "listAudioTracks": (Item(_finished), Item(_uploading)),
    "getAudioTrack": (Item(_track),),
    "getChapters": (Item(_finished), Item(_uploading)),
    "editTranscript": (Item(_finished),),
    "revertTranscript": (Item(_finished),),
    "listTranscriptRevisions": (Item(_finished, ("", "?track=0")), Item(_uploading)),
    "createTranslation": (Item(_finished),),
    "listTranslations": (Item(_finished), Item(_uploading)),
    "getTranslation": (Item(lambda account: _finished(account) | {"language": "en"}),),
    "lintCaptions": (Item(_finished, ("?rules=bbc&track=0",)),),
    "changeJob": (Item(_finished),),
    "eraseJob": (Item(_uploading),),
    "rerunJob": (Item(_finished), Item(_uploading)),
    "redactJob": (Item(_finished),),
    "getReceipt": (Item(_finished), Item(_uploading)),
    "getReview": (Item(_finished), Item(_uploading)),
    "getPeople": (Item(_finished), Item(_uploading)),
    "deletePeople": (Item(_finished), Item(_uploading)),
    "listComments": (Item(_finished),),
    "getSummary": (Item(_finished), Item(_uploading)),
    "getClip": (Item(_finished, ("?start=0&end=1",)), Item(_uploading, ("?start=0&end=1",))),
    "nameSpeaker": (Item(_speaker, ("", "?track=0")),),
    "nameVoice": (Item(_speaker, ("", "?track=0")),),
    "deleteVoice": (Item(lambda account: {"voiceId": account.voice_id}),),
    "resetSpeaker": (Item(_speaker, ("", "?track=0")),),
    "rotateKey": (Item(lambda account: {"id": account.key_id}),),
    "streamJobEvents": (Item(_finished),),
    "getWebhookEndpoint": (Item(_endpoint),),
    "changeWebhookEndpoint": (Item(_endpoint),),
    "rotateWebhookEndpoint": (Item(_endpoint),),
    "deleteWebhookEndpoint": (Item(_endpoint),),
    "getArchive": (Item(_archive),),
    "listArchiveObjects": (Item(_archive, ("", "?state=failed")),),
    "listArchiveDuplicates": (Item(_archive),),
    "listDuplicates": (Item(_finished, ("", "?kind=file")), Item(_uploading)),
    "changeArchive": (Item(_archive),),
    "pauseArchive": (Item(_archive),),
    "resumeArchive": (Item(_archive),),
    "deleteArchive": (Item(_archive),),
}
"""Operations on a thing that the path names."""

ONCE_ONLY = frozenset(
    {
        "cancelJob",
        "cancelJobDeprecated",
        "deleteArchive",
        "deleteVoice",
        "deleteWebhookEndpoint",
        "rotateKey",
    }
)
"""Those of them that do not answer the same a second time."""

LISTS = {
    "listJobs": ("", "?limit=100", "?name=film", "?state=completed", "?status=AWAITING_UPLOAD"),
    "getQuota": ("",),
    "listWebhookDeliveries": ("", "?jobId={foreign}"),
    "listWebhookEndpoints": ("",),
    "listVoices": ("",),
    "getVocabulary": ("",),
    "listArchives": ("",),
    "search": (
        "?q=track+OR+person+OR+film",
        "?q=film&kinds=file",
        "?q=foreign",
        "?q=track&jobId={foreign}",
    ),
    "listKeys": ("",),
    "listAuditLog": ("", "?limit=1000"),
    "getKeysPortal": ("",),
    "getWebhookSecret": ("",),
}
"""Operations that show what the caller's account has."""

MAKERS: Mapping[str, dict[str, Any]] = {
    "createJob": {"fileName": "own.mp4"},
    "createJobFromUrl": {"url": "https://own.example.com/a.mp4"},
    "createBatch": {
        "mode": "independent",
        "clips": [{"sourceUrl": "https://own.example.com/a.mp4"}],
    },
}
"""Operations that make something for the caller's account."""

BODIES = {
    **MAKERS,
    "nameSpeaker": {"label": "Somebody"},
    "nameVoice": {"name": "Somebody"},
    "changeWebhookEndpoint": {},
    "changeArchive": {},
    "editTranscript": {"revision": 0, "trackIndex": 0, "segments": [{"index": 0}]},
    "revertTranscript": {"revision": 0, "trackIndex": 0},
    "createTranslation": {"language": "en"},
    "changeJob": {},
    "rerunJob": {},
    "redactJob": {"kinds": ["email"]},
}

TOLD_BY_THEMSELVES = {
    "ask": "tests/serve_app/test_ask.py",
    "addComment": "tests/serve_app/test_comments.py",
    "shareJob": "tests/serve_app/test_comments.py",
    "changeComment": "tests/serve_app/test_comments.py",
    "deleteComment": "tests/serve_app/test_comments.py",
    "compareJobs": "tests/serve_app/exports/test_comparisons.py",
    "getComparison": "tests/serve_app/exports/test_comparisons.py",
    "createSession": "test_a_sign_in_link_opens_its_own_account",
    "createWebhookEndpoint": "tests/contract/test_subscriptions.py",
    "createArchive": "tests/serve_app/work/test_archives.py",
    "replaceVocabulary": "tests/serve_app/test_vocabulary.py",
    "sendTestWebhook": "signed with the caller's secret: tests/contract/test_webhooks.py",
    "rotateWebhookSecret": "test_rotating_the_secret_leaves_the_others_alone",
}
OPEN = {
    "getOpenApi": "/openapi.json",
    "getPricing": "/pricing",
    "estimatePrice": "/pricing/estimate?durationSeconds=60",
    "listFormats": "/formats",
}
"""Operations that are the same for everybody."""

_OPERATION = "/projects/{project}/locations/{location}/operations"
ROUTES_OUTSIDE = {
    "/v1/api/jobs/{job_id}/thumbnails/{name}.jpg": "test_stills_open_for_their_address_only",
    "/v1/api/uploads/{job_id}/{slot}": "test_signed_addresses",
    "/v1/api/uploads/{job_id}/{slot}/resumable": "test_signed_addresses",
    "/payments/{provider}/events": "signed by the provider: tests/money/test_payments.py",
    "/portal/{account_id}": "test_a_portal_link_opens_its_own_account",
    "/v1/api/jobs/{jobId}/audio-tracks": "tests/serve_app/test_published_clients.py",
    "/v1/api/jobs/{jobId}/audio-tracks/{trackIndex}": "tests/serve_app/test_published_clients.py",
    "/": "the same for everybody",
    "/v1/models": "the same for everybody",
    "/v1/models/{model}": "the same for everybody",
    "/v1/audio/transcriptions": "makes a job of the caller's: tests/contract/test_openai.py",
    "/v1/audio/translations": "makes a job of the caller's: tests/contract/test_openai.py",
    "/v1/listen": "makes a job of the caller's: tests/contract/test_protocols.py",
    "/v1/videos:annotate": "makes a job of the caller's: tests/contract/test_google.py",
    "/v2/transcript": "makes a job of the caller's: tests/contract/test_protocols.py",
    "/v2/upload": "makes a job of the caller's: tests/contract/test_protocols.py",
    **{
        f"/v2/transcript/{{jobId}}{form}": "strangers: tests/contract/test_protocols.py"
        for form in ("", "/sentences", "/paragraphs", "/{form}")
    },
    **{
        f"/v1{root}{_OPERATION}{end}": "strangers: tests/contract/test_google.py"
        for root in ("", "/operations")
        for end in ("/{jobId}", "/{jobId}:cancel")
    },
    f"/v1{_OPERATION}": "strangers: tests/contract/test_google.py",
    "/docs/protocols/{name}": "the same for everybody",
    "/health": "the same for everybody",
    "/health/live": "the same for everybody",
    "/docs": "the same for everybody",
    "/.well-known/vas-receipts.json": "the same for everybody",
    "/docs/errors": "the same for everybody",
    "/docs/assets/{name}": "the same for everybody",
    "/v1/api/jobs/{job_id}/media": "test_media_opens_for_its_address_only",
    "/dashboard/static/{version}/{name:path}": "the same for everybody",
    "/dashboard/sign-in": "test_a_sign_in_link_opens_its_own_account",
    "/dashboard": "test_pages_show_nothing_of_anothers",
    "/dashboard/": "leads to /dashboard",
    "/dashboard/account": "test_pages_show_nothing_of_anothers",
    "/dashboard/keys": "test_pages_show_nothing_of_anothers",
    "/dashboard/vocabulary": "test_pages_show_nothing_of_anothers",
    "/dashboard/jobs/{jobId}/editors": "tests/serve_app/test_comments.py",
    "/dashboard/jobs/{jobId}/segments/wave": "tests/serve_app/dashboard/test_library_pages.py",
    "/dashboard/recognition": "tests/serve_app/dashboard/test_library_pages.py",
    "/dashboard/shared/{jobId}": "signed: tests/serve_app/test_comments.py",
    "/dashboard/archives": "test_pages_show_nothing_of_anothers",
    "/dashboard/archives/{id}/{action}": "tests/serve_app/dashboard/test_dashboard_pages.py",
    "/dashboard/compare": "tests/serve_app/exports/test_comparisons.py",
    "/dashboard/search": "test_pages_show_nothing_of_anothers",
    "/dashboard/jobs": "tests/serve_app/dashboard/test_dashboard_pages.py",
    "/dashboard/jobs/{jobId}": "test_pages_of_what_is_anothers_look_like_what_is_missing",
    "/dashboard/jobs/{jobId}/{kind}": "test_pages_of_what_is_anothers_look_like_what_is_missing",
    "/dashboard/jobs/{jobId}/{kind}/{content}": (
        "test_pages_of_what_is_anothers_look_like_what_is_missing"
    ),
    "/dashboard/jobs/{jobId}/captions": "test_pages_of_what_is_anothers_look_like_what_is_missing",
    "/dashboard/jobs/{jobId}/changes": "test_pages_of_what_is_anothers_look_like_what_is_missing",
    "/dashboard/jobs/{jobId}/erase": "tests/serve_app/test_erasing.py",
    "/dashboard/jobs/{jobId}/cancel": "tests/serve_app/dashboard/test_dashboard_pages.py",
    "/dashboard/keys/{id}/revoke": "tests/security/test_people.py",
    "/dashboard/keys/{id}/rotate": "tests/serve_app/dashboard/test_dashboard_pages.py",
    "/dashboard/webhook-secret/rotate": "tests/serve_app/dashboard/test_dashboard_pages.py",
    "/dashboard/endpoints": "tests/serve_app/dashboard/test_dashboard_pages.py",
    "/dashboard/endpoints/{id}/delete": "tests/serve_app/dashboard/test_dashboard_pages.py",
    "/dashboard/endpoints/{id}/rotate": "tests/serve_app/dashboard/test_dashboard_pages.py",
    "/dashboard/sign-in/oidc": "tests/security/test_oidc.py",
    "/dashboard/sign-in/oidc/return": "tests/security/test_oidc.py",
    "/dashboard/sign-in/oidc/confirm": "tests/security/test_oidc.py",
    "/dashboard/invitation": "tests/security/test_people.py",
    "/dashboard/people": "test_pages_show_nothing_of_anothers",
    "/dashboard/people/{id}/role": "tests/security/test_people.py",
    "/dashboard/people/{id}/remove": "tests/security/test_people.py",
    "/dashboard/people/{id}/link": "tests/security/test_people.py",
    "/dashboard/invitations": "tests/security/test_people.py",
    "/dashboard/invitations/{id}/withdraw": "tests/security/test_people.py",
    "/dashboard/sessions/{id}/end": "tests/security/test_people.py",
    "/dashboard/audit": "test_pages_show_nothing_of_anothers",
    "/dashboard/audit/export": "test_pages_show_nothing_of_anothers",
    "/dashboard/sign-out": "tests/serve_app/dashboard/test_dashboard_pages.py",
    "/dashboard/operator": "test_an_account_learns_nothing_of_the_operators_pages",
    "/dashboard/operator/accounts": "test_an_account_learns_nothing_of_the_operators_pages",
    "/dashboard/operator/jobs/{id}/cancel": "tests/serve_app/dashboard/test_operator_pages.py",
    "/dashboard/operator/jobs/{id}/priority": "tests/serve_app/dashboard/test_operator_pages.py",
    "/dashboard/operator/accounts/{id}/{action}": (
        "tests/serve_app/dashboard/test_operator_pages.py"
    ),
    "/dashboard/operator/throughput": "test_an_account_learns_nothing_of_the_operators_pages",
    "/dashboard/operator/failures": "test_an_account_learns_nothing_of_the_operators_pages",
    "/dashboard/operator/system": "test_an_account_learns_nothing_of_the_operators_pages",
    "/dashboard/operator/sign-out": "tests/serve_app/dashboard/test_operator_pages.py",
    "/dashboard/operator/{rest:path}": "test_an_account_learns_nothing_of_the_operators_pages",
    "/dashboard/{rest:path}": "the same for everybody",
    "/healthz": "the same for everybody",
    "/readyz": "the same for everybody",
}
"""Routes that are no operations, and where their isolation is looked at."""


def test_every_operation_stands_in_one_table() -> None:
    tables = (ITEMS, LISTS, MAKERS, TOLD_BY_THEMSELVES, OPEN)
    told = [name for table in tables for name in table]
    assert sorted(told) == sorted(BY_NAME)


def test_every_other_route_stands_in_the_table_of_routes() -> None:
    paths = {
        route.path  # type: ignore[attr-defined]
        for router in ROUTERS
        for route in router.routes
        if getattr(route, "operation_id", None) is None
    }
    for_scripts = {path for path in paths if path.startswith(API_PATH)}
    assert paths - for_scripts == set(ROUTES_OUTSIDE)
    aliases = {path.removeprefix("/v1/api") for path in ROUTES_OUTSIDE if "audio-tracks" in path}
    with_credential = {each.path for each in OPERATIONS if each.auth != "none"}
    assert for_scripts == {API_PATH + path for path in with_credential | aliases}


def test_the_document_has_the_same_operations(api: ContractApi) -> None:
    document = api.discover("/openapi.json").json()
    published = {
        operation["operationId"]
        for path in document["paths"].values()
        for operation in path.values()
    }
    assert published == set(BY_NAME)


def ask(account: FurnishedAccount, name: str, query: str = "", **named: str) -> httpx.Response:
    """A request to an operation with the account's own credential."""
    operation = BY_NAME[name]
    return account.caller.api.client.request(
        operation.method,
        operation.path.format(**named) + query,
        headers=account.credentials[operation.auth],
        json=BODIES.get(name),
    )


def likeness(answer: httpx.Response) -> tuple[int, Any, dict[str, str]]:
    """All of an answer but what changes from request to request."""
    headers = {n: v for n, v in answer.headers.items() if n not in VARYING_HEADERS}
    body = answer.json()
    body.pop("requestId")
    return answer.status_code, body, headers


ITEM_CASES = [
    pytest.param(name, item, query, id=f"{name}{query} {number}")
    for name, items in ITEMS.items()
    for number, item in enumerate(items)
    for query in item.queries
]


@every(("name", "item", "query"), ITEM_CASES)
def test_what_is_anothers_looks_like_what_is_missing(
    own: FurnishedAccount, foreign: FurnishedAccount, name: str, item: Item, query: str
) -> None:
    """The same status, body and headers; the deprecated path's successor names what was asked."""
    own.caller.api.sql("DELETE FROM rate_limits")
    named = item.named(foreign)
    first = next(iter(named))
    missing = [named | {first: value} for value in (str(uuid.uuid4()), "0" * 32, "no-uuid")]
    found = [ask(own, name, query, **each) for each in (named, *missing)]
    seen = []
    for asked, answer in zip((named, *missing), found, strict=True):
        status, body, headers = likeness(answer)
        headers["link"] = headers.get("link", "").replace(asked[first], "…")
        seen.append((status, body, headers))
    assert seen[0][0] == 404
    assert seen[0][1]["code"] == "NOT_FOUND"
    assert all(each == seen[0] for each in seen)


def test_nothing_that_was_tried_changed_anything(
    own: FurnishedAccount, foreign: FurnishedAccount
) -> None:
    for name, items in ITEMS.items():
        for item in items:
            ask(own, name, **item.named(foreign))
    kept = {job["jobId"]: job["state"] for job in shown_jobs(foreign.caller)}
    assert kept[foreign.finished["jobId"]] == "completed"
    assert kept[foreign.uploading["jobId"]] == "awaiting_upload"
    assert [kept[job["jobId"]] for job in foreign.batch["jobs"]] == ["queued"] * BATCH_CLIPS
    listed = shown(foreign.caller.api.client.get("/keys", headers=foreign.session))
    assert {key["id"]: key["status"] for key in listed}[foreign.key_id] == "active"


def shown_jobs(caller: Caller) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = caller.get("/jobs", limit=100).json()["data"]
    return jobs


@pytest.fixture(autouse=True)
def full_buckets(api: ContractApi) -> None:
    """One account asks more in a minute than one may."""
    api.sql("DELETE FROM rate_limits")


def ask_as_script(
    account: FurnishedAccount, name: str, query: str = "", **named: str
) -> httpx.Response:
    """The same operation as a script of the dashboard's pages calls it."""
    operation, api = BY_NAME[name], account.caller.api
    path = f"{api.root}{API_PATH}{operation.path.format(**named)}{query}"
    headers = cookie(account) | {"X-CSRF-Token": csrf_token(api.root, cookie(account)["Cookie"])}
    body = BODIES.get(name)
    return httpx.request(operation.method, path, headers=headers, json=body, trust_env=False)


@functools.cache
def csrf_token(root: str, session: str) -> str:
    """Of a session's pages; fetched once, as pages are counted."""
    page = httpx.get(f"{root}/dashboard", headers={"Cookie": session}, trust_env=False)
    [token] = re.findall(r'<meta name="csrf" content="([^"]+)">', page.text)
    return str(token)


def cookie(account: FurnishedAccount) -> dict[str, str]:
    return {"Cookie": f"vas_session={account.session['Authorization'].removeprefix('Bearer ')}"}


@every("name", ITEMS)
def test_scripts_of_the_dashboard_see_what_is_anothers_as_what_is_missing(
    own: FurnishedAccount, foreign: FurnishedAccount, name: str
) -> None:
    item = ITEMS[name][0]
    named = item.named(foreign)
    missing = named | {next(iter(named)): str(uuid.uuid4())}
    query = item.queries[-1]
    found = [ask_as_script(own, name, query, **each) for each in (named, missing)]
    assert [answer.status_code for answer in found] == [404, 404], found[0].text
    assert len({answer.json()["error"] for answer in found}) == 1
    if name not in ONCE_ONLY:
        mine = item.named(own)
        with_key = ask(own, name, query, **mine)
        assert ask_as_script(own, name, query, **mine).status_code == with_key.status_code


PAGES = [
    "",
    "/account",
    "/keys",
    "/vocabulary",
    "/people",
    "/audit",
    "/audit/export",
    "/search?q=person+OR+own+OR+foreign",
]


@every("path", PAGES)
def test_pages_show_nothing_of_anothers(
    own: FurnishedAccount, foreign: FurnishedAccount, path: str
) -> None:
    url = f"{own.caller.api.root}/dashboard{path}"
    page = httpx.get(url, headers=cookie(own), trust_env=False)
    assert page.status_code == 200
    assert [mark for mark in foreign.marks if mark in page.text] == []
    assert any(mark in page.text for mark in own.marks)


PARTS = (
    "/captions?rules=bbc&track=0",
    "/scenes",
    "/segments",
    "/segments?track=1",
    "/scenes/outline",
    "/scenes/texts",
    "/segments/outline",
    "/segments/texts",
    "/changes",
)


def page_of_job(account: FurnishedAccount, job_id: str, part: str) -> httpx.Response:
    url = f"{account.caller.api.root}/dashboard/jobs/{job_id}{part}"
    return httpx.get(url, headers=cookie(account), trust_env=False)


@every("part", ["", *PARTS])
def test_pages_of_what_is_anothers_look_like_what_is_missing(
    own: FurnishedAccount, foreign: FurnishedAccount, part: str
) -> None:
    # Read by its owner first: what is kept of it is for nobody else.
    for account in (own, foreign):
        assert page_of_job(account, account.finished["jobId"], part).status_code == 200
    ids = [foreign.finished["jobId"], str(uuid.uuid4()), "no-uuid"]
    pages = [page_of_job(own, each, part) for each in ids]
    assert {page.status_code for page in pages} == {404}
    assert len({re.sub(r"[\w-]+\.[0-9a-f]{64}", "", page.text) for page in pages}) == 1


@every("number", ["-1", "-9" * 20, "9" * 40, "2147483648", "1.5", "²", "a%00"])
@every("part", ["/scenes?from=", "/segments?from=", "/segments?track="])
def test_a_part_that_there_is_none_of_is_refused(
    own: FurnishedAccount, part: str, number: str
) -> None:
    answer = page_of_job(own, own.finished["jobId"], part + number)
    assert answer.status_code in {400, 404}, answer.text


OPERATORS = ("", "/accounts", "/throughput", "/failures", "/system", "/nothing")


@every("path", OPERATORS)
def test_an_account_learns_nothing_of_the_operators_pages(
    own: FurnishedAccount, foreign: FurnishedAccount, path: str
) -> None:
    """Not even that they are there; and an operator's session shows no account's pages."""
    root = own.caller.api.root
    pages = [
        httpx.get(f"{root}/dashboard/{each}", headers=cookie(own), trust_env=False)
        for each in (f"operator{path}", "no-page")
    ]
    assert [page.status_code for page in pages] == [404, 404]
    assert len({re.sub(r"[\w-]+\.[0-9a-f]{64}", "", page.text) for page in pages}) == 1
    session = own.caller.api.operator_session()
    for name in ("vas_session", "vas_operator"):
        headers = {"Cookie": f"{name}={session}"}
        for account_page in ("", f"/jobs/{foreign.finished['jobId']}", "/keys"):
            url = f"{root}/dashboard{account_page}"
            assert httpx.get(url, headers=headers, trust_env=False).status_code == 303
        found = httpx.get(f"{root}/dashboard/api/jobs", headers=headers, trust_env=False)
        assert found.status_code == 401


def test_media_opens_for_its_address_only(own: FurnishedAccount, foreign: FurnishedAccount) -> None:
    root, job_id = own.caller.api.root, foreign.finished["jobId"]
    page = httpx.get(f"{root}/dashboard/jobs/{job_id}", headers=cookie(foreign), trust_env=False)
    [url] = re.findall(rf'src="(/v1/api/jobs/{job_id}/media[^"]+)"', page.text)
    address = root + unescape(url)
    assert httpx.get(address, trust_env=False).content == b"footage"
    for wrong in (
        address.replace(job_id, own.finished["jobId"]),
        address.replace("expires=", "expires=1"),
        address.partition("?")[0],
        f"{root}/v1/api/jobs/x/media?expires=1&signature=x",
    ):
        assert httpx.get(wrong, trust_env=False).status_code == 404


LIST_CASES = [(name, query) for name, queries in LISTS.items() for query in queries]


@every(("name", "query"), LIST_CASES)
def test_lists_show_what_is_ones_own_and_nothing_of_anothers(
    own: FurnishedAccount, foreign: FurnishedAccount, name: str, query: str
) -> None:
    answer = ask(own, name, query.format(foreign=foreign.finished["jobId"]))
    assert answer.status_code == 200, answer.text
    told = answer.text + repr(answer.headers)
    assert [mark for mark in foreign.marks if mark in told] == []
    lists = ("listJobs", "listKeys", "getKeysPortal", "search")
    if name in lists and not any(word in query for word in ("AWAITING", "foreign")):
        assert any(mark in told for mark in own.marks)
    if "foreign" in query:
        assert shown(answer) == []


def test_a_page_of_anothers_list_cannot_be_asked_for(
    own: FurnishedAccount, foreign: FurnishedAccount
) -> None:
    cursor = foreign.caller.get("/jobs", limit=1).json()["nextCursor"]
    assert cursor is not None
    answer = own.caller.get("/jobs", cursor=cursor)
    assert (answer.status_code, answer.json()["param"]) == (400, "cursor")


def test_a_page_of_anothers_search_cannot_be_asked_for(
    own: FurnishedAccount, foreign: FurnishedAccount
) -> None:
    page = foreign.caller.get("/search", q="person", limit=1).json()
    assert page["nextCursor"] is not None
    answer = own.caller.get("/search", q="person", limit=1, cursor=page["nextCursor"])
    assert (answer.status_code, answer.json()["param"]) == (400, "cursor")


def test_anothers_scene_is_like_none(own: FurnishedAccount, foreign: FurnishedAccount) -> None:
    ids = (foreign.finished["jobId"], str(uuid.uuid4()))
    answers = [own.caller.get("/search", like=f"{each}:0") for each in ids]
    assert {answer.status_code for answer in answers} == {404}
    assert likeness(answers[0]) == likeness(answers[1])
    assert answers[0].json()["code"] == "NOT_FOUND"


@pytest.mark.parametrize("name", MAKERS)
def test_an_idempotency_key_means_nothing_to_another_account(
    own: FurnishedAccount, foreign: FurnishedAccount, name: str
) -> None:
    operation, key = BY_NAME[name], str(uuid.uuid4())
    answers = []
    for account in (foreign, own, foreign):
        headers = account.credentials["key"] | {"Idempotency-Key": key}
        answers.append(
            account.caller.api.client.post(operation.path, json=MAKERS[name], headers=headers)
        )
    assert [answer.status_code for answer in answers] == [201] * 3
    assert [answer.headers.get("idempotent-replayed") for answer in answers] == [None, None, "true"]
    ids = [_ids_of(shown(answer)) for answer in answers]
    assert ids[0] == ids[2]
    assert not ids[0] & ids[1]
    mine = {job["jobId"] for job in shown_jobs(own.caller)}
    assert ids[1] <= mine
    assert not ids[0] & mine


def _ids_of(made: dict[str, Any]) -> set[str]:
    return {job["jobId"] for job in made.get("jobs", [made])}


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_made_belongs_to_the_caller_whatever_the_body_claims(
    own: FurnishedAccount, foreign: FurnishedAccount, name: str
) -> None:
    claims = {
        "accountId": str(foreign.caller.customer.account_id),
        "account_id": str(foreign.caller.customer.account_id),
        "jobId": foreign.uploading["jobId"],
        "batchId": foreign.batch["batchId"],
        "id": foreign.uploading["jobId"],
    }
    made = shown(own.caller.post(BY_NAME[name].path, MAKERS[name] | claims))
    assert not _ids_of(made) & foreign.marks
    assert made.get("batchId") != foreign.batch["batchId"]
    assert _ids_of(made) <= {job["jobId"] for job in shown_jobs(own.caller)}


@pytest.mark.parametrize("name", OPEN)
def test_what_is_open_is_the_same_for_everybody(
    own: FurnishedAccount, foreign: FurnishedAccount, name: str
) -> None:
    api = own.caller.api
    anonymous = api.discover(OPEN[name])
    for account in (own, foreign):
        keyed = account.caller.get(OPEN[name])
        told = [answer.json() for answer in (anonymous, keyed)]
        assert told[0].get("data", told[0]) == told[1].get("data", told[1])
        assert [mark for mark in account.marks if mark in keyed.text] == []


def test_a_credential_in_the_wrong_place_does_not_lend_the_others_account(
    own: FurnishedAccount, foreign: FurnishedAccount
) -> None:
    """Two keys are no credential; a session beside a key opens neither's."""
    api, theirs = own.caller.api, foreign.caller.customer.key
    mixed = [
        own.credentials["key"] | {"Authorization": f"Bearer {theirs}"},
        own.credentials["key"] | foreign.session,
        own.session | {"X-API-Key": theirs},
    ]
    for headers in mixed[:2]:
        assert api.client.get("/quota", headers=headers).status_code == 401
    listed = api.client.get("/keys", headers=mixed[2])
    assert listed.status_code == 200
    assert foreign.key_id not in listed.text


def test_rotating_the_secret_leaves_the_others_alone(
    own: FurnishedAccount, foreign: FurnishedAccount
) -> None:
    api = own.caller.api
    rotated = shown(api.client.post("/webhooks/secret/rotate", headers=own.session))["secret"]
    theirs = shown(api.client.get("/webhooks/secret", headers=foreign.session))["secret"]
    assert theirs == foreign.signing_secret
    assert rotated not in (own.signing_secret, foreign.signing_secret)


def test_stills_open_for_their_address_only(
    own: FurnishedAccount, foreign: FurnishedAccount
) -> None:
    """One's own signature on another's still, and the other way round."""
    for path_of, query_of in ((own, foreign), (foreign, own)):
        path = path_of.still_urls[0].partition("?")[0]
        query = query_of.still_urls[0].partition("?")[2]
        mixed = httpx.get(f"{path}?{query}", trust_env=False)
        missing = httpx.get(
            path.replace(path_of.finished["jobId"], str(uuid.uuid4())), trust_env=False
        )
        assert likeness(mixed) == likeness(missing)
        assert mixed.status_code == 404
    swapped = foreign.still_urls[0].replace("/0.jpg", "/1.jpg")
    assert httpx.get(swapped, trust_env=False).status_code == 404


def test_a_portal_link_opens_its_own_account(
    own: FurnishedAccount, foreign: FurnishedAccount
) -> None:
    path, _, query = foreign.portal_url.partition("?")
    mine = own.portal_url.partition("?")
    page = httpx.get(foreign.portal_url, trust_env=False)
    assert "foreign-receipt" in page.text
    assert not [mark for mark in own.marks if mark in page.text]
    closed = [
        httpx.get(url, trust_env=False)
        for url in (
            f"{path}?{mine[2]}",
            f"{mine[0]}?{query}",
            f"{path.rsplit('/', 1)[0]}/x?{query}",
        )
    ]
    assert {answer.status_code for answer in closed} == {403}
    assert len({answer.content for answer in closed}) == 1


def test_a_sign_in_link_opens_its_own_account(
    own: FurnishedAccount, foreign: FurnishedAccount
) -> None:
    session = foreign.caller.sign_in()
    listed = own.caller.api.client.get("/keys", headers=session)
    assert foreign.key_id in listed.text
    assert own.key_id not in listed.text
