"""A programme: shots, what happens in them, and the transitions between them, from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from benchmarks.programmes.distractors import DISTRACTORS
from benchmarks.programmes.shots import ShotLibrary
from benchmarks.programmes.transitions import WIPES, dissolve, faded, wiped

Picture = npt.NDArray[np.uint8]

SHOT_FRAMES = (36, 90)
CLEAR_FRAMES = 18
"""Of each shot are shown at least, between two transitions."""
DISTRACTED_SHARE = 0.45


class Kind(StrEnum):
    """Kinds of transition, as the truth lists name them."""

    HARD = "hard"
    DISSOLVE = "dissolve"
    FADE_BLACK = "fade_black"
    FADE_WHITE = "fade_white"
    WIPE = "wipe"


MIX = (
    (Kind.HARD, 0.44),
    (Kind.DISSOLVE, 0.22),
    (Kind.FADE_BLACK, 0.12),
    (Kind.FADE_WHITE, 0.06),
    (Kind.WIPE, 0.16),
)
"""Shares of the kinds: far more gradual ones than films have, so that each can be measured."""


@dataclass(frozen=True, slots=True)
class Transition:
    """``start``: first picture that is not all A; ``end``: first one that is all B. A hard
    cut has both at the first picture of the new shot."""

    kind: Kind
    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Incident:
    """A distractor in the shot between two picture numbers."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Join:
    """A transition chosen but not yet made. ``overlap`` pictures of A and B are mixed; of a
    fade ``out`` pictures of A and ``back`` of B are, with ``hold`` blank ones between."""

    kind: Kind
    name: str = ""
    overlap: int = 0
    softness: float = 0.0
    out: int = 0
    hold: int = 0
    back: int = 0

    @property
    def takes_of_a(self) -> int:
        return self.overlap or self.out

    @property
    def takes_of_b(self) -> int:
        return self.overlap or self.back


class Programme:
    """Pictures one by one; ``truth`` and ``incidents`` are complete once all were taken."""

    def __init__(self, seed: int, library: ShotLibrary, transitions: int) -> None:
        self._chance = random.Random(seed)
        self._library = library
        self._joins = [chosen_join(self._chance) for _ in range(transitions)]
        self._emitted = 0
        self._event = ""
        self.truth: list[Transition] = []
        self.incidents: list[Incident] = []

    def pictures(self) -> Iterator[Picture]:
        """The programme from its first picture to its last."""
        group, shot = self._shot("", 0, self._joins[0].takes_of_a)
        begin, event = 0, self._event
        for index, join in enumerate(self._joins):
            following = self._joins[index + 1] if index + 1 < len(self._joins) else None
            after = following.takes_of_a if following else 0
            group, coming = self._shot(group, join.takes_of_b, after)
            coming_event = self._event
            yield from self._clear(shot[begin : len(shot) - join.takes_of_a], event)
            start = self._emitted
            yield from self._shown(joined(join, shot, coming))
            self.truth.append(Transition(join.kind, join.name, start, self._emitted))
            shot, begin, event = coming, join.takes_of_b, coming_event
        yield from self._clear(shot[begin:], event)

    def _clear(self, pictures: list[Picture], event: str) -> Iterator[Picture]:
        """A shot's own part, noted down if a distractor was put there."""
        if event:
            self.incidents.append(Incident(event, self._emitted, self._emitted + len(pictures)))
        yield from self._shown(pictures)

    def _shown(self, pictures: list[Picture]) -> Iterator[Picture]:
        for picture in pictures:
            self._emitted += 1
            yield picture

    def _shot(self, not_group: str, before: int, after: int) -> tuple[str, list[Picture]]:
        """A shot with room for a transition at either end and something clear between them."""
        least = before + CLEAR_FRAMES + after
        while True:
            length = least + self._chance.randint(*SHOT_FRAMES) - CLEAR_FRAMES
            group, shot = self._library.draw(self._chance, length, not_group)
            if len(shot) >= least:
                break
        return group, shot[:before] + self._eventful(shot, before, after) + shot[
            len(shot) - after :
        ]

    def _eventful(self, shot: list[Picture], before: int, after: int) -> list[Picture]:
        """The clear part of the shot, with or without a distractor."""
        clear, self._event = shot[before : len(shot) - after], ""
        if self._chance.random() >= DISTRACTED_SHARE or len(clear) < 34:
            return clear
        name = self._chance.choice(sorted(DISTRACTORS))
        if name in ("shake", "fast_pan", "lamp") and (before or after):
            return clear
        self._event = name
        return DISTRACTORS[name](self._chance, clear)


def chosen_join(chance: random.Random) -> _Join:
    """A transition of a kind drawn from ``MIX``, its lengths in pictures."""
    kind = chance.choices([kind for kind, _ in MIX], [share for _, share in MIX])[0]
    if kind is Kind.HARD:
        return _Join(kind)
    if kind is Kind.DISSOLVE:
        return _Join(kind, overlap=chance.choice([6, 8, 12, 16, 20, 25, 30, 40, 50]))
    if kind is Kind.WIPE:
        softness = chance.choice([0.0, 0.0, 0.08, 0.25])
        return _Join(kind, chance.choice(WIPES), chance.choice([10, 14, 18, 25, 35]), softness)
    out, back = chance.choice([5, 8, 12, 20, 30]), chance.choice([0, 5, 8, 12, 20, 30])
    return _Join(kind, out=out, hold=chance.choice([1, 3, 8, 15, 25]), back=back)


def joined(join: _Join, a: list[Picture], b: list[Picture]) -> list[Picture]:
    """The pictures of the transition itself."""
    if join.kind in (Kind.FADE_BLACK, Kind.FADE_WHITE):
        return _fade(join, a, b)
    tail, mixed = a[len(a) - join.overlap :], []
    for index in range(join.overlap):
        share = (index + 1) / (join.overlap + 1)
        one, other = tail[index], b[index]
        if join.kind is Kind.DISSOLVE:
            mixed.append(dissolve(one, other, share))
        else:
            mixed.append(wiped(join.name, one, other, share, join.softness))
    return mixed


def _fade(join: _Join, a: list[Picture], b: list[Picture]) -> list[Picture]:
    level = 0 if join.kind is Kind.FADE_BLACK else 255
    tail = a[len(a) - join.out :]
    gone = [faded(picture, level, (index + 1) / join.out) for index, picture in enumerate(tail)]
    blank = [np.full_like(a[0], level)] * join.hold
    back = [
        faded(picture, level, 1 - (index + 1) / (join.back + 1))
        for index, picture in enumerate(b[: join.back])
    ]
    return gone + blank + back
