"""A job of 10,000 scenes and 20,000 segments in a running service: page, files, health, memory.

    python -m benchmarks.large_job [--rounds 1] [--scenes 10000] [--old CHECKOUT PYTHON]

Each round starts ``vas serve`` of each checkout in turn, stores the job in its database and reads,
as one customer: the dashboard's page of the job, what its scripts read with it, the parts that come
into view later, eight pages with their scripts at once, every export and every form of the
transcript, each twice (``--pages``: pages only). Of each: seconds,
processor seconds of the API's replica, bytes, statuses, and the slowest of the health checks that
are made ten times a second beside it. The replica's memory is its highest since the job was stored.
Any answer but 200 is counted in ``refused``. One JSON line last, medians of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import psutil

from serve_app.deployment.local import free_port
from tests.places import PROJECT

PAGES_AT_ONCE = 8
EXPORTS = ("edl", "otio", "fcpxml", "csv", "ffmetadata", "youtube", "webvtt-chapters")
TRANSCRIPTS = ("json", "srt", "vtt", "ttml", "ebu-tt-d", "ass", "txt", "md", "csv")
MOST_PARTS = 300
"""Half of what a customer may read in a minute."""
STOP_SECONDS = 120
_PART = re.compile(r'<a rel="next" href="(/dashboard/jobs/[^"]+)"')
_HEALTH_PAUSE_SECONDS = 0.1

SEED = """
import asyncio, json, sys, uuid
from sqlalchemy import text
from storage import keys
from storage.database import Database
from storage.job_records import JobSource
from storage.jobs import ImportedJob, import_job
from storage.results import TrackTranscript
from storage.types import ProcessingMode, StageStatus

database_url, scene_count, *job_count = sys.argv[1], *map(int, sys.argv[2:])
HOURS_SECONDS, job_ids = 10 * 3600, [uuid.uuid4() for _ in range(*job_count or [1])]
each = HOURS_SECONDS / scene_count
scenes = [
    {"index": n, "start_ms": round(n * each * 1000), "end_ms": round((n + 1) * each * 1000),
     "description": f"A person speaks to the camera in scene {n}.", "objects": ["face", "text"],
     "color_palette": ["#e8e2d6", "#6b4f3a", "#2f3a40"], "shot_type": "medium",
     "shot_angle": "eye_level", "camera_motion": "static", "confidence": 0.9,
     "thumbnail_key": f"jobs/{job_ids[0]}/work/vision/{n}.jpg",
     "object_tracks": [{"label": "face", "start_ms": round(n * each * 1000),
                        "end_ms": round((n + 1) * each * 1000), "confidence": 0.8}]}
    for n in range(scene_count)
]
spoken = HOURS_SECONDS / (2 * scene_count)
segments = []
for n in range(2 * scene_count):
    words = [
        {"text": f"word{n % 997}{'abcdefgh'[k]}", "start_ms": round((n + k / 8) * spoken * 1000),
         "end_ms": round((n + (k + 0.9) / 8) * spoken * 1000), "confidence": 0.9,
         "speaker": f"speaker_{n // 5 % 2}"}
        for k in range(8)
    ]
    words[-1]["text"] += "."
    segments.append(
        {"index": n, "start_ms": words[0]["start_ms"], "end_ms": words[-1]["end_ms"],
         "text": " ".join(word["text"] for word in words), "speaker": words[0]["speaker"],
         "confidence": 0.9, "words": words}
    )
speakers = [{"id": f"speaker_{n}", "label": f"Speaker {n + 1}", "speaking_seconds": 18000.0}
            for n in range(2)]
document = json.dumps({"language": "en", "speakers": speakers, "segments": segments})
stream = {"index": 0, "codec": "h264", "width": 1920, "height": 1080, "start_ms": 0,
          "frame_rate": 25.0, "frame_count": 25 * HOURS_SECONDS}
ingested = {"media": {"container": "mp4", "size_bytes": 1, "duration_seconds": HOURS_SECONDS,
                      "video": stream, "audio": []}, "video": None}

async def seed():
    database = Database(database_url)
    async with database.transaction() as connection:
        account = await keys.create_account(connection, "large-job")
        for job_id in job_ids:
            await import_job(connection, ImportedJob(
                job_id, account.id, ProcessingMode.ALL, "conference.mp4", {},
                JobSource(kind="backfill"),
                HOURS_SECONDS * 1000, [], {}, scenes,
                *([None] if "overview" in ImportedJob.__annotations__ else []),
                [TrackTranscript(0, "Track 1", StageStatus.COMPLETED, None, "en", document)]))
            await connection.execute(
                text("UPDATE jobs SET ingest_result = CAST(:found AS jsonb) WHERE id = :id"),
                {"found": json.dumps(ingested), "id": job_id})
        link = await keys.create_sign_in_link(connection, account.id)
        key = (await keys.create_key(connection, account.id)).secret
    await database.close()
    print(json.dumps({"jobId": str(job_ids[0]), "jobIds": list(map(str, job_ids)),
                      "accountId": str(account.id), "key": key, "link": link}))

asyncio.run(seed())
"""
"""Stores the job, or several like it, by the code of the checkout that it is started in."""


@contextlib.contextmanager
def running(checkout: Path, python: str, folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """``vas serve`` of a checkout: its address without the API's path, and the API's replica."""
    command = [python, "-m", "serve_app.cli", "serve", "--json"]
    command += ["--port", str(free_port()), "--metrics-port", str(free_port())]
    command += ["--data", str(folder / "data")]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    with (
        (folder / "stderr").open("w") as errors,
        subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as service,
    ):
        assert service.stdout is not None
        try:
            base: str = json.loads(service.stdout.readline())["baseUrl"]
            yield base.removesuffix("/v1/api"), replica_of(service)
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(STOP_SECONDS)


def replica_of(service: subprocess.Popen[str]) -> psutil.Process:
    for process in psutil.Process(service.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "ServeReplica:vas:Api" in " ".join(process.cmdline()):
                return process
    raise RuntimeError("the service has no replica of the API")


class Visitor:
    """Reads from one service, and writes down what each reading took."""

    def __init__(self, root: str, replica: psutil.Process, seeded: dict[str, str]) -> None:
        self.job_id = seeded["jobId"]
        self._replica = replica
        self._health = httpx.Client(base_url=root, trust_env=False, timeout=120)
        self.key = {"X-API-Key": seeded["key"]}
        self.client = httpx.Client(base_url=root, trust_env=False, timeout=120)
        self.client.post("/dashboard/sign-in", data={"token": seeded["link"]}).read()
        self.found: dict[str, dict[str, float]] = {}
        self.refused = 0
        # From here on the kernel keeps the highest of a new beginning.
        Path(f"/proc/{replica.pid}/clear_refs").write_text("5")
        self.idle_mib = self.highest_mib()

    def close(self) -> None:
        self.client.close()
        self._health.close()

    def get(self, path: str, **headers: str) -> httpx.Response:
        answer = self.client.get(path, headers=headers)
        self.refused += answer.status_code != 200
        return answer

    def measure(self, name: str, read: Callable[[], list[httpx.Response]]) -> list[httpx.Response]:
        """Run ``read`` while the health of the service is looked at."""
        slowest, over = [0.0], threading.Event()

        def look() -> None:
            while not over.is_set():
                begun = time.perf_counter()
                self.refused += self._health.get("/healthz").status_code != 200
                slowest.append(time.perf_counter() - begun)
                over.wait(_HEALTH_PAUSE_SECONDS)

        looking = threading.Thread(target=look)
        looking.start()
        before, begun = self._processor_seconds(), time.perf_counter()
        answers = read()
        seconds = time.perf_counter() - begun
        used = self._processor_seconds() - before
        over.set()
        looking.join()
        self.found[name] = {
            "seconds": seconds,
            "replica_cpu_seconds": used,
            "largest_bytes": max((len(each.content) for each in answers), default=0),
            "answers": len(answers),
            "slowest_health_seconds": max(slowest),
        }
        print(name, {key: round(value, 3) for key, value in self.found[name].items()}, flush=True)
        return answers

    def _processor_seconds(self) -> float:
        times = self._replica.cpu_times()
        return float(times.user + times.system)

    def highest_mib(self) -> float:
        status = Path(f"/proc/{self._replica.pid}/status").read_text()
        [peak_kib] = re.findall(r"VmHWM:\s+(\d+)", status)
        return int(peak_kib) / 1024


def parts_of(page: httpx.Response) -> list[str]:
    """Addresses that a page, or a part of one, loads later."""
    return [unescape(path) for path in _PART.findall(page.text)]


def read_parts(visitor: Visitor, page: httpx.Response) -> list[httpx.Response]:
    """All parts of a page, one after the other, and theirs; none where it has all in itself."""
    waiting, seen, answers = parts_of(page), set[str](), list[httpx.Response]()
    while waiting and len(answers) < MOST_PARTS:
        path = waiting.pop(0)
        if path not in seen:
            seen.add(path)
            answers.append(visitor.get(path, **{"HX-Request": "true"}))
            waiting += parts_of(answers[-1])
    return answers


def scripted(visitor: Visitor, page: httpx.Response) -> list[str]:
    """What the scripts of a page read at once, of all results or of their outlines."""
    job = f"/dashboard/jobs/{visitor.job_id}"
    kinds = [f"{job}/scenes/outline", f"{job}/segments/outline"]
    if not parts_of(page):
        job = f"/dashboard/api/jobs/{visitor.job_id}"
        kinds = [f"{job}/scenes", f"{job}/transcript"]
    return [*kinds, f"/dashboard/api/jobs/{visitor.job_id}/chapters"]


def browse(visitor: Visitor) -> list[httpx.Response]:
    """The page, and what its scripts read."""
    page = visitor.get(f"/dashboard/jobs/{visitor.job_id}")
    return [page, *map(visitor.get, scripted(visitor, page))]


def measured(visitor: Visitor, *, files_too: bool) -> dict[str, Any]:
    page = f"/dashboard/jobs/{visitor.job_id}"
    job = f"/v1/api/jobs/{visitor.job_id}"
    visitor.measure("page, first", lambda: [visitor.get(page)])
    [answer] = visitor.measure("page", lambda: [visitor.get(page)])
    for name in ("scripts, first", "scripts"):
        visitor.measure(name, lambda: [visitor.get(path) for path in scripted(visitor, answer)])
    visitor.measure("parts", lambda: read_parts(visitor, answer))
    with ThreadPoolExecutor(PAGES_AT_ONCE) as threads:
        pages = [visitor] * PAGES_AT_ONCE
        visitor.measure(
            f"{PAGES_AT_ONCE} pages", lambda: sum(threads.map(browse, pages), list[Any]())
        )
    page_mib = visitor.highest_mib()
    files = {f"export {kind}": f"{job}/export?format={kind}" for kind in EXPORTS}
    files |= {f"transcript {kind}": f"{job}/transcript?format={kind}" for kind in TRANSCRIPTS}
    files["scenes"] = f"{job}/scenes"
    for name, path in files.items() if files_too else ():
        for again in ("", ", again"):
            visitor.measure(name + again, lambda at=path: [visitor.get(at, **visitor.key)])  # type: ignore[misc]
    return {
        "loads": visitor.found,
        "slowest_health_seconds": max(
            each["slowest_health_seconds"] for each in visitor.found.values()
        ),
        "replica_mib_idle": visitor.idle_mib,
        "replica_mib_after_pages": page_mib,
        "replica_mib": visitor.highest_mib(),
        "refused": visitor.refused,
    }


def one_round(checkout: Path, python: str, scenes: int, *, files_too: bool) -> dict[str, Any]:
    """Everything of one checkout on a service of its own."""
    with tempfile.TemporaryDirectory(prefix="vas-bench-") as name:
        folder = Path(name)
        with running(checkout, python, folder) as (root, replica):
            url = f"postgresql://postgres@/postgres?host={folder / 'data' / 'postgres'}"
            seeded = subprocess.run(
                [python, "-c", SEED, url, str(scenes)],
                cwd=checkout, env=os.environ | {"PYTHONPATH": str(checkout)},
                stdout=subprocess.PIPE, check=True,
            )  # fmt: skip
            visitor = Visitor(root, replica, json.loads(seeded.stdout))
            try:
                return measured(visitor, files_too=files_too)
            finally:
                visitor.close()


def medians(rounds: list[Any]) -> Any:
    """The rounds' figures, each the median, in the same shape."""
    if isinstance(rounds[0], dict):
        return {name: medians([each[name] for each in rounds]) for name in rounds[0]}
    return round(statistics.median(rounds), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", nargs=2, metavar=("CHECKOUT", "PYTHON"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scenes", type=int, default=10_000)
    parser.add_argument("--pages", action="store_true")
    options = parser.parse_args()
    sides = {"new": (PROJECT, sys.executable)}
    if options.old:
        # Resolving the interpreter would lead out of its virtual environment.
        sides["old"] = (Path(options.old[0]).resolve(), os.path.abspath(options.old[1]))  # noqa: PTH100
    found: dict[str, list[Any]] = {side: [] for side in sides}
    for number in range(options.rounds):
        for side in sorted(sides, reverse=bool(number % 2)):
            print(f"round {number}, {side}", flush=True)
            found[side].append(one_round(*sides[side], options.scenes, files_too=not options.pages))
    result = {side: medians(rounds) for side, rounds in found.items()}
    print(json.dumps(result | {"scenes": options.scenes, "rounds": options.rounds}))


if __name__ == "__main__":
    main()
