"""Lettering in any script, in Noto's fonts, which packages carry."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import unicodedata
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from PIL import ImageDraw, ImageFont, features

_NOTO = "manimgx-fonts", "manimgx_fonts/NotoSans[wght].ttf"
_CJK = "manimgx-fonts-cjk", "manimgx_fonts_cjk/NotoSansCJK-VF.otf.ttc"
_JAPANESE, _KOREAN, _CHINESE = 0, 1, 2
"""Faces of the collection, in which letters of one code have other shapes."""
_REGULAR, _NO_LETTER = 400, "\uffff"
_WAYS = {"L": 1, "R": -1, "AL": -1}
Face = tuple[str, int]
"""A font's file, and its place in a collection."""


@dataclass(frozen=True, slots=True)
class Typeface:
    """Letters of one height in pixels, whatever their script."""

    size: int

    def getlength(self, text: str) -> float:
        """Return the width of the text in pixels."""
        return sum(_font(face, self.size).getlength(run) for run, face, _ in _runs(text))

    def draw(self, pen: ImageDraw.ImageDraw, at: tuple[float, float], text: str, ink: str) -> None:
        """Draw one line of text; ``at`` is its upper left corner."""
        left, baseline = at[0], at[1] + self.size
        for run, face, way in _runs(text):
            font = _font(face, self.size)
            direction = way if features.check("raqm") else None
            pen.text((left, baseline), run, ink, font, anchor="ls", direction=direction)
            left += font.getlength(run)


def _runs(text: str) -> list[tuple[str, Face, str]]:
    """Return runs of one font and direction (``ltr``, ``rtl``) in their order from left to right,
    which is that of UAX #9 within two levels."""
    text = unicodedata.normalize("NFC", text)
    ways: list[int] = []
    for each in map(unicodedata.bidirectional, text):
        # A number goes with the word before it, a mark with its letter.
        last = next((way for way in reversed(ways) if way), 0)
        ways.append(last if each in ("EN", "NSM") else _WAYS.get(each, 0))
    base = next((way for way in ways if way), 1)
    # What is neutral goes with its neighbours where they agree, else with the line.
    for place, way in enumerate(ways):
        before = ways[place - 1] if place else base
        after = next((each for each in ways[place:] if each), base)
        ways[place] = way or (after if before == after else base)
    east = _JAPANESE if any("\u3040" <= letter <= "\u30ff" for letter in text) else _CHINESE
    east = _KOREAN if any("\uac00" <= letter <= "\ud7a3" for letter in text) else east
    faces: list[Face] = []
    for letter in text:
        is_part = bool(faces) and unicodedata.category(letter)[0] in "MC"
        stays = is_part and _has(faces[-1], letter)
        faces.append(faces[-1] if stays else _face_of(letter, east))
    runs: list[tuple[str, Face, str]] = []
    for way, part in groupby(zip(text, faces, ways, strict=True), lambda each: each[2]):
        name = "rtl" if way < 0 else "ltr"
        split = groupby(part, lambda each: each[1])
        own = [("".join(each[0] for each in letters), face, name) for face, letters in split]
        own = own[::-1] if way < 0 else own
        runs = own + runs if base < 0 else runs + own
    return runs


@functools.cache
def _font(face: Face, size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.truetype(face[0], size, index=face[1])
    font.set_variation_by_axes([_REGULAR])
    return font


@functools.lru_cache(10_000)
def _has(face: Face, letter: str) -> bool:
    """Return whether the font draws the letter otherwise than what it lacks."""
    font = _font(face, 16)
    return bytes(font.getmask(letter)) != bytes(font.getmask(_NO_LETTER))


@functools.lru_cache(10_000)
def _face_of(letter: str, east: int) -> Face:
    """Return the first font that has the letter, else the one that draws its box."""
    faces = _faces(east)
    return next((face for face in faces if _has(face, letter)), None) or _boxes(faces[0])


@functools.cache
def _boxes(face: Face) -> Face:
    logging.getLogger("vas.letters").warning("No font has some letters: they are drawn as boxes.")
    return face


@functools.cache
def _faces(east: int) -> tuple[Face, ...]:
    noto, cjk = (
        Path(str(importlib.metadata.distribution(name).locate_file(path)))
        for name, path in (_NOTO, _CJK)
    )
    # Emoji come last: the font has figures too.
    others = sorted(noto.parent.glob("Noto*.ttf"), key=lambda path: ("Emoji" in path.name, path))
    more = [(str(path), 0) for path in others if path != noto and "Italic" not in path.name]
    return (str(noto), 0), (str(cjk), east), *more
