"""Slides and screens: a picture a frame, and changes of writing alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pipelines.vision.cuts.selection import CutKind
from tests.pipelines.vision.test_cuts import Levels, cuts_of, picture
from tests.tables import every

TITLE, LINES, CAPTION, CORNER = (4, 8), (14, 20), (29, 33), (0, 2)
"""Rows in which there is writing."""


def written(
    ground: Levels, seed: int, rows: Sequence[tuple[int, int]], columns: int = 40
) -> Levels:
    """The picture with writing of its own in ``rows``."""
    random = np.random.default_rng(seed)
    slide = ground.copy()
    for top, bottom in rows:
        slide[top:bottom, 6 : 6 + columns] -= random.choice([0, 60], (bottom - top, columns))
    return slide


def template() -> Levels:
    slide = np.full((36, 64), 235.0)
    slide[:3] = 90
    return slide


def deck(rows: Sequence[tuple[int, int]], frames: int = 75) -> list[Levels]:
    """Three slides that differ by what is written in ``rows``."""
    slides = [written(template(), seed, rows) for seed in (1, 2, 3)]
    return [slide for slide in slides for _ in range(frames)]


def beside_a_speaker() -> list[Levels]:
    """Slides, and in a corner of the picture somebody who moves all the time."""
    random = np.random.default_rng(4)
    frames = [slide.copy() for slide in deck([TITLE, LINES])]
    for frame in frames:
        frame[22:, 46:] = random.integers(20, 235, (14, 18))
    return frames


def typed() -> list[Levels]:
    """A line to which a letter comes every eighth of a second."""
    line = written(template(), 1, [TITLE])
    frames = []
    for index in range(150):
        frame = template()
        frame[:, : 6 + index // 3] = line[:, : 6 + index // 3]
        frames.append(frame)
    return frames


def shown_for(frames: int) -> list[Levels]:
    """A note that comes and goes."""
    return [template()] * 60 + [written(template(), 1, [TITLE])] * frames + [template()] * 60


def faded() -> list[Levels]:
    """Writing that comes in a third of a second."""
    slide = written(template(), 1, [TITLE, LINES])
    between = [template() * (1 - share) + slide * share for share in np.linspace(0, 1, 10)]
    return [template()] * 60 + between + [slide] * 60


def in_another_light() -> list[Levels]:
    return [picture(1) * 0.7] * 60 + [picture(1)] * 60


@pytest.mark.parametrize("seconds", [1, 2, 4])
def test_of_a_picture_a_frame_each_step_is_a_cut(seconds: int) -> None:
    found = cuts_of([picture(seed) for seed in range(1, 7)], seconds * 1_000)
    expected = [(step * seconds * 1_000, CutKind.HARD) for step in range(1, 6)]
    assert found == expected


def test_of_a_place_seen_once_a_second_no_step_is_a_cut() -> None:
    frames = []
    for index in range(20):
        frame = picture(1)
        frame[10 + index % 7 : 18 + index % 7, 2 * index : 2 * index + 6] = 30
        frames.append(frame)
    assert cuts_of(frames, 1_000) == []


@pytest.mark.parametrize(
    "frames",
    [deck([TITLE, LINES]), deck([TITLE]), beside_a_speaker()],
    ids=["title and lines", "title alone", "beside a speaker"],
)
def test_a_change_of_writing_that_is_sharp_and_lasts_is_a_cut(frames: list[Levels]) -> None:
    assert cuts_of(frames) == [(3_000, CutKind.HARD), (6_000, CutKind.HARD)]


@every(
    "frames",
    [
        deck([CAPTION]),
        [written(template(), seed // 25, [CORNER], columns=4) for seed in range(150)],
        typed(),
        shown_for(10),
        faded(),
        in_another_light(),
    ],
    ids=["captions", "a clock", "typing", "a note for less than a second", "a fade", "light"],
)
def test_other_small_changes_are_no_cuts(frames: list[Levels]) -> None:
    assert cuts_of(frames) == []
