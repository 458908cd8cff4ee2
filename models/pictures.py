"""What can be measured of a single picture without recognising anything in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from models.contracts import Picture

_STROKE_WIDTHS = ((640, 60.0, 0.5), (213, 80.0, 0.6))
"""Of ordinary writing and of very large letters: pixels of the picture's width in which it is
looked for, least contrast of a stroke in levels, least part of its box that a line fills. Chosen on
tuning stills of ``benchmarks/descriptions.py``: no still with writing is missed there, and
about half of those without any are read in vain."""
_STROKE_PX = 13
"""Strokes are thinner."""
_LETTER_GAPS = (11, 25)
"""Pixels bridged between letters: of running text, and of spaced-out titles."""
_LEAST_ROW = (5, 9)
"""Height and width in pixels below which joined strokes are specks."""
_LEAST_LINE_PX, _MOST_LINE = 8, 0.35
"""Height of a line: at least so many pixels, at most this part of the picture's."""
_LINE_ASPECT, _LEAST_LINE = 1.8, 0.04
"""Least width of a line: over its height, and of the picture's width."""
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
    colour_bars: bool
    colours: tuple[str, ...] = ()
    """Names of the colours of most of the picture, the commonest first; three at most."""
    accents: tuple[str, ...] = ()
    """Names of strong colours on small parts of the picture, not among ``colours``."""


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
    names, strengths = _named_pixels(small)
    colours = _frequent(names, _NAMED_SHARE)[:_MOST_NAMED]
    is_strong = strengths >= _STRONG
    strong = names[is_strong]
    accents = _frequent(strong, _ACCENT_SHARE * len(names) / max(1, len(strong)))
    if len(strong) >= _ACCENTS_SHARE * len(names):
        accents = tuple(name for name in accents if name not in colours)[:_MOST_NAMED]
    else:
        accents = ()
    luma = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).astype(np.float64)
    red, green, blue = (small[:, :, channel].astype(np.float64) for channel in range(3))
    across, along = red - green, (red + green) / 2 - blue
    spread = float(np.hypot(across.std(), along.std()))
    return PictureFacts(
        brightness=float(luma.mean()),
        contrast=float(luma.std()),
        colourfulness=spread + 0.3 * float(np.hypot(across.mean(), along.mean())),
        colour_bars=_is_colour_bars(small),
        colours=colours,
        accents=accents,
    )


_SHARPNESS_WIDTH_PX = 480
_AS_SHARP, _AS_CLEAR = 0.6, 0.6
"""Least sharpness and contrast of a picture that others of its scene do not put in the shade."""
_SHARPER = 1.1
"""Ratio from which one is sharper than another: noise makes less."""


def by_what_they_show(pictures: Sequence[Picture], seen: Sequence[int]) -> tuple[int, ...]:
    """Pictures of one scene, the one that shows most first: no blur, blend or fade that others do
    not have; most of what was ``seen`` in each; then the sharpest; then the nearest to the middle.

    Sharpness is the Laplacian's spread (Pech-Pacheco et al. 2000).
    """
    levels = [grey(picture, _SHARPNESS_WIDTH_PX) for picture in pictures]
    sharp = np.array([cv2.Laplacian(each, cv2.CV_16S, ksize=3).std() for each in levels])
    contrast = np.array([each.std() for each in levels])
    clear = (sharp >= _AS_SHARP * sharp.max()) & (contrast >= _AS_CLEAR * contrast.max())
    steps = np.round(np.log(np.maximum(sharp, 0.01)) / np.log(_SHARPER))
    middle = len(pictures) // 2

    def rank(index: int) -> tuple[float, ...]:
        return clear[index], seen[index], steps[index], -abs(index - middle)

    return tuple(sorted(range(len(pictures)), key=rank, reverse=True))


_HUES = (
    ("red", 29.0), ("orange", 57.0), ("yellow", 105.0), ("green", 145.0),
    ("teal", 195.0), ("blue", 255.0), ("purple", 308.0), ("pink", 352.0),
)  # fmt: skip
"""Hue angles in OKLab, degrees, of colours with these plain names."""
_DARK_NAMES = {"orange": "brown", "yellow": "olive"}
"""Colours that go by another name when dark."""
_DARK_LIGHTNESS = 0.65
_COLOURED = 0.045

_NAMED_SHARE, _MOST_NAMED = 0.15, 3
"""A colour is named from this share of the picture on."""
_STRONG, _ACCENTS_SHARE, _ACCENT_SHARE = 0.14, 0.03, 0.01
"""Chroma in OKLab of a strong colour (pure red has 0.26, grass 0.1), and the least shares of the
picture that have some, and one of them, for that to be an accent."""
NEUTRALS = frozenset({"black", "grey", "white"})
_BLACK, _WHITE, _PITCH_BLACK = 0.30, 0.88, 0.18
"""Lightness in OKLab up to which a grey is called black, from which white, and up to which any
colour is."""


def _named_pixels(rgb: Picture) -> tuple[npt.NDArray[np.str_], npt.NDArray[np.float64]]:
    """The plain colour name and the chroma in OKLab of each pixel."""
    lab = oklab(rgb.reshape(-1, 3))
    lightness, strength = lab[:, 0], np.hypot(lab[:, 1], lab[:, 2])
    names = np.array([name for name, _ in _HUES])[_nearest_hues(lab)]
    for name, dark_name in _DARK_NAMES.items():
        names = np.where((names == name) & (lightness < _DARK_LIGHTNESS), dark_name, names)
    greys = np.select([lightness <= _BLACK, lightness >= _WHITE], ["black", "white"], "grey")
    is_grey = (strength <= _COLOURED) | (lightness <= _PITCH_BLACK)
    return np.where(is_grey, greys, names), strength


def _frequent(names: npt.NDArray[np.str_], least_share: float) -> tuple[str, ...]:
    """The names that have at least that share, the commonest first."""
    found, counts = np.unique(names, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return tuple(str(found[at]) for at in order if counts[at] >= least_share * len(names))


def _nearest_hues(lab: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Places in ``_HUES``."""
    angles = np.degrees(np.arctan2(lab[:, 2], lab[:, 1])) % 360
    centres = np.array([angle for _, angle in _HUES])
    gaps = np.abs((angles[:, None] - centres[None, :] + 180) % 360 - 180)
    return np.asarray(gaps.argmin(axis=1), np.int64)


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


def may_show_text(picture: Picture) -> bool:
    """Whether there may be a line of writing: cheap, and rather too often than too seldom.

    Strokes, which are thin and lighter or darker than what is on both sides of them, are joined
    sideways; some long and flat shape must be left that they fill.
    """
    return any(
        bool(_stroke_lines(grey(picture, width), contrast, filled)[1])
        for width, contrast, filled in _STROKE_WIDTHS
    )


TEXT_ROWS, TEXT_COLUMNS = 90, 160
_STROKES_SHARE = 64
"""Level (of 255) of a place from which strokes fill enough of it."""


def text_strokes(luma: Grey) -> Grey:
    """Where lines of writing may be, (90, 160) over the whole picture: 1 where there are strokes.

    ``luma`` has about 640 columns. The same writing gives the same strokes, other writing others.
    """
    found = np.zeros((TEXT_ROWS, TEXT_COLUMNS), np.uint8)
    for width, contrast, filled in _STROKE_WIDTHS:
        rows, columns = luma.shape
        if columns > width:
            size = (width, max(1, round(rows * width / columns)))
            luma = np.asarray(cv2.resize(luma, size, interpolation=cv2.INTER_AREA), np.uint8)
        strokes, lines = _stroke_lines(luma, contrast, filled, step=2 if width > 320 else 1)
        if lines:
            shown = np.zeros_like(strokes)
            for left, top, across, down in lines:
                place = slice(top, top + down), slice(left, left + across)
                shown[place] = strokes[place]
            size = (TEXT_COLUMNS, TEXT_ROWS)
            small = cv2.resize(shown, size, interpolation=cv2.INTER_AREA)
            found |= np.asarray(small >= _STROKES_SHARE, np.uint8)
    return found


_BRIGHT, _DIM = 224, 64
"""Brightest level of a picture below which writing has less contrast, and from which not less yet:
noise stays."""


def _stroke_lines(
    luma: Grey, contrast: float, filled: float, step: int = 1
) -> tuple[Grey, list[tuple[int, int, int, int]]]:
    """Strokes (0 or 255), and the lines that they may be: left, top, width and height of each.
    Lines are looked for in each ``step``-th row and column: that takes most of the time."""
    rows, columns = luma.shape
    contrast *= min(_BRIGHT, max(_DIM, int(luma.max()))) / _BRIGHT
    across = np.ones((1, _STROKE_PX), np.uint8)
    light = cv2.morphologyEx(luma, cv2.MORPH_TOPHAT, across)
    dark = cv2.morphologyEx(luma, cv2.MORPH_BLACKHAT, across)
    _, strokes = cv2.threshold(cv2.max(light, dark), contrast, 255, cv2.THRESH_BINARY)
    lines: list[tuple[int, int, int, int]] = []
    for gap in _LETTER_GAPS:
        joined = cv2.morphologyEx(strokes, cv2.MORPH_CLOSE, np.ones((1, gap), np.uint8))
        joined = cv2.morphologyEx(joined, cv2.MORPH_OPEN, np.ones(_LEAST_ROW, np.uint8))
        thinned = np.ascontiguousarray(joined[::step, ::step])
        _, _, stats, _ = cv2.connectedComponentsWithStats(thinned, connectivity=4)
        stats = stats * (step, step, step, step, step * step)
        width, height, area = (
            stats[1:, column]
            for column in (cv2.CC_STAT_WIDTH, cv2.CC_STAT_HEIGHT, cv2.CC_STAT_AREA)
        )
        fits = (height >= _LEAST_LINE_PX) & (height <= _MOST_LINE * rows)
        is_flat = (width >= _LINE_ASPECT * height) & (width >= _LEAST_LINE * columns)
        lines += stats[1:, :4][fits & is_flat & (area >= filled * width * height)].tolist()
    return np.asarray(strokes, np.uint8), lines


Floats = npt.NDArray[np.float64]

MAX_COLOURS = 5
_SAMPLE_WIDTH, _SAMPLE_HEIGHT = 96, 54
_FIRST_CLUSTERS = 10
_ROUNDS = 12
_SAME_COLOUR = 0.09
"""OKLab distance under which two clusters are shades of one colour."""
_LEAST_SHARE = 0.02
_GROUND_LEVEL = 240
"""Least level of all channels of a white ground, and of what encoders make of it."""
_COLOUR_COUNTS = 10.0
"""A vivid cluster (0.2 in OKLab) takes a place before a grey one of up to thrice its share."""

_RGB_TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_LMS_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def palette(
    stills: Sequence[Picture], max_colours: int = MAX_COLOURS, *, on_white: bool = False
) -> tuple[str, ...]:
    """1 to ``max_colours`` colours as ``#rrggbb``, most of the pictures first.

    Of graphics ``on_white`` without their ground, unless there is nothing else.
    """
    # Mean colours (n, 3) of the occupied cells of a 32 x 32 x 32 cube, and their shares.
    size = (_SAMPLE_WIDTH, _SAMPLE_HEIGHT)
    # Means of lettering and what is behind it are the ground's colour in part.
    how = cv2.INTER_NEAREST if on_white else cv2.INTER_AREA
    small = [cv2.resize(still, size, interpolation=how) for still in stills]
    pixels = np.concatenate([picture.reshape(-1, 3) for picture in small]).astype(np.int64)
    drawn = pixels[pixels.min(axis=1) < _GROUND_LEVEL]
    if on_white and len(drawn):
        pixels = drawn
    cells = (pixels[:, 0] >> 3) << 10 | (pixels[:, 1] >> 3) << 5 | pixels[:, 2] >> 3
    _, cell, counts = np.unique(cells, return_inverse=True, return_counts=True)
    sums = [np.bincount(cell, weights=pixels[:, channel]) for channel in range(3)]
    colours, weights = np.stack(sums, axis=1) / counts[:, None], counts / len(pixels)
    centres, shares = _clusters(oklab(colours), weights)
    centres, shares = _merged(centres, shares)
    # Large ones and strong colours before greys.
    worth = shares * (1 + _COLOUR_COUNTS * np.hypot(centres[:, 1], centres[:, 2]))
    enough = (shares >= _LEAST_SHARE) | (shares == shares.max())
    chosen = [int(index) for index in np.argsort(-worth, kind="stable") if enough[index]]
    by_share = sorted(chosen[:max_colours], key=lambda index: -shares[index])
    return tuple(f"#{bytes(srgb(centres[index][None])[0]).hex()}" for index in by_share)


def oklab(rgb: npt.NDArray[np.uint8] | Floats) -> Floats:
    """OKLab (n, 3) of sRGB colours (n, 3), 0 to 255."""
    encoded = np.asarray(rgb, np.float64) / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    return np.asarray(np.cbrt(linear @ _RGB_TO_LMS.T) @ _LMS_TO_LAB.T)


def srgb(lab: Floats) -> npt.NDArray[np.uint8]:
    """The nearest sRGB colours (n, 3) of OKLab ones (n, 3)."""
    lms = (lab @ np.linalg.inv(_LMS_TO_LAB).T) ** 3
    linear = np.clip(lms @ np.linalg.inv(_RGB_TO_LMS).T, 0, 1)
    gamma = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.asarray(np.rint(gamma * 255), np.uint8)


def _clusters(points: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Weighted k-means from fixed starting points: (centres, shares), no empty ones."""
    # The commonest colour, then ever the one with most share times distance to those taken.
    chosen = [int(weights.argmax())]
    while len(chosen) < min(_FIRST_CLUSTERS, len(points)):
        gap = _distances(points, points[chosen]).min(axis=1)
        chosen.append(int((gap * gap * weights).argmax()))
    centres = points[chosen]
    kept: Floats = np.ones(len(centres))
    for _ in range(_ROUNDS):
        nearest = _distances(points, centres).argmin(axis=1)
        shares = np.bincount(nearest, weights=weights, minlength=len(centres))
        sums = [
            np.bincount(nearest, weights=weights * points[:, axis], minlength=len(centres))
            for axis in range(3)
        ]
        held = shares > 0
        centres = np.stack(sums, axis=1)[held] / shares[held, None]
        kept = np.asarray(shares[held], np.float64)
    return centres, kept


def _merged(centres: Floats, shares: Floats) -> tuple[Floats, Floats]:
    """Near-duplicates joined, nearest first, into their weighted mean."""
    while len(centres) > 1:
        gaps = _distances(centres, centres) + np.eye(len(centres)) * 9
        one, other = divmod(int(gaps.argmin()), len(centres))
        if gaps[one, other] >= _SAME_COLOUR:
            break
        share = shares[one] + shares[other]
        centres[one] = (centres[one] * shares[one] + centres[other] * shares[other]) / share
        shares[one] = share
        centres, shares = np.delete(centres, other, axis=0), np.delete(shares, other)
    return centres, shares


def _distances(points: Floats, centres: Floats) -> Floats:
    return np.asarray(np.linalg.norm(points[:, None, :] - centres[None, :, :], axis=2))
