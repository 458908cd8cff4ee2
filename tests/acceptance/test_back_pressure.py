"""More requests than a replica can hold while its database hangs: refused in time, and in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections import Counter
from collections.abc import Iterator

import httpx
import psutil
import pytest

from serve_app.deployment.application import MOST_REQUESTS
from tests.acceptance.service import ANSWER_SECONDS, Service

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

MORE = 200
HELD_SECONDS = 3.0
MOST_GROWTH_BYTES = 200 * 1024**2


@contextlib.contextmanager
def hanging(service: Service) -> Iterator[None]:
    """The database takes everything and answers nothing."""
    pid = int((service.data / "postgres" / "postmaster.pid").read_text().split()[0])
    postmaster = psutil.Process(pid)
    stopped = [postmaster, *postmaster.children(recursive=True)]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in stopped:
            process.send_signal(signal.SIGCONT)


async def ask(service: Service) -> tuple[int, dict[str, str], bytes]:
    """One read on a connection of its own: status, headers, body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    head = f"GET /v1/api/quota HTTP/1.1\r\nHost: x\r\nX-API-Key: {service.api_key}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    head_bytes, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head_bytes.decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in lines)
    headers = {name.lower(): value.strip() for name, value in pairs}
    return int(first.split(" ")[1]), headers, body


async def flood(service: Service) -> list[tuple[int, dict[str, str], bytes]]:
    """More at once than a replica holds; the database comes back after a while."""
    asking = [asyncio.create_task(ask(service)) for _ in range(MOST_REQUESTS + MORE)]
    with hanging(service):
        await asyncio.sleep(HELD_SECONDS)
        # A busy machine takes longer to refuse; the proxy itself would do so later still.
        rest = ANSWER_SECONDS - HELD_SECONDS - 1
        await asyncio.wait(asking, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
        early = sum(task.done() for task in asking)
    answers = await asyncio.gather(*asking)
    assert early > 0, "nobody was refused while the database hung"
    return answers


def test_what_a_replica_cannot_hold_is_told_to_come_again(service: Service) -> None:
    replica = service.replica("Api")
    before = replica.memory_info().rss
    answers = asyncio.run(flood(service))
    statuses = Counter(status for status, _, _ in answers)
    assert statuses.keys() <= {200, 429, 503}
    assert statuses[503] > 0
    for status, headers, body in answers:
        if status != 200:
            assert headers["retry-after"].isdigit()
            assert json.loads(body)["code"] in {"RATE_LIMITED", "SERVICE_UNAVAILABLE"}
            assert headers["x-request-id"] == json.loads(body)["requestId"]
    assert replica.memory_info().rss - before < MOST_GROWTH_BYTES
    assert service.replica("Api").pid == replica.pid
    health = httpx.get(f"{service.root}/health", trust_env=False, timeout=120)
    assert health.json() == {"status": "ok"}
