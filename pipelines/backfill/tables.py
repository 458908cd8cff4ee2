"""Outcomes as rows of Parquet tables, and back. Pure but for pyarrow.

``items``: a row an item, with how its stages ended and its tracks; ``scenes``, ``segments`` and
``words`` join to it by ``item_id``; ``errors``: a row a failed stage, or a bad row of the manifest.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.backfill.outcome import Item, ItemOutcome, RowError
from pipelines.codec import from_json
from pipelines.types import (
    PipelineWarning,
    Scene,
    Speaker,
    SpeakerTurn,
    StageOutcome,
    TrackOutcome,
    TranscriptSegment,
)

TableRow = dict[str, Any]
"""As pyarrow takes it: a value a column."""
Rows = dict[str, list[TableRow]]
"""Table name -> its rows."""

_TEXT, _MS, _COUNT = pa.string(), pa.int64(), pa.int32()
_TEXTS = pa.list_(_TEXT)


def _columns(cls: type) -> list[tuple[str, pa.DataType]]:
    """A column a field of a dataclass, so that a new field needs no line here."""
    return [(name, _arrow_type(hint, name)) for name, hint in get_type_hints(cls).items()]


def _arrow_type(hint: Any, name: str) -> pa.DataType:
    if isinstance(hint, UnionType):  # a value or None, which every column may hold
        return _arrow_type(get_args(hint)[0], name)
    if get_origin(hint) is tuple:
        return pa.list_(_arrow_type(get_args(hint)[0], name))
    if isinstance(hint, type) and is_dataclass(hint):
        return pa.struct(_columns(hint))
    if hint is int:
        return _MS if name.endswith("_ms") else _COUNT
    return {float: pa.float64(), bool: pa.bool_()}.get(hint, _TEXT)


_TRACK = pa.struct(
    [
        ("index", _COUNT),
        ("name", _TEXT),
        ("language", _TEXT),
        ("code", _TEXT),
        ("speakers", pa.list_(pa.struct(_columns(Speaker)))),
        ("turns", pa.list_(pa.struct(_columns(SpeakerTurn)))),
    ]
)
_SCENE = [
    ("still" if name == "thumbnail_key" else name, column) for name, column in _columns(Scene)
]

SCHEMAS: dict[str, pa.Schema] = {
    "items": pa.schema(
        [
            ("item_id", _TEXT),
            ("row", _MS),
            ("source", _TEXT),
            ("name", _TEXT),
            ("mode", _TEXT),
            ("asked_language", _TEXT),
            ("keyterms", _TEXTS),
            ("speakers_expected", _COUNT),
            ("provider", _TEXT),
            ("metadata", _TEXT),
            ("status", _TEXT),
            ("duration_ms", _MS),
            ("width", _COUNT),
            ("height", _COUNT),
            ("stages", pa.list_(pa.struct(_columns(StageOutcome)))),
            ("tracks", pa.list_(_TRACK)),
            ("warnings", pa.list_(pa.struct(_columns(PipelineWarning)))),
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
            *(each for each in _columns(TranscriptSegment) if each[0] != "words"),
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


def parquet_of(table: str, rows: Sequence[TableRow]) -> bytes:
    """The rows as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, SCHEMAS[table]), sink, compression="zstd")
    return sink.getvalue()


def rows_of_parquet(data: bytes) -> list[TableRow]:
    """The rows of a Parquet file."""
    rows: list[TableRow] = pq.read_table(pa.BufferReader(data)).to_pylist()
    return rows


def rows_of(outcomes: Iterable[ItemOutcome]) -> Rows:
    """All tables' rows."""
    rows: Rows = {name: [] for name in SCHEMAS}
    for outcome in outcomes:
        item_id = {"item_id": outcome.item.id}
        rows["items"].append(_item_row(outcome))
        rows["scenes"] += [item_id | _scene_row(scene) for scene in outcome.scenes]
        rows["errors"] += [_error_row(outcome.item, failure) for failure in outcome.failures]
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


def _segments(track: TrackOutcome) -> tuple[TranscriptSegment, ...]:
    return () if track.transcript is None else track.transcript.segments


def _item_row(outcome: ItemOutcome) -> TableRow:
    item = asdict(outcome.item)
    segments = [segment for track in outcome.tracks for segment in _segments(track)]
    return {
        "item_id": item.pop("id"),
        "asked_language": item.pop("language"),
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


def _track_values(track: TrackOutcome) -> TableRow:
    found = track.transcript
    return {
        "index": track.index,
        "name": track.name,
        "language": None if found is None else found.language,
        "code": track.code,
        "speakers": [] if found is None else [asdict(speaker) for speaker in found.speakers],
        "turns": [] if found is None else [asdict(turn) for turn in found.turns],
    }


def _scene_row(scene: Scene) -> TableRow:
    """A scene's fields as they are, but for the key of its still: a name in the output."""
    values = asdict(scene)
    return {"still": values.pop("thumbnail_key"), **values}


def _error_row(item: Item, failure: StageOutcome) -> TableRow:
    return {
        "item_id": item.id,
        "row": item.row,
        "source": item.source,
        "stage": failure.stage,
        "code": failure.code,
        "column": None,
        "message": failure.message,
    }


def row_error_values(error: RowError) -> TableRow:
    """A bad row of the manifest as a row of ``errors``."""
    return {
        "item_id": error.id,
        "row": error.row,
        "source": error.source,
        "stage": "manifest",
        "code": "BAD_ROW",
        "column": error.column,
        "message": error.message,
    }


def outcomes_of(rows: Rows) -> Iterator[ItemOutcome]:
    """The outcomes that ``rows_of`` was given. Raises CodecError for tables of another kind."""
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
        yield from_json(
            ItemOutcome,
            {
                "item": _item(row),
                "scenes": [_scene(scene) for scene in scenes[own,]],
                "overview": _scene(row["overview"]) if row.get("overview") else None,
                "tracks": [_track(track, spoken[track["index"]]) for track in row["tracks"]],
                **{name: row[name] for name in _SHARED_COLUMNS},
            },
        )


def _by(rows: Iterable[TableRow], *columns: str) -> defaultdict[tuple[Any, ...], list[TableRow]]:
    """Rows by the values of some columns, which are taken out of them; in order."""
    found: defaultdict[tuple[Any, ...], list[TableRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda it: it["index"]):
        rest = {name: value for name, value in row.items() if name not in columns}
        found[tuple(row[name] for name in columns)].append(rest)
    return found


def _item(row: TableRow) -> TableRow:
    item = {it.name: row[it.name] for it in fields(Item) if it.name in row}
    return item | {"id": row["item_id"], "language": row["asked_language"]}


def _scene(row: TableRow) -> TableRow:
    """Columns that an earlier version's table lacks, or has no values in, take their defaults."""
    present = {name: value for name, value in row.items() if value is not None}
    return {"thumbnail_key": present.pop("still"), **present}


def _track(row: TableRow, segments: list[TableRow]) -> TableRow:
    found = None
    if row["code"] is None:
        found = {name: row[name] for name in ("language", "speakers")} | {"segments": segments}
        found["turns"] = row.get("turns") or []  # an earlier version's table has none
    return {name: row[name] for name in ("index", "name", "code")} | {"transcript": found}
