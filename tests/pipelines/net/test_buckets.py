"""Buckets of clients: signed requests, listings page by page, and what may be wrong with them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pipelines.collection import BucketAccess, key_bytes
from pipelines.net import buckets
from pipelines.net.addresses import PUBLIC_ONLY, InvalidUrlError
from pipelines.net.buckets import (
    BucketError,
    BucketProblem,
    BucketReader,
    ClientBucket,
    split_bucket_address,
)
from storage.objects.folder import FolderStore
from storage.objects.s3 import client_of
from storage.types import Member
from tests.pipelines.net.fetch_servers import (
    KEY,
    LOOPBACK,
    Asked,
    Script,
    ScriptedServer,
    Serve,
    answer,
    drip,
    get,
    mute_after_headers,
    refused,
    send_head,
)
from tests.stopwatch import Stopwatch
from tests.storage.s3_server import place_at
from tests.tables import every


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts scripted servers, and stops them after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda script: stack.enter_context(ScriptedServer(script).running())


READER = BucketReader(LOOPBACK)
ODD_KEYS = [
    "a b+c%20d&e=f.mp4",
    "/begins with a slash.mp4",
    "../../etc/passwd",
    "ünï/日本語 🎬.mp4",
    "line\nbreak\ttab.mp4",
    "what?now#then;yes.mp4",
    "./dot//double.mp4",
]


@pytest.fixture(scope="module")
def bucket(endpoint: str) -> ClientBucket:
    """An empty bucket in moto, and the means to read it."""
    place = place_at(endpoint)
    client_of(place).create_bucket(Bucket=place.bucket)
    access = BucketAccess(endpoint, None, place.access_key_id, place.secret_access_key)
    return ClientBucket("s3", place.bucket, access)


def put(bucket: ClientBucket, key: str, data: bytes = b"media") -> None:
    place = place_at(bucket.endpoint, bucket=bucket.name)
    client_of(place).put_object(Bucket=bucket.name, Key=key, Body=data)


def listed(bucket: ClientBucket, prefix: str = "", most: int = 1000) -> list[Member]:
    found: list[Member] = []
    after: str | None = ""
    while after is not None:
        page = READER.page(bucket, prefix, after, most)
        found += page.members
        after = page.next_after
    return found


def test_pages_list_every_object_once_with_what_a_change_shows_in(bucket: ClientBucket) -> None:
    for number in range(7):
        put(bucket, f"pages/{number}.mp4", b"x" * number)
    put(bucket, "other/9.mp4")
    found = listed(bucket, "pages/", most=3)
    assert [each.key for each in found] == [f"pages/{number}.mp4" for number in range(7)]
    assert [each.size_bytes for each in found] == list(range(7))
    assert len({each.etag for each in found}) == 7
    now = datetime.now(UTC)
    assert all(
        each.modified_at and abs((now - each.modified_at).total_seconds()) < 600 for each in found
    )


@pytest.mark.parametrize("key", [each for each in ODD_KEYS if "\n" not in each], ids=ascii)
def test_an_odd_key_is_listed_and_fetched_as_it_is(
    bucket: ClientBucket, tmp_path: Path, key: str
) -> None:
    put(bucket, key, key.encode())
    assert key in [each.key for each in listed(bucket)]
    store = FolderStore(tmp_path)
    get(store, f"s3://{bucket.name}/{key}", access=bucket.access)
    assert store.read_bytes(KEY) == key.encode()


@pytest.mark.parametrize("key", ODD_KEYS, ids=ascii)
def test_an_odd_key_is_sent_as_it_is_signed(serve: Serve, tmp_path: Path, key: str) -> None:
    server = serve(lambda _, connection: answer(connection, 200, b"media"))
    access = BucketAccess(server.url(""), None, "key", "secret")
    get(FolderStore(tmp_path), f"s3://bucket/{key}", access=access)
    [asked] = server.asked
    again = ClientBucket("s3", "bucket", access).url(key)
    assert asked.target.partition("?")[0] == urlsplit(again).path
    assert "X-Amz-Signature" in asked.target
    assert "secret" not in asked.target


def test_without_credentials_nothing_is_signed(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda _, connection: answer(connection, 200, b"media"))
    get(FolderStore(tmp_path), "gs://bucket/a.mp4", access=BucketAccess(server.url("")))
    assert [asked.target for asked in server.asked] == ["/bucket/a.mp4"]


REFUSALS = {
    "denied": (403, "AccessDenied", BucketProblem.ACCESS_DENIED),
    "expired": (400, "ExpiredToken", BucketProblem.CREDENTIALS_EXPIRED),
    "unknown key": (403, "InvalidAccessKeyId", BucketProblem.CREDENTIALS_REFUSED),
    "wrong secret": (403, "SignatureDoesNotMatch", BucketProblem.CREDENTIALS_REFUSED),
    "no bucket": (404, "NoSuchBucket", BucketProblem.NOT_FOUND),
    "elsewhere": (301, "PermanentRedirect", BucketProblem.OTHER_REGION),
    "no code": (403, "", BucketProblem.ACCESS_DENIED),
    "down": (503, "SlowDown", BucketProblem.UNREACHABLE),
}


def error_body(code: str) -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message></Error>'.encode()


@every(("status", "code", "problem"), REFUSALS.values(), ids=REFUSALS)
def test_a_refused_listing_has_a_name(
    serve: Serve, status: int, code: str, problem: BucketProblem
) -> None:
    server = serve(lambda _, connection: answer(connection, status, error_body(code)))
    with pytest.raises(BucketError) as failure:
        READER.page(ClientBucket("s3", "bucket", BucketAccess(server.url(""))), "", "")
    assert failure.value.problem is problem
    assert failure.value.may_pass == (status == 503)


@pytest.mark.parametrize(
    ("status", "code", "sentence"),
    [
        (403, "AccessDenied", "does not let these credentials in"),
        (400, "ExpiredToken", "have expired"),
        (404, "NoSuchKey", "no such object"),
        (403, "InvalidObjectState", "cold storage"),
    ],
    ids=["denied", "expired", "no object", "cold"],
)
def test_a_refused_object_is_told_by_its_code(
    serve: Serve, tmp_path: Path, status: int, code: str, sentence: str
) -> None:
    server = serve(lambda _, connection: answer(connection, status, error_body(code)))
    access = BucketAccess(server.url(""), None, "key", "secret")
    assert sentence in refused(FolderStore(tmp_path), "s3://bucket/a.mp4", access=access)


def page_body(*keys: str, more: str = "true", head: str = "") -> bytes:
    rows = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    rows = f"<IsTruncated>{more}</IsTruncated>{rows}"
    return f"{head}<ListBucketResult>{rows}</ListBucketResult>".encode()


def item_body(key: str = "c", size: str = "1", more: str = "") -> bytes:
    item = f"<Key>{key}</Key><Size>{size}</Size>{more}"
    return f"<ListBucketResult><Contents>{item}</Contents></ListBucketResult>".encode()


ENTITY_HEAD = '<!DOCTYPE x [<!ENTITY y "z">]>'
NO_LISTS = {
    "a page": b"<html><body>Welcome</body></html>",
    "no XML": b"{}",
    "cut off": page_body("a")[:-9],
    "entities": page_body("a", head='<!DOCTYPE x [<!ENTITY y "z">]>'),
    "entities in UTF-16": page_body("&y;", more="", head=ENTITY_HEAD).decode().encode("utf-16"),
    "entities without a mark": page_body("&y;", more="", head=ENTITY_HEAD)
    .decode()
    .encode("utf-16-le"),
    "document type behind a comment": page_body(
        "c", more="", head="<!-- " + " " * 99_999 + "-->" + ENTITY_HEAD
    ),
    "UTF-16": page_body("c", more="").decode().encode("utf-16"),
    "nested without end": b"<ListBucketResult>" + b"<Contents>" * 65 + b"</Contents>" * 65,
    "a tag without end": b"<ListBucketResult a='" + b" " * (1 << 20) + b"'></ListBucketResult>",
    "elements without end": b"<ListBucketResult>" + b"<a/>" * 100_000 + b"</ListBucketResult>",
    "more keys than a page has": page_body(*(f"c{number:04d}" for number in range(1001)), more=""),
    "a long key": item_body("é" * 513),
    "a key of many megabytes": item_body("c" * (4 << 20)),
    "no key": item_body(""),
    "a negative size": item_body(size="-5"),
    "a size of thirty nines": item_body(size="9" * 30),
    "a size beyond S3's": item_body(size=str((64 << 40) + 1)),
    "a size in other digits": item_body(size="٣"),
    "a long entity tag": item_body(more=f"<ETag>{'e' * 257}</ETag>"),
    "no date": item_body(more="<LastModified>yesterday</LastModified>"),
    "goes on with nothing": page_body(),
    "does not go on": page_body("a", "b"),
    "no size": b"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
}


@every("body", NO_LISTS.values(), ids=NO_LISTS)
def test_what_is_no_listing_is_refused(serve: Serve, body: bytes) -> None:
    server = serve(lambda _, connection: answer(connection, 200, body))
    with pytest.raises(BucketError) as failure:
        READER.page(ClientBucket("s3", "bucket", BucketAccess(server.url(""))), "", "b")
    assert failure.value.problem is BucketProblem.LISTING_INVALID


def endless(_: Asked, connection: socket.socket) -> None:
    answer(connection, 200, b"<ListBucketResult>" + b" " * (17 << 20))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2024-05-01T10:00:00.000Z", datetime(2024, 5, 1, 10, tzinfo=UTC)),
        ("2024-05-01T10:00:00+02:00", datetime(2024, 5, 1, 8, tzinfo=UTC)),
        ("0001-01-01T00:00:00+14:00", None),
        ("9999-12-31T23:59:59-14:00", None),
    ],
)
def test_a_date_that_no_object_has_is_none(serve: Serve, text: str, found: datetime | None) -> None:
    body = item_body("k" * 1024, str(64 << 40), f"<LastModified>{text}</LastModified>")
    server = serve(lambda _, connection: answer(connection, 200, body))
    [listed] = READER.page(
        ClientBucket("s3", "bucket", BucketAccess(server.url(""))), "", ""
    ).members
    assert (len(listed.key), listed.size_bytes, listed.modified_at) == (1024, 64 << 40, found)


ENCODED = (
    b"<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
    b"<Contents><Key>line%0Abreak+and%2Bplus.mp4</Key><Size>1</Size></Contents>"
    b"<Contents><Key>n%00ul%FF</Key><Size>1</Size></Contents></ListBucketResult>"
)


def test_a_page_goes_on_after_a_key_that_is_no_text(serve: Serve) -> None:
    server = serve(lambda _, connection: answer(connection, 200, ENCODED))
    bucket = ClientBucket("s3", "bucket", BucketAccess(server.url("")))
    page = READER.page(bucket, "", "")
    assert [key_bytes(each) for each in page.members] == [
        b"line\nbreak and+plus.mp4",
        b"n\0ul\xff",
    ]
    with pytest.raises(BucketError):
        READER.page(bucket, "", page.next_after or "")
    assert server.asked[1].target.endswith("&start-after=n%00ul%FF")


def test_a_listing_without_end_is_cut_off(serve: Serve) -> None:
    bucket = ClientBucket("s3", "bucket", BucketAccess(serve(endless).url("")))
    with pytest.raises(BucketError) as failure:
        READER.page(bucket, "", "")
    assert failure.value.problem is BucketProblem.LISTING_INVALID


def drips_headers(_: Asked, connection: socket.socket) -> None:
    drip(connection, b"HTTP/1.1 200 OK\r\nx: " + b"x" * 10_000, 0.2)


def drips_body(_: Asked, connection: socket.socket) -> None:
    send_head(connection, content_length=1 << 20)
    drip(connection, b"<ListBucketResult>" + b" " * 10_000, 0.2)


@pytest.mark.parametrize(
    "script", [drips_body, mute_after_headers, pytest.param(drips_headers, marks=pytest.mark.long)]
)
def test_a_server_that_drips_is_given_up(serve: Serve, script: Script) -> None:
    """Within the least rate, or the deadlines of headers and of silence."""
    bucket = ClientBucket("s3", "bucket", BucketAccess(serve(script).url("")))
    with Stopwatch() as watch, pytest.raises(BucketError) as failure:
        READER.page(bucket, "", "")
    assert failure.value.problem is BucketProblem.UNREACHABLE
    assert watch.seconds < 25


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost.example.com"])
def test_an_endpoint_is_checked_where_it_is_connected_to(serve: Serve, host: str) -> None:
    server: ScriptedServer = serve(lambda _, connection: answer(connection, 200, page_body()))
    bucket = ClientBucket("s3", "bucket", BucketAccess(server.url("", host)))
    reader = BucketReader(PUBLIC_ONLY, resolver=lambda *_: ["127.0.0.1"])
    with pytest.raises(BucketError) as failure:
        reader.page(bucket, "", "")
    assert failure.value.problem is BucketProblem.NOT_ALLOWED
    assert server.asked == []


def test_amazon_is_asked_for_the_region_that_nobody_gave(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_heads(asked: Asked, connection: socket.socket) -> None:
        answer(connection, 403 if asked.method == "HEAD" else 200, x_amz_bucket_region="eu-north-1")

    server = serve(refuse_heads)
    monkeypatch.setattr(buckets, "AMAZON", server.url("") + "/{region}")
    for region in (None, "us-west-2"):
        access = BucketAccess(None, region, "key", "secret")
        get(FolderStore(tmp_path), "s3://bucket/a", access=access)
    [asked, found, given] = server.asked
    assert (asked.method, asked.target) == ("HEAD", "/us-east-1/bucket")
    assert found.target.startswith("/eu-north-1/bucket/a?")
    assert "eu-north-1%2Fs3%2Faws4_request" in found.target
    assert given.target.startswith("/us-west-2/bucket/a?")


@every(
    ("url", "parts"),
    [
        ("s3://bucket/a/b c.mp4", ("s3", "bucket", "a/b c.mp4")),
        ("GS://bucket//a#b?c", ("gs", "bucket", "/a#b?c")),
        ("s3://bucket", ("s3", "bucket", "")),
    ],
)
def test_a_key_is_taken_as_it_stands(url: str, parts: tuple[str, str, str]) -> None:
    assert split_bucket_address(url) == parts


@every(
    "url",
    [
        "s3:///a",
        "s3://-b/a",
        "s3://b@c/a",
        "s3://bucket/a\0b",
        "s3://bucket/\ud800",
        "s3://bucket/" + "é" * 513,
    ],
    ids=ascii,
)
def test_what_names_no_object_is_refused(url: str) -> None:
    with pytest.raises(InvalidUrlError):
        split_bucket_address(url)
