"""Results made again where models, versions or settings changed since: estimated, then queued as a
job of its own that exchanges results with the first one when it is completed."""

# ruff: noqa: N815  (names of the wire)
from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Annotated, Literal, NotRequired

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from serve_app import pricing
from serve_app.api.authentication import CreationRoute, CurrentJob
from serve_app.api.envelope import API_PREFIX, Context, success
from serve_app.api.openapi import OF_RESULTS, answers
from serve_app.api.schemas import Answer, Body, Count, Uuid, doc
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode, existing, invalid
from serve_app.jobs.plans import JobPlan
from serve_app.jobs.service import create_jobs
from serve_app.results.availability import require_stage
from storage import history, jobs, ledger
from storage.audit import record
from storage.cleaning import is_held
from storage.database import Connection
from storage.history import RerunBasis
from storage.job_records import JobRecord, NewJob
from storage.types import ANALYSES, MODE_STAGES, JobState, Priority, ProcessingMode, StageName

Analysis = Literal["vision", "transcript"]


class RerunBody(Body):
    """Body of ``POST /jobs/{jobId}/rerun``."""

    dryRun: Annotated[bool, doc("Only say what would be done, and its price.")] = False
    stages: Annotated[
        Annotated[list[Analysis], Field(min_length=1, max_length=2)] | None,
        doc("These stages, changed or not; all that changed if not given."),
    ] = None


class RerunStage(TypedDict):
    """A completed stage of the job."""

    changed: Annotated[
        bool, doc("Whether models, versions or settings changed since its result was made.")
    ]
    rerun: Annotated[bool, doc("Whether it is made again.")]
    reason: NotRequired[
        Annotated[Literal["corrected"], doc("Why it is kept: people have corrected it.")]
    ]


class RerunStages(TypedDict):
    """The completed analyses of a job."""

    vision: NotRequired[RerunStage]
    transcript: NotRequired[RerunStage]


class RerunJson(TypedDict):
    """What a rerun does, and what it costs."""

    jobId: Annotated[Uuid, doc("The job whose results are renewed.")]
    dryRun: Annotated[bool, doc("As requested.")]
    stages: RerunStages
    estimatedCents: Annotated[Count, doc("The price of the stages that are made again.", 0)]
    rerunJobId: Annotated[
        Uuid | None, doc("The job that makes them; null where nothing is made again.")
    ]


router = APIRouter(prefix=API_PREFIX, route_class=CreationRoute, tags=["Jobs"])


@router.post(
    "/jobs/{jobId}/rerun",
    **answers(
        Answer[RerunJson],
        "What is made again: nothing where nothing changed.",
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INSUFFICIENT_CREDITS,
        ErrorCode.NOT_FOUND,
        *OF_RESULTS,
        ErrorCode.LEGAL_HOLD,
        ErrorCode.SOURCE_GONE,
        ErrorCode.TOO_MANY_ACTIVE_JOBS,
        ErrorCode.THROTTLED,
        status=202,
    ),
)
async def rerun_job(context: Context, job: CurrentJob, body: RerunBody) -> Response:
    """Make results again.

    Stages whose models, versions or settings changed since are made again, by a job of their own
    (`rerunOf`). Once it is completed this job has the new results, all at once, and that job those
    they replaced. A transcript that was corrected stays. Until then this job's results are as they
    were, and if it fails they remain."""
    wanted = None if body.stages is None else frozenset(map(StageName, body.stages))
    made = await context.database.write(rerun, job.id, context, wanted=wanted, dry_run=body.dryRun)
    return success(made, status=202)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The stages to make again, and their prices."""

    basis: RerunBasis
    stages: tuple[StageName, ...]
    quote_cents: dict[StageName, int]


async def rerun(
    connection: Connection,
    job_id: uuid.UUID,
    context: AppContext,
    *,
    wanted: frozenset[StageName] | None = None,
    dry_run: bool = False,
) -> RerunJson:
    """Queue a rerun of the ``wanted`` stages, else of those that changed; one is under way at most.

    Raises RESULTS_NOT_READY, RESULTS_UNAVAILABLE, NOT_FOUND, LEGAL_HOLD, SOURCE_GONE,
    SERVICE_UNAVAILABLE where no runner has ever started, and what creations raise.
    """
    locked = existing(await jobs.find_job(connection, job_id, for_update=True), "job")
    if locked.rerun_of is not None:
        raise invalid("This job is a rerun itself: name the job in rerunOf.")
    require_stage(locked, StageName.INGEST)
    for stage in MODE_STAGES[locked.processing_mode]:
        if locked.state is not JobState.COMPLETED:
            require_stage(locked, stage)
    if await is_held(connection, locked.id):
        raise ApiError(ErrorCode.LEGAL_HOLD)
    plan = await _plan(connection, locked, context, wanted)
    rerun_id = plan.basis.open_rerun
    if plan.stages and rerun_id is None:
        if not plan.basis.media_kept:
            raise ApiError(ErrorCode.SOURCE_GONE)
        if not dry_run:
            rerun_id = await _queue(connection, locked, plan, context)
    return {
        "jobId": str(locked.id),
        "dryRun": dry_run,
        "stages": _shown(plan),
        "estimatedCents": sum(plan.quote_cents.values()),
        "rerunJobId": None if rerun_id is None else str(rerun_id),
    }


def _shown(plan: _Plan) -> RerunStages:
    shown: RerunStages = {}
    for stage, basis in plan.basis.stages.items():
        each: RerunStage = {"changed": basis.changed, "rerun": stage in plan.stages}
        if stage is StageName.TRANSCRIPT and plan.basis.corrected:
            each["reason"] = "corrected"
        shown["vision" if stage is StageName.VISION else "transcript"] = each
    return shown


async def _plan(
    connection: Connection, job: JobRecord, context: AppContext, wanted: frozenset[StageName] | None
) -> _Plan:
    basis = await history.get_basis(connection, job.id)
    if any(each.current is None for each in basis.stages.values()):
        raise ApiError(
            ErrorCode.SERVICE_UNAVAILABLE, "No runner has recorded yet what it makes results with."
        )
    chosen = tuple(
        stage
        for stage in ANALYSES
        if stage in basis.stages
        and (basis.stages[stage].changed if wanted is None else stage in wanted)
        and not (stage is StageName.TRANSCRIPT and basis.corrected)
    )
    quote = pricing.quote(
        context.prices,
        job.billable_seconds or 0,
        job.tier,
        chosen,
        audio_tracks=max(1, basis.tracks),
        prior_usage_seconds=await jobs.month_usage_seconds(connection, job.account_id),
    )
    return _Plan(basis, chosen, quote)


_MODES = {stages: mode for mode, stages in MODE_STAGES.items()}


async def _queue(
    connection: Connection, job: JobRecord, plan: _Plan, context: AppContext
) -> uuid.UUID:
    mode = _MODES[frozenset({StageName.INGEST, *plan.stages})]
    source = job.source.model_copy(update={"traceparent": None})
    planned = NewJob(
        account_id=job.account_id,
        state=JobState.QUEUED,
        processing_mode=ProcessingMode(mode),
        file_name=job.file_name,
        source=source,
        tier=job.tier,
        metadata=job.metadata,
        tags=job.tags,
        priority=Priority.LOW,
        rerun_of=job.id,
    )
    [made] = await create_jobs(connection, job.account_id, [JobPlan(planned)], context)
    await jobs.set_quote(
        connection,
        made.id,
        duration_ms=job.duration_ms or 0,
        billable_seconds=job.billable_seconds or 0,
        quote_cents={str(stage): cents for stage, cents in plan.quote_cents.items()},
    )
    missing = sum(plan.quote_cents.values()) - made.held_cents
    try:
        await ledger.hold(connection, job.account_id, made.id, max(0, missing), "price of a rerun")
    except ledger.InsufficientCreditsError as error:
        raise ApiError(ErrorCode.INSUFFICIENT_CREDITS) from error
    await history.begin_rerun(connection, made.id)
    await record(connection, job.account_id, "rerunJob", job_id=job.id, target=made.id)
    return made.id
