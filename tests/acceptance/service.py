"""The whole service, as ``vas serve`` runs it, in a process of its own; used through its API."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import psutil
import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection

from serve_app.client.api import ApiClient
from serve_app.deployment.local import free_port
from tests.background import in_background
from tests.places import PROJECT
from tests.serve_app.running_api import transact

Result = TypeVar("Result")
START_SECONDS = 150
JOB_SECONDS = 300
QUICK_CLEANING = {"VAS_SOURCE_RETENTION_SECONDS": "60"}
"""Tests look at what is left; as delivered, media stay for a day."""
ANSWER_SECONDS = 15
"""The patience of the proxy of the service that acceptance tests share."""


@dataclass(slots=True)
class Service:
    """A running service: its clients' view, and its processes and database for the tests."""

    process: subprocess.Popen[str]
    base_url: str
    api_key: str
    data: Path
    port: int
    clients: list[ApiClient] = field(default_factory=list)
    metrics_port: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    """As it was started with; others are as delivered."""

    def client(self) -> ApiClient:
        client = ApiClient(self.base_url, self.api_key)
        self.clients.append(client)
        return client

    def close_clients(self) -> None:
        for client in self.clients:
            client.close()

    def submit(self, path: Path, mode: Any = "all", *, name: str | None = None) -> str:
        """Create a job and upload its media; return its id."""
        with ApiClient(self.base_url, self.api_key) as client:
            job = client.create_job(name or path.name, path.stat().st_size, mode)
            client.upload(path, job["uploadUrl"], job["uploadHeaders"])
        job_id: str = job["jobId"]
        return job_id

    def ended(self, job_id: str, timeout_seconds: float = JOB_SECONDS) -> dict[str, Any]:
        """Wait for a job's end and return it."""
        with ApiClient(self.base_url, self.api_key) as client:
            return dict(client.wait(job_id, timeout_seconds=timeout_seconds))

    def completed(self, job_id: str, timeout_seconds: float = JOB_SECONDS) -> dict[str, Any]:
        """Wait for a job's end, which must be its completion: else its errors are shown."""
        job = self.ended(job_id, timeout_seconds)
        assert job["state"] == "completed", job
        return job

    def results(self, job_id: str) -> dict[str, Any]:
        """Scenes and transcript of a completed job, without what differs from job to job."""
        with ApiClient(self.base_url, self.api_key) as client:
            job = client.get_job(job_id, include="scenes,transcript")
            scenes = [dict(scene) for scene in client.get_scenes(job_id)]
            for scene in scenes:
                scene["thumbnailUrl"] = None
                scene["stills"] = [still | {"url": None} for still in scene.get("stills", ())]
            transcript = dict(client.get_transcript(job_id)) | {"jobId": None}
        assert job["state"] == "completed", job
        return {"scenes": scenes, "transcript": transcript}

    def processes(self) -> list[psutil.Process]:
        """All processes of the service, Ray's workers included."""
        root = psutil.Process(self.process.pid)
        found = [root, *root.children(recursive=True)]
        return [process for process in found if process.is_running()]

    def replica(self, deployment: str) -> psutil.Process:
        """The process of a deployment's replica."""
        return self.titled(f"ServeReplica:vas:{deployment}")

    def titled(self, title: str) -> psutil.Process:
        """A process of the service by a part of its title."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if title in " ".join(process.cmdline()):
                    return process
        raise AssertionError(f"no process of {title}")

    def resident_bytes(self) -> int:
        """Memory of all processes together, shared pages counted once (PSS)."""
        total = 0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total

    @property
    def root(self) -> str:
        """The address without the path of the API."""
        return self.base_url.removesuffix("/v1/api")

    @property
    def database_url(self) -> str:
        """The service's database."""
        return f"postgresql://postgres@/postgres?host={self.data / 'postgres'}"

    def transact(self, work: Callable[[AsyncConnection], Awaitable[Result]]) -> Result:
        """Run ``work(connection)`` in a transaction of its own on the service's database."""
        return transact(self.database_url, work)

    def query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Look into the service's database."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            return connection.execute(statement, parameters).fetchall()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as inherited
        return


@contextlib.contextmanager
def serving_files(folder: Path) -> Iterator[str]:
    """The address of a web server for the folder; asked for anything else it answers 404."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(10)


@contextlib.contextmanager
def running(data: Path, log: Path, **environment: str) -> Iterator[Service]:
    """Start ``vas serve`` with ``environment``; stop it in order at the end.

    An error inside shows what the service printed last.
    """
    port, metrics_port = free_port(), free_port()
    command = [sys.executable, "-m", "serve_app.cli", "serve", "--json"]
    command += ["--port", str(port), "--data", str(data)]
    command += ["--metrics-port", str(metrics_port)]
    with log.open("w") as stream:
        process = subprocess.Popen(
            in_background(command),
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            cwd=data.parent,
            env={**os.environ, "PYTHONPATH": str(PROJECT), **QUICK_CLEANING, **environment},
        )
    try:
        started = _started(process, data, port, log)
        started.metrics_port, started.settings = metrics_port, environment
        yield started
    except BaseException as error:
        error.add_note(log.read_text()[-6000:])
        raise
    finally:
        _stop(process)


def _started(process: subprocess.Popen[str], data: Path, port: int, log: Path) -> Service:
    assert process.stdout is not None
    line = _first_json_line(process)
    assert line is not None, f"the service did not start: {log.read_text()[-3000:]}"
    return Service(process, line["baseUrl"], line["apiKey"], data, port)


def _first_json_line(process: subprocess.Popen[str]) -> dict[str, Any] | None:
    assert process.stdout is not None
    for line in process.stdout:
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(line)
            if isinstance(value, dict) and "baseUrl" in value:
                return value
    return None


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(180)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(60)
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()


def wait_until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Poll ``condition`` until it holds; fail, naming ``what``, after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"after {seconds} s: {what}")
