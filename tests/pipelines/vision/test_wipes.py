"""Wipes and what resembles them, on features made of arrays; uneven and missing frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np
import pytest

from pipelines.vision.cuts.measures import light_residue
from pipelines.vision.cuts.selection import Cut, CutKind, detect_cuts
from pipelines.vision.features import FrameFeatures
from tests.pipelines.media_builders import moving_shot
from tests.pipelines.vision.test_cuts import FRAME_MS, Levels, features, mixed, picture, shot
from tests.tables import every

rows, columns = np.mgrid[:36, :64]
Mask = Callable[[float], "np.typing.NDArray[np.bool_]"]

SHAPES: dict[str, Mask] = {
    "from the left": lambda share: columns < share * 64,
    "from the right": lambda share: columns >= (1 - share) * 64,
    "from above": lambda share: rows < share * 36,
    "diagonal": lambda share: columns / 64 + rows / 36 < 2 * share,
    "iris out": lambda share: np.hypot(columns - 32, rows - 18) < share * 37,
    "iris in": lambda share: np.hypot(columns - 32, rows - 18) > (1 - share) * 37,
    "barn doors": lambda share: abs(columns - 32) < share * 33,
    "clock": lambda share: (np.arctan2(columns - 32, 18 - rows) / (2 * np.pi)) % 1 < share,
}


def found(frames: Sequence[Levels]) -> tuple[Cut, ...]:
    return detect_cuts([features(frames)], len(frames) * FRAME_MS)


def wiped(first: list[Levels], second: list[Levels], shape: Mask) -> list[Levels]:
    steps = len(first) + 1
    return [
        np.where(shape((index + 1) / steps), new, old)
        for index, (old, new) in enumerate(zip(first, second, strict=True))
    ]


@every("length", [10, 18, 30])
@every("shape", SHAPES.values(), ids=SHAPES)
def test_a_wipe_is_one_cut_inside_it(shape: Mask, length: int) -> None:
    frames = shot(1, 60) + wiped(shot(1, length), shot(2, length), shape) + shot(2, 60)
    (cut,) = found(frames)
    assert cut.kind is CutKind.WIPE
    assert 60 * FRAME_MS <= cut.time_ms <= (60 + length) * FRAME_MS
    assert abs(cut.start_ms - 60 * FRAME_MS) <= 3 * FRAME_MS
    assert abs(cut.end_ms - (60 + length) * FRAME_MS) <= max(3, length // 6) * FRAME_MS


def covered(frames: list[Levels], start: int, move: int, hold: int, share: float) -> list[Levels]:
    """Something comes in from below, covers ``share`` of the height, stays and leaves."""
    board, shown = picture(99), []
    for index, frame in enumerate(frames):
        left = start + 2 * move + hold - index
        inside = max(0.0, min(1.0, (index - start) / move, left / move))
        top = round(36 * (1 - inside * share))
        shown.append(np.vstack([frame[:top], board[: 36 - top]]))
    return shown


def held(frames: list[Levels], start: int, move: int) -> list[Levels]:
    """A board comes up before the camera and stays; around it the shot goes on."""
    board = np.random.default_rng(9).integers(0, 255, (30, 54)).astype(np.float64)
    shown = []
    for index, frame in enumerate(frames):
        inside = max(0.0, min(1.0, (index - start) / move))
        top = round(36 - 33 * inside)
        before = frame.copy()
        before[top : top + 30, 5:59] = board[: 36 - top]
        shown.append(before)
    return shown


def lit(frames: list[Levels], start: int, gain: float) -> list[Levels]:
    return frames[:start] + [np.clip(frame * gain, 0, 255) for frame in frames[start:]]


def strobed(frames: list[Levels], period: int) -> list[Levels]:
    return [
        frame * 0.3 + 180 if 40 <= index < 80 and index % period < period // 2 else frame
        for index, frame in enumerate(frames)
    ]


def whipped(frames: int, start: int, length: int, seed: int) -> list[Levels]:
    """A camera that rests, whips over a wide place, blurred, and rests."""
    random = np.random.default_rng(seed)
    wide = np.kron(random.integers(20, 235, (9, 48)).astype(np.float64), np.ones((4, 4)))
    seen, before = [], 0.0
    for index in range(frames):
        share = min(1.0, max(0.0, (index - start) / length))
        at = 110 * (0.5 - 0.5 * np.cos(np.pi * share))
        blur = max(1, round((at - before) * 0.5))
        views = [wide[:, round(at) + back : round(at) + back + 64] for back in range(blur)]
        seen.append(np.mean(views, axis=0))
        before = at
    return seen


def swept(seed: int, across: float) -> list[Levels]:
    """A camera that goes over a wide place all the time, ``across`` pixels of 320 a frame."""
    shown = moving_shot(seed, 100, across=across)
    small = (cv2.resize(frame, (64, 36), interpolation=cv2.INTER_AREA) for frame in shown)
    return [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY).astype(np.float64) for frame in small]


@every(
    "frames",
    [
        pytest.param(covered(shot(1, 150), 40, 8, 25, 0.85), id="a slate comes and leaves"),
        pytest.param(covered(shot(2, 150), 40, 8, 12, 1.0), id="something fills the picture"),
        pytest.param(held(shot(1, 150), 60, 8), id="a slate comes and stays"),
        pytest.param(lit(shot(3, 120), 60, 1.8), id="a light is switched on"),
        pytest.param(lit(shot(4, 120), 60, 0.5), id="a light is switched off"),
        pytest.param(strobed(shot(5, 120), 4), id="strobe"),
        pytest.param(strobed(shot(6, 120), 8), id="slow strobe"),
        pytest.param(whipped(120, 50, 8, 7), id="whip pan of a third of a second"),
        pytest.param(whipped(120, 50, 14, 8), id="whip pan of half a second"),
        *(
            pytest.param(swept(seed, across), id=f"a pan of {across} pixels a frame, {seed}")
            for seed in (5, 6, 7, 8)
            for across in (3, 4, 6)
        ),
    ],
)
def test_what_only_resembles_a_cut_gives_none(frames: list[Levels]) -> None:
    assert found(frames) == ()


def test_a_view_that_cuts_bring_back_is_three_scenes() -> None:
    frames = shot(1, 60) + shot(2, 40) + shot(1, 60)
    assert [(cut.time_ms, cut.kind) for cut in found(frames)] == [
        (60 * FRAME_MS, CutKind.HARD),
        (100 * FRAME_MS, CutKind.HARD),
    ]


def test_a_wipe_to_a_shot_that_a_cut_leaves_again_stays() -> None:
    wipe = wiped(shot(1, 18), shot(2, 18), SHAPES["diagonal"])
    frames = shot(1, 60) + wipe + shot(2, 30) + shot(1, 60)
    assert [cut.kind for cut in found(frames)] == [CutKind.WIPE, CutKind.HARD]


def uneven_times(frames: int, seed: int) -> list[int]:
    """Frames of 15 to 70 ms."""
    random = np.random.default_rng(seed)
    return [0, *np.cumsum(random.integers(15, 70, frames - 1)).tolist()]


@pytest.mark.parametrize("seed", range(4))
def test_cuts_of_a_variable_frame_rate_are_exact_in_presentation_time(seed: int) -> None:
    frames = shot(1, 60) + shot(2, 70) + shot(3, 60)
    even, times = features(frames), uneven_times(190, seed)
    timed = FrameFeatures(np.array(times), even.luma, even.chroma)
    cuts = detect_cuts([timed], times[-1] + 40)
    assert [cut.time_ms for cut in cuts] == [times[60], times[130]]


@pytest.mark.parametrize("seed", range(4))
def test_dropped_frames_move_no_cut(seed: int) -> None:
    frames = shot(1, 60) + shot(2, 70) + shot(3, 60)
    kept = np.flatnonzero(np.random.default_rng(seed).random(190) > 0.15)
    kept = np.union1d(kept, [0, 60, 130])
    whole = features(frames)
    thinned = FrameFeatures(whole.times_ms[kept], whole.luma[kept], whole.chroma[kept])
    cuts = detect_cuts([thinned], 190 * FRAME_MS)
    assert [cut.time_ms for cut in cuts] == [60 * FRAME_MS, 130 * FRAME_MS]


@pytest.mark.parametrize("pieces", [1, 7, 64, 300])
def test_wipes_do_not_depend_on_how_the_frames_come(pieces: int) -> None:
    frames = (
        shot(1, 250)
        + wiped(shot(1, 18), shot(2, 18), SHAPES["clock"])
        + covered(shot(2, 250), 150, 8, 12, 1.0)
        + mixed(shot(2, 20), shot(3, 20))
        + shot(3, 120)
    )
    whole = features(frames)
    parts = [whole.part(at, at + pieces) for at in range(0, len(whole), pieces)]
    duration_ms = len(frames) * FRAME_MS
    assert detect_cuts(parts, duration_ms) == detect_cuts([whole], duration_ms)


def test_light_leaves_no_residue_and_another_picture_does() -> None:
    one, other = (np.clip(picture(seed), 0, 255).astype(np.uint8) for seed in (1, 2))
    brighter = np.clip(picture(1) * 1.8, 0, 255).astype(np.uint8)
    assert light_residue(one, brighter) < 0.05
    assert light_residue(one, other) > 0.5
