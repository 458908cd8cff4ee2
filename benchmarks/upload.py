"""Throughput of PUT and of tus through the service, beside the simplest server's.

    .venv/bin/python -m benchmarks.upload [--mib 1024] [--rounds 3]

All three take the same bytes from the same client to the same disk, in turns: a plain uvicorn
whose whole application writes the body to a file piece by piece (and, in a second figure, syncs
it), the service's ``uploadUrl`` and its ``resumableUploadUrl``, both through HAProxy and Serve.
The client sends one block of memory again and again, so that it costs next to nothing. Processor
seconds are those of all server processes together. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from serve_app.deployment.local import free_port
from tests.acceptance.service import Service, running
from tests.places import PROJECT

MIB = 1024 * 1024
BLOCK = os.urandom(MIB)

PEER = """
import os, sys
import uvicorn

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    with open(sys.argv[2], "wb") as file:
        while True:
            message = await receive()
            file.write(message.get("body", b""))
            if not message.get("more_body"):
                break
        if scope["path"] == "/synced":
            file.flush()
            os.fsync(file.fileno())
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})

uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", lifespan="off")
"""

Upload = Callable[[], None]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vas-bench-", dir=PROJECT.parent) as folder:
        log = Path(folder) / "service.log"
        with (
            peer(Path(folder) / "copy") as (peer_root, peer_process),
            running(Path(folder) / "data", log, VAS_STANDARD_MAX_BYTES=str(2**40)) as service,
        ):
            result = compare(service, peer_root, peer_process, options.mib, options.rounds)
    print(json.dumps(result))


@contextlib.contextmanager
def peer(target: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The simplest server, ready to take bodies."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", PEER, str(port), str(target)])
    try:
        wait_until_open(port)
        yield f"http://127.0.0.1:{port}", psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(10)


def wait_until_open(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise RuntimeError("the peer did not start")


def compare(
    service: Service, peer_root: str, peer_process: psutil.Process, mib: int, rounds: int
) -> dict[str, Any]:
    """Rates of every way, in turns; the ratios are of the medians."""
    ways: dict[str, tuple[Callable[[], str], bytes, list[psutil.Process]]] = {
        "peer": (lambda: f"{peer_root}/", put_head(mib), [peer_process]),
        "peer_synced": (lambda: f"{peer_root}/synced", put_head(mib), [peer_process]),
        "put": (lambda: new_upload(service)["uploadUrl"], put_head(mib), service.processes()),
        "tus": (
            lambda: new_upload(service)["resumableUploadUrl"],
            patch_head(mib),
            service.processes(),
        ),
    }
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, (address, head, processes) in ways.items():
            sample = measure(address(), head, mib, processes)
            if number > 0:  # the first round warms up
                samples[name].append(sample)
            cancel_all(service)
    return summary(samples, mib, rounds)


def summary(samples: dict[str, list[tuple[float, float]]], mib: int, rounds: int) -> dict[str, Any]:
    rates = {name: mib / statistics.median(s for s, _ in found) for name, found in samples.items()}
    return {
        "mib": mib,
        "rounds": rounds,
        "mib_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "server_cpu_seconds_per_gib": {
            name: round(statistics.median(cpu for _, cpu in found) * 1024 / mib, 2)
            for name, found in samples.items()
        },
        "put_to_peer": round(rates["put"] / rates["peer"], 3),
        "tus_to_peer": round(rates["tus"] / rates["peer"], 3),
        "put_to_peer_synced": round(rates["put"] / rates["peer_synced"], 3),
        "tus_to_peer_synced": round(rates["tus"] / rates["peer_synced"], 3),
    }


def put_head(mib: int) -> bytes:
    return b"PUT %%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (mib * MIB)


def patch_head(mib: int) -> bytes:
    fields = (
        b"Tus-Resumable: 1.0.0\r\nUpload-Offset: 0\r\nUpload-Length: %d\r\n"
        b"Content-Type: application/offset+octet-stream\r\n"
    ) % (mib * MIB)
    return put_head(mib).replace(b"PUT", b"PATCH").replace(b"\r\n\r\n", b"\r\n" + fields + b"\r\n")


def new_upload(service: Service) -> Any:
    """A job that also waits for audio: the upload alone sets nothing going."""
    return call(service, "POST", "/jobs", {"fileName": "a.mp4", "audioFileName": "a.wav"})


def cancel_all(service: Service) -> None:
    """Give the room on the disk back."""
    for job in call(service, "GET", "/jobs?state=awaiting_upload"):
        call(service, "POST", f"/jobs/{job['jobId']}/cancel")


def call(service: Service, method: str, path: str, body: Any = None) -> Any:
    answer = httpx.request(
        method,
        f"{service.base_url}{path}",
        json=body,
        headers={"X-API-Key": service.api_key},
        trust_env=False,
    )
    return answer.raise_for_status().json()["data"]


def measure(
    url: str, head: bytes, mib: int, processes: list[psutil.Process]
) -> tuple[float, float]:
    """Seconds until the answer, and processor seconds of the servers."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    target = f"{parts.path}?{parts.query}".encode()
    before = processor_seconds(processes)
    started = time.perf_counter()
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=300) as connection:
        connection.sendall(head % target)
        for _ in range(mib):
            connection.sendall(BLOCK)
        answer = connection.recv(65536)
    seconds = time.perf_counter() - started
    status = int(answer.split(b" ")[1])
    assert status in {200, 204}, answer
    return seconds, processor_seconds(processes) - before


def processor_seconds(processes: list[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


if __name__ == "__main__":
    main()
