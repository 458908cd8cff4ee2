"""Answers that hold something: so many an account and a process, in turns, and not for ever.

Stalled readers are real sockets that stop reading; what is held shows in the process's open files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import selectors
import socket
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import httpx
import numpy as np
import pytest
from starlette.requests import ClientDisconnect

from serve_app.api import downloads
from serve_app.api.downloads import (
    LIMITS,
    Download,
    DownloadPlace,
    Downloads,
    PacingMiddleware,
    Turns,
)
from serve_app.api.envelope import ExactJSONResponse, LargeJSONResponse
from serve_app.context import build_context
from serve_app.dashboard.access import COOKIE
from serve_app.dashboard.account import ENTRIES_SHOWN
from serve_app.deployment import application
from serve_app.deployment.application import ApiReplica
from serve_app.media.source import find_media
from serve_app.settings import Settings
from storage import audit, jobs, keys, results
from storage.database import Connection
from tests.databases import fresh_database
from tests.serve_app.exports.test_clips import ingested_job
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import SECRET, Customer, RunningApi
from tests.tables import every

MIB = 1024**2


@pytest.fixture(scope="module")
def api_settings(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """As delivered: the film is larger than what other tests may upload."""
    with fresh_database(postgres_url) as url:
        folder = tmp_path_factory.mktemp("data")
        yield Settings(data_dir=folder, database_url=url, secret_key=SECRET)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise, each picture a key frame: more than sockets on the way to a reader hold."""
    path = tmp_path_factory.mktemp("film") / "film.mkv"
    noise = np.random.default_rng(7)
    with av.open(str(path), "w") as target:
        stream: Any = target.add_stream("mjpeg", rate=25, options={"qmin": "1", "qmax": "1"})
        stream.width, stream.height, stream.pix_fmt = 640, 480, "yuvj420p"
        for number in range(50):
            planes = noise.integers(0, 256, (720, 640), np.uint8)
            frame: Any = av.VideoFrame.from_ndarray(planes, "yuvj420p")
            frame.pts = number
            target.mux(stream.encode(frame))
        target.mux(stream.encode(None))
    assert path.stat().st_size > 16 * MIB
    return path


@pytest.fixture(scope="module")
def owner(api: RunningApi) -> Customer:
    return api.customer()


@pytest.fixture(scope="module")
def job(api: RunningApi, owner: Customer, film: Path) -> str:
    return ingested_job(api, owner, film)


@pytest.fixture(scope="module")
def other_job(api: RunningApi, film: Path, job: str) -> tuple[Customer, str]:
    other = api.customer()
    return other, ingested_job(api, other, film)


def media_path(api: RunningApi, job_id: str) -> str:
    async def find(connection: Connection) -> str:
        found = await jobs.find_job(connection, uuid.UUID(job_id))
        assert found is not None
        path = (await find_media(api.context, connection, found)).source
        assert path is not None
        return path

    return api.transact(find)


class Reader:
    """A client that has asked for something and reads only when it is told to."""

    def __init__(self, api: RunningApi, path: str, key: str = "", cookie: str = "") -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(30)
        self._socket.connect(("127.0.0.1", int(api.root.rsplit(":", 1)[1])))
        credential = f"Cookie: {cookie}" if cookie else f"X-API-Key: {key}"
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\n{credential}\r\n\r\n"
        self._socket.sendall(request.encode())
        self.status = int(self._socket.recv(len("HTTP/1.1 200")).split()[1])

    def read(self, count: int = 1) -> bytes:
        return self._socket.recv(count)

    def read_all(self) -> int:
        count = 0
        while piece := self._socket.recv(MIB):
            count += len(piece)
        return count

    def abort(self) -> None:
        self._socket.close()


@pytest.fixture
def stalled(api: RunningApi) -> Iterator[Callable[..., Reader]]:
    """Makes readers, which are gone after the test and with them what they held."""
    readers: list[Reader] = []

    def make(path: str, key: str = "", cookie: str = "") -> Reader:
        readers.append(Reader(api, path, key, cookie))
        return readers[-1]

    yield make
    for each in readers:
        each.abort()
    assert gone(lambda: not held(api)), held(api)


def held(api: RunningApi) -> int:
    """Places that are taken in the process."""
    return sum(each.held for each in api.app.state.downloads.values())


def open_clips() -> list[str]:
    """Clips that the process has open; they have no name any more."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return [each for each in found if each.endswith("/clip (deleted)")]


def gone(condition: Callable[[], bool]) -> bool:
    """Whether it comes true in time."""
    until = time.monotonic() + 60
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


def clip_path(job: str) -> str:
    return f"/v1/api/jobs/{job}/clip?start=0&end=2"


def require_refusal(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.json()["code"]) == (429, "RATE_LIMITED")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert answer.json()["docUrl"].endswith("#RATE_LIMITED")


def test_each_kind_of_download_has_its_limits_and_no_account_can_have_all() -> None:
    assert set(LIMITS) == set(Download)
    assert all(0 < each.account < each.replica and each.workers for each in LIMITS.values())


def test_an_account_has_so_many_clips_open_and_others_have_theirs(
    api: RunningApi,
    owner: Customer,
    job: str,
    other_job: tuple[Customer, str],
    stalled: Callable[..., Reader],
) -> None:
    most = LIMITS[Download.CLIP].account
    readers = [stalled(clip_path(job), owner.key) for _ in range(most)]
    assert [each.status for each in readers] == [200] * most
    assert len(open_clips()) == most
    require_refusal(api.client.get(f"{api.root}{clip_path(job)}", headers=owner.headers))
    other, its_job = other_job
    whole = api.client.get(f"{api.root}{clip_path(its_job)}", headers=other.headers)
    assert whole.status_code == 200
    readers[0].abort()
    assert gone(lambda: len(open_clips()) == most - 1)
    whole = api.client.get(f"{api.root}{clip_path(job)}", headers=owner.headers)
    assert whole.status_code == 200


def test_a_clip_is_closed_as_soon_as_its_client_is_gone(
    owner: Customer, job: str, stalled: Callable[..., Reader]
) -> None:
    reader = stalled(clip_path(job), owner.key)
    assert len(open_clips()) == 1
    reader.abort()
    assert gone(lambda: not open_clips())


def test_an_account_plays_so_much_at_once(
    api: RunningApi, job: str, stalled: Callable[..., Reader]
) -> None:
    path = media_path(api, job)
    for _ in range(LIMITS[Download.MEDIA].account):
        assert stalled(path).status == 200
    require_refusal(httpx.get(f"{api.root}{path}", trust_env=False))


@pytest.mark.parametrize("path", ["export?format=csv", "transcript?format=srt", "transcript"])
def test_an_account_reads_so_many_files_of_results_at_once(api: RunningApi, path: str) -> None:
    customer = api.customer()
    job = created(api, customer)
    complete(api, job, [track(0)], [])
    places = api.app.state.downloads[Download.FILE]
    with contextlib.ExitStack() as stack:
        for _ in range(LIMITS[Download.FILE].account):
            stack.enter_context(places.place(customer.account_id))
        require_refusal(api.client.get(f"/jobs/{job}/{path}", headers=customer.headers))
    answer = api.client.get(f"/jobs/{job}/{path}", headers=customer.headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "path", ["", "/scenes", "/audioTracks", "/audio-tracks", "/audioTracks/1", "/review?track=1"]
)
def test_large_results_have_places_and_turns_and_small_ones_wait_for_none(
    api: RunningApi, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    customer = api.customer()
    job = created(api, customer)
    complete(api, job, [track(0), track(1)], [])
    places = api.app.state.downloads[Download.FILE]

    def ask() -> httpx.Response:
        return api.client.get(f"/jobs/{job}{path}", headers=customer.headers)

    with contextlib.ExitStack() as stack:
        for _ in range(LIMITS[Download.FILE].account):
            stack.enter_context(places.place(customer.account_id))
        assert ask().status_code == 200
        monkeypatch.setattr(downloads, "LARGE_CHARACTERS", 1)
        with monkeypatch.context() as unread:
            unread.setattr(results, "get_scenes", None)
            unread.setattr(results, "list_transcripts", None)
            require_refusal(ask())
    turns = list[uuid.UUID]()
    turn = places.turns.turn

    def noted(account_id: uuid.UUID) -> Any:
        turns.append(account_id)
        return turn(account_id)

    monkeypatch.setattr(places.turns, "turn", noted)
    assert ask().status_code == 200
    assert turns == [customer.account_id]
    assert gone(lambda: not places.held)


@every(
    "content", [{}, [], {"a": []}, {"a": [{}] * 120}, [[1.5] * 51, "é\n", None, {"b": {"c": [[]]}}]]
)
def test_large_answers_are_written_as_small_ones(content: Any) -> None:
    assert LargeJSONResponse(content).body == ExactJSONResponse(content).body
    made = LargeJSONResponse({"a": (each for each in range(120)), "b": iter(())})
    assert made.body == ExactJSONResponse({"a": [*range(120)], "b": []}).body
    with pytest.raises(ValueError, match="JSON compliant"):
        LargeJSONResponse({"a": [float("nan")] * 51})


def test_a_process_has_so_many_places(api: RunningApi) -> None:
    places = api.app.state.downloads[Download.CLIP]
    limit = LIMITS[Download.CLIP]
    with contextlib.ExitStack() as stack:
        for number in range(limit.replica):
            stack.enter_context(places.place(uuid.UUID(int=number // limit.account)))
        customer = api.customer()
        path = f"/jobs/{created(api, customer)}/clip?start=0&end=1"
        require_refusal(api.client.get(path, headers=customer.headers))
        missing = f"/jobs/{uuid.uuid4()}/clip?start=0&end=1"
        assert api.client.get(missing, headers=customer.headers).status_code == 404
    assert api.client.get(path, headers=customer.headers).status_code == 409


@pytest.mark.parametrize("kind", ["clip", "media"])
def test_who_reads_a_byte_now_and_then_is_ended(
    api: RunningApi,
    owner: Customer,
    job: str,
    kind: str,
    stalled: Callable[..., Reader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(downloads, "PATIENCE_SECONDS", 1.0)
    path = clip_path(job) if kind == "clip" else media_path(api, job)
    reader = stalled(path, owner.key)
    assert held(api) == 1
    until = time.monotonic() + 60
    while held(api) and time.monotonic() < until:
        reader.read()
        time.sleep(0.1)
    assert held(api) == 0
    assert gone(lambda: not open_clips())
    # It got what was on the way, and then the end of the connection.
    assert reader.read_all() < 16 * MIB


SENDS = {
    "each piece in time": ([0.2] * 6, True),
    "now and then none": ([0.5, 0.0, 0.5, 0.0, 0.5, 0.0], True),
    "slower than that": ([0.8] * 6, False),
    "stalled at once": ([9.0] * 6, False),
    "stalled at its end": ([0.0] * 5 + [9.0], False),
}


@pytest.mark.parametrize(("waits", "ends"), SENDS.values(), ids=SENDS)
def test_the_least_rate_counts_over_a_while(
    waits: list[float], ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of a megabyte a piece, for which a client has a quarter of a second here."""
    monkeypatch.setattr(downloads, "PATIENCE_SECONDS", 2.0)
    monkeypatch.setattr(downloads, "LEAST_BYTES_A_SECOND", MIB)
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = bytes(MIB // 4 * len(waits))
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def send(message: Any) -> None:
        await asyncio.sleep(waits[len(sent)])
        sent.append(message)

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        runner.run(_answered(app, send))
    assert (len(sent) == len(waits)) is ends
    if ends:
        assert [each["more_body"] for each in sent] == [True] * 5 + [False]


async def _answered(app: Any, send: Any) -> None:
    await PacingMiddleware(app)({"type": "http"}, _nothing, send)


class LeapingSelector(selectors.SelectSelector):
    """Puts its clock on instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        self.now += 0 if found else timeout or 0
        return found


class LeapingLoop(asyncio.SelectorEventLoop):
    """Time passes as soon as nothing else is to be done."""

    def __init__(self) -> None:
        self.clock = LeapingSelector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


async def _nothing() -> Any:
    await asyncio.Event().wait()


async def test_accounts_take_turns_however_many_one_has_waiting() -> None:
    busy, other, third = (uuid.UUID(int=number) for number in range(3))
    turns, order = Turns(1), list[uuid.UUID]()

    async def take(account_id: uuid.UUID) -> None:
        async with turns.turn(account_id):
            order.append(account_id)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for account_id in [busy] * 5 + [other] * 2 + [third]:
            group.create_task(take(account_id))
    assert order == [busy, busy, other, third, busy, other, busy, busy]


async def test_who_stops_waiting_loses_no_turn_of_others() -> None:
    account, turns = uuid.UUID(int=1), Turns(1)
    async with turns.turn(account):
        waiting = [asyncio.create_task(_hold(turns, account)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
    # The turn was given to the second, which is ended before it can use it.
    waiting[1].cancel()
    await asyncio.wait(waiting, timeout=60)
    assert not waiting[2].cancelled()
    async with asyncio.timeout(60), turns.turn(account):
        pass


async def _hold(turns: Turns, account_id: uuid.UUID) -> None:
    async with turns.turn(account_id):
        pass


def session_with_audit_log(api: RunningApi, entries: int) -> str:
    """A cookie of a new account whose audit log is larger than what sockets hold."""
    customer = api.customer()

    async def fill(connection: Connection) -> str:
        for _ in range(entries):
            await audit.record(connection, customer.account_id, "limitAccount", detail="x" * 10_000)
        link = await keys.create_sign_in_link(connection, customer.account_id)
        session = await keys.exchange_sign_in_link(connection, link)
        assert session is not None
        return f"{COOKIE}={session}"

    return api.transact(fill)


def test_exports_of_the_audit_log_that_are_not_read_hold_places_and_no_database_connection(
    api: RunningApi, stalled: Callable[..., Reader]
) -> None:
    session = session_with_audit_log(api, 2000)
    most = LIMITS[Download.FILE].account
    assert most >= api.settings.database_pool_size
    for _ in range(most):
        assert stalled("/dashboard/audit/export", cookie=session).status == 200
    assert held(api) == most
    assert gone(lambda: not connections_in_use(api))
    refused = httpx.get(
        f"{api.root}/dashboard/audit/export", headers={"Cookie": session}, trust_env=False
    )
    assert refused.status_code == 429
    other = api.customer()
    answer = api.client.get(f"/jobs/{created(api, other)}", headers=other.headers)
    assert answer.status_code == 200


def test_exports_of_an_audit_log_are_made_of_some_entries_at_a_time_one_after_the_other(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_with_audit_log(api, 3 * ENTRIES_SHOWN)
    read, under_way = audit.list_entries, list[int]()
    at_once, pages = list[int](), list[int]()

    async def noted(*arguments: Any, **named: Any) -> list[Any]:
        under_way.append(1)
        at_once.append(len(under_way))
        found = await read(*arguments, **named)
        pages.append(len(found))
        under_way.pop()
        return found

    monkeypatch.setattr(audit, "list_entries", noted)

    def export(_: int) -> list[str]:
        url, headers = f"{api.root}/dashboard/audit/export", {"Cookie": session}
        answer = httpx.get(url, headers=headers, trust_env=False, timeout=60)
        return answer.raise_for_status().text.splitlines()

    with ThreadPoolExecutor(4) as threads:
        exports = [*threads.map(export, range(4))]
    assert all(each == exports[0] for each in exports)
    positions = [json.loads(line)["position"] for line in exports[0]]
    assert positions == [*range(1, len(positions) + 1)]
    assert len(positions) >= 3 * ENTRIES_SHOWN
    assert max(pages) == ENTRIES_SHOWN
    assert max(at_once) == 1


def test_the_api_takes_the_interpreter_back_from_what_prepares_an_answer_at_once(
    api_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "configure_logging", lambda *_: None)
    monkeypatch.setattr(application, "_searching_context", build_context)
    before = sys.getswitchinterval()
    try:
        made: Any = SimpleNamespace(_settings=api_settings)
        ApiReplica.__serve_build_asgi_app__(made)
        assert sys.getswitchinterval() <= before / 10
    finally:
        sys.setswitchinterval(before)


def connections_in_use(api: RunningApi) -> int:
    pool: Any = api.context.database.engine.pool
    return int(pool.checkedout())


async def test_what_a_stream_holds_is_closed_with_it_and_not_by_the_garbage_collector() -> None:
    closed = list[str]()

    async def body() -> AsyncGenerator[bytes]:
        try:
            while True:
                yield bytes(MIB)
        finally:
            closed.append("body")

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            raise OSError("the client is gone")

    place = DownloadPlace(Downloads(LIMITS[Download.FILE]), uuid.uuid4(), contextlib.ExitStack())
    kept = body()  # as a traceback keeps it
    answer = place.stream(kept, media_type="text/plain", headers={})
    with pytest.raises(ClientDisconnect):
        await answer({"type": "http", "asgi": {"spec_version": "2.4"}}, _nothing, send)
    assert closed == ["body"]
