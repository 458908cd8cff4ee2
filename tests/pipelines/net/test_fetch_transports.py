"""The asynchronous transport's bounds and errors; the fetch tests hold the synchronous one."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import httpx
import pytest

from pipelines.net.addresses import AddressPolicy
from pipelines.net.safe_http import (
    AsyncSafeTransport,
    NameResolutionError,
    PinningBackend,
    RequestTooLongError,
    ResponseHeadersTooLargeError,
    TransportLimits,
)
from tests.pipelines.net.fetch_servers import (
    Resolutions,
    Script,
    ScriptedServer,
    answer,
    body_in_drops,
    drip,
)
from tests.stopwatch import Stopwatch
from tests.tables import every

LOOPBACK = AddressPolicy((ipaddress.ip_network("127.0.0.0/8"),))
PATIENT = TransportLimits(60, 60, 60, 60, 120)
QUICK = TransportLimits(
    connect_seconds=0.5, read_seconds=0.4, write_seconds=0.4, header_seconds=0.3, total_seconds=1.5
)

Serve = Callable[[Script], ScriptedServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(ScriptedServer(script).running())


async def post(
    url: str, limits: TransportLimits = PATIENT, resolver: Resolutions | None = None
) -> bytes:
    """POST through a client of the service; the body of the answer."""
    transport = AsyncSafeTransport(
        policy=LOOPBACK, limits=limits, resolver=(resolver or Resolutions({})).asynchronously
    )
    timeout = limits.timeout()
    async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=timeout) as client:
        return (await client.post(url, content=b"{}")).content


async def test_a_request_is_answered_and_the_connection_closed(serve: Serve) -> None:
    server = serve(lambda _asked, to: answer(to, 200, b"done"))
    resolver = Resolutions({"hooks.example.com": [["127.0.0.9", "127.0.0.1"]]})
    url = server.url(host="hooks.example.com")
    assert await post(url, resolver=resolver) == b"done"
    assert await post(url, resolver=resolver) == b"done"
    assert [asked.headers["host"] for asked in server.asked] == [
        f"hooks.example.com:{server.port}"
    ] * 2
    assert len(resolver.questions) == 2


FAILURES: dict[str, tuple[Script, type[Exception]]] = {
    "mute": (lambda _asked, to: time.sleep(60), httpx.ReadTimeout),
    "headers in drops": (
        lambda _asked, to: drip(to, b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 40, 0.02),
        httpx.ReadTimeout,
    ),
    "body in drops": (body_in_drops, RequestTooLongError),
    "large headers": (
        lambda _asked, to: to.sendall(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000 + b"\r\n\r\n"),
        ResponseHeadersTooLargeError,
    ),
    "no HTTP": (lambda _asked, to: to.sendall(b"hello\r\n\r\n"), httpx.RemoteProtocolError),
    "nothing": (lambda _asked, to: None, httpx.RemoteProtocolError),
}


@every(("script", "error"), FAILURES.values(), ids=FAILURES.keys())
async def test_a_receiver_that_misbehaves_is_left_in_time(
    serve: Serve, script: Script, error: type[Exception]
) -> None:
    server = serve(script)
    with Stopwatch() as watch, pytest.raises(error):
        await post(server.url(), QUICK)
    assert watch.seconds < 3


async def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(NameResolutionError):
        await post("http://nowhere.example.com/")


async def test_a_resolver_that_hangs_is_left() -> None:
    async def hanging(_host: str, _port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    request = httpx.Request("GET", "http://slow.example.com/")
    async with AsyncSafeTransport(limits=QUICK, resolver=hanging) as transport:
        with Stopwatch() as watch, pytest.raises(httpx.ConnectTimeout):
            await transport.handle_async_request(request)
    assert watch.seconds < 2


async def test_a_port_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(httpx.ConnectError):
        await post(f"http://127.0.0.1:{port}/")


async def test_an_address_that_does_not_answer_leaves_time_for_the_next(serve: Serve) -> None:
    """A listener with a full queue accepts nothing; half of the time is for the second address."""
    server = serve(lambda _asked, to: answer(to, 200, b"done"))
    with socket.socket() as full, ExitStack() as clients:
        full.bind(("127.0.0.7", server.port))
        full.listen(0)
        for _ in range(4):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.7", server.port))
        resolver = Resolutions({"hooks.example.com": [["127.0.0.7", "127.0.0.1"]]})
        limits = replace(PATIENT, connect_seconds=3.0)
        assert await post(server.url(host="hooks.example.com"), limits, resolver) == b"done"


async def test_unix_sockets_are_refused() -> None:
    backend = PinningBackend(LOOPBACK, QUICK, Resolutions({}).asynchronously)
    with pytest.raises(NotImplementedError):
        await backend.connect_unix_socket("/s")
