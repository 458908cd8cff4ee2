"""Faces and voices: the same face across a job's scenes, and voices that an account has named."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, NotRequired

from fastapi import APIRouter, Path, Request
from pydantic import AfterValidator, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from typing_extensions import TypedDict

from pipelines.codec import decode
from pipelines.types import Person
from serve_app.api.authentication import CurrentAccount, CurrentJob, KeyedRoute
from serve_app.api.envelope import API_PREFIX, Context, public_url, success
from serve_app.api.openapi import OF_RESULTS, answers
from serve_app.api.schemas import Answer, Body, Count, Seconds, Url, Uuid, doc, list_of, rendered
from serve_app.api.urls import parse_job_id, still_path
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.results.availability import no_result, require_stage
from serve_app.results.redaction import hidden_label
from serve_app.results.routes import SpeakerId, TrackQuery
from serve_app.results.scenes import BoxJson
from serve_app.results.transcripts import choose_track, read_tracks, require_choice, transcript_of
from storage import results, voices
from storage.audit import record
from storage.cleaning import is_held, is_voice_held
from storage.tables import Voice
from storage.types import SkipReason, StageName
from storage.voices import MOST_SAMPLES, MOST_VOICES


class AppearanceJson(TypedDict):
    """Somebody in a still of a scene."""

    time: Annotated[Seconds, doc("Of the still, in seconds of the media.", 4.2)]
    box: BoxJson
    sceneIndex: NotRequired[Annotated[Count, doc("The scene, where the video has any.", 0)]]


class PersonJson(TypedDict):
    """Somebody whose face is seen in two stills at least."""

    id: Annotated[str, doc("By first appearance; of this job alone.", "person_0")]
    stillUrl: Annotated[Url, doc("The largest picture of the face; signed, expires.")]
    appearances: Annotated[list[AppearanceJson], doc("In scenes' stills, by time.")]


class PeopleList(TypedDict):
    """Who is seen in a job's video."""

    jobId: Annotated[Uuid, doc("The job.")]
    people: Annotated[list[PersonJson], doc("By first appearance.")]


class PeopleDeleted(TypedDict):
    """Nothing of a job's faces is kept."""

    jobId: Annotated[Uuid, doc("The job.")]
    deleted: Annotated[int, doc("How many people there were.", 2, ge=0)]


router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])
voice_router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])


@router.get("/jobs/{jobId}/people", **answers(Answer[PeopleList], "The people.", *OF_RESULTS))
async def get_people(request: Request, context: Context, job: CurrentJob) -> Response:
    """Read who is seen.

    The same face across the scenes of a job that was created with `people`; nobody is named.
    Faces that are small, in profile or like no other one are left out."""
    require_stage(job, StageName.VISION)
    stored = await context.database.read(results.find_people, job.id)
    if stored is None:
        message = "The job was not created with people, or they were deleted."
        raise no_result(job, StageName.VISION, message, SkipReason.STAGE_SKIPPED)
    root = public_url(request)
    shown: list[PersonJson] = []
    for person in decode(tuple[Person, ...], stored.encode(), ignore_unknown=True):
        url = root + still_path(context.signer, job.id, person.id)
        shown.append(rendered(PersonJson, person, stillUrl=url))
    return success({"jobId": str(job.id), "people": shown})


@router.delete(
    "/jobs/{jobId}/people",
    **answers(Answer[PeopleDeleted], "They are deleted.", ErrorCode.LEGAL_HOLD, *OF_RESULTS),
)
async def delete_people(context: Context, job: CurrentJob) -> Response:
    """Delete who is seen.

    Groups, and pictures of faces; scenes and their stills stay. Without any it does nothing."""
    require_stage(job, StageName.VISION)
    count, known = 0, None
    while True:
        async with context.database.transaction() as connection:
            if await is_held(connection, job.id):
                raise ApiError(ErrorCode.LEGAL_HOLD)
            stored = await results.find_people(connection, job.id, locked=True)
            if stored == known:
                await results.delete_people(connection, job.id)
                await record(connection, job.account_id, "deletePeople", job_id=job.id)
                break
        # Their pictures first: they are named until the store has removed them.
        people = [] if stored is None else decode(tuple[Person, ...], stored.encode())
        await run_in_threadpool(context.objects.delete_keys, [each.still_key for each in people])
        count, known = len(people), stored
    return success({"jobId": str(job.id), "deleted": count})


class VoiceBody(Body):
    """Body of ``PUT /jobs/{jobId}/speakers/{speakerId}/voice``."""

    name: Annotated[
        Annotated[
            str,
            Field(max_length=100, pattern=r"^[^\s\u0000-\u001f\u007f][^\u0000-\u001f\u007f]*$"),
            AfterValidator(str.strip),
        ],
        doc("Whose voice it is.", "Anna Weber"),
    ]


_VOICES = list_of(
    "VoiceList",
    Annotated[list[Voice], Field(max_length=MOST_VOICES)],
    "The account's voices, the oldest first.",
)


@voice_router.put(
    "/jobs/{jobId}/speakers/{speakerId}/voice", **answers(Answer[Voice], "The voice.", *OF_RESULTS)
)
async def name_voice(
    context: Context,
    job: CurrentJob,
    speaker_id: SpeakerId,
    body: VoiceBody,
    track: TrackQuery = None,
) -> Response:
    """Name a speaker's voice.

    The speaker of a job that was created with `voices` is learnt as this voice, and so is every
    further one that is named alike: later jobs with `voices` give speakers that sound so its name
    and its `voiceId`. It is learnt from the job as long as that is kept."""
    require_choice(job, track)
    async with context.database.transaction() as connection:
        chosen = choose_track(job, await read_tracks(connection, job, words=False), track)
        if all(each.id != speaker_id for each in transcript_of(chosen).speakers):
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such speaker.")
        label = await hidden_label(connection, job, body.name)
        voice = await voices.find_or_add_voice(connection, job.account_id, body.name)
        if voice is None:
            raise invalid(f"An account has at most {MOST_VOICES} voices.", "name")
        speaker = job.id, chosen.track_index, speaker_id
        if not await voices.learn_voice(connection, replace(voice, name=label), *speaker):
            message = "The job was not created with voices, or this speaker has no turns."
            raise no_result(job, StageName.TRANSCRIPT, message, SkipReason.STAGE_SKIPPED)
        [learnt] = await voices.list_voices(connection, job.account_id, voice.id)
        if learnt.samples > MOST_SAMPLES:
            raise invalid(f"A voice is learnt from at most {MOST_SAMPLES} speakers.", "name")
        await record(connection, job.account_id, "nameVoice", job_id=job.id, target=learnt.id)
    return success(learnt.json())


@voice_router.get("/voices", **answers(_VOICES, "The voices."))
async def list_voices(context: Context, account_id: CurrentAccount) -> Response:
    """List voices.

    All that the account has named, the oldest first."""
    found = await context.database.read(voices.list_voices, account_id)
    return success([each.json() for each in found])


@voice_router.delete(
    "/voices/{voiceId}",
    **answers(Answer[Voice], "The voice that was deleted.", ErrorCode.LEGAL_HOLD),
)
async def delete_voice(
    context: Context,
    account_id: CurrentAccount,
    voice_id: Annotated[
        Uuid, Path(alias="voiceId", description="The voice's id; what is no UUID is not found.")
    ],
) -> Response:
    """Delete a voice.

    It is recognised no more, and speakers that have its name get their first labels back.
    Refused while a legal hold is on a job that it was learnt from or recognised in."""
    known_id = parse_job_id(voice_id)
    async with context.database.transaction() as connection:
        found = await voices.list_voices(connection, account_id, known_id)
        if not found:
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such voice.")
        if await is_voice_held(connection, known_id):
            raise ApiError(ErrorCode.LEGAL_HOLD)
        await voices.delete_voice(connection, account_id, known_id)
    return success(found[0].json())
