"""Does memory grow with work done? Many jobs on one service; each process measured three times.

    .venv/bin/python -m benchmarks.soak [--jobs 500] [--concurrency 4] [--warm-up 40]
    .venv/bin/python -m benchmarks.soak --operations [--times 500] [--warm-up 40]

Short clips of the demo video, from upload to read results, with cancellations and lists between
them; or, with ``--operations``, each operation of the API, page of the dashboard and tool of MCP so
many times on two jobs that have ended. Memory is measured in rests, when nothing runs: after the
warm-up, in the middle and at the end, the lowest of several readings each time. It is the
proportional share (PSS), so that pages of several processes are counted once; for PostgreSQL what
is its own (USS), because its shared buffers fill up to their fixed size by design. The service
after its warm-up is the peer of the same service at the end. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
from anyio.from_thread import start_blocking_portal

from serve_app.api.authentication import Auth
from serve_app.client.api import ApiClient, RequestFailedError
from serve_app.dashboard.access import COOKIE
from serve_app.exports.routes import ExportFormat
from storage import keys
from tests.acceptance.chaos.clips import Clip, make_clips
from tests.acceptance.service import Service, running
from tests.places import DEMO
from tests.serve_app.interface_contract import OPERATIONS
from tests.serve_app.test_mcp import call, over_stdio

READINGS = 6
READING_PAUSE_SECONDS = 5.0
CANCELLED_OF = 10
"""One job of so many is cancelled soon after its upload."""

NOT_MADE = {"listAudioTracks", "getAudioTrack", "getSummary", "getPeople", "getKeysPortal"}
"""What the account and jobs of ``--operations`` do not have: what is repeated is the 404."""

ROLES = (
    ("api", "ServeReplica:vas:Api"),
    ("transcriber", "ray::ModelReplica"),
    ("serve controller", "ServeController"),
    ("serve proxy", "ProxyActor"),
    ("serve proxy", "HAProxyManager"),
    ("haproxy", "haproxy.cfg"),
    ("postgres", "postgres"),
    ("ray raylet", "raylet/raylet"),
    ("ray gcs", "gcs_server"),
    ("ray workers", "ray::"),
    ("ray others", "ray/"),
    ("vas serve", "serve_app serve"),
    ("vas mcp", "mcp"),
)
"""Role of the first title that a process has; the rest are ``others``."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--warm-up", type=int, default=40)
    parser.add_argument("--operations", action="store_true", help="operations in place of jobs")
    parser.add_argument("--times", type=int, default=500, help="of each operation")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vas-bench-") as name:
        folder = Path(name)
        clips = list(make_clips(folder / "clips").values())
        environment = {
            "VAS_SOURCE_RETENTION_SECONDS": "3600" if options.operations else "5",
            "VAS_MODEL_REPLICAS": '{"transcribe": 1}',
            "VAS_ALLOWED_NETWORKS": '["127.0.0.0/8"]',
        }
        with running(folder / "data", folder / "service.log", **environment) as service:
            made = operations if options.operations else soak
            print(json.dumps(made(service, clips, options)))


def soak(service: Service, clips: list[Clip], options: argparse.Namespace) -> dict[str, Any]:
    """Warm up, then work in two halves with a measurement after each."""
    ends: Counter[str] = Counter()
    warmed = work(service, clips, options.warm_up, options.concurrency)
    memory = [at_rest(service)]
    began = time.monotonic()
    for share in (options.jobs // 2, options.jobs - options.jobs // 2):
        ends += work(service, clips, share, options.concurrency)
        memory.append(at_rest(service))
        print(f"{sum(ends.values())} jobs, {time.monotonic() - began:.0f} s: {ends}", flush=True)
    return {
        "warm_up_jobs": sum(warmed.values()),
        "jobs": sum(ends.values()),
        "ends": dict(ends),
        "seconds": round(time.monotonic() - began),
        "memory_mib": compared(memory),
        "left_objects": sum(1 for _ in (service.data / "objects").rglob("*.m*")),
    }


def work(service: Service, clips: list[Clip], count: int, concurrency: int) -> Counter[str]:
    """``count`` jobs, so many at once; how they ended."""
    pace = Pace(per_minute=28)

    def one(number: int) -> str:
        with ApiClient(service.base_url, service.api_key) as client:
            pace.wait()
            return drive(client, clips[number % len(clips)], cancels=number % CANCELLED_OF == 7)

    with ThreadPoolExecutor(concurrency) as threads:
        return Counter(threads.map(one, range(count)))


class Pace:
    """Keeps an account below its rate of creations, which is not what is measured here."""

    def __init__(self, per_minute: int) -> None:
        self._between = 60 / per_minute
        self._next = time.monotonic()
        self._lock = threading.Lock()

    def wait(self) -> None:
        with self._lock:
            now = time.monotonic()
            due = max(now, self._next)
            self._next = due + self._between
        time.sleep(due - now)


def drive(client: ApiClient, clip: Clip, *, cancels: bool) -> str:
    """One job from its creation to its results; its state at the end."""
    job = client.create_job(clip.path.name, len(clip.data))
    client.upload(clip.path, job["uploadUrl"], job["uploadHeaders"])
    if cancels:
        with contextlib.suppress(RequestFailedError):
            client.cancel(job["jobId"])
    state = str(client.wait(job["jobId"], timeout_seconds=300)["state"])
    if state == "completed":
        client.get_scenes(job["jobId"])
        client.get_transcript(job["jobId"], "srt")
    return state


def operations(service: Service, clips: list[Clip], options: argparse.Namespace) -> dict[str, Any]:
    """Each operation so many times, and what each process has grown by then."""
    times = f"{options.times} times"
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=120))
        threads = stack.enter_context(ThreadPoolExecutor(options.concurrency))
        stack.enter_context(unlimited(service))
        jobs = two_jobs(service, clips)
        calls = calls_of(service, client, *jobs) | stack.enter_context(tools(service, jobs[0]))
        for call in calls.values():
            list(threads.map(lambda _, call=call: call(), range(options.warm_up)))
        memory = [at_rest(service)]
        grown: dict[str, dict[str, float]] = {}
        after = memory[0]
        for number, (name, call) in enumerate(calls.items()):
            before, began = after, time.monotonic()
            list(threads.map(lambda _, call=call: call(), range(options.times)))
            seconds, after = time.monotonic() - began, at_rest(service, 1)
            grown[name] = {
                role: round(100 * (sum(sizes) / sum(before[role]) - 1), 1)
                for role, sizes in after.items()
                if sum(before.get(role, []))
            }
            api_mib = round(sum(after["api"]) / 2**20, 1)
            print(f"{name}: {times} in {seconds:.0f} s, API {api_mib} MiB", grown[name], flush=True)
            if number == len(calls) // 2:
                memory.append(at_rest(service))
        memory.append(at_rest(service))
    worst = sorted(
        ((percent, role, name) for name, own in grown.items() for role, percent in own.items()),
        reverse=True,
    )
    return {
        "operations": len(calls),
        "times": options.times,
        "most_growth_percent": worst[:12],
        "memory_mib": compared(memory),
    }


def two_jobs(service: Service, clips: list[Clip]) -> list[str]:
    """Completed ones, the demo video and a piece of it."""
    jobs = [service.submit(path) for path in (DEMO, clips[0].path)]
    for job in jobs:
        service.completed(job)
    return jobs


def calls_of(
    service: Service, client: httpx.Client, first: str, second: str
) -> dict[str, Callable[[], object]]:
    """All that may be repeated on jobs that have ended, by what the interface document calls it."""
    [(account,)] = service.query("SELECT account_id FROM jobs LIMIT 1")

    def ask(
        method: str,
        path: str,
        body: object = None,
        *,
        missing: bool = False,
        token: str = service.api_key,
    ) -> Any:
        headers = {"Authorization": f"Bearer {token}"}
        answer = client.request(method, f"{service.base_url}{path}", headers=headers, json=body)
        expected = answer.status_code == 404 if missing else answer.is_success
        assert expected, (method, path, answer.status_code, answer.text)
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer

    def sign_in() -> str:
        link = service.transact(lambda c: keys.create_sign_in_link(c, account))
        return str(ask("POST", "/sessions", {"token": link})["data"]["session"])

    session = sign_in()
    # Nothing is delivered to it: no job of these fails.
    hook = {"url": "https://127.0.0.1:9/hook", "events": ["job.failed"]}
    endpoint = ask("POST", "/webhooks/endpoints", hook)["data"]
    named = {"jobId": first, "trackIndex": "0", "endpointId": endpoint["id"]}
    queries = {
        "search": [f"q=film&kinds={kind}" for kind in ("transcript", "scene", "text", "object")],
        "exportJob": [f"format={each}" for each in ExportFormat],
        "getTranscript": [f"format={each}" for each in ("json", "srt", "vtt", "ttml", "txt", "md")],
        "lintCaptions": ["rules=bbc"],
        "getClip": ["start=0&end=1"],
        "estimatePrice": ["durationSeconds=3600"],
    }
    calls: dict[str, Callable[[], object]] = {}
    for each in OPERATIONS:
        asked = set(re.findall(r"{(\w+)}", each.path))
        if each.method == "GET" and asked <= named.keys():
            for query in queries.get(each.operation_id, [""]):
                path = each.path.format(**named) + (f"?{query}" if query else "")
                calls[f"{each.operation_id} {query}".strip()] = partial(
                    ask,
                    "GET",
                    path,
                    missing=each.operation_id in NOT_MADE,
                    token=session if each.auth is Auth.SESSION else service.api_key,
                )

    def create() -> None:
        made = ask("POST", "/jobs", {"fileName": "a.mp4", "fileSizeBytes": 1000})["data"]
        ask("POST", f"/jobs/{made['jobId']}/cancel")

    def subscribe() -> None:
        made = ask("POST", "/webhooks/endpoints", hook)["data"]
        ask("DELETE", f"/webhooks/endpoints/{made['id']}")

    def edit() -> None:
        with one_at_a_time:
            track = ask("GET", f"/jobs/{first}/transcript")["data"]
            segment = {"index": 0, "text": f"{track['segments'][0]['text']}"}
            body = {"revision": track["revision"], "trackIndex": 0, "segments": [segment]}
            ask("PATCH", f"/jobs/{first}/transcript", body)

    one_at_a_time = threading.Lock()
    calls |= {
        "createJob, cancelJob": create,
        "createWebhookEndpoint, deleteWebhookEndpoint": subscribe,
        "editTranscript": edit,
        "compareJobs": partial(ask, "POST", "/comparisons", {"from": first, "to": second}),
        "createSession": sign_in,
    }
    client.cookies.set(COOKIE, session)

    def page(path: str) -> None:
        shown = client.get(f"{service.root}/dashboard{path}")
        assert shown.status_code == 200, (path, shown.text)

    paths = [f"/jobs/{first}{part}" for part in ("", "/captions", "/changes", "/scenes")]
    paths += ["", "/search?q=film", f"/compare?from={first}&to={second}", "/account", "/keys"]
    for path in [*paths, "/archives", "/people", "/audit", "/audit/export"]:
        calls[f"page {path.replace(first, 'JOB').replace(second, 'OTHER')}"] = partial(page, path)
    return calls


@contextlib.contextmanager
def tools(service: Service, job_id: str) -> Iterator[dict[str, Callable[[], object]]]:
    """Tools of ``vas mcp``, which is a process of its own beside the service."""
    asked: dict[str, dict[str, object]] = {
        "search": {"query": "film"},
        "read_transcript": {"job_id": job_id},
        "list_scenes": {"job_id": job_id},
        "list_chapters": {"job_id": job_id},
        "list_duplicates": {"job_id": job_id},
        "get_job": {"job_id": job_id},
        "list_jobs": {},
    }
    with start_blocking_portal() as portal:
        client = over_stdio(service.base_url, service.api_key)
        with portal.wrap_async_context_manager(client) as session:
            yield {
                f"tool {name}": partial(portal.call, partial(call, session, name, **arguments))
                for name, arguments in asked.items()
            }


@contextlib.contextmanager
def unlimited(service: Service) -> Iterator[None]:
    """No account runs into its rate of requests within the block."""
    over = threading.Event()

    def forget() -> None:
        while not over.wait(0.1):
            service.query("DELETE FROM rate_limits RETURNING 1")

    thread = threading.Thread(target=forget)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


Memory = dict[str, list[int]]
"""Role to the bytes of each of its processes."""


def at_rest(service: Service, readings: int = READINGS) -> Memory:
    """The lowest of several readings of each role while nothing runs."""
    lowest: Memory = {}
    for _ in range(readings):
        time.sleep(READING_PAUSE_SECONDS)
        for role, sizes in read(service).items():
            if role not in lowest or sum(sizes) < sum(lowest[role]):
                lowest[role] = sizes
    return lowest


def read(service: Service) -> Memory:
    """Bytes of all processes of the service, PostgreSQL's included, now."""
    found: Memory = defaultdict(list)
    for process in all_processes(service):
        with contextlib.suppress(psutil.Error):
            role = role_of(process)
            memory = process.memory_full_info()
            found[role].append(memory.uss if role == "postgres" else memory.pss)
    return dict(found)


def all_processes(service: Service) -> Iterator[psutil.Process]:
    """PostgreSQL's may have left its parent."""
    processes = {process.pid: process for process in service.processes()}
    pid = int((service.data / "postgres" / "postmaster.pid").read_text().split()[0])
    postmaster = psutil.Process(pid)
    processes |= {it.pid: it for it in (postmaster, *postmaster.children(recursive=True))}
    processes |= {it.pid: it for it in psutil.Process().children() if "mcp" in it.cmdline()}
    yield from processes.values()


def role_of(process: psutil.Process) -> str:
    title = f"{process.name()} {' '.join(process.cmdline())}"
    return next((role for role, part in ROLES if part in title), "others")


def compared(memory: list[Memory]) -> dict[str, Any]:
    """Each role's memory at start, middle and end; of pools the mean of a process too."""
    table = {}
    for role in sorted(set().union(*memory)):
        sizes = [reading.get(role, []) for reading in memory]
        table[role] = row([sum(each) for each in sizes]) | {
            "processes": [len(each) for each in sizes]
        }
    table["all"] = row([sum(map(sum, reading.values())) for reading in memory])
    return table


def row(totals: list[int]) -> dict[str, Any]:
    start, middle, end = (round(total / 2**20, 1) for total in totals)
    growth = round(100 * (totals[2] / totals[0] - 1), 1) if totals[0] else None
    return {"start": start, "middle": middle, "end": end, "growth_percent": growth}


if __name__ == "__main__":
    main()
