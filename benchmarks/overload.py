"""Three times as much work as the service can do, for minutes: what becomes of it, and after it.

    .venv/bin/python -m benchmarks.overload [--measure 90] [--seconds 300] [--factor 3]
    .venv/bin/python -m benchmarks.overload --hostile [--measure 90]

1. The sustainable rate: jobs completed a second while a few are always waiting. The latency of a
   read meanwhile is the peer of the recovery.
2. ``factor`` times that rate is offered, whether the service keeps up or not, by customers of
   whom each would stay below its own rates. A refusal is final for its job here: nobody comes back.
3. The offer ends: seconds until a read takes as long as before, and until a job is accepted again.
4. 2,000 waiting jobs and 500 open connections: memory of the service before and with them.

Refusals must be 429 or 503 and say when to come again; all that was accepted must complete.

With ``--hostile`` one account does in place of that what would hold up the others, from a process
of its own: it leaves answers unread, drips uploads and lists of buckets, reads 10,000 scenes six
times at once, edits and redacts texts that are laborious to compare, and compares long cuts. What
other accounts do is timed before, meanwhile and after. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.large_job import SEED
from pipelines.vision.fingerprints import COLUMNS, ROWS, Fingerprints
from serve_app.client.api import TERMINAL_STATES
from serve_app.dashboard.access import COOKIE
from storage import keys, ledger
from storage.database import Connection
from tests.acceptance.chaos.clips import Clip, make_clips
from tests.acceptance.chaos.hostile import (
    drip_body,
    dripping_bucket,
    leave_unread,
    requested,
)
from tests.acceptance.service import Service, running
from tests.pipelines.net.fetch_servers import Asked, ScriptedServer, answer
from tests.places import PROJECT

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
    parser.add_argument("--hostile", action="store_true", help="one account against the others")
    parser.add_argument("--each", default="", help=f"its acts alone too, of {','.join(ACTS)}")
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
            made = beside_hostile if options.hostile else measure
            print(json.dumps(made(service, clip, options)))


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


OTHERS = 8
"""Accounts that are timed, one after the other, so that none reaches its own rates."""
UPLOAD_BYTES = 4 * 2**20
PAUSES_SECONDS = {"quota": 0.2, "job": 0.2, "creation": 0.7, "upload": 0.7, "archive": 0.5}
"""Between two of a kind; all kinds go on at once."""
POLL_SECONDS = 0.05
WARM_SECONDS = 10.0
UNREAD_EXPORTS, AUDIT_ENTRIES = 10, 20_000
DRIPPING_UPLOADS, DRIPPING_ARCHIVES, PARALLEL_SCENES = 16, 6, 6
SCENES, SHOTS, SAMPLES_A_SHOT = 10_000, 4_000, 8
LARGE_JOBS = 3
"""One to read and to correct, and two to compare."""
WORDS = 1_700
"""Of an edited segment, which has hardly more milliseconds."""
ACTS = ("unread", "scenes", "edits", "redaction", "comparisons", "uploads", "archives")
"""Of the hostile account."""
UNREAD_FILES = ("scenes", "transcript", "export?format=otio", "transcript?format=srt")
LISTED = (
    b"<ListBucketResult><Contents><Key>notes.exe</Key><Size>9</Size></Contents>"
    b"<IsTruncated>false</IsTruncated></ListBucketResult>"
)
"""No job is created of it: what is timed is the list."""


def beside_hostile(service: Service, clip: Clip, options: argparse.Namespace) -> dict[str, Any]:
    others = Others(service, [new_customer(service) for _ in range(OTHERS)], clip)
    spawning = multiprocessing.get_context("spawn")
    phases = dict[str, dict[str, list[float]]]()
    with (
        ScriptedServer(lambda _, connection: answer(connection, 200, LISTED)).running() as listing,
        ScriptedServer(dripping_bucket).running() as dripping,
    ):
        attack = prepared_attack(service, clip, dripping.url(""))

        def timed(name: str, seconds: float) -> None:
            time.sleep(WARM_SECONDS)
            phases[name] = others.timed(listing.url(""), seconds)
            print(name, {kind: shown(each) for kind, each in phases[name].items()}, flush=True)

        def attacked(name: str, seconds: float, acts: Sequence[str]) -> None:
            over = spawning.Event()
            attacking = spawning.Process(target=attack.run, args=(acts, over), daemon=True)
            attacking.start()
            timed(name, seconds)
            over.set()
            attacking.join(120)

        others.timed(listing.url(""), WARM_SECONDS)
        timed("quiet", options.measure)
        for act in options.each.split(",") if options.each else ():
            attacked(act, options.measure / 2, [act])
        attacked("hostile", options.measure, ACTS)
        timed("quiet after", options.measure / 2)
    after = phases.pop("quiet after")
    quiet = {kind: shown(took + after[kind]) for kind, took in phases.pop("quiet").items()}
    ratios = {
        name: {
            kind: [round(shown(took)[of] / quiet[kind][of], 2) for of in ("median", "p95")]
            for kind, took in phase.items()
        }
        for name, phase in phases.items()
    }
    return {
        "quiet_ms": quiet,
        "hostile_ms": {kind: shown(took) for kind, took in phases["hostile"].items()},
        "ratios_of_median_and_p95": ratios,
        "refused": dict(others.refused),
    }


def shown(seconds: list[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(1000 * each for each in seconds)
    p95 = ordered[int(len(ordered) * 0.95)]
    return {"n": len(ordered), "median": round(statistics.median(ordered), 1), "p95": round(p95, 1)}


class Others:
    """Accounts that use the service as they should."""

    def __init__(self, service: Service, customers: list[Customer], clip: Clip) -> None:
        self.service, self.customers = service, itertools.cycle(customers)
        self.refused: Counter[str] = Counter()
        self.reader = customers[0]
        job_id = submit(self.reader, clip, Outcomes())
        assert job_id is not None
        while state(self.reader, job_id) not in TERMINAL_STATES:
            time.sleep(1)
        self.job_id = job_id
        # A job that waits for its other file too: none of the uploads queues it.
        body = {"fileName": "a.mp4", "fileSizeBytes": UPLOAD_BYTES}
        body["audioFileName"] = "a.wav"
        self.upload_job = self.ask(self.reader, "POST", "/jobs", json=body).json()["data"]
        self.content = os.urandom(UPLOAD_BYTES)

    def ask(self, customer: Customer, method: str, path: str, **more: Any) -> httpx.Response:
        """Raises HTTPStatusError for a refusal, which is counted."""
        headers = customer.headers | more.pop("headers", {})
        answered = customer.http.request(method, path, headers=headers, **more)
        if not answered.is_success:
            self.refused[f"{method} {path.split('/')[1]} {answered.status_code}"] += 1
        return answered.raise_for_status()

    def timed(self, listing: str, seconds: float) -> dict[str, list[float]]:
        """Seconds that each took, by kind."""
        took: dict[str, list[float]] = defaultdict(list)
        end = time.monotonic() + seconds
        kinds: dict[str, Callable[[], None]] = {
            "quota": lambda: self.read("/quota"),
            "job": lambda: self.read(f"/jobs/{self.job_id}"),
            "creation": self.create,
            "upload": self.upload,
            "archive": lambda: self.list_archive(listing),
        }

        def repeat(kind: str) -> None:
            while time.monotonic() < end:
                with contextlib.suppress(httpx.HTTPError):  # It is counted where it was answered.
                    began = time.perf_counter()
                    kinds[kind]()
                    took[kind].append(time.perf_counter() - began)
                time.sleep(PAUSES_SECONDS[kind])

        with ThreadPoolExecutor(len(kinds)) as threads:
            list(threads.map(repeat, kinds))
        return took

    def read(self, path: str) -> None:
        self.ask(self.reader, "GET", path)

    def create(self) -> None:
        customer = next(self.customers)
        body = {"fileName": "a.mp4", "fileSizeBytes": UPLOAD_BYTES}
        job = self.ask(customer, "POST", "/jobs", json=body).json()["data"]
        threading.Thread(
            target=self.ask, args=(customer, "POST", f"/jobs/{job['jobId']}/cancel")
        ).start()

    def upload(self) -> None:
        headers = self.upload_job["uploadHeaders"]
        self.ask(
            self.reader, "PUT", self.upload_job["uploadUrl"], content=self.content, headers=headers
        )

    def list_archive(self, listing: str) -> None:
        customer = next(self.customers)
        body = {"url": "s3://footage/", "bucketAccess": {"endpoint": listing}}
        archive = self.ask(customer, "POST", "/archives", json=body).json()["data"]
        path = f"/archives/{archive['archiveId']}"
        while self.ask(customer, "GET", path).json()["data"]["state"] != "completed":
            time.sleep(POLL_SECONDS)
        threading.Thread(target=self.ask, args=(customer, "DELETE", path)).start()


def prepared_attack(service: Service, clip: Clip, bucket: str) -> Attack:
    """An account with two jobs of 10,000 scenes, another one with a redacted transcript, and as
    many audit entries as weeks of work make."""
    stored = subprocess.run(
        [sys.executable, "-c", SEED, service.database_url, str(SCENES), str(LARGE_JOBS)],
        env=os.environ | {"PYTHONPATH": str(PROJECT)}, cwd=PROJECT,
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    seeded = json.loads(stored.stdout)
    account_id = uuid.UUID(seeded["accountId"])

    async def grant(connection: Connection) -> None:
        await ledger.grant(connection, account_id, 10**7, "credits")

    service.transact(grant)
    cuts = seeded["jobIds"][1:]
    # Without words: there are more than are compared.
    service.query("DELETE FROM transcripts WHERE job_id::text = ANY(%s) RETURNING 1", cuts)
    for number, job_id in enumerate(cuts):
        service.query(
            "UPDATE scene_lists SET fingerprints = %s WHERE job_id = %s RETURNING 1",
            long_cut(number).to_bytes(), job_id,
        )  # fmt: skip
    service.query(
        "INSERT INTO audit_log (account_id, action, target, request_id)"
        " SELECT %s, 'createKey', n::text, 'req_' || n FROM generate_series(1, %s) AS n"
        " RETURNING 1",
        account_id, AUDIT_ENTRIES,
    )  # fmt: skip
    with httpx.Client(base_url=service.root, trust_env=False, timeout=60) as browser:
        browser.post("/dashboard/sign-in", data={"token": seeded["link"]})
        session = browser.cookies[COOKIE]
    customer = Customer(seeded["key"], httpx.Client(base_url=service.base_url, timeout=60))
    spoken = submit(customer, clip, Outcomes())
    assert spoken is not None
    while state(customer, spoken) not in TERMINAL_STATES:
        time.sleep(1)
    redacting = {"kinds": ["email"]}
    customer.http.post(
        f"/jobs/{spoken}/redact", json=redacting, headers=customer.headers
    ).raise_for_status()
    body = {"fileName": "a.mp4", "fileSizeBytes": UPLOAD_BYTES}
    uploads = [
        customer.http.post("/jobs", json=body, headers=customer.headers).json()["data"]
        for _ in range(DRIPPING_UPLOADS)
    ]
    return Attack(
        service.base_url, seeded["key"], session, seeded["jobIds"], spoken, uploads, bucket
    )


def long_cut(seed: int) -> Fingerprints:
    """Shots of noise: none is like another, so that all are compared."""
    random, samples = np.random.default_rng(seed), SHOTS * SAMPLES_A_SHOT
    edges = np.arange(SHOTS + 1, dtype=np.int64) * 3600
    counts = np.full(SHOTS, SAMPLES_A_SHOT, np.int64)
    times = np.repeat(edges[:-1], SAMPLES_A_SHOT) + np.tile(
        np.arange(SAMPLES_A_SHOT, dtype=np.int64) * 900, SHOTS
    )
    pictures = random.integers(0, 16, (samples, ROWS, COLUMNS), np.uint8)
    return Fingerprints(edges[:-1], edges[1:], counts, times, np.zeros(samples, np.bool_), pictures)


@dataclass(frozen=True)
class Attack:
    """All that one account does at once, again and again; what is refused, it asks for again."""

    base_url: str
    key: str
    session: str
    large_jobs: list[str]
    spoken_job: str
    """Its transcript is redacted."""
    upload_jobs: list[Any]
    bucket: str

    def run(self, chosen: Sequence[str], over: threading.Event) -> None:
        """Until ``over``; after everything else, as other machines' processors would be."""
        os.nice(19)
        job = f"{self.base_url}/jobs/{self.large_jobs[0]}"
        export = f"{self.base_url.removesuffix('/v1/api')}/dashboard/audit/export"
        cookie = {"Cookie": f"{COOKIE}={self.session}"}
        unread = functools.partial(leave_unread, over=over)
        acts: list[Callable[[], object]] = []
        if "unread" in chosen:
            acts += [lambda: unread(export, cookie)] * UNREAD_EXPORTS
            acts += [functools.partial(unread, f"{job}/{path}", self._key) for path in UNREAD_FILES]
        if "scenes" in chosen:
            acts += [functools.partial(read_all, f"{job}/scenes", self._key)] * PARALLEL_SCENES
        if "edits" in chosen:
            texts = ["a b " * (WORDS // 2), "a c " * (WORDS // 2)]
            acts.append(functools.partial(self.edit, self.large_jobs[0], texts))
        if "redaction" in chosen:
            texts = ["a.a.a. " * 1400, "a.a.b. " * 1400]
            acts.append(functools.partial(self.edit, self.spoken_job, texts))
        if "comparisons" in chosen:
            _, one, other = self.large_jobs
            acts += [
                functools.partial(self.compare, *pair, over=over)
                for pair in ((one, other), (other, one))
            ]
        if "uploads" in chosen:
            acts += [
                functools.partial(self.drip, job, number % 2 == 0, over)
                for number, job in enumerate(self.upload_jobs)
            ]
        for _ in range(DRIPPING_ARCHIVES if "archives" in chosen else 0):
            body = {"url": "s3://footage/", "bucketAccess": {"endpoint": self.bucket}}
            self._ask("POST", "/archives", json=body)
        answers: Counter[str] = Counter()

        def repeat(act: Callable[[], object]) -> None:
            while not over.is_set():
                try:
                    answered = act()
                except (httpx.HTTPError, OSError) as error:
                    answered = type(error).__name__
                if isinstance(answered, str):
                    answers[answered] += 1
                over.wait(0.2)

        with ThreadPoolExecutor(max(1, len(acts))) as threads:
            list(threads.map(repeat, acts))
        over.wait()
        print("of the hostile account:", dict(answers), flush=True)

    @property
    def _key(self) -> dict[str, str]:
        return {"X-API-Key": self.key}

    @functools.cached_property
    def _http(self) -> httpx.Client:
        limits = httpx.Limits(max_connections=None)
        return httpx.Client(headers=self._key, timeout=120, trust_env=False, limits=limits)

    def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self._http.request(method, f"{self.base_url}{path}", **more)

    def drip(self, job: dict[str, Any], whole: bool, over: threading.Event) -> None:
        """By PUT or by tus."""
        if whole:
            drip_body("PUT", job["uploadUrl"], job["uploadHeaders"], UPLOAD_BYTES, over)
            return
        tus = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
        asked = self._http.head(job["resumableUploadUrl"], headers=tus)
        offset = int(asked.headers.get("upload-offset", 0))
        headers = tus | {"Upload-Offset": str(offset)}
        drip_body("PATCH", job["resumableUploadUrl"], headers, UPLOAD_BYTES - offset, over)

    def edit(self, job_id: str, texts: list[str]) -> str:
        """Its first segment, which is the other text then."""
        path = f"/jobs/{job_id}/transcript"
        read = self._ask("GET", f"{path}/revisions?limit=1")
        if not read.is_success:
            return f"revisions {read.status_code}"
        revision = read.json()["data"]["revisions"][0]["revision"]
        body = {"segments": [{"index": 0, "text": texts[revision % 2]}], "revision": revision}
        answered = self._ask("PATCH", path, json=body)
        return f"edit {answered.status_code} {'' if answered.is_success else answered.text[:150]}"

    def compare(self, first: str, second: str, over: threading.Event) -> str:
        """Ask for it until it is made."""
        made = self._ask("POST", "/comparisons", json={"from": first, "to": second})
        if not made.is_success:
            return f"comparison {made.status_code}"
        path = f"/comparisons/{made.json()['data']['comparisonId']}"
        while (shown := self._ask("GET", path)).is_success and not over.is_set():
            if (state := shown.json()["data"]["state"]) != "pending":
                return f"comparison {state} {shown.json()['data'].get('error', '')}"
            over.wait(2)
        return f"comparison {shown.status_code}"


def read_all(url: str, headers: dict[str, str]) -> str:
    """As fast as it comes."""
    with requested("GET", url, headers) as connection:
        first = connection.recv(65_536)
        while connection.recv(65_536):
            pass
        return f"scenes {first[9:12].decode()}"


if __name__ == "__main__":
    main()
