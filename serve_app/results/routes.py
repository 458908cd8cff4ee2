"""Endpoints of results: scenes, transcripts, audio tracks, speakers, chapters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from serve_app.api.authentication import CurrentJob, KeyedRoute
from serve_app.api.downloads import LargeResults, ResultAnswer
from serve_app.api.envelope import API_PREFIX, Context, success
from serve_app.api.openapi import OF_RESULTS, errors
from serve_app.api.parameters import WHOLE_NUMBER, matching
from serve_app.api.schemas import Answer, doc
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode
from serve_app.results import transcripts
from serve_app.results.chapters import ChapterList, chapter_json, find_chapters_of
from serve_app.results.redaction import hidden_label
from serve_app.results.scenes import SceneList, StoredSeen, read_seen, seen_json
from serve_app.results.transcripts import (
    AudioTrackJson,
    AudioTrackList,
    SpeakerJson,
    Summary,
    speakers_json,
    track_json,
    transcript_of,
)
from storage import results as stored
from storage.audit import AuditAction, record
from storage.job_records import JobRecord
from storage.results import TrackTranscript

MAX_TRACK_INDEX = 9999
_TRACK_INDEX = matching(re.compile("0|[1-9][0-9]*"), "whole number from 0")
TrackQuery = Annotated[
    Annotated[int, Field(ge=0, le=MAX_TRACK_INDEX), WHOLE_NUMBER] | None,
    Query(description="Audio track; required for files of multi-track jobs."),
]
SpeakerId = Annotated[
    str,
    Path(
        alias="speakerId",
        description="A speaker's `id` in the transcript.",
        examples=["speaker_0"],
    ),
]


class SpeakerBody(BaseModel):
    """Body of ``PUT /jobs/{jobId}/speakers/{speakerId}``."""

    model_config = ConfigDict(strict=True, extra="ignore")
    label: Annotated[
        Annotated[
            str,
            Field(max_length=100, pattern=r"^[^\u0000-\u001f\u007f]*$"),
            AfterValidator(str.strip),
        ],
        doc("The name to show; empty for the first one.", "Anna Weber"),
    ]


router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])


@router.get(
    "/jobs/{jobId}/scenes",
    response_model=Answer[SceneList],
    response_description="The scenes.",
    responses=errors(*OF_RESULTS),
)
async def get_scenes(
    request: Request, context: Context, job: CurrentJob, answer: LargeResults
) -> Response:
    """Read the scenes.

    Empty when the video has no cuts; what is seen in it stands in `overview`, as of others."""

    def shown(found: StoredSeen) -> Response:
        scenes, whole = seen_json(request, job, found)
        overview = {} if whole is None else {"overview": whole}
        return success(request, {"jobId": str(job.id), "scenes": scenes, **overview}, large=True)

    async with context.database.statement() as connection:
        size, _ = await stored.stored_bytes(connection, job.id)
    async with answer.turn(request, size):
        async with context.database.statement() as connection:
            found = await read_seen(connection, job)
        return await run_in_threadpool(shown, found)


@router.get(
    "/jobs/{jobId}/audioTracks",
    response_model=Answer[AudioTrackList],
    response_description="The audio tracks.",
)
async def list_audio_tracks(
    request: Request, context: Context, job: CurrentJob, answer: LargeResults
) -> Response:
    """List the audio tracks.

    Of a multi-track job, each with its own transcript."""

    def shown(found: Sequence[TrackTranscript]) -> Response:
        tracks = [track_json(each, transcript_of(each)) for each in found]
        return success(request, {"jobId": str(job.id), "tracks": tracks}, large=True)

    return await _of_tracks(request, context, job, answer, shown)


@router.get("/jobs/{jobId}/audio-tracks", include_in_schema=False)
async def list_audio_tracks_alias(
    request: Request, context: Context, job: CurrentJob, answer: LargeResults
) -> Response:
    """The bare list, at the address where published clients look for it."""

    def shown(found: Sequence[TrackTranscript]) -> Response:
        tracks = [track_json(each, transcript_of(each)) for each in found]
        return success(request, tracks, large=True)

    return await _of_tracks(request, context, job, answer, shown)


@router.get("/jobs/{jobId}/audio-tracks/{trackIndex}", include_in_schema=False)
@router.get(
    "/jobs/{jobId}/audioTracks/{trackIndex}",
    response_model=Answer[AudioTrackJson],
    response_description="The audio track.",
    responses=errors(ErrorCode.INVALID_REQUEST, ErrorCode.NOT_FOUND),
)
async def get_audio_track(
    request: Request,
    context: Context,
    job: CurrentJob,
    answer: LargeResults,
    index: Annotated[
        Annotated[int, Field(ge=0), _TRACK_INDEX], Path(alias="trackIndex", description="From 0.")
    ],
) -> Response:
    """Read an audio track.

    Of a multi-track job."""

    def shown(found: Sequence[TrackTranscript]) -> Response:
        track = next((each for each in found if each.track_index == index), None)
        if track is None:
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such audio track.")
        return success(request, track_json(track, transcript_of(track)), large=True)

    return await _of_tracks(request, context, job, answer, shown)


async def _of_tracks(
    request: Request,
    context: AppContext,
    job: JobRecord,
    answer: ResultAnswer,
    shown: Callable[[Sequence[TrackTranscript]], Response],
) -> Response:
    async with context.database.statement() as connection:
        _, size = await stored.stored_bytes(connection, job.id)
    async with answer.turn(request, size):
        async with context.database.statement() as connection:
            found = await transcripts.read_audio_tracks(connection, job)
        return await run_in_threadpool(shown, found)


@router.put(
    "/jobs/{jobId}/speakers/{speakerId}",
    response_model=Answer[SpeakerJson],
    response_description="The speaker with its label.",
    responses=errors(*OF_RESULTS),
)
async def name_speaker(
    request: Request,
    context: Context,
    job: CurrentJob,
    speaker_id: SpeakerId,
    body: SpeakerBody,
    track: TrackQuery = None,
) -> Response:
    """Name a speaker.

    Transcripts, captions and exports show the label; the ids stay.

    An empty label gives the speaker its first one back. What is hidden of a redacted job is hidden
    in labels too."""
    return await _name_speaker(request, context, job, speaker_id, track, body.label)


@router.delete(
    "/jobs/{jobId}/speakers/{speakerId}",
    response_model=Answer[SpeakerJson],
    response_description="The speaker with its first label.",
    responses=errors(*OF_RESULTS),
)
async def reset_speaker(
    request: Request,
    context: Context,
    job: CurrentJob,
    speaker_id: SpeakerId,
    track: TrackQuery = None,
) -> Response:
    """Take a speaker's name back.

    The same as an empty label."""
    return await _name_speaker(request, context, job, speaker_id, track, "")


async def _name_speaker(
    request: Request,
    context: AppContext,
    job: JobRecord,
    speaker_id: str,
    track: int | None,
    label: str,
) -> Response:
    transcripts.require_choice(job, track)
    async with context.database.transaction() as connection:
        tracks = await transcripts.read_tracks(connection, job, words=False)
        chosen = transcripts.choose_track(job, tracks, track)
        if all(each.id != speaker_id for each in transcript_of(chosen).speakers):
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such speaker.")
        shown = await hidden_label(connection, job, label)
        await stored.name_speaker(connection, job.id, chosen.track_index, speaker_id, shown)
        action = AuditAction.NAME_SPEAKER if label else AuditAction.RESET_SPEAKER
        detail = f"track={chosen.track_index} speaker={speaker_id}"
        await record(connection, job.account_id, action, job_id=job.id, detail=detail)
        tracks = await transcripts.read_tracks(connection, job, words=False)
    named = speakers_json(transcripts.choose_track(job, tracks, chosen.track_index))
    return success(request, next(each for each in named if each["id"] == speaker_id))


@router.get(
    "/jobs/{jobId}/chapters",
    response_model=Answer[ChapterList],
    response_description="The chapters.",
    responses=errors(*OF_RESULTS),
)
async def get_chapters(request: Request, context: Context, job: CurrentJob) -> Response:
    """Read the chapters.

    Parts of the media on one subject each, from what is said and by whom.

    They begin at pauses, or at cuts of the picture where the job has scenes; a title is a phrase
    that was said. Empty where nothing is said."""
    chapters = await find_chapters_of(context, job)
    rendered = [chapter_json(each) for each in chapters]
    return success(request, {"jobId": str(job.id), "chapters": rendered})


@router.get(
    "/jobs/{jobId}/summary",
    response_model=Answer[Summary],
    response_description="The summary.",
    responses=errors(*OF_RESULTS),
)
async def get_summary(request: Request, context: Context, job: CurrentJob) -> Response:
    """Read the summary.

    A few sentences that a model wrote on what is said, each with the time that it rests on.

    Made with the transcript, in its language, by services that have a language model; elsewhere
    there is none."""
    async with context.database.statement() as connection:
        sentences = await transcripts.read_summary(connection, job)
    return success(request, {"jobId": str(job.id), "sentences": sentences})
