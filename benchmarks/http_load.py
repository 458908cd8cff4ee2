"""A load generator that costs little: keep-alive connections, requests as prepared bytes.

It shares the machine with the server it measures, so every microsecond it
spends is taken from the server; httpx would spend most of them.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

Request = Callable[[int], bytes]
"""The bytes of the n-th request."""


@dataclass(slots=True)
class Load:
    """What was measured: latencies in seconds, statuses counted."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Requests a second, median and 99th percentile in milliseconds."""
        ordered = sorted(self.latencies)
        return {
            "requests": len(ordered),
            "rps": round(len(ordered) / self.seconds, 1),
            "p50_ms": round(statistics.median(ordered) * 1000, 2),
            "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1000, 2),
            "statuses": self.statuses,
        }


def request_bytes(
    method: str, url: str, headers: dict[str, str] | None = None, body: bytes = b""
) -> bytes:
    """An HTTP/1.1 request as it goes over the wire."""
    parts = urlsplit(url)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    lines = [f"{method} {path} HTTP/1.1", f"Host: {parts.netloc}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body or method != "GET":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def closed_loop(url: str, request: Request, *, connections: int, seconds: float) -> Load:
    """As fast as ``connections`` clients can go, each waiting for its answer."""
    return asyncio.run(_run(url, request, connections, seconds, interval=None))


def steady(
    url: str, request: Request, *, rate: float, seconds: float, connections: int = 32
) -> Load:
    """``rate`` requests a second, whether the answers keep up or not."""
    return asyncio.run(_run(url, request, connections, seconds, interval=1 / rate))


async def _run(
    url: str, request: Request, connections: int, seconds: float, interval: float | None
) -> Load:
    parts = urlsplit(url)
    load = Load()
    counter = iter(range(10**9))
    started = time.perf_counter()
    ends = started + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        while True:
            number = next(counter)
            due = time.perf_counter() if interval is None else started + number * interval
            if due >= ends:
                break
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            writer.write(request(number))
            status = await _read_answer(reader)
            # From when it was due: a server that stalls is charged for all it delays.
            load.latencies.append(time.perf_counter() - due)
            load.statuses[status] = load.statuses.get(status, 0) + 1
        writer.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    load.seconds = time.perf_counter() - started
    return load


async def _read_answer(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head[9:12])
    lower = head.lower()
    position = lower.find(b"content-length:")
    if position >= 0:
        end = lower.index(b"\r\n", position)
        await reader.readexactly(int(lower[position + 15 : end]))
    elif b"transfer-encoding: chunked" in lower:
        await _skip_chunks(reader)
    return status


async def _skip_chunks(reader: asyncio.StreamReader) -> None:
    while True:
        size = int(await reader.readline(), 16)
        await reader.readexactly(size + 2)
        if size == 0:
            return
