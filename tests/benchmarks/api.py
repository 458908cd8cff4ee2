"""Requests per second of the API, beside an empty route on the same Serve application and the
same empty route on plain uvicorn, all in one run.

    .venv/bin/python -m tests.benchmarks.api [--seconds 8]

The last line is JSON. Many accounts share the load, because rate limits stay on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from sqlalchemy.ext.asyncio import AsyncConnection

from serve_app.cli.output import in_transaction
from serve_app.deployment.local import free_port, prepared, running_service
from serve_app.settings import Settings
from storage import keys, ledger
from tests.benchmarks.http_load import closed_loop, request_bytes, steady

CONNECTIONS = 16


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--accounts", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vas-bench-") as folder:
        settings = Settings(data_dir=Path(folder), port=free_port(), max_active_jobs=100_000)
        with prepared(settings) as complete, running_service(complete) as base:
            result = measure(complete, base, options.seconds, options.accounts)
    print(json.dumps(result))


def measure(settings: Settings, base: str, seconds: float, accounts: int) -> dict[str, Any]:
    """Every load in turn; each is warmed up first."""
    api_keys = in_transaction(settings, lambda c: _create_accounts(c, accounts))
    root = base.removesuffix("/v1/api")
    jobs = [_create_job(base, key) for key in api_keys]
    reads = [
        request_bytes("GET", f"{base}/jobs/{job}?include=none", {"X-API-Key": key})
        for job, key in zip(jobs, api_keys, strict=True)
    ]
    body = json.dumps({"fileName": "a.mp4"}).encode()
    creates = [
        request_bytes(
            "POST", f"{base}/jobs", {"X-API-Key": key, "Content-Type": "application/json"}, body
        )
        for key in api_keys
    ]
    empty = request_bytes("GET", f"{root}/health/live")
    results: dict[str, Any] = {}
    for name, url, request in (
        ("empty_serve", root, lambda _: empty),
        ("read", base, lambda n: reads[n % len(reads)]),
        ("create", base, lambda n: creates[n % len(creates)]),
    ):
        closed_loop(url, request, connections=CONNECTIONS, seconds=1)
        spent = 3 if name == "create" else seconds
        results[name] = closed_loop(url, request, connections=CONNECTIONS, seconds=spent).summary()
        print(name, results[name], flush=True)
    results["read_at_100_rps"] = steady(
        base, lambda n: reads[n % len(reads)], rate=100, seconds=seconds
    ).summary()
    results["empty_uvicorn"] = _plain_uvicorn(seconds)
    results["ratios"] = {
        "read_to_empty_serve": round(results["read"]["rps"] / results["empty_serve"]["rps"], 3),
        "create_to_empty_serve": round(results["create"]["rps"] / results["empty_serve"]["rps"], 3),
        "empty_serve_to_uvicorn": round(
            results["empty_serve"]["rps"] / results["empty_uvicorn"]["rps"], 3
        ),
    }
    return results


async def _create_accounts(connection: AsyncConnection, count: int) -> list[str]:
    secrets = []
    for number in range(count):
        account = await keys.create_account(connection, f"bench-{number}")
        await ledger.grant(connection, account.id, 1_000_000, "benchmark")
        secrets.append((await keys.create_key(connection, account.id)).secret)
    return secrets


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


def _plain_uvicorn(seconds: float) -> dict[str, Any]:
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=_serve_plainly, args=(port,))
    process.start()
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url)
        request = request_bytes("GET", url + "/")
        closed_loop(url, lambda _: request, connections=CONNECTIONS, seconds=1)
        load = closed_loop(url, lambda _: request, connections=CONNECTIONS, seconds=seconds)
        return load.summary()
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
