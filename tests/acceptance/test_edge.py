"""The same API through Serve and its HAProxy: the interface document holds there too."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import settings

from serve_app.api.authentication import LIMITS, Bucket
from serve_app.errors import CATALOGUE, ErrorCode
from tests.acceptance.service import Service, wait_until
from tests.contract.document_cases import (
    BOUNDS,
    OPERATIONS,
    SECOND_LOOK,
    Visitors,
    run_sequences,
    try_operation,
)
from tests.examples import every_example
from tests.serve_app.running_api import within_a_minute
from tests.tables import every

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

grpc: Any = pytest.importorskip("grpc")

SETTLING_SECONDS = 20.0
"""In which a new controller finds the replicas, and tells the proxy of them."""
EXAMPLES = int(os.environ.get("VAS_SCHEMATHESIS_EXAMPLES", "1"))
THROUGH_SERVE = OPERATIONS if every_example() else OPERATIONS[::6]
"""Each operation is tried without Serve by ``tests/contract/test_schemathesis.py``."""


@pytest.fixture(scope="module")
def visitors(service: Service) -> Visitors:
    return Visitors(service)


@every("operation_id", THROUGH_SERVE)
def test_operation_through_serve(operation_id: str, visitors: Visitors) -> None:
    bounds = settings(BOUNDS, max_examples=EXAMPLES)
    try_operation(SECOND_LOOK, operation_id, visitors, bounds)


def test_sequences_along_the_links_through_serve(visitors: Visitors) -> None:
    run_sequences(visitors, 3 * EXAMPLES)


def test_keyless_requests_are_counted_by_the_address_that_the_proxy_passes_on(
    service: Service,
) -> None:
    """The proxy adds its own hop; what stands left of a stranger's address is not believed."""
    hosts = itertools.count(7)
    with httpx.Client(base_url=service.base_url, trust_env=False, timeout=180) as client:

        def remaining(forwarded: str | None) -> int:
            headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
            answer = client.get("/formats", headers=headers)
            assert answer.status_code == 200
            return int(answer.headers["X-RateLimit-Remaining"])

        def ask() -> list[int]:
            one, other = (f"203.0.113.{next(hosts)}" for _ in range(2))
            return [remaining(hops) for hops in (one, other, f"198.51.100.1, {one}", None, None)]

        limit = LIMITS[Bucket.DISCOVERY]
        *strangers, local, again = within_a_minute(ask)
        assert strangers == [limit - 1, limit - 1, limit - 2]
        assert again == local - 1


def test_no_request_is_sent_to_a_log_that_anybody_may_read(service: Service) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        try:
            listener.bind(("127.0.0.1", 514))
        except OSError as error:
            pytest.skip(f"UDP port 514 cannot be listened at: {error.strerror}")
        listener.settimeout(1)
        answer = httpx.get(f"{service.root}/dashboard/sign-in?token=seen", trust_env=False)
        assert answer.status_code < 500
        with pytest.raises(TimeoutError):
            listener.recv(65_536)


def test_what_listens_to_other_machines_refuses_whoever_has_not_rays_token(
    service: Service,
) -> None:
    """As SECURITY.md describes: replicas' gRPC ports alone, whose address is no choice of ours."""
    found = {
        (connection.laddr.port, " ".join(process.cmdline()).split()[0])
        for process in service.processes()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
        and not ip_address(connection.laddr.ip.removeprefix("::ffff:")).is_loopback
    }
    assert {title.partition(":vas:")[0] for _, title in found} == {"ray::ServeReplica"}
    for port, _ in found:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
            with pytest.raises(grpc.RpcError) as refused:
                call(b"", timeout=120)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_the_token_of_ray_is_not_in_the_home_folder(service: Service) -> None:
    """Ray writes it there readable by all, and whoever has it runs code as the service."""
    assert service.settings["HOME"] == str(service.data.parent)
    assert not (service.data.parent / ".ray").exists()


def test_reads_under_way_survive_the_loss_of_a_replica(service: Service) -> None:
    """Many reads around a hard kill: each is answered, by the new replica or by 503."""
    victim = service.replica("Api")
    killed = threading.Event()

    def read(_: int) -> list[int]:
        with httpx.Client(trust_env=False, timeout=180) as client:
            statuses = [client.get(f"{service.root}/health").status_code for _ in range(20)]
            killed.wait(120)
            return statuses + [client.get(f"{service.root}/health").status_code for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        running_reads = [pool.submit(read, number) for number in range(8)]
        victim.kill()
        killed.set()
        statuses = [status for reads in running_reads for status in reads.result(300)]
    assert len(statuses) == 8 * 40
    assert set(statuses) <= {200, 503}
    wait_until(lambda: service.replica("Api").pid != victim.pid, 300, "a new replica runs")


def test_the_loss_of_the_controller_is_no_loss_of_the_service(service: Service) -> None:
    """A new one knows of no replica at first, and so did the proxy, which then said 404."""
    victim, seen = service.titled("ServeController"), []

    with httpx.Client(trust_env=False, timeout=180) as client:

        def replaced() -> bool:
            seen.append(client.get(f"{service.root}/health").status_code)
            with contextlib.suppress(AssertionError):
                return service.titled("ServeController").pid != victim.pid
            return False

        victim.kill()
        victim.wait(120)
        wait_until(replaced, 300, "a new controller runs")
        settled = time.monotonic() + SETTLING_SECONDS
        while time.monotonic() < settled:
            time.sleep(0.1)
            replaced()
    print(Counter(seen))
    assert set(seen) <= {200, 503}
    assert seen[-1] == 200


def test_while_no_replica_can_answer_the_proxy_says_so_in_the_envelope(service: Service) -> None:
    """The API's replica is stopped, so the proxy must answer by itself."""
    replica = service.replica("Api")
    with contextlib.closing(httpx.Client(trust_env=False, timeout=60)) as client:
        replica.suspend()
        try:
            answer = client.get(f"{service.base_url}/jobs/{uuid.uuid4()}")
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                replica.resume()
        assert answer.status_code == 503
        assert_unavailable(answer, service)
        wait_until(
            lambda: client.get(f"{service.root}/health").status_code == 200,
            300,
            "the service answers again",
        )


def assert_unavailable(answer: httpx.Response, service: Service) -> None:
    body = json.loads(answer.text)
    rule = CATALOGUE[ErrorCode.SERVICE_UNAVAILABLE]
    assert body["code"] == "SERVICE_UNAVAILABLE"
    assert body["docUrl"] == f"{service.root}/docs/errors#SERVICE_UNAVAILABLE"
    assert body["requestId"] == answer.headers["X-Request-Id"]
    assert answer.headers["Retry-After"] == str(rule.retry_after_seconds)
