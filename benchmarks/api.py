"""Requests per second of the API, beside an empty route on the same Serve application and the
same empty route on plain uvicorn, all in one run.

    .venv/bin/python -m benchmarks.api [--seconds 3] [--rounds 3] [--old CHECKOUT PYTHON]
    .venv/bin/python -m benchmarks.api --waiting 200

``--old`` names another checkout and its interpreter: its service runs beside this one's, under the
same load generator, and the two are measured in turns. The last line is JSON, medians of the
rounds. Many accounts share the load, because rate limits stay on; any answer but the expected one
ends the run.

``--waiting`` measures reads beside so many requests of OpenAI's interface that wait for their jobs,
and beside the same jobs created by the native interface, which nobody waits for.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import uvicorn

from benchmarks.http_load import Load, closed_loop, request_bytes, steady
from serve_app.deployment.local import free_port

CONNECTIONS = 16
EXPECTED = {"empty_serve": 200, "read": 200, "create": 201, "read_at_100_rps": 200}

_SERVICE = """
import asyncio, json, sys, tempfile
from pathlib import Path
from serve_app.deployment.data import prepared
from serve_app.deployment.local import free_port, running_service
from serve_app.settings import Settings
from storage import keys, ledger
from storage.database import Database

async def create_accounts(url, count):
    database = Database(url)
    async with database.transaction() as connection:
        for number in range(count):
            account = await keys.create_account(connection, f"bench-{number}")
            await ledger.grant(connection, account.id, 1_000_000, "benchmark")
            yield (await keys.create_key(connection, account.id)).secret
    await database.close()

async def secrets(url, count):
    return [secret async for secret in create_accounts(url, count)]

with tempfile.TemporaryDirectory(prefix="vas-bench-") as folder:
    settings = Settings(data_dir=Path(folder), port=free_port(), max_active_jobs=100_000)
    with running_service(settings) as (base, complete):
        found = asyncio.run(secrets(complete.database_url, int(sys.argv[1])))
        print("@" + json.dumps({"base": base, "keys": found}), flush=True)
        sys.stdin.read()
"""
"""Runs the service of the checkout that it is started in, until its input ends."""


class Service:
    """A running service, and prepared requests to it."""

    def __init__(self, base: str, api_keys: list[str]) -> None:
        """``base`` ends with the path prefix; every account gets a job to read."""
        self.root = base.removesuffix("/v1/api")
        self.keys = api_keys
        self.process_id = 0
        body = json.dumps({"fileName": "a.mp4"}).encode()
        json_type = {"Content-Type": "application/json"}
        self._requests = {
            "empty_serve": [request_bytes("GET", f"{self.root}/health/live")],
            "read": [
                request_bytes(
                    "GET", f"{base}/jobs/{_create_job(base, key)}?include=none", {"X-API-Key": key}
                )
                for key in api_keys
            ],
            "create": [
                request_bytes("POST", f"{base}/jobs", {"X-API-Key": key} | json_type, body)
                for key in api_keys
            ],
        }

    def measure(self, name: str, seconds: float) -> Load:
        """Requests of one kind, as fast as they are answered, after a short warm-up."""
        self._load(name, min(1.0, seconds))
        return self._load(name, seconds)

    def _load(self, name: str, seconds: float) -> Load:
        requests = self._requests[name]
        load = closed_loop(
            self.root,
            lambda number: requests[number % len(requests)],
            connections=CONNECTIONS,
            seconds=seconds,
        )
        return _as_expected(name, load)

    def read_steadily(self, seconds: float) -> Load:
        """Reads at 100 a second."""
        requests = self._requests["read"]
        load = steady(
            self.root, lambda number: requests[number % len(requests)], rate=100, seconds=seconds
        )
        return _as_expected("read_at_100_rps", load)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--accounts", type=int, default=240)
    parser.add_argument("--old", nargs=2, metavar=("CHECKOUT", "PYTHON"))
    parser.add_argument("--waiting", type=int)
    options = parser.parse_args()
    if options.waiting:
        print(json.dumps(_beside_waiting(options.waiting, max(10, options.seconds))))
        return
    checkouts = {"old": options.old} if options.old else {}
    checkouts["new"] = [str(Path.cwd()), sys.executable]
    with contextlib.ExitStack() as stack:
        services = {
            side: stack.enter_context(_running(checkout, python, options.accounts))
            for side, (checkout, python) in checkouts.items()
        }
        sides = _measured_in_turns(services, options.rounds, options.seconds)
    uvicorn_load = _plain_uvicorn(options.seconds)
    new = sides["new"]
    new["ratios"] |= {
        "empty_serve_to_uvicorn": round(
            new["empty_serve"]["rps"] / uvicorn_load.summary()["rps"], 3
        )
    }
    result: dict[str, Any] = {"empty_uvicorn": uvicorn_load.summary()} | sides
    if options.old:
        result["new_to_old"] = {
            name: round(new[name]["rps"] / sides["old"][name]["rps"], 3)
            for name in ("empty_serve", "read", "create")
        }
    print(json.dumps(result))


@contextlib.contextmanager
def _running(checkout: str, python: str, accounts: int) -> Iterator[Service]:
    """The service of a checkout, run by its own interpreter."""
    process = subprocess.Popen(
        [python, "-c", _SERVICE, str(accounts)],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": checkout},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("@"):
                started = json.loads(line[1:])
                break
        else:
            raise RuntimeError(f"the service of {checkout} did not start")
        service = Service(started["base"], started["keys"])
        service.process_id = process.pid
        yield service
        assert process.stdin is not None
        process.stdin.close()


def _beside_waiting(count: int, seconds: float) -> dict[str, Any]:
    """Reads at 100 a second beside jobs that nobody waits for, then beside as many that requests
    wait for; with the memory of the largest process."""
    found: dict[str, Any] = {"waiting": count}
    noise = np.random.default_rng(1).integers(-3000, 3000, 60 * 16_000, np.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 16_000, 0, "NONE", ""))
        sound.writeframes(noise.tobytes())
    for side in ("native", "waiting"):
        with _running(str(Path.cwd()), sys.executable, 100) as service, httpx.Client(
            base_url=service.root, trust_env=False, timeout=600,
            limits=httpx.Limits(max_connections=None),
        ) as client, ThreadPoolExecutor(count) as threads:  # fmt: skip
            answer = _native if side == "native" else _waited
            for number in range(count):
                key = service.keys[number % len(service.keys)]
                threads.submit(answer, client, key, file.getvalue())
            deadline = time.monotonic() + 60
            while (arrived := _count(client, service.keys, _ARRIVED)) < count:
                if time.monotonic() > deadline:
                    break
                time.sleep(1)
            load = service.read_steadily(seconds)
            ordered = sorted(load.latencies)
            found[side] = load.summary() | {
                "p95_ms": round(ordered[int(len(ordered) * 0.95)] * 1000, 2),
                "arrived": arrived,
                "jobs_left": _count(client, service.keys, _UNFINISHED),
                "service_mib": _memory_mib(service.process_id),
            }
            _end_jobs(client, service.keys)
    return found


def _waited(client: httpx.Client, key: str, content: bytes) -> None:
    form = {"model": "whisper-1"}
    files = {"file": ("noise.wav", content, "audio/wav")}
    headers = {"Authorization": f"Bearer {key}"}
    client.post("/v1/audio/transcriptions", data=form, files=files, headers=headers)


def _native(client: httpx.Client, key: str, content: bytes) -> None:
    body = {"fileName": "noise.wav", "processingMode": "transcript"}
    created = client.post("/v1/api/jobs", json=body, headers={"X-API-Key": key}).json()["data"]
    sent = functools.partial(client.put, created["uploadUrl"], headers=created["uploadHeaders"])
    while sent(content=content).status_code == 503:  # all places of uploads are taken
        time.sleep(0.2)


_UNFINISHED = frozenset({"queued", "processing"})
_ARRIVED = _UNFINISHED | {"completed", "failed"}


def _jobs(client: httpx.Client, key: str) -> list[dict[str, Any]]:
    while (answer := client.get("/v1/api/jobs", headers={"X-API-Key": key})).status_code == 503:
        time.sleep(0.2)
    listed: list[dict[str, Any]] = answer.raise_for_status().json()["data"]
    return listed


def _count(client: httpx.Client, keys: list[str], states: frozenset[str]) -> int:
    return sum(job["state"] in states for key in keys for job in _jobs(client, key))


def _end_jobs(client: httpx.Client, keys: list[str]) -> None:
    for key in keys:
        for job in _jobs(client, key):
            client.delete(f"/v1/api/jobs/{job['jobId']}", headers={"X-API-Key": key})


def _memory_mib(process_id: int) -> int:
    """Return the proportional memory of the service's largest process, its one for all requests."""
    found = 0
    for each in psutil.Process(process_id).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found = max(found, each.memory_full_info().pss // 1024**2)
    return found


def _measured_in_turns(
    services: dict[str, Service], rounds: int, seconds: float
) -> dict[str, dict[str, Any]]:
    """Each load against each service in turn, again and again; the medians by side."""
    loads: dict[str, dict[str, list[dict[str, Any]]]] = {side: {} for side in services}
    for number in range(rounds):
        # Who comes first alternates, as a machine shared with others drifts.
        turns = list(services.items())[:: 1 if number % 2 == 0 else -1]
        for name in ("empty_serve", "read", "create"):
            for side, service in turns:
                summary = service.measure(name, seconds).summary()
                loads[side].setdefault(name, []).append(summary)
                print(number, side, name, summary, flush=True)
    for side, service in services.items():
        loads[side]["read_at_100_rps"] = [service.read_steadily(seconds).summary()]
    return {side: _medians(found) for side, found in loads.items()}


def _medians(loads: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: {
            value: round(statistics.median(summary[value] for summary in summaries), 2)
            for value in ("rps", "p50_ms", "p99_ms")
        }
        for name, summaries in loads.items()
    }
    found["ratios"] = {
        f"{name}_to_empty_serve": round(found[name]["rps"] / found["empty_serve"]["rps"], 3)
        for name in ("read", "create")
    }
    return found


def _as_expected(name: str, load: Load) -> Load:
    if set(load.statuses) != {EXPECTED[name]}:
        raise RuntimeError(f"{name} was answered {load.statuses}")
    return load


def _create_job(base: str, key: str) -> str:
    answer = httpx.post(
        f"{base}/jobs", json={"fileName": "a.mp4"}, headers={"X-API-Key": key}, trust_env=False
    )
    job_id: str = answer.json()["data"]["jobId"]
    return job_id


async def _empty_app(scope: Any, receive: Any, send: Any) -> None:
    body = b'{"status":"ok"}'
    headers = [(b"content-type", b"application/json"), (b"content-length", b"15")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _serve_plainly(port: int) -> None:
    uvicorn.run(_empty_app, host="127.0.0.1", port=port, log_level="error", access_log=False)


def _plain_uvicorn(seconds: float) -> Load:
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=_serve_plainly, args=(port,))
    process.start()
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url)
        request = request_bytes("GET", url + "/")
        closed_loop(url, lambda _: request, connections=CONNECTIONS, seconds=1)
        return closed_loop(url, lambda _: request, connections=CONNECTIONS, seconds=seconds)
    finally:
        process.terminate()
        process.join()


def _wait_for(url: str) -> None:
    for _ in range(200):
        try:
            httpx.get(url, trust_env=False)
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(url)


if __name__ == "__main__":
    main()
