"""Pages of jobs: the list with what starts new ones, and a job with its results."""

# ruff: noqa: N803  (names of paths)
from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from models.profiles import translation_targets
from pipelines.across.redaction_patterns import PersonalData
from pipelines.codec import decode
from pipelines.types import Person, StageCode
from serve_app.api import parameters
from serve_app.api.envelope import Context, base_url
from serve_app.api.urls import OVERVIEW_STILL, still_path
from serve_app.context import AppContext
from serve_app.crypto import Signer
from serve_app.dashboard import PATH
from serve_app.dashboard.access import CurrentViewer, PageRoute, SentForm
from serve_app.dashboard.pages import days, page
from serve_app.dashboard.results import Part, lines_part, scenes_part, speaker_labels
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.jobs import service
from serve_app.jobs.answers import render_job, render_summary
from serve_app.jobs.plans import JobPlan, Planner, plan_batch, plan_from_url
from serve_app.jobs.schemas import (
    MOST_SOURCE_SECONDS,
    CreateBatchBody,
    CreateJobFromUrlBody,
)
from serve_app.media.source import PlayableMedia, find_media
from serve_app.observability.metrics import record_job_end
from serve_app.results.scenes import OverviewJson, find_overview, overview_json
from serve_app.results.transcripts import SummarySentenceJson, default_track, find_summary
from serve_app.uploads.access import upload_fields
from storage import types
from storage.cleaning import find_media_end, is_held
from storage.duplicates import StoredDuplicate, list_duplicates
from storage.job_records import JobOrder, JobRecord, list_jobs
from storage.queue import QueuePlace, find_place
from storage.results import Track, find_people, list_tracks
from storage.translations import list_translations
from storage.uploads import list_uploads

PAGE_SIZE = 25
MOST_PAGES = 20
"""Of the list, that are shown as one."""
ADVICE: dict[StageCode, str] = {
    StageCode.VALIDATION_FAILED: "Check that the file plays on your machine and is not longer than "
    "the service takes, then send it again.",
    StageCode.INSUFFICIENT_CREDITS: "Add credits, then send the file again. Nothing was charged.",
    StageCode.FETCH_FAILED: "Open the URL in a private window: it must lead straight to the file, "
    "without signing in. Then start a new job.",
    StageCode.INGEST_FAILED: "Send the file again. If it fails again, convert it to MP4 first.",
    StageCode.EXTERNAL_AUDIO_FAILED: "Check the separate audio file, then start a new job.",
    StageCode.VISION_FAILED: "Start a new job with scenes only; the transcript is not charged "
    "twice.",
    StageCode.CONTENT_BLOCKED: "The operator's policy does not permit this content. Ask the "
    "operator if you think that this is a mistake.",
    StageCode.TRANSCRIPT_FAILED: "Start a new job with the transcript only; scenes are not charged "
    "twice.",
    StageCode.PROCESSING_FAILED: "Send the file again. If it fails again, ask the operator and "
    "name the job's id.",
    StageCode.CANCELLED: "Start a new job if you still need the result.",
    StageCode.EXPIRED: "Start a new job; the file must arrive within an hour.",
}
"""What to do about a job's or a stage's error."""

ENDED_WITHOUT_RESULT: dict[str, str] = {
    "processing_mode": "This job was not asked for it.",
    "audio_only_input": "The media has no picture.",
    "no_audio": "The media has no sound.",
    "stage_skipped": "This stage was skipped.",
    "stage_failed": "An earlier stage failed.",
    "job_cancelled": "The job was cancelled first.",
    "job_expired": "The file never arrived.",
    "job_failed": "The job failed first.",
}
"""Why a stage was skipped, by ``SkipReason``."""

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get(PATH)
async def get_jobs(
    request: Request,
    context: Context,
    viewer: CurrentViewer,
    state: str = "",
    name: str = "",
    first: Annotated[str, Query(alias="from")] = "",
    last: Annotated[str, Query(alias="to")] = "",
    zone: str = "",
    tag: str = "",
    speaker: str = "",
    sort: JobOrder = JobOrder.NEWEST,
    cursor: str = "",
    pages: Annotated[int, Query(ge=1, le=MOST_PAGES), parameters.WHOLE_NUMBER] = 1,
) -> Response:
    """The list, newest first, and the forms for new jobs."""
    given = {"name": name.strip(), "from": first, "to": last, "zone": zone}
    given |= {"tag": tag.strip(), "speaker": speaker.strip(), "state": state}
    if sort is not JobOrder.NEWEST:
        given["sort"] = sort
    return await _jobs_page(request, context, viewer.account.id, given, cursor, pages)


@router.get(f"{PATH}/")
async def get_jobs_with_slash() -> Response:
    """Where people type it so."""
    return RedirectResponse(PATH, status_code=307)


async def _jobs_page(
    request: Request,
    context: AppContext,
    account_id: uuid.UUID,
    given: dict[str, str] = {},  # noqa: B006
    cursor: str = "",
    pages: int = 1,
    *,
    problem: ApiError | None = None,
) -> Response:
    secret, state = context.signer.secret, given.get("state")
    order = JobOrder(given.get("sort", JobOrder.NEWEST))
    try:
        after = (
            parameters.decode_cursor(cursor, secret=secret, account_id=account_id)
            if cursor
            else None
        )
        wanted = types.JobState(state) if state else None
    except (parameters.BadCursorError, ValueError):
        raise invalid("There is no such page of the list.") from None
    since, until = days(*(given.get(it, "") for it in ("from", "to", "zone")))
    limit = pages * PAGE_SIZE
    found = await context.database.read(
        list_jobs,
        account_id,
        limit=limit + 1,
        after=None if after is None else (after.created_at, after.job_id),
        state=wanted,
        name=given.get("name") or None,
        tag=given.get("tag") or None,
        speaker=given.get("speaker") or None,
        order=order,
        created_from=since,
        created_to=until,
    )
    shown, last = found[:limit], None
    if len(found) > limit and order is JobOrder.NEWEST:
        last = parameters.Cursor(shown[-1].created_at, shown[-1].id)
    return await page(
        request,
        "jobs.html",
        status=200 if problem is None else problem.status,
        rows=[(render_summary(job), _still(context.signer, job)) for job in shown],
        state=state,
        filters={
            name: value
            for name, value in given.items()
            if value and name != "state" and (name != "zone" or since or until)
        },
        cursor=cursor,
        older=last and parameters.encode_cursor(last, secret=secret, account_id=account_id),
        further=pages + 1 if len(found) > limit and pages < MOST_PAGES else None,
        orders=list(JobOrder),
        modes=list(types.ProcessingMode),
        problem=problem,
        form=getattr(request.state, "form", {}),
    )


def _still(signer: Signer, job: JobRecord) -> str | None:
    """Return a picture from a third into the job, as the first one is often black; the whole
    video's where it has no cut, None where it has no picture."""
    if (
        job.erased_at
        or job.stages[types.StageName.VISION].status is not types.StageStatus.COMPLETED
    ):
        return None
    name = job.scene_count // 3 if job.scene_count else OVERVIEW_STILL
    return still_path(signer, job.id, name)


@router.post(f"{PATH}/jobs")
async def create_from_urls(
    request: Request, context: Context, viewer: CurrentViewer, form: SentForm
) -> Response:
    """Create jobs for the URLs of the form, one per line."""
    account_id = viewer.account.id
    planner = Planner(context.settings, context.encrypter, account_id, base_url(request))
    try:
        plans = _plans(planner, form)
        created = await context.database.write(service.create_jobs, account_id, plans, context)
    except ApiError as error:
        return await _jobs_page(request, context, account_id, problem=error)
    target = f"{PATH}/jobs/{created[0].id}" if len(created) == 1 else PATH
    return RedirectResponse(target, status_code=303)


def _plans(planner: Planner, form: dict[str, str]) -> list[JobPlan]:
    options: dict[str, Any] = {"processingMode": form.get("mode") or "all"}
    if terms := [term.strip() for term in form.get("keyterms", "").split(",") if term.strip()]:
        options["keyterms"] = terms
    if speakers := form.get("speakers"):
        number = parameters.whole_number(speakers)
        options["speakersExpected"] = speakers if number is None else number
    urls = form.get("urls", "").split()
    try:
        if len(urls) == 1:
            one = CreateJobFromUrlBody.model_validate({"url": urls[0]} | options)
            return [plan_from_url(planner, one)]
        mode = "continuous" if form.get("continuous") else "independent"
        body = {"mode": mode, "clips": [{"sourceUrl": url} for url in urls]} | options
        return plan_batch(planner, CreateBatchBody.model_validate(body))
    except ValidationError as error:
        raise _named(error) from None


_FIELDS = {"url": "URLs", "clips": "URLs", "keyterms": "Key terms",
           "speakersExpected": "Speakers", "processingMode": "Analysis"}  # fmt: skip


def _named(error: ValidationError) -> ApiError:
    first = error.errors()[0]
    field = str(first["loc"][0]) if first["loc"] else "clips"
    if field == "clips":
        return invalid("Enter 1 to 100 URLs, one per line.", "urls")
    return invalid(f"{_FIELDS.get(field, field)}: {first['msg']}.", field)


MOST_DUPLICATES = 200
"""Of a job, that its page sums up."""


@dataclass(slots=True)
class OtherJob:
    """Another job with some of a job's media."""

    job_id: uuid.UUID
    file_name: str
    start_seconds: float
    """Where the first of it begins in this job."""
    speed: float
    """How much faster the other one runs."""
    counts: Counter[str] = field(default_factory=Counter)
    """Of each kind; ``file``: most of the shorter one."""


@dataclass(slots=True)
class JobView:
    """What the page of a job shows beside the job."""

    track_names: list[str]
    media: PlayableMedia
    kept_until: datetime | None
    """When the media of an ended job is removed; None where it is gone or held."""
    may_be_kept: bool
    """Whether the operator permits that it is kept longer."""
    upload: str | None
    """The signed path at which a job that awaits its file takes it over tus."""
    place: QueuePlace | None
    """Of a queued job."""
    is_held: bool
    """By a legal hold, on it or on its account."""
    learns_voices: bool
    """Whether a name that a speaker gets becomes that of the voice."""
    people: list[tuple[Person, str]]
    """Whose faces are seen in several scenes, each with the URL of a picture."""
    summary: list[SummarySentenceJson] | None
    overview: OverviewJson | None
    scenes: Part | None = None
    poster: str | None = None
    track: Track | None = None
    """The one that is shown, once it was transcribed or failed to be."""
    lines: Part | None = None
    speakers: dict[str, str] = field(default_factory=dict)
    """Names by the ids that stand in the transcript."""
    translations: list[str] = field(default_factory=list)
    """Languages that the transcript is there in beside its own."""
    duplicates: list[OtherJob] = field(default_factory=list)


@router.get(f"{PATH}/jobs/{{jobId}}")
async def get_job(
    request: Request,
    context: Context,
    viewer: CurrentViewer,
    jobId: str,
    track: Annotated[int | None, parameters.WHOLE_NUMBER] = None,
) -> Response:
    """Show a job: its stages while it runs, its results once they are there."""
    async with context.database.statement() as connection:
        job = await service.get_job(connection, viewer.account.id, jobId)
        media = await find_media(context, connection, job)
        retention = context.settings.retention
        kept_until = None if media.is_gone else await find_media_end(connection, job.id, retention)
        place = await find_place(connection, job.id) if job.state is types.JobState.QUEUED else None
        awaits = job.state is types.JobState.AWAITING_UPLOAD
        uploads = await list_uploads(connection, job.id) if awaits else []
        summary = await find_summary(connection, job.id)
        seen = await find_overview(connection, job.id)
        held = await is_held(connection, job.id)
        faces = await find_people(connection, job.id)
        tracks = await list_tracks(connection, job.id)
        made = await list_translations(connection, job.id)
        same = await list_duplicates(connection, job.id, limit=MOST_DUPLICATES)
    overview = None
    if seen is not None:
        overview = overview_json(seen, partial(still_path, context.signer, job.id))
    upload, settings = None, context.settings
    if uploads:
        signer = context.signer
        # Of this origin, whatever name the service has outside.
        fields = upload_fields(job, uploads, signer=signer, settings=settings, public="", direct={})
        upload = fields["resumableUploadUrl"]
    seen_people = decode(tuple[Person, ...], (faces or "[]").encode(), ignore_unknown=True)
    people = [(each, still_path(context.signer, job.id, each.id)) for each in seen_people]
    learns = job.source.voices and settings.voices
    most = retention.most_source_seconds
    longest = timedelta(seconds=MOST_SOURCE_SECONDS if most is None else most)
    ended = job.completed_at
    may_be_kept = bool(kept_until and ended and kept_until < ended + longest)
    shown = JobView(
        job.track_names, media, kept_until, may_be_kept, upload, place, held, learns, people,
        summary, overview)  # fmt: skip
    shown.translations = [
        each.language for each in made if each.status is types.TranslationStatus.COMPLETED
    ]
    shown.duplicates = _by_job(same)
    await _add_results(context, job, shown, tracks, track)
    return await page(
        request,
        "job.html",
        job=render_job(job, base_url(request)),
        shown=shown,
        track=(track or 0) if shown.track is None else shown.track.track_index,
        running=job.state not in types.TERMINAL_STATES,
        slots=settings.jobs_at_once,
        kinds=list(PersonalData),
        keep_seconds=MOST_SOURCE_SECONDS,
        skip_reasons=ENDED_WITHOUT_RESULT,
        targets=translation_targets(settings.model_profile, settings.models_dir),
        advice=ADVICE,
    )


def _by_job(found: list[tuple[StoredDuplicate, str]]) -> list[OtherJob]:
    """Return files first, then those with most in common."""
    summed: dict[uuid.UUID, OtherJob] = {}
    for each, file_name in found:
        begins, speed = each.start_ms / 1000, each.speed
        other = summed.setdefault(each.other_id, OtherJob(each.other_id, file_name, begins, speed))
        other.counts[each.kind] += 1
        other.start_seconds = min(other.start_seconds, begins)
    return sorted(summed.values(), key=lambda it: (-it.counts["file"], -it.counts.total()))


async def _add_results(
    context: AppContext, job: JobRecord, shown: JobView, tracks: list[Track], track: int | None
) -> None:
    scenes = await context.parts.find_scenes(job.id)
    if scenes is not None and scenes.count:
        shown.scenes = scenes_part(context.signer, job, scenes)
        shown.poster = still_path(context.signer, job.id, scenes.count // 3)
    if shown.overview is not None:
        shown.poster = shown.overview["thumbnailUrl"]
    transcribed = job.stages[types.StageName.TRANSCRIPT].status is types.StageStatus.COMPLETED
    if job.erased_at is not None or not transcribed:
        return
    named = (each for each in tracks if each.track_index == track)
    shown.track = default_track(tracks) if track is None else next(named, None)
    if shown.track is None:
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such audio track.")
    for segments in (await context.parts.read_segments(job.id, shown.track.track_index)).values():
        shown.lines = lines_part(job, shown.track, segments)
        shown.speakers = speaker_labels(shown.track, segments)


@router.post(f"{PATH}/jobs/{{jobId}}/erase")
async def erase_job(context: Context, viewer: CurrentViewer, jobId: str) -> Response:
    """Erase a job's content and show what is left of it."""
    await context.database.write(service.erase_job, viewer.account.id, jobId)
    return RedirectResponse(f"{PATH}/jobs/{jobId}", status_code=303)


@router.post(f"{PATH}/jobs/{{jobId}}/cancel")
async def cancel_job(context: Context, viewer: CurrentViewer, jobId: str) -> Response:
    """Cancel, and show the job again; one that has just ended is shown as it ended."""
    try:
        job = await context.database.write(service.cancel_job, viewer.account.id, jobId)
        record_job_end(context.metrics, job.state)
    except ApiError as error:
        if error.code is not ErrorCode.JOB_NOT_CANCELLABLE:
            raise
    return RedirectResponse(f"{PATH}/jobs/{jobId}", status_code=303)
