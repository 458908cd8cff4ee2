"""Endpoints of results: scenes, transcripts, audio tracks, speakers, chapters."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Literal, cast

from fastapi import APIRouter, Path, Query, Request
from pydantic import AfterValidator, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from models.contracts import written_language
from models.profiles import translation_targets
from serve_app import pricing
from serve_app.api.authentication import CurrentJob, KeyedRoute
from serve_app.api.downloads import LargeResults, ResultAnswer
from serve_app.api.envelope import API_PREFIX, Context, public_url, success
from serve_app.api.openapi import OF_RESULTS, answers
from serve_app.api.parameters import WHOLE_NUMBER, matching
from serve_app.api.schemas import Answer, Body, doc, rendered
from serve_app.context import AppContext
from serve_app.crypto import canonical
from serve_app.errors import CREDITS_OR_CAP, ApiError, ErrorCode, existing, invalid
from serve_app.results import receipts, redaction, transcripts
from serve_app.results.availability import no_result, require_stage
from serve_app.results.chapters import ChapterJson, ChapterList, find_chapters_of
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
from serve_app.results.translations import TranslationList, find_requested
from storage import history, jobs, keys, ledger, translations
from storage import results as stored
from storage.audit import record
from storage.cleaning import is_held
from storage.database import Connection
from storage.job_records import JobRecord
from storage.results import TrackTranscript
from storage.tables import Translation
from storage.types import ANALYSES, ENDED_STATUSES, SkipReason, StageName, TranslationStatus

MAX_TRACK_INDEX = 9999
_TRACK_INDEX = matching(re.compile("0|[1-9][0-9]*"), "whole number from 0")
TrackQuery = Annotated[
    Annotated[int, Field(ge=0, le=MAX_TRACK_INDEX), WHOLE_NUMBER] | None,
    Query(description="Audio track; required for files of multi-track jobs."),
]
SpeakerId = Annotated[
    str,
    Path(
        alias="speakerId", description="A speaker's `id` in the transcript.", examples=["speaker_0"]
    ),
]

LanguageTag = Annotated[
    str, Field(max_length=60, pattern="^[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8}){0,6}$")
]

_LanguagePath = Annotated[
    LanguageTag, Path(description="BCP 47; its region makes no difference.", examples=["en"])
]


class SpeakerBody(Body):
    """Body of ``PUT /jobs/{jobId}/speakers/{speakerId}``."""

    label: Annotated[
        Annotated[
            str,
            Field(max_length=100, pattern=r"^[^\u0000-\u001f\u007f]*$"),
            AfterValidator(str.strip),
        ],
        doc("The name to show; empty for the first one.", "Anna Weber"),
    ]


router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])
redaction_router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])
receipt_router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])
receipt_key_router = APIRouter(include_in_schema=False)
translation_router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])


@router.get("/jobs/{jobId}/scenes", **answers(Answer[SceneList], "The scenes.", *OF_RESULTS))
async def get_scenes(
    request: Request,
    context: Context,
    job: CurrentJob,
    answer: LargeResults,
    include: Annotated[
        Literal["boxes"] | None,
        Query(description="`boxes`: where the objects of `objectTracks` are."),
    ] = None,
) -> Response:
    """Read the scenes.

    Empty when the video has no cuts; what is seen in it stands in `overview`, as of others."""

    def shown(found: StoredSeen) -> Response:
        scenes, whole = seen_json(
            public_url(request), context.signer, job, found, boxes=include is not None
        )
        overview = {} if whole is None else {"overview": whole}
        return success({"jobId": str(job.id), "scenes": scenes, **overview}, large=True)

    size, _ = await context.database.read(stored.stored_bytes, job.id)
    async with answer.turn(size):
        found = await context.database.read(read_seen, job)
        return await run_in_threadpool(shown, found)


@router.get("/jobs/{jobId}/audioTracks", **answers(Answer[AudioTrackList], "The audio tracks."))
async def list_audio_tracks(context: Context, job: CurrentJob, answer: LargeResults) -> Response:
    """List the audio tracks.

    Of a multi-track job, each with its own transcript."""

    def shown(found: Sequence[TrackTranscript]) -> Response:
        tracks = [track_json(each, transcript_of(each)) for each in found]
        return success({"jobId": str(job.id), "tracks": tracks}, large=True)

    return await _of_tracks(context, job, answer, shown)


@router.get("/jobs/{jobId}/audio-tracks", include_in_schema=False)
async def list_audio_tracks_alias(
    context: Context, job: CurrentJob, answer: LargeResults
) -> Response:
    """The bare list, at the address where published clients look for it."""

    def shown(found: Sequence[TrackTranscript]) -> Response:
        tracks = [track_json(each, transcript_of(each)) for each in found]
        return success(tracks, large=True)

    return await _of_tracks(context, job, answer, shown)


@router.get("/jobs/{jobId}/audio-tracks/{trackIndex}", include_in_schema=False)
@router.get(
    "/jobs/{jobId}/audioTracks/{trackIndex}",
    **answers(
        Answer[AudioTrackJson], "The audio track.", ErrorCode.INVALID_REQUEST, ErrorCode.NOT_FOUND
    ),
)
async def get_audio_track(
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
        track = existing(track, "audio track")
        return success(track_json(track, transcript_of(track)), large=True)

    return await _of_tracks(context, job, answer, shown)


async def _of_tracks(
    context: AppContext,
    job: JobRecord,
    answer: ResultAnswer,
    shown: Callable[[Sequence[TrackTranscript]], Response],
) -> Response:
    _, size = await context.database.read(stored.stored_bytes, job.id)
    async with answer.turn(size):
        found = await context.database.read(transcripts.read_audio_tracks, job)
        return await run_in_threadpool(shown, found)


@router.put(
    "/jobs/{jobId}/speakers/{speakerId}",
    **answers(Answer[SpeakerJson], "The speaker with its label.", *OF_RESULTS),
)
async def name_speaker(
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
    return await _name_speaker(context, job, speaker_id, track, body.label)


@router.delete(
    "/jobs/{jobId}/speakers/{speakerId}",
    **answers(Answer[SpeakerJson], "The speaker with its first label.", *OF_RESULTS),
)
async def reset_speaker(
    context: Context, job: CurrentJob, speaker_id: SpeakerId, track: TrackQuery = None
) -> Response:
    """Take a speaker's name back.

    The same as an empty label."""
    return await _name_speaker(context, job, speaker_id, track, "")


async def _name_speaker(
    context: AppContext, job: JobRecord, speaker_id: str, track: int | None, label: str
) -> Response:
    transcripts.require_choice(job, track)
    async with context.database.transaction() as connection:
        tracks = await transcripts.read_tracks(connection, job, words=False)
        chosen = transcripts.choose_track(job, tracks, track)
        if all(each.id != speaker_id for each in transcript_of(chosen).speakers):
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such speaker.")
        shown = await redaction.hidden_label(connection, job, label)
        await stored.name_speaker(connection, job.id, chosen.track_index, speaker_id, shown)
        action = "nameSpeaker" if label else "resetSpeaker"
        detail = f"track={chosen.track_index} speaker={speaker_id}"
        await record(connection, job.account_id, action, job_id=job.id, detail=detail)
        tracks = await transcripts.read_tracks(connection, job, words=False)
    named = speakers_json(transcripts.choose_track(job, tracks, chosen.track_index))
    return success(next(each for each in named if each["id"] == speaker_id))


@router.get("/jobs/{jobId}/chapters", **answers(Answer[ChapterList], "The chapters.", *OF_RESULTS))
async def get_chapters(context: Context, job: CurrentJob) -> Response:
    """Read the chapters.

    Parts of the media on one subject each, from what is said and by whom.

    They begin at pauses, or at cuts of the picture where the job has scenes; a title is a phrase
    that was said. Empty where nothing is said."""
    chapters = await find_chapters_of(context, job)
    shown = [rendered(ChapterJson, each) for each in chapters]
    return success({"jobId": str(job.id), "chapters": shown})


@router.get("/jobs/{jobId}/summary", **answers(Answer[Summary], "The summary.", *OF_RESULTS))
async def get_summary(context: Context, job: CurrentJob) -> Response:
    """Read the summary.

    A few sentences that a model wrote on what is said, each with the time that it rests on.

    Made with the transcript, in its language, by services that have a language model; elsewhere
    there is none."""
    sentences = await context.database.read(transcripts.read_summary, job)
    return success({"jobId": str(job.id), "sentences": sentences})


class RedactionBody(Body):
    """Body of ``POST /jobs/{jobId}/redact``."""

    kinds: Annotated[redaction.RedactedKinds, doc("What to hide.", ["email", "phone", "name"])]


@redaction_router.post(
    "/jobs/{jobId}/redact",
    **answers(
        Answer[redaction.RedactedJob],
        "It is being hidden, or was already.",
        ErrorCode.LEGAL_HOLD,
        ErrorCode.RESULTS_NOT_READY,
        status=202,
    ),
)
async def redact_job(context: Context, job: CurrentJob, body: RedactionBody) -> Response:
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
        if (await history.get_basis(connection, job.id)).open_rerun is not None:
            raise no_result(locked, StageName.TRANSCRIPT, "A rerun of the job has not ended.")
        if await is_held(connection, job.id):
            raise ApiError(ErrorCode.LEGAL_HOLD)
        present = locked.source.redact
        kinds = [*present, *(it for it in body.kinds if it not in present)]
        if len(kinds) > len(present) or locked.redact_error is not None:
            source = locked.source.model_copy(update={"redact": tuple(kinds)})
            await redaction.redact_again(connection, replace(locked, source=source))
            detail = f"kinds={','.join(kinds)}"
            await record(connection, job.account_id, "redactJob", job_id=job.id, detail=detail)
            found = await jobs.find_job(connection, job.id)
            locked = found or locked
    answer: redaction.RedactedJob = {
        "jobId": str(job.id),
        "redaction": redaction.redaction_json(locked),
    }
    return success(answer, status=202)


@receipt_router.get(
    "/jobs/{jobId}/receipt", **answers(Answer[receipts.EnvelopeJson], "The receipt.", *OF_RESULTS)
)
async def get_receipt(context: Context, job: CurrentJob) -> Response:
    """Read the receipt.

    It states from what and with what the results were made, as a statement of
    [in-toto](https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md) in a
    [DSSE](https://github.com/secure-systems-lab/dsse) envelope that the service signs. Its subjects
    are the media and the results as the machine made them; the predicate has digests of the code
    and of models, versions, and settings. `vas verify` checks it, as do other tools that read such
    envelopes. Once all stages have ended; jobs of earlier versions have none."""
    require_stage(job, StageName.INGEST)
    for stage in ANALYSES:
        if job.stages[stage].status not in ENDED_STATUSES:
            require_stage(job, stage)
    stages = await context.database.read(history.find_receipts, job.id)
    if StageName.INGEST not in stages:
        message = "The job was analysed before there were receipts: rerun it as a new job."
        raise no_result(job, StageName.INGEST, message, SkipReason.STAGE_SKIPPED)
    receipt: receipts.ReceiptJson = {
        "jobId": str(job.id),
        "stages": cast("receipts.ReceiptStages", stages),
    }
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": _subjects(receipt["stages"]),
        "predicateType": "urn:video-analysis-service:receipt:v2",
        "predicate": receipt,
    }
    return success(context.receipts.seal(receipts.PAYLOAD_TYPE, canonical(statement)))


def _subjects(stages: receipts.ReceiptStages) -> list[receipts.Subject]:
    named: list[tuple[str, str]] = []
    for stage in (stages.get("ingest"), stages.get("vision"), stages.get("transcript")):
        if stage is None:
            continue
        # Receipts of version 0.3.0 had shards, which are not computed again any more.
        stage.pop("shards", None)  # type: ignore[typeddict-item]
        named += [(each["fileName"], each["sha256"]) for each in stage.get("source", [])]
        for each in stage.get("results", []):
            track = each.get("trackIndex")
            name = each["kind"] if track is None else f"{each['kind']} {track}"
            named.append((name, each["sha256"]))
    return [{"name": name, "digest": {"sha256": sha256}} for name, sha256 in named]


@receipt_key_router.get(receipts.KEYS_PATH)
async def get_receipt_keys(context: Context) -> Response:
    """The key that signs receipts, open to everybody."""
    keys: receipts.PublicKeys = {"keys": [context.receipts.public_key()]}
    return JSONResponse(keys, headers={"Cache-Control": "public, max-age=300"})


class TranslationBody(Body):
    """Body of ``POST /jobs/{jobId}/translations``."""

    language: Annotated[LanguageTag, doc("BCP 47; its region makes no difference.", "en")]


@translation_router.post(
    "/jobs/{jobId}/translations",
    **answers(
        Answer[Translation],
        "It is made, or was already.",
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INSUFFICIENT_CREDITS,
        ErrorCode.NOT_FOUND,
        *OF_RESULTS,
        status=202,
    ),
)
async def create_translation(context: Context, job: CurrentJob, body: TranslationBody) -> Response:
    """Translate the transcript.

    All audio tracks are translated segment by segment, so that times stay.

    One that is there already is made anew only if it failed, or if the transcript was corrected
    since. English is made of the sound as long as the media is kept."""
    language = written_language(body.language)
    settings = context.settings
    targets = translation_targets(settings.model_profile, settings.models_dir)
    if language not in targets:
        some = "English" if targets == {"en"} else f"{len(targets)} languages, not this one"
        raise invalid(f"The service translates into {some}.", "language")
    async with context.database.transaction() as connection:
        locked = existing(await jobs.find_job(connection, job.id, for_update=True), "job")
        require_stage(locked, StageName.TRANSCRIPT)
        tracks = await stored.list_tracks(connection, job.id)
        spoken = {each.language for each in tracks if each.language is not None}
        if spoken and {written_language(each) for each in spoken} == {language}:
            raise invalid("The transcript is in this language.", "language")
        source = await translations.source_of(connection, job.id)
        found = await translations.find_translation(connection, job.id, language)
        is_there = found is not None and found.source == source
        if found is None or found.status is TranslationStatus.FAILED or not is_there:
            price = pricing.translation_cents(
                context.prices, locked.billable_seconds or 0, len(tracks)
            )
            if found is not None and found.status is TranslationStatus.PENDING:
                # Charged already, and nothing was made for it.
                price, capped_key_id = found.price_cents, found.capped_key_id
            else:
                capped_key_id = await _charge(connection, job, price, language)
            found = await translations.queue_translation(
                connection,
                job.id,
                language,
                price_cents=price,
                capped_key_id=capped_key_id,
                source=source,
            )
            action, detail = "createTranslation", f"language={language}"
            await record(connection, job.account_id, action, job_id=job.id, detail=detail)
    return success(found.json(), status=202)


async def _charge(
    connection: Connection, job: JobRecord, price_cents: int, language: str
) -> uuid.UUID | None:
    """Charge the price; the key whose cap it counts for, if any. Raises INSUFFICIENT_CREDITS."""
    if not price_cents:
        return None
    # The lock makes what a key spends at once count one after the other.
    await keys.lock_account(connection, job.account_id)
    key = await keys.find_capped_key(connection)
    key_id = None if key is None else key.first_id
    why = f"translation of {job.id} into {language}"
    try:
        await ledger.adjust(connection, job.account_id, -price_cents, why, capped_key_id=key_id)
    except ledger.InsufficientCreditsError as error:
        message = None if key_id is None else CREDITS_OR_CAP
        raise ApiError(ErrorCode.INSUFFICIENT_CREDITS, message) from error
    return key_id


@translation_router.get(
    "/jobs/{jobId}/translations",
    **answers(Answer[TranslationList], "The translations.", *OF_RESULTS),
)
async def list_translations(context: Context, job: CurrentJob) -> Response:
    """List the translations.

    Those that were requested."""
    require_stage(job, StageName.TRANSCRIPT)
    found = await context.database.read(translations.list_translations, job.id)
    listed = [each.json() for each in found]
    return success({"jobId": str(job.id), "translations": listed})


@translation_router.get(
    "/jobs/{jobId}/translations/{language}",
    **answers(
        Answer[Translation],
        "The translation.",
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NOT_FOUND,
        *OF_RESULTS,
    ),
)
async def get_translation(context: Context, job: CurrentJob, language: _LanguagePath) -> Response:
    """Read what became of a translation.

    Its text is a transcript's: `GET …/transcript?language=`, in every format."""
    require_stage(job, StageName.TRANSCRIPT)
    found = await context.database.read(find_requested, job, language)
    return success(found.json())
