"""A client that would have others wait: it reads no answer, and sends and lists a byte every few
seconds.

Each of these goes on until the service ends the connection, and returns then; it is repeated. What
it creates is its own account's, and gone when it ends.
"""

from __future__ import annotations

import contextlib
import functools
import random
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import psycopg

from tests.acceptance.chaos.caller import Caller
from tests.acceptance.chaos.journal import Journal
from tests.acceptance.chaos.stage import Stage
from tests.pipelines.net.fetch_servers import Asked, ScriptedServer, drip, send_head

PAUSE_SECONDS = 3.0
"""Between two bytes."""
UNREAD_EXPORTS, DRIPPING_UPLOADS, DRIPPING_ARCHIVES = 8, 6, 3
UPLOAD_BYTES = 2**20
AUDIT_ENTRIES = 4000
"""Of a thousand characters: more than the connections on the way hold."""
_RECEIVE_BYTES = 4096
_CONNECT_SECONDS = 30
_LIST_BYTES = 1000
_may_break = contextlib.suppress(OSError)
"""The service closes connections whenever it likes, and may be down."""


@contextlib.contextmanager
def requested(
    method: str, url: str, headers: Mapping[str, str], **more: object
) -> Iterator[socket.socket]:
    """A connection of its own, with the head of a request sent."""
    parts = urlsplit(url)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    fields = {"Host": parts.netloc, "Connection": "close", **headers}
    fields |= {name.replace("_", "-"): str(value) for name, value in more.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    with socket.socket() as connection:
        connection.settimeout(_CONNECT_SECONDS)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        connection.connect((parts.hostname, parts.port))
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        yield connection


def leave_unread(url: str, headers: Mapping[str, str], over: threading.Event) -> None:
    """Request it, and read nothing of the answer."""
    with _may_break, requested("GET", url, headers) as connection:
        while not (over.is_set() or has_ended(connection)):
            over.wait(PAUSE_SECONDS)


def drip_body(
    method: str, url: str, headers: Mapping[str, str], size_bytes: int, over: threading.Event
) -> None:
    """Send a body of so many bytes, one after the other."""
    with _may_break, requested(method, url, headers, Content_Length=size_bytes) as connection:
        while not (over.is_set() or has_ended(connection)):
            connection.sendall(b"x")
            over.wait(PAUSE_SECONDS)


def dripping_bucket(_asked: Asked, connection: socket.socket) -> None:
    """A list of objects, one byte of it after the other."""
    send_head(connection, content_type="application/xml", content_length=_LIST_BYTES)
    drip(connection, bytes(_LIST_BYTES), PAUSE_SECONDS)


def has_ended(connection: socket.socket) -> bool:
    """Whether the other side has closed, however much of what it sent before is not read yet."""
    polled = select.poll()
    polled.register(connection, select.POLLRDHUP)
    return bool(polled.poll(0))


@dataclass(slots=True)
class Hostile:
    """One account's, under way all the time beside the others."""

    stage: Stage
    journal: Journal
    chance: random.Random
    stopping: threading.Event
    caller: Caller = field(init=False)
    own: Journal = field(default_factory=Journal)
    """The checker judges what others were told; of this account only what is left to be wrong."""

    def __post_init__(self) -> None:
        base = self.stage.service.base_url
        self.caller = Caller(base, self._key, self.own, self.chance)

    @property
    def _key(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.stage.hostile.key}"}

    def run(self) -> None:
        """Until stopped; then its jobs are cancelled and its archives removed."""
        self._fill_audit_log()
        jobs, archives = list[Any](), list[str]()
        export = f"{self.stage.service.root}/dashboard/audit/export"
        cookie = {"Cookie": f"vas_session={self.stage.hostile.owner}"}
        with ScriptedServer(dripping_bucket).running() as bucket:
            try:
                body: dict[str, Any] = {"url": "s3://footage/"}
                body["bucketAccess"] = {"endpoint": bucket.url("")}
                for _ in range(DRIPPING_ARCHIVES):
                    made = self.caller.data("POST", "/archives", json=body)
                    archives.append(made["archiveId"])
                body = {"fileName": "a.mp4", "fileSizeBytes": UPLOAD_BYTES}
                jobs += [
                    self.caller.data("POST", "/jobs", json=body) for _ in range(DRIPPING_UPLOADS)
                ]
                acts = [lambda: leave_unread(export, cookie, self.stopping)] * UNREAD_EXPORTS
                acts += [functools.partial(self._drip, each) for each in jobs]
                with ThreadPoolExecutor(len(acts)) as threads:
                    list(threads.map(self._repeat, acts))
            finally:
                for each in jobs:
                    self.caller.data("POST", f"/jobs/{each['jobId']}/cancel", 409)
                for archive_id in archives:
                    self.caller.final(
                        "DELETE", f"{self.caller.base_url}/archives/{archive_id}", 404
                    )
                for sentence in self.own.violations:
                    self.journal.violated(f"hostile account: {sentence}")

    def _repeat(self, act: Callable[[], None]) -> None:
        while not self.stopping.is_set():
            act()
            self.journal.did("hostile connection ended")
            self.stopping.wait(1)

    def _drip(self, job: Any) -> None:
        """By PUT, or by tus from where the upload is."""
        if self.chance.random() < 0.5:
            url, headers = job["uploadUrl"], job["uploadHeaders"]
            drip_body("PUT", url, headers, UPLOAD_BYTES, self.stopping)
            return
        url, headers = job["resumableUploadUrl"], {"Tus-Resumable": "1.0.0"}
        standing = self.caller.final("HEAD", url, headers=headers)
        headers["Upload-Offset"] = standing.headers["upload-offset"]
        headers["Content-Type"] = "application/offset+octet-stream"
        rest = UPLOAD_BYTES - int(headers["Upload-Offset"])
        drip_body("PATCH", url, headers, rest, self.stopping)

    def _fill_audit_log(self) -> None:
        statement = (
            "INSERT INTO audit_log (account_id, action, detail, request_id)"
            " SELECT id, 'limitAccount', repeat('x', 1000), '' FROM accounts,"
            " generate_series(1, %s) WHERE name = %s"
        )
        with psycopg.connect(self.stage.database.url, autocommit=True) as connection:
            connection.execute(statement, (AUDIT_ENTRIES, self.stage.hostile.account))
