"""Rows of the specification on events, errors, limits and versions.

Transcribed word for word; the lines are as long as the specification wrote them.
"""

# ruff: noqa: E501
from __future__ import annotations

from tests.contract.spec_text import Group, items, table

GROUPS: tuple[Group, ...] = (
    table(
        "event-kinds",
        "Event kinds",
        """
| Event `type` | Sent when | Emitted by |
| `job.completed` | job `state` became `completed` | job processing |
| `job.failed` | job `state` became `failed`; `data.error` says why; completed stages stay readable | job processing |
| `job.cancelled` | the job was cancelled | `cancelJob`, `cancelJobDeprecated` |
| `webhook.test` | `POST /webhooks/test` was called | `sendTestWebhook` |
""",
    ),
    table(
        "webhook-body",
        "Request sent to the receiver",
        """
| Field | Type |
| `type` | string, event kind |
| `timestamp` | ISO 8601 UTC string |
| `data` | the full Job object without `processedData`, including `jobId`, `state`, `processingMode`, `stages`, `metadata`, `links.self`, `links.transcript`, `links.scenes` |
| `links.self` | absolute URL of the job |
""",
    ),
    table(
        "webhook-headers",
        "Request sent to the receiver",
        """
| Header | Meaning |
| `webhook-id` | event id; stable across retries of the same event; used for deduplication |
| `webhook-timestamp` | Unix seconds at which this attempt was signed; new on every attempt |
| `webhook-signature` | space-separated list of `v1,<base64 HMAC-SHA256>` entries; two entries during a secret rotation |
""",
    ),
    items(
        "signature",
        "Signature",
        """
- Signature = base64(HMAC-SHA256(key, `<webhook-id>.<webhook-timestamp>.<raw body>`)).
- `key` is the base64-decoded part of the signing secret after the `whsec_` prefix.
- Receivers verify against the raw body before parsing, reject timestamps more than five minutes from their clock, and compare in constant time.
- Each account has one signing secret, `whsec_` plus base64, created on first reveal. On rotation, for 24 hours every delivery carries two `v1,` signatures (new and previous secret); afterwards only the new one.
""",
    ),
    items(
        "delivery",
        "Delivery behaviour",
        """
1. A `2xx` response within 10 seconds acknowledges the event.
2. `429`, `5xx`, a timeout or a network error is retried: 8 attempts in total, exponential backoff from 10 seconds up to 10 minutes between attempts.
3. Any other `4xx`, a redirect (never followed) or an address failing safety checks is final, not retried.
4. `410 Gone` acknowledges the event and stops further deliveries for that job and event type.
5. Retries reuse `webhook-id`. Events can arrive more than once or out of order.
6. Only public HTTPS endpoints are used; private and internal addresses are refused.
""",
    ),
    table(
        "delivery-status",
        "Delivery log status values",
        """
| `status` | Meaning |
| `in_flight` | being delivered now |
| `pending_retry` | last attempt got `429`, `5xx` or timed out; will be retried |
| `delivered` | a `2xx` was received |
| `failed` | another `4xx`, a redirect or a blocked address; not retried |
| `disabled` | endpoint answered `410`; no further deliveries for this job and event |
""",
    ),
    table(
        "envelope",
        "Envelope",
        """
| Field | Notes |
| `error` | human-readable message; may change; not to be parsed |
| `code` | stable identifier; clients branch on it |
| `docUrl` | link to the code's entry in the error reference |
| `param` | the request field or query parameter at fault, as a JSON path (for example `fileName`, `audioTracks[2].offsetMs`, `clips[3].sourceUrl`, `metadata.assetId`, `cursor`); present only when one field is to blame |
| `requestId` | also in the `X-Request-Id` header |
""",
    ),
    table(
        "error-codes",
        "Codes",
        """
| Code | HTTP | Condition | Extra fields | Retry |
| `INVALID_REQUEST` | 400 | body or query malformed, missing or out of range: missing `fileName`, unknown `processingMode`, metadata over limits, bad `cursor`, `state` with `status`, `track` missing on a multi-track SRT request | `param` | No |
| `INVALID_URL` | 400 | a media URL (`url`, `audioUrl`, `audioTracks[].url`, `clips[].sourceUrl`) is not an absolute http or https URL | | No |
| `URL_NOT_ALLOWED` | 400 | URL points to a private, loopback, link-local or cloud-metadata address, or internal host name | | No |
| `INVALID_CALLBACK_URL` | 400 | `callbackUrl` (or `url` of the test endpoint) is not a public HTTPS URL | `param` | No |
| `UNAUTHORIZED` | 401 | API key missing, malformed, revoked, rotated or expired | | No |
| `INSUFFICIENT_CREDITS` | 402 | available credits (balance minus holds for running jobs) do not cover the 30-second minimum | | After topping up |
| `INSUFFICIENT_SCOPE` | 403 | reserved; not returned | | No |
| `ACCOUNT_SUSPENDED` | 403 | account suspended | | No |
| `NOT_FOUND` | 404 | no such job, track or key for this account; foreign jobs and non-UUID ids look the same | | No |
| `RESULTS_UNAVAILABLE` | 404 | the requested result does not and never will exist | `state`, `stage`, `stageStatus`, `reason`, and `errorCode` or `trackIndex` when relevant | Never |
| `JOB_NOT_CANCELLABLE` | 409 | job already `completed`, `failed`, `cancelled` or `expired` | `jobId`, `state` | No |
| `IDEMPOTENCY_IN_PROGRESS` | 409 | earlier request with the same idempotency key still running | | Yes, `Retry-After` 2 s |
| `RESULTS_NOT_READY` | 409 | stage is `pending` or `running` | `state`, `stage`, `stageStatus` | Yes, `Retry-After` 15 s |
| `FILE_TOO_LARGE` | 413 | `fileSizeBytes` over the tier limit | `maxUploadBytes`, `formatTier`; `param` is `fileSizeBytes` | No |
| `UNSUPPORTED_FORMAT` | 415 | file type blocked (executables and scripts) or a camera RAW format not enabled yet | | No |
| `IDEMPOTENCY_BODY_MISMATCH` | 422 | idempotency key reused within 24 hours with a different body, or header and body keys differ | | No |
| `RATE_LIMITED` | 429 | per-minute limit exceeded for the account, or 120 per minute per IP on keyless endpoints | `Retry-After`, `X-RateLimit-Reset` | Yes, after `Retry-After` |
| `TOO_MANY_ACTIVE_JOBS` | 429 | too many unfinished jobs | `maxActiveJobs`, `activeJobs`; `Retry-After` 30 s | Yes |
| `THROTTLED` | 429 | job creation temporarily restricted for the account; `Retry-After` 3600 | | Not in practice |
| `INTERNAL_ERROR` | 500 | server-side failure; no `Retry-After` | | Yes, exponential backoff, same idempotency key |
| `SERVICE_UNAVAILABLE` | 503 | a dependency is briefly unavailable, for example the credit balance could not be verified | `Retry-After` 30 s | Yes |
""",
    ),
    items(
        "retry-rules",
        "Retry rules",
        """
1. Every `429` and `503`, and `409` `IDEMPOTENCY_IN_PROGRESS` and `RESULTS_NOT_READY`, carry `Retry-After` in seconds; the client waits that long and retries, reusing the same `Idempotency-Key` on creates.
2. `500` is retried with exponential backoff and jitter and the same idempotency key.
3. Any other `4xx` is final for that request.
""",
    ),
    table(
        "job-error-codes",
        "Job and stage error codes",
        """
| Code | Stage | Meaning |
| `VALIDATION_FAILED` | ingest | unsupported or corrupt media, or a limit such as duration exceeded |
| `INSUFFICIENT_CREDITS` | ingest | balance could not cover the full file once its duration was known; job not charged |
| `FETCH_FAILED` | ingest | source URL could not be downloaded (unreachable, HTTP error, expired link or token) |
| `INGEST_FAILED` | ingest | file could not be processed |
| `EXTERNAL_AUDIO_FAILED` | ingest | a separate audio file could not be processed |
| `VISION_FAILED` | vision | scene analysis failed; remedy: resubmit with `processingMode` `vision` |
| `CONTENT_BLOCKED` | vision | content not permitted by the acceptable-use policy |
| `TRANSCRIPT_FAILED` | transcript | transcription failed; remedy: resubmit with `processingMode` `transcript` |
| `PROCESSING_FAILED` | any | another failure |
| `CANCELLED` | any | stage skipped because the job was cancelled |
| `EXPIRED` | any | the job expired before the stage ran |
""",
    ),
    table(
        "rate-buckets",
        "Request rates (per account, one-minute windows)",
        """
| Bucket | Limit | Counts |
| Reads | 600 per minute | every `GET` with a key |
| Job creation | 30 per minute | `POST /jobs`, `POST /jobs/from-url`, `POST /jobs/batch` (one request regardless of clip count) |
| Other writes | 120 per minute | all other keyed requests, for example cancel |
| Keyless discovery | 120 per minute per client IP | `/openapi.json`, `/pricing`, `/pricing/estimate`, `/formats` |
| Webhook test | 5 per minute | `POST /webhooks/test` |
""",
    ),
    table(
        "rate-headers",
        "Rate-limit headers",
        """
| Header | Meaning |
| `X-RateLimit-Limit` | requests allowed per window in the bucket charged |
| `X-RateLimit-Remaining` | requests left in the window |
| `X-RateLimit-Reset` | window reset time as a Unix timestamp in seconds |
| `Retry-After` | on `429`, seconds to wait |
""",
    ),
    table(
        "limits",
        "Other limits and constants",
        """
| Item | Value |
| Unfinished jobs per account | 50 by default; exceeding gives `429 TOO_MANY_ACTIVE_JOBS` |
| Clips per batch | 1 to 100 |
| `limit` on job list | 1 to 100, default 20 |
| Delivery log size | last 100 deliveries |
| Maximum upload, standard tier | 20 GiB |
| Maximum upload, camera RAW tier | 100 GiB |
| Upload URL lifetime | 3600 seconds |
| Minimum billable duration per job | 30 seconds |
| `durationSeconds` for estimates | 0 to 2678400 |
| `audioTracks` for estimates | 1 to 16 |
| Idempotency key memory | 24 hours |
| Webhook acknowledgement deadline | 10 seconds |
| Webhook attempts | 8 in total, backoff 10 seconds to 10 minutes |
| Webhook signature timestamp tolerance | 5 minutes |
| Previous webhook secret validity after rotation | 24 hours |
| `lastError` response body capture | first 4 KiB |
| Discovery cache lifetime | 300 seconds |
| Recommended polling interval for a job | every 5 to 15 seconds |
| Client retry wait honoured by SDKs | up to 60 seconds |
""",
    ),
    items(
        "versioning",
        "Versioning",
        """
1. The interface version is `v1`, carried in the base path `/v1/api`.
2. The OpenAPI 3.1 document at `GET /openapi.json` is the machine-readable contract; its operation ids equal the operation names in the Endpoints table.
3. `DELETE /jobs/{jobId}` is deprecated: responses carry `Deprecation: true` and a `Link` header with `rel="successor-version"` pointing at the cancel path. The `status` filter of `GET /jobs` is also deprecated.
4. The API is in beta: keys have no scopes at present, and the scope error code is reserved for later.
5. Webhook signature entries carry the version tag `v1,`. The webhook `User-Agent` carries a version suffix.
6. Deprecation timelines and the policy for introducing a new major version: not shown.
""",
    ),
)
