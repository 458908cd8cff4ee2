"""A small stand-in for the hub of weights, on loopback: the far edge of `vas models pull`."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

Repositories = Mapping[tuple[str, str], Mapping[str, bytes]]
"""(repository, revision) -> file name -> content."""


class Hub:
    """Serves files of repositories at their revisions; ``gated`` ones only with ``token``."""

    def __init__(self, repositories: Repositories, *, gated: frozenset[str], token: str) -> None:
        self.repositories, self.gated, self.token = repositories, gated, token
        self.downloads: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Hub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(120)

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(request.path.partition("?")[0]).strip("/")
        for (repository, revision), files in self.repositories.items():
            if path == f"api/models/{repository}/revision/{revision}":
                listed = [{"rfilename": name} for name in files]
                answer = {"id": repository, "sha": revision, "siblings": listed}
                send(request, 200, json.dumps(answer).encode(), {}, body=body)
                return
            if path == f"api/models/{repository}/tree/{revision}":
                entries = [entry(name, content) for name, content in files.items()]
                send(request, 200, json.dumps(entries).encode(), {}, body=body)
                return
            prefix = f"{repository}/resolve/{revision}/"
            if path.startswith(prefix) and path.removeprefix(prefix) in files:
                self._file(request, repository, revision, path.removeprefix(prefix), body=body)
                return
        send(request, 404, b"", {"X-Error-Code": "RepoNotFound"}, body=body)

    def _file(
        self,
        request: BaseHTTPRequestHandler,
        repository: str,
        revision: str,
        name: str,
        *,
        body: bool,
    ) -> None:
        given = request.headers.get("Authorization") == f"Bearer {self.token}"
        if repository in self.gated and not given:
            send(request, 403, b"", {"X-Error-Code": "GatedRepo"}, body=body)
            return
        content = self.repositories[repository, revision][name]
        etag = hashlib.sha256(content).hexdigest()
        if body:
            self.downloads.append(f"{repository}/{name}")
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": revision}
        send(request, 200, content, headers, body=body)


def entry(name: str, content: bytes) -> dict[str, object]:
    """A file as the hub's tree lists it."""
    digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    return {"type": "file", "path": name, "size": len(content), "oid": digest}


def send(
    request: BaseHTTPRequestHandler,
    status: int,
    content: bytes,
    headers: Mapping[str, str],
    *,
    body: bool,
) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    if body:
        request.wfile.write(content)
