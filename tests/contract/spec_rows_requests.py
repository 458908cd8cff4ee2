"""Rows of the specification on requests: conventions, objects, endpoints, authentication.

Transcribed word for word; the lines are as long as the specification wrote them.
"""

# ruff: noqa: E501
from __future__ import annotations

from tests.contract.spec_text import Group, items, table

GROUPS: tuple[Group, ...] = (
    items(
        "response-conventions",
        "Response conventions",
        """
1. A successful JSON response is `{ data: <payload>, requestId: <string> }`. The exception is `GET /openapi.json`, which returns the bare OpenAPI document.
2. `GET /jobs` returns `{ data: [<Job summary>], hasMore: <boolean>, nextCursor }`.
3. `GET /jobs/{jobId}/transcript` with `format` of `srt`, `vtt` or `txt` returns a file, not JSON.
4. Every error uses the envelope in the Errors section.
5. `requestId` is also returned in the `X-Request-Id` response header.
6. Job ids are UUIDs. An id that is not a UUID yields `404 NOT_FOUND`.
7. Timestamps in payloads are ISO 8601 UTC strings, for example `<timestamp>`.
""",
    ),
    table(
        "job-fields",
        "Job object",
        """
| Field | Type / notes |
| `jobId` | string, UUID |
| `state` | string, one of the job states (see States and transitions) |
| `processingMode` | string: `all`, `transcript` or `vision` |
| `stages` | object with keys `ingest`, `vision`, `transcript`; each value is `{ status, error? }` where `error` carries `code` when the stage failed |
| `error` | present when `state` is `failed`; carries `code` (a job or stage error code) |
| `metadata` | object, echoed from the creation request |
| `links` | object with `self`, `transcript`, `scenes` (absolute URLs of the job and its results) |
| `processedData` | result data; included by `getJob` only per `include`; omitted from cancel responses and webhook payloads |
""",
    ),
    table(
        "create-job-fields",
        "Job object",
        """
| Field | Notes |
| `uploadUrl` | URL to upload the media to |
| `resumableUploadUrl` | URL for resumable upload |
| `uploadMethod` | always `PUT` |
| `uploadHeaders` | headers to send with the upload |
| `expiresInSeconds` | 3600 |
| `maxUploadBytes` | maximum upload size for this file's tier |
| `audioUploadUrl` or `audioTrackUploadUrls` | for separate audio (single file or per track) |
| `audioUploadHeaders` | headers for audio upload |
""",
    ),
    table(
        "transitions",
        "Job states",
        """
| From state | Trigger | Condition | Next state | Also happens |
| (none) | `POST /jobs` | request accepted | `awaiting_upload` | upload URLs returned |
| (none) | `POST /jobs/from-url` | request accepted | `queued` | service fetches media from the URL |
| `awaiting_upload`, `queued`, `processing` | `POST /jobs/{jobId}/cancel` or `DELETE /jobs/{jobId}` | always | `cancelled` | `job.cancelled` event; completed stages stay charged and readable; stages not yet run get error code `CANCELLED` |
| `completed`, `failed`, `cancelled`, `expired` | cancel | any | unchanged | `409 JOB_NOT_CANCELLABLE` with `jobId` and `state` |
| any | reaches `completed` | | `completed` | `job.completed` event if `callbackUrl` set |
| any | reaches `failed` | | `failed` | `job.failed` event; job `error.code` set |
""",
        keys="by-upload by-url cancelled not-cancellable completed failed",
    ),
    items(
        "stage-rules",
        "Stage status rules",
        """
- Stage status values are listed above. Stage status transitions: not shown.
- A `completed` stage's result is readable. A `pending` or `running` stage gives `409 RESULTS_NOT_READY` on its result endpoint. A skipped, failed or otherwise never-to-exist result gives `404 RESULTS_UNAVAILABLE`.
- In `GET /jobs/{jobId}` the default `include` returns scenes and transcript, each only once its stage is `completed`.
""",
    ),
    table(
        "endpoints",
        "Endpoints",
        """
| Method | Path | Auth | Operation |
| POST | /jobs | key | createJob |
| POST | /jobs/from-url | key | createJobFromUrl |
| POST | /jobs/batch | key | createBatch |
| GET | /jobs | key | listJobs |
| GET | /jobs/{jobId} | key | getJob |
| POST | /jobs/{jobId}/cancel | key | cancelJob |
| DELETE | /jobs/{jobId} | key | cancelJobDeprecated |
| GET | /jobs/{jobId}/transcript | key | getTranscript |
| GET | /jobs/{jobId}/scenes | key | getScenes |
| GET | /jobs/{jobId}/audioTracks | key | listAudioTracks |
| GET | /jobs/{jobId}/audioTracks/{trackIndex} | key | getAudioTrack |
| GET | /quota | key | getQuota |
| GET | /webhooks/deliveries | key | listWebhookDeliveries |
| POST | /webhooks/test | key | sendTestWebhook |
| GET | /openapi.json | none | getOpenApi |
| GET | /pricing | none | getPricing |
| GET | /pricing/estimate | none | estimatePrice |
| GET | /formats | none | listFormats |
| GET | /keys | session | listKeys |
| GET | /keys/portal | session | getKeysPortal |
| POST | /keys/{id}/rotate | session | rotateKey |
| GET | /webhooks/secret | session | getWebhookSecret |
| POST | /webhooks/secret/rotate | session | rotateWebhookSecret |
""",
        column=3,
    ),
    items(
        "creation-rules",
        "Job creation (shared rules)",
        """
- `createJob`, `createJobFromUrl` and `createBatch` accept an optional `Idempotency-Key` request header. The body field `idempotencyKey` is also accepted; when header and body keys both exist and differ, the result is `422 IDEMPOTENCY_BODY_MISMATCH`.
- Reusing a key within 24 hours with an identical body replays the original response. Reusing it with a different body gives `422 IDEMPOTENCY_BODY_MISMATCH`. While the first request still runs, a repeat gives `409 IDEMPOTENCY_IN_PROGRESS`.
- `callbackUrl` must be a public HTTPS URL, otherwise `400 INVALID_CALLBACK_URL`.
- Media URLs must be absolute http or https URLs (`400 INVALID_URL`) and must not point to private, loopback, link-local or metadata addresses or internal host names (`400 URL_NOT_ALLOWED`).
- Creation is counted in the job-creation rate bucket and against the active-job cap.
""",
    ),
    table(
        "create-job-body",
        "POST /jobs (createJob)",
        """
| Field | Required | Notes |
| `fileName` | yes | string |
| `fileSizeBytes` | no | integer; over the tier limit gives `413 FILE_TOO_LARGE` |
| `processingMode` | no | `all`, `transcript`, `vision` |
| `callbackUrl` | no | public HTTPS URL |
| `idempotencyKey` | no | string |
| `metadata` | no | object; `400 INVALID_REQUEST` if over limits |
| `audioFileName` | no | separate audio file name |
| `audioSyncMode` | no | how separate audio is aligned |
| `audioOffsetMs` | no | audio offset |
| `audioTracks[]` | no | multi-track audio; items include an offset field `offsetMs` |
""",
    ),
    table(
        "from-url-body",
        "POST /jobs/from-url (createJobFromUrl)",
        """
| Field | Required | Notes |
| `url` | yes | public http(s) URL |
| `fileName` | no | |
| `downloadToken` | no | credential for the source download |
| `provider` | no | `gdrive` or `dropbox` |
| `processingMode` | no | as above |
| `callbackUrl` | no | |
| `idempotencyKey` | no | |
| `metadata` | no | |
| `audioUrl` | no | separate audio URL |
| `audioDownloadToken` | no | |
| `audioSyncMode` | no | |
| `audioOffsetMs` | no | |
| `audioTracks[]` | no | items include `url` and `offsetMs` |
""",
    ),
    table(
        "list-jobs-query",
        "GET /jobs (listJobs)",
        """
| Param | Notes |
| `limit` | integer 1 to 100, default 20 |
| `cursor` | the previous response's `nextCursor`; a bad cursor gives `400 INVALID_REQUEST` with `param` `cursor` |
| `state` | a job state; `uploading` is an alias of `awaiting_upload` |
| `status` | deprecated legacy filter; combining with `state` gives `400 INVALID_REQUEST` |
""",
    ),
    table(
        "discovery",
        "Keyless discovery endpoints",
        """
| Endpoint | Response |
| `GET /openapi.json` | the OpenAPI 3.1 document, unwrapped |
| `GET /pricing` | per-stage rates in US cents per footage-hour for tiers `standard` and `raw`, plus `volumeThresholdSeconds`, `minBillableSeconds`, `currency`, `unit`, `rounding` |
| `GET /pricing/estimate` | price estimate object (exact charge for one job if every requested stage completes) |
| `GET /formats` | `{ standard, audioOnly, raw: { r3d, braw, arri }, rawExtensions, blocked, unknownExtensions, limits: { standardMaxBytes, rawMaxBytes, maxDurationSec, uploadUrlExpirySeconds } }` |
""",
    ),
    table(
        "estimate-query",
        "Keyless discovery endpoints",
        """
| Param | Required | Notes |
| `durationSeconds` | yes | 0 to 2678400 |
| `tier` | no | `standard` or `raw` |
| `mode` | no | `all`, `transcript`, `vision` |
| `audioTracks` | no | 1 to 16 |
| `priorUsageSeconds` | no | billable seconds already used this UTC month |
""",
    ),
    table(
        "dashboard",
        "Dashboard endpoints (session only)",
        """
| Endpoint | Response |
| `GET /keys` | array of key objects (never the full secret) |
| `GET /keys/portal` | `{ url }`, a short-lived billing-portal link for keys, receipts and credits; `404` if nothing was ever purchased |
| `POST /keys/{id}/rotate` | the key object plus `key`, the new full secret, shown once |
| `GET /webhooks/secret` | `{ secret, createdAt, rotatedAt }`; the secret is created on the first call |
| `POST /webhooks/secret/rotate` | the new secret; the previous secret keeps signing for 24 hours |
""",
    ),
    table(
        "auth-kinds",
        "Authentication",
        """
| Kind | Used by | Mechanism |
| API key | all endpoints marked `key` | a live API key (a fixed live-key prefix followed by the secret) in `Authorization: Bearer <API_KEY>` or in `X-API-Key: <API_KEY>` |
| none | `/openapi.json`, `/pricing`, `/pricing/estimate`, `/formats` | no credential; limited per client IP |
| session | `/keys`, `/keys/portal`, `/keys/{id}/rotate`, `/webhooks/secret`, `/webhooks/secret/rotate` | the dashboard's signed-in session token in `Authorization: Bearer <SESSION_TOKEN>`; an API key cannot call these |
""",
    ),
    items(
        "auth-rules",
        "Authentication",
        """
1. A missing, malformed, revoked, rotated or expired API key gives `401 UNAUTHORIZED`. After a key rotation the old key stops working within about a minute.
2. Jobs, tracks and keys of other accounts are indistinguishable from missing ones (`404 NOT_FOUND`).
3. All keys of one account share the same rate-limit buckets.
4. Keys have no scopes; `INSUFFICIENT_SCOPE` (403) is reserved and not returned.
5. A suspended account gets `403 ACCOUNT_SUSPENDED`.
6. The webhook signing secret is separate from API keys (see Events).
7. Format of the session token and how a session is obtained: not shown.
""",
    ),
)
