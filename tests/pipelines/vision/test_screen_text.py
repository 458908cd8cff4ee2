"""Slides and other writing on the screen: cuts between them, all of the text, when it is there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from models.contracts import ShotType
from models.pictures import TEXT_COLUMNS, TEXT_ROWS
from models.provider import LocalModels
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.types import Scene, ScreenText, VisionResult
from pipelines.vision.cuts.pipeline import find_cuts
from pipelines.vision.cuts.selection import CutConfig
from pipelines.vision.features import FeaturesConfig, ReadFrames
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from pipelines.vision.screen_text import MOST_READINGS, READINGS, ScenePlaces, StrokeSamples
from serve_app.results.scenes import scene_json
from tests.pipelines.media_builders import (
    Picture,
    folder_workspace,
    moving_shot,
    texture,
    video_source,
    write_video,
)
from tests.places import SHARED_MEDIA

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


SLIDES = (
    ("Quarterly results", "Revenue grew by a tenth", "Costs stayed as they were"),
    ("Customers", "Forty new ones since May", "Two left us for good"),
    ("Next steps", "Hire a second engineer", "Open the shop in Graz"),
)


def slide(title: str, *lines: str) -> Picture:
    """A slide of a template: its bar, a title, lines."""
    picture = np.full((360, 640, 3), 245, np.uint8)
    picture[:12] = (30, 60, 160)
    cv2.putText(picture, title, (40, 90), cv2.FONT_HERSHEY_SIMPLEX, 1.4, (20, 20, 20), 3)
    for row, line in enumerate(lines):
        place = (60, 170 + 50 * row)
        cv2.putText(picture, line, place, cv2.FONT_HERSHEY_SIMPLEX, 0.9, (60, 60, 60), 2)
    return picture


def cuts_of(folder: Path, path: Path) -> list[int]:
    workspace = folder_workspace(folder / "store")
    video = video_source(workspace, path)
    read = ReadFrames(video, workspace, FeaturesConfig())
    features = map_here(video.segments, read, FreeRun())
    control = FreeRun()
    found = find_cuts(
        features, video, workspace, control, CutConfig(), models=LocalModels(), mapper=map_here
    )
    return [cut.time_ms for cut in found.cuts]


def every(seconds: float, pictures: int) -> Iterator[int]:
    return iter([round(index * seconds * 1000) for index in range(pictures)])


@pytest.mark.parametrize("seconds", [1, 4])
def test_a_slide_show_with_a_frame_a_picture_is_cut_at_each(tmp_path: Path, seconds: int) -> None:
    pictures = [texture(seed) for seed in range(5)]
    path = write_video(tmp_path / "show.mp4", pictures, times_ms=every(seconds, 5))
    assert cuts_of(tmp_path, path) == [seconds * 1_000 * step for step in range(1, 5)]


@pytest.mark.parametrize("crf", ["18", "38"])
def test_slides_that_differ_by_their_writing_are_cut(tmp_path: Path, crf: str) -> None:
    """Also where the encoder has few bits, and refines what it writes for some frames."""
    pictures = [slide(*each) for each in SLIDES for _ in range(60)]
    options = {"preset": "veryfast", "crf": crf}
    path = write_video(
        tmp_path / "deck.mp4", pictures, rate=15, keyframe_every=250, options=options
    )
    assert cuts_of(tmp_path, path) == [4_000, 8_000]


def test_a_screen_recording_has_frames_only_where_something_changes(tmp_path: Path) -> None:
    pictures = [slide(*each) for each in SLIDES for _ in range(2)]
    times = iter([0, 33, 7_300, 7_333, 20_000, 25_000])
    path = write_video(tmp_path / "screen.mkv", pictures, times_ms=times)
    assert cuts_of(tmp_path, path) == [7_300, 20_000]


@pytest.mark.shared_media
@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("11-one-frame-per-picture/slides-quarter-fps.mp4", [4_000, 8_000, 12_000, 16_000, 20_000]),
        ("11-one-frame-per-picture/slides-25fps.mp4", [4_000, 8_000, 12_000, 16_000, 20_000]),
        ("12-slide-deck/deck-15fps.mp4", [5_000, 10_000, 15_000, 20_000, 25_000]),
    ],
)
def test_recordings_from_the_field_are_cut_at_their_slides(
    tmp_path: Path, file: str, expected: list[int]
) -> None:
    assert cuts_of(tmp_path, SHARED_MEDIA / "field" / file) == expected


DEMO = Path(__file__).resolve().parents[2] / "media" / "demo.mp4"

Analysed = tuple[Workspace, VisionResult]


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Analysed:
    workspace = folder_workspace(tmp_path_factory.mktemp("store"))
    result = analyse_vision(
        video_source(workspace, DEMO),
        workspace=workspace,
        models=LocalModels(),
        control=FreeRun(),
        config=VisionConfig(),
        mapper=map_here,
    )
    return workspace, result


def test_titles_are_read_and_quoted(analysed: Analysed) -> None:
    first, last = analysed[1].scenes[0], analysed[1].scenes[-1]
    assert [line.text for line in first.on_screen_text] == [
        "A DAY BY THE SEA",
        "a short drawn film",
    ]
    assert first.description.startswith("Title “A DAY BY THE SEA” and “a short drawn film”")
    assert [line.text for line in last.on_screen_text] == ["THE END", "thank you for watching"]
    assert "text" in first.objects


def test_scenes_without_writing_have_none(analysed: Analysed) -> None:
    assert [bool(scene.on_screen_text) for scene in analysed[1].scenes[1:-1]] == [False] * 5


def test_faces_are_counted_and_give_the_shot_type(analysed: Analysed) -> None:
    presenter, talk = analysed[1].scenes[1], analysed[1].scenes[5]
    assert presenter.shot_type is ShotType.MEDIUM_CLOSE_UP
    assert "of a person" in presenter.description
    assert talk.shot_type is ShotType.MEDIUM
    assert "of two or more people" in talk.description


def test_the_document_has_the_lines_with_their_boxes(analysed: Analysed) -> None:
    document = json.loads(json.dumps(scene_json(analysed[1].scenes[0], str)))
    title = document["onScreenText"][0]
    assert title["text"] == "A DAY BY THE SEA"
    assert 0.9 <= title["confidence"] <= 1
    assert title["box"].keys() == {"left", "top", "width", "height"}
    assert all(0 <= edge <= 1 for edge in title["box"].values())
    assert scene_json(analysed[1].scenes[2], str)["onScreenText"] == []
