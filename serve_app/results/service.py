"""Reading results: when they are there, when not yet, and when never."""

from __future__ import annotations

import uuid
from typing import Any, cast

from fastapi import Request

from pipelines.codec import decode
from pipelines.types import Scene, StageCode, TimedSentence, TranscriptResult, WarningCode
from serve_app.api.context import context_of
from serve_app.api.envelope import public_url
from serve_app.api.urls import OVERVIEW_STILL, still_path
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.results import answers
from serve_app.results.documents import (
    overview_json,
    scene_json,
    scenes_of,
    segment_json,
    sentence_json,
    speaker_json,
    transcript_of,
)
from storage import results
from storage.database import Connection
from storage.job_records import JobRecord
from storage.results import SceneSpan, TrackTranscript
from storage.types import SkipReason, StageName, StageStatus

_OPEN = {StageStatus.PENDING, StageStatus.RUNNING}


def require_stage(job: JobRecord, stage: StageName) -> None:
    """Raises RESULTS_NOT_READY or RESULTS_UNAVAILABLE unless the stage is completed."""
    record = job.stages[stage]
    if record.status is StageStatus.COMPLETED:
        return
    if record.status in _OPEN:
        raise no_result(job, stage, f"The {stage} stage is {record.status}.")
    reason = record.skip_reason or SkipReason.STAGE_FAILED
    more = {} if record.error_code is None else {"errorCode": record.error_code}
    raise no_result(job, stage, f"The {stage} stage has no result: {reason}.", reason, **more)


def no_result(
    job: JobRecord, stage: StageName, message: str, reason: str | None = None, **more: Any
) -> ApiError:
    """RESULTS_UNAVAILABLE for a ``reason``, with ``more`` to name; RESULTS_NOT_READY without."""
    status = str(job.stages[stage].status)
    where = {"state": str(job.state), "stage": str(stage), "stageStatus": status}
    if reason is None:
        return ApiError(ErrorCode.RESULTS_NOT_READY, message, extra=where)
    extra = where | {"reason": str(reason)} | more
    return ApiError(ErrorCode.RESULTS_UNAVAILABLE, message, extra=extra)


async def read_seen(request: Request, connection: Connection, job: JobRecord) -> answers.Seen:
    """What is seen in a job whose vision stage is completed, its stills at signed addresses."""
    require_stage(job, StageName.VISION)
    scenes = scenes_of(await results.get_scenes(connection, job.id))
    overview = await find_overview(connection, job.id)

    def address(name: int | str) -> str:
        return public_url(request) + still_path(context_of(request).signer, job.id, name)

    seen: answers.Seen = {"scenes": [scene_json(each, address(each.index)) for each in scenes]}
    if overview is not None:
        seen["overview"] = overview_json(overview, address(OVERVIEW_STILL))
    return seen


async def find_overview(connection: Connection, job_id: uuid.UUID) -> Scene | None:
    """The whole video of a job as if it were one scene; None where it has no overview."""
    found = await results.find_overview(connection, job_id)
    return None if found is None else scenes_of(f"[{found}]")[0]


async def list_scene_spans(connection: Connection, job: JobRecord) -> list[SceneSpan]:
    """When the scenes are and what they show; of a job whose vision stage is completed."""
    require_stage(job, StageName.VISION)
    return await results.get_scene_spans(connection, job.id)


async def read_tracks(
    connection: Connection, job: JobRecord, *, words: bool = True
) -> list[TrackTranscript]:
    """The transcripts of a job whose transcript stage is completed."""
    require_stage(job, StageName.TRANSCRIPT)
    return await results.list_transcripts(connection, job.id, words=words)


async def read_summary(connection: Connection, job: JobRecord) -> list[answers.SummarySentenceJson]:
    """The summary of a job whose transcript stage is completed.

    Raises RESULTS_UNAVAILABLE where none was made too.
    """
    require_stage(job, StageName.TRANSCRIPT)
    found = await find_summary(connection, job.id)
    if found is not None:
        return found
    if any(warning["code"] == WarningCode.SUMMARY_FAILED for warning in job.warnings):
        message, reason = "The transcript could not be summed up.", SkipReason.STAGE_FAILED
    else:
        message = "The service had no model that writes summaries when the job was analysed."
        reason = SkipReason.STAGE_SKIPPED
    raise no_result(job, StageName.TRANSCRIPT, message, reason)


async def find_summary(
    connection: Connection, job_id: uuid.UUID
) -> list[answers.SummarySentenceJson] | None:
    """The summary of a job, of whatever stage; None where none was made."""
    found = await results.find_summary(connection, job_id)
    if found is None:
        return None
    sentences = decode(tuple[TimedSentence, ...], found.encode(), ignore_unknown=True)
    return [sentence_json(each) for each in sentences]


def choose_track(
    job: JobRecord, tracks: list[TrackTranscript], index: int | None
) -> TrackTranscript:
    """The track that a request means; raises NOT_FOUND or RESULTS_UNAVAILABLE."""
    if index is None:
        if len(tracks) > 1:
            raise invalid("This job has several audio tracks: say which.", "track")
        index = tracks[0].track_index
    track = next((track for track in tracks if track.track_index == index), None)
    if track is None:
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such audio track.", param="track")
    if track.document is None:
        raise no_result(
            job,
            StageName.TRANSCRIPT,
            "The track could not be transcribed.",
            "track_failed",
            trackIndex=track.track_index,
            errorCode=track.error_code,
        )
    return track


def transcript_json(job: JobRecord, track: TrackTranscript, *, multi: bool) -> answers.Transcript:
    """The JSON transcript of one track."""
    found = transcript_of(track)
    rendered: answers.Transcript = {
        "jobId": str(job.id),
        "language": track.language,
        "speakers": [speaker_json(speaker) for speaker in found.speakers],
        "text": "\n".join(segment.text for segment in found.segments),
        "segments": [segment_json(segment) for segment in found.segments],
        "turns": [
            {
                "speaker": turn.speaker,
                "startTime": turn.start_ms / 1000,
                "endTime": turn.end_ms / 1000,
            }
            for turn in found.turns
        ],
        "sounds": [
            {
                "kind": sound.kind,
                "startTime": sound.start_ms / 1000,
                "endTime": sound.end_ms / 1000,
                "confidence": round(sound.confidence, 4),
            }
            for sound in found.sounds
        ],
    }
    if multi:
        rendered |= {"trackIndex": track.track_index, "trackName": track.track_name}
    return rendered


def combined_transcript_json(job: JobRecord, tracks: list[TrackTranscript]) -> answers.Transcript:
    """The JSON transcript of a multi-track job: the first readable track, and all in ``tracks``."""
    readable = [track for track in tracks if track.document is not None]
    combined = transcript_json(job, readable[0], multi=True)
    combined["tracks"] = [track_json(track) for track in tracks]
    return combined


def track_json(track: TrackTranscript) -> answers.AudioTrackJson:
    """An Audio track object."""
    found = transcript_of(track)
    rendered: answers.AudioTrackJson = {
        "trackIndex": track.track_index,
        "trackName": track.track_name,
        "status": track.status,
        "transcript": legacy_entries(found),
        "speakers": [speaker.label for speaker in found.speakers],
    }
    if track.language is not None:  # published clients refuse null
        rendered["language"] = track.language
    if track.error_code is not None:
        rendered["errorCode"] = cast("StageCode", track.error_code)
    return rendered


async def list_audio_tracks(connection: Connection, job: JobRecord) -> list[answers.AudioTrackJson]:
    """Audio track objects of a multi-track job, also while they are still worked on.

    Raises NOT_FOUND for a job without several tracks.
    """
    names = job.audio_track_names or []
    if len(names) < 2:
        raise ApiError(ErrorCode.NOT_FOUND, "The job has not several audio tracks.")
    found = await results.list_transcripts(connection, job.id, words=False)
    stored = {track.track_index: track for track in found}
    status = job.stages[StageName.TRANSCRIPT].status
    waiting = [
        TrackTranscript(
            index, name, status, job.stages[StageName.TRANSCRIPT].error_code, None, None
        )
        for index, name in enumerate(names)
    ]
    return [track_json(stored.get(track.track_index, track)) for track in waiting]


def legacy_entries(found: TranscriptResult) -> list[answers.TranscriptEntry]:
    """Segments as older clients read them: ``{ StartTime, EndTime, Text, Speaker }``."""
    labels = {speaker.id: speaker.label for speaker in found.speakers}
    return [
        {
            "StartTime": segment.start_ms / 1000,
            "EndTime": segment.end_ms / 1000,
            "Text": segment.text,
            "Speaker": labels.get(segment.speaker or ""),
        }
        for segment in found.segments
    ]


async def processed_data(
    request: Request, connection: Connection, job: JobRecord, include: frozenset[str]
) -> answers.ProcessedData:
    """``{ length, scenes, overview, transcript }``, each only once its stage is completed."""
    length = None if job.duration_ms is None else job.duration_ms / 1000
    data: answers.ProcessedData = {"length": length}
    if "scenes" in include and job.stages[StageName.VISION].status is StageStatus.COMPLETED:
        seen = await read_seen(request, connection, job)
        data["scenes"] = [{**scene, "endTs": scene["endTime"]} for scene in seen["scenes"]]
        if "overview" in seen:
            data["overview"] = seen["overview"]
    transcribed = job.stages[StageName.TRANSCRIPT].status is StageStatus.COMPLETED
    if "transcript" in include and transcribed:
        tracks = await results.list_transcripts(connection, job.id, words=False)
        first = next((track for track in tracks if track.document), tracks[0])
        data["transcript"] = legacy_entries(transcript_of(first))
    return data
