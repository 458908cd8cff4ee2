"""Fitting text into pixels with the font that Pillow brings along."""

from __future__ import annotations

import functools
import unicodedata

from PIL import ImageFont

Font = ImageFont.FreeTypeFont

_SPELLED = {"–": "-", "—": "-", "−": "-", "×": "x", "ß": "ss", "æ": "ae", "ø": "o", "ł": "l"}


@functools.cache
def font(size: int) -> Font:
    """Pillow's bundled font, ``size`` pixels high; raises RuntimeError without FreeType."""
    match ImageFont.load_default(size):
        case ImageFont.FreeTypeFont() as typeface:
            return typeface
        case _:
            raise RuntimeError("this build of Pillow has no FreeType")


def plain(text: str) -> str:
    """Text in the letters that the bundled font has: it knows hardly more than ASCII."""
    spelled = "".join(_SPELLED.get(letter, letter) for letter in text)
    apart = unicodedata.normalize("NFKD", spelled.replace("…", "\0"))
    return "".join(c for c in apart if not unicodedata.combining(c)).replace("\0", "…")


def shortened(text: str, typeface: Font, width: float) -> str:
    """The text, cut short with an ellipsis where it is wider than ``width`` pixels."""
    text = plain(text)
    if typeface.getlength(text) <= width:
        return text
    fitting = _longest_fit(text, typeface, width - typeface.getlength("…"))
    return text[:fitting].rstrip(" ,.;:") + "…"


def _longest_fit(text: str, typeface: Font, width: float) -> int:
    """How many letters fit, by bisection: descriptions may be long."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if typeface.getlength(text[:middle]) <= width:
            low = middle
        else:
            high = middle - 1
    return low


def wrapped(text: str, typeface: Font, width: float, max_lines: int) -> list[str]:
    """The text in at most ``max_lines`` lines, broken between words; the rest is cut off."""
    lines: list[str] = []
    words = plain(text).split()
    while words and len(lines) < max_lines - 1:
        taken = _words_that_fit(words, typeface, width)
        lines.append(shortened(" ".join(words[:taken]), typeface, width))
        words = words[taken:]
    if words:
        lines.append(shortened(" ".join(words), typeface, width))
    return lines


def _words_that_fit(words: list[str], typeface: Font, width: float) -> int:
    """How many words the line holds; at least one, however long."""
    count = 1
    while count < len(words) and typeface.getlength(" ".join(words[: count + 1])) <= width:
        count += 1
    return count
