"""Signatures of the Standard Webhooks specification (https://www.standardwebhooks.com)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence

SECRET_PREFIX = "whsec_"  # noqa: S105  (a public prefix)
SECRET_BYTES = 24

TOLERANCE_SECONDS = 300

HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")


class InvalidSecretError(ValueError):
    """A text is no signing secret; the message does not repeat it."""


def new_signing_secret() -> str:
    """``whsec_`` and base64 of random bytes."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def decode_secret(secret: str) -> bytes:
    """Return the key in a secret; raises InvalidSecretError."""
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
    return f"v1,{base64.b64encode(hmac.new(key, message, hashlib.sha256).digest()).decode()}"


def signed_headers(
    secrets_in_force: Sequence[str], webhook_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """Return the three headers of a delivery; a signature for each secret, the newest first."""
    signatures = [signature(secret, webhook_id, timestamp, body) for secret in secrets_in_force]
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }


class VerificationError(Exception):
    """Why a delivery must not be believed, in a sentence that helps."""


def verify(
    secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now_seconds: float
) -> None:
    """Raise VerificationError unless one of ``secrets`` signed ``body`` lately.

    ``headers`` have their names in lower case; ``body`` is raw, as it came.
    """
    missing = [name for name in HEADERS if not headers.get(name)]
    if missing:
        raise VerificationError(f"the header {missing[0]} is missing: this is no delivery")
    text = headers["webhook-timestamp"]
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise VerificationError(f"webhook-timestamp is {text!r}, no Unix time in seconds")
    age_seconds = now_seconds - int(text)
    if abs(age_seconds) > TOLERANCE_SECONDS:
        side = "old" if age_seconds > 0 else "in the future"
        raise VerificationError(
            f"it was signed {abs(age_seconds):.0f} seconds {side}, and more than "
            f"{TOLERANCE_SECONDS} may not be: an old delivery sent anew, or a wrong clock"
        )
    signed_at = int(text)
    entries = headers["webhook-signature"].split(" ")
    expected = [signature(secret, headers["webhook-id"], signed_at, body) for secret in secrets]
    # Bytes, because a header may hold anything; all of them, whichever fits.
    fits = [hmac.compare_digest(a.encode(), b.encode()) for a in entries for b in expected]
    if not any(fits):
        raise VerificationError(
            f"none of its {len(entries)} signatures fits: either the secret is not this "
            "account's (GET /webhooks/secret shows it), or the body changed on its way"
        )
