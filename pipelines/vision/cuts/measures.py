"""How different two tiny pictures are, and slides and screens. Pure array functions over features.

Where only writing changes, two slides are nearly one picture. What sets such a change apart from
motion is that the places concerned do not change before it and after it, and that none of note
change beside it within a second; whatever goes on elsewhere (a speaker may be seen beside the
slides).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import cv2
import numpy as np
import numpy.typing as npt

from pipelines.vision.features import LUMA_HEIGHT, LUMA_WIDTH, Bytes, FrameFeatures

_MOST_SEEN = 32
"""Frames looked at on either side of a change."""


@dataclass(frozen=True, slots=True)
class ScreenConfig:
    """What is small, sharp and lasting. Levels of 0 to 255 at places of the 36 x 64 picture."""

    min_levels: int = 10
    still_levels: int = 4
    """Places that stand still change by no more."""
    settling: float = 1 / 3
    """Of its change, a place may still change by this share: encoders refine a new picture."""
    min_places: int = 16
    """Of 2304. A pointer covers 2, a key stroke 1 or 2, a clock in a corner up to 8."""
    max_places: int = 1_150
    """Half the picture: what changes more is a hard cut, or light."""
    rows: int = LUMA_HEIGHT * 2 // 3
    """Only changes above the lower third count: captions come and go there."""
    lasting_ms: int = 1_000
    max_beside: float = 0.5
    """Of its places, so many may change suddenly in other frames within that time."""
    max_light: float = 0.4
    """Of the change, what may be left when all places turn lighter or darker by one rule."""


def find_screen_changes(
    window: FrameFeatures, start: int, end: int, config: ScreenConfig
) -> list[tuple[int, float]]:
    """(time_ms of the new screen's first frame, confidence) among frames ``start`` to ``end``."""
    times = window.times_ms
    if start >= end or len(times) < 2:
        return []
    first_ms, last_ms = times[max(0, start - 1)] - config.lasting_ms, times[end - 1]
    low = max(0, int(np.searchsorted(times, first_ms)) - 2)
    high = min(len(times), int(np.searchsorted(times, last_ms + config.lasting_ms, "right")) + 1)
    # Of each frame but the first, how many places change in it and not in those beside it.
    luma = window.luma[low:high, : config.rows]
    rows = luma.reshape(-1, LUMA_WIDTH)
    height = luma.shape[1]
    steps = np.asarray(cv2.absdiff(rows[height:], rows[:-height])).reshape(len(luma) - 1, -1)
    sudden = steps >= config.min_levels
    sudden[1:] &= steps[:-1] <= config.still_levels
    sudden[:-1] &= steps[1:] <= np.maximum(config.still_levels, steps[:-1] * config.settling)
    counts = np.concatenate([[0], np.asarray(np.count_nonzero(sudden, axis=1))])
    found = []
    for index in (np.flatnonzero(counts >= config.min_places) + low).tolist():
        if not max(1, start) <= index < end:
            continue
        near = (
            np.searchsorted(times, times[index] - config.lasting_ms) - low,
            (np.searchsorted(times, times[index] + config.lasting_ms, "right") - low),
        )
        beside = counts[max(0, near[0]) : near[1]].sum() - counts[index - low]
        if beside > config.max_beside * counts[index - low]:
            continue
        places = _changed_places(window, index, config)
        if config.min_places <= places <= config.max_places:
            found.append((int(times[index]), min(0.94, 0.6 + places / 400)))
    return found


def _changed_places(window: FrameFeatures, index: int, config: ScreenConfig) -> int:
    """Return places that stand still up to the frame before ``index``, and otherwise from it on.

    0 where they show the same in another light, and where they showed nothing before: words that
    join others are no new screen.
    """
    before = _frames(window, index - 1, -config.lasting_ms, config.rows)
    after = _frames(window, index, config.lasting_ms, config.rows)
    change = np.abs(after[0].astype(np.int16) - before[0])
    still = np.ptp(before, axis=0) <= config.still_levels
    settled = np.ptp(after, axis=0) <= np.maximum(config.still_levels, change * config.settling)
    changed = (change >= config.min_levels) & still & settled
    old, new = before[0][changed].astype(np.float64), after[0][changed].astype(np.float64)
    if len(old) < config.min_places:
        return 0
    box = tuple(slice(each.min(), each.max() + 1) for each in np.nonzero(changed))
    for was, became in ((before[0][box], after[0][box]), (old, new)):
        if was.std() <= config.still_levels < became.std():
            return 0
    if min(old.std(), new.std()) <= config.still_levels:
        return len(old)
    slope, level = np.polyfit(old, new, 1)
    left = np.std(new - slope * old - level) / np.sqrt(np.mean((new - old) ** 2))
    return 0 if slope > 0 and left < config.max_light else len(old)


def _frames(window: FrameFeatures, index: int, within_ms: int, rows: int) -> Bytes:
    """Return frames from ``index`` on, up to ``within_ms`` away (negative: back); some of many."""
    times = window.times_ms
    edge_ms = times[index] + within_ms
    if within_ms < 0:
        last = int(np.searchsorted(times, edge_ms))
    else:
        last = int(np.searchsorted(times, edge_ms, side="right")) - 1
    chosen = np.linspace(index, last, min(_MOST_SEEN, abs(last - index) + 1)).round()
    return window.luma[chosen.astype(np.intp)][:, :rows]


Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_BLOCK_ROWS, _BLOCK_COLUMNS = 4, 8
_ROWS_A_BLOCK = LUMA_HEIGHT // _BLOCK_ROWS
_PIXELS_A_BLOCK = _ROWS_A_BLOCK * (LUMA_WIDTH // _BLOCK_COLUMNS)
_PLACED_AT_ONCE = 400
"""Pictures compared in one go: so many fit a processor's cache."""
_CHROMA_WEIGHT = 1.5
"""Chroma differences are that much smaller than luma ones between unrelated pictures."""
_CONTRAST_FLOOR = 12.0
"""Levels added to the contrast that differences are measured against; keeps noise in
flat pictures from counting as change."""
_MOVED_FROM = 3.0
"""Below this mean difference in levels, looking for motion cannot change a decision."""
_BLANK_CONTRAST, _BLACK_BELOW, _WHITE_ABOVE = 6.0, 28.0, 225.0
"""Levels; wide enough for grain, and for the black of a badly mastered file."""

_LEVELS_A_GROUP = 48
"""Pixels of nearly one level in the other picture."""
_FLAT_VARIANCE = 9.0
"""Levels squared, as of noise: keeps flat pictures from counting as explained by noise."""


class Blank(StrEnum):
    """A picture of nothing but one of the colours that films fade to."""

    BLACK = "black"
    WHITE = "white"


def blank(luma: float, spread: float) -> Blank | None:
    """Return what a picture of this brightness and contrast is, None where it shows something."""
    if spread > _BLANK_CONTRAST:
        return None
    if luma < _BLACK_BELOW:
        return Blank.BLACK
    return Blank.WHITE if luma > _WHITE_ABOVE else None


def contrast(luma: Bytes) -> Floats:
    """Standard deviation of each picture (n, rows, columns), in levels."""
    return np.array([cv2.meanStdDev(picture)[1].item() for picture in luma], np.float64)


def brightness(luma: Bytes) -> Floats:
    """Return the mean of each picture, in levels."""
    return np.array([cv2.mean(picture)[0] for picture in luma], np.float64)


def blanks(luma: Bytes) -> list[Blank | None]:
    """``blank`` of each picture."""
    shown = zip(brightness(luma), contrast(luma), strict=True)
    return [blank(float(level), float(spread)) for level, spread in shown]


def mean_difference(first: Bytes, second: Bytes) -> Floats:
    """Return the mean absolute difference of pictures (n, ...), in levels."""
    size = math.prod(first.shape[1:])
    rows = zip(first.reshape(-1, size), second.reshape(-1, size), strict=True)
    return np.array([cv2.norm(one, other, cv2.NORM_L1) for one, other in rows], np.float64) / size


def moved_difference(first: Bytes, second: Bytes, reach: tuple[int, int]) -> Floats:
    """``mean_difference`` after each of 32 blocks found its best place nearby.

    ``reach`` = (rows, columns) that a block may have moved: exhaustive block
    matching, so that pans, shake and moving objects count for little.
    """
    down, across = reach
    rows = np.arange(-down, LUMA_HEIGHT + down).clip(0, LUMA_HEIGHT - 1)
    columns = np.arange(-across, LUMA_WIDTH + across).clip(0, LUMA_WIDTH - 1)
    padded = second.take(rows, axis=1).take(columns, axis=2)
    shape = (len(second), 2 * down + 1, 2 * across + 1, LUMA_HEIGHT, LUMA_WIDTH)
    strides = (*padded.strides, *padded.strides[1:])
    places = np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)
    together = max(1, _PLACED_AT_ONCE // (places.shape[1] * places.shape[2]))
    apart = np.empty((min(together, len(first)), *places.shape[1:]), np.uint8)
    own = np.empty_like(apart)
    best = np.empty((len(first), _BLOCK_ROWS, _BLOCK_COLUMNS), np.uint16)
    for start in range(0, len(first), together):
        count = min(together, len(first) - start)
        apart[:count] = places[start : start + count]
        own[:count] = first[start : start + count, None, None]
        flat = apart[:count].reshape(-1, LUMA_WIDTH)
        cv2.absdiff(flat, own[:count].reshape(-1, LUMA_WIDTH), flat)
        sums = _block_sums(apart[:count]).reshape(count, -1, _BLOCK_ROWS, _BLOCK_COLUMNS)
        best[start : start + count] = sums.min(axis=1)
    return np.asarray(best.mean(axis=(1, 2), dtype=np.float64) / _PIXELS_A_BLOCK)


def _block_sums(difference: Bytes) -> npt.NDArray[np.uint16]:
    """Sums over blocks, (..., 36, 64) to (n, 4, 8); ``difference`` is used up. Two bytes are added
    as one word where they lie: NumPy's own sums of bytes into words convert every byte first, which
    takes three times as long."""
    pairs = difference.reshape(-1, _BLOCK_ROWS, _ROWS_A_BLOCK, LUMA_WIDTH).view(np.uint16)
    words = pairs >> 8
    np.bitwise_and(pairs, 255, out=pairs)
    words += pairs
    sums = words[:, :, 0].copy()
    for row in range(1, _ROWS_A_BLOCK):
        sums += words[:, :, row]
    while sums.shape[2] > _BLOCK_COLUMNS:
        sums = sums[:, :, ::2] + sums[:, :, 1::2]
    return np.asarray(sums)


def change(
    features: FrameFeatures, first: Indices, second: Indices, reach: tuple[int, int]
) -> Floats:
    """Return how much frames ``second`` differ from ``first`` in content, motion aside.

    0 for the same picture, about 0.2 for strong motion, about 0.5 to 1.5 for
    unrelated pictures: differences are taken relative to the contrast.
    """
    before, after = features.luma[first], features.luma[second]
    difference = mean_difference(before, after)
    moved = difference > _MOVED_FROM
    if moved.any():
        difference[moved] = moved_difference(before[moved], after[moved], reach)
    colour = mean_difference(features.chroma[first], features.chroma[second])
    scale = (contrast(before) + contrast(after)) / 2 + _CONTRAST_FLOOR
    return np.asarray((difference + _CHROMA_WEIGHT * colour) / scale)


def changes_content(luma: Bytes, reach: tuple[int, int], least: float) -> bool:
    """Return whether the changes over the quarters of a run, motion aside, sum up to ``least``.

    On ``change``'s scale, without colours. Where a camera sweeps, the content of each
    quarter was close by before it, and the sum stays near 0, however different the
    first and the last picture are.
    """
    marks = np.unique(np.linspace(0, len(luma) - 1, 5).round().astype(np.intp))
    changed = 0.0
    for before, after in zip(luma[marks[:-1]], luma[marks[1:]], strict=True):
        scale = contrast(np.stack([before, after])).mean() + _CONTRAST_FLOOR
        changed += float(moved_difference(before[None], after[None], reach)[0] / scale)
        if changed >= least:
            return True
    return False


def change_beside_light(first: Bytes, second: Bytes, reach: tuple[int, int]) -> float:
    """Change of two pictures' luma on ``change``'s scale, after giving both one brightness."""
    means = brightness(np.stack([first, second]))
    mean = (means[0] + means[1]) / 2
    even = [
        np.clip(picture.astype(np.float64) + mean - own, 0, 255).astype(np.uint8)[None]
        for picture, own in zip((first, second), means, strict=True)
    ]
    moved = moved_difference(even[0], even[1], reach)
    scale = contrast(np.stack([first, second])).mean() + _CONTRAST_FLOOR
    return float(moved[0] / scale)


def likeness(first: Bytes, second: Bytes, reach: int = 6) -> float:
    """Best correlation of two pictures' fine structure over small shifts, -1 to 1.

    Blind to brightness and contrast: it separates a change of light from a change of scene.
    """
    a, b = _structure(first), _structure(second)
    norm = float(np.sqrt((a * a).sum() * (b * b).sum()))
    if norm < 1e-6:
        return 0.0
    # Through OpenCV: NumPy's transforms of such small pictures are mostly preparation, and take
    # 2.5 times as long.
    product = cv2.mulSpectrums(cv2.dft(a), cv2.dft(b), 0, conjB=True)
    correlation = np.roll(cv2.idft(product, flags=cv2.DFT_SCALE), (reach, reach), axis=(0, 1))
    return float(correlation[: 2 * reach + 1, : 2 * reach + 1].max()) / norm


CELL = 2
"""Pixels: ``cell_luma`` are means of squares of this size."""


def cell_luma(luma: Bytes) -> npt.NDArray[np.float32]:
    """Return the mean luma of the cells of each picture, (n, 576)."""
    wide = luma.astype(np.uint16)
    rows = wide[:, ::CELL] + wide[:, 1::CELL]
    sums = rows[:, :, ::CELL] + rows[:, :, 1::CELL]
    return np.asarray(sums.reshape(len(luma), -1).astype(np.float32) / (CELL * CELL))


def light_residue(first: Bytes, second: Bytes) -> float:
    """Return the share of a picture's variance that the other's levels leave unexplained, 0 to 1.

    Near 0 if one is the other in another light: equal levels in one picture are equal in the other
    too (the correlation ratio of A. Roche, 1998). About 0.6 for unrelated pictures.
    """
    return min(_unexplained(first, second), _unexplained(second, first))


def _unexplained(by: Bytes, picture: Bytes) -> float:
    luma = picture.ravel()[np.argsort(by, axis=None, kind="stable")].astype(np.float64)
    within = luma.reshape(LUMA_HEIGHT * LUMA_WIDTH // _LEVELS_A_GROUP, -1).var(axis=1).mean()
    return float(within / (luma.var() + _FLAT_VARIANCE))


def _structure(picture: Bytes) -> Floats:
    """Return the picture without what is smooth over a fifth of its height."""
    grey = picture.astype(np.float64)
    return np.asarray(grey - cv2.blur(grey, (9, 9), borderType=cv2.BORDER_REFLECT))


_GRID_MS = 80


def grid(window: FrameFeatures, start: int, end: int) -> Indices:
    """Of the frames ``start`` to ``end`` the first in each 80 ms of the video."""
    cells = window.times_ms[max(0, start - 1) : end] // _GRID_MS
    fresh = np.flatnonzero(np.diff(cells)) + 1 + max(0, start - 1)
    return np.concatenate([[0], fresh]) if start == 0 else fresh


def sides(window: FrameFeatures, centres: Indices, half_ms: int) -> tuple[Indices, Indices]:
    """Return the first and the last frame no more than ``half_ms`` from each centre."""
    times = window.times_ms
    first = np.searchsorted(times, times[centres] - half_ms)
    last = np.searchsorted(times, times[centres] + half_ms, side="right") - 1
    return first, last
