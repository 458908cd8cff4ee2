"""Signatures of the Standard Webhooks specification (https://www.standardwebhooks.com)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence

SECRET_PREFIX = "whsec_"  # noqa: S105  (a public prefix)
SECRET_BYTES = 24


class InvalidSecretError(ValueError):
    """A text is no signing secret; the message says so without repeating it."""


def new_signing_secret() -> str:
    """``whsec_`` and base64 of random bytes."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def decode_secret(secret: str) -> bytes:
    """The key in a secret; raises InvalidSecretError."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidSecretError("The secret is not whsec_ and base64.") from error
    if not key:
        raise InvalidSecretError("The secret is empty.")
    return key


def signature(secret: str, webhook_id: str, timestamp: int, body: bytes) -> str:
    """``v1,`` and base64 of HMAC-SHA256 over ``<id>.<timestamp>.<body>``."""
    key = decode_secret(secret)
    message = f"{webhook_id}.{timestamp}.".encode() + body
    digest = hmac.new(key, message, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def signed_headers(
    secrets_in_force: Sequence[str], webhook_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """The three headers of a delivery; a signature for each secret, the newest first."""
    signatures = [signature(secret, webhook_id, timestamp, body) for secret in secrets_in_force]
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }
