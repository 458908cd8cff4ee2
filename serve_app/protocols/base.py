"""What the interfaces of other services share: their routes, and requests that wait for a job."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from abc import abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    MutableMapping,
)
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.responses import Response
from starlette.types import Message

from pipelines.speech.caption_rules import USUAL
from pipelines.types import StageCode
from serve_app.api import downloads
from serve_app.api.authentication import Bucket, Handler, KeyedRoute, Permission
from serve_app.api.envelope import base_url
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.exports.captions import get_transcript
from serve_app.jobs import service
from serve_app.jobs.events import HEARTBEAT_SECONDS, JobChanges
from serve_app.jobs.plans import JobPlan, Planner, plan_upload
from serve_app.jobs.schemas import CreateJobBody
from serve_app.results.transcripts import default_track, read_tracks
from serve_app.uploads.access import open_slot
from serve_app.uploads.receiving import take, upload_limiter
from storage import jobs, keys
from storage.database import UNAVAILABLE
from storage.job_records import JobRecord, NewJob
from storage.types import JobState
from storage.uploads import MEDIA_SLOT

WAIT_SECONDS = 3600.0
"""The most that a request waits for its job; the proxy's limit for these paths is the same."""
WAITING = downloads.Downloads(downloads.Limit(account=200, replica=384, workers=1))
"""Requests that wait for their jobs, in a process: a connection and a little memory each."""
_PLACE_SECONDS = 60.0
_PLACE_PAUSE_SECONDS = 0.1

AnyBody = TypeVar("AnyBody", bound=BaseModel)


class ProtocolRoute(KeyedRoute):
    """A route with the credentials and the errors of another service, as its SDKs expect them."""

    def _set_terms(self) -> None:
        methods = self.methods or set()
        self.permission = Permission.READ if "GET" in methods else Permission.WRITE
        self.bucket = {"GET": Bucket.READS, "POST": Bucket.CREATION}.get(
            next(iter(methods)), Bucket.WRITES
        )

    @staticmethod
    def key(request: Request) -> str | None:
        """Return a key that is not in one of the native headers; None where it may be in one."""
        return None

    @staticmethod
    @abstractmethod
    def failure(request: Request, error: ApiError) -> Response:
        """Return an error in the form of the other service."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def shown(request: Request) -> Response:
            if key := self.key(request):
                native = (b"authorization", f"Bearer {key}".encode())
                sent = [each for each in request.scope["headers"] if each[0] != native[0]]
                request = Request({**request.scope, "headers": [*sent, native]}, request.receive)
            try:
                return await handle(request)
            except ApiError as error:
                found = error
            except RequestValidationError as error:
                found = invalid("The request is not valid.", str(error.errors()[0]["loc"][-1]))
            except UNAVAILABLE:
                found = ApiError(ErrorCode.SERVICE_UNAVAILABLE)
            return self.failure(request, found)

        return shown


def answer_headers(request: Request, error: ApiError) -> dict[str, str]:
    """Return the headers of an error's answer."""
    promised: dict[str, str] = getattr(request.state, "answer_headers", {})
    return promised | error.headers


def checked(model: type[AnyBody], given: Any) -> AnyBody:
    """Return what was sent, held to its types. Raises INVALID_REQUEST, naming the first field."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"][:1]))
        raise invalid(f"{name}: {first['msg']}.", name) from error


def through(job: NewJob, protocol: Mapping[str, Any]) -> NewJob:
    """Return the job as one that came through a protocol, with the options of its request."""
    source = job.source.model_copy(update={"protocol": dict(protocol)})
    return replace(job, source=source)


async def create(
    request: Request,
    context: AppContext,
    account_id: uuid.UUID,
    plan: Callable[[Planner], JobPlan],
    protocol: Mapping[str, Any] | None = None,
) -> JobRecord:
    """Create the job that is planned, as an operation of the native interface does.

    ``protocol`` is what its answers and its callback follow from.
    """
    planner = Planner(context.settings, context.encrypter, account_id, base_url(request))
    planned = plan(planner)
    if protocol is not None:
        planned = replace(planned, job=through(planned.job, protocol))
    [created] = await context.database.write(service.create_jobs, account_id, [planned], context)
    return created


def bounded(request: Request, limit_bytes: int) -> Callable[[], Any]:
    """Return the request's ``receive`` within a size and above a least rate."""
    received, pace = 0, downloads.ClientPace(downloads.PATIENCE_SECONDS)

    async def receive() -> Message:
        nonlocal received
        began = time.monotonic()
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ApiError(ErrorCode.INVALID_REQUEST, "The upload broke off.", status=499)
        received += len(message.get("body", b""))
        pace.count(len(message.get("body", b"")), time.monotonic() - began)
        if received > limit_bytes:
            raise too_large(limit_bytes)
        if pace.left_seconds < 0:
            raise ApiError(ErrorCode.INVALID_REQUEST, "The upload is too slow.", status=408)
        return message

    return receive


def too_large(limit_bytes: int) -> ApiError:
    message = f"The file must not be larger than {limit_bytes} bytes."
    return ApiError(ErrorCode.FILE_TOO_LARGE, message, param="file")


Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


def received(content: bytes) -> Receive:
    """Return the ``receive`` of a request with this body."""

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    return receive


async def create_sent(
    request: Request,
    context: AppContext,
    account_id: uuid.UUID,
    body: CreateJobBody,
    receive: Receive | None = None,
    protocol: Mapping[str, Any] | None = None,
) -> JobRecord:
    """Create a job and store the request's body as its media, or what ``receive`` gives; a job
    whose media cannot be stored is cancelled."""
    plan = lambda planner: plan_upload(planner, body)  # noqa: E731
    job = await create(request, context, account_id, plan, protocol)
    try:
        slot = await open_slot(context, str(job.id), MEDIA_SLOT)
        sent = request if receive is None else Request(request.scope, receive)
        await take(sent, context, upload_limiter(request), slot)
    except BaseException:
        await forget(context, job)
        raise
    return job


async def _resources() -> AsyncIterator[contextlib.AsyncExitStack]:
    async with contextlib.AsyncExitStack() as resources:
        yield resources


# FastAPI ends it once the answer is sent, or its client is gone.
Resources = Annotated[contextlib.AsyncExitStack, Depends(_resources)]


async def place_among_uploads(
    held: contextlib.ExitStack, request: Request, account_id: uuid.UUID
) -> None:
    """Hold a place among uploads; wait for it, with the body unread. Raises SERVICE_UNAVAILABLE
    where none is free within _PLACE_SECONDS."""
    deadline = time.monotonic() + _PLACE_SECONDS
    while True:
        try:
            held.enter_context(upload_limiter(request).enter(account_id))
        except ApiError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_PLACE_PAUSE_SECONDS)
        else:
            return


async def wait_for_end(
    request: Request, context: AppContext, job_id: uuid.UUID, goes_on: asyncio.Event
) -> JobRecord:
    """Return the job once it has completed. Raises what failed it, and as ``progress``."""
    found: JobRecord | None = None
    async for found in progress(request, context, job_id, goes_on):  # noqa: B007
        pass
    if found is None:
        raise ApiError(ErrorCode.SERVICE_UNAVAILABLE)
    return completed(found)


async def progress(
    request: Request, context: AppContext, job_id: uuid.UUID, goes_on: asyncio.Event
) -> AsyncGenerator[JobRecord]:
    """Yield the job as it changes, and every HEARTBEAT_SECONDS, until it has ended.

    Raises an ApiError where the client is gone, and with its id after WAIT_SECONDS: ``goes_on`` is
    set then.
    """
    changes: JobChanges = request.app.state.job_changes
    gone = asyncio.create_task(_gone(request))
    deadline = time.monotonic() + WAIT_SECONDS
    try:
        with changes.watch(job_id) as changed:
            while time.monotonic() < deadline:
                changed.clear()
                job = await _read(context, job_id)
                if job is not None:
                    yield job
                    if job.completed_at is not None:
                        return
                waiting = asyncio.create_task(changed.wait())
                await asyncio.wait(
                    [waiting, gone], timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                waiting.cancel()
                if gone.done():
                    raise ApiError(ErrorCode.INVALID_REQUEST, "The client is gone.", status=499)
    finally:
        gone.cancel()
    goes_on.set()
    message = (
        f"The job has not ended within {WAIT_SECONDS:.0f} seconds. It goes on: read it as a job."
    )
    raise ApiError(ErrorCode.SERVICE_UNAVAILABLE, message, extra={"jobId": str(job_id)})


async def _read(context: AppContext, job_id: uuid.UUID) -> JobRecord | None:
    """Return the job; None while the database is away. Raises NOT_FOUND."""
    try:
        job = await context.database.read(jobs.find_job, job_id)
    except UNAVAILABLE:
        return None
    if job is None or job.erased_at is not None:
        raise ApiError(ErrorCode.NOT_FOUND, "The job was erased.")
    return job


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def completed(job: JobRecord) -> JobRecord:
    """Return a job that has completed. Raises why it has not: 400 where its file is at fault."""
    if job.state is JobState.COMPLETED:
        return job
    code = job.error_code or job.state.upper()
    of_file = code in {StageCode.VALIDATION_FAILED, StageCode.INGEST_FAILED}
    raise ApiError(
        ErrorCode.INVALID_REQUEST if of_file else ErrorCode.INTERNAL_ERROR,
        job.error_message or "The job was cancelled.",
        param="file" if of_file else None,
        extra={"jobId": str(job.id), "stageCode": code},
    )


async def captions(
    request: Request,
    context: AppContext,
    job: JobRecord,
    form: Literal["srt", "vtt"],
    *,
    language: str | None = None,
    columns: int = USUAL.line_columns,
) -> bytes:
    """Return the default track as a file of captions, as the native interface makes it."""
    async with context.database.statement() as connection:
        track = default_track(await read_tracks(connection, job, words=False)).track_index
    with downloads.downloads_of(request, downloads.Download.FILE).place(job.account_id) as place:
        made = await get_transcript(
            request, context, job, place,
            format=form, track=track, language=language, maxLineLength=columns,
        )  # fmt: skip
    return bytes(made.body)


async def forget(context: AppContext, job: JobRecord, goes_on: asyncio.Event | None = None) -> None:
    """Erase a job that nobody waits for any more; cancel it first where it has not ended.

    One that has ended stays where its account has chosen how long jobs are kept, under a legal
    hold, and where it ``goes_on``.
    """
    if goes_on is not None and goes_on.is_set():
        return
    async with context.database.transaction() as connection:
        account = await keys.get_account(connection, str(job.account_id))
        found = await jobs.find_job(connection, job.id, for_update=True)
        is_kept = (account.source_retention_seconds, account.result_retention_days) != (None, None)
        if found is not None and (found.completed_at is None or not is_kept):
            with contextlib.suppress(ApiError):  # LEGAL_HOLD
                await service.erase_job(connection, job.account_id, str(job.id))
