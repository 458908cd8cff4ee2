"""tus 1.0.0 at ``resumableUploadUrl``, rule by rule."""

from __future__ import annotations

import base64
import hashlib
import uuid
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import pytest

from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_jobs_api import create, put, state_of
from tests.serve_app.uploads.uploading import TUS, files_of, head, object_of, offset_of, patch
from tests.tables import every

CONTENT = bytes(range(256)) * 8


@pytest.fixture
def job(api: RunningApi, customer: Customer) -> dict[str, Any]:
    """A job for a file of known size."""
    return create(api, customer, fileSizeBytes=len(CONTENT))


@pytest.fixture
def open_job(api: RunningApi, customer: Customer) -> dict[str, Any]:
    """A job that did not say how large its file is."""
    return create(api, customer)


def checksum(content: bytes, algorithm: str = "sha1") -> str:
    return f"{algorithm} {base64.b64encode(hashlib.new(algorithm, content).digest()).decode()}"


def test_a_file_sent_in_pieces_arrives_whole_and_queues_the_job(
    api: RunningApi, customer: Customer, job: dict[str, Any]
) -> None:
    url = job["resumableUploadUrl"]
    assert offset_of(url) == 0
    for start in range(0, len(CONTENT), 700):
        answer = patch(url, start, CONTENT[start : start + 700])
        assert answer.status_code == 204
        assert answer.content == b""
        assert int(answer.headers["upload-offset"]) == min(start + 700, len(CONTENT))
        assert answer.headers["tus-resumable"] == "1.0.0"
    assert api.context.objects.read_bytes(object_of(api, job)) == CONTENT
    assert state_of(api, customer, job["jobId"]) == "queued"
    assert offset_of(url) == len(CONTENT)


def test_head_tells_offset_length_and_expiry_and_may_not_be_cached(
    job: dict[str, Any],
) -> None:
    url = job["resumableUploadUrl"]
    patch(url, 0, CONTENT[:100])
    answer = head(url)
    assert answer.status_code == 200
    assert answer.headers["upload-offset"] == "100"
    assert answer.headers["upload-length"] == str(len(CONTENT))
    assert "upload-defer-length" not in answer.headers
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["tus-resumable"] == "1.0.0"
    expires = parsedate_to_datetime(answer.headers["upload-expires"]).timestamp()
    assert f"expires={int(expires)}" in url


def test_a_length_that_nobody_told_is_deferred_until_a_patch_tells_it(
    api: RunningApi, customer: Customer, open_job: dict[str, Any]
) -> None:
    url = open_job["resumableUploadUrl"]
    assert head(url).headers["upload-defer-length"] == "1"
    assert "upload-length" not in head(url).headers
    assert patch(url, 0, b"abc").status_code == 204
    assert patch(url, 3, b"d").status_code == 204
    assert state_of(api, customer, open_job["jobId"]) == "awaiting_upload"
    [warning] = warnings_of(api, customer, open_job)
    assert warning["code"] == "UPLOAD_LENGTH_MISSING"
    assert "fileSizeBytes" in warning["message"]
    assert patch(url, 4, b"ef", Upload_Length="9").status_code == 204
    assert warnings_of(api, customer, open_job) == []
    assert head(url).headers["upload-length"] == "9"
    assert "upload-defer-length" not in head(url).headers
    assert patch(url, 6, b"ghi").status_code == 204
    assert state_of(api, customer, open_job["jobId"]) == "queued"
    assert api.context.objects.read_bytes(object_of(api, open_job)) == b"abcdefghi"


def warnings_of(api: RunningApi, customer: Customer, job: dict[str, Any]) -> list[dict[str, Any]]:
    answer = api.client.get(f"/jobs/{job['jobId']}", headers=customer.headers)
    found: list[dict[str, Any]] = answer.json()["data"]["warnings"]
    return found


def test_a_length_told_with_an_empty_patch_completes_what_has_arrived(
    api: RunningApi, customer: Customer, open_job: dict[str, Any]
) -> None:
    url = open_job["resumableUploadUrl"]
    patch(url, 0, b"abc")
    assert patch(url, 3, b"", Upload_Length="3").status_code == 204
    assert state_of(api, customer, open_job["jobId"]) == "queued"
    assert warnings_of(api, customer, open_job) == []


def test_a_whole_file_in_place_of_an_upload_without_a_length_leaves_no_warning(
    api: RunningApi, customer: Customer, open_job: dict[str, Any]
) -> None:
    patch(open_job["resumableUploadUrl"], 0, b"abc")
    assert warnings_of(api, customer, open_job)
    sent = httpx.put(open_job["uploadUrl"], content=b"abcdef", trust_env=False)
    assert sent.status_code == 200
    assert warnings_of(api, customer, open_job) == []


@pytest.mark.parametrize(
    ("length", "status"),
    [("10", 400), ("2", 400), ("x", 400), ("0", 400), (str(2**40), 413)],
    ids=["another than before", "less than arrived", "no number", "nothing", "over the limit"],
)
def test_a_length_that_cannot_be_is_refused(
    open_job: dict[str, Any], length: str, status: int
) -> None:
    url = open_job["resumableUploadUrl"]
    patch(url, 0, b"abc", **({"Upload_Length": "9"} if length == "10" else {}))
    assert patch(url, 3, b"d", Upload_Length=length).status_code == status
    assert offset_of(url) == 3


def test_options_tell_what_is_spoken(api: RunningApi, job: dict[str, Any]) -> None:
    answer = httpx.options(job["resumableUploadUrl"], trust_env=False)
    assert answer.status_code == 204
    assert answer.headers["tus-version"] == "1.0.0"
    assert set(answer.headers["tus-extension"].split(",")) == {
        "checksum",
        "expiration",
        "termination",
    }
    assert "sha1" in answer.headers["tus-checksum-algorithm"].split(",")
    assert answer.headers["tus-max-size"] == str(api.settings.standard_max_bytes)


def test_a_web_page_of_any_origin_may_upload(job: dict[str, Any]) -> None:
    asked = {"Origin": "https://editor.example", "Access-Control-Request-Method": "PATCH"}
    allowed = httpx.options(job["resumableUploadUrl"], headers=asked, trust_env=False).headers
    assert allowed["access-control-allow-origin"] == "*"
    assert "PATCH" in allowed["access-control-allow-methods"]
    assert "Upload-Offset" in allowed["access-control-allow-headers"]
    plain = httpx.options(job["uploadUrl"], headers=asked, trust_env=False)
    assert "PUT" in plain.headers["access-control-allow-methods"]
    for answer in (
        head(job["resumableUploadUrl"]),
        patch(job["resumableUploadUrl"], 5, b"x"),
        put(job["uploadUrl"], CONTENT),
    ):
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "Upload-Offset" in answer.headers["access-control-expose-headers"]


@every("method", ["HEAD", "PATCH", "DELETE"])
@every("version", [None, "0.2.2", "1.0"])
def test_another_version_is_refused_and_ours_is_named(
    job: dict[str, Any], method: str, version: str | None
) -> None:
    sent = {} if version is None else {"Tus-Resumable": version}
    sent |= {"Content-Type": "application/offset+octet-stream", "Upload-Offset": "0"}
    answer = httpx.request(method, job["resumableUploadUrl"], headers=sent, trust_env=False)
    assert answer.status_code == 412
    assert answer.headers["tus-version"] == "1.0.0"
    assert answer.headers["tus-resumable"] == "1.0.0"
    assert offset_of(job["resumableUploadUrl"]) == 0


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"Content_Type": "application/octet-stream"}, 415),
        ({"Content_Type": ""}, 415),
        ({"Upload_Offset": "-1"}, 400),
        ({"Upload_Offset": "zero"}, 400),
        ({"Upload_Offset": "5"}, 409),
        ({"Upload_Checksum": "sha1"}, 400),
        ({"Upload_Checksum": "crc7 AAAA"}, 400),
        ({"Upload_Checksum": checksum(b"other")}, 460),
    ],
    ids=str,
)
def test_a_patch_that_breaks_a_rule_changes_nothing(
    api: RunningApi, job: dict[str, Any], change: dict[str, str], status: int
) -> None:
    url = job["resumableUploadUrl"]
    patch(url, 0, b"abc")
    sent = {"Upload_Offset": "3"} | change
    answer = patch(url, 3, b"def", **sent)
    assert answer.status_code == status
    assert answer.json()["code"] == "INVALID_REQUEST"
    assert answer.headers["tus-resumable"] == "1.0.0"
    assert offset_of(url) == 3
    assert patch(url, 3, CONTENT[3:]).status_code == 204
    assert api.context.objects.read_bytes(object_of(api, job)) == b"abc" + CONTENT[3:]


def test_a_patch_without_an_offset_is_refused(job: dict[str, Any]) -> None:
    sent = TUS | {"Content-Type": "application/offset+octet-stream"}
    answer = httpx.patch(job["resumableUploadUrl"], content=b"abc", headers=sent, trust_env=False)
    assert answer.status_code == 400


@pytest.mark.parametrize("algorithm", ["sha1", "sha256", "sha512", "md5"])
def test_a_piece_with_its_checksum_is_taken(job: dict[str, Any], algorithm: str) -> None:
    url = job["resumableUploadUrl"]
    assert patch(url, 0, b"abc", Upload_Checksum=checksum(b"abc", algorithm)).status_code == 204
    assert offset_of(url) == 3


@pytest.mark.parametrize("chunked", [False, True], ids=["declared length", "chunked"])
def test_more_than_the_length_is_refused_and_nothing_of_it_stays(
    job: dict[str, Any], chunked: bool
) -> None:
    url = job["resumableUploadUrl"]
    patch(url, 0, CONTENT[:10])
    rest = CONTENT[10:] + b"x"
    body: Any = iter([rest]) if chunked else rest
    answer = patch(url, 10, body)
    assert answer.status_code == 413
    assert answer.json()["code"] == "FILE_TOO_LARGE"
    assert offset_of(url) == 10


@pytest.mark.parametrize("chunked", [False, True], ids=["declared length", "chunked"])
def test_more_than_the_tier_takes_is_refused(
    api: RunningApi, open_job: dict[str, Any], chunked: bool
) -> None:
    url = open_job["resumableUploadUrl"]
    content = b"x" * (api.settings.standard_max_bytes + 1)
    try:
        answer = patch(url, 0, iter([content]) if chunked else content)
    except httpx.WriteError:
        pass  # refused before all was sent: the connection may be gone
    else:
        assert answer.status_code == 413
        assert answer.json()["maxUploadBytes"] == api.settings.standard_max_bytes
    assert offset_of(url) == 0


def test_a_terminated_upload_is_gone_with_all_that_arrived(
    api: RunningApi, customer: Customer, job: dict[str, Any]
) -> None:
    url = job["resumableUploadUrl"]
    patch(url, 0, b"abc")
    assert files_of(api, job) == [".partial-media"]
    answer = httpx.delete(url, headers=TUS, trust_env=False)
    assert (answer.status_code, answer.headers["tus-resumable"]) == (204, "1.0.0")
    assert files_of(api, job) == []
    assert head(url).status_code == 410
    assert "upload-offset" not in head(url).headers
    assert patch(url, 0, b"abc").status_code == 410
    assert httpx.delete(url, headers=TUS, trust_env=False).status_code == 410
    assert put(job["uploadUrl"], CONTENT).status_code == 200
    assert state_of(api, customer, job["jobId"]) == "queued"


def test_a_complete_upload_may_be_given_up_while_the_job_waits_for_others(
    api: RunningApi, customer: Customer
) -> None:
    job = create(api, customer, audioFileName="boom.wav", fileSizeBytes=3)
    assert patch(job["resumableUploadUrl"], 0, b"abc").status_code == 204
    gone = httpx.delete(job["resumableUploadUrl"], headers=TUS, trust_env=False)
    assert gone.status_code == 204
    assert files_of(api, job) == []
    assert put(job["audioUploadUrl"], b"sound").status_code == 200
    assert state_of(api, customer, job["jobId"]) == "awaiting_upload"


def test_a_queued_job_keeps_its_file(api: RunningApi, job: dict[str, Any]) -> None:
    url = job["resumableUploadUrl"]
    patch(url, 0, CONTENT)
    assert httpx.delete(url, headers=TUS, trust_env=False).status_code == 409
    assert api.context.objects.read_bytes(object_of(api, job)) == CONTENT


@pytest.mark.parametrize(
    ("offset", "content", "status"),
    [(len(CONTENT), b"", 204), (len(CONTENT), b"x", 413), (0, CONTENT, 409)],
    ids=["nothing more", "more", "again"],
)
def test_a_complete_upload_takes_nothing_more(
    api: RunningApi, job: dict[str, Any], offset: int, content: bytes, status: int
) -> None:
    url = job["resumableUploadUrl"]
    patch(url, 0, CONTENT)
    assert patch(url, offset, content).status_code == status
    assert api.context.objects.read_bytes(object_of(api, job)) == CONTENT


@pytest.mark.parametrize("method", ["HEAD", "PATCH"])
def test_an_upload_of_a_job_that_ended_is_gone(
    api: RunningApi, customer: Customer, job: dict[str, Any], method: str
) -> None:
    url = job["resumableUploadUrl"]
    patch(url, 0, b"abc")
    api.client.post(f"/jobs/{job['jobId']}/cancel", headers=customer.headers)
    answer = head(url) if method == "HEAD" else patch(url, 3, b"def")
    assert answer.status_code == 410


def test_an_address_whose_time_is_over_is_gone_and_a_forged_one_is_worth_nothing(
    api: RunningApi, job: dict[str, Any]
) -> None:
    path = httpx.URL(job["resumableUploadUrl"]).path
    expired = api.root + api.context.signer.sign_path("upload", path, expires_at=1)
    assert head(expired).status_code == 410
    for forged in (
        job["resumableUploadUrl"][:-1] + "x",
        job["resumableUploadUrl"].split("?")[0],
        job["resumableUploadUrl"].replace("/media/", "/audio/"),
        job["uploadUrl"].replace("/media?", "/media/resumable?"),
    ):
        assert head(forged).status_code == 401
    assert put(job["resumableUploadUrl"].replace("/resumable", ""), b"x").status_code == 401


@pytest.mark.parametrize("carrier", ["POST", "GET", "PUT"])
@pytest.mark.parametrize("method", ["PATCH", "HEAD", "DELETE"])
def test_the_method_may_be_overridden(job: dict[str, Any], carrier: str, method: str) -> None:
    sent = TUS | {
        "X-HTTP-Method-Override": method,
        "Content-Type": "application/offset+octet-stream",
        "Upload-Offset": "0",
    }
    body = b"abc" if method == "PATCH" else b""
    answer = httpx.request(
        carrier, job["resumableUploadUrl"], headers=sent, content=body, trust_env=False
    )
    assert answer.status_code == {"PATCH": 204, "HEAD": 200, "DELETE": 204}[method]
    if method == "PATCH":
        assert offset_of(job["resumableUploadUrl"]) == 3


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
def test_other_methods_are_refused_with_those_that_there_are(
    job: dict[str, Any], method: str
) -> None:
    answer = httpx.request(method, job["resumableUploadUrl"], headers=TUS, trust_env=False)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "DELETE, HEAD, OPTIONS, PATCH"


def test_every_audio_file_has_an_address_of_its_own(api: RunningApi, customer: Customer) -> None:
    tracks = [{"fileName": f"{number}.wav"} for number in range(11)]
    several = create(api, customer, audioTracks=tracks)
    single = create(api, customer, audioFileName="boom.wav")
    wanted = [
        (several, track["resumableUrl"], f"track-{track['trackIndex']}")
        for track in several["audioTrackUploadUrls"]
    ] + [(single, single["audioResumableUploadUrl"], "audio")]
    for job, url, slot in wanted:
        content = slot.encode()
        assert patch(url, 0, content, Upload_Length=str(len(content))).status_code == 204
        assert api.context.objects.read_bytes(object_of(api, job, slot)) == content


def test_what_a_killed_process_did_not_verify_does_not_count(
    api: RunningApi, job: dict[str, Any]
) -> None:
    url = job["resumableUploadUrl"]
    patch(url, 0, b"abc")
    api.sql(
        "UPDATE uploads SET unverified_from_bytes = 1 WHERE job_id = :id",
        id=uuid.UUID(job["jobId"]),
    )
    assert offset_of(url) == 1
    assert patch(url, 3, b"d").status_code == 409
    assert patch(url, 1, CONTENT[1:]).status_code == 204
    assert api.context.objects.read_bytes(object_of(api, job)) == b"a" + CONTENT[1:]


@pytest.mark.parametrize("step", ["all bytes came", "it was made the object"])
def test_a_process_that_died_before_recording_a_complete_upload_loses_nothing(
    api: RunningApi, customer: Customer, job: dict[str, Any], step: str
) -> None:
    key = f"jobs/{job['jobId']}/source/media"
    with api.context.objects.append_partial(key, 0) as stream:
        stream.write(CONTENT)
    if step == "it was made the object":
        api.context.objects.finish_partial(key)
    assert offset_of(job["resumableUploadUrl"]) == len(CONTENT)
    assert state_of(api, customer, job["jobId"]) == "queued"
    assert api.context.objects.read_bytes(object_of(api, job)) == CONTENT
