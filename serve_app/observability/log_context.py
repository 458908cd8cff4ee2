"""Which request, job and account a process works on at the moment, for its log records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar, Token

Fields = dict[str, object]
"""Field name to value; made text only where a record is written."""

_CURRENT: ContextVar[Fields | None] = ContextVar("vas_log_context", default=None)


def enter_context(fields: Fields) -> Token[Fields | None]:
    """Records of this task, and of those it starts, bear ``fields`` until ``leave_context``."""
    return _CURRENT.set(fields)


def leave_context(token: Token[Fields | None]) -> None:
    """What was before ``enter_context``."""
    _CURRENT.reset(token)


@contextlib.contextmanager
def log_context(**fields: object) -> Iterator[None]:
    """``fields``, with those around the block, on every record of the block."""
    token = enter_context({**current_context(), **fields})
    try:
        yield
    finally:
        leave_context(token)


def note(**fields: object) -> None:
    """Add to the fields of the request or job at hand, now that more is known of it."""
    current = _CURRENT.get()
    if current is not None:
        current.update(fields)


def current_context() -> Mapping[str, object]:
    """The fields in force."""
    return _CURRENT.get() or {}
