"""URLs: those that clients name, refused before anything is stored; the signed ones of stills."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import Field

from pipelines.collection import BucketAccess
from pipelines.net import addresses, buckets
from serve_app import API_PREFIX
from serve_app.crypto import Signer
from serve_app.errors import ApiError, ErrorCode
from serve_app.settings import Settings
from storage.database import Connection
from storage.keys import is_owner_suspended


def uri(pattern: str, longest: int) -> Any:
    """Return what the interface document has of an address; what is wrong with it has errors of its
    own."""
    form: dict[str, Any] = {
        "format": "uri",
        "pattern": pattern,
        "minLength": 1,
        "maxLength": longest,
    }
    return Field(json_schema_extra=form)


CallbackUrl = Annotated[str, uri("^[Hh][Tt][Tt][Pp][Ss]://", addresses.MAX_CALLBACK_URL_LENGTH)]
"""Any fault in it, its length too, is INVALID_CALLBACK_URL."""


def address_policy(settings: Settings) -> addresses.AddressPolicy:
    """Public addresses, and what the operator allows besides."""
    return addresses.AddressPolicy(allowed_networks=settings.allowed_networks)


@contextmanager
def blaming(param: str) -> Iterator[None]:
    """INVALID_URL or URL_NOT_ALLOWED of ``param`` for what the block finds."""
    try:
        yield
    except addresses.InvalidUrlError as error:
        raise ApiError(ErrorCode.INVALID_URL, param=param) from error
    except addresses.UrlNotAllowedError as error:
        raise ApiError(ErrorCode.URL_NOT_ALLOWED, param=param) from error


def require_media_url(url: str, param: str, settings: Settings) -> None:
    """Raises INVALID_URL or URL_NOT_ALLOWED, blaming ``param``."""
    with blaming(param):
        if not buckets.is_bucket_address(url):
            addresses.check_url_text(
                url, schemes=("http", "https"), policy=address_policy(settings)
            )
        elif not buckets.split_bucket_address(url)[2]:
            raise addresses.InvalidUrlError("it names no object")


def require_bucket_access(access: BucketAccess, settings: Settings) -> None:
    """Raises INVALID_URL or URL_NOT_ALLOWED for its endpoint."""
    with blaming("bucketAccess.endpoint"):
        buckets.check_bucket(buckets.ClientBucket("s3", "any", access), address_policy(settings))


def require_callback_url(
    url: str, param: str, settings: Settings, *, standard_port_only: bool = False
) -> None:
    """Raises INVALID_CALLBACK_URL, blaming ``param``."""
    try:
        addresses.check_callback_url(
            url, policy=address_policy(settings), standard_port_only=standard_port_only
        )
    except (addresses.InvalidUrlError, addresses.UrlNotAllowedError) as error:
        raise ApiError(ErrorCode.INVALID_CALLBACK_URL, param=param) from error


STILL_PURPOSE = "thumbnail"
_STILL_HOURS = 24

OVERVIEW_STILL = "overview"


def still_path(signer: Signer, job_id: uuid.UUID, name: int | str) -> str:
    """Return the signed path of the still of a scene (its index) or of all, or of their second one
    (``-2`` behind it); good for a day."""
    # Whole hours, so that a list that is read twice shows the same addresses.
    expires_at = (int(time.time()) // 3600 + _STILL_HOURS + 1) * 3600
    path = f"{API_PREFIX}/jobs/{job_id}/thumbnails/{name}.jpg"
    return signer.sign_path(STILL_PURPOSE, path, expires_at=expires_at)


def parse_job_id(text: str) -> uuid.UUID:
    """Return the id; for text that is none, the nil UUID, which no job has.

    A malformed id thus takes the same way, and the same time, as a missing one.
    """
    try:
        parsed = uuid.UUID(text)
    except ValueError:
        return uuid.UUID(int=0)
    # uuid.UUID also takes braces, urn: and missing hyphens; a job id has one form.
    return parsed if str(parsed) == text.lower() else uuid.UUID(int=0)


async def require_active_owner(connection: Connection, job_id: uuid.UUID) -> None:
    """For addresses that are signed and need no key; raises ACCOUNT_SUSPENDED."""
    if await is_owner_suspended(connection, job_id):
        raise ApiError(ErrorCode.ACCOUNT_SUSPENDED)
