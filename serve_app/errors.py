"""The error catalogue: one table, one exception class. Codes are the contract; messages are not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

Found = TypeVar("Found")


class ErrorCode(StrEnum):
    """Stable identifiers that clients branch on."""

    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_URL = "INVALID_URL"
    URL_NOT_ALLOWED = "URL_NOT_ALLOWED"
    INVALID_CALLBACK_URL = "INVALID_CALLBACK_URL"
    UNAUTHORIZED = "UNAUTHORIZED"
    OIDC_SIGN_IN_FAILED = "OIDC_SIGN_IN_FAILED"
    INSUFFICIENT_CREDITS = "INSUFFICIENT_CREDITS"
    INSUFFICIENT_SCOPE = "INSUFFICIENT_SCOPE"
    ACCOUNT_SUSPENDED = "ACCOUNT_SUSPENDED"
    ROLE_NOT_ALLOWED = "ROLE_NOT_ALLOWED"
    NOT_FOUND = "NOT_FOUND"
    RESULTS_UNAVAILABLE = "RESULTS_UNAVAILABLE"
    JOB_NOT_CANCELLABLE = "JOB_NOT_CANCELLABLE"
    LEGAL_HOLD = "LEGAL_HOLD"
    LAST_OWNER = "LAST_OWNER"
    INVITATION_NOT_VALID = "INVITATION_NOT_VALID"
    SOURCE_GONE = "SOURCE_GONE"
    IDEMPOTENCY_IN_PROGRESS = "IDEMPOTENCY_IN_PROGRESS"
    RESULTS_NOT_READY = "RESULTS_NOT_READY"
    REVISION_CONFLICT = "REVISION_CONFLICT"
    FILE_TOO_LARGE = "FILE_TOO_LARGE"
    UNSUPPORTED_FORMAT = "UNSUPPORTED_FORMAT"
    IDEMPOTENCY_BODY_MISMATCH = "IDEMPOTENCY_BODY_MISMATCH"
    RATE_LIMITED = "RATE_LIMITED"
    TOO_MANY_ACTIVE_JOBS = "TOO_MANY_ACTIVE_JOBS"
    THROTTLED = "THROTTLED"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    SERVICE_UNAVAILABLE = "SERVICE_UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """What goes with a code, wherever it is raised."""

    status: int
    summary: str
    remedy: str
    retry_after_seconds: int | None = None


CATALOGUE: dict[ErrorCode, CatalogueEntry] = {
    ErrorCode.INVALID_REQUEST: CatalogueEntry(
        400,
        "The body or the query is malformed, incomplete or out of range.",
        "Correct the field that `param` names and send the request again.",
    ),
    ErrorCode.INVALID_URL: CatalogueEntry(
        400,
        "A media URL is not an absolute http or https URL, nor an address in a bucket.",
        "Send the full address, beginning with http://, https://, s3:// or gs://.",
    ),
    ErrorCode.URL_NOT_ALLOWED: CatalogueEntry(
        400,
        "A URL points to a private, loopback, link-local or metadata address.",
        "Use an address that is reachable from the public internet.",
    ),
    ErrorCode.INVALID_CALLBACK_URL: CatalogueEntry(
        400,
        "The callback URL is not a public HTTPS URL.",
        "Use an https:// address that is reachable from the public internet.",
    ),
    ErrorCode.UNAUTHORIZED: CatalogueEntry(
        401,
        "The credential is missing, malformed, revoked, rotated or expired.",
        "Send a live key as `Authorization: Bearer <key>` or `X-API-Key: <key>`.",
    ),
    ErrorCode.OIDC_SIGN_IN_FAILED: CatalogueEntry(
        401,
        "What the issuer of OpenID Connect answered signs nobody in.",
        "Begin again at the sign-in page; if `reason` stays the same, ask the operator.",
    ),
    ErrorCode.INSUFFICIENT_CREDITS: CatalogueEntry(
        402,
        "The available credits do not cover the minimum charge of a job.",
        "Top up the account, then send the request again.",
    ),
    ErrorCode.INSUFFICIENT_SCOPE: CatalogueEntry(
        403, "Reserved; not returned.", "None: keys have no scopes at present."
    ),
    ErrorCode.ACCOUNT_SUSPENDED: CatalogueEntry(
        403, "The account is suspended.", "Ask the operator of the service."
    ),
    ErrorCode.ROLE_NOT_ALLOWED: CatalogueEntry(
        403,
        "The role of the person who is signed in does not include this.",
        "Ask an owner of the account.",
    ),
    ErrorCode.NOT_FOUND: CatalogueEntry(
        404,
        "There is no such job, track, key or path for this account.",
        "Check the id and that the key belongs to the same account.",
    ),
    ErrorCode.RESULTS_UNAVAILABLE: CatalogueEntry(
        404,
        "The requested result does not exist and never will.",
        "`reason` says why; resubmit with another mode where that helps.",
    ),
    ErrorCode.JOB_NOT_CANCELLABLE: CatalogueEntry(
        409, "The job has already ended.", "Nothing to do: `state` says how it ended."
    ),
    ErrorCode.LEGAL_HOLD: CatalogueEntry(
        409,
        "A legal hold is on the job or its account: nothing of it may be deleted.",
        "Ask the operator of the service, who can lift it.",
    ),
    ErrorCode.LAST_OWNER: CatalogueEntry(
        409, "The account would be without an owner.", "Make somebody else an owner first."
    ),
    ErrorCode.INVITATION_NOT_VALID: CatalogueEntry(
        404,
        "The invitation was used or withdrawn, or its time is over.",
        "Ask an owner of the account for another.",
    ),
    ErrorCode.SOURCE_GONE: CatalogueEntry(
        410,
        "The media of the job is not kept any more.",
        "Create a job with the media again; longer retention keeps it for reruns.",
    ),
    ErrorCode.IDEMPOTENCY_IN_PROGRESS: CatalogueEntry(
        409,
        "An earlier request with the same idempotency key is still running.",
        "Wait `Retry-After` seconds and repeat the same request.",
        retry_after_seconds=2,
    ),
    ErrorCode.RESULTS_NOT_READY: CatalogueEntry(
        409,
        "The stage has not ended yet.",
        "Wait `Retry-After` seconds, or poll the job until the stage is completed.",
        retry_after_seconds=15,
    ),
    ErrorCode.REVISION_CONFLICT: CatalogueEntry(
        409,
        "The transcript was corrected since it was read.",
        "Read it again, at `currentRevision`, and repeat what is still to be changed.",
    ),
    ErrorCode.FILE_TOO_LARGE: CatalogueEntry(
        413, "The file is larger than its tier allows.", "Send a file of at most `maxUploadBytes`."
    ),
    ErrorCode.UNSUPPORTED_FORMAT: CatalogueEntry(
        415,
        "The file type is blocked, or a camera RAW format that is not enabled.",
        "See GET /formats for what is accepted.",
    ),
    ErrorCode.IDEMPOTENCY_BODY_MISMATCH: CatalogueEntry(
        422,
        "The idempotency key was used with another body, or header and body keys differ.",
        "Use a new key for a new request.",
    ),
    ErrorCode.RATE_LIMITED: CatalogueEntry(
        429,
        "Too many requests in this minute.",
        "Wait `Retry-After` seconds.",
        retry_after_seconds=60,
    ),
    ErrorCode.TOO_MANY_ACTIVE_JOBS: CatalogueEntry(
        429, "Too many unfinished jobs.", "Wait until jobs have ended.", retry_after_seconds=30
    ),
    ErrorCode.THROTTLED: CatalogueEntry(
        429,
        "Job creation is restricted for this account for the time being.",
        "Ask the operator of the service.",
        retry_after_seconds=3600,
    ),
    ErrorCode.INTERNAL_ERROR: CatalogueEntry(
        500, "The service failed.", "Retry with exponential backoff and the same idempotency key."
    ),
    ErrorCode.SERVICE_UNAVAILABLE: CatalogueEntry(
        503,
        "The service cannot take the request at the moment.",
        "Wait `Retry-After` seconds and send it again.",
        retry_after_seconds=30,
    ),
}


class ApiError(Exception):
    """A request that ends with a code of the catalogue.

    ``extra`` holds the fields that the code adds to the envelope; ``param`` the
    JSON path of the field at fault; ``status`` only where HTTP requires another
    one than the catalogue's (405).
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        *,
        param: str | None = None,
        extra: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        status: int | None = None,
    ) -> None:
        entry = CATALOGUE[code]
        super().__init__(code, message)
        self.code = code
        self.message = message or entry.summary
        self.param = param
        self.extra = extra or {}
        self.status = status or entry.status
        self.headers = dict(headers or {})
        if entry.retry_after_seconds is not None:
            self.headers.setdefault("Retry-After", str(entry.retry_after_seconds))


CREDITS_OR_CAP = "The credits, or what the key may use in a month, do not cover it."
"""Of INSUFFICIENT_CREDITS where a key with a cap acts."""


def invalid(message: str, param: str | None = None) -> ApiError:
    """``400 INVALID_REQUEST`` blaming ``param``."""
    return ApiError(ErrorCode.INVALID_REQUEST, message, param=param)


def file_too_large(limit_bytes: int, tier: str, param: str | None = None) -> ApiError:
    """``413 FILE_TOO_LARGE``, naming the limit of the tier."""
    message = f"The file must not be larger than {limit_bytes} bytes."
    extra = {"maxUploadBytes": limit_bytes, "formatTier": str(tier)}
    return ApiError(ErrorCode.FILE_TOO_LARGE, message, param=param, extra=extra)


def existing(found: Found | None, what: str, *, param: str | None = None) -> Found:
    """Return what was found. Raises NOT_FOUND where that is nothing."""
    if found is None:
        raise ApiError(ErrorCode.NOT_FOUND, f"There is no such {what}.", param=param)
    return found
