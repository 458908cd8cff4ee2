"""Redacts jobs: what is about to be published, and what was, a job at a time beside the others."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from pipelines.across import redaction
from pipelines.across.redaction_patterns import PersonalData
from pipelines.codec import to_json
from pipelines.types import Scene, StageStoppedError, TimedSentence, TrackOutcome
from serve_app.jobs.service import rewrite_callback
from serve_app.results.redaction import change_between, known_of, redacted_kinds, want_preview
from serve_app.results.scenes import find_overview, scenes_of
from serve_app.results.transcripts import sentences_of, transcript_of
from serve_app.work.comparing import mute_sounds
from serve_app.work.queue import Work, work
from storage import history, jobs, results
from storage.database import Connection
from storage.history import Change, PreparedChange
from storage.job_records import JobRecord
from storage.results import TrackTranscript
from storage.types import ANALYSES, Cause, ResultChange, StageName, StageStatus
from storage.work import extend

log = logging.getLogger("vas.redaction")

_MOST_TRIES = 10
"""Of storing while words of a correction get their times, which changes what it was made of."""


@dataclass(frozen=True, slots=True)
class RedactedTracks:
    """Transcripts to publish, what leads back to the machine's, and when sound is to be silent."""

    tracks: list[TrackOutcome]
    before: Mapping[int, Change]
    """By a track's index."""
    muted: Sequence[redaction.Span]


def redact_tracks(
    tracks: Sequence[TrackOutcome],
    kinds: frozenset[PersonalData],
    recognizer: redaction.FindEntities,
    known: redaction.Known | None = None,
) -> RedactedTracks:
    """Return the tracks of a job that is not published yet."""
    known, recognizer = known or redaction.Known(), redaction.remembered(recognizer)
    for track in tracks:
        if track.transcript is not None:  # what one of them has is hidden in all
            said = track.transcript
            redaction.redact_segments(said.segments, said.language, kinds, recognizer, known)
    redacted, before, muted = list[TrackOutcome](), dict[int, Change](), list[redaction.Span]()
    for track in tracks:
        if track.transcript is None:
            redacted.append(track)
            continue
        said = track.transcript
        found = redaction.redact_segments(said.segments, said.language, kinds, recognizer, known)
        redacted.append(replace(track, transcript=replace(said, segments=found.segments)))
        before[track.index] = change_between(found.segments, said.segments)
        muted += found.muted
    return RedactedTracks(redacted, before, [*redaction.merged(muted)])


class Findings:
    """What analyses of a job that run side by side find in its texts: none is published before the
    others have looked, or ended, so that all hide what one of them found."""

    def __init__(self, known: redaction.Known, stages: Iterable[StageName] = ()) -> None:
        self._known, self._open = known, {*stages}
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        self.waited_seconds: dict[StageName, float] = {}

    def before(self) -> redaction.Known:
        """Return what was found until now, for a stage to add to."""
        return self._known.joined(redaction.Known())

    async def shared(self, stage: StageName, known: redaction.Known) -> redaction.Known:
        """Return what all have found. Raises StageStoppedError where the work on the job has
        ended."""
        self._known = self._known.joined(known)
        self.end(stage)
        began = time.monotonic()
        await self._changed.wait()
        self.waited_seconds[stage] = time.monotonic() - began
        if self._error is not None:
            raise StageStoppedError("another stage of the job") from self._error
        return self.before()

    def end(self, stage: StageName, error: BaseException | None = None) -> None:
        """The stage finds nothing any more; with an error no other is published either."""
        self._open.discard(stage)
        self._error = self._error or error
        if self._error or not self._open:
            self._changed.set()


async def _give_up(work: Work, error: BaseException | None) -> None:
    reason = "Who redacted it was lost again and again."
    if error is not None:
        reason = f"Redacting broke ({type(error).__name__})."
    await work.context.database.write(history.end_redaction, work.held, reason)


@work(history.REDACTION, lease=timedelta(minutes=1), attempts=3, give_up=_give_up)
async def redact(work: Work) -> None:
    """Redact what a job has published."""
    context, job_id = work.context, work.held.subject_id
    async with context.database.transaction() as connection:
        job = await jobs.find_job(connection, job_id)
        if job is None:
            return
        tracks = await results.list_transcripts(connection, job.id)
        scenes: tuple[Scene, ...] | None = None
        if job.stages[StageName.VISION].status is StageStatus.COMPLETED:
            scenes = scenes_of(await results.get_scenes(connection, job.id))
        overview = await find_overview(connection, job.id)
        summary = await results.find_summary(connection, job.id)
        known = await known_of(connection, job)
    kinds, objects = redacted_kinds(job), context.objects
    recognizer = redaction.remembered(context.recognizer)

    def make() -> _Made:
        for _ in range(2):  # what the last text has is hidden in the first
            made = _Made.of(tracks, scenes, overview, summary, kinds, recognizer, known)
        redaction.cover_pictures(objects, made.places)
        return made

    made = await asyncio.to_thread(make)
    for left in reversed(range(_MOST_TRIES)):
        prepared = await _prepared(work, job, tracks, made)
        async with context.database.transaction() as connection:
            locked = await jobs.find_job(connection, job_id, for_update=True)
            if locked is None or locked.erased_at is not None:
                break
            await extend(connection, work.held, redact.lease)
            if prepared and await _stored(connection, work, locked, prepared, made):
                await rewrite_callback(connection, locked)
                return
            if prepared is None or not left:
                log.info("a transcript was corrected meanwhile: once more")
                await history.request_redaction(connection, job.id, locked.source.redact)
                return
    # Whoever removes the job's objects may have been here already.
    await asyncio.to_thread(objects.delete_keys, made.places)


async def _prepared(
    work: Work, job: JobRecord, tracks: Sequence[TrackTranscript], made: _Made
) -> _Prepared | None:
    """Return None where a track was corrected, or a speaker named, since it was read; times of
    words may have changed."""
    async with work.context.database.statement() as connection:
        versions = await results.transcript_versions(connection, job.id)
        now = await results.list_tracks(connection, job.id)
        found = [
            await history.read_transcript(connection, job.id, each.track_index)
            for each in tracks
            if each.document is not None
        ]
    read = [each for each in found if each is not None]
    as_read = [(each.revision, each.labels) for each in tracks]
    if len(read) < len(found) or [(each.revision, each.labels) for each in now] != as_read:
        return None
    changes = await asyncio.to_thread(
        lambda: [history.prepare(each, made.changes[each.track_index]) for each in read]
    )
    return _Prepared(versions, changes)


async def _stored(
    connection: Connection, work: Work, job: JobRecord, prepared: _Prepared, made: _Made
) -> bool:
    """Return all or nothing; False where a track or label was changed since it was read."""
    now = await results.transcript_versions(connection, job.id, for_update=True)
    if now != prepared.versions:
        return False
    for each in prepared.changes:
        if each.change["splices"]:
            await history.store_revision(connection, each, redacts=True)
        else:
            await history.hide_revisions(connection, each.read, each.read.revision)
    await history.add_hidden(connection, job, made.known.kinds)
    if made.scenes is not None:
        overview = None if made.overview is None else to_json(made.overview)
        await history.replace_scenes(connection, job.id, to_json(made.scenes), overview)
    if made.summary is not None:
        await history.replace_summary(connection, job.id, to_json(made.summary))
    for index, speaker in made.named_speakers:
        await results.name_speaker(connection, job.id, index, speaker, "")
    change = ResultChange(job.id, frozenset(ANALYSES), Cause.REDACTED)
    await history.result_changed(connection, change)
    before = await history.find_muted(connection, job.id)
    muted = [*redaction.merged([*before, *made.muted])]
    await history.store_muted(connection, job.id, muted)
    await mute_sounds(connection, job, muted)
    await history.end_redaction(connection, work.held)
    await want_preview(work.context, connection, job)
    return True


@dataclass(frozen=True, slots=True)
class _Prepared:
    versions: Sequence[tuple[int, str]]
    """By track, of what the changes were made of."""
    changes: Sequence[PreparedChange]


@dataclass(frozen=True, slots=True)
class _Made:
    known: redaction.Known
    changes: Mapping[int, Change]
    muted: Sequence[redaction.Span]
    scenes: tuple[Scene, ...] | None
    overview: Scene | None
    summary: tuple[TimedSentence, ...] | None
    named_speakers: Sequence[tuple[int, str]]
    """Track and id of those whose labels have what is hidden: they get their first ones back."""

    @property
    def places(self) -> redaction.Places:
        return redaction.hidden_places(self.scenes or (), self.overview)

    @classmethod
    def of(
        cls,
        tracks: Sequence[TrackTranscript],
        scenes: tuple[Scene, ...] | None,
        overview: Scene | None,
        summary: str | None,
        kinds: frozenset[PersonalData],
        recognizer: redaction.FindEntities,
        known: redaction.Known,
    ) -> _Made:
        """``known`` is added to."""
        changes, muted = dict[int, Change](), list[redaction.Span]()
        for track in tracks:
            said = transcript_of(track).segments
            found = redaction.redact_segments(said, track.language, kinds, recognizer, known)
            changes[track.track_index] = change_between(said, found.segments)
            muted += found.muted
        shown = [*(scenes or ()), *filter(None, [overview])]
        seen = redaction.redact_scenes(shown, kinds, recognizer, known)
        labels = [(track, who, it) for track in tracks for who, it in track.labels.items()]
        marked = redaction.redact_texts([it for *_, it in labels], kinds, recognizer, known)
        told = None if summary is None else sentences_of(summary)
        return cls(
            known,
            changes,
            muted,
            None if scenes is None else seen[: len(scenes)],
            None if overview is None else seen[-1],
            None if told is None else redaction.redact_sentences(told, kinds, recognizer, known),
            [
                (track.track_index, who)
                for (track, who, label), hidden in zip(labels, marked, strict=True)
                if hidden != label or (PersonalData.NAME in kinds and who in track.voices)
            ],
        )
