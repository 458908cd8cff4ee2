"""Fetching over real connections from servers that behave, and from many that do not."""

from __future__ import annotations

import gzip
import socket
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.execution.chain import FreeRun
from storage.objects.folder import FolderStore
from tests.pipelines.net.fetch_servers import (
    Asked,
    Resolutions,
    Script,
    ScriptedServer,
    answer,
    redirect,
    send_head,
)
from tests.pipelines.net.fetching import BODY, KEY, QUICK, Serve, get, refused
from tests.tables import every


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "objects")


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts scripted servers that end with the test."""
    with ExitStack() as stack:

        def start(script: Script, address: str = "127.0.0.1") -> ScriptedServer:
            return stack.enter_context(ScriptedServer(script, address).running())

        yield start


# --- what works ---


def test_a_file_arrives_as_it_was_sent(store: FolderStore, serve: Serve) -> None:
    server = serve(lambda _asked, to: answer(to, 200, BODY, content_type="Video/MP4; x=y"))
    fetched = get(store, server.url("/some/clip%20one.mp4?sig=a%2Bb+c"))
    assert store.read_bytes(KEY) == BODY
    assert fetched.size_bytes == len(BODY)
    assert fetched.file_name_hint == "clip one.mp4"
    assert fetched.content_type == "video/mp4"
    asked = server.asked[0]
    assert (asked.method, asked.target) == ("GET", "/some/clip%20one.mp4?sig=a%2Bb+c")
    assert asked.headers["host"] == f"127.0.0.1:{server.port}"
    assert asked.headers["accept-encoding"] == "identity"
    assert not {"authorization", "cookie", "range"} & asked.headers.keys()


def test_a_file_of_unknown_length_arrives(store: FolderStore, serve: Serve) -> None:
    def chunked(_asked: Asked, to: socket.socket) -> None:
        send_head(to, transfer_encoding="chunked")
        for start in range(0, len(BODY), 7_000):
            part = BODY[start : start + 7_000]
            to.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        to.sendall(b"0\r\n\r\n")

    assert get(store, serve(chunked).url()).size_bytes == len(BODY)
    assert store.read_bytes(KEY) == BODY


def test_progress_is_the_share_that_has_arrived(store: FolderStore, serve: Serve) -> None:
    def in_two_halves(_asked: Asked, to: socket.socket) -> None:
        send_head(to, content_length=len(BODY))
        to.sendall(BODY[: len(BODY) // 2])
        time.sleep(0.55)
        to.sendall(BODY[len(BODY) // 2 :])

    control, began = FreeRun(), time.monotonic()
    get(store, serve(in_two_halves).url(), control=control)
    most = 1 + (time.monotonic() - began) / 0.5
    assert 2 <= len(control.fractions) <= most, "told twice a second, not with every block"
    first, *_, last = control.fractions
    assert 0 < first <= 0.5 < last <= 1


@every(
    ("disposition", "name"),
    [
        ('attachment; filename="final cut.mov"', "final cut.mov"),
        ("attachment; filename*=UTF-8''sch%C3%B6n.mov", "schön.mov"),
        ('attachment; filename="../../etc/passwd"', "passwd"),
        ('attachment; filename="C:\\\\videos\\\\a.mov"', "a.mov"),
        ('attachment; filename=".."', "clip.mp4"),
        ("attachment", "clip.mp4"),
        ("attachment; filename*=UTF-8''%ff.mov", "\ufffd.mov"),
        ("attachment; filename*=nonsense''%ff.mov", "ÿ.mov"),
        ('attachment; filename="a\tb.mov"', "ab.mov"),
        (f'attachment; filename="{"x" * 400}.mov"', "x" * 251 + ".mov"),
    ],
)
def test_the_file_name_is_the_last_part_alone(
    store: FolderStore, serve: Serve, disposition: str, name: str
) -> None:
    server = serve(lambda _asked, to: answer(to, 200, b"x", content_disposition=disposition))
    assert get(store, server.url()).file_name_hint == name


def test_memory_does_not_grow_with_the_file(store: FolderStore, serve: Serve) -> None:
    size = 48 << 20

    def large(_asked: Asked, to: socket.socket) -> None:
        send_head(to, content_length=size)
        block = bytes(1 << 20)
        for _ in range(size >> 20):
            to.sendall(block)

    server = serve(large)
    tracemalloc.start()
    try:
        get(store, server.url(), replace(QUICK, max_bytes=size))
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert store.size_bytes(KEY) == size
    assert peak < 8 << 20


# --- redirects ---


def test_five_redirects_are_followed(store: FolderStore, serve: Serve) -> None:
    def hop(asked: Asked, to: socket.socket) -> None:
        number = int(asked.target.strip("/"))
        statuses = [301, 302, 303, 307, 308]
        if number < 5:
            redirect(to, f"/{number + 1}", statuses[number])
        else:
            answer(to, 200, BODY)

    server = serve(hop)
    assert get(store, server.url("/0")).final_url == server.url("/5")
    assert len(server.asked) == 6


def test_a_redirect_loop_ends(store: FolderStore, serve: Serve) -> None:
    server = serve(lambda asked, to: redirect(to, asked.target))
    assert refused(store, server.url()) == "The source redirects more than 5 times."
    assert len(server.asked) == 6


@every(
    "location",
    [
        "http://127.0.0.1@10.0.0.1/",
        "file:///etc/passwd",
        "http://[::1]/",
        "http://10.0.0.1/",
        "http://169.254.169.254/",
        "gopher://127.0.0.1/",
        "http://exa\tmple.com/",
    ],
)
def test_a_redirect_to_what_is_not_allowed_ends(
    store: FolderStore, serve: Serve, location: str
) -> None:
    server = serve(lambda _asked, to: redirect(to, location))
    message = refused(store, server.url())
    assert message.startswith("The source redirects to a URL that cannot be used")
    assert "10.0.0.1" not in message


def test_a_redirect_that_leads_nowhere_is_a_status(store: FolderStore, serve: Serve) -> None:
    server = serve(lambda _asked, to: answer(to, 302))
    assert refused(store, server.url()) == "The source answered with status 302."


# --- credentials ---


def test_the_token_goes_to_the_first_origin_only(store: FolderStore, serve: Serve) -> None:
    last = serve(lambda _asked, to: answer(to, 200, BODY))
    back = serve(lambda _asked, to: redirect(to, last.url("/file")))
    server = serve(
        lambda asked, to: redirect(to, "/same" if asked.target == "/" else back.url("/elsewhere"))
    )
    get(store, server.url("/"), token="s3cret")
    assert [asked.headers.get("authorization") for asked in server.asked] == ["Bearer s3cret"] * 2
    assert "authorization" not in back.asked[0].headers
    assert "authorization" not in last.asked[0].headers


def test_the_token_does_not_come_back_with_a_second_redirect(
    store: FolderStore, serve: Serve
) -> None:
    def at_home(asked: Asked, to: socket.socket) -> None:
        if asked.target == "/file":
            answer(to, 200, BODY)
        else:
            redirect(to, other.url())

    home = serve(at_home)
    other = serve(lambda _asked, to: redirect(to, home.url("/file")))
    get(store, home.url("/"), token="s3cret")
    first, second = home.asked
    assert first.headers["authorization"] == "Bearer s3cret"
    assert "authorization" not in second.headers


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_no_sentence_repeats_the_token(store: FolderStore, serve: Serve, status: int) -> None:
    server = serve(lambda _asked, to: answer(to, status))
    message = refused(store, server.url("/?sig=hidden"), token="s3cret")
    assert str(status) in message
    assert "s3cret" not in message
    assert "hidden" not in message


@pytest.mark.parametrize("token", ["a\r\nX-Evil: 1", "a b", "", "ü", "x" * 9000])
def test_a_token_that_is_none_is_never_sent(store: FolderStore, serve: Serve, token: str) -> None:
    server = serve(lambda _asked, to: answer(to, 200, BODY))
    assert "token" in refused(store, server.url(), token=token)
    assert server.asked == []


def test_share_links_are_refused_for_other_providers(store: FolderStore, serve: Serve) -> None:
    server = serve(lambda _asked, to: answer(to, 200, BODY))
    assert "Google Drive" in refused(store, server.url(), provider="gdrive")
    assert "provider" in refused(store, server.url(), provider="megaupload")
    assert server.asked == []


@pytest.mark.parametrize(("media_type", "accepted"), [("video/mp4", True), ("text/html", False)])
def test_a_share_link_that_leads_to_a_page_is_not_shared(
    store: FolderStore, serve: Serve, media_type: str, accepted: bool
) -> None:
    server = serve(lambda _asked, to: answer(to, 200, BODY, content_type=media_type))
    host = "dl.dropboxusercontent.com"
    url, resolver = server.url("/s/abc/clip.mp4", host), Resolutions({host: [["127.0.0.1"]]})
    if accepted:
        assert get(store, url, provider="dropbox", resolver=resolver).size_bytes == len(BODY)
    else:
        assert "web page" in refused(store, url, provider="dropbox", resolver=resolver)


@every("media_type", ["text/html; charset=utf-8", "video/mp4"])
@every(
    ("host", "needed"),
    [
        ("drive.google.com", "`provider` `gdrive`"),
        ("www.dropbox.com", "`provider` `dropbox`"),
        ("www.youtube.com", "a player, not a file"),
        ("media.example.com", "the address of the file itself"),
    ],
)
def test_a_page_in_place_of_media_is_refused_with_what_its_link_needs(
    store: FolderStore, serve: Serve, host: str, needed: str, media_type: str
) -> None:
    page = b"\n<!doctype html><html><title>clip.mp4</title>" + b" " * 5_000
    server = serve(lambda _asked, to: answer(to, 200, page, content_type=media_type))
    sentence = refused(
        store, server.url("/s/abc", host), resolver=Resolutions({host: [["127.0.0.1"]]})
    )
    assert sentence.startswith("It is a web page, not media; ")
    assert needed in sentence


# --- answers that are no file ---


@every("status", [204, 206, 300, 304, 400, 401, 403, 404, 410, 416, 451, 501])
def test_a_lasting_status_is_named_at_once(store: FolderStore, serve: Serve, status: int) -> None:
    body = b"" if status in {204, 304} else b"no"
    server = serve(lambda _asked, to: answer(to, status, body))
    assert f"status {status}" in refused(store, server.url())
    assert len(server.asked) == 1


@every("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_passing_status_is_tried_again(store: FolderStore, serve: Serve, status: int) -> None:
    statuses = [status, status]

    def recovering(_asked: Asked, to: socket.socket) -> None:
        if statuses:
            answer(to, statuses.pop())
        else:
            answer(to, 200, BODY)

    server = serve(recovering)
    assert get(store, server.url()).size_bytes == len(BODY)
    assert len(server.asked) == 3


def test_a_status_that_does_not_pass_ends_the_fetch(store: FolderStore, serve: Serve) -> None:
    server = serve(lambda _asked, to: answer(to, 500))
    assert refused(store, server.url()) == "The source answered with status 500."
    assert len(server.asked) == QUICK.attempts


def test_retry_after_is_waited_for(store: FolderStore, serve: Serve) -> None:
    def busy_once(_asked: Asked, to: socket.socket) -> None:
        if len(server.asked) == 1:
            answer(to, 503, retry_after=1)
        else:
            answer(to, 200, BODY)

    server = serve(busy_once)
    began = time.monotonic()
    get(store, server.url())
    assert time.monotonic() - began >= 1.0


def test_a_compressed_answer_is_refused_before_it_is_unpacked(
    store: FolderStore, serve: Serve
) -> None:
    bomb = gzip.compress(bytes(50 << 20))
    server = serve(lambda _asked, to: answer(to, 200, bomb, content_encoding="gzip"))
    assert "compressed" in refused(store, server.url())


@every(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01" * 50,
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n",
        b"",
    ],
    ids=lambda garbage: repr(garbage[:24]),
)
def test_what_is_not_http_is_a_broken_connection(
    store: FolderStore, serve: Serve, garbage: bytes
) -> None:
    server = serve(lambda _asked, to: to.sendall(garbage))
    assert refused(store, server.url()) == "The connection to the source broke."


def test_a_port_where_nobody_listens(store: FolderStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert refused(store, f"http://127.0.0.1:{port}/") == "The source cannot be reached."


def test_a_name_that_does_not_exist(store: FolderStore) -> None:
    resolver = Resolutions({})
    message = refused(store, "http://nowhere.example.com/", resolver=resolver)
    assert message == "The source's host name cannot be resolved."
    assert len(resolver.questions) == QUICK.attempts


def test_a_second_address_is_tried_where_the_first_refuses(
    store: FolderStore, serve: Serve
) -> None:
    server = serve(lambda _asked, to: answer(to, 200, BODY))
    resolver = Resolutions({"media.example.com": [["127.0.0.9", "127.0.0.1"]]})
    get(store, server.url(host="media.example.com"), resolver=resolver)
    assert server.asked[0].headers["host"] == f"media.example.com:{server.port}"
    assert resolver.questions == ["media.example.com"]
