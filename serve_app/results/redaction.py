"""Redacting a job: its personal data hidden from all that shows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from pipelines.across import redaction
from pipelines.across.redaction_patterns import PersonalData
from pipelines.codec import from_json, to_json
from pipelines.types import TranscriptSegment
from serve_app.api.schemas import Uuid, doc, each_once
from serve_app.context import AppContext
from serve_app.results.availability import no_result, require_stage
from storage import history, jobs
from storage.database import Connection
from storage.history import Change
from storage.job_records import JobRecord
from storage.types import ANALYSES, StageName, StageStatus
from storage.uploads import want_muted_preview

RedactedKinds = Annotated[
    list[Annotated[PersonalData, Field(strict=False)]],
    Field(min_length=1, max_length=len(PersonalData), json_schema_extra={"uniqueItems": True}),
    each_once("kind"),
]


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
    """Return what is hidden, or will be."""
    kinds = [PersonalData(it) for it in job.source.redact]
    if job.redact_error is not None:
        return {"kinds": kinds, "status": "failed", "reason": job.redact_error}
    pending = job.redact_after is not None or job.completed_at is None
    return {"kinds": kinds, "status": "pending" if pending else "completed"}


def redacted_kinds(job: JobRecord) -> frozenset[PersonalData]:
    """Return what is hidden of the job's texts."""
    return frozenset(map(PersonalData, job.source.redact))


async def known_of(connection: Connection, job: JobRecord) -> redaction.Known:
    """Return what was found in texts of the job until now."""
    phrases = await history.list_hidden(connection, job)
    kinds = {each: PersonalData(kind) for each, kind in phrases.items()}
    return redaction.Known((job.rerun_of or job.id).bytes, kinds)


async def keep_known(connection: Connection, job: JobRecord, known: redaction.Known) -> None:
    """Hide what was found in all texts of a locked job: at once in those to come; where something
    is new those that are published are redacted again."""
    is_new = bool(known.kinds) and await history.add_hidden(connection, job, known.kinds)
    if is_new and any(job.stages[each].status is StageStatus.COMPLETED for each in ANALYSES):
        await redact_again(connection, job)


async def redact_again(connection: Connection, job: JobRecord) -> None:
    """Have the job redacted, and with it its reruns, or the job that it renews."""
    first = job.rerun_of or job.id
    for each in (first, *await history.list_reruns(connection, first)):
        await history.request_redaction(connection, each, job.source.redact)


async def hidden_label(connection: Connection, job: JobRecord, label: str) -> str:
    """Return a label that a speaker is given, without what is hidden of the job; locks that."""
    locked = await jobs.find_job(connection, job.id, for_update=True)
    if locked is None or not locked.source.redact:
        return label
    [shown] = redaction.redact_texts(
        [label], (), redaction.no_recognizer, await known_of(connection, locked)
    )
    return shown


async def want_preview(context: AppContext, connection: Connection, job: JobRecord) -> None:
    """Have another preview made of a redacted job's media, if it has one file of its own."""
    key = await history.find_source_key(connection, job)
    if job.hides_sound and key is not None and context.settings.previews:
        await want_muted_preview(connection, job.id, key)


async def add_muted(
    context: AppContext, connection: Connection, job: JobRecord, muted: Sequence[redaction.Span]
) -> None:
    """More intervals of a redacted job's media to be silent."""
    before = await history.find_muted(connection, job.id)
    everything = [*redaction.merged([*before, *muted])]
    if everything != [*before]:
        await history.store_muted(connection, job.id, everything)
        await want_preview(context, connection, job)


async def find_muted(connection: Connection, job: JobRecord) -> tuple[redaction.Span, ...]:
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
    return await history.find_muted(connection, job.id)


def change_between(
    before: Sequence[TranscriptSegment], after: Iterable[TranscriptSegment]
) -> Change:
    """Return what makes redacted segments of those before; as many."""
    pairs = enumerate(zip(before, after, strict=True))
    return {"splices": [(at, 1, [to_json(new)]) for at, (old, new) in pairs if new != old]}


def redacted_change(
    change: Change,
    language: str | None,
    kinds: frozenset[PersonalData],
    recognizer: redaction.FindEntities,
    known: redaction.Known,
) -> tuple[Change, list[redaction.Span]]:
    """Return a correction without personal data and what is ``known``, which is added to; and when
    what was left out is spoken."""
    recognizer = redaction.remembered(recognizer)
    for _ in range(2):  # what the last segment has is hidden in the first
        splices, muted = [], list[redaction.Span]()
        for first, count, new in change["splices"]:
            segments = [from_json(TranscriptSegment, each) for each in new]
            found = redaction.redact_segments(segments, language, kinds, recognizer, known)
            splices.append((first, count, to_json(found.segments)))
            # What is beside them is of segments that stay.
            room = (segments[0].start_ms, segments[-1].end_ms) if segments else (0, 0)
            muted += ((max(room[0], start), min(room[1], end)) for start, end in found.muted)
    return change | {"splices": splices}, [*redaction.merged(muted)]
