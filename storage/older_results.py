"""Results as version 0.1 stored them, in the API's form, turned into what is stored today.

Times were seconds, names in camel case. Every reader of a stored result calls these first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

_OLDER = '"startTime":'
"""In texts the quotation marks are escaped: only a field's name looks so."""


def transcript_of_today(document: str) -> str:
    """A stored transcript, as ``pipelines.codec`` writes a TranscriptResult."""
    # A field of a TranscriptResult; there was none. PostgreSQL may have put others before it.
    if '"language"' in document and _OLDER not in document:
        return document
    older = from_json(document)
    speakers = [
        {"id": each["id"], "label": each["label"], "speaking_seconds": each["speakingSeconds"]}
        for each in older["speakers"]
    ]
    segments = [_segment(each) for each in older["segments"]]
    return json.dumps({"language": None, "speakers": speakers, "segments": segments})


def segments_of_today(segments: str) -> str:
    """Segments of a stored transcript."""
    if _OLDER not in segments:
        return segments
    return json.dumps([_segment(each) for each in from_json(segments)])


def sentences_of_today(sentences: str) -> str:
    """A stored summary."""
    if _OLDER not in sentences:
        return sentences
    return json.dumps([_timed(each) for each in from_json(sentences)])


def _segment(older: Mapping[str, Any]) -> dict[str, Any]:
    return _timed(older) | {"words": [_timed(word) for word in older["words"]]}


def _timed(older: Mapping[str, Any]) -> dict[str, Any]:
    times = {
        "start_ms": round(older["startTime"] * 1000),
        "end_ms": round(older["endTime"] * 1000),
    }
    rest = {name: value for name, value in older.items() if name not in {"startTime", "endTime"}}
    return times | rest
