"""The way to an S3-compatible bucket: where it is, one client a process, and what errors mean."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from storage.objects.contract import ObjectNotFoundError, ObjectStoreUnavailableError

_CONNECT_SECONDS = 5
_READ_SECONDS = 60
_ATTEMPTS = 5
_CONNECTIONS = 32

FIRST_PART_BYTES = 8 * 1024**2

_DEFAULT_REGION = "us-east-1"

_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
_CONFLICTS = frozenset({"412", "PreconditionFailed", "ConditionalRequestConflict"})
_NO_UPLOAD = frozenset({"NoSuchUpload"})


@dataclass(frozen=True, slots=True)
class S3Place:
    """A bucket, the part of it that is ours, and how to be let in. Picklable."""

    bucket: str
    prefix: str = ""
    """Ends with a slash unless it is empty."""
    endpoint_url: str | None = None
    """None for Amazon's own."""
    public_endpoint_url: str | None = None
    """What clients reach, where that is another address than the service's."""
    region: str | None = None
    access_key_id: str | None = None
    """None for boto3's chain: its environment, shared files, the machine's role."""
    secret_access_key: str | None = field(default=None, repr=False)
    first_part_bytes: int = FIRST_PART_BYTES
    """How large the first parts of a large object are; S3 takes none below 5 MiB."""


class ConflictError(Exception):
    """A conditional request found the object changed, or gone, since it was read."""


class NoSuchUploadError(Exception):
    """The multipart upload was completed or aborted."""


def client_of(place: S3Place, *, public: bool = False) -> Any:
    """The process's client (safe to share between threads); makes no connection yet."""
    endpoint = place.endpoint_url
    if public and place.public_endpoint_url is not None:
        endpoint = place.public_endpoint_url
    region = place.region or _DEFAULT_REGION
    return _client(endpoint, region, place.access_key_id, place.secret_access_key)


@functools.cache
def _client(endpoint: str | None, region: str, key_id: str | None, secret: str | None) -> Any:
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        config=_config(path_style=endpoint is not None),
    )


def _config(*, path_style: bool) -> Config:
    return Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        max_pool_connections=_CONNECTIONS,
        signature_version="s3v4",
        # A bucket in the host name needs a wildcard DNS entry, which own servers seldom have.
        s3={"addressing_style": "path" if path_style else "virtual"},
        # Checksums in trailers, boto3's newer default, are refused by many compatible servers.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # The service's own settings say where the bucket is; the environment does not.
        proxies={},
        ignore_configured_endpoint_urls=True,
    )


# A forked child must not share its parent's open connections.
os.register_at_fork(after_in_child=_client.cache_clear)


@contextlib.contextmanager
def named_errors(key: str) -> Iterator[None]:
    """What botocore raises, by our names.

    ObjectNotFoundError, ConflictError and NoSuchUploadError for what S3 says of
    the object; ObjectStoreUnavailableError for all else, without secrets.
    """
    try:
        yield
    except ClientError as error:
        raise _named(error, key) from error
    except (BotoCoreError, Boto3Error, HTTPError, ConnectionError, TimeoutError) as error:
        raise ObjectStoreUnavailableError(f"object store: {type(error).__name__}") from error


def _named(error: ClientError, key: str) -> Exception:
    code = str(error.response.get("Error", {}).get("Code", ""))
    if code in _MISSING:
        return ObjectNotFoundError(key)
    if code in _CONFLICTS:
        return ConflictError(key)
    if code in _NO_UPLOAD:
        return NoSuchUploadError(key)
    return ObjectStoreUnavailableError(f"object store: {error.operation_name}: {code}")
