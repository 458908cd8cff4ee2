"""Query parameters: one value each, strictly read, the parameter named in every refusal."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fastapi import Request

from serve_app.errors import invalid

_INTEGER = re.compile(r"-?[0-9]{1,15}")
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
"""Numbers as JSON writes them, of a sensible length."""


def single(request: Request, name: str) -> str | None:
    """The parameter's text, None if absent; refuses repetition and what no store can keep."""
    values = request.query_params.getlist(name)
    if not values:
        return None
    if len(values) > 1:
        raise invalid(f"{name} must be given once.", name)
    if any(character < " " or "\ud800" <= character <= "\udfff" for character in values[0]):
        raise invalid(f"{name} must not hold control characters.", name)
    return values[0]


def one_of(request: Request, name: str, allowed: Iterable[str]) -> str | None:
    """The parameter if it is one of ``allowed``."""
    value = single(request, name)
    if value is not None and value not in set(allowed):
        choices = ", ".join(sorted(str(choice) for choice in allowed))
        raise invalid(f"{name} must be one of {choices}.", name)
    return value


def read_integer(request: Request, name: str, *, low: int, high: int) -> int | None:
    """The parameter as a whole number from ``low`` to ``high``."""
    value = single(request, name)
    if value is None:
        return None
    if not _INTEGER.fullmatch(value) or not low <= int(value) <= high:
        raise invalid(f"{name} must be a whole number from {low} to {high}.", name)
    return int(value)


def read_number(request: Request, name: str, *, low: float, high: float) -> float | None:
    """The parameter as a decimal number from ``low`` to ``high``."""
    value = single(request, name)
    if value is None:
        return None
    if not _NUMBER.fullmatch(value) or not low <= float(value) <= high:
        raise invalid(f"{name} must be a number from {low} to {high}.", name)
    return float(value)
