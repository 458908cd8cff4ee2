"""Secrets taken out of text by their shape: the last line of defence in front of the log."""

from __future__ import annotations

import re

HIDDEN = "[hidden]"

_SHAPES: tuple[tuple[str, str], ...] = (
    # Our own: API keys, session and sign-in tokens, webhook signing secrets.
    (r"\b(vas_[a-z]+_)[A-Za-z0-9_-]{8,}", r"\1" + HIDDEN),
    (r"\b(whsec_)[A-Za-z0-9+/=_-]{8,}", r"\1" + HIDDEN),
    # Credentials in headers.
    (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", r"\1 " + HIDDEN),
    # Credentials in addresses: of user and password, and in parameters.
    (r"(://[^/\s:@]*:)[^/\s@]+@", r"\1" + HIDDEN + "@"),
    (
        r"(?i)([?&](?:[a-z0-9_-]*(?:signature|token|credential|secret|key|sig)|expires)=)"
        r"[^&\s\"'<>]+",
        r"\1" + HIDDEN,
    ),
    # A connection string's words.
    (r"(?i)\b(password=)('[^']*'|[^\s'\"]+)", r"\1" + HIDDEN),
)
_COMPILED = tuple((re.compile(shape), kept) for shape, kept in _SHAPES)


def without_secrets(text: str) -> str:
    """``text`` with everything that looks like a credential hidden."""
    for shape, kept in _COMPILED:
        text = shape.sub(kept, text)
    return text
