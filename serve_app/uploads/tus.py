"""The addresses of uploads: a plain PUT, and tus 1.0.0 at an upload that the job's creation has
made.

Source: https://tus.io/protocols/resumable-upload, core protocol and the extensions checksum,
expiration and termination: HEAD, PATCH, DELETE, OPTIONS. An upload keeps its offset in the store,
and goes on after its writer was lost.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import format_datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from serve_app.api.envelope import context_of
from serve_app.crypto import ExpiredSignatureError
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.uploads import access, leases, receiving
from storage import uploads
from storage.objects import PartialBusyError, PartialOffsetError

log = logging.getLogger("vas.uploads")

VERSION = "1.0.0"
EXTENSIONS = ("checksum", "expiration", "termination")
PATCH_TYPE = "application/offset+octet-stream"
CHECKSUM_MISMATCH = 460
_MOST_DIGITS = 16
"""Beyond any file, within 64 bits."""

Hasher = Callable[[], Any]
ALGORITHMS: dict[str, Hasher] = {
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
}
"""Names that Upload-Checksum may give; the protocol demands sha1."""

_WAIT_SECONDS = 2.0
"""A client may resume before its broken connection is detected."""

_RETRY_SECONDS = 0.1

Handler = Callable[[Request, access.Slot], Awaitable[Response]]

_ALLOWED = "DELETE, HEAD, OPTIONS, PATCH"


class HeaderError(ValueError):
    """A header is missing or malformed: ``400``. ``name`` is the header's."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} {why}.")
        self.name = name


class ContentTypeError(ValueError):
    """The body of a PATCH is not ``application/offset+octet-stream``: ``415``."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """What Upload-Checksum promises of a PATCH's body."""

    algorithm: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Patch:
    """The headers of a PATCH. ``length_bytes`` is the whole upload's, where it is given."""

    offset_bytes: int
    length_bytes: int | None
    checksum: Checksum | None


def has_supported_version(fields: Headers) -> bool:
    """Return whether ``Tus-Resumable`` names the version that we speak."""
    return fields.getlist("tus-resumable") == [VERSION]


def parse_patch(fields: Headers) -> Patch:
    """Return the headers of a PATCH; raises ContentTypeError, HeaderError."""
    if _single(fields, "Content-Type") != PATCH_TYPE:
        raise ContentTypeError(f"The Content-Type must be {PATCH_TYPE}.")
    offset = _single(fields, "Upload-Offset")
    if offset is None:
        raise HeaderError("Upload-Offset", "is missing")
    length = _single(fields, "Upload-Length")
    checksum = _single(fields, "Upload-Checksum")
    return Patch(
        parse_size("Upload-Offset", offset),
        None if length is None else parse_size("Upload-Length", length),
        None if checksum is None else parse_checksum(checksum),
    )


def parse_size(name: str, text: str) -> int:
    """Return a non-negative decimal integer; raises HeaderError."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise HeaderError(name, "must be a non-negative integer")
    return int(text)


def parse_checksum(text: str) -> Checksum:
    """``<algorithm> <base64 of the digest>``; raises HeaderError."""
    algorithm, separator, encoded = text.partition(" ")
    if not separator:
        raise HeaderError("Upload-Checksum", "must be an algorithm, a space and Base64")
    if algorithm not in ALGORITHMS:
        raise HeaderError("Upload-Checksum", f"must be one of {', '.join(ALGORITHMS)}")
    try:
        digest = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise HeaderError("Upload-Checksum", "is not Base64") from None
    if len(digest) != ALGORITHMS[algorithm]().digest_size:
        raise HeaderError("Upload-Checksum", f"does not have the length of {algorithm}")
    return Checksum(algorithm, digest)


def _single(fields: Headers, name: str) -> str | None:
    values = fields.getlist(name)
    if len(values) > 1:
        raise HeaderError(name, "stands more than once")
    return values[0].strip() if values else None


async def resumable(
    request: Request, job_id: str, slot: str, expires: str = "", signature: str = ""
) -> Response:
    """Return one request of the protocol; ``X-HTTP-Method-Override`` counts for its method."""
    method = request.headers.get("x-http-method-override", request.method).upper()
    request.state.answer_headers = {"Tus-Resumable": VERSION} | receiving.ANY_ORIGIN
    with receiving.closing_unread(request):
        if method == "OPTIONS":
            return await _options(request, job_id, slot, expires, signature)
        handler = _HANDLERS.get(method)
        if handler is None:
            message = f"{method[:20]} is no method of a resumable upload."
            allowed = {"Allow": _ALLOWED}
            raise ApiError(ErrorCode.INVALID_REQUEST, message, status=405, headers=allowed)
        if not has_supported_version(request.headers):
            message = f"Tus-Resumable must be {VERSION}."
            versions = {"Tus-Version": VERSION}
            raise ApiError(ErrorCode.INVALID_REQUEST, message, status=412, headers=versions)
        try:
            receiving.check_signature(request, expires, signature)
        except ExpiredSignatureError:
            raise leases.gone() from None
        return await handler(request, await access.open_slot(context_of(request), job_id, slot))


async def _options(
    request: Request, job_id: str, slot: str, expires: str, signature: str
) -> Response:
    """Versions and extensions; the size limit only for a valid signature."""
    headers = receiving.preflight(f"{_ALLOWED}, POST") | {
        "Tus-Version": VERSION,
        "Tus-Extension": ",".join(EXTENSIONS),
        "Tus-Checksum-Algorithm": ",".join(ALGORITHMS),
    }
    try:
        receiving.check_signature(request, expires, signature)
        found = await access.open_slot(context_of(request), job_id, slot)
    except (ApiError, ExpiredSignatureError):
        return _answer(request, 204, headers)
    return _answer(request, 204, headers | {"Tus-Max-Size": str(found.limit_bytes)})


async def _head(request: Request, slot: access.Slot) -> Response:
    """Return how far the upload is."""
    leases.require_alive(slot)
    context = context_of(request)
    try:
        if await leases.finish_if_complete(context, slot):
            slot = await access.open_slot(context, str(slot.job.id), slot.upload.slot)
    except ApiError as error:
        if error.status != leases.locked().status:
            raise
    headers = {
        "Upload-Offset": str(await leases.counted_bytes(context, slot)),
        "Cache-Control": "no-store",
    }
    received, total = slot.upload.received_bytes, slot.upload.total_bytes
    total = total if received is None else received
    headers |= {"Upload-Defer-Length": "1"} if total is None else {"Upload-Length": str(total)}
    return _answer(request, 200, headers | _expiry(slot))


async def _patch(request: Request, slot: access.Slot) -> Response:
    """Append the body at the offset, which must be the stored one."""
    try:
        patch = parse_patch(request.headers)
    except ContentTypeError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, str(error), status=415) from None
    except HeaderError as error:
        raise invalid(str(error), error.name) from None
    leases.require_alive(slot)
    if slot.upload.received_bytes is not None:
        return _appended(request, slot, _nothing_more(slot.upload.received_bytes, request, patch))
    limiter = receiving.upload_limiter(request)
    try:
        async with leases.hold_lease(
            context_of(request), slot, wait_seconds=_WAIT_SECONDS
        ) as lease:
            with limiter.enter(slot.job.account_id):
                return _appended(request, slot, await _append(request, lease, limiter, patch))
    except PartialBusyError:
        raise leases.locked() from None
    except PartialOffsetError:
        raise _other_offset() from None


def _appended(request: Request, slot: access.Slot, offset_bytes: int) -> Response:
    return _answer(request, 204, {"Upload-Offset": str(offset_bytes)} | _expiry(slot))


def _nothing_more(received_bytes: int, request: Request, patch: Patch) -> int:
    """A complete upload takes an empty PATCH at its end."""
    if patch.offset_bytes != received_bytes:
        raise _other_offset()
    if receiving.content_length(request) != 0:
        raise _beyond_length(received_bytes)
    return received_bytes


def _other_offset() -> ApiError:
    message = "Upload-Offset is not where the upload stands; see HEAD."
    return ApiError(ErrorCode.INVALID_REQUEST, message, param="Upload-Offset", status=409)


def _beyond_length(total_bytes: int) -> ApiError:
    return ApiError(ErrorCode.FILE_TOO_LARGE, f"The upload ends at {total_bytes} bytes.")


async def _append(
    request: Request, lease: leases.UploadLease, limiter: receiving.UploadLimiter, patch: Patch
) -> int:
    if lease.slot.upload.received_bytes is not None:
        return _nothing_more(lease.slot.upload.received_bytes, request, patch)
    offset = await leases.recover_offset(lease)
    if patch.offset_bytes != offset:
        raise _other_offset()
    total = await _total_bytes(lease, patch)
    limit = lease.slot.limit_bytes if total is None else total

    def over() -> ApiError:
        return access.too_large(lease.slot) if total is None else _beyond_length(total)

    declared = receiving.content_length(request)
    if declared is not None and offset + declared > limit:
        raise over()
    await access.require_room(lease.context, declared or 0)
    rules = receiving.Rules(limit - offset, over, keep_parts=True)
    offset += await _receive(request, lease, limiter, rules, patch)
    if offset == total:
        await leases.finish(lease, total)
    elif offset:
        async with lease.context.database.statement() as connection:
            slot = lease.slot
            await access.warn_of_length(connection, slot.job, slot.upload, missing=total is None)
    return offset


async def _total_bytes(lease: leases.UploadLease, patch: Patch) -> int | None:
    """Return the upload's length, fixed by this request if it was open."""
    length, slot = patch.length_bytes, lease.slot
    if length is None:
        return slot.upload.total_bytes
    if length == 0:
        raise access.empty_file()
    if length > slot.limit_bytes:
        raise access.too_large(slot)
    if length < patch.offset_bytes:
        raise invalid("Upload-Length is less than what has arrived.", "Upload-Length")
    if not await lease.context.database.read(
        uploads.set_resumable_length, slot.job.id, slot.upload.slot, length
    ):
        raise invalid("Upload-Length is not the length given before.", "Upload-Length")
    return length


async def _receive(
    request: Request,
    lease: leases.UploadLease,
    limiter: receiving.UploadLimiter,
    rules: receiving.Rules,
    patch: Patch,
) -> int:
    """Take the body; with a checksum all of it or nothing, otherwise what arrives."""
    start, digest = patch.offset_bytes, None
    heartbeat = receiving.UploadHeartbeat(lease.keep, lease.context.settings)
    if patch.checksum is not None:
        await lease.set_unverified(start)
        digest = ALGORITHMS[patch.checksum.algorithm]()
    writer = await _open(lease, limiter, start, None if digest is None else digest.update)
    try:
        received = await receiving.receive(request, writer, rules, heartbeat)
    except ClientDisconnect:
        if digest is not None:
            await leases.drop_back(lease, start)
        raise invalid("The upload broke off.") from None
    except ApiError as error:
        if digest is not None or error.code is ErrorCode.FILE_TOO_LARGE:
            await leases.drop_back(lease, start)
        raise
    if patch.checksum is not None and digest is not None:
        if digest.digest() != patch.checksum.digest:
            await leases.drop_back(lease, start)
            algorithm = patch.checksum.algorithm
            message = f"The {algorithm} of the body is not the one of Upload-Checksum."
            raise ApiError(ErrorCode.INVALID_REQUEST, message, status=CHECKSUM_MISMATCH)
        await lease.set_unverified(None)
    return received


async def _open(
    lease: leases.UploadLease,
    limiter: receiving.UploadLimiter,
    start: int,
    observe: Callable[[bytes], None] | None,
) -> receiving.PieceWriter:
    """Open the partial; retries for a moment, until a writer that was just replaced has left it."""
    store, key = lease.context.objects, leases.slot_key(lease.slot)
    deadline = asyncio.get_running_loop().time() + _WAIT_SECONDS
    while True:
        try:
            return await receiving.PieceWriter.open(
                store.append_partial(key, start), limiter.threads, observe=observe
            )
        except PartialBusyError:
            if asyncio.get_running_loop().time() >= deadline:
                raise
        await asyncio.sleep(_RETRY_SECONDS)


async def _delete(request: Request, slot: access.Slot) -> Response:
    """Terminate the upload and delete what has arrived."""
    leases.require_alive(slot)
    access.require_awaiting(slot.job)
    context = context_of(request)
    async with leases.hold_lease(context, slot, wait_seconds=_WAIT_SECONDS) as lease:
        upload = lease.slot.upload
        of = upload.job_id, upload.slot, lease.token
        if not await context.database.read(uploads.terminate_upload, *of):
            raise leases.locked()
        await asyncio.to_thread(context.objects.discard_partial, leases.slot_key(slot))
        await asyncio.to_thread(context.objects.delete, upload.object_key)
    return _answer(request, 204, {})


def _expiry(slot: access.Slot) -> dict[str, str]:
    expires = slot.job.upload_expires_at
    if slot.upload.completed_at is not None or expires is None:
        return {}
    return {"Upload-Expires": format_datetime(expires.astimezone(UTC), usegmt=True)}


def _answer(request: Request, status: int, headers: dict[str, str]) -> Response:
    return Response(status_code=status, headers=request.state.answer_headers | headers)


_HANDLERS: dict[str, Handler] = {"HEAD": _head, "PATCH": _patch, "DELETE": _delete}

_OVERRIDABLE = ["HEAD", "PATCH", "DELETE", "OPTIONS", "POST", "GET", "PUT"]
"""Any method may carry X-HTTP-Method-Override; those of their own are the first four."""

router = APIRouter(prefix=access.UPLOADS_PATH, include_in_schema=False)
router.add_api_route("/{job_id}/{slot}", receiving.put_upload, methods=["PUT"])
router.add_api_route("/{job_id}/{slot}", receiving.put_options, methods=["OPTIONS"])
router.add_api_route("/{job_id}/{slot}/resumable", resumable, methods=_OVERRIDABLE)
