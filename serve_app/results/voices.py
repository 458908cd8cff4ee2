"""Voices that an account has named: learnt from speakers of its jobs, listed, deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.responses import Response
from typing_extensions import TypedDict

from serve_app.api.authentication import CurrentAccount, CurrentJob, KeyedRoute, parse_job_id
from serve_app.api.context import API_PREFIX, Context
from serve_app.api.envelope import success, timestamp
from serve_app.api.openapi import errors
from serve_app.api.schemas import Answer, Count, RequestId, Timestamp, Uuid, doc
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.results.availability import no_result
from serve_app.results.redaction import hidden_label
from serve_app.results.routes import RESULT_ERRORS, SpeakerId, TrackQuery
from serve_app.results.transcripts import (
    choose_track,
    read_tracks,
    require_choice,
    transcript_of,
)
from storage import voices
from storage.audit import AuditAction, record
from storage.cleaning import is_voice_held
from storage.types import SkipReason, StageName
from storage.voices import MOST_SAMPLES, MOST_VOICES, NamedVoice

router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])


class VoiceBody(BaseModel):
    """Body of ``PUT /jobs/{jobId}/speakers/{speakerId}/voice``."""

    model_config = ConfigDict(strict=True, extra="ignore")
    name: Annotated[
        Annotated[
            str,
            Field(max_length=100, pattern=r"^[^\s\u0000-\u001f\u007f][^\u0000-\u001f\u007f]*$"),
            AfterValidator(str.strip),
        ],
        doc("Whose voice it is.", "Anna Weber"),
    ]


class VoiceJson(TypedDict):
    """A voice that the account has named."""

    id: Annotated[Uuid, doc("The voice; `voiceId` of speakers.")]
    name: Annotated[str, doc("Whose it is; the label of speakers that are taken for it.")]
    samples: Annotated[Count, doc("How many speakers it is learnt from.", 1)]
    createdAt: Annotated[Timestamp, doc("When it was first named.")]


class VoiceList(TypedDict):
    """The account's voices, the oldest first."""

    data: Annotated[list[VoiceJson], Field(max_length=MOST_VOICES)]
    requestId: RequestId


def _voice(found: NamedVoice) -> VoiceJson:
    return {
        "id": str(found.id),
        "name": found.name,
        "samples": found.samples,
        "createdAt": timestamp(found.created_at),
    }


@router.put(
    "/jobs/{jobId}/speakers/{speakerId}/voice",
    operation_id="nameVoice",
    summary="Name a speaker's voice",
    response_model=Answer[VoiceJson],
    response_description="The voice.",
    responses=errors(ErrorCode.INVALID_REQUEST, *RESULT_ERRORS),
)
async def name_voice(
    request: Request,
    context: Context,
    job: CurrentJob,
    account_id: CurrentAccount,
    speaker_id: SpeakerId,
    body: VoiceBody,
    track: TrackQuery = None,
) -> Response:
    """The speaker of a job that was created with `voices` is learnt as this voice, and so is every
    further one that is named alike: later jobs with `voices` give speakers that sound so its name
    and its `voiceId`. It is learnt from the job as long as that is kept."""
    require_choice(job, track)
    async with context.database.transaction() as connection:
        chosen = choose_track(job, await read_tracks(connection, job, words=False), track)
        if all(each.id != speaker_id for each in transcript_of(chosen).speakers):
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such speaker.")
        label = await hidden_label(connection, job, body.name)
        voice = await voices.find_or_add_voice(connection, account_id, body.name)
        if voice is None:
            raise invalid(f"An account has at most {MOST_VOICES} voices.", "name")
        speaker = job.id, chosen.track_index, speaker_id
        if not await voices.learn_voice(connection, replace(voice, name=label), *speaker):
            message = "The job was not created with voices, or this speaker has no turns."
            raise no_result(job, StageName.TRANSCRIPT, message, SkipReason.STAGE_SKIPPED)
        [learnt] = await voices.list_voices(connection, account_id, voice.id)
        if learnt.samples > MOST_SAMPLES:
            raise invalid(f"A voice is learnt from at most {MOST_SAMPLES} speakers.", "name")
        await record(
            connection, account_id, AuditAction.NAME_VOICE, job_id=job.id, target=learnt.id
        )
    return success(request, _voice(learnt))


@router.get(
    "/voices",
    operation_id="listVoices",
    summary="List voices",
    response_model=VoiceList,
    response_description="The voices.",
)
async def list_voices(request: Request, context: Context, account_id: CurrentAccount) -> Response:
    """All that the account has named, the oldest first."""
    async with context.database.statement() as connection:
        found = await voices.list_voices(connection, account_id)
    return success(request, [_voice(each) for each in found])


@router.delete(
    "/voices/{voiceId}",
    operation_id="deleteVoice",
    summary="Delete a voice",
    response_model=Answer[VoiceJson],
    response_description="The voice that was deleted.",
    responses=errors(ErrorCode.NOT_FOUND, ErrorCode.LEGAL_HOLD),
)
async def delete_voice(
    request: Request,
    context: Context,
    account_id: CurrentAccount,
    voice_id: Annotated[
        Uuid, Path(alias="voiceId", description="The voice's id; what is no UUID is not found.")
    ],
) -> Response:
    """It is recognised no more, and speakers that have its name get their first labels back.
    Refused while a legal hold is on a job that it was learnt from or recognised in.
    """
    known_id = parse_job_id(voice_id)
    async with context.database.transaction() as connection:
        found = await voices.list_voices(connection, account_id, known_id)
        if not found:
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such voice.")
        if await is_voice_held(connection, known_id):
            raise ApiError(ErrorCode.LEGAL_HOLD)
        await voices.delete_voice(connection, account_id, known_id)
    return success(request, _voice(found[0]))
