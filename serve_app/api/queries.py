"""Query parameters: one value each, strictly read, the parameter named in every refusal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from fastapi import Request
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from serve_app.errors import invalid

_INTEGER = re.compile(r"-?[0-9]{1,15}")
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
"""Numbers as JSON writes them, of a sensible length."""


def require_plain_query(request: Request, names: Iterable[str]) -> None:
    """Refuses repetition and what no store can keep; other parameters are ignored."""
    for name in names:
        values = request.query_params.getlist(name)
        if len(values) > 1:
            raise invalid(f"{name} must be given once.", name)
        if values and any(c < " " or "\ud800" <= c <= "\udfff" for c in values[0]):
            raise invalid(f"{name} must not hold control characters.", name)


def whole_number(text: str) -> int | None:
    """The number that the text is in ASCII digits; None for any other text."""
    return int(text) if _INTEGER.fullmatch(text) else None


def matching(form: re.Pattern[str], kind: str) -> BeforeValidator:
    """Text in a form; refused in words, where ``pattern`` of pydantic shows the expression.

    Last in an annotation.
    """

    def check(value: Any) -> Any:
        if isinstance(value, str) and not form.fullmatch(value):
            raise PydanticCustomError("form", f"must be a {kind}")
        return value

    return BeforeValidator(check)


def shown(form: re.Pattern[str]) -> Any:
    """The form of ``matching`` in the interface document."""
    return Field(json_schema_extra={"pattern": f"^{form.pattern}$"})


WHOLE_NUMBER = matching(_INTEGER, "whole number")
NUMBER = matching(_NUMBER, "number")
"""Pydantic also takes ``+5``, `` 5`` and ``1_000``."""


def one_of(allowed: Iterable[str]) -> AfterValidator:
    """Text that is one of ``allowed``."""
    choices = [str(choice) for choice in allowed]

    def check(value: str) -> str:
        if value not in choices:
            raise PydanticCustomError("choice", f"must be one of {', '.join(choices)}")
        return value

    return AfterValidator(check)
