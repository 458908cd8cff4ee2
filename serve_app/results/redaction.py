"""Redacting a job: its personal data hidden from all that shows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Literal, NotRequired

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from typing_extensions import TypedDict

from pipelines.across.redaction import (
    FindEntities,
    Known,
    Span,
    merged,
    no_recognizer,
    redact_segments,
    redact_texts,
    remembered,
)
from pipelines.across.redaction_patterns import PersonalData
from pipelines.codec import from_json, to_json
from pipelines.types import TranscriptSegment
from serve_app.api.authentication import CurrentJob, KeyedRoute
from serve_app.api.envelope import API_PREFIX, Context, success
from serve_app.api.openapi import errors
from serve_app.api.schemas import Answer, Uuid, doc, each_once
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode
from serve_app.results.availability import no_result, require_stage
from storage import jobs, redactions, reruns
from storage.audit import AuditAction, record
from storage.cleaning import is_held
from storage.database import Connection
from storage.job_records import JobRecord
from storage.previews import want_muted_preview
from storage.revisions import Change
from storage.types import ANALYSES, StageName, StageStatus

RedactedKinds = Annotated[
    list[Annotated[PersonalData, Field(strict=False)]],
    Field(min_length=1, max_length=len(PersonalData), json_schema_extra={"uniqueItems": True}),
    each_once("kind"),
]


class RedactionBody(BaseModel):
    """Body of ``POST /jobs/{jobId}/redact``."""

    model_config = ConfigDict(strict=True, extra="ignore")
    kinds: Annotated[RedactedKinds, doc("What to hide.", ["email", "phone", "name"])]


class RedactionJson(TypedDict):
    """What is hidden of a job's personal data."""

    kinds: Annotated[
        list[PersonalData],
        doc("What is replaced by `[email]`, `[phone]` … and silent.", ["email", "name"]),
    ]
    status: Annotated[
        Literal["pending", "completed", "failed"],
        doc("`completed` once nothing shows it any more; `failed`: ask again.", "completed"),
    ]
    reason: NotRequired[Annotated[str, doc("Why it failed. Texts show it still.")]]


class RedactedJob(TypedDict):
    """A job's redaction."""

    jobId: Annotated[Uuid, doc("The job.")]
    redaction: RedactionJson


def redaction_json(job: JobRecord) -> RedactionJson:
    """What is hidden, or will be."""
    kinds = [PersonalData(it) for it in job.source.redact]
    if job.redact_error is not None:
        return {"kinds": kinds, "status": "failed", "reason": job.redact_error}
    pending = job.redact_after is not None or job.completed_at is None
    return {"kinds": kinds, "status": "pending" if pending else "completed"}


def redacted_kinds(job: JobRecord) -> frozenset[PersonalData]:
    """What is hidden of the job's texts."""
    return frozenset(map(PersonalData, job.source.redact))


async def known_of(connection: Connection, job: JobRecord) -> Known:
    """What was found in texts of the job until now."""
    phrases = await redactions.list_hidden(connection, job)
    kinds = {each: PersonalData(kind) for each, kind in phrases.items()}
    return Known((job.rerun_of or job.id).bytes, kinds)


async def keep_known(connection: Connection, job: JobRecord, known: Known) -> None:
    """Hide what was found in all texts of a locked job: at once in those to come; where something
    is new those that are published are redacted again."""
    is_new = bool(known.kinds) and await redactions.add_hidden(connection, job, known.kinds)
    if is_new and any(job.stages[each].status is StageStatus.COMPLETED for each in ANALYSES):
        await redact_again(connection, job)


async def redact_again(connection: Connection, job: JobRecord) -> None:
    """Have the job redacted, and with it its reruns, or the job that it renews."""
    first = job.rerun_of or job.id
    for each in (first, *await reruns.list_reruns(connection, first)):
        await redactions.request_redaction(connection, each, job.source.redact)


async def hidden_label(connection: Connection, job: JobRecord, label: str) -> str:
    """A label that a speaker is given, without what is hidden of the job; locks that."""
    locked = await jobs.find_job(connection, job.id, for_update=True)
    if locked is None or not locked.source.redact:
        return label
    [shown] = redact_texts([label], (), no_recognizer, await known_of(connection, locked))
    return shown


async def want_preview(context: AppContext, connection: Connection, job: JobRecord) -> None:
    """Have another preview made of a redacted job's media, if it has one file of its own."""
    key = await redactions.find_source_key(connection, job)
    if job.hides_sound and key is not None and context.settings.previews:
        await want_muted_preview(connection, job.id, key)


async def add_muted(
    context: AppContext, connection: Connection, job: JobRecord, muted: Sequence[Span]
) -> None:
    """More stretches of a redacted job's media to be silent."""
    before = await redactions.find_muted(connection, job.id)
    everything = [*merged([*before, *muted])]
    if everything != [*before]:
        await redactions.store_muted(connection, job.id, everything)
        await want_preview(context, connection, job)


async def find_muted(connection: Connection, job: JobRecord) -> tuple[Span, ...]:
    """When the sound of the job's media is to be silent.

    Raises RESULTS_NOT_READY or RESULTS_UNAVAILABLE where that is not known.
    """
    if not job.hides_sound:
        return ()
    require_stage(job, StageName.TRANSCRIPT)
    if job.redact_after is not None:
        raise no_result(job, StageName.TRANSCRIPT, "The job is being redacted.")
    if job.redact_error is not None:
        raise no_result(job, StageName.TRANSCRIPT, job.redact_error, "redaction_failed")
    return await redactions.find_muted(connection, job.id)


def change_between(
    before: Sequence[TranscriptSegment], after: Iterable[TranscriptSegment]
) -> Change:
    """What makes redacted segments of those before; as many."""
    pairs = enumerate(zip(before, after, strict=True))
    return {"splices": [(at, 1, [to_json(new)]) for at, (old, new) in pairs if new != old]}


def redacted_change(
    change: Change,
    language: str | None,
    kinds: frozenset[PersonalData],
    recognizer: FindEntities,
    known: Known,
) -> tuple[Change, list[Span]]:
    """A correction without personal data and what is ``known``, which is added to; and when what
    was left out is spoken."""
    recognizer = remembered(recognizer)
    for _ in range(2):  # what the last segment has is hidden in the first
        splices, muted = [], list[Span]()
        for first, count, new in change["splices"]:
            segments = [from_json(TranscriptSegment, each) for each in new]
            found = redact_segments(segments, language, kinds, recognizer, known)
            splices.append((first, count, to_json(found.segments)))
            # What is beside them is of segments that stay.
            room = (segments[0].start_ms, segments[-1].end_ms) if segments else (0, 0)
            muted += ((max(room[0], start), min(room[1], end)) for start, end in found.muted)
    return change | {"splices": splices}, [*merged(muted)]


router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])


@router.post(
    "/jobs/{jobId}/redact",
    status_code=202,
    response_model=Answer[RedactedJob],
    response_description="It is being hidden, or was already.",
    responses=errors(ErrorCode.LEGAL_HOLD, ErrorCode.RESULTS_NOT_READY),
)
async def redact_job(
    request: Request, context: Context, job: CurrentJob, body: RedactionBody
) -> Response:
    """Hide personal data.

    Of a job that has ended; for one to come there is `redact` at its creation.

    Transcripts, captions, chapters, search, summaries, translations, descriptions and writing in
    the picture show `[email]`, `[phone]` and so on in the place of what is found, and clips and
    previews are silent there; the media itself is not given out any more. It is done within
    seconds, `redaction.status` of the job shows when; what is corrected afterwards is redacted too.
    It cannot be undone, only extended by more kinds. One that `failed` is tried again by the same
    request; until then texts show what they did, and no media is given out.

    Names and places are found in English, all else in any language; as it is spoken ("john dot
    smith at example dot com") in English too. What is found in one text is hidden in all that the
    job has then, whatever its case and accents: a name in the sound is in descriptions and titles
    too, and corrections and labels that come later hide it as well; what a correction has that is
    new is hidden in the other texts within seconds. A speaker whose label has it gets its first
    label back. Names of files and tracks, and `metadata`, are the customer's own and stay."""
    async with context.database.transaction() as connection:
        locked = await jobs.find_job(connection, job.id, for_update=True)
        if locked is None or locked.erased_at is not None:
            raise ApiError(ErrorCode.NOT_FOUND, "The job was erased.")
        if locked.completed_at is None:
            raise no_result(locked, StageName.TRANSCRIPT, "The job has not ended.")
        if (await reruns.get_basis(connection, job.id)).open_rerun is not None:
            raise no_result(locked, StageName.TRANSCRIPT, "A rerun of the job has not ended.")
        if await is_held(connection, job.id):
            raise ApiError(ErrorCode.LEGAL_HOLD)
        present = locked.source.redact
        kinds = [*present, *(it for it in body.kinds if it not in present)]
        if len(kinds) > len(present) or locked.redact_error is not None:
            source = locked.source.model_copy(update={"redact": tuple(kinds)})
            await redact_again(connection, replace(locked, source=source))
            detail = f"kinds={','.join(kinds)}"
            await record(
                connection, job.account_id, AuditAction.REDACT_JOB, job_id=job.id, detail=detail
            )
            found = await jobs.find_job(connection, job.id)
            locked = found or locked
    answer: RedactedJob = {"jobId": str(job.id), "redaction": redaction_json(locked)}
    return success(request, answer, status=202)
