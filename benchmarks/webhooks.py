"""Events per second from the outbox to a 2xx, with 1, 10 and 100 endpoints and one that never
answers, beside a plain httpx loop that posts the same signed bodies.

    .venv/bin/python -m benchmarks.webhooks [--events 2000] [--profile FILE]

The last line is JSON. The sender, the receiver and PostgreSQL share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import multiprocessing
import ssl
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from ipaddress import ip_network
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import httpx
import psutil
from cryptography.hazmat.primitives.serialization import Encoding
from sqlalchemy import text

from serve_app.context import AppContext, build_context
from serve_app.deployment.data import prepared
from serve_app.settings import Settings
from serve_app.webhooks.sending import USER_AGENT
from serve_app.webhooks.signing import new_signing_secret, signed_headers
from storage import keys, webhooks
from storage.webhooks import EVENTS_CHANNEL
from tests.pipelines.net.fetch_servers import Authority
from tests.webhooks.sender_process import send_until_killed

ENDPOINTS = (1, 10, 100)
BODY_BYTES = 1200
"""About what the event of a job with a little metadata has."""

PATIENCE_SECONDS = 120
PEER_WORKERS = 16
ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--profile", type=Path, help="write the sender's cProfile data here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vas-bench-") as folder:
        result = measure(Path(folder), options.events, options.profile)
    print(json.dumps(result))


def measure(folder: Path, events: int, profile: Path | None) -> dict[str, Any]:
    """Both sides, one after the other, against the same receiver."""
    authority = Authority.new(folder)
    ca_file = folder / "authority.pem"
    ca_file.write_bytes(authority.certificate.public_bytes(Encoding.PEM))
    authority.server_context("127.0.0.1")  # writes 127.0.0.1.pem
    wanted = Settings(
        data_dir=folder / "data",
        allowed_networks=(ip_network("127.0.0.0/8"),),
        webhook_ca_file=ca_file,
    )
    results: dict[str, Any] = {"events": events}
    with receiving(folder / "127.0.0.1.pem") as ports, prepared(wanted) as settings:
        for endpoints in ENDPOINTS:
            name = f"sender_{endpoints}"
            results[name] = asyncio.run(our_side(settings, ports, endpoints, events, profile))
            print(name, results[name], flush=True)
        for name, side in (("loop", one_after_another), ("workers", side_by_side)):
            results[f"httpx_{name}"] = asyncio.run(side(ports[0], ca_file, events))
            print(f"httpx_{name}", results[f"httpx_{name}"], flush=True)
    results["ratios"] = {f"sender_{n}_to_httpx_loop": ratios(results, n) for n in ENDPOINTS}
    return results


def ratios(results: dict[str, Any], endpoints: int) -> dict[str, float]:
    """Of rates and of processor time an event."""
    ours, loop = results[f"sender_{endpoints}"], results["httpx_loop"]
    names = ("events_per_second", "cpu_ms_per_event")
    return {name: round(ours[name] / loop[name], 2) for name in names}


async def our_side(
    settings: Settings, ports: tuple[int, int], endpoints: int, events: int, profile: Path | None
) -> dict[str, Any]:
    """From the commit of ``events`` events to the record of the last one's delivery."""
    context = build_context(settings)
    try:
        await add_accounts(context, ports, endpoints)
        with sending(settings, profile) as sender:
            await deliver(context, min(events, 200), dead_events=0)  # warm
            used = cpu_seconds(sender)
            seconds = await deliver(context, events, dead_events=100)
            used = cpu_seconds(sender) - used
    finally:
        await context.database.close()
    return figures(events, seconds, used)


def figures(events: int, seconds: float, used_cpu_seconds: float) -> dict[str, Any]:
    """What is reported; processor time tells more than the clock where others use the machine."""
    return {
        "seconds": round(seconds, 2),
        "events_per_second": round(events / seconds, 1),
        "cpu_ms_per_event": round(used_cpu_seconds / events * 1000, 3),
    }


def cpu_seconds(process: psutil.Process) -> float:
    """Processor time that a process has used so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


async def add_accounts(context: AppContext, ports: tuple[int, int], endpoints: int) -> None:
    """An account an endpoint, and one whose endpoint never answers."""
    async with context.database.transaction() as connection:
        await connection.execute(text("DELETE FROM webhook_events"))
        await connection.execute(text("DELETE FROM jobs"))
        for port in [ports[0]] * endpoints + [ports[1]]:
            account = await keys.create_account(connection, uuid.uuid4().hex)
            secret = context.encrypter.encrypt(new_signing_secret())
            await webhooks.get_or_create_signing_secret(connection, account.id, secret)
            values = {"account": account.id, "url": f"https://127.0.0.1:{port}/hook"}
            await connection.execute(text(INSERT_JOB), values | {"dead": port == ports[1]})


INSERT_JOB = """
    INSERT INTO jobs (id, account_id, state, processing_mode, tier, file_name, source,
                      callback_url, batch_index, completed_at)
    VALUES (gen_random_uuid(), :account, 'completed', 'all', 'standard', 'clip.mp4', '{}',
            :url, CAST(:dead AS int), now())
"""

# Spread over the endpoints; batch_index tells the dead one's job from the others.
INSERT_EVENTS = """
    WITH targets AS (
        SELECT *, row_number() OVER (ORDER BY id) - 1 AS place, count(*) OVER () AS places
          FROM jobs WHERE batch_index = CAST(:dead AS int))
    INSERT INTO webhook_events (id, account_id, job_id, event_type, url, body)
    SELECT targets.id || ':' || :label || number, account_id, targets.id, 'job.completed',
           callback_url, :body
      FROM generate_series(1, :count) AS number JOIN targets ON place = number % places
"""

OWED = """
    SELECT count(*) AS events FROM webhook_events
     WHERE next_attempt_at IS NOT NULL AND id LIKE '%:' || CAST(:label AS text) || '%'
"""


async def deliver(context: AppContext, events: int, dead_events: int) -> float:
    """Seconds until all but the dead endpoint's events are recorded as delivered."""
    label = uuid.uuid4().hex[:8]
    values = {"body": event_bytes(), "count": events, "label": f"{label}-"}
    started = time.perf_counter()
    async with context.database.transaction() as connection:
        dead = values | {"dead": True, "count": dead_events, "label": "dead-"}
        await connection.execute(text(INSERT_EVENTS), dead)
        await connection.execute(text(INSERT_EVENTS), values | {"dead": False})
        await connection.execute(text(f"NOTIFY {EVENTS_CHANNEL}"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        owed = text(OWED)
        while (await context.database.query(owed, label=label))[0]["events"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return time.perf_counter() - started


def event_bytes() -> bytes:
    """A body of the usual size."""
    event = {"type": "job.completed", "timestamp": "2026-11-21T12:00:00.000Z", "data": {}}
    padding = "x" * (BODY_BYTES - len(json.dumps(event)))
    return json.dumps(event | {"data": {"metadata": {"padding": padding}}}).encode()


@contextlib.contextmanager
def sending(settings: Settings, profile: Path | None) -> Iterator[psutil.Process]:
    """A sender in a process of its own, as in the service."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_send, args=(settings, profile), daemon=True)
    process.start()
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.join(10)


def _send(settings: Settings, profile: Path | None) -> None:
    if profile is None:
        send_until_killed(settings, timedelta())
        return
    with cProfile.Profile() as measured:
        _until_terminated(lambda: send_until_killed(settings, timedelta()))
    measured.dump_stats(profile)


def _until_terminated(work: Callable[[], None]) -> None:
    import signal

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(KeyboardInterrupt):
        work()


@contextlib.contextmanager
def receiving(certificate: Path) -> Iterator[tuple[int, int]]:
    """A receiver in a process of its own: the port that answers, and the one that never does."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_receive, args=(certificate, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join(10)


def _receive(certificate: Path, pipe: Pipe) -> None:
    asyncio.run(_serve(certificate, pipe))


async def _serve(certificate: Path, pipe: Pipe) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(kind, "127.0.0.1", 0, ssl=tls, backlog=1024)
        for kind in (Answering, asyncio.Protocol)
    ]
    pipe.send(tuple(server.sockets[0].getsockname()[1] for server in servers))
    await asyncio.Event().wait()


class Answering(asyncio.Protocol):
    """Answers each whole request with 204, as cheaply as it can."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, ended, rest = self._data.partition(b"\r\n\r\n")
        if not ended:
            return
        size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(rest) >= size:
            self._data = rest[size:]
            self._transport.write(ANSWER)


async def one_after_another(port: int, ca_file: Path, events: int) -> dict[str, Any]:
    """The plain loop: one client, one connection that is kept, one event at a time."""
    return await _posting(port, ca_file, events, workers=1)


async def side_by_side(port: int, ca_file: Path, events: int) -> dict[str, Any]:
    """The same client with several requests under way."""
    return await _posting(port, ca_file, events, workers=PEER_WORKERS)


async def _posting(port: int, ca_file: Path, events: int, workers: int) -> dict[str, Any]:
    secret, body = new_signing_secret(), event_bytes()
    numbers = iter(range(events))

    async def work(client: httpx.AsyncClient) -> None:
        for number in numbers:
            headers = signed_headers([secret], f"{number}:job.completed", int(time.time()), body)
            answer = await client.post(
                f"https://127.0.0.1:{port}/hook", content=body, headers=kinds | headers
            )
            assert answer.is_success

    kinds = {"Content-Type": "application/json", "User-Agent": USER_AGENT}
    async with _client(ca_file) as client:
        started, used = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work(client) for _ in range(workers)))
        seconds, used = time.perf_counter() - started, time.process_time() - used
    return figures(events, seconds, used)


@contextlib.asynccontextmanager
async def _client(ca_file: Path) -> AsyncIterator[httpx.AsyncClient]:
    trust = ssl.create_default_context(cafile=ca_file)
    async with httpx.AsyncClient(verify=trust, trust_env=False) as client:
        yield client


if __name__ == "__main__":
    main()
