"""Rows that the specification states in sentences, outside its tables and lists.

Transcribed word for word; the lines are as long as the specification wrote them.
"""

# ruff: noqa: E501
from __future__ import annotations

from tests.contract.spec_text import Group, sentences

_CREATE_JOB = "POST /jobs (createJob)"
_BATCH = "POST /jobs/batch (createBatch)"
_LIST = "GET /jobs (listJobs)"
_GET = "GET /jobs/{jobId} (getJob)"
_CANCEL = "POST /jobs/{jobId}/cancel (cancelJob)"
_TRANSCRIPT = "GET /jobs/{jobId}/transcript (getTranscript)"
_SCENES = "GET /jobs/{jobId}/scenes (getScenes)"
_TRACKS = "GET /jobs/{jobId}/audioTracks (listAudioTracks)"
_TEST = "POST /webhooks/test (sendTestWebhook)"
_DELIVERIES = "GET /webhooks/deliveries (listWebhookDeliveries)"
_RECEIVER = "Request sent to the receiver"
_DISCOVERY = "Keyless discovery endpoints"

_STATES = (
    sentences(
        "job-states",
        "Job states",
        "`awaiting_upload`, `queued`, `processing`, `completed`, `failed`, `cancelled`, `expired`. In the `state` filter of `GET /jobs`, `uploading` is accepted as an alias of `awaiting_upload`.",
        "awaiting_upload queued processing completed failed cancelled expired uploading",
    ),
    sentences(
        "stage-status",
        "Stage status values",
        "Mentioned values for `stages.<stage>.status`: `pending`, `running`, `completed`, `skipped`, `failed`.",
        "pending running completed skipped failed",
    ),
    sentences(
        "reasons",
        "Codes",
        "`RESULTS_UNAVAILABLE.reason` values: `processing_mode`, `audio_only_input`, `no_audio`, `stage_skipped`, `stage_failed`, `track_failed`, `job_cancelled`, `job_expired`, `job_failed`.",
        "processing_mode audio_only_input no_audio stage_skipped stage_failed track_failed job_cancelled job_expired job_failed",
    ),
)

_OBJECTS = tuple(
    sentences("objects", heading, text, key)
    for key, heading, text in (
        ("batch-item", "Job object", "Batch item: a Job object plus `index` (position of the clip in `clips`)."),
        ("scene", "Scene", "`{ index, startTime, endTime, description, objects, colorPalette, shotType, shotAngle }`."),
        ("transcript", "Transcript (JSON form)", "`{ jobId, language, speakers, text, segments[], tracks?, trackIndex?, trackName? }`."),
        ("audio-track", "Audio track", "`{ trackIndex, trackName, status, transcript, speakers, language, errorCode? }`. `transcript` holds the stored transcript entries."),
        ("quota", "Quota (`data.api`)", "`{ available, balanceCents, heldCents, availableCents, payAsYouGo, monthUsageSeconds, tier, volumeThresholdSeconds }`."),
        ("delivery", "Webhook delivery record", "`{ id, jobId, eventType, urlHost, status, attempts, lastStatus, lastError, disabled, deliveredAt, createdAt }`. `id` has the form `<jobId>:<eventType>`."),
        ("webhook-test-result", "Webhook test result", "`{ delivered, statusCode, latencyMs, error? }`."),
        ("price-estimate", "Price estimate", "`{ cents, usd, currency, billableSeconds, durationSeconds, tier, mode, audioTracks, priorUsageSeconds }`."),
        ("key", "Key object (dashboard)", "`{ id, displayKey, status, expiresAt, benefitId, createdAt }`. The full secret is never listed."),
        ("signing-secret", "Webhook signing secret", "`{ secret, createdAt, rotatedAt }`. The secret is `whsec_` followed by base64."),
        ("batch", _BATCH, "Response: `{ batchId, mode, jobs[] }`; each item is a Job object plus `index`."),
        ("scene-list", _SCENES, "Response `{ jobId, scenes[] }`."),
        ("audio-track-list", _TRACKS, "Response `{ jobId, tracks[] }` for a multi-track job, ordered by `trackIndex`."),
    )
)  # fmt: skip

_FIELDS = (
    sentences(
        "batch-body",
        _BATCH,
        "Body: `mode` (required; `independent` or `continuous`), `clips[]` (required, 1 to 100 items), `processingMode`, `callbackUrl` (one for the whole batch), `idempotencyKey`, `metadata`.",
        "mode clips processingMode callbackUrl idempotencyKey metadata",
    ),
    sentences(
        "batch-clip",
        _BATCH,
        "Each clip: `sourceUrl` (required), `fileName?`, `downloadToken?`, `provider?`, `metadata?`.",
        "sourceUrl fileName downloadToken provider metadata",
    ),
    sentences(
        "get-job-query",
        _GET,
        "Query `include`: comma list of `scenes` and `transcript`, or `none`. Default: both; each is present only once its stage is `completed`.",
        "include",
    ),
    sentences(
        "transcript-query",
        _TRANSCRIPT,
        "Query: `format` (`json` default, `srt`, `vtt`, `txt`); `track` (audio track index; required for `srt`, `vtt`, `txt` on multi-track jobs, otherwise `400 INVALID_REQUEST`).",
        "format track",
    ),
    sentences(
        "deliveries-query",
        _DELIVERIES,
        "Query: `jobId` (optional filter). Response: the last 100 deliveries of the account, newest first, as delivery records.",
        "jobId",
    ),
    sentences(
        "webhook-test-body",
        _TEST,
        "Body: `url` (HTTPS, port 443, public address). Sends a signed `webhook.test` event to it.",
        "url",
    ),
    sentences(
        "webhook-request",
        _RECEIVER,
        "Headers: `Content-Type: application/json`, a `User-Agent` of the form `<service>-Webhooks/<version>`, `webhook-id`, `webhook-timestamp`, `webhook-signature`.",
        "Content-Type User-Agent",
    ),
)

_NOTES = tuple(
    sentences("notes", heading, text, key)
    for key, heading, text in (
        ("upload", _CREATE_JOB, "The media is then uploaded with `PUT` to `uploadUrl`, using `uploadHeaders`, within `expiresInSeconds` (3600)."),
        ("newest-first", _LIST, "Newest first."),
        ("next-link", _LIST, 'While more pages exist, a `Link: <...>; rel="next"` header is sent. Clients continue while `hasMore` is `true`; a page can hold fewer items than `limit`.'),
        ("batch-counting", _BATCH, "One request counts once in the job-creation bucket; in `independent` mode each clip counts as one active job."),
        ("cancel-response", _CANCEL, "Response: Job object without `processedData`; emits `job.cancelled`."),
        ("no-scene-cuts", _SCENES, "`scenes` is empty when the video has no scene cuts."),
        ("quota-unavailable", "GET /quota (getQuota)", "When `available` is `false`, the balance could not be read and all other `api` fields are omitted."),
        ("test-webhook-failure", _TEST, "On failure `delivered` is `false`, `statusCode` is the endpoint's status (`0` when no response), and `error` names the failure class (forms like `http_5xx: <status>`, `timeout`, `redirect`)."),
        ("discovery-headers", _DISCOVERY, "All four are limited to 120 requests per minute per client IP and carry `Cache-Control: public, max-age=300`. A request that carries a key is served identically."),
        ("rate-headers-carried", "Rate-limit headers", "Every response to a request that passed key authentication (success or error), and every discovery response, carries:"),
        ("event-links", _RECEIVER, "Results are fetched from `data.links.transcript` and `data.links.scenes` with an API key. The job's `metadata` is included."),
        ("last-error", "Delivery log status values", "`lastError` holds the failure class and the first 4 KiB of the endpoint's response body."),
        ("failed-stage-is-free", "Job and stage error codes", "A failed stage is never charged; other completed stages are charged and readable."),
        ("resubmit", "Job and stage error codes", "Resubmitting a single mode after a partial failure charges only the missing stage."),
    )
)  # fmt: skip

_ERRORS = tuple(
    sentences("endpoint-errors", heading, text, key)
    for key, heading, text in (
        ("createJob", _CREATE_JOB, "Errors: 400, 401, 402, 403, 409, 413, 415, 422, 429, 500, 503."),
        ("createJobFromUrl", "POST /jobs/from-url (createJobFromUrl)", "Errors: 400, 401, 402, 403, 409, 415, 422, 429, 500, 503."),
        ("createBatch", _BATCH, "Errors: 400, 401, 402, 403, 409, 415, 422, 429, 500, 503."),
        ("listJobs", _LIST, "Errors: 400, 401, 429, 500."),
        ("getJob", _GET, "Errors: 400, 401, 404, 429, 500."),
        ("cancelJob", _CANCEL, "Errors: 401, 404, 409 (`JOB_NOT_CANCELLABLE`), 429, 500."),
        ("getTranscript", _TRANSCRIPT, "Errors: 400, 401, 404 (`NOT_FOUND`, `RESULTS_UNAVAILABLE`), 409 (`RESULTS_NOT_READY`), 500."),
        ("getScenes", _SCENES, "Errors: 401, 404 (`NOT_FOUND`, `RESULTS_UNAVAILABLE`), 409 (`RESULTS_NOT_READY`), 500."),
        ("listAudioTracks", _TRACKS, "Errors: 401, 404, 500."),
        ("getAudioTrack", "GET /jobs/{jobId}/audioTracks/{trackIndex} (getAudioTrack)", "Errors: 400, 401, 404, 500."),
        ("getQuota", "GET /quota (getQuota)", "Errors: 401, 429."),
        ("listWebhookDeliveries", _DELIVERIES, "Errors: 401, 429."),
        ("sendTestWebhook", _TEST, "Errors: 400, 401, 429."),
        ("estimatePrice", _DISCOVERY, "Invalid input gives `400` with `param`; also 429."),
    )
)  # fmt: skip

GROUPS: tuple[Group, ...] = (*_STATES, *_OBJECTS, *_FIELDS, *_NOTES, *_ERRORS)
