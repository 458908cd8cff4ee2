"""A job's progress as server-sent events (HTML Standard, section 9.2), for browsers and scripts."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from serve_app.api.authentication import CurrentJob, KeyedRoute
from serve_app.api.downloads import EventsPlace
from serve_app.api.envelope import API_PREFIX, NO_STORE, Context, base_url
from serve_app.api.openapi import headers
from serve_app.context import AppContext
from serve_app.jobs.answers import render_job
from serve_app.periodic import Periodic
from storage import jobs
from storage.database import UNAVAILABLE, Database
from storage.job_records import JobRecord
from storage.types import EventType

CHANGES_CHANNEL = "vas_job_changes"
"""NOTIFY channel of the triggers of jobs and stages; the payload is the job's id."""

HEARTBEAT_SECONDS = 15.0
"""Proxies end connections that are silent for longer. The job is read again then in any case."""

STREAM_SECONDS = 300.0
"""Then clients connect again by themselves, and their credential is looked at again."""

_TYPE = "text/event-stream"
_EACH_EVENT = {
    "type": "object",
    "description": "Each event of the stream.",
    "properties": {
        "id": {"type": "string", "description": "What `Last-Event-ID` sends back."},
        "event": {"type": "string", "description": "`job.progress`, or of the end."},
        "data": {"type": "string", "description": "The job, as JSON in one line."},
    },
    "required": ["id", "event", "data"],
}
_EXAMPLE = {
    "id": "5f0c2b7a9d3e4f1a",
    "event": "job.progress",
    "data": '{"jobId":"…","state":"processing"}',
}

router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Jobs"])


class JobChanges:
    """Wakes who watches a job when it changes; listens only while somebody watches."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._listening: asyncio.Task[None] | None = None

    @contextmanager
    def watch(self, job_id: uuid.UUID) -> Iterator[asyncio.Event]:
        """An event that is set whenever the job may have changed."""
        changed, name = asyncio.Event(), str(job_id)
        self._watchers.setdefault(name, set()).add(changed)
        if self._listening is None:
            listening = Periodic("listening for changes of jobs", 0.0, self._listen)
            self._listening = asyncio.create_task(listening.run())
        try:
            yield changed
        finally:
            self._watchers[name].discard(changed)
            if not self._watchers[name]:
                del self._watchers[name]
            if not self._watchers and self._listening is not None:
                self._listening.cancel()
                self._listening = None

    async def _listen(self) -> None:
        """The heartbeat covers for it whenever this connection is down."""
        async for job_id in self._database.listen(CHANGES_CHANNEL):
            # At the beginning, without an id: whatever changed meanwhile woke nobody.
            names = [job_id] if job_id else list(self._watchers)
            for changed in (each for name in names for each in self._watchers.get(name, ())):
                changed.set()


@router.get(
    "/jobs/{jobId}/events",
    response_class=Response,
    response_description="Events as they come. `204`: the job has ended, and the last event that "
    "the client names was of that.",
    responses={
        200: {
            "content": {_TYPE: {"schema": _EACH_EVENT, "example": _EXAMPLE}},
            "headers": headers("Cache-Control"),
        },
        204: {"description": "There is nothing to come."},
    },
)
async def stream_job_events(
    request: Request,
    context: Context,
    job: CurrentJob,
    place: EventsPlace,
    last_event_id: Annotated[
        str | None, Header(alias="Last-Event-ID", description="`id` of the last event received.")
    ] = None,
) -> Response:
    """Follow a job.

    Server-sent events, each with the job as `getJob` shows it without results: one at once, one
    whenever its state or progress changes, the last one when it has ended. They are named
    `job.progress` until then, and by the state at the end, such as `job.completed`.

    A comment every 15 seconds keeps the connection. After 5 minutes it ends, for the client to
    connect again with `Last-Event-ID`, as browsers do by themselves. An account follows at most 8
    jobs at once on a replica of the API."""
    if job.completed_at is not None and last_event_id == _event(job, base_url(request))[0]:
        return Response(status_code=204)
    events = _stream(request, context, job, last_event_id)
    # Proxies that follow nginx pass each event on at once.
    sent = NO_STORE | {"X-Accel-Buffering": "no"}
    return place.stream(events, media_type=_TYPE, headers=sent)


def _event(job: JobRecord, base: str) -> tuple[str, str]:
    """Return its id, the same as long as the job is, and the event."""
    name = EventType.JOB_PROGRESS if job.completed_at is None else f"job.{job.state}"
    data = json.dumps(render_job(job, base), ensure_ascii=False)
    event_id = hashlib.sha256(data.encode()).hexdigest()[:16]
    return event_id, f"id: {event_id}\nevent: {name}\ndata: {data}\n\n"


async def _stream(
    request: Request, context: AppContext, job: JobRecord, last_id: str | None
) -> AsyncGenerator[str]:
    changes: JobChanges = request.app.state.job_changes
    time = asyncio.get_running_loop().time
    ends_at, base = time() + STREAM_SECONDS, base_url(request)
    with changes.watch(job.id) as changed:
        while True:
            changed.clear()
            try:
                now = await context.database.read(jobs.find_job, job.id)
            except UNAVAILABLE:
                return  # the client comes again
            event_id, event = _event(now or job, base)
            if event_id != last_id:
                yield event
                last_id = event_id
            if now is None or now.completed_at is not None or time() >= ends_at:
                return
            try:
                await asyncio.wait_for(changed.wait(), min(HEARTBEAT_SECONDS, ends_at - time()))
            except TimeoutError:
                yield ": still here\n\n"
