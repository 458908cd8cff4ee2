"""Writing that is hidden is covered in stills, the rest of the picture stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from models.contracts import Box, CameraMotion, Picture, ShotAngle, ShotType
from models.provider import LocalModels
from models.tasks import READ_TEXT
from pipelines.across.redaction import (
    cover_pictures,
    covered,
    hidden_places,
    no_recognizer,
    redact_scenes,
)
from pipelines.across.redaction_patterns import PersonalData
from pipelines.types import Scene, ScreenText, StillFrame
from storage.objects.folder import FolderStore
from tests.tables import every

WHOLE = Box(0.0, 0.0, 1.0, 1.0)
SHOP, MAIL = Box(0.05, 0.1, 0.4, 0.08), Box(0.05, 0.7, 0.8, 0.08)
LINES = (
    ScreenText("OPEN DAILY", 0.97, SHOP, 0, 4000),
    ScreenText("anna.weber@example.com", 0.95, MAIL, 0, 4000),
)


def scene(index: int = 0, **fields: Any) -> Scene:
    first = Scene(
        index, 4000 * index, 4000 * (index + 1), "A door.", (), ("#808080",), ShotType.WIDE,
        ShotAngle.EYE_LEVEL, CameraMotion.STATIC, 1.0, f"{index}.jpg",
        stills=(StillFrame(4000 * index + 2000, f"{index}.jpg"),),
    )  # fmt: skip
    return replace(first, **fields)


def redacted(*scenes: Scene) -> tuple[Scene, ...]:
    return redact_scenes(scenes, {PersonalData.EMAIL}, no_recognizer)


CASES = {
    "nothing is hidden": ({"on_screen_text": LINES[:1]}, ()),
    "a line that is": ({"on_screen_text": LINES}, (MAIL,)),
    "a line that rolls": ({"on_screen_text": (replace(LINES[1], rolls=True),)}, (WHOLE,)),
    "before there were times": (
        {"on_screen_text": (replace(LINES[1], start_ms=None, end_ms=None),)},
        (WHOLE,),
    ),
    "the camera moves": (
        {"on_screen_text": LINES, "camera_motion": CameraMotion.PAN_LEFT},
        (WHOLE,),
    ),
    "only described": ({"description": "It reads anna@example.com."}, (WHOLE,)),
}


@every(("fields", "boxes"), CASES.values(), ids=CASES.keys())
def test_what_is_known_to_be_writing_is_covered_else_all(
    fields: dict[str, Any], boxes: tuple[Box, ...]
) -> None:
    found = hidden_places(redacted(scene(**fields)), None)
    assert found == ({"0.jpg": {*boxes}} if boxes else {})


def test_the_overview_shows_what_the_scene_of_its_still_shows() -> None:
    own = (StillFrame(2000, "o.jpg"), StillFrame(6000, "o-2.jpg"))
    whole = scene(0, end_ms=8000, thumbnail_key="o.jpg", stills=own, on_screen_text=LINES)
    first, second, overview = redacted(scene(0), scene(1, on_screen_text=LINES), whole)
    assert hidden_places([first, second], overview) == {"1.jpg": {MAIL}, "o-2.jpg": {MAIL}}
    assert hidden_places([], overview) == {"o.jpg": {MAIL}, "o-2.jpg": {MAIL}}


def written(*texts: tuple[str, Box]) -> Picture:
    picture = np.full((360, 640, 3), 200, np.uint8)
    for text, box in texts:
        place = int(box.left * 640), int((box.top + box.height) * 360)
        cv2.putText(picture, text, place, cv2.FONT_HERSHEY_SIMPLEX, 1.0, (20, 20, 20), 2)
    return picture


def read(jpeg: bytes) -> str:
    picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    [lines] = LocalModels().get(READ_TEXT).read([np.asarray(picture, np.uint8)])
    return " ".join(line.text for line in lines)


def test_a_covered_line_cannot_be_read_any_more_and_others_can(tmp_path: Path) -> None:
    jpeg = cv2.imencode(".jpg", written((LINES[0].text, SHOP), (LINES[1].text, MAIL)))[1].tobytes()
    assert "anna.weber" in read(jpeg)
    store = FolderStore(tmp_path)
    store.write_bytes("0.jpg", jpeg)
    places = hidden_places(redacted(scene(on_screen_text=LINES)), None)
    cover_pictures(store, {**places, "gone.jpg": {WHOLE}})
    left = read(store.read_bytes("0.jpg"))
    assert "OPEN" in left
    assert "example" not in left
    assert "anna" not in left
    assert not store.exists("gone.jpg")


def test_what_is_no_picture_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        covered(b"no picture", [WHOLE])
