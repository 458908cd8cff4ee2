"""Frozen dataclasses as plain JSON values and back, by their type hints.

Understands what contracts are made of: dataclasses, enums, ``tuple[X, ...]``,
``X | None``, str, int, float, bool and None. Strict: unknown or missing fields
and wrong types are errors, so that a stored result of another version is never
misread.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from enum import Enum
from typing import Any, TypeVar

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None

_Value = TypeVar("_Value")


class CodecError(ValueError):
    """The JSON does not fit the type; the message says where."""


def to_json(value: object) -> Any:
    """``value`` as dicts, lists and scalars. Raises CodecError for what JSON cannot hold."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        raise CodecError(f"{value} has no JSON form")
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_json(getattr(value, field.name)) for field in fields}
    raise CodecError(f"{type(value).__name__} has no JSON form")


def from_json(cls: type[_Value], data: object) -> _Value:
    """The ``cls`` that ``to_json`` turned into ``data``; raises CodecError if it is none."""
    value: _Value = _decoded(cls, data, cls.__name__)
    return value


def _decoded(hint: Any, data: object, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _decoded_union(typing.get_args(hint), data, where)
    if origin is tuple:
        return _decoded_tuple(typing.get_args(hint), data, where)
    if dataclasses.is_dataclass(hint):
        return _decoded_dataclass(hint, data, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _decoded_enum(hint, data, where)
    return _decoded_scalar(hint, data, where)


def _decoded_union(options: tuple[Any, ...], data: object, where: str) -> Any:
    if data is None and types.NoneType in options:
        return None
    present = [option for option in options if option is not types.NoneType]
    if len(present) != 1:
        raise CodecError(f"{where}: {present} cannot be told apart in JSON")
    return _decoded(present[0], data, where)


def _decoded_tuple(items: tuple[Any, ...], data: object, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise CodecError(f"{where}: a list is expected, not {type(data).__name__}")
    endless = len(items) == 2 and items[1] is Ellipsis
    hints = [items[0]] * len(data) if endless else list(items)
    if len(hints) != len(data):
        raise CodecError(f"{where}: {len(hints)} items are expected, not {len(data)}")
    pairs = enumerate(zip(hints, data, strict=True))
    return tuple(_decoded(hint, item, f"{where}[{index}]") for index, (hint, item) in pairs)


def _decoded_dataclass(cls: Any, data: object, where: str) -> Any:
    if not isinstance(data, dict):
        raise CodecError(f"{where}: an object is expected, not {type(data).__name__}")
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    unknown = sorted(set(data) - {field.name for field in fields})
    missing = [f.name for f in fields if f.name not in data and not _has_default(f)]
    if unknown or missing:
        raise CodecError(f"{where}: unknown fields {unknown}, missing fields {missing}")
    values = {name: _decoded(hints[name], item, f"{where}.{name}") for name, item in data.items()}
    return cls(**values)


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return (
        field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    )


def _decoded_enum(cls: type[Enum], data: object, where: str) -> Enum:
    try:
        return cls(data)
    except ValueError:
        raise CodecError(f"{where}: {data!r} is no {cls.__name__}") from None


def _decoded_scalar(hint: Any, data: object, where: str) -> Any:
    if hint is float and isinstance(data, int | float) and not isinstance(data, bool):
        return float(data)
    if hint in (str, int, bool) and type(data) is hint:
        return data
    raise CodecError(f"{where}: {data!r} does not fit {hint}")
