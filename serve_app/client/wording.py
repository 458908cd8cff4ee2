"""How times, shot types and text are put in words for people."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

NO_CUTS = "One shot: the video has no cuts."
NO_SPEECH = "No speech was found."


def clock(seconds: float) -> str:
    """``0:07.4``, ``12:30.0`` or ``1:02:03.5``: tenths of a second, rounded down.

    Rounding down keeps the end of a video from being shown as later than it is.
    """
    tenths = int(seconds * 10)
    minutes, rest = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    head = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
    return f"{head}:{rest // 10:02d}.{rest % 10}"


def time_range(item: Mapping[str, Any], dash: str = "–") -> str:
    """The start and end of a scene or segment."""
    return f"{clock(item['startTime'])} {dash} {clock(item['endTime'])}"


def shot_words(scene: Mapping[str, Any]) -> list[str]:
    """``["medium close-up", "low angle"]``; what is unknown is left out."""
    shot = str(scene.get("shotType") or "unknown").replace("_up", "-up").replace("_", " ")
    angle = str(scene.get("shotAngle") or "unknown")
    angles = {"eye_level": "eye level", "overhead": "overhead", "dutch": "dutch angle"}
    words = [] if shot == "unknown" else [shot]
    return words if angle == "unknown" else [*words, angles.get(angle, f"{angle} angle")]


def one_line(text: str) -> str:
    """Text from the network without control characters: they could steer a terminal."""
    kept = ("".join(ch if unicodedata.category(ch)[0] != "C" else " ") for ch in text)
    return " ".join("".join(kept).split())


def palette_of(scene: Mapping[str, Any]) -> list[str]:
    """The well-formed ``#rrggbb`` colours of a scene, at most five."""
    colors = [str(color) for color in scene.get("colorPalette") or []]
    return [color for color in colors if _is_color(color)][:5]


def _is_color(code: str) -> bool:
    return (
        len(code) == 7 and code[0] == "#" and all(c in "0123456789abcdefABCDEF" for c in code[1:])
    )
