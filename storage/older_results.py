"""Results as versions up to 0.2 stored them, in the API's form, turned into what is stored today.

Times were seconds, names in camel case. Every reader of a stored result calls these first.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

_OLDER = '"startTime":'
"""In texts the quotation marks are escaped: only a field's name looks so."""
_NAMES = {
    "colorPalette": "color_palette",
    "shotType": "shot_type",
    "shotAngle": "shot_angle",
    "cameraMotion": "camera_motion",
    "thumbnailKey": "thumbnail_key",
    "activePicture": "active_picture",
    "objectTracks": "object_tracks",
    "onScreenText": "on_screen_text",
    "speakingSeconds": "speaking_seconds",
}
_TIMES = {"startTime": "start_ms", "endTime": "end_ms", "start": "start_ms", "end": "end_ms"}


def transcript_of_today(document: str) -> str:
    """A stored transcript, as ``pipelines.codec`` writes a TranscriptResult."""
    # A field of a TranscriptResult; there was none. PostgreSQL may have put others before it.
    if '"language"' in document and _OLDER not in document:
        return document
    older = from_json(document)
    found = {"language": None} | {name: _today(older[name]) for name in ("speakers", "segments")}
    return json.dumps(found)


def of_today(results: str) -> str:
    """Stored scenes, segments or sentences of a summary, a list or one."""
    return json.dumps(_today(from_json(results))) if _OLDER in results else results


def _today(older: Any) -> Any:
    if isinstance(older, list):
        return [_today(each) for each in older]
    if not isinstance(older, dict):
        return older
    return {
        _TIMES.get(name) or _NAMES.get(name, name): (
            round(value * 1000) if name in _TIMES else _today(value)
        )
        for name, value in older.items()
    }
