"""Hostile requests, byte by byte through a socket: always a 4xx, always the envelope.

Where the HTTP server itself refuses what is no HTTP (and therefore asks the
application nothing), its bare 400 or a closed connection is the right answer.
"""

from __future__ import annotations

import json
import random
import re
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.serve_app.raw_http import Answer, exchange, parse, request
from tests.serve_app.running_api import Customer, RunningApi
from tests.tables import every

REQUEST_ID = re.compile("req_[0-9a-f]{32}")


def expect_envelope(answer: Answer) -> dict[str, Any]:
    assert 400 <= answer.status < 500, (answer.status, answer.body[:300])
    envelope: dict[str, Any] = json.loads(answer.body)
    assert {"error", "code", "docUrl", "requestId"} <= set(envelope)
    assert REQUEST_ID.fullmatch(envelope["requestId"])
    assert envelope["requestId"] == answer.headers["x-request-id"]
    assert answer.headers["content-type"] == "application/json"
    return envelope


def expect_refusal(answer: Answer) -> None:
    """The envelope, or the HTTP server's own refusal of what is no HTTP."""
    if answer.from_application:
        expect_envelope(answer)
    else:
        assert answer.status in {0, 400, 431}, answer


@pytest.fixture(scope="module")
def client(api: RunningApi) -> Customer:
    """One account for all requests that are refused: a refused creation makes no job."""
    return api.customer()


@pytest.fixture
def fresh(api: RunningApi) -> Customer:
    """An account of the test's own, where many requests are counted."""
    return api.customer()


def nested(depth: int, opening: str, closing: str) -> bytes:
    return (opening * depth + closing * depth).encode()


BODIES = [
    pytest.param(b"", id="nothing"),
    pytest.param(b"\x00", id="NUL alone"),
    pytest.param(b"\xef\xbb\xbf{}", id="byte order mark"),
    pytest.param('{"fileName":"a"}'.encode("utf-16"), id="UTF-16"),
    pytest.param(b'{"fileName":"\xff\xfe"}', id="invalid UTF-8"),
    pytest.param(b'{"fileName":"\xed\xa0\x80"}', id="surrogate in UTF-8"),
    pytest.param(b'{"fileName":"\\ud800"}', id="unpaired surrogate"),
    pytest.param(b'{"fileName":"a\\u0000b"}', id="NUL escaped"),
    pytest.param(b'{"fileName":"a\x00b"}', id="NUL raw"),
    pytest.param(b'{"fileName":"a","x":"\\u0000"}', id="NUL in an unknown field"),
    pytest.param(b'{"fileName":"a","\\u0000":1}', id="NUL in a name"),
    pytest.param(b'{"fileName":"a","fileName":"b"}', id="a field twice"),
    pytest.param(b'{"fileName":"a","metadata":{"k":1,"k":2}}', id="a nested field twice"),
    pytest.param(b'{"fileName":"a","x":NaN}', id="NaN"),
    pytest.param(b'{"fileName":"a","x":-Infinity}', id="infinity"),
    pytest.param(b'{"fileName":"a","metadata":{"k":1e999}}', id="number beyond doubles"),
    pytest.param(b'{"fileName":"a","fileSizeBytes":' + b"9" * 5000 + b"}", id="5000 digits"),
    pytest.param(b'{"fileName":"a","fileSizeBytes":1e400}', id="size beyond doubles"),
    pytest.param(b'{"fileName":"a","fileSizeBytes":true}', id="true for a number"),
    pytest.param(b'{"fileName":"a","fileSizeBytes":1.5}', id="half a byte"),
    pytest.param(nested(100, "[", "]"), id="lists 100 deep"),
    pytest.param(nested(200_000, "[", "]"), id="lists 200000 deep"),
    pytest.param(nested(50_000, '{"a":', "1}"), id="objects 50000 deep, wrong"),
    pytest.param(b'{"fileName":"a","x":' + nested(500, '{"a":', "}") + b"}", id="cut inside"),
    pytest.param(
        b'{"fileName":"a","x":' + nested(40, "[", "]") + b"}", id="40 deep, unknown field"
    ),
    pytest.param(b"null", id="null"),
    pytest.param(b"[]", id="list"),
    pytest.param(b'"x"', id="text"),
    pytest.param(b"{}{}", id="two objects"),
    pytest.param(b"{'fileName':'a'}", id="single quotes"),
    pytest.param(b'{"fileName":"a",}', id="comma too many"),
    pytest.param(b'{"fileName":"' + b"x" * 300 + b'"}', id="long name"),
    pytest.param(b'{"fileName":"' + b"x" * 1_100_000 + b'"}', id="over the limit"),
    pytest.param(b" " * 1_048_577, id="white space over the limit"),
    pytest.param(b'{"fileName":["a"]}', id="name a list"),
    pytest.param(b'{"fileName":{"a":"b"}}', id="name an object"),
    pytest.param(b'{"fileName":null}', id="name null"),
    pytest.param(b'{"__proto__":{"fileName":"a"}}', id="prototype"),
]


@every("body", BODIES)
def test_bad_bodies_are_refused(api: RunningApi, body: bytes) -> None:
    caller = api.customer()  # of the row's own: an account may send thirty creations a minute
    for path in (b"/jobs", b"/jobs/from-url", b"/jobs/batch"):
        answer = exchange(api, request(caller, target=b"/v1/api" + path, body=body))
        assert answer.status == 400, path
        assert expect_envelope(answer)["code"] == "INVALID_REQUEST"


def test_a_chunked_body_over_the_limit_is_refused(api: RunningApi, fresh: Customer) -> None:
    head = request(
        fresh, headers=(b"Transfer-Encoding: chunked", b"Content-Type: application/json")
    )
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    expect_envelope(exchange(api, head + chunk * 20 + b"0\r\n\r\n"))


@every(
    "content_type",
    [b"text/plain", b"", b"application/x-www-form-urlencoded", b"multipart/form-data", b"\xff/\xfe",
     b"application/json-patch+json", b"json"],
    ids=repr,
)  # fmt: skip
def test_other_types_than_json_are_refused(
    api: RunningApi, fresh: Customer, content_type: bytes
) -> None:
    raw = request(fresh, body=b'{"fileName":"a"}', headers=(b"Content-Type: " + content_type,))
    expect_envelope(exchange(api, raw))


TARGETS = [
    pytest.param(b"/v1/api/jobs/%00", 404, id="NUL in the path"),
    pytest.param(b"/v1/api/jobs/%ff%fe", 404, id="invalid UTF-8 in the path"),
    pytest.param(b"/v1/api/jobs/%ed%a0%80", 404, id="surrogate in the path"),
    pytest.param(b"/v1/api/jobs/%", 404, id="bare percent"),
    pytest.param(b"/v1/api/jobs/%zz", 404, id="bad percent-encoding"),
    pytest.param(b"/v1/api/jobs/%u0041", 404, id="percent u"),
    pytest.param(b"/v1/api/jobs/..%2f..%2fetc%2fpasswd", 404, id="traversal"),
    pytest.param(b"/v1/api/jobs/../../../etc/passwd", 404, id="dots"),
    pytest.param(b"/v1/api//jobs", 404, id="empty segment"),
    pytest.param(b"/v1/api/jobs/", 404, id="slash at the end"),
    pytest.param(b"/v1/api/jobs/" + b"x" * 8000, 404, id="8000 characters"),
    pytest.param(b"/v1/api/jobs/%0d%0aSet-Cookie:%20a=b", 404, id="line break"),
    pytest.param(b"/v1/api/jobs/%E2%80%AE", 404, id="override of direction"),
    pytest.param(b"/v1/api/" + b"a/" * 2000, 404, id="2000 segments"),
    pytest.param(b"/v1/api/jobs?limit=" + b"9" * 5000, 400, id="limit of 5000 digits"),
    pytest.param(b"/v1/api/jobs?limit=%D9%A1", 400, id="arabic digit"),
    pytest.param(b"/v1/api/jobs?limit=1e1", 400, id="exponent"),
    pytest.param(b"/v1/api/jobs?limit=-1", 400, id="negative limit"),
    pytest.param(b"/v1/api/jobs?limit=%00", 400, id="NUL in the query"),
    pytest.param(b"/v1/api/jobs?limit=", 400, id="empty limit"),
    pytest.param(b"/v1/api/jobs?limit=1&limit=2", 400, id="limit twice"),
    pytest.param(b"/v1/api/jobs?cursor=%ff%fe%fd", 400, id="invalid UTF-8 in the query"),
    pytest.param(b"/v1/api/jobs?cursor=%", 400, id="bare percent in the query"),
    pytest.param(b"/v1/api/jobs?cursor=" + b"A" * 20_000, 400, id="huge cursor"),
    pytest.param(b"/v1/api/jobs?cursor=" + b"A" * 54, 400, id="cursor of the right length"),
    pytest.param(b"/v1/api/jobs?state=" + b"%F0%9F%92%A9" * 500, 400, id="huge state"),
    pytest.param(b"/v1/api/jobs?" + b"&".join([b"status=x"] * 1000), 400, id="1000 times status"),
    pytest.param(b"/v1/api/jobs/x?include=%00", 400, id="NUL in include"),
    pytest.param(b"/v1/api/webhooks/deliveries?jobId=%00", 400, id="NUL in jobId"),
    pytest.param(b"/v1/api/pricing/estimate?durationSeconds=NaN", 400, id="NaN seconds"),
    pytest.param(b"/v1/api/pricing/estimate?durationSeconds=inf", 400, id="infinite seconds"),
    pytest.param(b"/v1/api/pricing/estimate?durationSeconds=1e999", 400, id="seconds overflow"),
    pytest.param(b"/v1/api/pricing/estimate?durationSeconds=1_0", 400, id="underscore"),
    pytest.param(b"/v1/api/jobs/x/thumbnails/" + b"9" * 5000 + b".jpg", 400, id="huge index"),
    pytest.param(b"/v1/api/jobs/x/thumbnails/-1.jpg", 404, id="negative index"),
    pytest.param(b"/docs/assets/%00", 404, id="NUL in an asset"),
    pytest.param(b"/nowhere/%ff", 404, id="nowhere"),
]


@every(("target", "status"), TARGETS)
def test_bad_targets_are_refused(
    api: RunningApi, client: Customer, target: bytes, status: int
) -> None:
    answer = exchange(api, request(client, method=b"GET", target=target))
    expect_envelope(answer)
    assert answer.status == status


@every(
    "target",
    [
        b"/v1/api/jobs/\xff\xfe",
        b"/v1/api/jobs?cursor=\xff",
        b"/v1/api/jobs/\x00",
        b"/v1/api/jobs/a b",
        b"/v1/api/jobs?limit=\x01",
        b"v1/api/jobs",
        b"*",
        b"http://[::1/v1/api/jobs",
        b"//v1/api/jobs",
        b"/v1/api/jobs#x",
        b"/v1/api/jobs/" + b"x" * 100_000,
        b"/v1/api/jobs?limit=" + b"1" * 200_000,
    ],
    ids=lambda target: repr(target[:30]),
)
def test_raw_bytes_in_the_target_never_fail_inside(
    api: RunningApi, client: Customer, target: bytes
) -> None:
    answer = exchange(api, request(client, method=b"GET", target=target))
    if answer.status != 200:  # `/v1/api/jobs#x` is read as `/v1/api/jobs`
        expect_refusal(answer)
    else:
        assert b"#" in target


METHODS = [b"PUT", b"PATCH", b"OPTIONS", b"TRACE", b"HEAD", b"PROPFIND", b"QUERY", b"LOCK"]


@every("method", METHODS, ids=lambda method: method.decode())
@every("path", [b"/jobs", b"/jobs/x/cancel", b"/jobs/batch", b"/pricing", b"/keys"])
def test_other_methods_are_refused_with_those_that_are_allowed(
    api: RunningApi, client: Customer, path: bytes, method: bytes
) -> None:
    answer = exchange(api, request(client, method=method, target=b"/v1/api" + path))
    if not answer.from_application:
        expect_refusal(answer)
        return
    assert answer.status == 405
    assert (
        answer.headers["allow"]
        == {
            b"/jobs": "GET, POST",
            b"/jobs/x/cancel": "POST",
            b"/jobs/batch": "POST",
            b"/pricing": "GET",
            b"/keys": "GET",
        }[path]
    )
    if method != b"HEAD":
        assert expect_envelope(answer)["code"] == "INVALID_REQUEST"


@every("method", [b"GET", b"DELETE"])
@every("path", [b"/jobs/batch", b"/jobs/from-url"])
def test_a_concrete_path_is_not_taken_for_a_job(
    api: RunningApi, client: Customer, path: bytes, method: bytes
) -> None:
    answer = exchange(api, request(client, method=method, target=b"/v1/api" + path))
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


@every("method", [b"", b"G\x00T", b"\xff\xfe", b"get", b"GE T", b"X" * 10_000], ids=repr)
def test_what_is_no_method_is_refused(api: RunningApi, client: Customer, method: bytes) -> None:
    expect_refusal(exchange(api, request(client, method=method)))


HEADERS = [
    pytest.param((b"Idempotency-Key: ",), id="empty key"),
    pytest.param((b"Idempotency-Key: " + b"x" * 256,), id="long key"),
    pytest.param((b"Idempotency-Key: \xff\xfe",), id="bytes in the key"),
    pytest.param((b"Idempotency-Key: a\tb",), id="tab in the key"),
    pytest.param(("Idempotency-Key: ключ".encode(),), id="letters beyond ASCII"),
    pytest.param((b"Authorization: Bearer \xff\xfe",), id="two credentials"),
    pytest.param((b"X-API-Key: vas_live_" + b"x" * 43,), id="two keys"),
    pytest.param((b"Authorization: Bearer",), id="bearer alone"),
]


@every("headers", HEADERS)
def test_bad_headers_are_refused(
    api: RunningApi, fresh: Customer, headers: tuple[bytes, ...]
) -> None:
    raw = request(fresh, body=b'{"fileName":"a.mp4"}', headers=headers)
    answer = exchange(api, raw)
    expect_envelope(answer)
    assert answer.status in {400, 401}


@every(
    "credential",
    [
        b"X-API-Key: \xff\xfe\xfd",
        b"X-API-Key: ",
        b"X-API-Key: vas_live_" + b"\xc3\xa9" * 22,
        b"Authorization: Bearer " + b"x" * 20_000,
        b"Authorization: Basic Og==",
        b"Authorization: \x01",
        b"Authorization: Bearer vas_live_" + b"%00" * 14 + b"x",
    ],
    ids=lambda line: repr(line[:32]),
)
def test_malformed_credentials_are_unauthorized(api: RunningApi, credential: bytes) -> None:
    raw = (
        b"GET /v1/api/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + credential + b"\r\n\r\n"
    )
    answer = exchange(api, raw)
    if answer.from_application:
        assert expect_envelope(answer)["code"] == "UNAUTHORIZED"
    else:
        expect_refusal(answer)


@every(
    "host",
    [b"", b"[::1", b"[", b"]", b"a b", b"\xff", b"x" * 5000, b"x:99999", b"x:y", b"x/../y",
     b"user:pass@x", b"x?y", b"x#y", b"%00", b"\"><script>"],
    ids=repr,
)  # fmt: skip
def test_odd_hosts_never_fail_inside(api: RunningApi, client: Customer, host: bytes) -> None:
    answer = exchange(api, request(client, method=b"GET", target=b"/v1/api/jobs/x", host=host))
    expect_refusal(answer)


@every(
    "head",
    [
        b"GET /v1/api/pricing HTTP/1.1\r\n\r\n",
        b"GET /v1/api/pricing HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET /v1/api/pricing\r\n\r\n",
        b"\r\n\r\n\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /v1/api/pricing HTTP/1.1\r\nHost: x\r\nNo colon\r\n\r\n",
        b"GET /v1/api/pricing HTTP/1.1\r\nHost: x\r\nBad\x00Name: x\r\n\r\n",
        b"GET /v1/api/pricing HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"POST /v1/api/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/api/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: \xc2\xb2\r\n\r\n",
        b"PUT /v1/api/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"POST /v1/api/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/api/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: x\r\n\r\n",
    ],
    ids=lambda head: repr(head[:60]),
)
def test_what_is_no_http_never_fails_inside(api: RunningApi, head: bytes) -> None:
    parts = urlsplit(api.root)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=120) as connection:
        connection.sendall(head)
        connection.shutdown(socket.SHUT_WR)
        answer = parse(connection.recv(65536))
    assert answer.status < 500


def test_many_headers_are_no_trouble(api: RunningApi, client: Customer) -> None:
    headers = tuple(b"X-%d: %d" % (number, number) for number in range(500))
    answer = exchange(
        api, request(client, method=b"GET", target=b"/v1/api/jobs/x", headers=headers)
    )
    expect_refusal(answer)


def test_random_bytes_in_every_place_are_refused(api: RunningApi) -> None:
    """Four hundred requests with noise in one place, the same every time."""
    source = random.Random(20260302)
    customers = [api.customer() for _ in range(4)]
    for number in range(400):
        noise = source.randbytes(source.randrange(1, 60))
        quoted = b"".join(b"%%%02x" % byte for byte in noise)
        places = (
            {"body": noise},
            {"body": b'{"fileName":"' + noise + b'","processingMode":7}'},
            {"target": b"/v1/api/jobs/" + quoted.replace(b"%2f", b"%2e") + b"/x"},
            {"method": b"GET", "target": b"/v1/api/jobs?limit=" + quoted},
            {"target": b"/v1/api/jobs/from-url", "body": json.dumps(
                {"url": noise.decode("latin-1"), "callbackUrl": noise.decode("latin-1")}
            ).encode()},
        )  # fmt: skip
        chosen: dict[str, Any] = places[number % len(places)]
        customer = customers[number % len(customers)]
        expect_envelope(exchange(api, request(customer, **chosen)))


def test_the_api_is_well_after_all_that(api: RunningApi, fresh: Customer) -> None:
    created = api.client.post("/jobs", json={"fileName": "a.mp4"}, headers=fresh.headers)
    assert created.status_code == 201
