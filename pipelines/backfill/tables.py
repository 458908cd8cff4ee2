"""Outcomes as rows of Parquet tables, and back. Pure but for pyarrow.

``items``: a row an item, with how its stages ended and its tracks; ``scenes``, ``segments`` and
``words`` join to it by ``item_id``; ``errors``: a row a failed stage, or a bad row of the manifest.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from models.contracts import Box, CameraMotion, ShotAngle, ShotType, TextLine
from pipelines.backfill.outcome import (
    Item,
    ItemOutcome,
    Mode,
    RowError,
    Stage,
    StageOutcome,
    Status,
    TrackOutcome,
)
from pipelines.types import (
    ObjectTrack,
    PipelineWarning,
    Scene,
    Speaker,
    TranscriptSegment,
    TranscriptWord,
)

Values = dict[str, Any]
Rows = dict[str, list[Values]]
"""Table name -> its rows."""

_TEXT, _MS, _COUNT = pa.string(), pa.int64(), pa.int32()
_TEXTS = pa.list_(_TEXT)
_STAGE = pa.struct([(name, _TEXT) for name in ("stage", "status", "reason", "code", "message")])
_SPEAKER = pa.struct([("id", _TEXT), ("label", _TEXT), ("speaking_seconds", pa.float64())])
_TRACK = pa.struct(
    [
        ("index", _COUNT),
        ("name", _TEXT),
        ("language", _TEXT),
        ("code", _TEXT),
        ("speakers", pa.list_(_SPEAKER)),
    ]
)
_OBJECT_TRACK = pa.struct(
    [("label", _TEXT), ("start_ms", _MS), ("end_ms", _MS), ("confidence", pa.float64())]
)
_WARNING = pa.struct([("code", _TEXT), ("message", _TEXT)])
_BOX = pa.struct([(edge, pa.float64()) for edge in ("left", "top", "width", "height")])
_TEXT_LINE = pa.struct([("text", _TEXT), ("confidence", pa.float64()), ("box", _BOX)])

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
            ("stages", pa.list_(_STAGE)),
            ("tracks", pa.list_(_TRACK)),
            ("warnings", pa.list_(_WARNING)),
            ("scene_count", _COUNT),
            ("segment_count", _COUNT),
            ("word_count", _COUNT),
            ("seconds", pa.float64()),
        ]
    ),
    "scenes": pa.schema(
        [
            ("item_id", _TEXT),
            ("index", _COUNT),
            ("start_ms", _MS),
            ("end_ms", _MS),
            ("description", _TEXT),
            ("objects", _TEXTS),
            ("color_palette", _TEXTS),
            ("shot_type", _TEXT),
            ("shot_angle", _TEXT),
            ("camera_motion", _TEXT),
            ("confidence", pa.float64()),
            ("still", _TEXT),
            ("object_tracks", pa.list_(_OBJECT_TRACK)),
            ("on_screen_text", pa.list_(_TEXT_LINE)),
        ]
    ),
    "segments": pa.schema(
        [
            ("item_id", _TEXT),
            ("track", _COUNT),
            ("index", _COUNT),
            ("start_ms", _MS),
            ("end_ms", _MS),
            ("text", _TEXT),
            ("speaker", _TEXT),
            ("confidence", pa.float64()),
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
"""Table name -> columns. A part of ``items`` is written last: it says what counts."""


def parquet_of(table: str, rows: Sequence[Values]) -> bytes:
    """The rows as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, SCHEMAS[table]), sink, compression="zstd")
    return sink.getvalue()


def rows_of_parquet(data: bytes) -> list[Values]:
    """The rows of a Parquet file."""
    rows: list[Values] = pq.read_table(pa.BufferReader(data)).to_pylist()
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
            for segment in track.segments:
                rows["segments"].append(own | _plain(segment, "words"))
                rows["words"] += [
                    own | {"segment": segment.index, "index": index} | asdict(word)
                    for index, word in enumerate(segment.words)
                ]
    return rows


def _plain(value: Any, *but: str) -> Values:
    return {name: item for name, item in asdict(value).items() if name not in but}


def _item_row(outcome: ItemOutcome) -> Values:
    item, segments = outcome.item, [it for track in outcome.tracks for it in track.segments]
    return {
        "item_id": item.id,
        "row": item.row,
        "source": item.source,
        "name": item.name,
        "mode": str(item.mode),
        "asked_language": item.language,
        "keyterms": list(item.keyterms),
        "speakers_expected": item.speakers_expected,
        "provider": item.provider,
        "metadata": item.metadata,
        "status": str(outcome.status),
        "duration_ms": outcome.duration_ms,
        "width": outcome.width,
        "height": outcome.height,
        "stages": [asdict(stage) for stage in outcome.stages],
        "tracks": [_plain(track, "segments") for track in outcome.tracks],
        "warnings": [asdict(warning) for warning in outcome.warnings],
        "scene_count": len(outcome.scenes),
        "segment_count": len(segments),
        "word_count": sum(len(segment.words) for segment in segments),
        "seconds": outcome.seconds,
    }


def _scene_row(scene: Scene) -> Values:
    return _plain(scene, "thumbnail_key") | {"still": scene.thumbnail_key}


def _error_row(item: Item, failure: StageOutcome) -> Values:
    return {
        "item_id": item.id,
        "row": item.row,
        "source": item.source,
        "stage": str(failure.stage),
        "code": failure.code,
        "column": None,
        "message": failure.message,
    }


def row_error_values(error: RowError) -> Values:
    """A bad row of the manifest as a row of ``errors``."""
    return {
        "item_id": error.id,
        "row": error.row,
        "source": error.source,
        "stage": str(Stage.MANIFEST),
        "code": "BAD_ROW",
        "column": error.column,
        "message": error.message,
    }


def outcomes_of(rows: Rows) -> Iterator[ItemOutcome]:
    """The outcomes that ``rows_of`` was given."""
    scenes = _by(rows["scenes"], "item_id")
    segments = _by(rows["segments"], "item_id", "track")
    words = _by(rows["words"], "item_id", "track", "segment")
    for row in rows["items"]:
        own = row["item_id"]
        yield ItemOutcome(
            item=_item(row),
            stages=tuple(map(_stage, row["stages"])),
            duration_ms=row["duration_ms"],
            width=row["width"],
            height=row["height"],
            scenes=tuple(map(_scene, scenes[own,])),
            tracks=tuple(
                _track(
                    track,
                    [
                        _segment(it, words[own, track["index"], it["index"]])
                        for it in segments[own, track["index"]]
                    ],
                )
                for track in row["tracks"]
            ),
            warnings=tuple(PipelineWarning(**warning) for warning in row["warnings"]),
            seconds=row["seconds"],
        )


def _by(rows: Iterable[Values], *columns: str) -> defaultdict[tuple[Any, ...], list[Values]]:
    """Rows by the values of some columns, which are taken out of them; in order."""
    found: defaultdict[tuple[Any, ...], list[Values]] = defaultdict(list)
    for row in sorted(rows, key=lambda it: it["index"]):
        rest = {name: value for name, value in row.items() if name not in columns}
        found[tuple(row[name] for name in columns)].append(rest)
    return found


def _item(row: Values) -> Item:
    return Item(
        id=row["item_id"],
        row=row["row"],
        source=row["source"],
        name=row["name"],
        mode=Mode(row["mode"]),
        language=row["asked_language"],
        keyterms=tuple(row["keyterms"]),
        speakers_expected=row["speakers_expected"],
        provider=row["provider"],
        metadata=row["metadata"],
    )


def _stage(values: Values) -> StageOutcome:
    enums = {"stage": Stage(values["stage"]), "status": Status(values["status"])}
    return StageOutcome(**(values | enums))


def _scene(row: Values) -> Scene:
    still = row.pop("still")
    lines = row.pop("on_screen_text", None) or ()  # absent from earlier versions' tables
    return Scene(
        **row
        | {
            "objects": tuple(row["objects"]),
            "color_palette": tuple(row["color_palette"]),
            "shot_type": ShotType(row["shot_type"]),
            "shot_angle": ShotAngle(row["shot_angle"]),
            "camera_motion": CameraMotion(row["camera_motion"]),
            "thumbnail_key": still,
            # Parts that were written before there was a detector of objects lack the column.
            "object_tracks": tuple(ObjectTrack(**it) for it in row.get("object_tracks") or ()),
            "on_screen_text": tuple(
                TextLine(line["text"], line["confidence"], Box(**line["box"])) for line in lines
            ),
        }
    )


def _segment(row: Values, words: Iterable[Values]) -> TranscriptSegment:
    spoken = tuple(
        TranscriptWord(**{name: value for name, value in word.items() if name != "index"})
        for word in words
    )
    return TranscriptSegment(**row, words=spoken)


def _track(values: Values, segments: Iterable[TranscriptSegment]) -> TrackOutcome:
    speakers = tuple(Speaker(**speaker) for speaker in values["speakers"])
    return TrackOutcome(**(values | {"speakers": speakers, "segments": tuple(segments)}))
