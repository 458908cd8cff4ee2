"""The output of a backfill: parts of Parquet tables, each of which counts as a whole or not at all.

    <out>/_backfill.json                         what this output was begun with
    <out>/<table>/part=000017/data.parquet       one part of items, scenes, segments, words, errors
    <out>/errors/part=000000/data.parquet        bad rows of the manifest, written anew by every run
    <out>/stills/<folder of the item>/00003.jpg  a still a scene
    <out>/_work/                                 what is there of unfinished items; goes at the end

A part's ``items`` file is written last, and atomically: what it does not list does not count.
Files of a part without one are what a killed run left; the next run removes them.

``items`` has a row an item, with how its stages ended and its tracks; ``scenes``, ``segments`` and
``words`` join to it by ``item_id``; ``errors`` has a row a failed stage, or a bad row of the
manifest.
"""

from __future__ import annotations

import io
import json
import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import types
from pipelines.backfill.manifest import Item, RowError
from pipelines.codec import from_json
from pipelines.collection import Place
from storage.objects import ObjectNotFoundError
from storage.types import StageStatus

TableRow = dict[str, Any]
"""As pyarrow takes it: a value a column."""
Rows = dict[str, list[TableRow]]
"""Table name -> its rows."""

_TEXT, _MS, _COUNT = pa.string(), pa.int64(), pa.int32()
_OF_ITEM = {"id": "item_id", "language": "asked_language"}
"""Fields of an item -> their columns, where these are called otherwise."""


def _columns(cls: type) -> list[tuple[str, pa.DataType]]:
    """Return a column a field of a dataclass, so that a new field needs no line here."""
    return [(name, _arrow_type(hint, name)) for name, hint in get_type_hints(cls).items()]


def _arrow_type(hint: Any, name: str) -> pa.DataType:
    if get_origin(hint) in (UnionType, Union):  # a value or None, which every column may hold
        return _arrow_type(get_args(hint)[0], name)
    if get_origin(hint) is tuple:
        return pa.list_(_arrow_type(get_args(hint)[0], name))
    if isinstance(hint, type) and is_dataclass(hint):
        return pa.struct(_columns(hint))
    if hint is int:
        return _MS if name.endswith("_ms") or name == "row" else _COUNT
    return {float: pa.float64(), bool: pa.bool_()}.get(hint, _TEXT)


_TRACK = pa.struct(
    [
        ("index", _COUNT),
        ("name", _TEXT),
        ("language", _TEXT),
        ("code", _TEXT),
        ("speakers", pa.list_(pa.struct(_columns(types.Speaker)))),
        ("turns", pa.list_(pa.struct(_columns(types.SpeakerTurn)))),
    ]
)
_SCENE = [
    ("still" if name == "thumbnail_key" else name, column) for name, column in _columns(types.Scene)
]

SCHEMAS: dict[str, pa.Schema] = {
    "items": pa.schema(
        [
            *((_OF_ITEM.get(name, name), column) for name, column in _columns(Item)),
            ("status", _TEXT),
            ("duration_ms", _MS),
            ("width", _COUNT),
            ("height", _COUNT),
            ("stages", pa.list_(pa.struct(_columns(types.StageOutcome)))),
            ("tracks", pa.list_(_TRACK)),
            ("warnings", pa.list_(pa.struct(_columns(types.PipelineWarning)))),
            ("overview", pa.struct(_SCENE)),
            ("scene_count", _COUNT),
            ("segment_count", _COUNT),
            ("word_count", _COUNT),
            ("seconds", pa.float64()),
        ]
    ),
    "scenes": pa.schema([("item_id", _TEXT), *_SCENE]),
    "segments": pa.schema(
        [
            ("item_id", _TEXT),
            ("track", _COUNT),
            *(each for each in _columns(types.TranscriptSegment) if each[0] != "words"),
        ]
    ),
    "words": pa.schema(
        [
            ("item_id", _TEXT),
            ("track", _COUNT),
            ("segment", _COUNT),
            ("index", _COUNT),
            ("start_ms", _MS),
            ("end_ms", _MS),
            ("text", _TEXT),
            ("speaker", _TEXT),
            ("confidence", pa.float64()),
        ]
    ),
    "errors": pa.schema(
        [
            ("item_id", _TEXT),
            ("row", _MS),
            ("source", _TEXT),
            ("stage", _TEXT),
            ("code", _TEXT),
            ("column", _TEXT),
            ("message", _TEXT),
        ]
    ),
}
"""Table name -> columns. A part of ``items`` is written last: it decides what counts."""

_SHARED_COLUMNS = ("stages", "duration_ms", "width", "height", "warnings", "seconds")
"""Columns of ``items`` that are an outcome's fields as they are."""

RECORD_NAME = "_backfill.json"
FORMAT = 1
"""Raised when outputs of another version cannot be gone on with."""

_MANIFEST_PART = 0
_ITEMS = "items"
_DETAILS = tuple(name for name in SCHEMAS if name != _ITEMS)
_PART_NAME = re.compile(r"[a-z]+/part=(\d{6,})/data\.parquet")
_REWRITING = "_rewriting"


class OutputError(ValueError):
    """An output cannot be continued; the message has the reason."""


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """All that came of an item. Scenes' ``thumbnail_key`` is a name in the output's place."""

    item: Item
    stages: tuple[types.StageOutcome, ...]
    duration_ms: int | None = None
    width: int | None = None
    height: int | None = None
    scenes: tuple[types.Scene, ...] = ()
    overview: types.Scene | None = None
    """None where vision did not complete."""
    tracks: tuple[types.TrackOutcome, ...] = ()
    warnings: tuple[types.PipelineWarning, ...] = ()
    seconds: float = 0.0
    """Wall time that it took."""

    @property
    def failures(self) -> tuple[types.StageOutcome, ...]:
        """Stages that failed."""
        return tuple(it for it in self.stages if it.status is StageStatus.FAILED)

    @property
    def status(self) -> StageStatus:
        """FAILED if any stage did."""
        return StageStatus.FAILED if self.failures else StageStatus.COMPLETED


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
        """Return ids of the items that count, and how they ended."""
        return {
            row["item_id"]: StageStatus(row["status"])
            for part in sorted(self.parts)
            for row in self._rows(_ITEMS, part)
        }

    def outcomes(self) -> Iterator[list[ItemOutcome]]:
        """Yield all that counts, a part at a time."""
        for part in sorted(self.parts):
            yield list(outcomes_of({name: self._rows(name, part) for name in SCHEMAS}))

    def commit(self, outcomes: Sequence[ItemOutcome]) -> int:
        """Make the outcomes count, as the next part. Raises OutputError."""
        part = max(self.parts, default=_MANIFEST_PART) + 1
        rows, files = rows_of(outcomes), self.place.files
        if set(_parts_of(self.place, _ITEMS)) != self.parts:
            raise OutputError(f"Another backfill is writing to {self.place.address}.")
        tables = [*(table for table in _DETAILS if rows[table]), _ITEMS]
        for at, table in enumerate(tables):
            name, data = _file(table, part), parquet_of(table, rows[table])
            # Where the answer to a first attempt was lost, it is there as it is here.
            if not files.create(name, data) and files.read_bytes(name) != data:
                for own in tables[:at]:
                    files.delete(_file(own, part))
                raise OutputError(f"Another backfill is writing to {self.place.address}.")
        self.parts.add(part)
        return part

    def write_row_errors(self, errors: Sequence[RowError]) -> None:
        """Record which rows of the manifest are bad, in place of the record before."""
        name = _file(_DETAILS[-1], _MANIFEST_PART)
        if errors:
            bad = {"stage": "manifest", "code": "BAD_ROW"}
            rows = [{"item_id": each.id, **asdict(each), **bad} for each in errors]
            self.place.files.write_bytes(name, parquet_of(_DETAILS[-1], rows))
        else:
            self.place.files.delete(name)

    def forget_failures(self) -> int:
        """Make items that failed count no longer, so that they are done again; how many."""
        count = 0
        for part in sorted(self.parts):
            rows = self._rows(_ITEMS, part)
            kept = [row for row in rows if row["status"] != StageStatus.FAILED]
            if len(kept) == len(rows):
                continue
            count += len(rows) - len(kept)
            self.place.files.write_bytes(f"{_REWRITING}/{part:06d}", b"")
            self.place.files.write_bytes(_file(_ITEMS, part), parquet_of(_ITEMS, kept))
            self._finish_rewriting(part)
        return count

    def recover(self) -> None:
        """Remove what a killed run left, and finish what it was rewriting."""
        for table in _DETAILS:
            for part in _parts_of(self.place, table):
                if part not in self.parts and part != _MANIFEST_PART:
                    self.place.files.delete(_file(table, part))
        for name in [*self.place.names(_REWRITING)]:
            self._finish_rewriting(int(name.rsplit("/", 1)[-1]))

    def _finish_rewriting(self, part: int) -> None:
        """Take out of the other tables what the part's items no longer list."""
        listed = {row["item_id"] for row in self._rows(_ITEMS, part)}
        for table in _DETAILS:
            rows = self._rows(table, part)
            kept = [row for row in rows if row["item_id"] in listed]
            if kept:
                self.place.files.write_bytes(_file(table, part), parquet_of(table, kept))
            else:
                self.place.files.delete(_file(table, part))
        self.place.files.delete(f"{_REWRITING}/{part:06d}")

    def _rows(self, table: str, part: int) -> list[TableRow]:
        """Of one file; a table without rows in a part has none."""
        try:
            return rows_of_parquet(self.place.files.read_bytes(_file(table, part)))
        except ObjectNotFoundError:
            return []


def _file(table: str, part: int) -> str:
    return f"{table}/part={part:06d}/data.parquet"


def _parts_of(place: Place, table: str) -> Iterable[int]:
    found = (_PART_NAME.fullmatch(name) for name in place.names(table))
    return [int(match.group(1)) for match in found if match]


def open_output(place: Place) -> Output:
    """Return the output that was begun at ``place``. Raises OutputError where there is none."""
    found = _find_output(place)
    if found is None:
        raise OutputError(f"There is no backfill at {place.address}.")
    return found


def begin_output(place: Place, settings: TableRow) -> Output:
    """The output at ``place``, begun unless it was. Raises OutputError.

    An output is of one kind: with other ``settings`` than it was begun with it is refused.
    """
    found = _find_output(place)
    if found is None:
        record = {"format": FORMAT, "id": str(uuid.uuid4()), "settings": settings}
        place.files.write_bytes(RECORD_NAME, json.dumps(record, indent=2).encode())
        return open_output(place)
    for name, value in settings.items():
        before = found.settings.get(name)
        if before != value:
            message = f"{place.address} was begun with {name} {before!r}, not {value!r}."
            raise OutputError(message)
    return found


def _find_output(place: Place) -> Output | None:
    try:
        record = json.loads(place.files.read_bytes(RECORD_NAME))
    except ObjectNotFoundError:
        return None
    if record["format"] != FORMAT:
        raise OutputError(f"{place.address} was written by another version of this program.")
    parts = set(_parts_of(place, _ITEMS))
    return Output(place, uuid.UUID(record["id"]), record["settings"], parts)


def parquet_of(table: str, rows: Sequence[TableRow]) -> bytes:
    """Return the rows as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, SCHEMAS[table]), sink, compression="zstd")
    return sink.getvalue()


def rows_of_parquet(data: bytes) -> list[TableRow]:
    """Return the rows of a Parquet file."""
    rows: list[TableRow] = pq.read_table(pa.BufferReader(data)).to_pylist()
    return rows


def rows_of(outcomes: Iterable[ItemOutcome]) -> Rows:
    """Return all tables' rows."""
    rows: Rows = {name: [] for name in SCHEMAS}
    for outcome in outcomes:
        item_id = {"item_id": outcome.item.id}
        rows["items"].append(_item_row(outcome))
        rows["scenes"] += [item_id | _scene_row(scene) for scene in outcome.scenes]
        for failure in outcome.failures:
            of_item = {"row": outcome.item.row, "source": outcome.item.source, "column": None}
            why = {"stage": failure.stage, "code": failure.code, "message": failure.message}
            rows["errors"].append(item_id | of_item | why)
        for track in outcome.tracks:
            own = item_id | {"track": track.index}
            for segment in _segments(track):
                values = asdict(segment)
                words = values.pop("words")
                rows["segments"].append(own | values)
                rows["words"] += [
                    own | {"segment": segment.index, "index": index} | word
                    for index, word in enumerate(words)
                ]
    return rows


def _segments(track: types.TrackOutcome) -> tuple[types.TranscriptSegment, ...]:
    return () if track.transcript is None else track.transcript.segments


def _item_row(outcome: ItemOutcome) -> TableRow:
    item = {_OF_ITEM.get(name, name): value for name, value in asdict(outcome.item).items()}
    segments = [segment for track in outcome.tracks for segment in _segments(track)]
    return {
        **item,
        "status": outcome.status,
        "duration_ms": outcome.duration_ms,
        "width": outcome.width,
        "height": outcome.height,
        "stages": [asdict(stage) for stage in outcome.stages],
        "tracks": [_track_values(track) for track in outcome.tracks],
        "warnings": [asdict(warning) for warning in outcome.warnings],
        "overview": None if outcome.overview is None else _scene_row(outcome.overview),
        "scene_count": len(outcome.scenes),
        "segment_count": len(segments),
        "word_count": sum(len(segment.words) for segment in segments),
        "seconds": outcome.seconds,
    }


def _track_values(track: types.TrackOutcome) -> TableRow:
    found = track.transcript
    return {
        "index": track.index,
        "name": track.name,
        "language": None if found is None else found.language,
        "code": track.code,
        "speakers": [] if found is None else [asdict(speaker) for speaker in found.speakers],
        "turns": [] if found is None else [asdict(turn) for turn in found.turns],
    }


def _scene_row(scene: types.Scene) -> TableRow:
    """Return a scene's fields as they are, but for the key of its still: a name in the output."""
    values = asdict(scene)
    return {"still": values.pop("thumbnail_key"), **values}


def outcomes_of(rows: Rows) -> Iterator[ItemOutcome]:
    """Yield the outcomes that ``rows_of`` was given. Raises CodecError for tables of another
    kind."""
    scenes = _by(rows["scenes"], "item_id")
    segments = _by(rows["segments"], "item_id", "track")
    words = _by(rows["words"], "item_id", "track", "segment")
    for row in rows["items"]:
        own = row["item_id"]
        spoken = {
            track["index"]: [
                segment
                | {
                    "words": [
                        {name: value for name, value in word.items() if name != "index"}
                        | {"language": segment.get("language")}
                        for word in words[own, track["index"], segment["index"]]
                    ]
                }
                for segment in segments[own, track["index"]]
            ]
            for track in row["tracks"]
        }
        item = {it.name: row[it.name] for it in fields(Item) if row.get(it.name) is not None}
        yield from_json(
            ItemOutcome,
            {
                "item": item | {"id": row["item_id"], "language": row["asked_language"]},
                "scenes": [_scene(scene) for scene in scenes[own,]],
                "overview": _scene(row["overview"]) if row.get("overview") else None,
                "tracks": [_track(track, spoken[track["index"]]) for track in row["tracks"]],
                **{name: row[name] for name in _SHARED_COLUMNS},
            },
        )


def _by(rows: Iterable[TableRow], *columns: str) -> defaultdict[tuple[Any, ...], list[TableRow]]:
    """Return rows by the values of some columns, which are taken out of them; in order."""
    found: defaultdict[tuple[Any, ...], list[TableRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda it: it["index"]):
        rest = {name: value for name, value in row.items() if name not in columns}
        found[tuple(row[name] for name in columns)].append(rest)
    return found


def _scene(row: TableRow) -> TableRow:
    """Return columns that an earlier version's table lacks, or has no values in, take their
    defaults."""
    present = {name: value for name, value in row.items() if value is not None}
    return {"thumbnail_key": present.pop("still"), **present}


def _track(row: TableRow, segments: list[TableRow]) -> TableRow:
    found = None
    if row["code"] is None:
        found = {name: row[name] for name in ("language", "speakers")} | {"segments": segments}
        found["turns"] = row.get("turns") or []  # an earlier version's table has none
    return {name: row[name] for name in ("index", "name", "code")} | {"transcript": found}
