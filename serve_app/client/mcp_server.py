"""The service for agents, over the Model Context Protocol: tools that read small and quote times.

The tools call the public API through ``ApiClient``, with the key of whoever calls: over standard
input and output that of the process, over HTTP that of each request. Answers are cut to what fits
a model's context, and say where to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import httpx
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field
from starlette.types import ASGIApp, Receive, Scope, Send

from serve_app import __version__
from serve_app.client.api import ApiClient, ApiError, JsonObject, WaitTimeoutError

INSTRUCTIONS = """\
Video analysis. Start with search or list_jobs; for a new video analyze_url, then wait_for_job. \
read_summary, list_chapters and list_scenes give an overview with times; read_transcript gives \
what was said between two times. Times are seconds of the media. Quote words together with their \
time."""

Limit = Annotated[int, Field(ge=1, le=100, description="Most items to return.")]
JobIdText = Annotated[str, Field(description="A job's id.")]
From = Annotated[float, Field(ge=0, description="Seconds: leave out what ends before.")]
Until = Annotated[float | None, Field(description="Seconds: leave out what begins after.")]
_Open = Callable[[Context], ApiClient]
_MOST_WAIT_SECONDS = 300


def build_server(base_url: str, api_key: str | None) -> MCPServer[Any]:
    """The server. Without ``api_key`` each HTTP request must have its own."""

    def open_client(context: Context) -> ApiClient:
        return ApiClient(base_url, api_key or _key_of_request(context))

    server = MCPServer("vas", version=__version__, instructions=INSTRUCTIONS)
    _add_job_tools(server, open_client)
    _add_result_tools(server, open_client)
    return server


def _key_of_request(context: Context) -> str:
    request = context.request_context.request
    key = "" if request is None else presented(dict(request.headers))
    if not key:
        raise ToolError("UNAUTHORIZED: send an API key as `Authorization: Bearer <key>`.")
    return key


def presented(headers: dict[str, str]) -> str:
    """The API key in a request's headers; empty if there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()


class KeyRequired:
    """Refuses HTTP requests without an API key; whether it is good, the API decides."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1")
                   for name, value in scope.get("headers", ())}  # fmt: skip
        if scope["type"] != "http" or presented(headers):
            await self._app(scope, receive, send)
            return
        challenge = [(b"www-authenticate", b"Bearer"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 401, "headers": challenge})
        await send({"type": "http.response.body", "body": b""})


@contextmanager
def _calling(client: ApiClient) -> Iterator[ApiClient]:
    """The API's refusals as errors that a model can read; the client is closed afterwards."""
    try:
        with client:
            yield client
    except ApiError as error:
        raise ToolError(str(error)) from error
    except httpx.TransportError as error:
        raise ToolError(f"The service cannot be reached: {error}") from error


def _add_job_tools(server: MCPServer[Any], open_client: _Open) -> None:
    @server.tool()
    def list_jobs(
        context: Context,
        state: Literal["completed", "processing", "queued", "failed"] | None = None,
        limit: Limit = 10,
        cursor: str | None = None,
    ) -> JsonObject:
        """List jobs, newest first: id, file name, state and length of each."""
        with _calling(open_client(context)) as client:
            page = client.list_jobs(limit=limit, state=state, cursor=cursor)
        jobs = [_brief(job) for job in page["data"]]
        return {"jobs": jobs, "nextCursor": page["nextCursor"]}

    @server.tool()
    def get_job(context: Context, job_id: JobIdText) -> JsonObject:
        """Read a job's state, stages and warnings."""
        with _calling(open_client(context)) as client:
            job = client.get_job(job_id)
        stages = {name: stage["status"] for name, stage in job["stages"].items()}
        return _brief(job) | {"stages": stages, "warnings": job["warnings"]}

    @server.tool()
    def analyze_url(
        context: Context,
        url: Annotated[str, Field(description="A public http or https address of a video.")],
        mode: Literal["all", "transcript", "vision"] = "all",
    ) -> JsonObject:
        """Start the analysis of a video at a URL; costs credits. Then call wait_for_job."""
        with _calling(open_client(context)) as client:
            return _brief(client.create_job_from_url(url, mode))

    @server.tool()
    def wait_for_job(
        context: Context,
        job_id: JobIdText,
        seconds: Annotated[int, Field(ge=1, le=_MOST_WAIT_SECONDS)] = 60,
    ) -> JsonObject:
        """Wait until a job has ended, at most so many seconds; the state says whether it has."""
        with _calling(open_client(context)) as client:
            try:
                return _brief(client.wait(job_id, timeout_seconds=seconds))
            except WaitTimeoutError:
                return _brief(client.get_job(job_id))


def _brief(job: JsonObject) -> JsonObject:
    names = ("jobId", "fileName", "state", "progress", "durationSeconds", "createdAt", "error")
    return {name: job[name] for name in names if name in job}


def _add_result_tools(server: MCPServer[Any], open_client: _Open) -> None:
    @server.tool()
    def search(
        context: Context,
        query: Annotated[
            str | None,
            Field(description='Words, "a phrase", -without, beginning*, or OR between.'),
        ] = None,
        like: Annotated[
            str | None,
            Field(description="Instead: scenes that look like this one, jobId:sceneIndex."),
        ] = None,
        kinds: Annotated[
            str | None, Field(description="A list of transcript, scene, text, object, file.")
        ] = None,
        job_id: Annotated[str | None, Field(description="Only this job.")] = None,
        limit: Limit = 5,
        cursor: str | None = None,
    ) -> JsonObject:
        """Search all that was analysed: what was said, seen or read, with times, best first."""
        given = {"kinds": kinds, "jobId": job_id, "cursor": cursor, "limit": str(limit)}
        given["like"] = like
        with _calling(open_client(context)) as client:
            page = client.search(query, **{name: value for name, value in given.items() if value})
        return {
            "hits": [_hit(hit) for hit in page["data"]],
            "nextCursor": page["nextCursor"],
            "mode": page["mode"],
        }

    @server.tool()
    def list_chapters(context: Context, job_id: JobIdText) -> JsonObject:
        """List a job's chapters: subjects of what is said, with times."""
        with _calling(open_client(context)) as client:
            return {"chapters": client.get_chapters(job_id)}

    @server.tool()
    def read_summary(context: Context, job_id: JobIdText) -> JsonObject:
        """Read a summary of what is said, with times; not every service makes them."""
        with _calling(open_client(context)) as client:
            return {"sentences": client.get_summary(job_id)}

    @server.tool()
    def list_scenes(
        context: Context,
        job_id: JobIdText,
        start: From = 0,
        end: Until = None,
        limit: Limit = 20,
    ) -> JsonObject:
        """List scenes with times, what is seen, and writing on the screen."""
        with _calling(open_client(context)) as client:
            scenes = client.get_scenes(job_id)
        found = [scene for scene in scenes if _overlaps(scene, start, end)]
        shown = [
            {
                "index": scene["index"],
                "startTime": scene["startTime"],
                "endTime": scene["endTime"],
                "description": scene["description"],
                "onScreenText": [line["text"] for line in scene.get("onScreenText", [])],
            }
            for scene in found[:limit]
        ]
        more = found[limit]["startTime"] if len(found) > limit else None
        return {"scenes": shown, "total": len(scenes), "continueAt": more}

    @server.tool()
    def read_transcript(
        context: Context,
        job_id: JobIdText,
        start: From = 0,
        end: Until = None,
        track: Annotated[int | None, Field(description="Of a job with several tracks.")] = None,
        max_characters: Annotated[int, Field(ge=200, le=50_000)] = 4_000,
    ) -> JsonObject:
        """Read what is said between two times, segment by segment with times and speakers."""
        with _calling(open_client(context)) as client:
            transcript = client.get_transcript(job_id, track=track)
        names = {speaker["id"]: speaker["label"] for speaker in transcript["speakers"]}
        shown: list[JsonObject] = []
        for segment in transcript["segments"]:
            if not _overlaps(segment, start, end):
                continue
            max_characters -= len(segment["text"])
            if max_characters < 0 and shown:
                return {"segments": shown, "continueAt": segment["startTime"]}
            shown.append(
                {
                    "startTime": segment["startTime"],
                    "endTime": segment["endTime"],
                    "speaker": names.get(segment["speaker"]),
                    "text": segment["text"],
                }
            )
        return {"segments": shown, "continueAt": None}


def _hit(hit: JsonObject) -> JsonObject:
    names = (
        *("jobId", "fileName", "kind", "startTime", "endTime"),
        *("sceneIndex", "speaker", "speakerLabel"),
    )
    return {name: hit[name] for name in names if name in hit} | {"text": hit["snippet"]["text"]}


def _overlaps(item: JsonObject, start: float, end: float | None) -> bool:
    return bool(item["endTime"] > start and (end is None or item["startTime"] < end))
