"""Frozen dataclasses as JSON and back, by their type hints.

Reading is strict: unknown or missing fields and wrong types are errors, so that a stored result
of another version is never misread. Fields with a default may be missing.
"""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Hashable, Iterator
from dataclasses import asdict
from typing import Any, Literal, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

_Value = TypeVar("_Value")

PART_CHARACTERS = 64 * 1024
"""Of a list that is decoded in parts; the last element of a part may begin before."""

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class CodecError(ValueError):
    """The JSON does not fit the type; the message names the place."""


def encode(value: object) -> bytes:
    """``value`` as JSON text. Raises CodecError for what JSON cannot hold."""
    try:
        return json.dumps(value, default=asdict, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise CodecError(f"{type(value).__name__} has no JSON form: {error}") from None


def decode(cls: type[_Value], text: bytes, *, ignore_unknown: bool = False) -> _Value:
    """The ``cls`` that ``encode`` turned into ``text``; raises CodecError if it is none.

    With ``ignore_unknown`` fields may be there that a later version added.
    """
    extra: Literal["ignore"] | None = "ignore" if ignore_unknown else None
    try:
        found = _adapter(cast("Hashable", cls)).validate_json(b"[%b]" % text, extra=extra)
    except ValidationError as error:
        problems = (_place(it["loc"][1:]) + ": " + it["msg"] for it in error.errors())
        raise CodecError("; ".join(cls.__name__ + problem for problem in problems)) from None
    value: _Value = found[0]
    return value


def list_parts(text: str, start: int = 0) -> Iterator[tuple[str, int]]:
    """The JSON list at ``start`` as short ones, each with where it ends in ``text``.

    For threads: no other one runs while one value is decoded, and a long list takes a second.
    Raises ValueError where it is none.
    """
    scan = json.JSONDecoder().raw_decode
    first = at = end = _after_gap(text, start + 1)
    while text[at : at + 1] != "]":
        end = scan(text, at)[1]
        at = _after_gap(text, end)
        if end - first > PART_CHARACTERS:
            yield f"[{text[first:end]}]", at
            first = at
    yield f"[{text[first:end]}]", at + 1


def _after_gap(text: str, at: int) -> int:
    while text[at : at + 1] in {",", " ", "\n", "\t", "\r"}:
        at += 1
    return at


def to_json(value: object) -> Any:
    """``value`` as dicts, lists and scalars. Raises CodecError as ``encode``."""
    return json.loads(encode(value))


def from_json(cls: type[_Value], data: object) -> _Value:
    """The ``cls`` that ``to_json`` turned into ``data``; raises CodecError if it is none."""
    return decode(cls, encode(data))


@functools.cache
def _adapter(cls: Hashable) -> TypeAdapter[Any]:
    """Dataclasses take their configuration from what they are a field of: hence the tuple."""
    only: Any = types.GenericAlias(tuple, (cls,))
    return TypeAdapter(only, config=_STRICT)


def _place(path: tuple[int | str, ...]) -> str:
    return "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in path)
