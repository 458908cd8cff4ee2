"""Secrets taken out of text by their shape: the last line of defence in front of the log."""

from __future__ import annotations

import re

HIDDEN = "[hidden]"

_SHAPES: tuple[tuple[str, str], ...] = (
    # Our own: API keys, session and sign-in tokens, webhook signing secrets.
    (r"\b(vas_[a-z]+_)[A-Za-z0-9_-]{8,}", r"\1" + HIDDEN),
    (r"\b(whsec_)[A-Za-z0-9+/=_-]{8,}", r"\1" + HIDDEN),
    # What PostgreSQL says of the row that it refused: all that a client sent.
    (r"(?s)(\bDETAIL:\s+).+?(?=\n\[SQL|\n\n|\n[A-Z]{4,}:\s|\Z)", r"\1" + HIDDEN),
    # Values beside a name that says what they are: in JSON, Python's own form, pairs of headers.
    (
        r"(?i)([\"'][\w-]*(?:token|secret|password|api[_-]?key|authorization|cookie|signature)[\"']"
        r"\s*[:,]\s*b?)([\"'])(?:(?!\2).)+\2",
        r"\1\2" + HIDDEN + r"\2",
    ),
    # Credentials in headers.
    (
        r"(?i)\b((?:x-api-key|(?:set-)?cookie|(?:proxy-)?authorization):\s*)\S[^\r\n]*",
        r"\1" + HIDDEN,
    ),
    (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", r"\1 " + HIDDEN),
    # Credentials in addresses: before the host (a token may stand for the user), in parameters.
    (r"(://)[^/\s@?#\"'<>]+@", r"\1" + HIDDEN + "@"),
    (
        r"(?i)([?&](?:[a-z0-9_-]*(?:signature|token|credential|secret|key|sig|policy|auth|jwt|hmac)"
        r"|expires|code|pwd|pass(?:word|wd|phrase)?|hdn[a-z]{2})=)"
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
