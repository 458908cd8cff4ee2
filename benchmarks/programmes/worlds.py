"""Drawn shots: views over painted worlds, things that move, title cards, faces of noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]
Size = tuple[int, int]
World = Callable[[random.Random, Size, int], list[Picture]]

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _generator(chance: random.Random) -> np.random.Generator:
    return np.random.default_rng(chance.getrandbits(63))


def _colour(chance: random.Random, low: int = 20, high: int = 235) -> tuple[int, int, int]:
    return tuple(chance.randint(low, high) for _ in range(3))  # type: ignore[return-value]


def _texture(noise: np.random.Generator, size: Size, octaves: int = 6) -> npt.NDArray[np.float32]:
    """Fractal noise (height, width, 3) around 0, of about unit spread."""
    width, height = size
    total = np.zeros((height, width, 3), np.float32)
    for octave in range(octaves):
        cells = (2 ** (octave + 1) * height // width + 2, 2 ** (octave + 1) + 2, 3)
        coarse = noise.normal(0, 0.75**octave, cells).astype(np.float32)
        total += cv2.resize(coarse, size, interpolation=cv2.INTER_CUBIC)
    return np.asarray(total / (total.std() + 1e-6), np.float32)


def _bytes(levels: npt.NDArray[np.float32]) -> Picture:
    return np.clip(levels, 0, 255).astype(np.uint8)


def landscape(chance: random.Random, size: Size) -> Picture:
    """Sky, hills and fields."""
    noise = _generator(chance)
    width, height = size
    sky, ground = np.array(_colour(chance, 90, 240)), np.array(_colour(chance, 20, 150))
    texture = _texture(noise, size)
    picture = sky + texture * chance.uniform(4, 18)
    rows = np.arange(height)[:, None]
    for layer in range(3):
        waves = sum(
            math.pow(0.5, wave)
            * np.sin(np.arange(width) / width * math.tau * chance.uniform(1, 4) * 2**wave)
            for wave in range(3)
        )
        edge = height * (0.4 + 0.17 * layer) + waves * height * 0.07
        shade = ground * (0.6 + 0.25 * layer) + texture * chance.uniform(10, 30)
        picture = np.where((rows > edge[None, :])[..., None], shade, picture)
    return _bytes(picture.astype(np.float32))


def town(chance: random.Random, size: Size) -> Picture:
    """Houses with windows in rows."""
    width, height = size
    picture = _bytes(np.array(_colour(chance)) + _texture(_generator(chance), size) * 8)
    left = 0
    while left < width:
        wide, tall = chance.randint(width // 14, width // 6), chance.uniform(0.3, 0.85) * height
        top = round(height - tall)
        cv2.rectangle(picture, (left, top), (left + wide, height), _colour(chance, 30, 190), -1)
        lit, pane = _colour(chance, 100, 255), max(4, wide // 9)
        for y in range(top + pane, height - pane, 2 * pane):
            for x in range(left + pane, left + wide - pane, 2 * pane):
                if chance.random() < 0.7:
                    cv2.rectangle(picture, (x, y), (x + pane, y + pane), lit, -1)
        left += wide
    return picture


def room(chance: random.Random, size: Size) -> Picture:
    """Walls, furniture and a lamp's light."""
    width, height = size
    texture = _texture(_generator(chance), size)
    picture = _bytes(np.array(_colour(chance, 60, 200)) + texture * chance.uniform(3, 10))
    floor = round(height * chance.uniform(0.6, 0.8))
    picture[floor:] = _bytes(np.array(_colour(chance, 30, 120)) + texture[floor:] * 15)
    for _ in range(chance.randint(6, 14)):
        wide, tall = chance.randint(width // 20, width // 4), chance.randint(10, height // 3)
        left, top = chance.randrange(width - wide), chance.randrange(height - tall)
        cv2.rectangle(picture, (left, top), (left + wide, top + tall), _colour(chance), -1)
        cv2.rectangle(picture, (left, top), (left + wide, top + tall), (25, 25, 25), 2)
    lamp = np.hypot(
        np.arange(width)[None, :] - chance.randrange(width),
        np.arange(height)[:, None] - chance.randrange(height),
    )
    light = 0.45 + 0.75 * np.exp(-((lamp / (0.5 * width)) ** 2))
    return _bytes((picture * light[..., None]).astype(np.float32))


_PAINTERS = (landscape, town, room)


def _view(chance: random.Random, size: Size, frames: int, painter: int) -> list[Picture]:
    """A slow move of the camera over a painted place, with grain."""
    noise = _generator(chance)
    wide = (size[0] * 3 // 2, size[1] * 3 // 2)
    place = _PAINTERS[painter](chance, wide)
    speed = chance.choice([0.0, 0.3, 0.8, 1.6]) * size[0] / 640
    angle, zoom = chance.uniform(0, math.tau), chance.choice([0, 0, 0.0008, -0.0008])
    grain, gain = chance.uniform(0, 4), chance.choice([1, 1, 1, 0.35])
    middle = np.array([size[0] * 0.25, size[1] * 0.25])
    start = middle - np.array([math.cos(angle), math.sin(angle)]) * speed * frames / 2
    start = np.clip(start, 0, middle * 2)
    pictures = []
    for index in range(frames):
        at = np.clip(
            start + np.array([math.cos(angle), math.sin(angle)]) * speed * index, 0, 2 * middle
        )
        scale = 1 + zoom * index
        matrix = np.array([[scale, 0, at[0]], [0, scale, at[1]]], np.float32)
        seen = cv2.warpAffine(
            place,
            matrix,
            size,
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REFLECT,
        )
        pictures.append(_grainy(seen, noise, grain, gain))
    return pictures


def _grainy(picture: Picture, noise: np.random.Generator, grain: float, gain: float) -> Picture:
    height, width = picture.shape[:2]
    rough = noise.normal(0, grain, (height // 2, width // 2, 1)).astype(np.float32)
    rough = cv2.resize(rough, (width, height), interpolation=cv2.INTER_NEAREST)
    return _bytes(picture.astype(np.float32) * gain + rough[..., None])


def things(chance: random.Random, size: Size, frames: int) -> list[Picture]:
    """Several things that fly about before a plain or rough ground."""
    width, height = size
    ground = _bytes(
        np.array(_colour(chance)) + _texture(_generator(chance), size) * chance.uniform(2, 25)
    )
    flying = [
        (
            [chance.uniform(0, width), chance.uniform(0, height)],
            [chance.uniform(-7, 7) * width / 640, chance.uniform(-5, 5) * width / 640],
            chance.randint(height // 16, height // 5),
            _colour(chance),
            chance.random() < 0.5,
        )
        for _ in range(chance.randint(3, 9))
    ]
    pictures = []
    for _ in range(frames):
        picture = ground.copy()
        for place, pace, radius, colour, is_round in flying:
            for axis, limit in enumerate((width, height)):
                place[axis] += pace[axis]
                if not 0 <= place[axis] <= limit:
                    pace[axis] = -pace[axis]
            at = (round(place[0]), round(place[1]))
            if is_round:
                cv2.circle(picture, at, radius, colour, -1, cv2.LINE_AA)
            else:
                cv2.rectangle(picture, at, (at[0] + radius, at[1] + radius), colour, -1)
        pictures.append(picture)
    return pictures


def card(chance: random.Random, size: Size, frames: int) -> list[Picture]:
    """A title card that stands still."""
    width, height = size
    dark = chance.random() < 0.6
    ground = _colour(chance, 5, 60) if dark else _colour(chance, 180, 250)
    ink = _colour(chance, 190, 255) if dark else _colour(chance, 5, 80)
    picture = np.full((height, width, 3), ground, np.uint8)
    scale = height / 360
    for line in range(chance.randint(2, 5)):
        word = "".join(chance.choice(_LETTERS) for _ in range(chance.randint(5, 14)))
        place = (round(width * chance.uniform(0.05, 0.3)), round((80 + 60 * line) * scale))
        cv2.putText(picture, word, place, cv2.FONT_HERSHEY_DUPLEX, 1.5 * scale, ink, 3, cv2.LINE_AA)
    return [picture] * frames


def _views(painter: int) -> World:
    return lambda chance, size, frames: _view(chance, size, frames, painter)


WORLDS: dict[str, World] = {
    "landscape": _views(0),
    "town": _views(1),
    "room": _views(2),
    "things": things,
    "card": card,
}
