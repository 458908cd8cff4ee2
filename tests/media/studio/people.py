"""A drawn person: shaded enough that face detectors find the face."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.media.studio.canvas import (
    Color,
    Picture,
    Point,
    cloud_noise,
    ellipse_mask,
    glow,
    paint,
    polygon_mask,
    rgb,
    shade,
    soften,
    stroke_mask,
)


@dataclass(frozen=True, slots=True)
class Looks:
    """Colours and hair of a person."""

    skin: str
    hair: str
    lips: str
    eyes: str
    clothes: str
    collar: str
    long_hair: bool


HOST = Looks("#e0a988", "#3a2418", "#b5564e", "#4a6a45", "#27405f", "#e9e4da", long_hair=False)
GUEST = Looks("#c98f6b", "#5b2a16", "#b8484c", "#5a3a20", "#7d2f3f", "#efe3cf", long_hair=True)


@dataclass(frozen=True, slots=True)
class Pose:
    """Where the face is and what it does: ``unit`` is half the face's width in pixels."""

    center: Point
    unit: float
    mouth: float = 0.0
    """How far the mouth is open, 0 to 1."""
    eyelids: float = 0.0
    """How far the eyes are closed, 0 to 1."""
    lean: float = 0.0
    """Sideways shift of the head against the shoulders, in units."""


@dataclass(frozen=True, slots=True)
class _Brush:
    """Paints in face coordinates: origin between the eyes, 1 = half the face's width.

    Every stroke works on the small window that it covers: a face is some forty strokes.
    """

    picture: Picture
    pose: Pose

    def at(self, x: float, y: float) -> Point:
        unit = self.pose.unit
        return (self.pose.center[0] + x * unit, self.pose.center[1] + y * unit)

    def window(self, points: list[Point], margin: float) -> tuple[Picture, list[Point]]:
        """The part of the picture around the points (face coordinates), and them in it."""
        corners = np.array([self.at(x, y) for x, y in points])
        edge = margin * self.pose.unit + 3
        height, width = self.picture.shape[:2]
        left, top = np.floor(corners.min(axis=0) - edge).clip(0, (width - 1, height - 1))
        right, bottom = np.ceil(corners.max(axis=0) + edge).clip(
            (left + 1, top + 1), (width, height)
        )
        view = self.picture[int(top) : int(bottom), int(left) : int(right)]
        return view, [(x - left, y - top) for x, y in corners]

    def oval(self, color: Color, x: float, y: float, a: float, b: float, **more: float) -> None:
        unit, soft = self.pose.unit, more.get("soft", 0.0)
        box, middle = [(x - a, y - b), (x + a, y + b)], (x, y)
        view, points = self.window([*box, middle], 3 * soft)
        shape = (view.shape[0], view.shape[1])
        mask = ellipse_mask(shape, points[2], (a * unit, b * unit), soft=soft * unit)
        paint(view, color, mask, more.get("strength", 1.0))

    def patch(self, color: Color, points: list[Point], soft: float, strength: float = 1.0) -> None:
        view, corners = self.window(points, 3 * soft)
        mask = polygon_mask((view.shape[0], view.shape[1]), corners, soft * self.pose.unit)
        paint(view, color, mask, strength)

    def line(
        self, color: Color, points: list[Point], width: float, soft: float, strength: float = 1.0
    ) -> None:
        view, corners = self.window(points, width + 3 * soft)
        thickness = max(1, round(width * self.pose.unit))
        shape = (view.shape[0], view.shape[1])
        paint(view, color, stroke_mask(shape, corners, thickness, soft * self.pose.unit), strength)


_FIFTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def draw_person(picture: Picture, looks: Looks, pose: Pose) -> None:
    """Paint head and shoulders in place, lit from the upper left."""
    body = Pose((pose.center[0] - pose.lean * pose.unit, pose.center[1]), pose.unit)
    if looks.long_hair:
        _draw_back_hair(_Brush(picture, pose), looks)
    _draw_shoulders(_Brush(picture, body), looks)
    _draw_neck(_Brush(picture, pose), looks)
    _draw_head(_Brush(picture, pose), looks)
    _draw_hair(_Brush(picture, pose), looks)
    for side in (-1.0, 1.0):
        _draw_eye(_Brush(picture, pose), looks, side)
    _draw_nose(_Brush(picture, pose), looks)
    _draw_mouth(_Brush(picture, pose), looks)


def _mix(color: Color, other: Color, share: float) -> Color:
    red, green, blue = (a + (b - a) * share for a, b in zip(color, other, strict=True))
    return (red, green, blue)


def _darker(code: str, share: float) -> Color:
    return _mix(rgb(code), (0.10, 0.03, 0.03), share)


def _lighter(code: str, share: float) -> Color:
    return _mix(rgb(code), (1.0, 0.96, 0.90), share)


def _draw_back_hair(brush: _Brush, looks: Looks) -> None:
    brush.oval(_darker(looks.hair, 0.25), 0, 0.35, 1.28, 1.75, soft=0.03)
    brush.oval(rgb(looks.hair), -0.35, 0.2, 0.85, 1.5, soft=0.25, strength=0.6)


def _draw_shoulders(brush: _Brush, looks: Looks) -> None:
    side_line = [(0.7, 1.98), (1.25, 2.2), (1.8, 2.5), (2.15, 2.95), (2.3, 3.6), (2.4, 6.0)]
    outline = [*side_line, *[(-x, y) for x, y in reversed(side_line)]]
    brush.patch(rgb(looks.clothes), outline, soft=0.015)
    brush.patch(_lighter(looks.clothes, 0.2), [(-1.7, 2.6), (-1, 2.4), (-1.4, 4.5)], 0.16, 0.7)
    shadow = [(1.3, 2.7), (1.9, 2.9), (2.1, 5.5), (1.3, 5)]
    brush.patch(_darker(looks.clothes, 0.6), shadow, 0.16, 0.6)
    brush.patch(rgb(looks.collar), [(-0.62, 1.95), (0.62, 1.95), (0.0, 3.3)], 0.015)
    for side in (-1.0, 1.0):
        lapel = [(0.6 * side, 1.9), (1.0 * side, 2.2), (0.62 * side, 3.0), (0.05 * side, 3.4)]
        brush.patch(_darker(looks.clothes, 0.35), lapel, 0.015)
        edge = [(0.6 * side, 1.92), (0.3 * side, 2.7), (0.05 * side, 3.38)]
        brush.line(_darker(looks.collar, 0.35), edge, 0.03, 0.015, strength=0.8)


def _draw_neck(brush: _Brush, looks: Looks) -> None:
    neck = [(-0.5, 0.9), (0.5, 0.9), (0.55, 2.05), (0.0, 2.5), (-0.55, 2.05)]
    brush.patch(_darker(looks.skin, 0.22), neck, soft=0.03)
    brush.oval(_darker(looks.skin, 0.62), 0.05, 1.42, 0.55, 0.28, soft=0.1, strength=0.65)


def _draw_head(brush: _Brush, looks: Looks) -> None:
    for side in (-1.0, 1.0):
        brush.oval(_darker(looks.skin, 0.18), 1.0 * side, 0.2, 0.15, 0.28, soft=0.02)
        brush.oval(_darker(looks.skin, 0.5), 1.02 * side, 0.22, 0.06, 0.15, soft=0.04)
    skull = [(0.99 * np.sin(t), 0.3 - 1.28 * np.cos(t)) for t in np.linspace(0, 1.65, 30)]
    jaw = [(0.97, 0.62), (0.91, 0.92), (0.8, 1.18), (0.62, 1.4), (0.38, 1.55), (0.14, 1.62)]
    right = [*skull, *jaw]
    head = [*right, *[(-x, y) for x, y in reversed(right)]]
    brush.patch(rgb(looks.skin), head, soft=0.015)
    _model_head(brush, looks, head)


def _model_head(brush: _Brush, looks: Looks, head: list[Point]) -> None:
    """Light from the upper left, shadow on the right, warm cheeks, a little skin texture."""
    view, outline = brush.window(head, 0.2)
    inside = _Brush(view, _moved(brush.pose, outline[0], brush.at(*head[0])))
    unit, size = brush.pose.unit, (view.shape[0], view.shape[1])
    face = polygon_mask(size, outline, 0.01 * unit)
    spot = ellipse_mask(size, inside.at(-0.25, -0.1), (0.62 * unit, 0.95 * unit), 0, 0.3 * unit)
    glow(view, _lighter(looks.skin, 0.4), spot * face, 0.25)
    lit = ellipse_mask(size, inside.at(-0.1, 0.2), (0.88 * unit, 1.3 * unit), 0, 0.14 * unit)
    paint(view, _darker(looks.skin, 0.6), face * (1 - lit), 0.55)
    for side in (-1.0, 1.0):
        cheek = ellipse_mask(size, inside.at(0.56 * side, 0.66), (0.22 * unit,) * 2, 0, 0.12 * unit)
        paint(view, _mix(rgb(looks.skin), rgb("#d0483f"), 0.4), cheek * face, 0.35)
    grain = cloud_noise(view.shape[1], view.shape[0], 16, 3, seed=5)
    shade(view, 0.5 + (grain - 0.5) * soften(face, 1.0), 0.03)


def _moved(pose: Pose, seen: Point, whole: Point) -> Pose:
    """The pose in a window where the point ``whole`` of the picture is at ``seen``."""
    center = (pose.center[0] + seen[0] - whole[0], pose.center[1] + seen[1] - whole[1])
    return Pose(center, pose.unit, pose.mouth, pose.eyelids, pose.lean)


def _draw_hair(brush: _Brush, looks: Looks) -> None:
    crown = [(1.07 * np.sin(t), 0.25 - 1.45 * np.cos(t)) for t in np.linspace(-1.62, 1.62, 50)]
    fringe = [(0.99, 0.12), (0.93, -0.25), (0.7, -0.55), (0.25, -0.74), (-0.25, -0.7)]
    fringe += [(-0.65, -0.52), (-0.92, -0.2), (-0.99, 0.12)]
    brush.patch(rgb(looks.hair), crown + fringe, soft=0.02)
    dark_side = [(0.55, -1.0), (0.95, -0.6), (0.98, -0.1), (0.9, -0.35), (0.6, -0.7)]
    brush.patch(_darker(looks.hair, 0.6), dark_side, 0.05, 0.8)
    for step in range(22):
        end = -0.85 + step * 0.085
        strand = [(-0.35 + (end + 0.35) * s, -1.1 + 0.12 * (1 - s) + 0.45 * s * s) for s in _FIFTHS]
        tone = _lighter(looks.hair, 0.35) if step % 2 else _darker(looks.hair, 0.4)
        brush.line(tone, strand, 0.03, 0.02, strength=0.3)
    brush.oval(_lighter(looks.hair, 0.5), -0.45, -0.92, 0.3, 0.08, soft=0.09, strength=0.45)


def _draw_eye(brush: _Brush, looks: Looks, side: float) -> None:
    x, opening = 0.42 * side, 0.095 * (1 - brush.pose.eyelids)
    brush.oval(_darker(looks.skin, 0.62), x, -0.02, 0.3, 0.2, soft=0.09, strength=0.7)
    brush.oval((0.95, 0.94, 0.92), x, 0.05, 0.2, opening + 0.005, soft=0.01)
    if brush.pose.eyelids < 0.6:
        brush.oval(rgb(looks.eyes), x, 0.04, 0.092, 0.09, soft=0.01)
        brush.oval((0.03, 0.02, 0.02), x, 0.04, 0.05, 0.05, soft=0.005)
        brush.oval((1.0, 1.0, 1.0), x - 0.035, 0.005, 0.022, 0.022)
    lid = [(x + 0.23 * t, 0.06 - (opening + 0.025) * (1 - t * t)) for t in np.linspace(-1, 1, 12)]
    fold = [(px, py - 0.07) for px, py in lid]
    brush.line(_darker(looks.skin, 0.25), lid, 0.09, 0.02, strength=0.8)
    brush.line((0.12, 0.06, 0.05), lid, 0.05, 0.01)
    brush.line(_darker(looks.skin, 0.55), fold, 0.025, 0.015, strength=0.6)
    under = [(x + 0.2 * t, 0.06 + 0.11 * (1 - t * t)) for t in np.linspace(-1, 1, 12)]
    brush.line(_darker(looks.skin, 0.5), under, 0.02, 0.015, strength=0.6)
    _draw_brow(brush, looks, side)


def _draw_brow(brush: _Brush, looks: Looks, side: float) -> None:
    """Thick at the nose, thinner and lower at the temple."""
    for start, end, width in ((-1.0, 0.35, 0.095), (0.0, 0.7, 0.075), (0.5, 1.0, 0.05)):
        steps = np.linspace(start, end, 8)
        arch = [(side * (0.43 + 0.3 * t), -0.23 - 0.06 * (1 - (t + 0.2) ** 2)) for t in steps]
        brush.line(_darker(looks.hair, 0.4), arch, width, 0.02, strength=0.9)


def _draw_nose(brush: _Brush, looks: Looks) -> None:
    bridge = [(-0.09, 0.0), (0.04, 0.0), (0.06, 0.62), (-0.1, 0.62)]
    brush.patch(_lighter(looks.skin, 0.5), bridge, 0.05, 0.6)
    shadow = [(0.1, 0.05), (0.17, 0.6), (0.25, 0.74), (0.1, 0.62)]
    brush.patch(_darker(looks.skin, 0.55), shadow, 0.045, 0.75)
    for side in (-1.0, 1.0):
        brush.oval(
            _darker(looks.skin, 0.2), 0.15 * side, 0.71, 0.085, 0.075, soft=0.03, strength=0.8
        )
    brush.oval(_lighter(looks.skin, 0.4), -0.02, 0.66, 0.12, 0.1, soft=0.05, strength=0.8)
    brush.oval(_darker(looks.skin, 0.7), 0.0, 0.81, 0.2, 0.04, soft=0.04, strength=0.6)
    for side in (-1.0, 1.0):
        brush.oval(_darker(looks.skin, 0.85), 0.1 * side, 0.78, 0.05, 0.025, soft=0.015)


def _draw_mouth(brush: _Brush, looks: Looks) -> None:
    gap = 0.2 * brush.pose.mouth
    brush.oval(_darker(looks.lips, 0.15), 0, 1.1 - gap * 0.2, 0.33, 0.085, soft=0.02)
    brush.oval(rgb(looks.lips), 0, 1.17 + gap * 0.8, 0.29, 0.1, soft=0.025)
    brush.oval((0.2, 0.03, 0.04), 0, 1.13 + gap * 0.35, 0.27, 0.022 + gap * 0.5, soft=0.012)
    if gap > 0.05:
        brush.oval((0.93, 0.91, 0.88), 0, 1.09 + gap * 0.12, 0.19, 0.02 + gap * 0.12, soft=0.012)
    brush.oval(
        _lighter(looks.lips, 0.5), -0.05, 1.2 + gap * 0.95, 0.12, 0.025, soft=0.02, strength=0.5
    )
    brush.oval(_darker(looks.skin, 0.55), 0.02, 1.36 + gap, 0.22, 0.04, soft=0.05, strength=0.5)
