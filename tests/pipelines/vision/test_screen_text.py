"""Writing on the screen: all of it, when it is there, and how often it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from models.pictures import TEXT_COLUMNS, TEXT_ROWS
from models.provider import LocalModels
from pipelines.execution.chain import FreeRun, map_here
from pipelines.types import Scene, ScreenText
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from pipelines.vision.screen_text import MOST_READINGS, READINGS, ScenePlaces, StrokeSamples
from tests.pipelines.media_builders import (
    Picture,
    folder_workspace,
    moving_shot,
    video_source,
    write_video,
)
from tests.pipelines.vision.test_screens import SLIDES, slide

WIDTH, HEIGHT, RATE = 640, 360, 10
NAMES = ("ANNA WEBER", "BORIS KRALL", "CLARA LINDT", "DAVID OSTER", "EMMA PFEIL", "FRANZ QUAST",
         "GRETA ROTH", "HUGO SOMMER")  # fmt: skip


def write(picture: Picture, text: str, place: tuple[int, int], size: float = 1.0) -> None:
    """White on a dark plate."""
    (across, down), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_DUPLEX, size, 2)
    left, bottom = place
    plate = (left - 8, bottom - down - 8), (left + across + 8, bottom + 8)
    cv2.rectangle(picture, *plate, (20, 20, 20), -1)
    cv2.putText(picture, text, place, cv2.FONT_HERSHEY_DUPLEX, size, (245, 245, 245), 2)


def interview(seconds: int) -> Iterator[Picture]:
    """A pan, with a timecode all the time and a name from 4 to 9 s."""
    for index, view in enumerate(moving_shot(5, seconds * RATE, across=1.5)):
        picture = np.asarray(cv2.resize(view, (WIDTH, HEIGHT)), np.uint8)
        write(picture, f"10:20:{index // RATE:02}:{index % RATE:02}", (20, 40))
        if 4 <= index / RATE < 9:
            write(picture, "Anna Weber, baker", (60, 320), 1.1)
        yield picture


def rolling(seconds: int) -> Iterator[Picture]:
    """Names that roll up over black, 50 rows a second, a name every 100 rows."""
    for index in range(seconds * RATE):
        picture = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        for place, name in enumerate(NAMES):
            row = HEIGHT + 100 * place - 5 * index
            if -30 < row < HEIGHT + 30:
                cv2.putText(picture, name, (150, row), cv2.FONT_HERSHEY_DUPLEX, 1.1, (240,) * 3, 2)
        yield picture


def seen_in(folder: Path, pictures: Iterable[Picture]) -> tuple[tuple[Scene, ...], Scene, int]:
    """Scenes, overview, and how many frames were read."""
    workspace = folder_workspace(folder / "store")
    path = write_video(folder / "film.mp4", pictures, rate=RATE)
    found = analyse_vision(
        video_source(workspace, path, segment_ms=7_000),
        workspace=workspace,
        models=LocalModels(),
        control=FreeRun(),
        config=VisionConfig(),
        mapper=map_here,
    )
    keys = workspace.store.list_keys("job/vision/text")
    return found.scenes, found.overview, sum(len(READINGS.load(workspace.store, k)) for k in keys)


def times(line: ScreenText) -> tuple[float, float]:
    assert line.start_ms is not None
    assert line.end_ms is not None
    return line.start_ms / 1000, line.end_ms / 1000


def test_a_timecode_and_a_name_in_one_shot_have_their_times(tmp_path: Path) -> None:
    scenes, overview, readings = seen_in(tmp_path, interview(14))
    assert scenes == ()
    by_text = {line.text: line for line in overview.on_screen_text}
    [clock] = [line for text, line in by_text.items() if text.startswith("10:20:")]
    assert times(clock) == (0.0, 14.0)
    assert times(by_text["Anna Weber, baker"]) == pytest.approx((4.0, 9.0), abs=0.6)
    assert len(by_text) == 2
    assert readings <= 4


def test_credits_that_roll_are_read_once_each_in_order(tmp_path: Path) -> None:
    _, overview, readings = seen_in(tmp_path, rolling(21))
    assert [line.text for line in overview.on_screen_text] == [*NAMES]
    for place, line in enumerate(overview.on_screen_text):
        assert times(line) == pytest.approx((2.0 * place, 2.0 * place + 7.2), abs=1.1)
    assert readings <= 8


def test_each_slide_has_its_writing(tmp_path: Path) -> None:
    pictures = [slide(*each) for each in SLIDES for _ in range(4 * RATE)]
    scenes, overview, readings = seen_in(tmp_path, pictures)
    assert [[line.text for line in scene.on_screen_text] for scene in scenes] == [
        [*each] for each in SLIDES
    ]
    assert [times(line) for line in scenes[1].on_screen_text] == [(4.0, 8.0)] * 3
    assert [line.text for line in overview.on_screen_text] == [text for it in SLIDES for text in it]
    assert readings == 3


def test_nothing_is_read_where_nothing_is_written(tmp_path: Path) -> None:
    shot = (np.asarray(cv2.resize(it, (WIDTH, HEIGHT)), np.uint8) for it in moving_shot(3, 60))
    _, overview, readings = seen_in(tmp_path, shot)
    assert (overview.on_screen_text, readings) == ((), 0)


def test_readings_of_a_scene_are_bounded() -> None:
    """An hour in which other writing stands every four seconds."""
    random = np.random.default_rng(1)
    pages = [random.random((TEXT_ROWS, TEXT_COLUMNS)) < 0.1 for _ in range(900)]
    packed = tuple(np.packbits(pages[index // 4], axis=1) for index in range(3_600))
    samples = StrokeSamples(tuple(range(0, 3_600_000, 1_000)), packed)
    places = ScenePlaces.of(samples, 0, 3_600_000)
    assert len(places.times_ms) == MOST_READINGS
    assert places.times_ms[0] == 0
    assert places.times_ms[-1] >= 3_590_000
