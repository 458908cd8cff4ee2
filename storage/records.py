"""Records: one class says what a row is read into, what its columns are, and what clients see.

A field's type makes its column, ``of`` what the column has besides; ``doc`` is its text in the
interface document, where its name is the same in camel case, a UUID a string, a time ISO 8601.
"""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from operator import attrgetter, or_
from types import UnionType
from typing import (
    Annotated,
    Any,
    NotRequired,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import sqlalchemy as sa
from pydantic import Field
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.schema import SchemaItem
from typing_extensions import TypedDict, is_typeddict

from storage.database import Connection


def doc(description: str, *examples: Any, **rules: Any) -> Any:
    """Return a pydantic ``Field`` for an annotation: its description in the document, with
    examples."""
    if examples:
        rules["examples"] = list(examples)
    return Field(description=description, **rules)


@overload
def timestamp(moment: datetime) -> str: ...


@overload
def timestamp(moment: datetime | None) -> str | None: ...


def timestamp(moment: datetime | None) -> str | None:
    """Return ISO 8601 in UTC with milliseconds."""
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Shown:
    """In an annotation: how ``rendered`` turns a record's value into the answer's."""

    convert: Callable[[Any], Any]


Uuid = Annotated[
    str,
    Field(json_schema_extra={"format": "uuid"}, examples=["6f1b7c0e-2f0a-4c55-9a53-0d1f3a1f2c77"]),
    Shown(str),
]
Url = Annotated[
    str,
    Field(json_schema_extra={"format": "uri"}, examples=["https://video.example.com/v1/api/jobs"]),
]
Timestamp = Annotated[
    str,
    Field(json_schema_extra={"format": "date-time"}, examples=["2026-03-02T09:15:04.120Z"]),
    Shown(timestamp),
]
"""ISO 8601, UTC."""
Share = Annotated[
    float,
    Field(ge=0, le=1, description="0 to 1.", examples=[0.97]),
    Shown(lambda share: round(share, 4)),
]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, examples=[12.48])]
"""``rendered`` finds milliseconds where a record has them."""


@dataclass(frozen=True, slots=True)
class _Of:
    parts: tuple[Any, ...]
    options: Mapping[str, Any]


def of(*parts: Any, **options: Any) -> _Of:
    """Return, for a field's annotation, what its column has beyond what the type says: an SQL type
    or constraints, and options of SQLAlchemy's ``Column``."""
    return _Of(parts, options)


KEY = of(primary_key=True)
NOW = of(server_default=sa.func.now())
_MARKS = COMPUTED, HIDDEN, OPTIONAL = "computed", "hidden", "optional"
"""Of a field: no column has it; no client sees it; the answer leaves it out where there is none."""

_SQL_TYPES: Mapping[Any, Any] = {
    uuid.UUID: sa.Uuid(),
    str: sa.Text(),
    int: sa.Integer(),
    float: sa.Float(),
    bool: sa.Boolean(),
    bytes: sa.LargeBinary(),
    datetime: sa.DateTime(timezone=True),
    list: ARRAY(sa.Text()),
}
_WIRE_TYPES: Mapping[Any, Any] = {uuid.UUID: Uuid, datetime: Timestamp}
_TABLES: dict[type, sa.Table] = {}


@dataclass(frozen=True, slots=True)
class As:
    """In a field's annotation: clients see another type, under another name if one is given; the
    record's ``json`` makes it."""

    kind: Any
    name: str | None = None


_Function = TypeVar("_Function", bound=Callable[..., Any])
_cached = cast(Callable[[_Function], _Function], functools.cache)
"""To mypy classes are not hashable."""


class Record:
    """A row of a table that ``table_of`` has made, of which clients see ``json``."""

    __slots__ = ()

    def json(self, **given: Any) -> dict[str, Any]:
        """Return what clients see; ``given`` are fields that are worked out elsewhere."""
        shown: dict[str, Any] = rendered(form_of(type(self)), self, **given)
        return shown

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(form_of(cls))


Stored = TypeVar("Stored")


def _parts(hint: Any) -> tuple[Any, bool, list[Any]]:
    """Return the type that is left of a field's, whether it may be None, and all annotations."""
    if get_origin(hint) is Annotated:
        kind, is_optional, marks = _parts(get_args(hint)[0])
        return kind, is_optional, [*marks, *hint.__metadata__]
    if get_origin(hint) in {Union, UnionType}:
        kind, _, marks = _parts(get_args(hint)[0])
        return kind, True, marks
    return hint, False, []


def table_of(
    metadata: sa.MetaData, record: type[Record], name: str, *others: SchemaItem
) -> sa.Table:
    """Return the table whose rows a record is, with ``others``: columns that no record shows,
    constraints, indexes. What is an enum is checked to be one of its values."""
    parts = list[SchemaItem]()
    for field, hint in get_type_hints(record, include_extras=True).items():
        kind, is_optional, marks = _parts(hint)
        if COMPUTED in marks:
            continue
        own = [mark for mark in marks if isinstance(mark, _Of)]
        given = [part for mark in own for part in mark.parts]
        options = {"nullable": is_optional} | {k: v for it in own for k, v in it.options.items()}
        is_enum = isinstance(kind, type) and issubclass(kind, StrEnum)
        plain = sa.Text() if is_enum else _SQL_TYPES.get(get_origin(kind) or kind)
        parts.append(sa.Column(field, *(given or [plain]), **options))
        if is_enum and not given:
            parts.append(sa.CheckConstraint(one_of(field, kind), name=field))
    _TABLES[record] = sa.Table(name, metadata, *parts, *others)
    return _TABLES[record]


def one_of(column: str, values: Iterable[StrEnum]) -> str:
    """Return the condition that a column has one of the values."""
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


def columns(record: type[Record], *but: str) -> list[sa.Column[Any]]:
    """Return the columns that the record is read from, but those of these names."""
    return [each for each in _TABLES[record].c if each.name in _names(record).keys() - {*but}]


@_cached
def _names(record: Any) -> dict[str, Any]:
    """Return the types of the record's fields."""
    hints = get_type_hints(record, include_extras=True)
    return {name: _parts(hint)[0] for name, hint in hints.items()}


@_cached
def _enums(record: Any) -> list[tuple[str, type[StrEnum]]]:
    kinds = _names(record).items()
    return [(name, it) for name, it in kinds if isinstance(it, type) and issubclass(it, StrEnum)]


def from_row(record: type[Stored], row: Mapping[Any, Any]) -> Stored:
    """Return a row as a record, without what it has beside."""
    values = {name: row[name] for name in _names(record)}
    for name, kind in _enums(record):
        if (value := values[name]) is not None:
            values[name] = kind(value)
    return record(**values)


async def read(
    connection: Connection, record: type[Stored], query: sa.Executable, **values: Any
) -> list[Stored]:
    """Return the rows of a query, or of what a statement returns, as records."""
    return [from_row(record, row) for row in (await connection.execute(query, values)).mappings()]


async def read_one(
    connection: Connection, record: type[Stored], query: sa.Executable, **values: Any
) -> Stored | None:
    """Return the first one, or None."""
    return next(iter(await read(connection, record, query, **values)), None)


@_cached
def form_of(record: Any) -> Any:
    """Return what clients see of a record, as a TypedDict."""
    fields = dict[str, Any]()
    for name, hint in get_type_hints(record, include_extras=True).items():
        marks = _parts(hint)[2]
        given = next((mark for mark in marks if isinstance(mark, As)), As(hint))
        if HIDDEN in marks:
            continue
        shown = _shown(given.kind, is_left_out=OPTIONAL in marks)
        fields[given.name or to_camel(name)] = NotRequired[shown] if OPTIONAL in marks else shown
    form: Any = TypedDict(f"{record.__name__}Json", fields)  # type: ignore[misc]
    form.__doc__ = record.__doc__
    return form


def _shown(hint: Any, *, is_left_out: bool) -> Any:
    if get_origin(hint) is Annotated:
        marks = [it for it in hint.__metadata__ if isinstance(it, FieldInfo | Shown)]
        own = _shown(get_args(hint)[0], is_left_out=is_left_out)
        return Annotated[(own, *marks)] if marks else own
    if get_origin(hint) in {Union, UnionType}:
        kinds = [_shown(each, is_left_out=False) for each in get_args(hint)]
        left = [it for it in kinds if not is_left_out or it is not type(None)]
        return functools.reduce(or_, left)
    return _WIRE_TYPES.get(hint, hint)


Form = TypeVar("Form")
_NONE = frozenset[str]()


def rendered(form: type[Form], record: Any, **given: Any) -> Form:
    """Return ``record`` as ``form``, a TypedDict, has it: the one way from a record to an answer.

    ``fileName`` is the attribute ``file_name``; ``startTime``, ``time`` and ``waitSeconds`` are
    ``start_ms``, ``time_ms`` and ``wait_ms`` in seconds where the record has those. Types convert
    (``Shown``), forms in forms are rendered likewise. A field that may be absent is, where the
    record has None or no such attribute. ``given`` are fields that are worked out elsewhere.
    """
    found: Form = _renderer(form, type(record), frozenset(given) if given else _NONE)(record, given)
    return found


@_cached
def _renderer(form: Any, record: Any, given: frozenset[str]) -> Callable[[Any, Any], Any]:
    """Prepare ``form`` for a type of records: answers may have a hundred thousand of them."""
    attributes, conversions, may_lack = dict[str, str](), dict[str, Callable[[Any], Any]](), set()
    order = get_type_hints(form, include_extras=True)
    for key, hint in order.items():
        attribute, is_optional = _attribute(record, key), get_origin(hint) is NotRequired
        if key in given or (attribute is None and is_optional):
            continue
        if attribute is None:
            raise TypeError(f"{record.__name__} has no {key}, which {form.__name__} shows")
        attributes[key] = attribute
        convert = _in_seconds if attribute.endswith("_ms") else _converter(hint)
        if convert is not None:
            conversions[key] = convert
        if is_optional:
            may_lack.add(key)
    keys, values_of = [*attributes], attrgetter(*attributes.values(), "__class__")

    def render(found: Any, given: Any) -> Any:
        shown = dict(zip(keys, values_of(found), strict=False))
        for key, convert in conversions.items():
            if (value := shown[key]) is not None:
                shown[key] = convert(value)
        for key in may_lack:
            if shown[key] is None:
                del shown[key]
        if given:
            shown |= given
            shown = {key: shown[key] for key in order if key in shown}
        return shown

    return render


def _rendered_list(form: Any, records: Sequence[Any]) -> list[Any]:
    if not records:
        return []
    render = _renderer(form, type(records[0]), _NONE)
    return [render(each, None) for each in records]


def _in_seconds(milliseconds: int) -> float:
    return milliseconds / 1000


def _attribute(record: type, key: str) -> str | None:
    name = re.sub(r"(?<!^)([A-Z])", lambda letter: "_" + letter[1].lower(), key)
    spans = [name.removesuffix(end) + "_ms" for end in ("_time", "_seconds") if name.endswith(end)]
    return next((it for it in (name, *spans, f"{name}_ms") if hasattr(record, it)), None)


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    """Return what a value of this type is turned by; None where it goes out as it is."""
    if get_origin(hint) in {Annotated, NotRequired}:
        own = [it.convert for it in getattr(hint, "__metadata__", ()) if isinstance(it, Shown)]
        return own[-1] if own else _converter(get_args(hint)[0])
    if get_origin(hint) is UnionType or get_origin(hint) is Union:
        return next((found for it in get_args(hint) if (found := _converter(it))), None)
    if get_origin(hint) is list:
        each = get_args(hint)[0]
        return functools.partial(_rendered_list, each) if is_typeddict(each) else list
    return functools.partial(rendered, hint) if is_typeddict(hint) else None
