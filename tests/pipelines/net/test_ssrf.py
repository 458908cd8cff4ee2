"""Nothing that a client can write, name or redirect to makes the service connect inside.

Every case is checked twice: a listener on loopback counts connections, and
Python's audit events show whether any connection, anywhere, was even tried.
The forms in the table are shown to be live ones by letting them through.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

import httpx
import pytest

from pipelines.execution.chain import FreeRun
from pipelines.net.addresses import PUBLIC_ONLY, AddressPolicy
from pipelines.net.fetch import FetchLimits, fetch
from pipelines.net.safe_http import (
    AsyncSafeTransport,
    SafeTransport,
    TransportLimits,
)
from pipelines.types import StageCode, StageError
from storage.objects.folder import FolderStore
from tests.pipelines.net.fetch_servers import (
    NetworkLog,
    Resolutions,
    ScriptedServer,
    Trap,
    answer,
    has_ipv6_loopback,
    redirect,
)
from tests.pipelines.net.ssrf_cases import ANSWERS, LOOPBACK_FORMS, OTHER_FORMS
from tests.tables import every

HOME = "127.0.0.2"
"""Where the outside world is in these tests: the only address that some of them allow."""

HOME_ONLY = AddressPolicy((ipaddress.ip_network(f"{HOME}/32"),))
ALL_LOOPBACK = AddressPolicy((ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")))
LIMITS = FetchLimits(
    max_bytes=1 << 20,
    total_seconds=60,
    idle_seconds=60,
    connect_seconds=60,
    header_seconds=60,
    attempts=1,
)
FORMS = {**LOOPBACK_FORMS, **OTHER_FORMS}
IN_A_HEADER = {name: form for name, form in FORMS.items() if not set(form) & set("\r\n\x00")}
"""Those that can stand in a ``Location`` header."""

# Names of the table that the text check lets through once a network is allowed.
INSIDE = Resolutions(
    {
        name: [["127.0.0.1"]]
        for name in (
            "localhost",
            "app.localhost",
            "localhost.localdomain",
            "printer.local",
            "vault.internal",
            "postgres",
            "metadata",
            "nas.lan",
            "router.home.arpa",
            "wiki.corp",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "http",
        )
    }
)


@pytest.fixture(scope="module")
def armed_trap() -> Iterator[Trap]:
    with Trap().listening() as trap:
        yield trap


@pytest.fixture
def trap(armed_trap: Trap) -> Trap:
    armed_trap.take()
    return armed_trap


@pytest.fixture(scope="session")
def network() -> NetworkLog:
    return NetworkLog()


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path)


Fetch = Callable[..., bytes]


@pytest.fixture
def get(store: FolderStore) -> Fetch:
    """Fetches a URL and gives back its bytes."""

    def fetched(url: str, policy: AddressPolicy = PUBLIC_ONLY, **options: object) -> bytes:
        given = {"limits": LIMITS, "resolver": Resolutions({}), **options}
        fetch(url, store=store, key="a", policy=policy, control=FreeRun(), **given)  # type: ignore[arg-type]
        return store.read_bytes("a")

    return fetched


@contextmanager
def nobody_is_reached(
    trap: Trap, network: NetworkLog, *, but: tuple[str, int] | None = None
) -> Iterator[None]:
    """No connection arrives, none is tried (``but`` one address excepted), no name is looked up."""
    with network.recording() as events:
        yield
    assert trap.take() == []
    assert [event for event in events if event != ("socket.connect", but)] == []


@contextmanager
def fetching_fails(*reasons: str) -> Iterator[None]:
    """For one of these reasons, and not because a connection was tried in vain."""
    with pytest.raises(StageError) as failure:
        yield
    assert failure.value.code == StageCode.FETCH_FAILED
    assert any(reason in failure.value.message for reason in reasons)


def lead(asked_target: str, to: socket.socket) -> None:
    """Redirects to whatever the query says."""
    redirect(to, unquote(asked_target.partition("?to=")[2]).encode().decode("latin-1"))


@pytest.fixture(scope="module")
def signpost() -> Iterator[ScriptedServer]:
    """A server at HOME that redirects wherever it is told."""
    server = ScriptedServer(lambda asked, to: lead(asked.target, to), HOME)
    with server.running():
        yield server


# --- the table is about something ---

REACHABLE = {
    name: form for name, form in LOOPBACK_FORMS.items() if "[" not in form or has_ipv6_loopback()
}
"""Those of IPv6 only where the machine has its loopback."""


@every("form", REACHABLE.values(), ids=REACHABLE.keys())
def test_the_forms_of_loopback_reach_a_listener_where_it_is_allowed(
    form: str, trap: Trap, get: Fetch
) -> None:
    url = form.format(port=trap.port).replace("https:", "http:")
    assert get(url, ALL_LOOPBACK) == b"caught"
    assert len(trap.take()) == 1


def test_the_audit_events_show_connections(trap: Trap, network: NetworkLog) -> None:
    with network.recording() as events:
        socket.create_connection(("127.0.0.1", trap.port), 1).close()
    assert ("socket.connect", ("127.0.0.1", trap.port)) in events


def test_the_table_is_large_enough() -> None:
    assert len(FORMS) + len(ANSWERS) >= 150


# --- written ---


@every("form", FORMS.values(), ids=FORMS.keys())
def test_no_written_address_gets_a_connection(
    form: str, trap: Trap, network: NetworkLog, get: Fetch
) -> None:
    with nobody_is_reached(trap, network), fetching_fails("URL cannot be used"):
        get(form.format(port=trap.port))


@every("form", IN_A_HEADER.values(), ids=IN_A_HEADER.keys())
def test_no_redirect_gets_a_connection(
    form: str, trap: Trap, network: NetworkLog, get: Fetch, signpost: ScriptedServer
) -> None:
    location = form.format(port=trap.port)
    url = signpost.url(f"/?to={quote(location)}")
    # Three forms are relative to the signpost itself, which then has no more to say.
    reasons = ("redirects to a URL that cannot be used", "is not allowed", "status 302")
    with nobody_is_reached(trap, network, but=(HOME, signpost.port)), fetching_fails(*reasons):
        get(url, HOME_ONLY, resolver=INSIDE)


@every("form", FORMS.values(), ids=FORMS.keys())
def test_the_transport_alone_lets_nothing_through(
    form: str, trap: Trap, network: NetworkLog
) -> None:
    """Whatever httpx makes of the text, without our reading of it before."""
    limits = TransportLimits(connect_seconds=1, header_seconds=1, total_seconds=3)
    with (
        nobody_is_reached(trap, network),
        SafeTransport(resolver=INSIDE, limits=limits) as transport,
        httpx.Client(transport=transport, trust_env=False, timeout=5) as client,
        pytest.raises((httpx.TransportError, httpx.InvalidURL)),
    ):
        client.get(form.format(port=trap.port))


@every("form", FORMS.values(), ids=FORMS.keys())
async def test_the_asynchronous_transport_lets_nothing_through(
    form: str, trap: Trap, network: NetworkLog
) -> None:
    limits = TransportLimits(connect_seconds=1, header_seconds=1, total_seconds=3)
    with nobody_is_reached(trap, network):
        async with (
            AsyncSafeTransport(resolver=INSIDE.asynchronously, limits=limits) as transport,
            httpx.AsyncClient(transport=transport, trust_env=False, timeout=5) as client,
        ):
            with pytest.raises((httpx.TransportError, httpx.InvalidURL)):
                await client.get(form.format(port=trap.port))


# --- named ---


@every("answers", ANSWERS.values(), ids=ANSWERS.keys())
@every("name", ["media.example.com", "bücher.example.com"])
def test_no_name_gets_a_connection_inside(
    name: str, answers: list[str], trap: Trap, network: NetworkLog, get: Fetch
) -> None:
    ascii_name = name.encode("idna").decode()
    resolver = Resolutions({ascii_name: [answers]})
    reason = "is not allowed" if answers else "cannot be resolved"
    with nobody_is_reached(trap, network), fetching_fails(reason):
        get(f"http://{name}:{trap.port}/", resolver=resolver)
    assert resolver.questions == [ascii_name]


@every("answers", ANSWERS.values(), ids=ANSWERS.keys())
async def test_no_name_gets_an_asynchronous_connection_inside(
    answers: list[str], trap: Trap, network: NetworkLog
) -> None:
    resolver = Resolutions({"media.example.com": [answers]})
    with nobody_is_reached(trap, network):
        async with AsyncSafeTransport(resolver=resolver.asynchronously) as transport:
            with pytest.raises(httpx.ConnectError):
                await transport.handle_async_request(
                    httpx.Request("POST", f"http://media.example.com:{trap.port}/")
                )


def test_an_internal_name_with_a_public_answer_stays_internal(
    trap: Trap, network: NetworkLog, get: Fetch
) -> None:
    """Search lists and split horizons make such answers mean something else inside."""
    resolver = Resolutions({"nas.lan": [["8.8.8.8"]]})
    with nobody_is_reached(trap, network), fetching_fails("is not allowed"):
        get("http://nas.lan/", HOME_ONLY, resolver=resolver)


# --- answered differently the second time ---


REBOUND = {
    "loopback": ["127.0.0.1"],
    "another loopback": ["127.0.0.53"],
    "IPv6 loopback": ["::1"],
    "metadata": ["169.254.169.254"],
    "both": [HOME, "127.0.0.1"],
}


@pytest.mark.parametrize("second", REBOUND.values(), ids=REBOUND.keys())
def test_a_connection_uses_the_answer_that_was_judged(
    second: list[str], trap: Trap, network: NetworkLog, get: Fetch
) -> None:
    resolver = Resolutions({"rebind.example.com": [[HOME], second]})
    server = ScriptedServer(lambda _asked, to: answer(to, 200, b"x"), HOME, port=trap.port)
    with server.running(), nobody_is_reached(trap, network, but=(HOME, trap.port)):
        assert get(server.url(host="rebind.example.com"), HOME_ONLY, resolver=resolver) == b"x"
    assert resolver.questions == ["rebind.example.com"]


BREAKS: dict[str, Callable[[socket.socket], None]] = {
    "redirect to itself": lambda to: redirect(to, "/again"),
    "broken body": lambda to: answer(to, 200, b"123", content_length=9, etag='"v"'),
    "status to retry": lambda to: answer(to, 503),
    "broken headers": lambda to: to.sendall(b"HTTP/1.1 200"),
}


@every("second", REBOUND.values(), ids=REBOUND.keys())
@every("first", BREAKS.values(), ids=BREAKS.keys())
def test_every_further_connection_is_judged_anew(
    first: Callable[[socket.socket], None],
    second: list[str],
    trap: Trap,
    network: NetworkLog,
    get: Fetch,
) -> None:
    resolver = Resolutions({"rebind.example.com": [[HOME], second]})
    server = ScriptedServer(lambda _asked, to: first(to), HOME, port=trap.port)
    limits = FetchLimits(
        connect_seconds=1, idle_seconds=1, header_seconds=1, attempts=2, backoff_seconds=0.01
    )
    url = server.url(host="rebind.example.com")
    with (
        server.running(),
        nobody_is_reached(trap, network, but=(HOME, trap.port)),
        fetching_fails("is not allowed"),
    ):
        get(url, HOME_ONLY, resolver=resolver, limits=limits)
    assert len(server.asked) == 1
    assert len(resolver.questions) == 2


# --- around ---


PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def test_proxies_of_the_environment_are_not_used(
    trap: Trap, get: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PROXIES:
        monkeypatch.setenv(name, f"http://127.0.0.1:{trap.port}")
    monkeypatch.setenv("NO_PROXY", "")
    server = ScriptedServer(lambda _asked, to: answer(to, 200, b"direct"), HOME)
    with server.running():
        assert get(server.url(), HOME_ONLY) == b"direct"
    assert trap.take() == []
