"""Transcriber replicas over time while a burst of short jobs comes in, and after it.

    .venv/bin/python -m benchmarks.autoscaling [--jobs 40] [--replicas 4]

The service starts with one transcriber; the burst raises their number to the most that the
settings allow, and when it is over they go again. The peer is the same burst on a service that may
not grow, in a process of its own. Delays are short here (a second up, ten down), so that both ways
are seen within minutes. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from models.tasks import TRANSCRIBE
from serve_app.cli.accounts import create_account, create_key
from serve_app.cli.output import in_transaction
from serve_app.client.api import ApiClient
from serve_app.deployment.application import APP_NAME
from serve_app.deployment.data import prepared
from serve_app.deployment.local import free_port, running_service
from serve_app.settings import Settings
from storage import ledger
from storage.database import Connection

SPEECH = Path(__file__).resolve().parents[1] / "tests/media/speech/one_voice.flac"
SAMPLE_SECONDS = 0.5
UPSCALE_SECONDS = 1.0
DOWNSCALE_SECONDS = 10.0
LONGEST_BURST_SECONDS = 400.0
LONGEST_RETURN_SECONDS = 60.0
PEER_SECONDS = 540
ACCOUNTS = ("one", "two")
"""An account may create thirty jobs a minute."""
CREDIT_CENTS = 10_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--alone", action="store_true", help="without the peer")
    options = parser.parse_args()
    environment = dict(os.environ)
    result = burst(options.jobs, options.replicas)
    if not options.alone:
        fixed = peer(options.jobs, environment)
        result["one_replica_seconds"] = fixed["burst_seconds"]
        result["speedup"] = round(fixed["burst_seconds"] / result["burst_seconds"], 2)
    print(json.dumps(result))


def peer(jobs: int, environment: dict[str, str]) -> dict[str, Any]:
    """The same burst with one replica at most, in a process that Ray's environment is new to."""
    command = [sys.executable, "-m", "benchmarks.autoscaling", "--alone"]
    ended = subprocess.run(
        [*command, "--jobs", str(jobs), "--replicas", "1"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=PEER_SECONDS,
    )
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def burst(jobs: int, replicas: int) -> dict[str, Any]:
    """Start a service, send it ``jobs`` jobs at once, watch until it is small again."""
    with tempfile.TemporaryDirectory(prefix="vas-bench-") as folder:
        settings = Settings(
            data_dir=Path(folder),
            port=free_port(),
            model_replicas={"transcribe": replicas},
            model_upscale_seconds=UPSCALE_SECONDS,
            model_downscale_seconds=DOWNSCALE_SECONDS,
            runner_concurrency=8,
            # With one of each, API and sender share a process, and the model is no deployment.
            webhook_senders=2,
        )
        with prepared(settings) as complete, running_service(complete) as base:
            keys = [in_transaction(complete, partial(funded, name=name)) for name in ACCOUNTS]
            with contextlib.ExitStack() as stack:
                clients = [stack.enter_context(ApiClient(base, key)) for key in keys]
                watch = stack.enter_context(watched(complete.database_url or ""))
                return measured(clients, watch, jobs, replicas)


async def funded(connection: Connection, name: str) -> str:
    """A key of a new account with credits."""
    account = await create_account(connection, name)
    await ledger.grant(connection, uuid.UUID(account["id"]), CREDIT_CENTS, "benchmark")
    return str((await create_key(connection, name))["key"])


@dataclass(slots=True)
class Watch:
    """Replicas that answer and that start, sampled; a row each time that either changes."""

    database: psycopg.Connection
    started: float = field(default_factory=time.monotonic)
    rows: list[dict[str, Any]] = field(default_factory=list)
    ended: int = 0
    completed: int = 0

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self.started, 1)

    def sample(self) -> None:
        """Count jobs; append a row where the replicas have changed, and print it."""
        from ray import serve

        query = "SELECT state::text, count(*) FROM jobs GROUP BY 1"
        jobs: dict[str, int] = dict(self.database.execute(query).fetchall())
        self.completed = jobs.get("completed", 0)
        self.ended = self.completed + jobs.get("failed", 0)
        name = TRANSCRIBE.contract_name
        states = serve.status().applications[APP_NAME].deployments[name].replica_states
        counts = {str(getattr(state, "value", state)): count for state, count in states.items()}
        row = {"running": counts.get("RUNNING", 0), "starting": counts.get("STARTING", 0)}
        if self.rows and row.items() <= self.rows[-1].items():
            return
        self.rows.append({"second": self.seconds, **row, "completed": self.completed})
        print(self.rows[-1], flush=True)

    @property
    def running(self) -> int:
        return int(self.rows[-1]["running"]) if self.rows else 0


@contextlib.contextmanager
def watched(database_url: str) -> Iterator[Watch]:
    """Sample in the background until the block ends."""
    with (
        psycopg.connect(database_url, autocommit=True) as connection,
        sampled(Watch(connection)) as watch,
    ):
        yield watch


@contextlib.contextmanager
def sampled(watch: Watch) -> Iterator[Watch]:
    """A thread that samples until the block ends."""
    ended = threading.Event()

    def keep_sampling() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            watch.sample()

    watch.sample()
    sampler = threading.Thread(target=keep_sampling)
    sampler.start()
    try:
        yield watch
    finally:
        ended.set()
        sampler.join()


def measured(clients: list[ApiClient], watch: Watch, jobs: int, replicas: int) -> dict[str, Any]:
    """Send the burst; when all of it is done, wait for the replicas to go."""
    before, sent = watch.running, watch.seconds
    for number in range(jobs):
        submit(clients[number % len(clients)])
    until(lambda: watch.ended == jobs, LONGEST_BURST_SECONDS)
    done = watch.seconds
    until(lambda: watch.running == before, LONGEST_RETURN_SECONDS)
    most = max(row["running"] for row in watch.rows)
    return {
        "cpus": os.cpu_count(),
        "jobs": jobs,
        "completed": watch.completed,
        "replicas_before": before,
        "replicas_most": most,
        "replicas_allowed": replicas,
        "replicas_after": watch.running,
        "seconds_to_most": round(first_with(watch, most) - sent, 1),
        "burst_seconds": round(done - sent, 1),
        "seconds_to_return": round(watch.rows[-1]["second"] - done, 1),
        "timeline": watch.rows,
    }


def until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for ``condition``, at most ``seconds``: what is missing then shows in the figures."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(SAMPLE_SECONDS)


def first_with(watch: Watch, running: int) -> float:
    """When so many replicas ran for the first time."""
    return float(next(row["second"] for row in watch.rows if row["running"] == running))


def submit(client: ApiClient) -> None:
    """Create a job of a short recording and upload it."""
    job = client.create_job(SPEECH.name, SPEECH.stat().st_size, "transcript")
    client.upload(SPEECH, job["uploadUrl"], job["uploadHeaders"])


if __name__ == "__main__":
    main()
