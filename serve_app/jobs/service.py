"""Use cases of jobs: create, read, cancel, end. Each takes the caller's transaction and commits
nothing itself."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from pipelines.speech.edits import plain
from serve_app import pricing
from serve_app.api.schemas import timestamp
from serve_app.api.urls import parse_job_id
from serve_app.context import AppContext
from serve_app.crypto import Signer
from serve_app.errors import CREDITS_OR_CAP, ApiError, ErrorCode, existing, invalid
from serve_app.jobs.answers import render_job
from serve_app.jobs.plans import JobPlan
from serve_app.jobs.schemas import MAX_FILE_NAME, MAX_KEYTERMS, JobChangesBody
from serve_app.results.redaction import redact_again
from serve_app.results.scenes import StoredSeen, read_seen, seen_json
from serve_app.results.transcripts import default_track, legacy_entries, transcript_of
from serve_app.settings import Settings
from storage import (
    audit,
    duplicates,
    endpoints,
    history,
    jobs,
    keys,
    ledger,
    results,
    translations,
    webhooks,
)
from storage.archives import list_archives
from storage.cleaning import erase_content, is_held
from storage.database import Connection, DatabaseError
from storage.job_records import JobRecord, JobSource
from storage.queue import set_priority
from storage.results import TrackTranscript
from storage.types import (
    ENDED_STATUSES,
    TERMINAL_EVENTS,
    TERMINAL_STATES,
    EventType,
    JobState,
    Priority,
    SkipReason,
    StageName,
    StageStatus,
    TranslationStatus,
)
from storage.webhooks import NewEvent

log = logging.getLogger("vas.credits")

EVENT_FORMS: dict[str, Callable[[Connection, JobRecord], Awaitable[bytes]]] = {}
"""The body of a callback at the end of a job that came through another interface, by its name."""

ROOM_PART = 5
"""One in so many of an account's unfinished jobs is left by its archives to other creations."""


async def create_jobs(
    connection: Connection,
    account_id: uuid.UUID,
    plans: list[JobPlan],
    context: AppContext,
    *,
    leaves_room: bool = False,
) -> list[JobRecord]:
    """Return all of the planned jobs, their minimum charges held, or none of them.

    Jobs that leave room are created only while one in ROOM_PART of the limit stays free; a limit of
    one is theirs too. Raises THROTTLED, TOO_MANY_ACTIVE_JOBS, INSUFFICIENT_CREDITS, INVALID_REQUEST
    for a priority that the account may not use, or SERVICE_UNAVAILABLE where the balance cannot be
    verified.
    """
    settings = context.settings
    account = await _check_admission(
        connection, account_id, len(plans), settings, leaves_room=leaves_room
    )
    capped_key_id = await check_caps(connection, len(plans))
    ids = {clip.archive_id for plan in plans for clip in plan.job.source.clips} - {None}
    owners = [it for each in ids for it in await list_archives(connection, account_id, each)]
    given = [*(each.vocabulary for each in owners), account.vocabulary]
    vocabularies = [each for each in given if each is not None]
    created = []
    for plan in plans:
        require_priority(plan.job.priority, account, settings)
        source = with_vocabulary(plan.job.source, vocabularies)
        if account.recognises:
            usual = {"people": settings.people, "voices": settings.voices}
            usual = {name: it for name, it in usual.items() if name not in source.model_fields_set}
            source = source.model_copy(update=usual)
        # Its share of the queue, by the rules of its account and the service.
        job = replace(
            plan.job,
            source=source,
            queue_weight=settings.priority_weights[plan.job.priority] * account.queue_weight,
            running_limit=account.max_running_jobs or settings.max_running_jobs,
            capped_key_id=capped_key_id,
        )
        await jobs.insert_job(connection, job, plan.uploads)
        with _verifying_balance():
            amount = pricing.minimum_hold(context.prices, plan.job.tier, plan.job.processing_mode)
            try:
                await ledger.hold(
                    connection, plan.job.account_id, plan.job.id, amount, "minimum charge"
                )
            except ledger.InsufficientCreditsError as error:
                message = None if capped_key_id is None else CREDITS_OR_CAP
                raise ApiError(ErrorCode.INSUFFICIENT_CREDITS, message) from error
        await audit.record(connection, account_id, "createJob", job_id=plan.job.id)
        created.append(await get_job(connection, account_id, str(plan.job.id)))
    return created


def with_vocabulary(source: JobSource, vocabularies: Sequence[dict[str, Any]]) -> JobSource:
    """Return the source of a job that has these; the first ones count before the others."""
    further = [it for each in vocabularies for it in each["keyterms"] if it not in source.keyterms]
    replacements = {
        plain(it["from"]).lower(): (it["from"], it["to"])
        for each in reversed(vocabularies)
        for it in each["replacements"]
    }
    terms = (*dict.fromkeys(further),)[: MAX_KEYTERMS - len(source.keyterms)]
    given = {"vocabulary": terms, "replacements": (*replacements.values(),)}
    is_same = given == {name: getattr(source, name) for name in given}
    return source if is_same else source.model_copy(update=given)


async def _check_admission(
    connection: Connection,
    account_id: uuid.UUID,
    count: int,
    settings: Settings,
    *,
    leaves_room: bool,
) -> keys.Account:
    # The lock makes concurrent creations of one account count one after the other.
    with _verifying_balance():
        account = await keys.lock_account(connection, account_id)
    if account.throttled_at is not None:
        raise ApiError(ErrorCode.THROTTLED)
    limit = account.max_active_jobs or settings.max_active_jobs
    if leaves_room:
        limit = max(1, limit - math.ceil(limit / ROOM_PART))
    active = await jobs.count_unfinished(connection, account_id)
    if active + count > limit:
        raise ApiError(
            ErrorCode.TOO_MANY_ACTIVE_JOBS, extra={"maxActiveJobs": limit, "activeJobs": active}
        )
    return account


async def check_caps(connection: Connection, count: int) -> uuid.UUID | None:
    """Return the key whose caps the jobs count for, if any: the caller's, or the first that it
    replaced.

    Raises TOO_MANY_ACTIVE_JOBS.
    """
    key = await keys.find_capped_key(connection)
    if key is None:
        return None
    if key.max_active_jobs is not None and key.active_jobs + count > key.max_active_jobs:
        message = "The key has as many unfinished jobs as it may have."
        counts = {"maxActiveJobs": key.max_active_jobs, "activeJobs": key.active_jobs}
        raise ApiError(ErrorCode.TOO_MANY_ACTIVE_JOBS, message, extra=counts)
    return key.first_id


def require_priority(priority: str, account: keys.Account, settings: Settings) -> None:
    """Raises INVALID_REQUEST for one that the account may not use."""
    highest = Priority(account.highest_priority or settings.highest_priority)
    urgency = list(Priority)
    if urgency.index(Priority(priority)) > urgency.index(highest):
        raise invalid(f"The account may use priorities up to {highest}.", "priority")


@contextlib.contextmanager
def _verifying_balance() -> Iterator[None]:
    """No job is created on credits that could not be looked at, whatever the reason."""
    try:
        yield
    except DatabaseError as error:
        log.exception("the balance could not be verified")
        raise ApiError(
            ErrorCode.SERVICE_UNAVAILABLE, "The credit balance could not be verified."
        ) from error


async def get_job(
    connection: Connection, account_id: uuid.UUID, job_id: str, *, for_update: bool = False
) -> JobRecord:
    """Return the account's job; NOT_FOUND for foreign, missing and malformed ids alike."""
    found = await jobs.find_job(
        connection, parse_job_id(job_id), account_id=account_id, for_update=for_update
    )
    return existing(found, "job")


async def cancel_job(connection: Connection, account_id: uuid.UUID, job_id: str) -> JobRecord:
    """Cancel an unfinished job; raises JOB_NOT_CANCELLABLE for one that has ended."""
    job = await get_job(connection, account_id, job_id, for_update=True)
    if job.state in TERMINAL_STATES:
        message = f"The job is {job.state} already."
        found = {"jobId": str(job.id), "state": str(job.state)}
        raise ApiError(ErrorCode.JOB_NOT_CANCELLABLE, message, extra=found)
    await end_job(
        connection,
        job,
        JobState.CANCELLED,
        open_stages=SkipReason.JOB_CANCELLED,
        stage_error_code="CANCELLED",
    )
    await audit.record(connection, account_id, "cancelJob", job_id=job.id)
    return await get_job(connection, account_id, job_id)


async def erase_job(
    connection: Connection, account_id: uuid.UUID, job_id: str, *, despite_hold: bool = False
) -> JobRecord:
    """Erase a job's content, cancelling it first; erased once, it stays as it is.

    Raises LEGAL_HOLD.
    """
    if not despite_hold and await is_held(connection, parse_job_id(job_id)):
        raise ApiError(ErrorCode.LEGAL_HOLD)
    for rerun in await history.list_reruns(connection, parse_job_id(job_id)):
        if despite_hold or not await is_held(connection, rerun):
            await erase_job(connection, account_id, str(rerun), despite_hold=despite_hold)
    job = await get_job(connection, account_id, job_id, for_update=True)
    if job.erased_at is not None:
        return job
    if not despite_hold and await is_held(connection, job.id):
        raise ApiError(ErrorCode.LEGAL_HOLD)
    if job.state not in TERMINAL_STATES:
        job = await cancel_job(connection, account_id, job_id)
    # Locked before the deliveries that their deletion takes along.
    subscribers = await endpoints.list_subscribers(connection, job.id, EventType.JOB_ERASED)
    for each in await translations.list_translations(connection, job.id):
        if each.status is TranslationStatus.PENDING:
            await ledger.refund_translation(connection, account_id, job.id, each)
    await erase_content(connection, job)
    await audit.record(connection, account_id, "eraseJob", job_id=job.id)
    erased = await get_job(connection, account_id, job_id)
    await _add_events(connection, erased, EventType.JOB_ERASED, subscribers)
    return erased


async def change_job(
    connection: Connection,
    job_id: uuid.UUID,
    changes: JobChangesBody,
    settings: Settings,
    *,
    by_operator: bool = False,
) -> JobRecord:
    """Return the job with another name, which keeps its suffix, and what else is given.

    Raises LEGAL_HOLD, NOT_FOUND for one that was erased, and INVALID_REQUEST for a priority that
    comes too late, or that the account may not use while ``by_operator`` is not set.
    """
    job = existing(await jobs.find_job(connection, job_id, for_update=True), "job")
    if job.erased_at is not None:
        raise ApiError(ErrorCode.NOT_FOUND, "The job was erased.")
    if await is_held(connection, job.id):
        raise ApiError(ErrorCode.LEGAL_HOLD)
    name, suffix = changes.fileName or job.file_name, PurePosixPath(job.file_name).suffix
    if not name.lower().endswith(suffix.lower()):  # by which players know what it is
        name = name[: MAX_FILE_NAME - len(suffix)] + suffix
    given = changes.model_dump(include={"metadata", "tags"}, exclude_none=True)
    if changes.retention is not None:
        names = {"sourceSeconds": "source_retention_seconds", "resultDays": "result_retention_days"}
        kept = changes.retention.model_dump(exclude_unset=True)
        own = {names[name]: value for name, value in kept.items()}
        given["source"] = job.source.model_copy(update=own).stored()
    await jobs.change_job(connection, job, name, **given)
    if changes.priority is not None and changes.priority != job.priority:
        if job.state not in {JobState.AWAITING_UPLOAD, JobState.QUEUED}:
            raise invalid("Only a job that waits can have another priority.", "priority")
        account = await keys.get_account(connection, str(job.account_id))
        if not by_operator:
            require_priority(changes.priority, account, settings)
        weight = settings.priority_weights[Priority(changes.priority)] * account.queue_weight
        await set_priority(connection, job.id, Priority(changes.priority), weight)
    detail = " ".join(sorted(changes.model_fields_set)) or None
    await audit.record(connection, job.account_id, "changeJob", job_id=job.id, detail=detail)
    return await get_job(connection, job.account_id, str(job.id))


@dataclass(frozen=True, slots=True)
class StoredResults:
    """What a job's answer includes of its results, each None until its stage is completed."""

    seen: StoredSeen | None = None
    track: TrackTranscript | None = None


async def read_results(
    connection: Connection, job: JobRecord, include: frozenset[str]
) -> StoredResults:
    """Return scenes and the default track, of those that ``include`` names."""
    if job.erased_at is not None:
        return StoredResults()
    seen, track = None, None
    if "scenes" in include and job.stages[StageName.VISION].status is StageStatus.COMPLETED:
        seen = await read_seen(connection, job)
    transcribed = job.stages[StageName.TRANSCRIPT].status is StageStatus.COMPLETED
    if "transcript" in include and transcribed:
        tracks = await results.list_transcripts(connection, job.id, words=False)
        track = default_track(tracks)
    return StoredResults(seen, track)


def processed_data(
    root: str, signer: Signer, job: JobRecord, stored: StoredResults
) -> Mapping[str, object]:
    """``{ length, scenes, overview, transcript }``, each only once its stage is completed; scenes
    as they are written."""
    length = None if job.duration_ms is None else job.duration_ms / 1000
    data: dict[str, object] = {"length": length}
    if stored.seen is not None:
        scenes, whole = seen_json(root, signer, job, stored.seen)
        data["scenes"] = ({**scene, "endTs": scene["endTime"]} for scene in scenes)
        if whole is not None:
            data["overview"] = whole
    if stored.track is not None:
        data["transcript"] = legacy_entries(transcript_of(stored.track))
    return data


class ReplayError(Exception):
    """Why there is nothing to send again, in a sentence."""


async def announce_progress(connection: Connection, job: JobRecord) -> None:
    """Write an event of a running job's progress for each endpoint that is due for one."""
    subscribers = await endpoints.list_subscribers(connection, job.id, EventType.JOB_PROGRESS)
    if subscribers:
        ids = [endpoint_id for endpoint_id, _ in subscribers]
        await endpoints.drop_progress(connection, job.id, ids)
        await _add_events(connection, job, EventType.JOB_PROGRESS, subscribers)


async def announce_translation(
    connection: Connection, job: JobRecord, event_type: EventType, **translation: Any
) -> None:
    """Write an event of a translation's end, beside the job in its data, for each endpoint."""
    subscribers = await endpoints.list_subscribers(connection, job.id, event_type)
    await _add_events(connection, job, event_type, subscribers, translation=translation)


_ONCE_A_JOB = frozenset({*TERMINAL_EVENTS.values(), EventType.JOB_ERASED})


async def _add_events(
    connection: Connection,
    job: JobRecord,
    event_type: EventType,
    subscribers: Sequence[tuple[uuid.UUID, str]],
    **more: Any,
) -> None:
    now = datetime.now(UTC)
    repeats = None if event_type in _ONCE_A_JOB else now
    for endpoint_id, url in subscribers:
        event = _new_event(job, event_type, url, now, **more)
        await webhooks.add_event(
            connection, replace(event, endpoint_id=endpoint_id, written_at=repeats)
        )


def _new_event(
    job: JobRecord, event_type: EventType, callback_url: str, written_at: datetime, **more: Any
) -> NewEvent:
    body = {
        "type": str(event_type),
        "timestamp": timestamp(written_at),
        "data": {**render_job(job, job.source.base_url), **more},
    }
    encoded = json.dumps(body, ensure_ascii=False).encode()
    return NewEvent(job.account_id, job.id, event_type, callback_url, encoded)


async def _callback_event(
    connection: Connection, job: JobRecord, event_type: EventType, url: str, at: datetime
) -> NewEvent:
    """Return the event of a job's end, in the form of the interface that it came through."""
    event = _new_event(job, event_type, url, at)
    form = EVENT_FORMS.get(job.source.protocol.get("name", ""))
    return event if form is None else replace(event, body=await form(connection, job))


async def rewrite_callback(connection: Connection, job: JobRecord) -> None:
    """Write the event of a job's end again where it quotes the transcript, which was redacted."""
    event_type = TERMINAL_EVENTS.get(job.state)
    if job.source.protocol and event_type and job.callback_url and job.completed_at:
        url, at = job.callback_url, job.completed_at
        await webhooks.rewrite_event(
            connection, await _callback_event(connection, job, event_type, url, at)
        )


async def replay(
    connection: Connection, job_id: str, endpoint_id: str | None = None
) -> dict[str, Any]:
    """Start a new series of attempts at the job's event, under its old ``webhook-id``; or at those
    of an endpoint of its account.

    An event that is still in the log keeps its bytes; one that has left it is written
    anew from the job. Raises ReplayError.
    """
    try:
        job = await jobs.find_job(connection, uuid.UUID(job_id))
    except ValueError as error:
        raise ReplayError(f"{job_id} is no job's id: ids are UUIDs.") from error
    if job is None:
        raise ReplayError(f"There is no job {job_id}.")
    if endpoint_id is not None:
        ids, url = await _replay_to_endpoint(connection, job, endpoint_id)
        return {"events": ids, "urlHost": urlsplit(url).hostname}
    if job.callback_url is None:
        raise ReplayError(
            f"Job {job.id} has no callbackUrl: no event belongs to it. Those of an endpoint are "
            "sent again with --endpoint."
        )
    event_type = TERMINAL_EVENTS.get(job.state)
    if event_type is None or job.completed_at is None:
        raise ReplayError(f"Job {job.id} is {job.state}: no event belongs to that.")
    event = await _callback_event(connection, job, event_type, job.callback_url, job.completed_at)
    if not await webhooks.replay_event(connection, event):
        raise ReplayError(
            f"The endpoint answered 410 Gone to {event_type} of job {job.id}: "
            "no further deliveries of that are made."
        )
    return {
        "id": event.id,
        "eventType": str(event_type),
        "urlHost": urlsplit(job.callback_url).hostname,
    }


async def _replay_to_endpoint(
    connection: Connection, job: JobRecord, endpoint_id: str
) -> tuple[list[str], str]:
    """Return all of the job's events that the endpoint has in its log, and that of its end, where
    it subscribes to that; with its URL."""
    of_account = await endpoints.list_endpoints(connection, job.account_id)
    found = next((each for each in of_account if str(each.id) == endpoint_id.lower()), None)
    if found is None:
        raise ReplayError(f"The account of job {job.id} has no endpoint {endpoint_id}.")
    ids = {*await webhooks.replay_logged_events(connection, job.id, found.id)}
    end = EventType.JOB_ERASED if job.erased_at else TERMINAL_EVENTS.get(job.state)
    at = job.erased_at or job.completed_at
    if end in found.event_types and end is not None and at is not None:
        event = replace(_new_event(job, end, found.url, at), endpoint_id=found.id)
        if await webhooks.replay_event(connection, event):
            ids.add(event.id)
    if not ids:
        raise ReplayError(f"The endpoint {found.id} has no event of job {job.id} to send again.")
    return sorted(ids), found.url


async def end_job(
    connection: Connection,
    job: JobRecord,
    state: JobState,
    *,
    open_stages: SkipReason = SkipReason.JOB_FAILED,
    stage_error_code: str | None = None,
    error_code: str | None = None,
    error_message: str | None = None,
) -> bool:
    """Move ``job`` to a terminal state with everything that belongs to it.

    Stages that have not ended are skipped for ``open_stages``; the rest of the
    hold is released; the webhook events are written. Returns False if the job is no
    longer in the state that ``job`` shows: then only what was still held is released.
    """
    await ledger.release_rest(connection, job.id, f"job {state}")
    moved = await jobs.set_state(
        connection,
        job.id,
        expected=job.state,
        state=state,
        error_code=error_code,
        error_message=error_message,
    )
    if not moved:
        return False
    await jobs.skip_open_stages(connection, job.id, open_stages, error_code=stage_error_code)
    await duplicates.queue_comparison(connection, job.id)
    event_type, ended = TERMINAL_EVENTS.get(state), await jobs.find_job(connection, job.id)
    if event_type is not None and ended is not None:
        if ended.callback_url is not None:
            await webhooks.add_event(
                connection,
                await _callback_event(
                    connection, ended, event_type, ended.callback_url, datetime.now(UTC)
                ),
            )
        subscribers = await endpoints.list_subscribers(connection, job.id, event_type)
        await _add_events(connection, ended, event_type, subscribers)
        await endpoints.drop_progress(connection, job.id)
    return True


async def finish_if_ended(connection: Connection, job_id: uuid.UUID) -> JobState | None:
    """End a processing job once none of its stages is open any more; its end, if this was it."""
    job = await jobs.find_job(connection, job_id)
    if job is None or any(stage.status not in ENDED_STATUSES for stage in job.stages.values()):
        return None
    failed = [
        job.stages[name] for name in StageName if job.stages[name].status is StageStatus.FAILED
    ]
    if not failed:
        if job.rerun_of is not None:
            await history.exchange_results(connection, job)
            if job.source.redact:  # what one stage found is hidden in what the other one keeps
                await redact_again(connection, job)
        return JobState.COMPLETED if await end_job(connection, job, JobState.COMPLETED) else None
    code, message = failed[0].error_code, failed[0].error_message
    failure: dict[str, Any] = {"error_code": code, "error_message": message}
    moved = await end_job(connection, job, JobState.FAILED, **failure)
    return JobState.FAILED if moved else None
