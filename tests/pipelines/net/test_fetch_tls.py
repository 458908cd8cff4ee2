"""TLS through pinned connections: the name is what is verified, the judged address what is used."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from pipelines.execution.chain import FreeRun
from pipelines.net.addresses import AddressPolicy
from pipelines.net.fetch import FetchedSource, fetch
from pipelines.net.safe_http import AsyncSafeTransport, SafeTransport, TlsError
from pipelines.types import StageCode, StageError
from storage.objects.folder import FolderStore
from tests.pipelines.net.fetch_servers import (
    BODY,
    IMPATIENT,
    KEY,
    QUICK,
    Authority,
    Resolutions,
    ScriptedServer,
    answer,
    nothing_stored,
    redirect,
)
from tests.stopwatch import Stopwatch

LOOPBACK = AddressPolicy((ipaddress.ip_network("127.0.0.0/8"),))
NAME = "media.example.com"
NOT_SECURE = "No secure connection to the source: its certificate or its TLS is not accepted."


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.new(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "objects")


def serve(
    servers: ExitStack, tls: ssl.SSLContext | None, location: str | None = None
) -> ScriptedServer:
    """Serves BODY, or redirects to ``location``."""

    def script(_asked: object, to: socket.socket) -> None:
        if location is None:
            answer(to, 200, BODY)
        else:
            redirect(to, location)

    return servers.enter_context(ScriptedServer(script, tls=tls).running())


def get(
    store: FolderStore, url: str, context: ssl.SSLContext | None, token: str | None = None
) -> FetchedSource:
    return fetch(
        url,
        store=store,
        key=KEY,
        limits=QUICK,
        policy=LOOPBACK,
        token=token,
        control=FreeRun(),
        resolver=Resolutions({NAME: [["127.0.0.1"]], "cdn.example.com": [["127.0.0.1"]]}),
        ssl_context=context,
    )


def test_a_pinned_connection_keeps_the_name(
    store: FolderStore, authority: Authority, servers: ExitStack
) -> None:
    server = serve(servers, authority.server_context(NAME))
    get(store, server.url(host=NAME), authority.client_context())
    assert store.read_bytes(KEY) == BODY
    assert server.server_names == [NAME]
    assert server.asked[0].headers["host"] == f"{NAME}:{server.port}"


def test_an_international_name_is_verified_in_its_ascii_form(
    store: FolderStore, authority: Authority, servers: ExitStack
) -> None:
    ascii_name = "xn--bcher-kva.example.com"
    server = serve(servers, authority.server_context(ascii_name))
    fetch(
        server.url(host="bücher.example.com"),
        store=store,
        key=KEY,
        limits=QUICK,
        policy=LOOPBACK,
        control=FreeRun(),
        resolver=Resolutions({ascii_name: [["127.0.0.1"]]}),
        ssl_context=authority.client_context(),
    )
    assert server.server_names == [ascii_name]


@pytest.mark.parametrize(
    "names", [("other.example.com",), ("example.com",), ("127.0.0.1",), ("*.other.example.com",)]
)
def test_a_certificate_for_another_name_is_refused_before_anything_is_said(
    store: FolderStore, authority: Authority, servers: ExitStack, names: tuple[str, ...]
) -> None:
    server = serve(servers, authority.server_context(*names))
    with pytest.raises(StageError) as failure:
        get(store, server.url(host=NAME), authority.client_context(), token="s3cret")
    assert failure.value.code == StageCode.FETCH_FAILED
    assert failure.value.message == NOT_SECURE
    assert server.asked == []
    assert nothing_stored(store)


def test_an_unknown_authority_is_refused(
    store: FolderStore,
    authority: Authority,
    servers: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Also where the environment names it: what is trusted is the operator's to hand in."""
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(authority.certificate.public_bytes(Encoding.PEM))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    server = serve(servers, authority.server_context(NAME))
    with pytest.raises(StageError, match="certificate"):
        get(store, server.url(host=NAME), None)
    assert server.asked == []


def test_a_literal_address_needs_a_certificate_for_it(
    store: FolderStore, authority: Authority, servers: ExitStack
) -> None:
    fitting = serve(servers, authority.server_context("127.0.0.1"))
    assert get(store, fitting.url(), authority.client_context()).size_bytes == len(BODY)
    other = serve(servers, authority.server_context(NAME))
    with pytest.raises(StageError, match="certificate"):
        get(store, other.url(), authority.client_context())


def test_a_server_without_tls_is_refused(
    store: FolderStore, authority: Authority, servers: ExitStack
) -> None:
    url = f"https://{NAME}:{_plain_speaker(servers)}/"
    with pytest.raises(StageError, match="No secure connection"):
        get(store, url, authority.client_context())


def test_a_handshake_that_never_ends_is_left(store: FolderStore, authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"https://{NAME}:{mute.getsockname()[1]}/"
        with Stopwatch() as watch, pytest.raises(StageError, match="does not answer"):
            fetch(
                url,
                store=store,
                key=KEY,
                limits=IMPATIENT,
                policy=LOOPBACK,
                control=FreeRun(),
                resolver=Resolutions({NAME: [["127.0.0.1"]]}),
                ssl_context=authority.client_context(),
            )
        assert watch.seconds < 3


def test_the_token_does_not_follow_from_https_to_http(
    store: FolderStore, authority: Authority, servers: ExitStack
) -> None:
    plain = serve(servers, None)
    secure = serve(servers, authority.server_context(NAME), plain.url(host=NAME))
    get(store, secure.url(host=NAME), authority.client_context(), token="s3cret")
    assert secure.asked[0].headers["authorization"] == "Bearer s3cret"
    assert "authorization" not in plain.asked[0].headers


def test_each_origin_is_verified_by_its_own_name(
    store: FolderStore, authority: Authority, servers: ExitStack
) -> None:
    cdn = serve(servers, authority.server_context("cdn.example.com"))
    first = serve(servers, authority.server_context(NAME), cdn.url(host="cdn.example.com"))
    get(store, first.url(host=NAME), authority.client_context())
    assert (first.server_names, cdn.server_names) == ([NAME], ["cdn.example.com"])


@pytest.mark.parametrize(("certified", "accepted"), [(NAME, True), ("other.example.com", False)])
async def test_the_asynchronous_transport_verifies_names_too(
    authority: Authority, servers: ExitStack, certified: str, accepted: bool
) -> None:
    server = serve(servers, authority.server_context(certified))
    request = httpx.Request("GET", server.url(host=NAME))
    async with AsyncSafeTransport(
        policy=LOOPBACK,
        resolver=Resolutions({NAME: [["127.0.0.1"]]}).asynchronously,
        ssl_context=authority.client_context(),
    ) as transport:
        if accepted:
            response = await transport.handle_async_request(request)
            assert await response.aread() == BODY
            assert server.server_names == [NAME]
        else:
            with pytest.raises(TlsError):
                await transport.handle_async_request(request)
            assert server.asked == []


def test_the_transport_says_what_went_wrong(authority: Authority, servers: ExitStack) -> None:
    server = serve(servers, authority.server_context("other.example.com"))
    with (
        SafeTransport(
            policy=LOOPBACK,
            resolver=Resolutions({NAME: [["127.0.0.1"]]}),
            ssl_context=authority.client_context(),
        ) as transport,
        pytest.raises(TlsError) as failure,
    ):
        transport.handle_request(httpx.Request("GET", server.url(host=NAME)))
    assert "127." not in str(failure.value)


def _plain_speaker(servers: ExitStack) -> int:
    """The port of a server that answers a TLS greeting in plain text."""
    listener = servers.enter_context(socket.create_server(("127.0.0.1", 0)))

    def speak() -> None:
        for _ in range(QUICK.attempts):
            connection, _peer = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    threading.Thread(target=speak, daemon=True).start()
    return int(listener.getsockname()[1])
