"""The Job object: its types in the interface document, and functions from records to them. Pure.

``metadata`` is small and flat, and echoed as it came. The time that is left of a running job
follows from how far its stages are and how long that took.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from itertools import permutations
from typing import Annotated, Any, Literal, NotRequired, cast

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, with_config
from pydantic_core import InitErrorDetails, PydanticCustomError
from typing_extensions import TypedDict

from pipelines.codec import from_json
from pipelines.types import ClipSpan, PipelineWarning, StageCode, WarningCode
from serve_app.api.schemas import (
    NO_NUL_PATTERN,
    Count,
    RequestId,
    Seconds,
    Share,
    Timestamp,
    Url,
    Uuid,
    doc,
    rendered,
)
from serve_app.results.redaction import RedactionJson, redaction_json
from serve_app.results.scenes import OVERVIEW, OverviewJson, ProcessedScene
from serve_app.results.transcripts import TranscriptEntry
from storage.job_records import LEGACY_STATUSES, JobRecord, StageRecord
from storage.types import (
    ANALYSES,
    ENDED_STATUSES,
    JobState,
    Priority,
    ProcessingMode,
    SkipReason,
    StageName,
    StageStatus,
    Tier,
)

MAX_ENTRIES = 50
MAX_VALUE_CHARACTERS = 500
MAX_BYTES = 16 * 1024
_KEY = re.compile(r"[A-Za-z0-9_.-]{1,40}")


def check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return ``metadata`` if it is within the limits; the error names the entry at fault."""
    if len(metadata) > MAX_ENTRIES:
        raise PydanticCustomError("metadata", f"must have at most {MAX_ENTRIES} entries")
    for key, value in metadata.items():
        problem = _problem(key, value)
        if problem is not None:
            blamed = PydanticCustomError("metadata_entry", problem)
            detail = InitErrorDetails(type=blamed, loc=(key,), input=None)
            raise ValidationError.from_exception_data("metadata", [detail])
    if len(json.dumps(metadata, ensure_ascii=False).encode()) > MAX_BYTES:
        raise PydanticCustomError("metadata", f"must be at most {MAX_BYTES} bytes of JSON")
    return metadata


def _problem(key: str, value: Any) -> str | None:
    if not _KEY.fullmatch(key):
        return "a key must be 1 to 40 characters of A-Z a-z 0-9 _ . -"
    if isinstance(value, str):
        too_long = len(value) > MAX_VALUE_CHARACTERS
        return f"must be at most {MAX_VALUE_CHARACTERS} characters long" if too_long else None
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if value is not None and not isinstance(value, (bool, int, float)):
        return "must be a string, a number, a boolean or null"
    return None


EchoedMetadata = Annotated[
    dict[str, Any],
    doc(
        f"Your own data, echoed on the job and in its webhooks: at most {MAX_ENTRIES} "
        f"entries, {MAX_BYTES} bytes as JSON.",
        {"assetId": "A-1042"},
        json_schema_extra={
            "maxProperties": MAX_ENTRIES,
            "propertyNames": {"pattern": "^[A-Za-z0-9_.-]{1,40}$"},
            "additionalProperties": {
                "type": ["string", "number", "boolean", "null"],
                "maxLength": MAX_VALUE_CHARACTERS,
                "pattern": NO_NUL_PATTERN,
            },
        },
    ),
]
Metadata = Annotated[EchoedMetadata, AfterValidator(check_metadata)]

FileName = Annotated[str, doc("Name of the media file.", "interview.mp4")]


class ProcessedData(TypedDict):
    """The results of a job, each only once its stage is completed."""

    length: Annotated[float | None, doc("Of the media, in seconds; null until it is known.")]
    scenes: NotRequired[list[ProcessedScene]]
    overview: NotRequired[Annotated[OverviewJson, doc(OVERVIEW)]]
    transcript: NotRequired[list[TranscriptEntry]]


class JobError(TypedDict):
    """Why a job or a stage failed."""

    code: StageCode
    message: NotRequired[Annotated[str | None, doc("For people; may change.")]]


class JobWarning(TypedDict):
    """What a client should know although the work went on."""

    code: Annotated[WarningCode, doc("Stable.", "AUDIO_SYNC_UNCERTAIN")]
    message: Annotated[str, doc("For people.")]
    stage: NotRequired[Annotated[StageName, doc("The stage that it came from.", "ingest")]]
    param: NotRequired[Annotated[str, doc("The field of the request.", "procesingMode")]]
    trackIndex: NotRequired[Annotated[int, doc("The audio track that it is about.", 0)]]
    startTime: NotRequired[Annotated[Seconds, doc("Where what it is about begins.", 12.5)]]
    endTime: NotRequired[Annotated[Seconds, doc("Where it ends.", 20.0)]]


class Stage(TypedDict):
    """One stage of a job."""

    status: Annotated[StageStatus, Field(examples=["completed"])]
    progress: Annotated[Share, Field(examples=[1.0])]
    reason: NotRequired[SkipReason]
    error: NotRequired[Annotated[JobError, doc("Of a failed or cancelled stage; not in lists.")]]


class Stages(TypedDict):
    """The stages of a job."""

    ingest: Stage
    vision: Stage
    transcript: Stage


_FAILED_SAYS_WHY = with_config(
    ConfigDict(
        json_schema_extra={
            "if": {"required": ["state"], "properties": {"state": {"const": "failed"}}},
            "then": {"required": ["error"], "properties": {"error": {}}},
        }
    )
)


@_FAILED_SAYS_WHY
class JobSummary(TypedDict):
    """A job as lists show it."""

    jobId: Annotated[Uuid, doc("The job's id.")]
    state: Annotated[JobState, Field(examples=["completed"])]
    processingMode: ProcessingMode
    priority: Priority
    stages: Stages
    metadata: EchoedMetadata
    tags: Annotated[list[str], doc("Given at creation, or later.", ["council"])]
    fileName: FileName
    tier: Tier
    createdAt: Annotated[Timestamp, doc("When the job was created.")]
    startedAt: Annotated[Timestamp | None, doc("When work on it began.")]
    completedAt: Annotated[Timestamp | None, doc("When it reached a final state.")]
    durationSeconds: Annotated[float | None, doc("Of the media; null until ingest knows it.")]
    progress: Annotated[Share, doc("0 to 1 over the stages that run.", 1.0)]
    chargedCents: Annotated[Count, doc("What its completed stages cost, in US cents.")]
    callbackUrl: Annotated[Url | None, doc("Where its webhook goes.")]
    originalFilename: Annotated[FileName, doc("The same as `fileName`, for older clients.")]
    status: Annotated[
        str,
        doc(
            "The state as older clients read it.", json_schema_extra={"enum": list(LEGACY_STATUSES)}
        ),
    ]
    estimatedCompletionTimeSeconds: Annotated[
        float | None, doc("Seconds until it is done, while its stages run and their pace is known.")
    ]
    error: NotRequired[Annotated[JobError, doc("Present when `state` is `failed`.")]]
    errorMessage: NotRequired[
        Annotated[str | None, doc("The message of `error`, for older clients.")]
    ]
    erasedAt: NotRequired[Annotated[Timestamp, doc("When its content was erased.")]]
    rerunOf: NotRequired[
        Annotated[Uuid, doc("The job whose results it renews; then it has those it replaced.")]
    ]
    redaction: NotRequired[Annotated[RedactionJson, doc("Where personal data is hidden.")]]
    batchId: NotRequired[Annotated[Uuid, doc("The batch that the job came from.")]]
    index: NotRequired[Annotated[Count, doc("Position of its clip in that batch.")]]
    audioTrackCount: NotRequired[
        Annotated[int, doc("On multi-track jobs; until ingest as the request says.", ge=2)]
    ]
    audioTracksCompleted: NotRequired[Annotated[Count, doc("On multi-track jobs.")]]
    audioTrackNames: NotRequired[Annotated[list[str], doc("On multi-track jobs, by track index.")]]


class Links(TypedDict):
    """Absolute URLs of a job and its results."""

    self: Annotated[Url, doc("The job.")]
    transcript: Annotated[Url, doc("Its transcript.")]
    scenes: Annotated[Url, doc("Its scenes.")]


class ProgrammeClip(TypedDict):
    """A clip of a continuous programme, on the common timeline."""

    index: Annotated[Count, doc("Position in `clips` of the request.")]
    fileName: Annotated[str | None, doc("Its name.")]
    startTime: Annotated[Seconds | None, doc("Seconds. Null until ingest has seen all clips.")]
    durationSeconds: Annotated[Seconds | None, doc("Null until ingest has seen all clips.")]
    metadata: Annotated[EchoedMetadata, doc("The clip's own, as given.")]


class RetentionJson(TypedDict):
    """How long a job keeps its media and its results after its end, as its creation had it."""

    sourceSeconds: NotRequired[Annotated[Count, doc("Media, segments and unused stills.", 0)]]
    resultDays: NotRequired[Annotated[Count, doc("Everything else; then it is erased.", 30)]]


class Job(JobSummary):
    """A job with its links and, where included, its results."""

    links: Links
    retention: NotRequired[
        Annotated[RetentionJson, doc("Where chosen; else its account's, or the service's.")]
    ]
    warnings: Annotated[list[JobWarning], doc("What else is worth knowing.")]
    processedData: NotRequired[ProcessedData]
    clips: NotRequired[
        Annotated[list[ProgrammeClip], doc("Of a continuous programme: its clips in order.")]
    ]
    queuePosition: NotRequired[
        Annotated[
            int | None,
            doc(
                "While it waits for its turn: 1 is the next. Null beyond 10,000, and while it "
                "waits for other jobs of its account to end."
            ),
        ]
    ]
    estimatedStartSeconds: NotRequired[
        Annotated[
            float | None,
            doc(
                "While it waits: seconds until its turn, by what the last completed jobs took. "
                "Null where that is not known."
            ),
        ]
    ]


_RESUMABLE = (
    "The same file over tus 1.0.0, which goes on where a broken upload stopped: an upload that is "
    "created already, for `HEAD`, `PATCH`, `DELETE` and `OPTIONS`, with the extensions checksum, "
    "expiration and termination. Its length is deferred where `fileSizeBytes` was not given: state "
    "it as `Upload-Length` of a `PATCH`, the last at the latest (tus-js-client: "
    "`uploadLengthDeferred: true`). "
    "Signed, needs no key; pages of any origin may use it."
)
_UploadHeaders = Annotated[
    dict[str, str],
    doc("Headers to send with the upload.", {"Content-Type": "application/octet-stream"}),
]


class AudioTrackUpload(TypedDict):
    """Where one separate audio file goes."""

    trackIndex: Annotated[Count, doc("Position in `audioTracks`.")]
    url: Annotated[Url, doc("Where to `PUT` the file; signed, needs no key.")]
    resumableUrl: Annotated[Url, doc(_RESUMABLE)]
    headers: _UploadHeaders


class CreatedUploadJob(Job):
    """A job that waits for its upload."""

    uploadUrl: Annotated[Url, doc("Where to `PUT` the media; signed, needs no key.")]
    resumableUploadUrl: Annotated[Url, doc(_RESUMABLE)]
    uploadMethod: Annotated[Literal["PUT"], doc("Always `PUT`.")]
    uploadHeaders: _UploadHeaders
    expiresInSeconds: Annotated[int, doc("Life of the upload URLs.", 3600, ge=1)]
    maxUploadBytes: Annotated[int, doc("The most that the file's tier takes.", 21474836480, ge=1)]
    audioUploadUrl: NotRequired[Annotated[Url, doc("For `audioFileName`.")]]
    audioResumableUploadUrl: NotRequired[Annotated[Url, doc(f"For `audioFileName`. {_RESUMABLE}")]]
    audioUploadHeaders: NotRequired[
        Annotated[_UploadHeaders, doc("Headers for uploads of separate audio.")]
    ]
    audioTrackUploadUrls: NotRequired[
        Annotated[list[AudioTrackUpload], doc("For `audioTracks`, in their order.")]
    ]


class BatchJob(Job):
    """A job of a batch."""

    batchId: Annotated[Uuid, doc("The batch.")]  # type: ignore[misc]
    index: Annotated[Count, doc("Position of the clip in `clips`.")]  # type: ignore[misc]


class BatchResult(TypedDict):
    """The jobs of a batch."""

    batchId: Annotated[Uuid, doc("The batch.")]
    mode: Annotated[Literal["independent", "continuous"], doc("As requested.")]
    jobs: Annotated[list[BatchJob], doc("In the order of the clips.", min_length=1)]


class JobPage(TypedDict):
    """A page of jobs, newest first."""

    data: Annotated[list[JobSummary], doc("May hold fewer than `limit`.")]
    hasMore: Annotated[bool, doc("Whether another page follows.", False)]
    nextCursor: Annotated[str | None, doc("Pass it as `cursor` for the next page.", None)]
    requestId: NotRequired[RequestId]


_LEAST_PROGRESS = 0.03
"""Before that a stage's pace shows nothing: models are loading, the first shards are running."""
_START_SECONDS = 2.0
"""Of a stage's time, in which workers start and nothing moves yet."""
_TRUSTED_PROGRESS, _SLOW_PROGRESS = 0.15, 0.05
"""Where a stage's own pace counts as much as what was expected of it; sooner where it is slower:
what was expected is of a machine without other work."""


def timings_of(gain: float, expected_seconds: Mapping[StageName, float]) -> dict[str, float]:
    """Return what ingest stores with its own timings for ``seconds_left``.

    ``expected_seconds`` of an analysis by itself; without those of which nothing is known.
    """
    expected = {f"{stage}_expected": seconds for stage, seconds in expected_seconds.items()}
    return {"gain": gain} | expected


def gain_alone(cpus: float, transcribers: float) -> float:
    """Return how much faster an analysis gets once it no longer shares the processors.

    Pictures are read on all of them, transcribers take one each: on two processors with
    two transcribers each analysis gets half of what it gets alone, on many hardly less.
    """
    return 1.0 + min(1.0, transcribers / max(1.0, cpus))


def alone_seconds(seconds: float, beside_seconds: float, gain: float) -> float:
    """Return what ``seconds`` come to alone, if another analysis ran for ``beside_seconds`` of
    them."""
    shared = min(seconds, beside_seconds)
    return seconds - shared + shared / gain


def seconds_left(stages: Mapping[StageName, StageRecord]) -> float | None:
    """Return seconds until the last analysis ends; None where too little is known yet."""
    ingest = stages[StageName.INGEST]
    if ingest.status is not StageStatus.COMPLETED:
        return None
    gain = ingest.timings.get("gain", 1.0)
    left = [0.0, 0.0]
    for name, other in permutations(ANALYSES):
        if stages[name].status in ENDED_STATUSES:
            continue
        expected = ingest.timings.get(f"{name}_expected")
        seconds = _left_alone(stages[name], stages[other], expected, gain)
        if seconds is None:
            return None
        left.append(seconds)
    # The longer one has the processors to itself once the other has ended.
    shorter, longer = sorted(left)[-2:]
    return shorter * gain + longer - shorter


def _left_alone(
    stage: StageRecord, other: StageRecord, expected_seconds: float | None, gain: float
) -> float | None:
    """Return what a running analysis has left by itself.

    At first what was expected counts, then ever more its own pace; None where there is neither.
    """
    whole, progress = expected_seconds, stage.progress
    if progress >= _LEAST_PROGRESS:
        moving = max(stage.seconds - _START_SECONDS, stage.seconds / 2)
        by_pace = alone_seconds(moving, other.seconds, gain) / progress
        if whole is None:
            return (1 - progress) * by_pace
        half = _SLOW_PROGRESS if by_pace > whole else _TRUSTED_PROGRESS
        trust = progress**2 / (progress**2 + half**2)
        whole = trust * by_pace + (1 - trust) * whole
    return None if whole is None else (1 - progress) * whole


_LEGACY_STATUS = {
    JobState.AWAITING_UPLOAD: "AWAITING_UPLOAD",
    JobState.QUEUED: "QUEUED",
    JobState.PROCESSING: "PROCESSING",
    JobState.CANCELLED: "FAILED_CANCELLED",
    JobState.EXPIRED: "FAILED_EXPIRED",
}
_STAGE_SHARE = {StageName.INGEST: 0.1, StageName.VISION: 0.45, StageName.TRANSCRIPT: 0.45}
"""Share of each stage in the job's progress, before the skipped ones are left out."""


def render_job(job: JobRecord, base_url: str) -> Job:
    """Return the Job object without ``processedData``."""
    shown: Job = {
        **render_summary(job),  # type: ignore[typeddict-item]  # it lacks what a job may lack
        "stages": _stages(job, with_errors=True),
        "links": links(job, base_url),
        "warnings": cast("list[JobWarning]", job.warnings),
    }
    if job.source.continuous:
        shown["clips"] = _clips(job)
    seconds, days = job.source.source_retention_seconds, job.source.result_retention_days
    kept = {"sourceSeconds": seconds, "resultDays": days}
    if retention := {name: value for name, value in kept.items() if value is not None}:
        shown["retention"] = cast("RetentionJson", retention)
    return shown


def _clips(job: JobRecord) -> list[ProgrammeClip]:
    """Return the clips of a timeline; where each starts is known once ingest has seen all of
    them."""
    spans = {span["index"]: from_json(ClipSpan, span) for span in job.clips or []}
    return [
        {
            "index": index,
            "fileName": clip.name,
            "startTime": spans[index].start_ms / 1000 if spans else None,
            "durationSeconds": spans[index].duration_ms / 1000 if spans else None,
            "metadata": clip.metadata,
        }
        for index, clip in enumerate(job.source.clips)
    ]


def render_summary(job: JobRecord) -> JobSummary:
    """Return the reduced form of list items."""
    left = seconds_left(job.stages) if job.state is JobState.PROCESSING else None
    more: dict[str, Any] = {}
    if job.state is JobState.FAILED:
        more = {"error": _error(job), "errorMessage": job.error_message}
    if job.source.redact:
        more["redaction"] = redaction_json(job)
    if job.batch_id is not None:
        more["index"] = job.batch_index
    names = job.track_names
    if len(names) > 1:
        more |= {
            "audioTrackCount": len(names),
            "audioTracksCompleted": job.tracks_completed,
            "audioTrackNames": names,
        }
    shown = rendered(
        JobSummary,
        job,
        jobId=str(job.id),
        stages=_stages(job, with_errors=False),
        progress=progress(job),
        originalFilename=job.file_name,
        status=legacy_status(job),
        estimatedCompletionTimeSeconds=None if left is None else round(left, 1),
        **more,
    )
    if job.state is not JobState.FAILED:
        shown.pop("errorMessage", None)  # of a job that ended otherwise, for its stages
    return shown


def _stages(job: JobRecord, *, with_errors: bool) -> Stages:
    stages = {str(each): _stage(job.stages[each], with_error=with_errors) for each in StageName}
    return cast("Stages", stages)


def _stage(stage: StageRecord, *, with_error: bool) -> Stage:
    shown: Stage = {"status": stage.status, "progress": round(stage.progress, 6)}
    if stage.skip_reason is not None:
        shown["reason"] = stage.skip_reason
    if with_error and stage.error_code is not None:
        shown["error"] = _error(stage)
    return shown


def _error(failed: JobRecord | StageRecord) -> JobError:
    return {"code": cast("StageCode", failed.error_code), "message": failed.error_message}


def links(job: JobRecord, base_url: str) -> Links:
    """Absolute URLs of the job and its results; ``base_url`` includes the path prefix."""
    job_url = f"{base_url}/jobs/{job.id}"
    return {"self": job_url, "transcript": f"{job_url}/transcript", "scenes": f"{job_url}/scenes"}


def progress(job: JobRecord) -> float:
    """0 to 1 over the stages that run; 1 once all of them have ended."""
    done = total = 0.0
    for name, stage in job.stages.items():
        if stage.status is StageStatus.SKIPPED:
            continue
        total += _STAGE_SHARE[name]
        ended = stage.status in ENDED_STATUSES
        done += _STAGE_SHARE[name] * (1.0 if ended else stage.progress)
    if total == 0:
        return 1.0
    return round(done / total, 6)


def legacy_status(job: JobRecord) -> str:
    """Return the ``status`` that older clients read (decisions.md §2)."""
    if job.state is JobState.COMPLETED:
        return "VISION_COMPLETED" if job.scene_count else "VIDEO_COMPLETED_NO_SCENES"
    if job.state is JobState.FAILED:
        if job.error_code == "FETCH_FAILED":
            return "FAILED_FETCH"
        failed = [name for name in StageName if job.stages[name].status is StageStatus.FAILED]
        return f"{failed[0].upper()}_FAILED" if failed else "INGEST_FAILED"
    return _LEGACY_STATUS[job.state]


def warning_document(warning: PipelineWarning, stage: StageName) -> JobWarning:
    """Return a warning of ``stage`` as it is stored and shown, without what it is not about."""
    return rendered(JobWarning, warning, stage=warning.stage or stage)
