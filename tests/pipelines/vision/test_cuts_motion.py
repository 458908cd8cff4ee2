"""Camera motion from pairs of tiny pictures."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from models.contracts import CameraMotion
from pipelines.media_types import Orientation
from pipelines.vision.camera_motion import camera_motion, pair_times
from pipelines.vision.features import FrameFeatures
from tests.tables import every

FRAME_MS = 40
UPRIGHT = Orientation()


def filmed(
    across: float = 0.0, down: float = 0.0, growth: float = 0.0, shake: float = 0.0
) -> FrameFeatures:
    """Two seconds of a camera over a smooth random ground; pixels of 64 x 36 a frame."""
    random = np.random.default_rng(5)
    ground = cv2.resize(random.integers(20, 235, (30, 54)).astype(np.uint8), (540, 300))
    views = []
    for index in range(50):
        scale = (1 + growth) ** -(index - 25)
        x = 240 + across * (index - 25) + random.normal(0, shake)
        y = 130 + down * (index - 25) + random.normal(0, shake)
        matrix = np.array([[scale, 0, x - 32 * scale], [0, scale, y - 18 * scale]])
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        views.append(cv2.warpAffine(ground, matrix, (64, 36), flags=flags))
    times = np.arange(50, dtype=np.int64) * FRAME_MS
    return FrameFeatures(times, np.stack(views), np.full((50, 2, 9, 16), 128, np.uint8))


def labelled(film: FrameFeatures, orientation: Orientation = UPRIGHT) -> CameraMotion:
    pairs = pair_times(film.times_ms, 0, 50 * FRAME_MS)
    return camera_motion(film, pairs, orientation)


@every(
    ("film", "motion"),
    [
        pytest.param(filmed(), CameraMotion.STATIC, id="nothing moves"),
        pytest.param(filmed(across=0.3), CameraMotion.PAN_RIGHT, id="camera goes right"),
        pytest.param(filmed(across=-0.3), CameraMotion.PAN_LEFT, id="camera goes left"),
        pytest.param(filmed(down=-0.2), CameraMotion.TILT_UP, id="camera goes up"),
        pytest.param(filmed(down=0.2), CameraMotion.TILT_DOWN, id="camera goes down"),
        pytest.param(filmed(growth=0.006), CameraMotion.ZOOM_IN, id="view gets closer"),
        pytest.param(filmed(growth=-0.006), CameraMotion.ZOOM_OUT, id="view gets wider"),
        pytest.param(filmed(shake=0.5), CameraMotion.HANDHELD, id="unsteady"),
        pytest.param(filmed(across=1.2), CameraMotion.PAN_RIGHT, id="fast pan"),
    ],
)
def test_camera_motion_is_named_after_what_the_camera_does(
    film: FrameFeatures, motion: CameraMotion
) -> None:
    assert labelled(film) is motion


def test_motion_is_named_as_seen_after_the_picture_is_turned_upright() -> None:
    assert labelled(filmed(across=0.3), Orientation(90)) is CameraMotion.TILT_DOWN
    assert labelled(filmed(across=0.3), Orientation(0, mirrored=True)) is CameraMotion.PAN_LEFT
    assert labelled(filmed(across=0.3), Orientation(90, mirrored=True)) is CameraMotion.TILT_UP


def test_something_small_that_moves_before_a_still_camera_is_not_the_camera() -> None:
    film = filmed()
    for index in range(50):
        film.luma[index, 10:22, index : index + 10] = 250
    assert labelled(film) is CameraMotion.STATIC


def test_a_cut_that_was_missed_is_no_shaken_camera() -> None:
    film = filmed()
    film.luma[25:] = np.roll(film.luma[25:], (7, 20), axis=(1, 2))
    assert labelled(film) is not CameraMotion.HANDHELD


def test_a_pan_that_starts_and_stops_is_no_shaken_camera() -> None:
    film = filmed()
    for index in range(50):
        moved = round(6 * np.sin(np.pi * index / 50))
        film.luma[index] = np.roll(film.luma[index], moved, axis=1)
    assert labelled(film) is not CameraMotion.HANDHELD


def test_a_plain_picture_tells_nothing_of_the_camera() -> None:
    times = np.arange(50, dtype=np.int64) * FRAME_MS
    plain = np.full((50, 36, 64), 90, np.uint8)
    film = FrameFeatures(times, plain, np.full((50, 2, 9, 16), 128, np.uint8))
    assert labelled(film) is CameraMotion.UNKNOWN


@pytest.mark.parametrize("frames", [0, 1])
def test_too_few_frames_make_no_pairs(frames: int) -> None:
    assert pair_times(np.arange(frames, dtype=np.int64) * FRAME_MS, 0, 1000) == []
