"""The table's rows for jobs and their results."""

from __future__ import annotations

from serve_app.discovery.components_bodies import IDEMPOTENCY_HEADER_PATTERN
from serve_app.discovery.components_forms import choice, identifier, integer, text
from serve_app.discovery.components_jobs import list_envelope
from serve_app.discovery.operations_forms import Auth, Operation, Parameter, Success, data
from serve_app.errors import ErrorCode
from serve_app.jobs.result_routes import MAX_TRACK_INDEX, TRANSCRIPT_FORMATS
from serve_app.jobs.routes import DEFAULT_PAGE, MAX_PAGE, STATE_ALIASES
from storage.job_lists import LEGACY_FILTERS
from storage.types import JobState

JOB_ID = Parameter(
    "jobId", "path", identifier(""), "The job's id; what is no UUID is not found.", required=True
)
IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    "header",
    text(pattern=IDEMPOTENCY_HEADER_PATTERN),
    "Makes the creation safe to repeat for 24 hours: the same key and body get the first answer "
    "again.",
    example="shoot-42-take-7",
)
_CREATION_ERRORS = (
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_CALLBACK_URL,
    ErrorCode.INSUFFICIENT_CREDITS,
    ErrorCode.IDEMPOTENCY_IN_PROGRESS,
    ErrorCode.UNSUPPORTED_FORMAT,
    ErrorCode.IDEMPOTENCY_BODY_MISMATCH,
    ErrorCode.TOO_MANY_ACTIVE_JOBS,
    ErrorCode.THROTTLED,
)
_URL_ERRORS = (ErrorCode.INVALID_URL, ErrorCode.URL_NOT_ALLOWED)
_RESULT_ERRORS = (
    ErrorCode.NOT_FOUND,
    ErrorCode.RESULTS_UNAVAILABLE,
    ErrorCode.RESULTS_NOT_READY,
)
_CANCEL_ERRORS = (ErrorCode.NOT_FOUND, ErrorCode.JOB_NOT_CANCELLABLE)
_OF_NEW_JOB = {"jobId": "$response.body#/data/jobId"}
_AFTER_CREATION = dict.fromkeys(("getJob", "cancelJob", "getScenes", "getTranscript"), _OF_NEW_JOB)

CREATIONS = (
    Operation(
        "createJob",
        "POST",
        "/jobs",
        Auth.KEY,
        "Jobs",
        "Create a job and upload its media",
        "The answer has signed URLs: `PUT` the media to `uploadUrl` within `expiresInSeconds`, or "
        "send it to `resumableUploadUrl` with any client of tus 1.0.0. "
        "The job is queued as soon as every declared file has arrived.",
        data(
            "CreatedUploadJob",
            "The job waits for its upload.",
            status=201,
            headers=("Location",),
            optional_headers=("Idempotent-Replayed",),
            links=_AFTER_CREATION,
        ),
        (IDEMPOTENCY_KEY,),
        "CreateJobRequest",
        (*_CREATION_ERRORS, ErrorCode.FILE_TOO_LARGE),
    ),
    Operation(
        "createJobFromUrl",
        "POST",
        "/jobs/from-url",
        Auth.KEY,
        "Jobs",
        "Create a job from a URL",
        "The service fetches the media itself. Addresses that are not on the public internet are "
        "refused.",
        data(
            "Job",
            "The job is queued.",
            status=201,
            headers=("Location",),
            optional_headers=("Idempotent-Replayed",),
            links=_AFTER_CREATION,
        ),
        (IDEMPOTENCY_KEY,),
        "CreateJobFromUrlRequest",
        (*_CREATION_ERRORS, *_URL_ERRORS),
    ),
    Operation(
        "createBatch",
        "POST",
        "/jobs/batch",
        Auth.KEY,
        "Jobs",
        "Create a batch of up to 100 clips",
        "`independent`: a job a clip. `continuous`: one job whose timeline is the clips laid end "
        "to end. One bad clip fails the request before any job is made.",
        data(
            "BatchResult",
            "The jobs are queued.",
            status=201,
            optional_headers=("Idempotent-Replayed",),
            links={"getJob": {"jobId": "$response.body#/data/jobs/0/jobId"}},
        ),
        (IDEMPOTENCY_KEY,),
        "CreateBatchRequest",
        (*_CREATION_ERRORS, *_URL_ERRORS),
    ),
)

_LIST_PARAMETERS = (
    Parameter(
        "limit",
        "query",
        integer(minimum=1, maximum=MAX_PAGE, default=DEFAULT_PAGE),
        "Most jobs of a page.",
    ),
    Parameter("cursor", "query", text(), "`nextCursor` of the page before."),
    Parameter(
        "state",
        "query",
        choice("", [*JobState, *STATE_ALIASES]),
        "Only jobs in this state; `uploading` means `awaiting_upload`. Not together with `status`.",
    ),
    Parameter(
        "status",
        "query",
        choice("", LEGACY_FILTERS),
        "Only jobs of this older status, or of the groups `COMPLETED` and `FAILED`. Use `state`.",
        deprecated=True,
    ),
)

JOBS = (
    Operation(
        "listJobs",
        "GET",
        "/jobs",
        Auth.KEY,
        "Jobs",
        "List jobs",
        "Newest first, page by page: go on while `hasMore` is true. A page may hold fewer jobs "
        "than `limit`.",
        Success(
            "A page of jobs.",
            list_envelope(),
            optional_headers=("Link",),
            enveloped=False,
            links={
                "listJobs": {"cursor": "$response.body#/nextCursor"},
                "getJob": {"jobId": "$response.body#/data/0/jobId"},
            },
        ),
        _LIST_PARAMETERS,
        errors=(ErrorCode.INVALID_REQUEST,),
    ),
    Operation(
        "getJob",
        "GET",
        "/jobs/{jobId}",
        Auth.KEY,
        "Jobs",
        "Read a job",
        "With its results once their stages are completed. To poll, use `include=none` every 5 "
        "to 15 seconds.",
        data("Job", "The job."),
        (
            JOB_ID,
            Parameter(
                "include",
                "query",
                text(pattern="^(none|(scenes|transcript)(,(scenes|transcript))*)$"),
                "`none`, or a list of `scenes` and `transcript`; both if not given.",
                example="none",
            ),
        ),
        errors=(ErrorCode.INVALID_REQUEST, ErrorCode.NOT_FOUND),
    ),
    Operation(
        "cancelJob",
        "POST",
        "/jobs/{jobId}/cancel",
        Auth.KEY,
        "Jobs",
        "Cancel a job",
        "Allowed until the job has ended. Completed stages stay charged and readable.",
        data("Job", "The cancelled job, without `processedData`."),
        (JOB_ID,),
        errors=_CANCEL_ERRORS,
    ),
    Operation(
        "cancelJobDeprecated",
        "DELETE",
        "/jobs/{jobId}",
        Auth.KEY,
        "Jobs",
        "Cancel a job (deprecated)",
        "Does what `POST /jobs/{jobId}/cancel` does. The verb is reserved for deleting a job and "
        "its results.",
        data("Job", "The cancelled job, without `processedData`.", headers=("Deprecation", "Link")),
        (JOB_ID,),
        errors=_CANCEL_ERRORS,
        deprecated=True,
    ),
)

RESULTS = (
    Operation(
        "getTranscript",
        "GET",
        "/jobs/{jobId}/transcript",
        Auth.KEY,
        "Results",
        "Read the transcript",
        "As JSON, or as a file of captions or plain text.",
        data(
            "Transcript",
            "The transcript.",
            optional_headers=("Content-Disposition",),
            files={
                "application/x-subrip": "SubRip captions.",
                "text/vtt": "WebVTT captions.",
                "text/plain": "A paragraph for each turn of a speaker.",
            },
        ),
        (
            JOB_ID,
            Parameter(
                "format",
                "query",
                choice("", TRANSCRIPT_FORMATS) | {"default": "json"},
                "The form of the answer.",
            ),
            Parameter(
                "track",
                "query",
                integer(minimum=0, maximum=MAX_TRACK_INDEX),
                "Audio track; required for files of multi-track jobs.",
            ),
        ),
        errors=(ErrorCode.INVALID_REQUEST, *_RESULT_ERRORS),
    ),
    Operation(
        "getScenes",
        "GET",
        "/jobs/{jobId}/scenes",
        Auth.KEY,
        "Results",
        "Read the scenes",
        "Empty when the video has no cuts.",
        data("SceneList", "The scenes."),
        (JOB_ID,),
        errors=_RESULT_ERRORS,
    ),
    Operation(
        "listAudioTracks",
        "GET",
        "/jobs/{jobId}/audioTracks",
        Auth.KEY,
        "Results",
        "List the audio tracks",
        "Of a multi-track job, each with its own transcript.",
        data("AudioTrackList", "The audio tracks."),
        (JOB_ID,),
        errors=(ErrorCode.NOT_FOUND,),
    ),
    Operation(
        "getAudioTrack",
        "GET",
        "/jobs/{jobId}/audioTracks/{trackIndex}",
        Auth.KEY,
        "Results",
        "Read an audio track",
        "Of a multi-track job.",
        data("AudioTrack", "The audio track."),
        (
            JOB_ID,
            Parameter("trackIndex", "path", integer(minimum=0), "From 0.", required=True),
        ),
        errors=(ErrorCode.INVALID_REQUEST, ErrorCode.NOT_FOUND),
    ),
)
