"""Pagination cursors: opaque, URL-safe, and worthless once tampered with."""

from __future__ import annotations

import base64
import hashlib
import hmac
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from serve_app.errors import invalid

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAC_BYTES = 16
_PURPOSE = b"cursor"


class BadCursorError(Exception):
    """Not a cursor that this service made for this account."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last job of a page: where the next one goes on."""

    created_at: datetime
    job_id: uuid.UUID


def encode_cursor(cursor: Cursor, *, secret: bytes, account_id: uuid.UUID) -> str:
    """43 to 56 URL-safe characters."""
    micros = (cursor.created_at - _EPOCH) // timedelta(microseconds=1)
    payload = micros.to_bytes(8, signed=True) + cursor.job_id.bytes
    return sign_payload(payload, secret=secret, account_id=account_id, purpose=_PURPOSE)


def decode_cursor(text: str, *, secret: bytes, account_id: uuid.UUID) -> Cursor:
    """Raises BadCursorError for whatever ``encode_cursor`` did not make for this account."""
    payload = read_payload(text, secret=secret, account_id=account_id, purpose=_PURPOSE)
    micros = int.from_bytes(payload[:8], signed=True)
    return Cursor(_EPOCH + timedelta(microseconds=micros), uuid.UUID(bytes=payload[8:]))


def sign_payload(payload: bytes, *, secret: bytes, account_id: uuid.UUID, purpose: bytes) -> str:
    """The payload as URL-safe text, good for this account and purpose."""
    return _written(payload + _mac(payload, secret, account_id, purpose))


def read_payload(text: str, *, secret: bytes, account_id: uuid.UUID, purpose: bytes) -> bytes:
    """Raises BadCursorError for what ``sign_payload`` did not make for this purpose."""
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
    except ValueError as error:
        raise BadCursorError from error
    if _written(raw) != text:
        raise BadCursorError  # Base64 has several spellings of the same bytes; ours has one.
    payload, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(payload, secret, account_id, purpose)):
        raise BadCursorError
    return payload


def read_cursor(text: str | None, *, secret: bytes, account_id: uuid.UUID, purpose: bytes) -> bytes:
    """What ``sign_payload`` signed, empty for a first page. Raises ApiError naming ``cursor``."""
    if text is None:
        return b""
    try:
        return read_payload(text, secret=secret, account_id=account_id, purpose=purpose)
    except BadCursorError as error:
        raise invalid("The cursor is not one that this list gave out.", "cursor") from error


def _written(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _mac(payload: bytes, secret: bytes, account_id: uuid.UUID, purpose: bytes) -> bytes:
    message = purpose + b"\n" + account_id.bytes + payload
    return hmac.new(secret, message, hashlib.sha256).digest()[:_MAC_BYTES]
