"""The shots with people and the two text cards."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.media.studio.canvas import (
    HEIGHT,
    WIDTH,
    Picture,
    cloud_noise,
    ellipse_mask,
    glow,
    gradient,
    paint,
    polygon_mask,
    rgb,
    shade,
    vignette,
    write_text,
)
from tests.media.studio.people import Looks, Pose, draw_person

SIZE = (HEIGHT, WIDTH)
HOST = Looks("#e0a988", "#3a2418", "#b5564e", "#4a6a45", "#27405f", "#e9e4da", long_hair=False)
GUEST = Looks("#c98f6b", "#5b2a16", "#b8484c", "#5a3a20", "#7d2f3f", "#efe3cf", long_hair=True)

Painter = Callable[[int], Picture]
"""Paints the frame with the given number, counted from the start of the shot."""
Loudness = Callable[[int], float]
"""How loud a voice is at the frame with the given number of the shot, 0 to 1."""


def title_card() -> Painter:
    """Large text on a lit paper texture."""
    card = _card("#17324d", "#0a1724", seed=11)
    write_text(card, "A DAY BY THE SEA", (WIDTH / 2, 300), 118, rgb("#f6ead2"), spacing=6)
    paint(card, rgb("#e2a54a"), _bar(WIDTH / 2, 398, 190, 3))
    write_text(card, "a short drawn film", (WIDTH / 2, 460), 46, rgb("#b9cad8"))
    return lambda frame: card


def end_card() -> Painter:
    """The closing card, warm where the title is cold."""
    card = _card("#6a2b2f", "#230d12", seed=12)
    write_text(card, "THE END", (WIDTH / 2, 310), 150, rgb("#f8e7c9"), spacing=14)
    paint(card, rgb("#e9b765"), _bar(WIDTH / 2, 424, 150, 3))
    write_text(card, "thank you for watching", (WIDTH / 2, 490), 46, rgb("#e3c3b4"))
    return lambda frame: card


def _card(center: str, edge: str, seed: int) -> Picture:
    card = gradient(WIDTH, HEIGHT, [(0, edge), (0.45, center), (1, edge)])
    light = ellipse_mask(SIZE, (WIDTH * 0.5, HEIGHT * 0.42), (420, 200), soft=150)
    glow(card, rgb(center), light, 0.7)
    shade(card, cloud_noise(WIDTH, HEIGHT, 256, 7, seed), 0.16)
    vignette(card, 0.5)
    return card


def _bar(x: float, y: float, half_width: float, half_height: float) -> np.ndarray:
    left, right, top, bottom = x - half_width, x + half_width, y - half_height, y + half_height
    return polygon_mask(SIZE, [(left, top), (right, top), (right, bottom), (left, bottom)])


def presenter(loudness: Loudness) -> Painter:
    """A talking head, medium close-up, before an out-of-focus studio."""
    room = _studio()

    def paint_frame(frame: int) -> Picture:
        picture = room.copy()
        sway, nod = 5 * math.sin(frame / 17), 4 * math.sin(frame / 11)
        center = (WIDTH / 2 + sway, 300 + nod)
        pose = Pose(center, 128, loudness(frame), _blink(frame, every=68), lean=sway / 160)
        draw_person(picture, HOST, pose)
        return picture

    return paint_frame


def _studio() -> Picture:
    room = gradient(WIDTH, HEIGHT, [(0, "#4c7386"), (0.7, "#2a4858"), (1, "#1b2f3a")])
    random = np.random.default_rng(21)
    for _ in range(46):
        spot, size = random.uniform((0, 0), (WIDTH, HEIGHT * 0.85)), random.uniform(14, 46)
        color = rgb(("#ffd79a", "#9fd8e8", "#f2a777")[int(random.integers(3))])
        disc = ellipse_mask(SIZE, (float(spot[0]), float(spot[1])), (size, size), soft=3)
        glow(room, color, disc, float(random.uniform(0.05, 0.22)))
    shade(room, cloud_noise(WIDTH, HEIGHT, 200, 4, 22), 0.08)
    vignette(room, 0.45)
    return room


def two_people(host: Loudness, guest: Loudness) -> Painter:
    """Both people at a table before a bookcase: smaller faces, a wider shot."""
    room, table = _library(), _table()

    def paint_frame(frame: int) -> Picture:
        picture = room.copy()
        sway = math.sin(frame / 19)
        left = Pose((430 + 3 * sway, 300), 66, host(frame), _blink(frame + 20, 57), sway / 40)
        right = Pose((860 - 4 * sway, 306), 64, guest(frame), _blink(frame, 49), -sway / 40)
        draw_person(picture, HOST, left)
        draw_person(picture, GUEST, right)
        paint(picture, table[0], table[1])
        return picture

    return paint_frame


def _blink(frame: int, every: int) -> float:
    return 1.0 if frame % every in (every - 3, every - 2) else 0.0


def _library() -> Picture:
    room = gradient(WIDTH, HEIGHT, [(0, "#c9a878"), (1, "#8a6339")])
    random = np.random.default_rng(31)
    for row in range(4):
        _shelf(room, 26 + row * 150, random)
    lamp = ellipse_mask(SIZE, (WIDTH / 2, 120), (150, 170), soft=120)
    glow(room, rgb("#ffdca0"), lamp, 0.5)
    shade(room, cloud_noise(WIDTH, HEIGHT, 160, 6, 32), 0.12)
    vignette(room, 0.4)
    return room


def _shelf(room: Picture, top: int, random: np.random.Generator) -> None:
    """One board of books, slightly out of focus behind the people."""
    paint(room, rgb("#4b2f19"), _box(0, top, WIDTH, top + 138, 2))
    x = 6.0
    while x < WIDTH:
        width, height = random.uniform(18, 44), random.uniform(86, 122)
        color = rgb(_BOOKS[int(random.integers(len(_BOOKS)))])
        paint(room, color, _box(x, top + 132 - height, x + width - 2, top + 132, 1.5))
        paint(
            room,
            rgb("#e8cf9a"),
            _box(x + 4, top + 150 - height, x + width - 6, top + 156 - height, 1),
        )
        glow(room, rgb("#ffffff"), _box(x + 2, top + 134 - height, x + 7, top + 130, 2), 0.16)
        x += width + (24 if random.random() < 0.08 else 0)
    paint(room, rgb("#a8763f"), _box(0, top + 132, WIDTH, top + 148, 1.5))


_BOOKS = ("#7c2f2a", "#2f5a53", "#b5863b", "#31456e", "#6d4a63", "#8f8a5a", "#a4522f", "#d3c3a1")


def _box(left: float, top: float, right: float, bottom: float, soft: float = 0.0) -> np.ndarray:
    return polygon_mask(SIZE, [(left, top), (right, top), (right, bottom), (left, bottom)], soft)


def _table() -> tuple[Picture, np.ndarray]:
    """A wooden table top with two cups, and the mask of what it covers."""
    wood = gradient(WIDTH, HEIGHT, [(0, "#b27a45"), (0.83, "#b27a45"), (1, "#6b4120")])
    grain = cloud_noise(WIDTH // 8, HEIGHT, 24, 4, 41).repeat(8, axis=1)
    shade(wood, grain, 0.28)
    mask = _box(0, 590, WIDTH, HEIGHT, 1)
    for x in (560, 730):
        cup = polygon_mask(SIZE, [(x - 34, 540), (x + 34, 540), (x + 26, 618), (x - 26, 618)], 1)
        paint(wood, rgb("#e9e2d2"), cup)
        paint(wood, rgb("#a79b86"), cup * _box(x + 6, 530, x + 40, 630, 8), 0.7)
        paint(wood, rgb("#5a3620"), ellipse_mask(SIZE, (x, 541), (33, 7)))
        mask = np.maximum(mask, np.maximum(cup, ellipse_mask(SIZE, (x, 541), (34, 8))))
    return wood, mask
