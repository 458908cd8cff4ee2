"""Pictures of redacted scenes, with what is hidden of their writing covered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress

import cv2
import numpy as np

from models.contracts import Box, CameraMotion
from pipelines.redaction.texts import MARK
from pipelines.types import Scene
from storage.objects import ObjectNotFoundError, ObjectStore

Places = Mapping[str, Collection[Box]]
"""Object of a picture -> what of it is to be covered."""

_WHOLE = Box(0.0, 0.0, 1.0, 1.0)
_AROUND = 0.5
"""Covered around a line, of its height: where it is read is exact to less."""
_LEAST_PX = 4
_COVER = (72, 72, 72)
_QUALITY = 85


def hidden_places(scenes: Sequence[Scene], overview: Scene | None) -> Places:
    """Where pictures of redacted scenes, and of all together, show what marks stand for.

    The whole picture where that is not known: where writing rolls or the camera moves, of results
    without times, and where only a description has a mark.
    """
    places = defaultdict[str, set[Box]](set)
    for scene in scenes:
        for key in scene.still_names(""):
            places[key] |= {*_marked(scene)}
    if overview is not None:
        own = {*_marked(overview)}
        for key in overview.still_names(""):
            times = [it.time_ms for it in overview.stills if it.key == key]
            shown = [it for it in scenes for at in times if it.start_ms <= at < it.end_ms]
            places[key] |= {box for it in shown for box in _marked(it)} if shown else own
            if MARK.search(overview.description) and not any(
                MARK.search(line.text) for line in overview.on_screen_text
            ):
                places[key].add(_WHOLE)
    return {key: boxes for key, boxes in places.items() if boxes}


def _marked(scene: Scene) -> Iterator[Box]:
    lines = [line for line in scene.on_screen_text if MARK.search(line.text)]
    if not lines and MARK.search(scene.description):
        yield _WHOLE
    for line in lines:
        is_there = line.start_ms is not None and not line.rolls
        yield line.box if is_there and scene.camera_motion is CameraMotion.STATIC else _WHOLE


def cover_pictures(store: ObjectStore, places: Places) -> None:
    """Put covered pictures in the place of these; once more changes nothing. A picture that is
    gone stays so."""
    for key, boxes in places.items():
        with suppress(ObjectNotFoundError):
            store.write_bytes(key, covered(store.read_bytes(key), boxes))


def covered(jpeg: bytes, boxes: Collection[Box]) -> bytes:
    """The picture with flat boxes. Raises ValueError where it is none."""
    picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    if picture is None:
        raise ValueError("The picture cannot be read.")
    rows, columns = picture.shape[:2]
    for box in boxes:
        around = max(_LEAST_PX, round(_AROUND * box.height * rows))
        top, left = int(box.top * rows) - around, int(box.left * columns) - around
        bottom = round((box.top + box.height) * rows) + around
        right = round((box.left + box.width) * columns) + around
        picture[max(0, top) : bottom, max(0, left) : right] = _COVER
    return cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1].tobytes()
