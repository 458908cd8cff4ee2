"""Manifests: which items there are, and which rows are none, with the column at fault.

CSV (with a header), JSON lines or Parquet, by the file's suffix; or no manifest but a folder
or bucket prefix, every file of which is an item. Rows without an ``id`` get one that follows
from all that the row holds, so that it is the same in the next run, wherever the row stands by
then; the second of two equal rows gets the number 2, and so on.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from pipelines.codec import encode
from pipelines.collection import (
    MAX_FILE_NAME,
    MAX_KEYTERMS,
    MAX_SPEAKERS,
    S3_SCHEME,
    BucketAccess,
    Place,
    PlaceError,
    file_at,
    is_chosen,
    name_in,
    place_at,
    plain_file_name,
    split_s3,
)
from pipelines.net.addresses import Provider
from pipelines.types import ChannelUse
from storage.objects import ObjectNotFoundError
from storage.types import ProcessingMode

FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""Suffix -> how a manifest is read."""

MOST_BYTES = 256 << 20
"""Of a manifest."""
MOST_ROWS = 1_000_000
"""Of a manifest, or files below a prefix."""
MOST_ROW_BYTES = 1 << 20
_ROWS_AT_ONCE = 100
"""Of Parquet."""

MAX_ID_CHARACTERS = 200
MAX_KEYTERM_CHARACTERS = 100

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""And halves of surrogate pairs, which JSON can hold and UTF-8 cannot."""
_LANGUAGE = "^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_WEB = ("http", "https")
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
_STEM_CHARACTERS = 60


def _refuse(reason: str) -> PydanticCustomError:
    return PydanticCustomError("column", reason)


def _line(text: str) -> str:
    if _CONTROL_CHARACTERS.search(text):
        raise _refuse("must not hold control characters")
    return text


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise _refuse("must be a whole number")
    return value


def _source(text: str) -> str:
    scheme = _SCHEME.match(text)
    kind = scheme.group(1).lower() if scheme else "file"
    if kind == "s3":
        bucket, key = split_s3(text)
        if not key:
            raise _refuse(f"names the bucket {bucket} and no object in it")
    elif kind not in (*_WEB, "file"):
        raise _refuse(f"must be a path, s3:// or http(s)://, not {kind}://")
    elif kind in _WEB and not urlsplit(text).hostname:
        raise _refuse("names no host")
    elif kind == "file" and scheme:
        _line(unquote(urlsplit(text).path))
    elif kind == "file":
        try:
            Path(text).expanduser()
        except RuntimeError as error:
            raise _refuse(f"{text!r} is in the home of nobody on this machine") from error
    return text


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _refuse("is no JSON") from None


def _split(value: Any) -> Any:
    """Return the terms of a list, of a JSON list, or of text with semicolons between."""
    if isinstance(value, str):
        value = _loaded(value) if value.strip().startswith("[") else value.split(";")
    return tuple(value) if isinstance(value, list) else value


def _metadata(value: Any) -> str:
    """Return an object of scalars, or such JSON; kept as JSON."""
    if isinstance(value, str):
        value = _loaded(value)
    if not isinstance(value, dict):
        raise _refuse("must be a JSON object")
    for key, entry in value.items():
        plain = entry is None or isinstance(entry, (str, int, float, bool))
        if not plain or (isinstance(entry, float) and not math.isfinite(entry)):
            raise _refuse(f"{key} must be a string, a number, a boolean or null")
    written = json.dumps(value, ensure_ascii=False)
    written.encode()
    return written


Line = Annotated[str, AfterValidator(_line)]
Keyterm = Annotated[Line, Field(min_length=1, max_length=MAX_KEYTERM_CHARACTERS)]
Keyterms = Annotated[
    tuple[Keyterm, ...],
    BeforeValidator(_split),
    Field(max_length=MAX_KEYTERMS),
    AfterValidator(lambda terms: tuple(filter(None, map(str.strip, terms)))),
]
Speakers = Annotated[int, BeforeValidator(_no_truth), Field(ge=1, le=MAX_SPEAKERS)]


@dataclass(frozen=True, slots=True)
class Item:
    """A row of the manifest, checked. Its fields are the columns; a row may have others."""

    id: Annotated[Line, BeforeValidator(_number_as_text), Field(max_length=MAX_ID_CHARACTERS)]
    """Unique; empty for a row that has none."""
    row: int
    """In the manifest, from 1."""
    source: Annotated[Line, Field(min_length=1, max_length=4096), AfterValidator(_source)]
    """A path or a URL."""
    name: Annotated[Line, Field(max_length=MAX_FILE_NAME), AfterValidator(plain_file_name)] = ""
    """File name, for people."""
    mode: ProcessingMode = ProcessingMode.ALL
    language: Annotated[str, Field(pattern=_LANGUAGE)] | None = None
    """A tag such as en or pt-BR."""
    keyterms: Keyterms = ()
    speakers_expected: Speakers | None = None
    channels: ChannelUse = ChannelUse.AUTO
    provider: Provider | None = None
    metadata: Annotated[str, BeforeValidator(_metadata)] = "{}"
    """A JSON object, carried along as it is."""

    @property
    def folder(self) -> str:
        """Where its files lie: a name that every store takes, whatever the id is made of."""
        return hashlib.sha256(self.id.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class RowError:
    """A row of the manifest that cannot be worked on, and the column at fault."""

    id: str | None
    row: int
    source: str | None
    column: str | None
    message: str


class ManifestError(ValueError):
    """The manifest as a whole cannot be read; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Items in order, each id once, and the rows that are none."""

    items: tuple[Item, ...]
    errors: tuple[RowError, ...]


def read_manifest(
    address: str, access: BucketAccess, *, include: Sequence[str] = (), outside: str | None = None
) -> Manifest:
    """Return the manifest or prefix called ``address``.

    ``include`` are patterns as archives have them of what counts under a prefix, ``outside``
    is an address, with a slash, below which nothing counts: the output, where it lies there.
    Raises ManifestError, and ObjectStoreUnavailableError.
    """
    kind = FORMATS.get(Path(address).suffix.lower())
    try:
        if kind is None:
            rows: Iterator[Any] = _files(place_at(address, access), include, outside)
            return _checked(rows, "")
        place, name = file_at(address, access)
        if place.files.size_bytes(name) > MOST_BYTES:
            raise ManifestError(f"The manifest is larger than {MOST_BYTES} bytes.")
        with place.files.local_copy(name) as path, path.open("rb") as file:
            return _checked(_READERS[kind](file), place.address)
    except ObjectNotFoundError:
        raise ManifestError(f"There is no manifest {address}.") from None
    except PlaceError as error:
        raise ManifestError(str(error)) from None


def _files(place: Place, include: Sequence[str], outside: str | None) -> Iterator[dict[str, str]]:
    found = False
    for name in place.names():
        source, found = f"{place.address}{name}", True
        if is_chosen(name, include) and not (outside and source.startswith(outside)):
            yield {"source": source}
    if not found:
        raise ManifestError(f"There are no files below {place.address}.")


def _csv_rows(file: BinaryIO) -> Iterator[Any]:
    row_characters = number = 0

    def lines() -> Iterator[str]:
        nonlocal row_characters, number
        text = io.TextIOWrapper(file, "utf-8-sig", newline="")
        while line := text.readline(MOST_ROW_BYTES + 1):
            number += 1
            row_characters += len(line)
            if row_characters > MOST_ROW_BYTES:
                raise _row_too_long(f"line {number}")
            yield line

    reader = csv.DictReader(lines(), restkey=_SURPLUS, strict=True)
    try:
        _require_source(reader.fieldnames or ())
        row_characters = 0
        for row in reader:
            row_characters = 0
            yield {name: value or None for name, value in row.items() if name is not None}
    except UnicodeDecodeError as error:
        message = f"The manifest is not UTF-8, behind line {number}: {error.reason}."
        raise ManifestError(message) from None
    except csv.Error as error:
        raise ManifestError(f"The manifest is not CSV, line {reader.line_num}: {error}.") from None


_SURPLUS = "more fields than the header"


def _row_too_long(place: str) -> ManifestError:
    return ManifestError(f"The manifest has a row of more than {MOST_ROW_BYTES} bytes, at {place}.")


def _json_rows(file: BinaryIO) -> Iterator[Any]:
    """Yield what is no JSON comes as the line's text, which is no row."""
    number = 0
    while data := file.readline(MOST_ROW_BYTES + 1):
        number += 1
        if len(data) > MOST_ROW_BYTES:
            raise _row_too_long(f"line {number}")
        for line in data.splitlines():
            if line.strip():
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError):
                    yield line.decode(errors="replace")


def _parquet_rows(file: BinaryIO) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 1
    try:
        parquet = pq.ParquetFile(file)
        _require_source(parquet.schema_arrow.names)
        for batch in parquet.iter_batches(_ROWS_AT_ONCE):
            if batch.nbytes > _ROWS_AT_ONCE * MOST_ROW_BYTES:
                raise _row_too_long(f"row {number} or soon after")
            number += len(batch)
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        # OSError: what its Thrift, or a compression, cannot read.
        raise ManifestError(f"The manifest is not Parquet: {error}.") from None


def _require_source(columns: Sequence[str]) -> None:
    if "source" not in columns:
        raise ManifestError("The manifest has no column `source`.")


_READERS = {"csv": _csv_rows, "jsonl": _json_rows, "parquet": _parquet_rows}


def _checked(rows: Iterator[Any], base: str) -> Manifest:
    items: list[Item] = []
    errors: list[RowError] = []
    for number, row in enumerate(rows, start=1):
        if number > MOST_ROWS:
            raise ManifestError(f"There are more than {MOST_ROWS} items.")
        try:
            items.append(_item_of(row, number, base))
        except ColumnError as error:
            column, message = error.args
            known = row if isinstance(row, dict) else {}
            own, source = _text(known.get("id")), _text(known.get("source"))
            errors.append(RowError(own, number, source, column, _writable(message)))
    named, doubled = _with_own_ids(items)
    return Manifest(tuple(named), tuple(sorted([*errors, *doubled], key=lambda it: it.row)))


def _text(value: object) -> str | None:
    return _writable(value) if isinstance(value, str) else None


def _writable(text: str) -> str:
    """``text`` with halves of surrogate pairs spelt out: Parquet holds none."""
    return text.encode("utf-8", "backslashreplace").decode()


def _with_own_ids(items: Sequence[Item]) -> tuple[list[Item], list[RowError]]:
    first_rows: dict[str, int] = {}
    doubled = []
    for item in items:
        if item.id and item.id in first_rows:
            message = f"The id {item.id!r} is that of row {first_rows[item.id]} already."
            doubled.append(RowError(item.id, item.row, item.source, "id", message))
        elif item.id:
            first_rows[item.id] = item.row
    refused = {error.row for error in doubled}
    kept = [item for item in items if item.row not in refused]
    return list(_with_derived_ids(kept, set(first_rows))), doubled


def _with_derived_ids(items: Sequence[Item], taken: set[str]) -> Iterator[Item]:
    counts: Counter[str] = Counter()
    for item in items:
        if item.id:
            yield item
            continue
        digest = hashlib.sha256(encode(replace(item, id="", row=0))).hexdigest()[:16]
        stem = f"{_PLAIN.sub('_', Path(item.name).stem)[:_STEM_CHARACTERS]}-{digest}"
        while True:
            counts[stem] += 1
            own = stem if counts[stem] == 1 else f"{stem}-{counts[stem]}"
            if own not in taken:
                break
        yield replace(item, id=own)


class ColumnError(ValueError):
    """A row is no item: the column at fault, or None where the row is none at all, and why."""


def _item_of(row: Any, number: int, base: str) -> Item:
    """Return the row's item; its id is empty where the row has none. Raises ColumnError. ``base``
    is the address that relative sources count from, with a slash at its end."""
    if not isinstance(row, dict):
        raise ColumnError(None, "The row is no JSON object.")
    if row.get(_SURPLUS):
        raise ColumnError(None, "The row has more fields than the header.")
    given = {name: row[name] for name in _COLUMNS if row.get(name) not in (None, "")}
    try:
        item = _ITEM.validate_python({"id": "", **given, "row": number})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        column = str(first["loc"][0])
        raise ColumnError(column, f"{column}: {first['msg']}.") from None
    source = _resolved(item.source, base)
    if item.provider is not None and not source.startswith(("http://", "https://")):
        raise ColumnError("provider", "provider: only http(s) sources have one.")
    return replace(item, source=source, name=item.name or name_in(source))


_ITEM = TypeAdapter(Item)
_COLUMNS = [field.name for field in fields(Item) if field.name != "row"]


def _resolved(source: str, base: str) -> str:
    """Return an absolute path or a URL."""
    scheme = _SCHEME.match(source)
    if scheme is None:
        if base.startswith(S3_SCHEME) and not source.startswith("/"):
            return base + source
        return str(Path(base) / Path(source).expanduser())
    if scheme.group(1).lower() == "file":
        return unquote(urlsplit(source).path)
    return scheme.group(1).lower() + source[scheme.end(1) :]
