"""Slides and screens as encoders leave them: their cuts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from models.provider import LocalModels
from pipelines.execution.chain import FreeRun, map_here
from pipelines.vision.cuts.pipeline import find_cuts
from pipelines.vision.cuts.selection import CutConfig
from pipelines.vision.features import FeaturesConfig, ReadFrames
from tests.pipelines.media_builders import (
    Picture,
    folder_workspace,
    texture,
    video_source,
    write_video,
)
from tests.places import SHARED_MEDIA

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
