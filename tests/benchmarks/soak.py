"""Does memory grow with work done? Many jobs on one service; each process measured three times.

    .venv/bin/python -m tests.benchmarks.soak [--jobs 500] [--at-once 4] [--warm-up 40]

Short clips of the demo video, from upload to read results, with cancellations and lists between
them. Memory is measured in rests, when no job runs: after the warm-up, in the middle and at the
end, the lowest of several readings each time. It is the proportional share (PSS), so that pages
of several processes are counted once; for PostgreSQL what is its own (USS), because its shared
buffers fill up to their fixed size by design. The service after its warm-up is the peer of the
same service at the end. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from serve_app.client.api import ApiClient, RequestFailedError
from tests.acceptance.chaos.clips import Clip, make_clips
from tests.acceptance.service import Service, running

READINGS = 6
READING_PAUSE_SECONDS = 5.0
CANCELLED_OF = 10
"""One job of so many is cancelled soon after its upload."""

ROLES = (
    ("api", "ServeReplica:vas:Api"),
    ("runner", "ServeReplica:vas:Runner"),
    ("sender", "ServeReplica:vas:WebhookSender"),
    ("transcriber", "ServeReplica:vas:Transcriber"),
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
)
"""Role of the first title that a process has; the rest are ``others``."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--warm-up", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vas-bench-") as name:
        folder = Path(name)
        clips = list(make_clips(folder / "clips").values())
        environment = {
            "VAS_SOURCE_RETENTION_SECONDS": "5",
            "VAS_MODEL_REPLICAS": '{"transcribe": 1}',
        }
        with running(folder / "data", folder / "service.log", **environment) as service:
            print(json.dumps(soak(service, clips, options)))


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


Memory = dict[str, list[int]]
"""Role to the bytes of each of its processes."""


def at_rest(service: Service) -> Memory:
    """The lowest of several readings of each role while nothing runs."""
    lowest: Memory = {}
    for _ in range(READINGS):
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
