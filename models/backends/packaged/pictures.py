"""What can be measured of a single picture without recognising anything in it."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from models.backends.packaged.palette import oklab
from models.contracts import Box, Picture

_WORK_WIDTH = 640
_LINE_ASPECT = 1.8
_LETTER_WIDTHS = (0.08, 1.6)
_FEWEST_LETTERS = 4
_STROKE_SPREAD = 0.75
_LETTER_GAPS = (11, 25)
"""Pixels bridged between letters: of running text, and of spaced-out titles."""
_LETTER_FILL = 0.72
"""Letters leave part of their box empty; windows and lamps in a row do not."""
_BAR_LEVELS = 12.0

Grey = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PictureFacts:
    """Measured of one picture. Levels are 0 to 255."""

    brightness: float
    contrast: float
    """Standard deviation of the luma levels."""
    colourfulness: float
    """Hasler and Süsstrunk, 2003: below 15 hardly any colour, above 60 vivid."""
    hue: str | None
    """Name of the hue that most of the coloured part has; None without a clear one."""
    colour_bars: bool
    colours: tuple[str, ...] = ()
    """Names of the colours of most of the picture, the commonest first; three at most."""


def grey(picture: Picture, width: int) -> Grey:
    """The picture's luma, shrunk (never enlarged) to at most ``width`` columns."""
    rows, columns = picture.shape[:2]
    luma = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    if columns > width:
        size = (width, max(1, round(rows * width / columns)))
        luma = cv2.resize(luma, size, interpolation=cv2.INTER_AREA)
    return np.asarray(luma, np.uint8)


def measure(picture: Picture) -> PictureFacts:
    """The facts of one picture."""
    small = cv2.resize(picture, (128, 72), interpolation=cv2.INTER_AREA)
    luma = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).astype(np.float64)
    return PictureFacts(
        brightness=float(luma.mean()),
        contrast=float(luma.std()),
        colourfulness=_colourfulness(small),
        hue=_hue(small),
        colour_bars=_is_colour_bars(small),
        colours=_colours(small),
    )


def _colourfulness(rgb: Picture) -> float:
    red, green, blue = (rgb[:, :, channel].astype(np.float64) for channel in range(3))
    across, along = red - green, (red + green) / 2 - blue
    spread = float(np.hypot(across.std(), along.std()))
    return spread + 0.3 * float(np.hypot(across.mean(), along.mean()))


_HUES = (
    ("red", 29.0), ("orange", 57.0), ("yellow", 105.0), ("green", 145.0),
    ("teal", 195.0), ("blue", 255.0), ("purple", 308.0), ("pink", 352.0),
)  # fmt: skip
"""Hue angles in OKLab, degrees, of colours with these plain names."""
_DARK_NAMES = {"orange": "brown", "yellow": "olive"}
"""Colours that go by another name when dark."""
_DARK_LIGHTNESS = 0.65
_COLOURED = 0.045
_LEADING_SHARE = 0.6
_COLOURED_SHARE = 0.25


_NAMED_SHARE, _MOST_NAMED = 0.15, 3
"""A colour is named from this share of the picture on."""
_BLACK, _WHITE = 0.30, 0.88
"""Lightness in OKLab up to which a grey is called black, and from which white."""


def _colours(rgb: Picture) -> tuple[str, ...]:
    """Plain names of the colours that take up most of the picture."""
    lab = oklab(rgb.reshape(-1, 3))
    lightness, strength = lab[:, 0], np.hypot(lab[:, 1], lab[:, 2])
    names = np.array([name for name, _ in _HUES])[_nearest_hues(lab)]
    for name, dark_name in _DARK_NAMES.items():
        names = np.where((names == name) & (lightness < _DARK_LIGHTNESS), dark_name, names)
    greys = np.select([lightness <= _BLACK, lightness >= _WHITE], ["black", "white"], "grey")
    is_grey = (strength <= _COLOURED) | (lightness <= _BLACK)
    found, counts = np.unique(np.where(is_grey, greys, names), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MOST_NAMED]
    return tuple(str(found[at]) for at in order if counts[at] >= _NAMED_SHARE * len(lab))


def _nearest_hues(lab: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Places in ``_HUES``."""
    angles = np.degrees(np.arctan2(lab[:, 2], lab[:, 1])) % 360
    centres = np.array([angle for _, angle in _HUES])
    gaps = np.abs((angles[:, None] - centres[None, :] + 180) % 360 - 180)
    return np.asarray(gaps.argmin(axis=1), np.int64)


def _hue(rgb: Picture) -> str | None:
    """The hue of most coloured pixels, where a fair share of them is coloured at all."""
    lab = oklab(rgb.reshape(-1, 3))
    strength = np.hypot(lab[:, 1], lab[:, 2])
    coloured = strength > _COLOURED
    if coloured.mean() < _COLOURED_SHARE:
        return None
    hues = _nearest_hues(lab[coloured])
    shares = np.bincount(hues, minlength=len(_HUES)) / len(hues)
    leading = int(shares.argmax())
    if shares[leading] < _LEADING_SHARE:
        return None
    name = _HUES[leading][0]
    dark = float(np.median(lab[coloured, 0])) < _DARK_LIGHTNESS
    return _DARK_NAMES.get(name, name) if dark else name


def _is_colour_bars(rgb: Picture) -> bool:
    """At least six upright bars of unlike, mostly strong colours across the top."""
    upper = rgb[3:20].astype(np.float64)
    if float(upper.std(axis=0).mean()) > _BAR_LEVELS / 2:
        return False
    columns = upper.mean(axis=0)
    edges = np.abs(np.diff(columns, axis=0)).max(axis=1) > _BAR_LEVELS
    runs = np.split(columns, np.flatnonzero(edges) + 1)
    bars = [run.mean(axis=0) for run in runs if len(run) >= 8]
    strong = [bar for bar in bars if bar.max() - bar.min() > 60]
    return 6 <= len(bars) <= 9 and len(strong) >= 4


def text_lines(picture: Picture) -> list[Box]:
    """Boxes of what looks like lines of writing.

    Dense edges joined sideways into bars, each kept only if it splits into
    letters: several pieces of like height and of one stroke width, in a row.
    """
    luma = grey(picture, _WORK_WIDTH)
    rows, columns = luma.shape
    boxes = []
    for left, top, width, height in _edge_bars(luma):
        tall_enough = 8 <= height <= rows * 0.35
        if (
            tall_enough
            and width >= _LINE_ASPECT * height
            and _has_letters(luma[top : top + height, left : left + width])
        ):
            boxes.append(Box(left / columns, top / rows, width / columns, height / rows))
    return boxes


def _edge_bars(luma: Grey) -> list[tuple[int, int, int, int]]:
    round_ = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (3, 3))
    edges = cv2.morphologyEx(luma, cv2.MORPH_GRADIENT, round_)
    _, strong = cv2.threshold(edges, 60, 255, cv2.THRESH_BINARY)
    bars = []
    for gap in _LETTER_GAPS:
        joined = cv2.morphologyEx(strong, cv2.MORPH_CLOSE, np.ones((1, gap), np.uint8))
        count, _, stats, _ = cv2.connectedComponentsWithStats(joined, connectivity=4)
        for left, top, width, height, area in stats[1:count]:
            if area >= 0.45 * width * height:
                bars.append((int(left), int(top), int(width), int(height)))
    return bars


def _has_letters(region: Grey) -> bool:
    _, light = cv2.threshold(region, 0, 255, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    return _letters_in(light) or _letters_in(cv2.bitwise_not(light))


def _letters_in(mask: Grey) -> bool:
    """Whether the white parts of ``mask`` are letters: enough, alike in height and stroke."""
    rows, columns = mask.shape
    count, labels, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
    thickness = cv2.distanceTransform(mask, cv2.DIST_L2, 3)
    strokes, fills, covered = [], [], 0
    low, high = (factor * rows for factor in _LETTER_WIDTHS)
    for label in range(1, count):
        left, top, width, height, area = stats[label].tolist()
        if height >= 0.4 * rows and low <= width <= high:
            place = (slice(top, top + height), slice(left, left + width))
            strokes.append(float(thickness[place][labels[place] == label].max()))
            fills.append(area / (width * height))
            covered += width
    if len(strokes) < _FEWEST_LETTERS or covered < 0.35 * columns:
        return False
    if float(np.mean(fills)) > _LETTER_FILL:
        return False
    thick = np.array(strokes)
    return bool(thick.std() <= _STROKE_SPREAD * thick.mean() and thick.mean() <= 0.3 * rows)
