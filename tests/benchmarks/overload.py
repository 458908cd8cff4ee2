"""Three times as much work as the service can do, for minutes: what becomes of it, and after it.

    .venv/bin/python -m tests.benchmarks.overload [--measure 90] [--seconds 300] [--factor 3]

1. The sustainable rate: jobs completed a second while a few are always waiting. The latency of a
   read meanwhile is the peer of the recovery.
2. ``factor`` times that rate is offered, whether the service keeps up or not, by customers of
   whom each would stay below its own rates. A refusal is final for its job here: nobody comes back.
3. The offer ends: seconds until a read takes as long as before, and until a job is accepted again.
4. 2,000 waiting jobs and 500 open connections: memory of the service before and with them.

Refusals must be 429 or 503 and say when to come again; all that was accepted must complete. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from serve_app.client.api import TERMINAL_STATES
from storage import keys, ledger
from storage.database import Connection
from tests.acceptance.chaos.clips import Clip, make_clips
from tests.acceptance.service import Service, running
from tests.pipelines.net.fetch_servers import Asked, ScriptedServer

CUSTOMERS = 4
ACTIVE_JOBS = 30
"""Most unfinished jobs of a customer: what is accepted under overload is done in minutes."""
WAITING = 3
READ_SECONDS = 0.25
RECOVERED = 1.5
"""A read that takes no longer than so many times its latency under sustainable load."""
RECOVERY_READS = 8
QUEUED_JOBS, OPEN_CONNECTIONS = 2000, 500
END_SECONDS = 1500.0


@dataclass(slots=True)
class Customer:
    """An account with a key, and its connections."""

    key: str
    http: httpx.Client

    @property
    def headers(self) -> dict[str, str]:
        return {"X-API-Key": self.key}


@dataclass(slots=True)
class Outcomes:
    """What was answered, from any thread."""

    accepted: list[tuple[Customer, str]] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Refusals that are none, or that do not say when to come again."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, answer: httpx.Response) -> bool:
        """Whether it was accepted."""
        code = "" if answer.is_success else f" {answer.json().get('code')}"
        with self.lock:
            self.answers[f"{answer.status_code}{code}"] += 1
            refused = answer.status_code in {429, 503}
            told = answer.headers.get("retry-after", "").isdigit()
            if not answer.is_success and not (refused and told):
                self.wrong.append(f"{answer.status_code} {answer.text[:200]}")
        return answer.is_success


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", type=float, default=90)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--factor", type=float, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vas-bench-") as name:
        folder = Path(name)
        clip = make_clips(folder / "clips")["opening"]
        environment = {
            "VAS_ALLOWED_NETWORKS": '["127.0.0.0/8"]',
            "VAS_SOURCE_RETENTION_SECONDS": "5",
            "VAS_MAX_ACTIVE_JOBS": str(ACTIVE_JOBS),
        }
        with running(folder / "data", folder / "service.log", **environment) as service:
            print(json.dumps(measure(service, clip, options)))


def measure(service: Service, clip: Clip, options: argparse.Namespace) -> dict[str, Any]:
    customers = [new_customer(service) for _ in range(CUSTOMERS)]
    reader = Reader(service, new_customer(service))
    rate = sustainable(service, customers[0], clip, options.measure, reader)
    normal = statistics.median(reader.latencies)
    offered = overload(customers, clip, rate * options.factor, options.seconds)
    recovery = recovered(reader, customers, clip, normal)
    ends, seconds = all_ended(offered)
    return {
        "sustainable_jobs_per_minute": round(rate * 60, 1),
        "offered_jobs_per_minute": round(rate * options.factor * 60, 1),
        "seconds": options.seconds,
        "offered": sum(offered.answers.values()),
        "answers": dict(offered.answers),
        "wrong_refusals": offered.wrong[:10],
        "accepted": len(offered.accepted),
        "accepted_ends": dict(ends),
        "seconds_until_all_accepted_had_ended": round(seconds),
        "read_ms_normal": round(normal * 1000, 1),
        **recovery,
        "memory": waiting_jobs(service),
    }


def new_customer(service: Service, max_active_jobs: int | None = None) -> Customer:
    async def create(connection: Connection) -> str:
        account = await keys.create_account(connection, f"customer-{time.monotonic_ns()}")
        await ledger.grant(connection, account.id, 10**7, "credits")
        if max_active_jobs is not None:
            await keys.set_limits(connection, account.id, max_active_jobs=max_active_jobs)
        return (await keys.create_key(connection, account.id)).secret

    http = httpx.Client(base_url=service.base_url, timeout=60, trust_env=False)
    return Customer(service.transact(create), http)


@dataclass(slots=True)
class Reader:
    """Reads one thing again and again, and knows how long it took."""

    service: Service
    customer: Customer
    latencies: list[float] = field(default_factory=list)

    def read(self) -> float:
        began = time.perf_counter()
        self.customer.http.get("/quota", headers=self.customer.headers).raise_for_status()
        return time.perf_counter() - began

    def for_seconds(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.latencies.append(self.read())
            time.sleep(READ_SECONDS)


def submit(customer: Customer, clip: Clip, outcomes: Outcomes) -> str | None:
    """Create a job and upload its media; None where it was refused."""
    body = {"fileName": clip.path.name, "fileSizeBytes": len(clip.data)}
    answer = customer.http.post("/jobs", json=body, headers=customer.headers)
    if not outcomes.note(answer):
        return None
    job = answer.json()["data"]
    for _ in range(20):
        put = customer.http.put(job["uploadUrl"], content=clip.data, headers=job["uploadHeaders"])
        if put.is_success:
            break
        time.sleep(float(put.headers.get("retry-after", "1")))
    job_id: str = job["jobId"]
    with outcomes.lock:
        outcomes.accepted.append((customer, job_id))
    return job_id


def state(customer: Customer, job_id: str) -> str:
    while True:
        answer = customer.http.get(f"/jobs/{job_id}?include=none", headers=customer.headers)
        if answer.is_success:
            return str(answer.json()["data"]["state"])
        time.sleep(float(answer.headers.get("retry-after", "1")))


def sustainable(
    service: Service, customer: Customer, clip: Clip, seconds: float, reader: Reader
) -> float:
    """Jobs a second, with the runner's slots full and a few jobs waiting; the first ones warm up.

    The account's rate of creations is forgotten again and again: the machine is measured.
    """
    outcomes, done = Outcomes(), 0
    under_way: list[str] = []
    began = warm_until = time.monotonic() + seconds / 3
    reading = threading.Timer(seconds / 3, reader.for_seconds, [seconds * 2 / 3])
    reading.start()
    while (now := time.monotonic()) < warm_until + seconds * 2 / 3:
        service.query("DELETE FROM rate_limits WHERE bucket NOT LIKE 'ip:%%' RETURNING 1")
        while len(under_way) < 2 + WAITING:
            job_id = submit(customer, clip, outcomes)
            if job_id is not None:
                under_way.append(job_id)
        ended = [job_id for job_id in under_way if state(customer, job_id) in TERMINAL_STATES]
        under_way = [job_id for job_id in under_way if job_id not in ended]
        done += len(ended) if now >= warm_until else 0
        time.sleep(0.3)
    rate = done / (time.monotonic() - began)
    reading.join()
    while any(state(customer, job_id) not in TERMINAL_STATES for job_id in under_way):
        time.sleep(0.5)
    return rate


def overload(customers: list[Customer], clip: Clip, rate: float, seconds: float) -> Outcomes:
    """Offer ``rate`` jobs a second, each in time, however long the answers take."""
    outcomes, began = Outcomes(), time.monotonic()
    with ThreadPoolExecutor(64) as threads:
        for number in range(round(rate * seconds)):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            threads.submit(submit, customers[number % len(customers)], clip, outcomes)
    return outcomes


def recovered(
    reader: Reader, customers: list[Customer], clip: Clip, normal: float
) -> dict[str, Any]:
    """Seconds from the end of the offer until reads are as fast as before, and jobs accepted."""
    began, last = time.monotonic(), [reader.read()]
    reads_after = None
    while reads_after is None and time.monotonic() < began + 120:
        last = [*last, reader.read()][-RECOVERY_READS:]
        if len(last) == RECOVERY_READS and statistics.median(last) <= RECOVERED * normal:
            reads_after = time.monotonic() - began
        time.sleep(READ_SECONDS)
    outcomes, accepted_after = Outcomes(), None
    while accepted_after is None and time.monotonic() < began + 300:
        if any(submit(customer, clip, outcomes) for customer in customers):
            accepted_after = time.monotonic() - began
        time.sleep(1)
    return {
        "read_ms_after": round(statistics.median(last) * 1000, 1),
        "reads_recovered_after_seconds": None if reads_after is None else round(reads_after, 1),
        "accepts_again_after_seconds": None if accepted_after is None else round(accepted_after, 1),
    }


def all_ended(offered: Outcomes) -> tuple[Counter[str], float]:
    """How all that was accepted has ended, and how long that took."""
    began, left, ends = time.monotonic(), list(offered.accepted), Counter[str]()
    while left and time.monotonic() < began + END_SECONDS:
        customer, job_id = left[0]
        now = state(customer, job_id)
        if now in TERMINAL_STATES:
            ends[now] += 1
            left.pop(0)
        else:
            time.sleep(0.5)
    if left:
        ends["not ended"] = len(left)
    return ends, time.monotonic() - began


def waiting_jobs(service: Service) -> dict[str, Any]:
    """Memory with thousands of jobs in the queue and hundreds of connections, and without."""
    customer = new_customer(service, max_active_jobs=100_000)
    before = service.resident_bytes()
    with ScriptedServer(silent).running() as nowhere:
        url = nowhere.url()
        for _ in range(QUEUED_JOBS // 100):
            clips = [{"sourceUrl": url} for _ in range(100)]
            body = {"mode": "independent", "clips": clips}
            answer = customer.http.post("/jobs/batch", json=body, headers=customer.headers)
            answer.raise_for_status()
        queued = service.resident_bytes()
        with open_connections(service) as answered:
            connected = service.resident_bytes()
        [(waiting,)] = service.query("SELECT count(*) FROM jobs WHERE state = 'queued'")
    mib = [round(each / 2**20) for each in (before, queued, connected)]
    return {
        "queued_jobs": waiting,
        "open_connections": OPEN_CONNECTIONS,
        "connections_answered": answered,
        "mib_before": mib[0],
        "mib_with_queue": mib[1],
        "mib_with_queue_and_connections": mib[2],
        "growth_percent": round(100 * (connected / before - 1), 1),
    }


def silent(_asked: Asked, connection: socket.socket) -> None:
    """Takes the request and sends nothing: the runner's slots are busy, the queue stands."""
    connection.settimeout(20)
    with contextlib.suppress(OSError):
        connection.recv(1)


@contextlib.contextmanager
def open_connections(service: Service) -> Iterator[int]:
    """Many clients that each have asked something and stay; yields how many were answered."""
    request = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port), 30))
            for _ in range(OPEN_CONNECTIONS)
        ]
        for connection in connections:
            connection.sendall(request)
        yield sum(b" 200 " in connection.recv(4096) for connection in connections)


if __name__ == "__main__":
    main()
