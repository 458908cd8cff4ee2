"""Signed addresses (uploads, tus, stills, billing): not guessed, not bent, not used again."""

from __future__ import annotations

import inspect
import math
import re
import secrets
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from serve_app.crypto import Signer
from serve_app.media.source import find_media
from serve_app.webhooks.signing import new_signing_secret
from storage import jobs, keys
from storage.database import Connection
from storage.objects.folder import FolderStore
from tests.contract.calling import Caller, ContractApi, shown
from tests.contract.runner_side import RunnerSide
from tests.security.furnished_accounts import FurnishedAccount
from tests.serve_app.raw_http import exchange
from tests.serve_app.uploads.uploading import TUS, head, patch
from tests.tables import every

CONTENT = b"footage"


def put(url: str, content: bytes = CONTENT) -> httpx.Response:
    return httpx.put(url, content=content, trust_env=False, timeout=120)


def stored(api: ContractApi, job_id: str) -> list[bytes]:
    """Contents of all files that the job has in the object store."""
    store = api.context.objects
    assert isinstance(store, FolderStore)
    return [
        path.read_bytes() for path in (store.root / "jobs" / job_id).rglob("*") if path.is_file()
    ]


def signed_parts(url: str) -> tuple[str, str, str]:
    """Path, expiry and signature."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    assert set(query) == {"expires", "signature"}
    return parts.path, query["expires"][0], query["signature"][0]


# --- guessing ---


def test_a_signature_is_256_bits_of_a_keyed_hash(
    foreign: FurnishedAccount, own: FurnishedAccount
) -> None:
    urls = [account.uploading[name] for account in (own, foreign) for name in (
        "uploadUrl", "resumableUploadUrl")] + [*own.still_urls, own.portal_url]  # fmt: skip
    signatures = [signed_parts(url)[2] for url in urls]
    assert all(re.fullmatch("[0-9a-f]{64}", signature) for signature in signatures)
    assert len(set(signatures)) == len(signatures)


def test_another_secret_gives_another_signature() -> None:
    path = "/v1/api/uploads/x/media"
    one, other = (Signer(secret).sign_path("upload", path, expires_at=9) for secret in (b"a", b"b"))
    assert one != other


@every(
    "make",
    [
        lambda: keys.new_secret(keys.KEY_PREFIX).removeprefix(keys.KEY_PREFIX),
        lambda: keys.new_secret(keys.SESSION_PREFIX).removeprefix(keys.SESSION_PREFIX),
        lambda: new_signing_secret().removeprefix("whsec_"),
        lambda: secrets.token_urlsafe(32),
    ],
    ids=["API key", "session", "signing secret", "sign-in link"],
)
def test_what_must_not_be_guessed_is_random_enough(make: Callable[[], str]) -> None:
    """At least 190 bits, by its length and by how evenly its letters are spread."""
    made = [make() for _ in range(400)]
    assert len(set(made)) == len(made)
    counts = Counter("".join(made))
    total = counts.total()
    bits = -sum(n / total * math.log2(n / total) for n in counts.values())
    assert bits * len(made[0]) > 190


def test_secrets_are_compared_in_constant_time() -> None:
    """Where text is compared at all; keys and sessions are looked up by their SHA-256."""
    from serve_app import crypto
    from serve_app.api import parameters as cursors
    from serve_app.webhooks import signing

    for module in (cursors, crypto, signing):
        source = inspect.getsource(module)
        assert "hmac.compare_digest(" in source
        assert not re.search(r"(signature|mac|digest|expected)\s*[!=]=", source)


# --- bending ---


@pytest.fixture(scope="module")
def waiting(own: FurnishedAccount) -> dict[str, Any]:
    return own.uploading


def changed_letters(text: str) -> Iterator[str]:
    """``text`` with each of its characters changed, dropped, doubled or written otherwise."""
    for at, letter in enumerate(text):
        other = "0" if letter != "0" else "1"
        yield text[:at] + other + text[at + 1 :]
        yield text[:at] + text[at + 1 :]
        if letter.isalpha():
            yield text[:at] + letter.swapcase() + text[at + 1 :]
    yield "0" + text
    yield text + "0"
    yield "+" + text
    yield "%20" + text


@pytest.mark.parametrize("name", ["uploadUrl", "resumableUploadUrl"])
def test_no_character_of_an_upload_address_can_be_changed(
    api: ContractApi, waiting: dict[str, Any], name: str
) -> None:
    path, expires, signature = signed_parts(waiting[name])
    job_id = waiting["jobId"]
    bent = [(path, expires, other) for other in changed_letters(signature)]
    bent += [(path, other, signature) for other in changed_letters(expires)]
    start = path.index(job_id)
    bent += [(path[:start] + other, expires, signature) for other in changed_letters(path[start:])]
    with httpx.Client(trust_env=False, headers=TUS) as client:
        method = "PUT" if name == "uploadUrl" else "HEAD"
        statuses = Counter(
            client.request(method, f"{api.root}{p}?expires={e}&signature={s}").status_code
            for p, e, s in bent
        )
    assert set(statuses) <= {401, 404, 405}, statuses
    assert stored(api, job_id) == []


BENT_QUERIES = [
    pytest.param("", id="none"),
    pytest.param("expires={e}", id="no signature"),
    pytest.param("signature={s}", id="no expiry"),
    pytest.param("expires={e}&signature=", id="an empty signature"),
    pytest.param("expires=99999999999&signature={s}", id="a later expiry"),
    pytest.param("expires={e}&signature={s}&signature=x", id="a second signature behind"),
    pytest.param("expires={e}&expires=99999999999&signature={s}", id="a second expiry behind"),
    pytest.param("expires={e}%00&signature={s}", id="NUL behind the expiry"),
    pytest.param("expires={e}.0&signature={s}", id="a broken number"),
    pytest.param("expires={e}&signature={s}%0a", id="a line end behind the signature"),
    pytest.param("expires={arabic}&signature={s}", id="digits of another script"),
]


@every("query", BENT_QUERIES)
def test_no_other_query_opens_it(api: ContractApi, waiting: dict[str, Any], query: str) -> None:
    path, expires, signature = signed_parts(waiting["uploadUrl"])
    arabic = "".join(chr(0x660 + int(digit)) for digit in expires)
    written = query.format(e=expires, s=signature, arabic=arabic)
    assert put(f"{api.root}{path}?{written}").status_code == 401
    assert stored(api, waiting["jobId"]) == []


@every(
    "form",
    [
        "x{own}?",
        "x{own}%3F",
        "{own}?x=",
        "x/..{own}?",
        "x{own}#",
        "user@x{own}?",
        "x\\{own}?",
    ],
)
def test_the_host_header_lends_no_other_path(
    api: ContractApi, own: FurnishedAccount, foreign: FurnishedAccount, form: str
) -> None:
    """The signed path is that of the request line, whatever a URL put together would say."""
    path, expires, signature = signed_parts(own.uploading["uploadUrl"])
    victim = signed_parts(foreign.uploading["uploadUrl"])[0]
    target = f"{victim}?expires={expires}&signature={signature}"
    request = f"PUT {target} HTTP/1.1\r\nHost: {form.format(own=path)}\r\n" \
              "Connection: close\r\nContent-Length: 7\r\n\r\nfootage"  # fmt: skip
    assert exchange(api, request.encode()).status in {400, 401}
    assert stored(api, foreign.uploading["jobId"]) == []


@every("ending", ["%3F", "%23", "%2F", "/", "//", "%00", ";a=b", "/.", "/../media", "%252F"])
def test_nothing_can_be_hung_on_to_the_path(
    api: ContractApi, waiting: dict[str, Any], ending: str
) -> None:
    path, expires, signature = signed_parts(waiting["uploadUrl"])
    target = f"{path}{ending}?expires={expires}&signature={signature}"
    request = f"PUT {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx"
    assert exchange(api, request.encode()).status in {400, 401, 404, 405}
    assert stored(api, waiting["jobId"]) == []


# --- another file, another job ---


def test_an_address_is_for_one_file_and_one_way(api: ContractApi, own: FurnishedAccount) -> None:
    tracks = [{"fileName": "a.wav"}, {"fileName": "b.wav"}]
    job, other = (own.caller.create(audioTracks=tracks) for _ in range(2))
    addresses = {
        "media": job["uploadUrl"],
        "tus": job["resumableUploadUrl"],
        "track": job["audioTrackUploadUrls"][0]["url"],
        "second track": job["audioTrackUploadUrls"][1]["url"],
        "another job": other["uploadUrl"],
    }
    for name, url in addresses.items():
        for other_name, other_url in addresses.items():
            if name == other_name:
                continue
            mixed = f"{url.partition('?')[0]}?{other_url.partition('?')[2]}"
            answer = head(mixed) if name == "tus" else put(mixed)
            assert answer.status_code == 401, (name, other_name)
    assert stored(api, job["jobId"]) == stored(api, other["jobId"]) == []


@pytest.mark.parametrize("purpose", ["thumbnail", "portal", "", "Upload", "upload\n"])
def test_a_signature_for_another_purpose_opens_no_upload(
    api: ContractApi, waiting: dict[str, Any], purpose: str
) -> None:
    path = signed_parts(waiting["uploadUrl"])[0]
    signed = api.context.signer.sign_path(purpose, path, expires_at=int(time.time()) + 60)
    assert put(f"{api.root}{signed}").status_code == 401


# --- afterwards ---


def over(api: ContractApi, url: str) -> str:
    """The same address as if it had been signed an hour earlier."""
    path, expires, _ = signed_parts(url)
    return api.root + api.context.signer.sign_path("upload", path, expires_at=int(expires) - 3600)


def test_an_address_whose_time_is_over_opens_nothing(
    api: ContractApi, waiting: dict[str, Any]
) -> None:
    assert put(over(api, waiting["uploadUrl"])).status_code == 401
    late = over(api, waiting["resumableUploadUrl"])
    assert head(late).status_code == 410
    assert patch(late, 0, b"x").status_code == 410
    assert httpx.delete(late, headers=TUS, trust_env=False).status_code == 410
    assert stored(api, waiting["jobId"]) == []


@pytest.fixture
def sender(api: ContractApi) -> Caller:
    return api.caller()


def test_a_complete_upload_takes_no_second_file(
    api: ContractApi, sender: Caller, runner: RunnerSide
) -> None:
    job = sender.create()
    runner.upload(job)
    before = stored(api, job["jobId"])
    assert put(job["uploadUrl"], b"another").status_code == 409
    assert patch(job["resumableUploadUrl"], 0, b"another").status_code == 409
    assert stored(api, job["jobId"]) == before == [CONTENT]


def test_after_the_end_of_a_job_its_addresses_open_nothing(
    api: ContractApi, sender: Caller, runner: RunnerSide
) -> None:
    cancelled, expired = sender.create(), sender.create()
    sender.post(f"/jobs/{cancelled['jobId']}/cancel")
    runner.expire(expired["jobId"])
    for job in (cancelled, expired):
        assert put(job["uploadUrl"]).status_code == 409
        for answer in (head(job["resumableUploadUrl"]), patch(job["resumableUploadUrl"], 0, b"x")):
            assert answer.status_code == 410
        assert stored(api, job["jobId"]) == []


def test_the_addresses_of_a_suspended_account_open_nothing_until_it_is_resumed(
    api: ContractApi, sender: Caller, runner: RunnerSide
) -> None:
    done, waiting = runner.complete(sender), sender.create()
    still = shown(sender.get(f"/jobs/{done}/scenes"))["scenes"][0]["thumbnailUrl"]
    media = api.root + media_path(api, done)
    uses: dict[str, Callable[[], httpx.Response]] = {
        "still": lambda: httpx.get(still, trust_env=False),
        "media": lambda: httpx.get(media, trust_env=False),
        "media head": lambda: httpx.head(media, trust_env=False),
        "resumable upload": lambda: patch(waiting["resumableUploadUrl"], 0, b"x"),
        "its offset": lambda: head(waiting["resumableUploadUrl"]),
        "upload": lambda: put(waiting["uploadUrl"]),
    }
    account = sender.customer.account_id
    api.transact(lambda c: keys.set_restrictions(c, account, suspended=True))
    assert {name: use().status_code for name, use in uses.items()} == dict.fromkeys(uses, 403)
    assert stored(api, waiting["jobId"]) == []
    api.transact(lambda c: keys.set_restrictions(c, account, suspended=False))
    assert 403 not in [use().status_code for use in uses.values()]


def media_path(api: ContractApi, job_id: str) -> str:
    async def find(connection: Connection) -> str:
        job = await jobs.find_job(connection, uuid.UUID(job_id))
        assert job is not None
        return str((await find_media(api.context, connection, job)).source)

    return api.transact(find)


def test_a_deleted_upload_does_not_come_back(api: ContractApi, sender: Caller) -> None:
    job = sender.create()
    url = job["resumableUploadUrl"]
    assert patch(url, 0, b"abc").status_code == 204
    assert httpx.delete(url, headers=TUS, trust_env=False).status_code == 204
    assert head(url).status_code == 410
    assert patch(url, 0, b"abc").status_code == 410
    assert patch(url, 3, b"def").status_code == 410
    assert stored(api, job["jobId"]) == []


def test_a_still_of_a_job_cannot_be_asked_for_by_number(foreign: FurnishedAccount) -> None:
    url = foreign.still_urls[0]
    path, expires, signature = signed_parts(url)
    root = url.partition("/v1/")[0]
    for index in ("1", "00", "-0", "0x0", "0%2F..%2F1", "٠"):
        bent = path.replace("/0.jpg", f"/{index}.jpg")
        answer = httpx.get(f"{root}{bent}?expires={expires}&signature={signature}", trust_env=False)
        assert answer.status_code in {400, 404}, index
