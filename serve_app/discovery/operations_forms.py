"""What an operation of the table is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from serve_app.discovery.components_forms import Schema, reference
from serve_app.errors import ErrorCode


class Auth(StrEnum):
    """Who may call an operation."""

    KEY = "key"
    NONE = "none"
    SESSION = "session"


COMMON_ERRORS: dict[Auth, tuple[ErrorCode, ...]] = {
    Auth.KEY: (
        ErrorCode.UNAUTHORIZED,
        ErrorCode.RATE_LIMITED,
        ErrorCode.ACCOUNT_SUSPENDED,
        ErrorCode.INTERNAL_ERROR,
        ErrorCode.SERVICE_UNAVAILABLE,
    ),
    Auth.NONE: (
        ErrorCode.RATE_LIMITED,
        ErrorCode.INTERNAL_ERROR,
        ErrorCode.SERVICE_UNAVAILABLE,
    ),
    Auth.SESSION: (
        ErrorCode.UNAUTHORIZED,
        ErrorCode.ACCOUNT_SUSPENDED,
        ErrorCode.INTERNAL_ERROR,
        ErrorCode.SERVICE_UNAVAILABLE,
    ),
}
"""What every operation may answer, by who calls it."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of path, query or header."""

    name: str
    where: Literal["path", "query", "header"]
    schema: Schema
    description: str
    required: bool = False
    deprecated: bool = False
    example: Any = None


@dataclass(frozen=True, slots=True)
class Success:
    """The answer when all goes well. ``data`` is what the envelope holds."""

    description: str
    data: Schema
    status: int = 200
    headers: tuple[str, ...] = ()
    optional_headers: tuple[str, ...] = ()
    enveloped: bool = True
    """Without it, ``data`` is the whole body."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Other media types that it may have, with what they hold."""
    links: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Operations that go on from here: operation id to parameter to expression."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A row of the table."""

    operation_id: str
    method: str
    path: str
    """Relative to the base path."""
    auth: Auth
    tag: str
    summary: str
    description: str
    success: Success
    parameters: tuple[Parameter, ...] = ()
    body: str | None = None
    """Component of the request body."""
    errors: tuple[ErrorCode, ...] = ()
    """Besides the common ones."""
    cacheable: bool = False
    """Whether a conditional request may be answered 304."""
    deprecated: bool = False

    @property
    def all_errors(self) -> tuple[ErrorCode, ...]:
        """Every code that it may answer, in the catalogue's order."""
        codes = {*self.errors, *COMMON_ERRORS[self.auth]}
        return tuple(code for code in ErrorCode if code in codes)


def data(name: str, description: str, **options: Any) -> Success:
    """A success whose ``data`` is the component ``name``."""
    return Success(description, reference(name), **options)
