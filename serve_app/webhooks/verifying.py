"""A receiver's side of the signature, and in words what is wrong with one."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence

from serve_app.webhooks.signing import signature

TOLERANCE_SECONDS = 300
HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")


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
    signed_at = _signed_at(headers["webhook-timestamp"], now_seconds)
    entries = headers["webhook-signature"].split(" ")
    wanted = [signature(secret, headers["webhook-id"], signed_at, body) for secret in secrets]
    # Bytes, because a header may hold anything; all of them, whichever fits.
    fits = [hmac.compare_digest(a.encode(), b.encode()) for a in entries for b in wanted]
    if not any(fits):
        raise VerificationError(
            f"none of its {len(entries)} signatures fits: either the secret is not this "
            "account's (GET /webhooks/secret shows it), or the body changed on its way"
        )


def _signed_at(text: str, now_seconds: float) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise VerificationError(f"webhook-timestamp is {text!r}, no Unix time in seconds")
    age_seconds = now_seconds - int(text)
    if abs(age_seconds) > TOLERANCE_SECONDS:
        side = "old" if age_seconds > 0 else "in the future"
        raise VerificationError(
            f"it was signed {abs(age_seconds):.0f} seconds {side}, and more than "
            f"{TOLERANCE_SECONDS} may not be: an old delivery sent anew, or a wrong clock"
        )
    return int(text)
