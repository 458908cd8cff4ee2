"""What a runner writes: each stage's outcome in one transaction, under its lease.

Every function raises LeaseLostError, having written nothing, if the job is no
longer the runner's. A stage that has ended stays as it ended: a runner that did
not learn of its own commit may publish again, and nothing happens twice. What ends
a stage returns the job's end, where that ended too.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines import types
from pipelines.across.redaction import Known
from pipelines.across.redaction_patterns import PersonalData
from pipelines.across.voices import recognise
from pipelines.codec import to_json
from pipelines.stages import skip_reason
from serve_app import pricing
from serve_app.jobs.answers import warning_document
from serve_app.jobs.service import end_job, finish_if_ended
from serve_app.pricing import PriceTable
from serve_app.results.receipts import StageReceipt
from serve_app.results.redaction import keep_known
from serve_app.work.comparing import KeptSounds
from storage import history, jobs, keys, ledger, results, uploads
from storage.database import Connection
from storage.duplicates import Keys, store_keys
from storage.history import Change, Span
from storage.job_records import JobRecord
from storage.results import TrackTranscript
from storage.search_index import file_rows, insert_rows
from storage.types import ANALYSES, ENDED_STATUSES, JobState, StageName, StageStatus
from storage.voices import keep_voices, list_samples


@dataclass(frozen=True, slots=True)
class Lease:
    """A runner's right to a job."""

    job_id: uuid.UUID
    token: uuid.UUID


@dataclass(frozen=True, slots=True)
class KeptVoices:
    """What speakers sound like, of a job with `voices`, by track."""

    model: str
    """Names what made the vectors."""
    by_track: Mapping[int, Sequence[types.SpeakerVoice]]


async def start_stage(connection: Connection, lease: Lease, stage: StageName) -> None:
    """Mark a stage running."""
    await jobs.lock_leased(connection, lease.job_id, lease.token)
    await jobs.set_stage(connection, lease.job_id, stage, StageStatus.RUNNING)


async def raise_hold(
    connection: Connection, lease: Lease, media: types.MediaInfo, prices: PriceTable
) -> None:
    """Fix the job's price now that its duration is known, and hold all of it.

    Raises StageError INSUFFICIENT_CREDITS if the account cannot cover it. A job
    that another runner quoted already keeps that quote.
    """
    job = await jobs.lock_leased(connection, lease.job_id, lease.token)
    if job.quote_cents is not None:
        return
    await keys.lock_account(connection, job.account_id)
    usage = await jobs.month_usage_seconds(connection, job.account_id, except_job=job.id)
    billable = pricing.billable_seconds(prices, media.duration_seconds)
    to_run = tuple(
        stage for stage in ANALYSES if skip_reason(stage, job.processing_mode, media) is None
    )
    quote = pricing.quote(
        prices,
        billable,
        job.tier,
        to_run,
        audio_tracks=max(1, len(media.audio)),
        prior_usage_seconds=usage,
    )
    await jobs.set_quote(
        connection,
        job.id,
        duration_ms=round(media.duration_seconds * 1000),
        billable_seconds=billable,
        quote_cents={str(name): cents for name, cents in quote.items()},
    )
    missing = sum(quote.values()) - job.held_cents
    if missing <= 0:
        return
    try:
        await ledger.hold(connection, job.account_id, job.id, missing, "price for the duration")
    except ledger.InsufficientCreditsError:
        raise types.StageError(
            types.StageCode.INSUFFICIENT_CREDITS,
            f"The credits do not cover the full length of {media.duration_seconds:.0f} s.",
        ) from None


async def publish_ingest(
    connection: Connection,
    lease: Lease,
    *,
    media: types.MediaInfo,
    result: dict[str, Any],
    track_names: list[str],
    warnings: Sequence[Mapping[str, Any]],
    timings: dict[str, float],
    preview_of: str | None = None,
    receipt: StageReceipt | None = None,
) -> JobState | None:
    """Complete ingest; analyses that the media has nothing for are skipped.

    ``preview_of`` is the object to make a preview of, if any.
    """
    job = await jobs.lock_leased(connection, lease.job_id, lease.token)
    if job.stages[StageName.INGEST].status in ENDED_STATUSES:
        return None
    await jobs.set_ingest_result(
        connection, job.id, result=result, track_names=track_names, warnings=warnings
    )
    named = file_rows(job.file_name, round(media.duration_seconds * 1000))
    await insert_rows(connection, job.id, named, StageName.INGEST)
    await jobs.set_stage(
        connection,
        job.id,
        StageName.INGEST,
        StageStatus.COMPLETED,
        timings=timings,
        receipt=receipt,
    )
    if preview_of is not None:
        await uploads.want_preview(connection, job.id, preview_of)
    for stage in ANALYSES:
        reason = skip_reason(stage, job.processing_mode, media)
        if reason is not None and job.stages[stage].status not in ENDED_STATUSES:
            await jobs.set_stage(connection, job.id, stage, StageStatus.SKIPPED, skip_reason=reason)
    return await finish_if_ended(connection, job.id)


async def publish_scenes(
    connection: Connection,
    lease: Lease,
    scenes: Sequence[Mapping[str, Any]],
    timings: dict[str, float],
    *,
    made_with: str | None = None,
    overview: Mapping[str, Any] | None = None,
    people: Sequence[Mapping[str, Any]] | None = None,
    warnings: Sequence[Mapping[str, Any]] = (),
    receipt: StageReceipt | None = None,
    fingerprints: bytes | None = None,
    shot_keys: Sequence[Keys] = (),
    known: Known | None = None,
) -> JobState | None:
    """Complete vision: result, charge and status together. What is ``known`` is hidden in all texts
    of a redacted job to come."""
    job = await jobs.lock_leased(connection, lease.job_id, lease.token)
    if job.stages[StageName.VISION].status in ENDED_STATUSES:
        return None
    await history.store_scenes(connection, job.id, scenes, overview, people, fingerprints)
    if fingerprints is not None:
        await store_keys(connection, job.id, job.account_id, "shot", shot_keys)
    if known is not None:
        await keep_known(connection, job, known)
    if warnings:
        await jobs.add_warnings(connection, job.id, warnings)
    return await _complete(connection, job, StageName.VISION, timings, made_with, receipt)


async def publish_transcripts(
    connection: Connection,
    lease: Lease,
    tracks: list[TrackTranscript],
    timings: dict[str, float],
    *,
    made_with: str | None = None,
    warnings: Sequence[types.PipelineWarning] = (),
    summary: Sequence[types.TimedSentence] | types.PipelineWarning | None = None,
    voices: KeptVoices | None = None,
    before: Mapping[int, Change] | None = None,
    muted: Sequence[Span] = (),
    receipt: StageReceipt | None = None,
    sounds: KeptSounds | None = None,
    known: Known | None = None,
) -> JobState | None:
    """Complete the transcript stage: results of all tracks, charge and status together.

    ``summary`` is the warning where it should have been made and was not. Of redacted ones
    ``before`` leads back to the machine's, by index, their sound is ``muted``, and what is
    ``known`` is hidden in all texts to come.
    """
    job = await jobs.lock_leased(connection, lease.job_id, lease.token)
    if job.stages[StageName.TRANSCRIPT].status in ENDED_STATUSES:
        return None
    await history.store_transcripts(connection, job.id, tracks)
    if voices is not None:
        await _recognise(connection, job, voices)
    for index, change in (before or {}).items():
        await history.store_redaction(connection, job.id, index, change)
    if muted:
        await history.store_muted(connection, job.id, muted)
    if sounds is not None:
        await sounds.store(connection, job)
    if known is not None:
        await keep_known(connection, job, known)
    if isinstance(summary, types.PipelineWarning):
        warnings = [*warnings, summary]
    elif summary is not None:
        await history.store_summary(connection, job.id, to_json(summary))
    documents = [warning_document(each, StageName.TRANSCRIPT) for each in warnings]
    await jobs.add_warnings(connection, job.id, documents)
    made = timings, made_with, receipt
    free = _free_tracks([*job.warnings, *documents], max(1, len(job.clips or ())))
    return await _complete(
        connection, job, StageName.TRANSCRIPT, *made, tracks=len(tracks), free_tracks=len(free)
    )


def _free_tracks(warnings: Iterable[Mapping[str, Any]], clips: int) -> set[int]:
    """Return the indices of tracks that are not charged: they have no sound, in none of so many
    clips, or sound the same as one before them."""
    found = Counter((each["code"], each.get("trackIndex")) for each in warnings)
    return {
        track
        for (code, track), count in found.items()
        if track is not None
        and (
            code == types.WarningCode.AUDIO_REPEATED
            or (code == types.WarningCode.AUDIO_SILENT and count >= clips)
        )
    }


async def _recognise(connection: Connection, job: JobRecord, kept: KeptVoices) -> None:
    """Keep what the job's speakers sound like, and name those who are voices of the account."""
    samples = await list_samples(connection, job.account_id, kept.model)
    if PersonalData.NAME in job.source.redact:
        samples = []  # a voice's name would be the label
    known = [(str(each.voice_id), each.vector) for each in samples]
    names = {str(each.voice_id): each.name for each in samples}
    for index, found in kept.by_track.items():
        vectors = [(each.speaker, each.vector) for each in found]
        await keep_voices(connection, job.id, index, vectors, kept.model)
        for speaker, voice in recognise(found, known).items():
            named = speaker, names[voice], uuid.UUID(voice)
            await results.name_speaker(connection, job.id, index, *named)


async def _complete(
    connection: Connection,
    job: JobRecord,
    stage: StageName,
    timings: dict[str, float],
    made_with: str | None,
    receipt: StageReceipt | None,
    *,
    tracks: int = 1,
    free_tracks: int = 0,
) -> JobState | None:
    price = (job.quote_cents or {}).get(str(stage), 0)
    waived = pricing.waived_cents(price, tracks, tracks - free_tracks)
    await ledger.charge(connection, job.account_id, job.id, stage, price - waived)
    await jobs.set_stage(
        connection,
        job.id,
        stage,
        StageStatus.COMPLETED,
        timings=timings,
        made_with=made_with,
        receipt=receipt,
        waived_cents=waived,
    )
    return await finish_if_ended(connection, job.id)


async def fail_stage(
    connection: Connection, lease: Lease, stage: StageName, error: types.StageError
) -> JobState | None:
    """Fail a stage. Without ingest nothing else can run, so that fails the job at once."""
    job = await jobs.lock_leased(connection, lease.job_id, lease.token)
    if job.stages[stage].status in ENDED_STATUSES:
        return None
    failure: dict[str, Any] = {"error_code": str(error.code), "error_message": error.message}
    await jobs.set_stage(connection, job.id, stage, StageStatus.FAILED, **failure)
    if stage is StageName.INGEST:
        moved = await end_job(connection, job, JobState.FAILED, **failure)
        return JobState.FAILED if moved else None
    return await finish_if_ended(connection, job.id)
