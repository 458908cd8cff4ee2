"""Fetching within bounds: sizes, headers, time, and a stop that is heard."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.execution.chain import FreeRun
from pipelines.net.fetch import FetchLimits
from pipelines.types import StageCode, StageError, StageStoppedError
from storage.objects.folder import FolderStore
from tests.pipelines.net.fetch_servers import (
    Asked,
    Script,
    ScriptedServer,
    answer,
    body_in_drops,
    drip,
    mute_after_headers,
    send_head,
)
from tests.pipelines.net.fetching import (
    BODY,
    IMPATIENT,
    KEY,
    QUICK,
    Serve,
    get,
    nothing_stored,
    refused,
)
from tests.stopwatch import Stopwatch


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


# --- sizes ---


def test_a_declared_size_over_the_limit_is_refused_unread(store: FolderStore, serve: Serve) -> None:
    server = serve(lambda _asked, to: send_head(to, content_length=(1 << 20) + 1))
    with pytest.raises(StageError) as failure:
        get(store, server.url())
    assert failure.value.code == StageCode.VALIDATION_FAILED
    assert nothing_stored(store)


def test_a_file_that_turns_out_too_large_is_stopped(store: FolderStore, serve: Serve) -> None:
    sent = []

    def endless(_asked: Asked, to: socket.socket) -> None:
        send_head(to)
        while True:
            to.sendall(BODY)
            sent.append(len(BODY))

    with pytest.raises(StageError) as failure:
        get(store, serve(endless).url())
    assert failure.value.code == StageCode.VALIDATION_FAILED
    assert nothing_stored(store)
    assert sum(sent) < 64 << 20


def test_a_file_of_exactly_the_limit_is_taken(store: FolderStore, serve: Serve) -> None:
    server = serve(lambda _asked, to: answer(to, 200, BODY))
    assert get(store, server.url(), replace(QUICK, max_bytes=len(BODY))).size_bytes == len(BODY)


def test_more_than_declared_is_not_read(store: FolderStore, serve: Serve) -> None:
    server = serve(lambda _asked, to: answer(to, 200, BODY, content_length=1000))
    get(store, server.url())
    assert store.read_bytes(KEY) == BODY[:1000]


def test_less_than_declared_is_no_file(store: FolderStore, serve: Serve) -> None:
    server = serve(lambda _asked, to: answer(to, 200, BODY, content_length=len(BODY) + 1))
    assert refused(store, server.url()) == "The connection to the source broke."
    assert len(server.asked) == QUICK.attempts


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n" + b"X-Long: y\r\n" * 20_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"y" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
    ],
    ids=["many headers", "a long header", "endless informational responses"],
)
def test_headers_are_bounded(store: FolderStore, serve: Serve, head: bytes) -> None:
    server = serve(lambda _asked, to: to.sendall(head))
    assert refused(store, server.url()) == "The source sends more headers than are accepted."
    assert len(server.asked) == 1


# --- time ---


def in_time(seconds: float, action: Callable[[], str]) -> str:
    with Stopwatch() as watch:
        result = action()
    assert watch.seconds < seconds
    return result


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (lambda _asked, to: time.sleep(60), "The source stopped sending."),
        (
            lambda _asked, to: drip(to, b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100, 0.05),
            "The source stopped sending.",
        ),
        (mute_after_headers, "The source stopped sending."),
        (body_in_drops, "The source sends too slowly."),
    ],
    ids=["mute", "headers in drops", "mute after headers", "body in drops"],
)
def test_a_source_that_makes_us_wait_is_left(
    store: FolderStore, serve: Serve, script: Script, sentence: str
) -> None:
    server = serve(script)
    assert in_time(4, lambda: refused(store, server.url(), IMPATIENT)) == sentence


def test_the_whole_fetch_is_bounded_in_time(store: FolderStore, serve: Serve) -> None:
    def steady(_asked: Asked, to: socket.socket) -> None:
        send_head(to)
        for _ in range(200):
            to.sendall(bytes(1000))
            time.sleep(0.05)

    server = serve(steady)
    limits = replace(QUICK, total_seconds=1)
    message = in_time(3, lambda: refused(store, server.url(), limits))
    assert message == "The download took longer than it may."


def test_a_resolver_that_hangs_is_left(store: FolderStore) -> None:
    release = threading.Event()

    def hanging(_host: str, _port: int) -> list[str]:
        release.wait(60)
        return []

    url = "http://slow.example.com/"
    message = in_time(4, lambda: refused(store, url, IMPATIENT, resolver=hanging))
    release.set()
    assert message == "The source does not answer."


class StopsSoon(FreeRun):
    """A control that wants to stop a moment after its first question."""

    def __init__(self) -> None:
        super().__init__()
        self.first_asked: float | None = None

    def check(self) -> None:
        now = time.monotonic()
        self.first_asked = self.first_asked or now
        if now - self.first_asked > 0.3:
            raise StageStoppedError("stopped")


def flood(_asked: Asked, to: socket.socket) -> None:
    send_head(to)
    while True:
        to.sendall(BODY)


@pytest.mark.parametrize(
    "script",
    [
        lambda _asked, to: time.sleep(60),
        mute_after_headers,
        lambda _asked, to: answer(to, 503, retry_after=60),
        flood,
    ],
    ids=["before headers", "within the body", "between attempts", "in a flood"],
)
def test_a_stop_takes_effect_within_two_seconds(
    store: FolderStore, serve: Serve, script: Script
) -> None:
    server = serve(script)
    limits = FetchLimits(max_bytes=1 << 40)
    with Stopwatch() as watch, pytest.raises(StageStoppedError):
        get(store, server.url(), limits, control=StopsSoon())
    assert watch.seconds < 2.3
    assert nothing_stored(store)


def test_a_stop_takes_effect_while_a_name_is_resolved(store: FolderStore) -> None:
    release = threading.Event()
    with Stopwatch() as watch, pytest.raises(StageStoppedError):
        get(
            store,
            "http://slow.example.com/",
            FetchLimits(),
            control=StopsSoon(),
            resolver=lambda _host, _port: [str(release.wait(60))],
        )
    release.set()
    assert watch.seconds < 2.3
