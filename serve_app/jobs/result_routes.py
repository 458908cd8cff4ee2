"""Endpoints of results: scenes, transcripts, audio tracks."""

from __future__ import annotations

import re

from fastapi import APIRouter, Request
from starlette.responses import Response

from serve_app.api.authentication import KeyedRoute, job_of
from serve_app.api.context import API_PREFIX, context_of
from serve_app.api.envelope import success
from serve_app.api.queries import one_of, read_integer
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.jobs import captions_files, results
from serve_app.jobs.thumbnails import with_thumbnails
from storage.results import get_scenes
from storage.types import StageName

MAX_TRACK_INDEX = 9999
TRANSCRIPT_FORMATS = ("json", "srt", "vtt", "txt")
_TRACK_INDEX = re.compile("0|[1-9][0-9]*")

router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute)


@router.get("/jobs/{jobId}/scenes", operation_id="getScenes")
async def get_scenes_of_job(request: Request) -> Response:
    """The scenes of a job; empty when the video has no cuts."""
    job = job_of(request)
    results.require_stage(job, StageName.VISION)
    async with context_of(request).database.statement() as connection:
        scenes = await get_scenes(connection, job.id)
    shown = with_thumbnails(request, job.id, scenes)
    return success(request, {"jobId": str(job.id), "scenes": shown})


@router.get("/jobs/{jobId}/transcript", operation_id="getTranscript")
async def get_transcript(request: Request) -> Response:
    """The transcript as JSON or as a caption or text file."""
    form = one_of(request, "format", TRANSCRIPT_FORMATS) or "json"
    index = read_integer(request, "track", low=0, high=MAX_TRACK_INDEX)
    job = job_of(request)
    async with context_of(request).database.statement() as connection:
        tracks = await results.read_tracks(connection, job)
    several = len(tracks) > 1
    if form == "json" and index is None and several:
        return success(request, results.combined_transcript_json(job, tracks))
    chosen = results.choose_track(job, tracks, index)
    if form == "json":
        return success(request, results.transcript_json(job, chosen, multi=several))
    return captions_files.file_response(job, chosen, form)


@router.get("/jobs/{jobId}/audioTracks", operation_id="listAudioTracks")
async def list_audio_tracks(request: Request) -> Response:
    """The audio tracks of a multi-track job, by index."""
    job = job_of(request)
    async with context_of(request).database.statement() as connection:
        tracks = await results.list_audio_tracks(connection, job)
    return success(request, {"jobId": str(job.id), "tracks": tracks})


@router.get("/jobs/{jobId}/audioTracks/{trackIndex}", operation_id="getAudioTrack")
async def get_audio_track(request: Request, trackIndex: str) -> Response:  # noqa: N803
    """One audio track of a multi-track job."""
    if not _TRACK_INDEX.fullmatch(trackIndex):
        raise invalid("trackIndex must be a whole number from 0.", "trackIndex")
    job = job_of(request)
    async with context_of(request).database.statement() as connection:
        tracks = await results.list_audio_tracks(connection, job)
    for track in tracks:
        if str(track["trackIndex"]) == trackIndex:
            return success(request, track)
    raise ApiError(ErrorCode.NOT_FOUND, "There is no such audio track.")
