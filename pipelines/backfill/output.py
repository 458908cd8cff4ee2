"""The output of a backfill: parts of Parquet tables, each of which counts as a whole or not at all.

    <out>/_backfill.json                         what this output was begun with
    <out>/<table>/part=000017/data.parquet       one part of items, scenes, segments, words, errors
    <out>/errors/part=000000/data.parquet        bad rows of the manifest, written anew by every run
    <out>/stills/<folder of the item>/00003.jpg  a still a scene
    <out>/_work/                                 what is there of unfinished items; goes at the end

A part's ``items`` file is written last, and atomically: what it does not list does not count.
Files of a part without one are what a killed run left; the next run removes them.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pipelines.backfill.outcome import ItemOutcome, RowError
from pipelines.backfill.places import OutputError, Place
from pipelines.backfill.tables import (
    SCHEMAS,
    TableRow,
    outcomes_of,
    parquet_of,
    row_error_values,
    rows_of,
    rows_of_parquet,
)
from storage.objects import ObjectNotFoundError
from storage.types import StageStatus

RECORD_NAME = "_backfill.json"
FORMAT = 1
"""Raised when outputs of another version cannot be gone on with."""

_MANIFEST_PART = 0
_ITEMS = "items"
_DETAILS = tuple(name for name in SCHEMAS if name != _ITEMS)
_PART_NAME = re.compile(r"[a-z]+/part=(\d{6,})/data\.parquet")
_REWRITING = "_rewriting"


@dataclass(slots=True)
class Output:
    """An output that one process writes to."""

    place: Place
    id: uuid.UUID
    """Its own, made when it was begun."""
    settings: TableRow
    """What its results depend on; the same for all of them."""
    parts: set[int] = field(default_factory=set)

    def finished(self) -> dict[str, StageStatus]:
        """Ids of the items that count, and how they ended."""
        return {
            row["item_id"]: StageStatus(row["status"])
            for part in sorted(self.parts)
            for row in self._rows(_ITEMS, part)
        }

    def outcomes(self) -> Iterator[list[ItemOutcome]]:
        """All that counts, a part at a time."""
        for part in sorted(self.parts):
            yield list(outcomes_of({name: self._rows(name, part) for name in SCHEMAS}))

    def commit(self, outcomes: Sequence[ItemOutcome]) -> int:
        """Make the outcomes count, as the next part. Raises OutputError."""
        if set(_parts_of(self.place, _ITEMS)) != self.parts:
            message = f"Another backfill is writing to {self.place.address_of('')}."
            raise OutputError(message)
        part = max(self.parts, default=_MANIFEST_PART) + 1
        rows = rows_of(outcomes)
        for table in (*(table for table in _DETAILS if rows[table]), _ITEMS):
            self.place.write_bytes(_file(table, part), parquet_of(table, rows[table]))
        self.parts.add(part)
        return part

    def write_row_errors(self, errors: Sequence[RowError]) -> None:
        """Record which rows of the manifest are bad, in place of the record before."""
        name = _file(_DETAILS[-1], _MANIFEST_PART)
        if errors:
            rows = [row_error_values(error) for error in errors]
            self.place.write_bytes(name, parquet_of(_DETAILS[-1], rows))
        else:
            self.place.delete(name)

    def forget_failures(self) -> int:
        """Make items that failed count no longer, so that they are done again; how many."""
        count = 0
        for part in sorted(self.parts):
            rows = self._rows(_ITEMS, part)
            kept = [row for row in rows if row["status"] != StageStatus.FAILED]
            if len(kept) == len(rows):
                continue
            count += len(rows) - len(kept)
            self.place.write_bytes(f"{_REWRITING}/{part:06d}", b"")
            self.place.write_bytes(_file(_ITEMS, part), parquet_of(_ITEMS, kept))
            self._finish_rewriting(part)
        return count

    def recover(self) -> None:
        """Remove what a killed run left, and finish what it was rewriting."""
        for table in _DETAILS:
            for part in _parts_of(self.place, table):
                if part not in self.parts and part != _MANIFEST_PART:
                    self.place.delete(_file(table, part))
        for name in [*self.place.names(_REWRITING)]:
            self._finish_rewriting(int(name.rsplit("/", 1)[-1]))

    def _finish_rewriting(self, part: int) -> None:
        """Take out of the other tables what the part's items no longer list."""
        listed = {row["item_id"] for row in self._rows(_ITEMS, part)}
        for table in _DETAILS:
            rows = self._rows(table, part)
            kept = [row for row in rows if row["item_id"] in listed]
            if kept:
                self.place.write_bytes(_file(table, part), parquet_of(table, kept))
            else:
                self.place.delete(_file(table, part))
        self.place.delete(f"{_REWRITING}/{part:06d}")

    def _rows(self, table: str, part: int) -> list[TableRow]:
        """Of one file; a table without rows in a part has none."""
        try:
            return rows_of_parquet(self.place.read_bytes(_file(table, part)))
        except ObjectNotFoundError:
            return []


def _file(table: str, part: int) -> str:
    return f"{table}/part={part:06d}/data.parquet"


def _parts_of(place: Place, table: str) -> Iterable[int]:
    found = (_PART_NAME.fullmatch(name) for name in place.names(table))
    return [int(match.group(1)) for match in found if match]


def open_output(place: Place) -> Output:
    """The output that was begun at ``place``. Raises OutputError where there is none."""
    found = _find_output(place)
    if found is None:
        raise OutputError(f"There is no backfill at {place.address_of('')}.")
    return found


def begin_output(place: Place, settings: TableRow) -> Output:
    """The output at ``place``, begun unless it was. Raises OutputError.

    An output is of one kind: with other ``settings`` than it was begun with it is refused.
    """
    found = _find_output(place)
    if found is None:
        record = {"format": FORMAT, "id": str(uuid.uuid4()), "settings": settings}
        place.write_bytes(RECORD_NAME, json.dumps(record, indent=2).encode())
        return open_output(place)
    for name, value in settings.items():
        before = found.settings.get(name)
        if before != value:
            message = f"{place.address_of('')} was begun with {name} {before!r}, not {value!r}."
            raise OutputError(message)
    return found


def _find_output(place: Place) -> Output | None:
    try:
        record = json.loads(place.read_bytes(RECORD_NAME))
    except ObjectNotFoundError:
        return None
    if record["format"] != FORMAT:
        message = f"{place.address_of('')} was written by another version of this program."
        raise OutputError(message)
    parts = set(_parts_of(place, _ITEMS))
    return Output(place, uuid.UUID(record["id"]), record["settings"], parts)
