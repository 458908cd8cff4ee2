"""Manifests: which items there are, and which rows are none, with the column at fault.

CSV (with a header), JSON lines or Parquet, by the file's suffix; or no manifest but a folder
or bucket prefix, every file of which is an item. Rows without an ``id`` get one that follows
from all that the row holds, so that it is the same in the next run, wherever the row stands by
then; the second of two equal rows gets the number 2, and so on.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from pipelines.backfill.columns import ColumnError, item_of
from pipelines.backfill.outcome import Item, RowError
from pipelines.backfill.places import Place, PlaceError, S3Access, file_at, place_at
from pipelines.codec import encode
from pipelines.net.buckets import is_chosen
from storage.objects import ObjectNotFoundError

FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""Suffix -> how a manifest is read."""

MOST_BYTES = 256 << 20
"""Of a manifest."""
MOST_ROWS = 1_000_000
"""Of a manifest, or files below a prefix."""
MOST_ROW_BYTES = 1 << 20
_ROWS_AT_ONCE = 100
"""Of Parquet."""

_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
_STEM_CHARACTERS = 60


class ManifestError(ValueError):
    """The manifest as a whole cannot be read; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Items in order, each id once, and the rows that are none."""

    items: tuple[Item, ...]
    errors: tuple[RowError, ...]


def read_manifest(
    address: str, access: S3Access, *, include: Sequence[str] = (), outside: str | None = None
) -> Manifest:
    """The manifest or prefix called ``address``.

    ``include`` are patterns as archives have them of what counts under a prefix, ``outside``
    is an address below which nothing counts: the output, where it lies under the prefix.
    Raises ManifestError, and ObjectStoreUnavailableError.
    """
    kind = FORMATS.get(Path(address).suffix.lower())
    try:
        if kind is None:
            rows: Iterator[Any] = _files(place_at(address, access), include, outside)
            return _checked(rows, "")
        place, name = file_at(address, access)
        with _opened(place, name) as file:
            return _checked(_READERS[kind](file), place.address_of(""))
    except ObjectNotFoundError:
        raise ManifestError(f"There is no manifest {address}.") from None
    except PlaceError as error:
        raise ManifestError(str(error)) from None


def _files(place: Place, include: Sequence[str], outside: str | None) -> Iterator[dict[str, str]]:
    found = False
    for name in place.names():
        source = place.address_of(name)
        found = True
        if outside is not None and source.startswith(outside.rstrip("/") + "/"):
            continue
        if is_chosen(name, include):
            yield {"source": source}
    if not found:
        raise ManifestError(f"There are no files below {place.address_of('')}.")


@contextlib.contextmanager
def _opened(place: Place, name: str) -> Iterator[BinaryIO]:
    """The manifest as a file of this machine. Raises ManifestError where it is too large."""
    with tempfile.TemporaryFile() as file:
        place.copy_to(name, cast(BinaryIO, _Bounded(file)))
        file.seek(0)
        yield file


class _Bounded(io.RawIOBase):
    """Writes to ``file``, up to MOST_BYTES."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._file.tell() + len(data) > MOST_BYTES:
            raise ManifestError(f"The manifest is larger than {MOST_BYTES} bytes.")
        return self._file.write(data)


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
    """What is no JSON comes as the line's text, which is no row."""
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
            items.append(item_of(row, number, base, surplus=_SURPLUS))
        except ColumnError as error:
            known = row if isinstance(row, dict) else {}
            errors.append(
                RowError(
                    id=_text(known.get("id")),
                    row=number,
                    source=_text(known.get("source")),
                    column=error.column,
                    message=_writable(error.message),
                )
            )
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
