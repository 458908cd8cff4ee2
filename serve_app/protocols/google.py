"""Google's Video Intelligence interface, REST v1: ``videos:annotate`` and its operations.

An operation is a job; its response is rendered from the job's results when it is read.
Source of names, states and errors: Google's reference of ``videointelligence.googleapis.com`` v1,
and the messages of its Python client, 2.x.
"""

# ruff: noqa: N815
from __future__ import annotations

import base64
import binascii
import contextlib
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from models.contracts import Box
from pipelines.codec import decode
from pipelines.types import ObjectTrack, Person, Scene, SeenBox
from serve_app.api.authentication import CurrentAccount, CurrentJob
from serve_app.api.downloads import Downloads, Limit
from serve_app.api.envelope import Context, ExactJSONResponse
from serve_app.api.parameters import parse_json_object, read_bounded
from serve_app.api.schemas import timestamp
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.jobs import service
from serve_app.jobs.answers import progress
from serve_app.jobs.plans import JobPlan, Planner, plan_from_url
from serve_app.jobs.schemas import MAX_KEYTERMS, CreateJobBody, CreateJobFromUrlBody
from serve_app.protocols import base
from serve_app.protocols.answers import Spoken, mean_confidence, read_spoken
from serve_app.results.scenes import find_overview, scenes_of
from serve_app.uploads.receiving import closing_unread, content_length
from storage import archives, job_records, results
from storage.job_records import JobRecord
from storage.types import JobState, StageName, StageStatus

_MOST_BYTES = 16 * 1024**2
"""Of a request with its media in it, which is in memory three times: Google's own limit is 10 MB of
media, a third less than its base64."""
_large = Downloads(Limit(account=2, replica=16, workers=1))
"""Requests with media in them that are read at once; more get 429 before they are read."""
_MOST_OPERATIONS = 100
_PARENT = "projects/-/locations/-"
_TYPE = "type.googleapis.com/google.cloud.videointelligence.v1"
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "PERMISSION_DENIED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}
_FEATURES = {
    1: "LABEL_DETECTION",
    2: "SHOT_CHANGE_DETECTION",
    3: "EXPLICIT_CONTENT_DETECTION",
    4: "FACE_DETECTION",
    6: "SPEECH_TRANSCRIPTION",
    7: "TEXT_DETECTION",
    9: "OBJECT_TRACKING",
    12: "LOGO_RECOGNITION",
    14: "PERSON_DETECTION",
}
_FRAME_MODES = ("FRAME_MODE", "SHOT_AND_FRAME_MODE", 2, 3)
_SPEECH = "SPEECH_TRANSCRIPTION"
_PERSON = "person"
"""The label of the object detector."""
_LIKELIHOODS = (0.1, 0.3, 0.5, 0.8)
"""Probabilities from which something explicit is UNLIKELY, POSSIBLE, LIKELY and VERY_LIKELY."""


class GoogleRoute(base.ProtocolRoute):
    """A route that takes a key as Google's clients send it, with Google's errors."""

    @staticmethod
    def key(request: Request) -> str | None:
        return request.headers.get("x-goog-api-key") or request.query_params.get("key")

    @staticmethod
    def failure(request: Request, error: ApiError) -> Response:
        status = 403 if error.status == 402 else error.status  # Google's for unpaid projects
        failure: dict[str, Any] = {
            "code": status,
            "message": error.message,
            "status": _STATUS.get(error.status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL"),
        }
        if error.param:
            violation = {"field": error.param, "description": error.message}
            kind = "type.googleapis.com/google.rpc.BadRequest"
            failure["details"] = [{"@type": kind, "fieldViolations": [violation]}]
        headers = base.answer_headers(request, error)
        return ExactJSONResponse({"error": failure}, status_code=status, headers=headers)


class _SpeechContext(BaseModel):
    phrases: list[str] = []


class _SpeechConfig(BaseModel):
    languageCode: str = ""
    speechContexts: list[_SpeechContext] = []
    enableSpeakerDiarization: bool = False
    diarizationSpeakerCount: int = 0
    filterProfanity: bool = False


class _LabelConfig(BaseModel):
    labelDetectionMode: str | int = "SHOT_MODE"


class _VideoContext(BaseModel):
    segments: list[dict[str, Any]] = []
    labelDetectionConfig: _LabelConfig = _LabelConfig()
    speechTranscriptionConfig: _SpeechConfig = _SpeechConfig()


class Annotate(BaseModel):
    """The body of ``videos:annotate``."""

    inputUri: str = ""
    inputContent: str = ""
    features: list[str | int] = Field(min_length=1)
    videoContext: _VideoContext = _VideoContext()
    outputUri: str = ""

    def names(self) -> list[str]:
        """Return the features. Raises INVALID_REQUEST for one that there is none of."""
        found = [
            _FEATURES.get(each, each) if isinstance(each, int) else each for each in self.features
        ]
        unknown = [each for each in found if each not in _FEATURES.values()]
        if unknown:
            raise invalid(f"There is no feature {unknown[0]}.", "features")
        return [*dict.fromkeys(map(str, found))]

    def job(self, context: AppContext) -> dict[str, Any]:
        """Return the fields of the native request. Raises what the service does not have."""
        names = self.names()
        if "LOGO_RECOGNITION" in names:
            raise _missing("LOGO_RECOGNITION: the service has no model of logos.")
        if "EXPLICIT_CONTENT_DETECTION" in names and not context.settings.blocked_labels:
            raise _missing("EXPLICIT_CONTENT_DETECTION: the operator has set no content policy.")
        if "FACE_DETECTION" in names and not context.settings.people:
            raise _missing("FACE_DETECTION: the operator has not enabled faces (VAS_PEOPLE).")
        if self.outputUri:
            raise invalid("The service writes no results into buckets.", "outputUri")
        if self.videoContext.segments:
            raise invalid("A video is analysed as a whole.", "videoContext.segments")
        speech = self.videoContext.speechTranscriptionConfig
        if speech.filterProfanity:
            param = "videoContext.speechTranscriptionConfig.filterProfanity"
            raise invalid("Profanity is not filtered.", param)
        terms = [each for one in speech.speechContexts for each in one.phrases][:MAX_KEYTERMS]
        is_vision = any(each != _SPEECH for each in names)
        mode = "all" if is_vision and _SPEECH in names else "vision" if is_vision else "transcript"
        expected = speech.enableSpeakerDiarization and speech.diarizationSpeakerCount
        return {
            "processingMode": mode,
            "people": "FACE_DETECTION" in names,
            **({"keyterms": terms} if terms else {}),
            **({"language": speech.languageCode} if speech.languageCode else {}),
            **({"speakersExpected": expected} if expected else {}),
        }

    def protocol(self) -> dict[str, Any]:
        """Return what the response follows from."""
        speech = self.videoContext.speechTranscriptionConfig
        return {
            "name": "google",
            "features": self.names(),
            "input_uri": self.inputUri,
            "speakers": speech.enableSpeakerDiarization,
            "frames": self.videoContext.labelDetectionConfig.labelDetectionMode in _FRAME_MODES,
        }


def _missing(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message, param="features", status=501)


router = APIRouter(prefix="/v1", route_class=GoogleRoute, include_in_schema=False)


@router.post("/videos:annotate")
async def annotate(request: Request, context: Context, account_id: CurrentAccount) -> Response:
    """Have a video analysed; answer with the operation that does it."""
    with closing_unread(request), contextlib.ExitStack() as held:
        if (content_length(request) or _MOST_BYTES) > context.settings.max_body_bytes:
            held.enter_context(_large.place(account_id))
        sent = Request(request.scope, base.bounded(request, _MOST_BYTES))
        raw = await read_bounded(sent, _MOST_BYTES)
        request.state.body_read = True
        asked = base.checked(Annotate, await run_in_threadpool(parse_json_object, raw))
        if bool(asked.inputUri) == bool(asked.inputContent):
            raise invalid("Give either inputUri or inputContent.", "inputUri")
        create_job = _create_sent if asked.inputContent else _create_fetched
        job = await create_job(request, context, account_id, asked)
    return ExactJSONResponse(_operation(job))


async def _create_fetched(
    request: Request, context: AppContext, account_id: uuid.UUID, asked: Annotate
) -> JobRecord:
    """Create the job; an address in a bucket that is an archive of the account is read with the
    archive's credentials."""
    body = base.checked(CreateJobFromUrlBody, asked.job(context) | {"url": asked.inputUri})
    owned = await context.database.read(archives.list_archives, account_id)
    archive = next((each for each in owned if asked.inputUri.startswith(each.url)), None)

    def plan(planner: Planner) -> JobPlan:
        planned = plan_from_url(planner, body)
        if archive is None:
            return planned
        [clip] = planned.job.source.clips
        clips = (clip.model_copy(update={"archive_id": archive.id}),)
        source = planned.job.source.model_copy(update={"clips": clips})
        return replace(planned, job=replace(planned.job, source=source))

    return await base.create(request, context, account_id, plan, asked.protocol())


async def _create_sent(
    request: Request, context: AppContext, account_id: uuid.UUID, asked: Annotate
) -> JobRecord:
    try:
        content = base64.b64decode(asked.inputContent, validate=True)
    except binascii.Error as error:
        raise invalid("The content is no base64.", "inputContent") from error
    named = {"fileName": "video", "fileSizeBytes": len(content)}
    body = base.checked(CreateJobBody, asked.job(context) | named)
    with contextlib.ExitStack() as held:
        await base.place_among_uploads(held, request, account_id)
        return await base.create_sent(
            request, context, account_id, body, base.received(content), asked.protocol()
        )


_OPERATION = "/projects/{project}/locations/{location}/operations/{jobId}"


@router.get(_OPERATION)
@router.get(f"/operations{_OPERATION}")
async def get_operation(context: Context, job: CurrentJob) -> Response:
    """Read an operation; with its response once it is done."""
    if job.erased_at is not None:
        raise ApiError(ErrorCode.NOT_FOUND, "The operation was deleted.")
    document = _operation(job)
    if job.completed_at is None:
        return ExactJSONResponse(document)
    document["done"] = True
    if job.state is not JobState.COMPLETED:
        is_cancelled = job.state is JobState.CANCELLED
        code = 1 if is_cancelled else 3 if job.state is JobState.FAILED else 4
        message = job.error_message or f"The job is {job.state}."
        document["error"] = {"code": code, "message": message}
        return ExactJSONResponse(document)
    document["response"] = {
        "@type": f"{_TYPE}.AnnotateVideoResponse",
        "annotationResults": [await _results(context, job)],
    }
    return ExactJSONResponse(document)


@router.post(f"{_OPERATION}:cancel")
@router.post(f"/operations{_OPERATION}:cancel")
async def cancel_operation(context: Context, job: CurrentJob) -> Response:
    """Cancel an operation; without effect on one that is done."""
    if job.completed_at is None:
        async with context.database.transaction() as connection:
            with contextlib.suppress(ApiError):  # JOB_NOT_CANCELLABLE: it has ended meanwhile
                await service.cancel_job(connection, job.account_id, str(job.id))
    return ExactJSONResponse({})


@router.delete(_OPERATION)
@router.delete(f"/operations{_OPERATION}")
async def delete_operation(context: Context, job: CurrentJob) -> Response:
    """Erase the job, which is cancelled first where it has not ended."""
    await context.database.write(service.erase_job, job.account_id, str(job.id))
    return ExactJSONResponse({})


@router.get("/projects/{project}/locations/{location}/operations")
async def list_operations(
    context: Context,
    account_id: CurrentAccount,
    page_size: Annotated[int, Query(alias="pageSize", ge=0)] = 0,
) -> Response:
    """List the latest operations, the newest first."""
    limit = min(page_size or _MOST_OPERATIONS, _MOST_OPERATIONS)
    found = await context.database.read(job_records.list_jobs, account_id, limit=_MOST_OPERATIONS)
    shown = [
        _operation(each) | {"done": each.completed_at is not None}
        for each in found
        if each.source.protocol.get("name") == "google" and each.erased_at is None
    ]
    return ExactJSONResponse({"operations": shown[:limit]})


def _operation(job: JobRecord) -> dict[str, Any]:
    so_far = {
        "inputUri": job.source.protocol.get("input_uri", ""),
        "progressPercent": round(100 * progress(job)),
        "startTime": timestamp(job.started_at or job.created_at),
        "updateTime": timestamp(job.completed_at or job.started_at or job.created_at),
    }
    return {
        "name": f"{_PARENT}/operations/{job.id}",
        "metadata": {"@type": f"{_TYPE}.AnnotateVideoProgress", "annotationProgress": [so_far]},
    }


async def _results(context: AppContext, job: JobRecord) -> dict[str, Any]:
    features: Sequence[str] = job.source.protocol.get("features", ())
    scenes: tuple[Scene, ...] = ()
    overview, people, spoken = None, None, None
    async with context.database.statement() as connection:
        if job.stages[StageName.VISION].status is StageStatus.COMPLETED:
            scenes = scenes_of(await results.get_scenes(connection, job.id))
            overview = await find_overview(connection, job.id)
            people = await results.find_people(connection, job.id)
    if _SPEECH in features and job.stages[StageName.TRANSCRIPT].status is StageStatus.COMPLETED:
        spoken = await read_spoken(context.database, job)
    seen = scenes or ((overview,) if overview else ())
    faces = decode(tuple[Person, ...], people.encode(), ignore_unknown=True) if people else ()
    return await run_in_threadpool(_annotations, job, seen, overview, faces, spoken)


def _annotations(
    job: JobRecord,
    scenes: Sequence[Scene],
    overview: Scene | None,
    people: Sequence[Person],
    spoken: Spoken | None,
) -> dict[str, Any]:
    """Return all that the features of the request ask for."""
    features: Sequence[str] = job.source.protocol.get("features", ())
    whole = _segment(0, job.duration_ms or 0)
    shown: dict[str, Any] = {"inputUri": job.source.protocol.get("input_uri", ""), "segment": whole}
    if "SHOT_CHANGE_DETECTION" in features:
        shown["shotAnnotations"] = [_segment(each.start_ms, each.end_ms) for each in scenes]
    if "LABEL_DETECTION" in features:
        shown["shotLabelAnnotations"] = [*_labels(scenes)]
        shown["segmentLabelAnnotations"] = [*_labels((overview,) if overview else ())]
        if job.source.protocol.get("frames"):
            shown["frameLabelAnnotations"] = [*_labels_of_frames(scenes)]
    tracks = [track for each in scenes for track in each.object_tracks]
    if "OBJECT_TRACKING" in features:
        shown["objectAnnotations"] = [
            {
                "entity": _entity(track.label),
                "confidence": round(track.confidence, 4),
                "segment": _segment(track.start_ms, track.end_ms),
                "frames": [_frame(each) for each in boxes],
            }
            for track in tracks
            for boxes in _followed(track)
        ]
    if "PERSON_DETECTION" in features:
        shown["personDetectionAnnotations"] = [
            {"tracks": [_track(boxes, track.confidence)]}
            for track in tracks
            if track.label == _PERSON
            for boxes in _followed(track)
        ]
    if "FACE_DETECTION" in features:
        shown["faceDetectionAnnotations"] = [
            {
                "tracks": [
                    _track([SeenBox(each.time_ms, each.box) for each in some], 1.0)
                    for _, some in groupby(person.appearances, key=lambda each: each.scene_index)
                ]
            }
            for person in people
        ]
    if "TEXT_DETECTION" in features:
        shown["textAnnotations"] = [*_texts(scenes)]
    if "EXPLICIT_CONTENT_DETECTION" in features:
        stills = [still for each in scenes for still in each.stills if still.explicit is not None]
        shown["explicitAnnotation"] = {
            "frames": [
                {
                    "timeOffset": _offset(still.time_ms),
                    "pornographyLikelihood": _likelihood(still.explicit),
                }
                for still in stills
            ]
        }
    if spoken is not None:
        shown["speechTranscriptions"] = [*_speech(job, spoken)]
    return shown


def _offset(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.3f}s"


def _segment(start_ms: int, end_ms: int) -> dict[str, str]:
    return {"startTimeOffset": _offset(start_ms), "endTimeOffset": _offset(end_ms)}


def _entity(label: str) -> dict[str, str]:
    return {"entityId": f"/vas/{label}", "description": label, "languageCode": "en"}


def _labels(scenes: Iterable[Scene]) -> Iterator[dict[str, Any]]:
    """Yield tags and classes of objects, each with the scenes that show it."""
    segments: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for scene in scenes:
        best: dict[str, float] = {}
        for label, confidence in (
            *((tag.label, tag.score) for tag in scene.tags),
            *((track.label, track.confidence) for track in scene.object_tracks),
        ):
            best[label] = max(confidence, best.get(label, 0.0))
        span = _segment(scene.start_ms, scene.end_ms)
        for label, confidence in best.items():
            segments[label].append({"segment": span, "confidence": round(confidence, 4)})
    for label in sorted(segments):
        yield {"entity": _entity(label), "segments": segments[label]}


def _labels_of_frames(scenes: Iterable[Scene]) -> Iterator[dict[str, Any]]:
    """Yield the same with the frames that were looked at: for objects, and for a still's tags."""
    frames: dict[str, dict[int, float]] = defaultdict(dict)
    for scene in scenes:
        for tag in scene.tags:
            for still in scene.stills[:1]:
                frames[tag.label][still.time_ms] = tag.score
        for track in scene.object_tracks:
            for seen in track.boxes or ():
                frames[track.label][seen.time_ms] = track.confidence
    for label in sorted(frames):
        shown = [
            {"timeOffset": _offset(time_ms), "confidence": round(confidence, 4)}
            for time_ms, confidence in sorted(frames[label].items())
        ]
        yield {"entity": _entity(label), "frames": shown}


def _followed(track: ObjectTrack) -> list[list[SeenBox]]:
    """Return the boxes of each object of a track: from look to look those that overlap most."""
    objects: list[list[SeenBox]] = []
    for _, some in groupby(track.boxes or (), key=lambda each: each.time_ms):
        free = [*objects]
        for seen in sorted(some, key=lambda each: -each.box.area):
            last = max(free, key=lambda each: _overlap(each[-1].box, seen.box), default=None)
            if last is None:
                objects.append([seen])
            else:
                free.remove(last)
                last.append(seen)
    return objects


def _overlap(one: Box, two: Box) -> float:
    shared = one.within(two)
    return shared.width * shared.height * two.area


def _corners(box: Box) -> dict[str, float]:
    edges = {"left": box.left, "top": box.top}
    edges |= {"right": box.left + box.width, "bottom": box.top + box.height}
    return {name: round(value, 4) for name, value in edges.items()}


def _frame(seen: SeenBox) -> dict[str, Any]:
    return {"normalizedBoundingBox": _corners(seen.box), "timeOffset": _offset(seen.time_ms)}


def _track(boxes: Sequence[SeenBox], confidence: float) -> dict[str, Any]:
    return {
        "segment": _segment(boxes[0].time_ms, boxes[-1].time_ms),
        "timestampedObjects": [_frame(each) for each in boxes],
        "confidence": round(confidence, 4),
    }


def _texts(scenes: Iterable[Scene]) -> Iterator[dict[str, Any]]:
    """Yield the lines on the screen, each with when and where it is there."""
    segments: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for scene in scenes:
        for line in scene.on_screen_text:
            start_ms = scene.start_ms if line.start_ms is None else line.start_ms
            end_ms = scene.end_ms if line.end_ms is None else line.end_ms
            edges = _corners(line.box)
            corners = ("left", "top"), ("right", "top"), ("right", "bottom"), ("left", "bottom")
            vertices = [{"x": edges[x], "y": edges[y]} for x, y in corners]
            frame = {"rotatedBoundingBox": {"vertices": vertices}, "timeOffset": _offset(start_ms)}
            segments[line.text].append(
                {
                    "segment": _segment(start_ms, end_ms),
                    "confidence": round(line.confidence, 4),
                    "frames": [frame],
                }
            )
    for text, own in segments.items():
        yield {"text": text, "segments": own}


def _likelihood(probability: float | None) -> str:
    names = ("VERY_UNLIKELY", "UNLIKELY", "POSSIBLE", "LIKELY", "VERY_LIKELY")
    return names[sum((probability or 0.0) >= each for each in _LIKELIHOODS)]


def _speech(job: JobRecord, spoken: Spoken) -> Iterator[dict[str, Any]]:
    tags = spoken.speakers if job.source.protocol.get("speakers") else {}
    for segment in spoken.found.segments:
        words = [
            {
                "startTime": _offset(word.start_ms),
                "endTime": _offset(word.end_ms),
                "word": word.text,
                "confidence": round(word.confidence, 4),
            }
            | ({"speakerTag": tags[word.speaker] + 1} if word.speaker in tags else {})
            for word in segment.words
        ]
        alternative = {
            "transcript": segment.text,
            "confidence": mean_confidence([segment]),
            "words": words,
        }
        language = segment.language or spoken.language or ""
        yield {"alternatives": [alternative], "languageCode": language}
