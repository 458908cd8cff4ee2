"""A job's chapters, found when they are asked for: they follow from what is stored."""

from __future__ import annotations

from dataclasses import replace

from starlette.concurrency import run_in_threadpool

from pipelines.speech.chapters import Chapter, find_chapters
from pipelines.types import TranscriptSegment
from serve_app.context import AppContext
from serve_app.results import service as results
from serve_app.results.documents import transcript_of
from storage.job_records import JobRecord
from storage.results import TrackTranscript
from storage.search_vectors import vectors_of_job
from storage.types import StageName, StageStatus


async def find_chapters_of(context: AppContext, job: JobRecord) -> list[Chapter]:
    """Over all tracks of the job, beside its scenes where it has any.

    Raises RESULTS_NOT_READY or RESULTS_UNAVAILABLE as the transcript does.
    """
    async with context.database.statement() as connection:
        tracks = await results.read_tracks(connection, job, words=False)
        seen = job.stages[StageName.VISION].status is StageStatus.COMPLETED
        scenes = await results.list_scene_spans(connection, job) if seen else []
    cuts_ms = [round(scene["startTime"] * 1000) for scene in scenes]
    segments = [segment for track in tracks for segment in _segments(track)]
    duration_ms = job.duration_ms or max((each.end_ms for each in segments), default=0)
    vectors = await vectors_of_job(context.database, job.id)
    return await run_in_threadpool(
        find_chapters, segments, duration_ms=duration_ms, cuts_ms=cuts_ms, vectors=vectors
    )


def _segments(track: TrackTranscript) -> list[TranscriptSegment]:
    """With speakers that are distinct from those of other tracks."""
    segments, _ = transcript_of(track)
    number = track.track_index
    return [
        each if each.speaker is None else replace(each, speaker=f"{number}/{each.speaker}")
        for each in segments
    ]
