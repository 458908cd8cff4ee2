"""The landscape, the sea and the city at night."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from tests.media.studio.canvas import (
    HEIGHT,
    WIDTH,
    Color,
    Mask,
    Picture,
    Point,
    below,
    cloud_noise,
    ellipse_mask,
    glow,
    gradient,
    paint,
    polygon_mask,
    rgb,
    ridge,
    shade,
    stroke_mask,
    vignette,
    warp,
)
from tests.media.studio.indoors import Painter

PANORAMA_WIDTH = 2400
SIZE = (HEIGHT, WIDTH)


def landscape_pan(frames: int) -> Painter:
    """The camera pans to the right over a panorama nearly twice as wide as the frame."""
    panorama = _panorama()
    reach = PANORAMA_WIDTH - WIDTH

    def paint_frame(frame: int) -> Picture:
        x = WIDTH / 2 + reach * frame / (frames - 1)
        return warp(panorama, 1.0, (x, HEIGHT / 2), (WIDTH, HEIGHT))

    return paint_frame


def _panorama() -> Picture:
    width, size = PANORAMA_WIDTH, (HEIGHT, PANORAMA_WIDTH)
    view = gradient(width, HEIGHT, [(0, "#3f86c6"), (0.45, "#a9d3ea"), (0.62, "#f3ead2")])
    puffs = cloud_noise(width, HEIGHT, 320, 7, 51) ** 1.4
    height_fade = np.linspace(1, 0, HEIGHT, dtype=np.float32)[:, np.newaxis] ** 0.7
    paint(view, rgb("#ffffff"), np.clip((puffs - 0.28) * 2.6, 0, 1) * height_fade, 0.95)
    glow(view, rgb("#fff2c4"), ellipse_mask(size, (1750, 150), (60, 60), soft=50), 0.9)
    _mountains(view)
    for base, rise, color, seed in _HILLS:
        _hill(view, ridge(width, base, rise, 512, seed), color, seed)
    _trees(view)
    _house(view, 1500, 548)
    return view


_HILLS = ((470, 70, "#6f9a8a", 61), (540, 90, "#5f934f", 62), (650, 120, "#6fae3f", 63))


def _mountains(view: Picture) -> None:
    """Peaks, lit from the left, with snow down to an uneven line."""
    line = _peaks(PANORAMA_WIDTH)
    body = below(line, HEIGHT)
    rock = cloud_noise(PANORAMA_WIDTH, HEIGHT, 90, 6, 53)
    stone = gradient(PANORAMA_WIDTH, HEIGHT, [(0, "#5d6f87"), (0.6, "#9db2c4")])
    shade(stone, rock, 0.3)
    down = np.arange(HEIGHT, dtype=np.float32)[:, np.newaxis] - line[np.newaxis]
    paint(stone, rgb("#f4f8fc"), np.clip((150 * rock + 205 - line - down * 1.5) / 12, 0, 1), 0.95)
    lean = line[np.newaxis] + 70 * (cloud_noise(PANORAMA_WIDTH, HEIGHT, 120, 4, 55) - 0.5)
    slope = np.gradient(np.asarray(cv2.GaussianBlur(lean, (0, 0), 9)), axis=1)
    paint(stone, rgb("#33455e"), np.clip(slope * 0.9, 0, 0.75).astype(np.float32), 0.7)
    paint(view, stone, body)


def _peaks(width: int) -> NDArray[np.float32]:
    random = np.random.default_rng(52)
    x, top = np.arange(width, dtype=np.float32), np.full(width, 460, np.float32)
    for place in np.arange(60, width + 200, 190):
        peak, steep = place + random.uniform(-60, 60), random.uniform(0.75, 1.15)
        top = np.minimum(top, random.uniform(120, 300) + np.abs(x - peak) * steep)
    rough = ridge(width, 26, 52, 64, 56)
    return (top + rough).astype(np.float32)


def _hill(view: Picture, line: np.ndarray, color: str, seed: int) -> None:
    grass = gradient(PANORAMA_WIDTH, HEIGHT, [(0, color), (0.6, color), (1, "#3c6b25")])
    shade(grass, cloud_noise(PANORAMA_WIDTH, HEIGHT, 160, 4, seed + 10), 0.22)
    blades = cloud_noise(PANORAMA_WIDTH // 2, HEIGHT // 8, 6, 2, seed + 20)
    shade(grass, blades.repeat(8, axis=0).repeat(2, axis=1), 0.12)
    paint(view, grass, below(line, HEIGHT))


def _trees(view: Picture) -> None:
    """A wood of firs, far ones first."""
    random = np.random.default_rng(71)
    for y in np.sort(random.uniform(500, 690, 90)):
        height = 26 + (y - 480) * 0.75 * random.uniform(0.7, 1.2)
        _fir(view, (float(random.uniform(0, PANORAMA_WIDTH)), float(y)), float(height), random)


def _fir(view: Picture, foot: Point, height: float, random: np.random.Generator) -> None:
    left, top = int(max(0, foot[0] - height * 0.5)), int(max(0, foot[1] - height * 1.1))
    tile = view[top : int(foot[1] + 10), left : int(foot[0] + height * 0.5)]
    if tile.shape[1] < 4:
        return
    x, y, size = foot[0] - left, foot[1] - top, (tile.shape[0], tile.shape[1])
    paint(tile, rgb("#20391a"), ellipse_mask(size, (x, y + 2), (height * 0.3, 5), soft=3), 0.5)
    paint(tile, rgb("#4a3320"), stroke_mask(size, [(x, y), (x, y - height * 0.3)], 4))
    green = rgb(("#1f4d2b", "#2c5e2f", "#38682f")[int(random.integers(3))])
    for layer in range(4):
        base = y - height * (0.12 + 0.2 * layer)
        half, peak = height * (0.3 - 0.06 * layer), base - height * 0.38
        paint(tile, green, polygon_mask(size, [(x - half, base), (x + half, base), (x, peak)], 0.6))
        lit = polygon_mask(size, [(x - half, base), (x - half * 0.2, base), (x, peak)], 1)
        glow(tile, rgb("#8fb04a"), lit, 0.22)


def _house(view: Picture, x: int, y: int) -> None:
    tile = view[y - 110 : y + 60, x - 110 : x + 130]
    size = (tile.shape[0], tile.shape[1])
    wall = polygon_mask(size, [(50, 80), (190, 80), (190, 150), (50, 150)])
    paint(tile, rgb("#f0e3c8"), wall)
    paint(tile, rgb("#c9b48e"), polygon_mask(size, [(140, 80), (190, 80), (190, 150), (140, 150)]))
    paint(tile, rgb("#a8412f"), polygon_mask(size, [(38, 84), (66, 34), (166, 34), (202, 84)]))
    paint(tile, rgb("#7d2d22"), polygon_mask(size, [(140, 84), (154, 34), (166, 34), (202, 84)]))
    paint(
        tile, rgb("#5d3a25"), polygon_mask(size, [(108, 110), (128, 110), (128, 150), (108, 150)])
    )
    for left in (66, 152):
        pane = polygon_mask(size, [(left, 98), (left + 24, 98), (left + 24, 120), (left, 120)])
        paint(tile, rgb("#3b5872"), pane)


def sea_zoom(frames: int) -> Painter:
    """The camera zooms in on a sailing boat; the water moves."""
    sky, water = _sea_sky(), _Water.seen_from(HORIZON)

    def paint_frame(frame: int) -> Picture:
        picture = sky.copy()
        water.paint(picture, frame / 25)
        _boat(picture, (700, HORIZON + 120 + 5 * math.sin(frame / 9)), 2.5 * math.sin(frame / 13))
        vignette(picture, 0.3)
        progress = frame / (frames - 1)
        aim = (WIDTH / 2 + 60 * progress, HEIGHT / 2 - 4 * progress)
        return warp(picture, 1.0 + 0.95 * progress, aim, (WIDTH, HEIGHT))

    return paint_frame


HORIZON = 380


def _sea_sky() -> Picture:
    stops = [
        (0, "#5b6fa8"),
        (0.25, "#c98a8f"),
        (0.45, "#f7b46a"),
        (0.53, "#ffe0a0"),
        (1, "#ffe0a0"),
    ]
    sky = gradient(WIDTH, HEIGHT, stops)
    bands = cloud_noise(WIDTH // 4, HEIGHT, 120, 6, 81).repeat(4, axis=1)
    paint(sky, rgb("#7a4f70"), np.clip((bands - 0.45) * 1.8, 0, 1), 0.6)
    glow(sky, rgb("#ffd98a"), ellipse_mask(SIZE, (330, HORIZON - 46), (160, 120), soft=90), 0.8)
    paint(sky, rgb("#fff6d8"), ellipse_mask(SIZE, (330, HORIZON - 46), (44, 44), soft=1.5))
    coast = ridge(WIDTH, HORIZON + 4, 70, 300, 82) + np.linspace(60, -10, WIDTH)
    paint(sky, rgb("#5d4a66"), below(coast.astype(np.float32), HEIGHT), 0.85)
    return sky


@dataclass(frozen=True, slots=True)
class _Water:
    """The sea as a plane seen in perspective."""

    top: int
    x: Mask
    depth: Mask
    waves: tuple[tuple[float, float, float, float], ...]

    @classmethod
    def seen_from(cls, top: int) -> _Water:
        rows = np.arange(HEIGHT - top, dtype=np.float32)[:, np.newaxis] + 3
        depth = np.float32(900) / rows
        x = (np.arange(WIDTH, dtype=np.float32)[np.newaxis] - WIDTH / 2) * depth / 300
        random = np.random.default_rng(83)
        waves = []
        for index in range(14):
            length, angle = 0.32 * 1.42**index, random.uniform(0.9, 2.2)
            pull, phase = 6.283 / length, random.uniform(0, 6.28)
            waves.append((pull * math.cos(angle), pull * math.sin(angle), 2.2 / length**0.5, phase))
        return cls(top, x.astype(np.float32), depth.astype(np.float32), tuple(waves))

    def paint(self, picture: Picture, seconds: float) -> None:
        """Paint slopes as light and dark: bright ones mirror the sky."""
        slope = np.zeros((HEIGHT - self.top, WIDTH), np.float32)
        for kx, ky, speed, phase in self.waves:
            fade = np.clip(6.283 / (abs(ky) + 0.01) / (self.depth**2 / 900) * 0.25, 0, 1) ** 2
            slope += np.sin(kx * self.x + ky * self.depth + speed * seconds * 2 + phase) * fade
        light = np.clip(0.5 + slope / 9, 0, 1).astype(np.float32)
        stops = [(0, "#d9a27d"), (0.12, "#8f7f8e"), (0.45, "#3e5c7a"), (1, "#173450")]
        sea = gradient(WIDTH, HEIGHT - self.top, stops)
        shade(sea, light, 0.55)
        path = np.exp(-(((self.x / self.depth * 300 + WIDTH / 2 - 330) / 110) ** 2))
        glow(sea, rgb("#ffd28a"), (path * np.clip(slope / 2.2 - 0.1, 0, 1)).astype(np.float32), 0.9)
        picture[self.top :] = sea


def _boat(picture: Picture, foot: Point, tilt_degrees: float) -> None:
    """A sailing boat whose hull stands at ``foot``."""
    turn = math.radians(tilt_degrees)

    def at(x: float, y: float) -> Point:
        across, up = (
            x * math.cos(turn) - y * math.sin(turn),
            x * math.sin(turn) + y * math.cos(turn),
        )
        return (foot[0] + across, foot[1] + up)

    shadow = ellipse_mask(SIZE, (foot[0], foot[1] + 22), (120, 16), soft=8)
    paint(picture, rgb("#13263a"), shadow, 0.7)
    mainsail = [at(4, -30), at(4, -240), at(60, -130), at(92, -36)]
    jib = [at(-6, -34), at(-4, -222), at(-50, -120), at(-92, -30)]
    paint(picture, rgb("#fbf1de"), polygon_mask(SIZE, mainsail, 0.8))
    paint(
        picture,
        rgb("#c7b7a6"),
        polygon_mask(SIZE, [mainsail[0], mainsail[1], at(34, -34)], 10),
        0.6,
    )
    paint(picture, rgb("#c8473d"), polygon_mask(SIZE, jib, 0.8))
    paint(picture, rgb("#8f2a2a"), polygon_mask(SIZE, [jib[0], jib[1], at(-36, -30)], 8), 0.6)
    paint(picture, rgb("#4b2f1d"), stroke_mask(SIZE, [at(0, -8), at(0, -250)], 5))
    hull = [at(-112, -22), at(122, -26), at(84, 22), at(-74, 22)]
    paint(picture, rgb("#f2efe6"), polygon_mask(SIZE, hull, 0.8))
    paint(picture, rgb("#27405f"), polygon_mask(SIZE, [at(-98, -6), at(110, -8), *hull[2:]], 0.8))
    paint(picture, rgb("#0f1d2b"), polygon_mask(SIZE, [at(-82, 12), at(92, 12), *hull[2:]], 2), 0.7)


def city_night() -> Painter:
    """A street at night from a fixed camera: cars pass, their lights shine on the wet road."""
    street = _street()

    def paint_frame(frame: int) -> Picture:
        picture = street.copy()
        for start, speed, y, towards in _CARS:
            _car(picture, (start + speed * frame, y), towards)
        return picture

    return paint_frame


_CARS = (
    (-260.0, 11.0, 610, True),
    (-900.0, 11.5, 612, True),
    (300.0, 12.5, 614, True),
    (1400.0, -9.0, 560, False),
    (1010.0, -9.5, 562, False),
    (420.0, -9.0, 561, False),
)


def _street() -> Picture:
    view = gradient(
        WIDTH, HEIGHT, [(0, "#050b1e"), (0.5, "#1a2350"), (0.75, "#43305c"), (1, "#10121c")]
    )
    paint(view, rgb("#2c3a66"), cloud_noise(WIDTH, HEIGHT, 260, 5, 91), 0.25)
    random = np.random.default_rng(92)
    for _ in range(90):
        star = (float(random.uniform(0, WIDTH)), float(random.uniform(0, 250)))
        glow(view, (1, 1, 1), ellipse_mask(SIZE, star, (1.5, 1.5)), float(random.uniform(0.2, 0.9)))
    glow(view, rgb("#fff4d6"), ellipse_mask(SIZE, (1010, 120), (90, 90), soft=40), 0.25)
    paint(view, rgb("#f7efd8"), ellipse_mask(SIZE, (1010, 120), (46, 46), soft=1.2))
    paint(view, rgb("#cfc4ab"), ellipse_mask(SIZE, (996, 112), (13, 11), soft=4), 0.7)
    for ground, color, widths, heights in _BLOCKS:
        _buildings(view, ground, rgb(color), widths, heights, random=random)
    _road(view)
    return view


_BLOCKS = (
    (500, "#1b2342", (60, 130), (160, 330)),
    (515, "#111628", (90, 170), (90, 250)),
)


def _buildings(
    view: Picture,
    ground: int,
    color: Color,
    widths: tuple[int, int],
    heights: tuple[int, int],
    *,
    random: np.random.Generator,
) -> None:
    x = -20
    while x < WIDTH:
        width, height = int(random.integers(*widths)), int(random.integers(*heights))
        left, right = max(0, x), min(WIDTH, x + width)
        view[ground - height : ground, left:right] = color
        glow(
            view[ground - height : ground, left : left + 4],
            rgb("#8090c0"),
            np.ones((height, min(4, right - left)), np.float32),
            0.12,
        )
        _windows(view[ground - height : ground, left:right], random)
        x += width + int(random.integers(0, 12))


def _windows(wall: Picture, random: np.random.Generator) -> None:
    """Lit windows, most of them dark."""
    colors = [rgb(code) for code in ("#ffd27a", "#ffe9b8", "#f0a95a", "#a9c9e8")]
    for y in range(14, wall.shape[0] - 16, 22):
        for x in range(10, wall.shape[1] - 14, 18):
            if random.random() < 0.45:
                color = np.asarray(colors[int(random.integers(4))], np.float32)
                wall[y : y + 11, x : x + 8] = color * random.uniform(0.45, 1.0)
            else:
                wall[y : y + 11, x : x + 8] *= 0.7


def _road(view: Picture) -> None:
    road = gradient(WIDTH, HEIGHT - 515, [(0, "#23242f"), (1, "#0c0d13")])
    shade(road, cloud_noise(WIDTH, HEIGHT - 515, 12, 3, 93), 0.2)
    mirrored = view[515 - road.shape[0] : 515][::-1]
    streaks = cloud_noise(WIDTH, road.shape[0], 40, 3, 94)
    paint(road, mirrored, streaks, 0.3)
    view[515:] = road
    paint(
        view, rgb("#4a4b57"), polygon_mask(SIZE, [(0, 512), (WIDTH, 512), (WIDTH, 526), (0, 526)])
    )
    for x in range(20, WIDTH, 150):
        dash = polygon_mask(SIZE, [(x, 586), (x + 80, 586), (x + 76, 592), (x - 6, 592)], 0.8)
        paint(view, rgb("#cfc9a8"), dash, 0.7)
    for x in (150, 520, 890, 1250):
        _lamp(view, x)


def _lamp(view: Picture, x: int) -> None:
    paint(view, rgb("#05060a"), stroke_mask(SIZE, [(x, 524), (x, 350), (x + 34, 336)], 6))
    glow(view, rgb("#ffc873"), ellipse_mask(SIZE, (x + 40, 340), (70, 70), soft=30), 0.35)
    glow(view, rgb("#ffe2ac"), ellipse_mask(SIZE, (x + 40, 340), (13, 8), soft=3), 1.0)
    glow(view, rgb("#ffb860"), ellipse_mask(SIZE, (x + 40, 548), (120, 26), soft=20), 0.3)


def _car(picture: Picture, spot: Point, rightwards: bool) -> None:
    """A car's dark body, its lamps and their shine; nothing where it is out of the frame."""
    left, right = int(spot[0]) - 330, int(spot[0]) + 330
    if right < 8 or left > WIDTH - 8:
        return
    tile = picture[460:720, max(0, left) : min(WIDTH, right)]
    x, y, size = spot[0] - max(0, left), spot[1] - 460, (tile.shape[0], tile.shape[1])
    way = 1.0 if rightwards else -1.0
    body = [(-78, 0), (-78, -26), (-52, -32), (-30, -56), (26, -56), (50, -32), (80, -24), (80, 0)]
    outline = [(x + way * bx, y + by) for bx, by in body]
    paint(tile, rgb("#0b1019" if rightwards else "#2a1016"), polygon_mask(size, outline, 0.8))
    pane = [(x + way * bx, y + by) for bx, by in ((-44, -33), (-27, -51), (23, -51), (41, -33))]
    paint(tile, rgb("#5d7390"), polygon_mask(size, pane, 0.8), 0.55)
    for wheel in (-48, 50):
        paint(tile, rgb("#020305"), ellipse_mask(size, (x + way * wheel, y), (15, 15)))
    _car_lights(tile, (x, y), way)


def _car_lights(tile: Picture, spot: Point, way: float) -> None:
    (x, y), size = spot, (tile.shape[0], tile.shape[1])
    beam = [(x + way * 80, y - 20), (x + way * 300, y - 46), (x + way * 300, y + 40)]
    glow(tile, rgb("#ffeec0"), polygon_mask(size, beam, 16), 0.3)
    for offset, color, radius in ((80, "#fff6dc", 9), (-78, "#ff2a1a", 7)):
        lamp = (x + way * offset, y - 20)
        glow(tile, rgb(color), ellipse_mask(size, lamp, (radius * 3, radius * 3), soft=10), 0.6)
        glow(tile, rgb(color), ellipse_mask(size, lamp, (radius, radius * 0.7), soft=2), 1.0)
        glow(tile, rgb(color), ellipse_mask(size, (lamp[0], y + 34), (18, 30), soft=12), 0.4)
