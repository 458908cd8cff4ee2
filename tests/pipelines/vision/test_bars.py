"""Letterbox, pillarbox and both: the active picture, and what is measured inside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from models.contracts import Box
from models.provider import LocalModels
from pipelines.execution.chain import FreeRun, map_here
from pipelines.media_types import Orientation
from pipelines.types import VisionResult
from pipelines.vision.bars import WHOLE, active_picture, cropped, upright_box
from pipelines.vision.features import FeaturesConfig, facts_from_bytes, segment_features, to_bytes
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from tests.pipelines.media_builders import (
    Picture,
    folder_workspace,
    moving_shot,
    still_shot,
    video_source,
    write_video,
)


def boxed(shots: Iterable[Picture], across: int, down: int, title: str = "") -> Iterator[Picture]:
    """The pictures with black beside them; a title in the lower bar for every other second."""
    for number, shot in enumerate(shots):
        shown = cv2.copyMakeBorder(
            shot, down, down, across, across, cv2.BORDER_CONSTANT, value=(0, 0, 0)
        )
        if title and number // 25 % 2:
            place = (across + 20, shown.shape[0] - down // 3)
            cv2.putText(shown, title, place, cv2.FONT_HERSHEY_DUPLEX, 0.5, (255, 255, 255), 1)
        yield np.asarray(shown, np.uint8)


def film() -> list[Picture]:
    """Nine seconds, cuts at 3 and 6; the first shot is dark."""
    dark = [(shot * 0.25).astype(np.uint8) for shot in still_shot(11, 75)]
    return [*dark, *moving_shot(12, 75, across=2), *still_shot(13, 75)]


CASES = {
    "none": (0, 0, "", WHOLE),
    "letterbox": (0, 30, "", Box(0, 1 / 8, 1, 3 / 4)),
    "letterbox with a title": (0, 30, "AND WHAT IS THAT TO YOU?", Box(0, 1 / 8, 1, 3 / 4)),
    "pillarbox": (125, 0, "", Box(125 / 570, 0, 320 / 570, 1)),
    "both": (40, 22, "", Box(0.1, 22 / 224, 0.8, 180 / 224)),
    "a telephone's": (346, 0, "", Box(346 / 1012, 0, 320 / 1012, 1)),
}


def analysed(folder: Path, pictures: Iterable[Picture]) -> VisionResult:
    path = write_video(folder / "film.mp4", pictures)
    workspace = folder_workspace(folder / "store")
    return analyse_vision(
        video_source(workspace, path), workspace=workspace, models=LocalModels(),
        control=FreeRun(), config=VisionConfig(), mapper=map_here,
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bars_change_neither_cuts_nor_what_is_measured(case: str, tmp_path: Path) -> None:
    across, down, title, active = CASES[case]
    found = analysed(tmp_path, boxed(film(), across, down, title))
    assert [scene.start_ms for scene in found.scenes] == [0, 3_000, 6_000]
    for scene in (*found.scenes, found.overview):
        box = scene.active_picture
        assert (box.left, box.top, box.width, box.height) == pytest.approx(
            (active.left, active.top, active.width, active.height), abs=0.012
        )
    assert "#000000" not in found.scenes[2].color_palette
    assert "black" not in found.scenes[2].description


def box_of(folder: Path, pictures: Iterable[Picture]) -> Box:
    path = write_video(folder / "film.mp4", pictures)
    workspace = folder_workspace(folder / "store")
    video = video_source(workspace, path)
    features = segment_features(video, video.segments[0], workspace, FeaturesConfig())
    return active_picture([facts_from_bytes(to_bytes(features))])


def lit_below(shots: Iterable[Picture], rows: int) -> Iterator[Picture]:
    """Nothing but black above ``rows``, as a sky at night."""
    for shot in shots:
        shown = shot.copy()
        shown[:rows] = 0
        yield shown


def spot_lit(count: int) -> Iterator[Picture]:
    """A dark stage with one light that goes about."""
    for number in range(count):
        shown = np.full((180, 320, 3), 3, np.uint8)
        place = (160 + round(100 * np.sin(number / 40)), 90 + round(70 * np.cos(number / 25)))
        yield np.asarray(cv2.circle(shown, place, 40, (200, 180, 160), -1), np.uint8)


@pytest.mark.parametrize(
    "pictures",
    [
        pytest.param(lambda: lit_below(still_shot(21, 100), 60), id="a black sky"),
        pytest.param(lambda: spot_lit(300), id="a dark stage"),
        pytest.param(lambda: iter([np.zeros((180, 320, 3), np.uint8)] * 50), id="black"),
    ],
)
def test_dark_pictures_have_no_bars(pictures: object, tmp_path: Path) -> None:
    assert callable(pictures)
    assert box_of(tmp_path, pictures()) == WHOLE


def test_narrower_shots_hide_no_letterbox(tmp_path: Path) -> None:
    """Most shots of the film are narrow, black at their sides."""
    narrow = [shot[:, 80:240] for shot in still_shot(14, 255)]
    shots = [*boxed(narrow, 80, 0), *still_shot(15, 45)]
    box = box_of(tmp_path, boxed(shots, 0, 30))
    assert (box.left, box.top, box.width, box.height) == pytest.approx(
        (0, 1 / 8, 1, 3 / 4), abs=0.012
    )


def test_narrower_shots_hide_no_pillars(tmp_path: Path) -> None:
    """Four fifths of the film are narrower than the picture between the bars."""
    narrow = [shot[:, 60:260] for shot in still_shot(14, 240)]
    shots = [*boxed(narrow, 60, 0), *still_shot(15, 60)]
    box = box_of(tmp_path, boxed(shots, 60, 0))
    assert (box.left, box.width) == pytest.approx((60 / 440, 320 / 440), abs=0.012)


def test_a_sunset_over_black_ground_in_letterbox_keeps_its_ground(tmp_path: Path) -> None:
    sunset = (shot[::-1] for shot in lit_below(still_shot(22, 100), 50))
    box = box_of(tmp_path, boxed(sunset, 0, 30))
    assert (box.top, box.height) == pytest.approx((1 / 8, 3 / 4), abs=0.012)


def test_a_box_follows_the_picture_when_it_is_made_upright() -> None:
    stored = np.zeros((40, 80, 3), np.uint8)
    stored[10:20, 20:60] = 255
    box = Box(20 / 80, 10 / 40, 40 / 80, 10 / 40)
    for degrees in (0, 90, 180, 270):
        for mirrored in (False, True):
            orientation = Orientation(degrees, mirrored)
            shown = orientation.upright(stored)
            assert cropped(shown, upright_box(box, orientation)).min() == 255
