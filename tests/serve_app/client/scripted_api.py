"""A real HTTP server on loopback that answers as a test scripts it and notes what came."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

REQUEST_ID = "req_0123456789abcdef0123456789abcdef"


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """A request as it arrived; the body only by its size and digest, and as JSON if it is."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    size_bytes: int
    sha256: str
    json: Any


def data(payload: object, status: int = 200) -> Answer:
    body = {"data": payload, "requestId": REQUEST_ID}
    return Answer(status, json.dumps(body).encode(), {"Content-Type": "application/json"})


def error(status: int, code: str, *, retry_after: str | None = None, **more: object) -> Answer:
    body = {"error": f"Refused: {code}.", "code": code, "docUrl": "x", "requestId": REQUEST_ID}
    headers = {"Content-Type": "application/json"}
    if retry_after is not None:
        headers["Retry-After"] = retry_after
    return Answer(status, json.dumps(body | more).encode(), headers)


class ScriptedApi:
    """``answers[(method, path)]`` are given in turn; the last one again and again."""

    def __init__(self) -> None:
        self.origin = ""
        self.seen: list[Seen] = []
        self._answers: dict[tuple[str, str], list[Answer]] = {}

    @property
    def base_url(self) -> str:
        return f"{self.origin}/v1/api"

    def script(self, method: str, path: str, *answers: Answer) -> None:
        """Path below the base address; with a query string, it counts for that query only."""
        self._answers[method, f"/v1/api{path}"] = list(answers)

    def requests(self, method: str, path: str) -> list[Seen]:
        wanted = (method, f"/v1/api{path}")
        return [seen for seen in self.seen if (seen.method, seen.path) == wanted]

    async def respond(self, request: Request) -> Response:
        digest, size_bytes, start = hashlib.sha256(), 0, b""
        async for piece in request.stream():
            digest.update(piece)
            size_bytes += len(piece)
            start = (start + piece)[:65536] if len(start) < 65536 else start
        is_json = request.headers.get("content-type") == "application/json"
        self.seen.append(
            Seen(
                request.method,
                request.scope["path"],
                dict(request.query_params),
                dict(request.headers),
                size_bytes,
                digest.hexdigest(),
                json.loads(start) if is_json and start else None,
            )
        )
        answer = self._next_answer(request)
        return Response(answer.body, answer.status, answer.headers)

    def _next_answer(self, request: Request) -> Answer:
        path, query = request.scope["path"], request.url.query
        for key in ((request.method, f"{path}?{query}"), (request.method, path)):
            if key in self._answers:
                answers = self._answers[key]
                return answers.pop(0) if len(answers) > 1 else answers[0]
        return error(404, "NOT_FOUND")


@contextmanager
def serving(api: ScriptedApi) -> Iterator[ScriptedApi]:
    """Serve until the block ends."""
    methods = ["GET", "POST", "PUT"]
    app = Starlette(routes=[Route("/{path:path}", api.respond, methods=methods)])
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="error", lifespan="off", timeout_keep_alive=90
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < deadline, "the scripted server did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    api.origin = f"http://127.0.0.1:{port}"
    try:
        yield api
    finally:
        server.should_exit = True
        thread.join(timeout=120)
        assert not thread.is_alive(), "the scripted server did not stop"
