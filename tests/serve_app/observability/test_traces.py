"""A trace leads from the request that created a job to the stages that other processes run."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from models.provider import LocalModels
from serve_app.context import AppContext, build_context
from serve_app.observability.logs import TracingNotInstalledError
from serve_app.settings import Settings
from serve_app.work.publishing import Lease
from serve_app.work.runner import JobDriver
from serve_app.work.stage_work import Calibration
from storage import jobs
from tests.databases import fresh_database
from tests.serve_app.running_api import SECRET, RunningApi

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP on loopback."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Exports)
        self.bodies: list[bytes] = []

    @property
    def spans(self) -> list[Span]:
        exports = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [
            span
            for export in exports
            for resource in export.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> Span:
        (span,) = [span for span in self.spans if span.name == name]
        return span


class _Exports(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Not into the tests' output."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def settings(postgres_url: str, collector: Collector, tmp_path: Path) -> Iterator[Settings]:
    with fresh_database(postgres_url) as url:
        yield Settings(
            data_dir=tmp_path,
            database_url=url,
            secret_key=SECRET,
            traces_url=f"http://127.0.0.1:{collector.server_address[1]}/v1/traces",
        )


def attributes(span: Span) -> dict[str, Any]:
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in span.attributes}


async def drive(context: AppContext) -> None:
    """What a runner does with the queued job."""
    taken = await context.database.write(jobs.lease_next, lease=timedelta(seconds=60))
    assert taken is not None
    with ThreadPoolExecutor(2) as threads:
        await JobDriver(
            context, LocalModels(), Lease(*taken), threads, Calibration("packaged")
        ).run()


def test_the_stages_of_a_job_are_in_the_trace_of_its_request(
    settings: Settings, collector: Collector
) -> None:
    with RunningApi(settings) as api:
        customer = api.customer()
        headers = customer.headers | {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        made = api.client.post("/jobs", json={"fileName": "a.mp4"}, headers=headers).json()["data"]
        httpx.put(made["uploadUrl"], content=b"no video", trust_env=False).raise_for_status()
        asyncio.run(drive(api.context))
        job = api.client.get(f"/jobs/{made['jobId']}", headers=customer.headers).json()["data"]
        assert job["state"] == "failed"
    request, stage = collector.named("POST /v1/api/jobs"), collector.named("stage ingest")
    assert request.trace_id.hex() == TRACE
    assert request.parent_span_id.hex() == PARENT
    assert request.kind == Span.SPAN_KIND_SERVER
    assert attributes(request)["http.response.status_code"] == 201
    assert stage.trace_id == request.trace_id
    assert stage.parent_span_id == request.span_id
    assert attributes(stage) == {"vas.job_id": made["jobId"], "vas.stage": "ingest"}
    assert stage.status.code == Status.STATUS_CODE_ERROR
    assert stage.status.message == job["error"]["code"]


def test_spans_have_routes_and_no_signed_address(settings: Settings, collector: Collector) -> None:
    with RunningApi(settings) as api:
        customer = api.customer()
        made = api.client.post("/jobs", json={"fileName": "a.mp4"}, headers=customer.headers)
        url = made.json()["data"]["uploadUrl"]
        httpx.put(url, content=b"", trust_env=False)
        api.client.get("/nowhere/secret")
    assert len(collector.spans) == 3
    sent = b"".join(collector.bodies)
    for private in (url.rsplit("=")[-1], "nowhere", customer.key, "a.mp4"):
        assert private.encode() not in sent


def test_a_share_of_the_traces_is_sent_and_a_trace_whole_or_not_at_all(
    settings: Settings, collector: Collector
) -> None:
    none = settings.model_copy(update={"traces_ratio": 0.0})
    with RunningApi(none) as api:
        api.client.get("/formats")
    assert collector.spans == []


def test_a_collector_that_is_away_costs_no_request(settings: Settings) -> None:
    away = settings.model_copy(update={"traces_url": "http://127.0.0.1:9/v1/traces"})
    with RunningApi(away) as api:
        assert api.client.get("/formats").status_code == 200


def test_where_the_exporter_is_not_installed_a_sentence_says_so(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TracingNotInstalledError, match="extra 'tracing'"):
        build_context(settings)
