"""The embedded describer says what was measured, and nothing else."""

from __future__ import annotations

from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from models.backends.packaged.describer import (
    PackagedSceneDescriber,
    SceneEvidence,
    objects_in,
    sentences,
    shot_type_of,
)
from models.backends.packaged.pictures import Box, PictureFacts, measure, text_lines
from models.contracts import CameraMotion, Picture, SceneStills, ShotAngle, ShotType

MEDIA = Path(__file__).resolve().parents[2] / "../shared/media"


@pytest.fixture(scope="module")
def describer() -> PackagedSceneDescriber:
    return PackagedSceneDescriber()


def plain(red: int, green: int, blue: int) -> Picture:
    return np.full((180, 320, 3), (red, green, blue), np.uint8)


def title(*lines: str) -> Picture:
    picture = plain(20, 30, 60)
    for index, line in enumerate(lines):
        place = (40, 80 + 40 * index)
        cv2.putText(picture, line, place, cv2.FONT_HERSHEY_SIMPLEX, 1.0, (240, 240, 240), 2)
    return picture


def colour_bars() -> Picture:
    colours = [
        (192, 192, 192), (192, 192, 0), (0, 192, 192), (0, 192, 0),
        (192, 0, 192), (192, 0, 0), (0, 0, 192),
    ]  # fmt: skip
    return np.repeat(np.repeat(np.array([colours], np.uint8), 46, axis=1), 180, axis=0)


def windows() -> Picture:
    """Rows of lit windows, like letters in a line but for their shape."""
    picture = plain(15, 15, 30)
    for top in range(20, 160, 26):
        for left in range(20, 300, 16):
            picture[top : top + 12, left : left + 9] = (250, 220, 120)
    return picture


def foliage(seed: int) -> Picture:
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 160, (45, 80, 3)).astype(np.uint8)
    coarse[..., 1] = np.minimum(255, coarse[..., 1].astype(int) + 60)
    return np.asarray(cv2.resize(coarse, (320, 180), interpolation=cv2.INTER_CUBIC), np.uint8)


def scene(*stills: Picture, motion: CameraMotion = CameraMotion.UNKNOWN) -> SceneStills:
    return SceneStills(stills, 4.0, motion)


@pytest.mark.parametrize(
    ("still", "words"),
    [
        pytest.param(plain(0, 0, 0), "A black screen.", id="black"),
        pytest.param(plain(255, 255, 255), "A white screen.", id="white"),
        pytest.param(plain(30, 60, 200), "A plain blue screen.", id="blue"),
        pytest.param(plain(128, 128, 128), "A plain grey screen.", id="grey"),
        pytest.param(colour_bars(), "Colour bars, a test picture.", id="colour bars"),
    ],
)
def test_a_screen_that_shows_nothing_is_said_to_be_just_that(
    describer: PackagedSceneDescriber, still: Picture, words: str
) -> None:
    (found,) = describer.describe([scene(still, still)])
    assert found.description == words
    assert found.objects == ()
    assert found.shot_type is ShotType.UNKNOWN
    assert found.shot_angle is ShotAngle.UNKNOWN


def test_writing_that_stays_in_place_is_text(describer: PackagedSceneDescriber) -> None:
    still = title("THE HARBOUR", "a short film")
    (found,) = describer.describe([scene(still, still, still)])
    assert found.objects == ("text",)
    assert "text on the screen" in found.description


@pytest.mark.parametrize(
    "stills",
    [
        pytest.param((windows(), windows()), id="rows of windows"),
        pytest.param((foliage(1), foliage(2)), id="foliage"),
        pytest.param((plain(90, 90, 90), plain(91, 90, 90)), id="plain"),
    ],
)
def test_what_is_no_face_person_or_text_is_not_said_to_be_one(
    describer: PackagedSceneDescriber, stills: tuple[Picture, ...]
) -> None:
    (found,) = describer.describe([scene(*stills)])
    assert found.objects == ()
    assert found.shot_type is ShotType.UNKNOWN


def test_writing_in_one_still_of_several_does_not_count(describer: PackagedSceneDescriber) -> None:
    (found,) = describer.describe([scene(title("MONDAY"), foliage(1), foliage(2))])
    assert "text" not in found.objects


def test_the_same_stills_are_always_described_the_same(describer: PackagedSceneDescriber) -> None:
    scenes = [scene(foliage(1), foliage(2)), scene(title("THE END"))]
    assert describer.describe(scenes) == PackagedSceneDescriber().describe(scenes)


def test_one_description_comes_back_for_each_scene(describer: PackagedSceneDescriber) -> None:
    assert describer.describe([]) == []
    assert len(describer.describe([scene(foliage(index)) for index in range(3)])) == 3


def test_a_scene_without_stills_is_refused(describer: PackagedSceneDescriber) -> None:
    with pytest.raises(ValueError, match="at least one still"):
        describer.describe([SceneStills((), 1.0)])


def evidence(
    *,
    face: float = 0,
    person: float = 0,
    text: bool = False,
    brightness: tuple[float, float] = (120, 120),
    contrast: float = 50,
    colourfulness: float = 30,
    hue: str | None = None,
    motion: CameraMotion = CameraMotion.UNKNOWN,
) -> SceneEvidence:
    facts = tuple(
        PictureFacts(level, contrast, colourfulness, hue, colour_bars=False) for level in brightness
    )

    def boxes(height: float) -> tuple[tuple[Box, ...], ...]:
        return ((Box(0.3, 0.1, height / 2, height),), ()) if height else ((), ())

    return SceneEvidence(facts, boxes(face), boxes(person), text, motion)


@pytest.mark.parametrize(
    ("face", "person", "shot"),
    [
        (0.70, 0, ShotType.EXTREME_CLOSE_UP),
        (0.45, 0, ShotType.CLOSE_UP),
        (0.28, 0, ShotType.MEDIUM_CLOSE_UP),
        (0.15, 0, ShotType.MEDIUM),
        (0.08, 0, ShotType.FULL),
        (0, 0.8, ShotType.FULL),
        (0, 0.3, ShotType.WIDE),
        (0, 0.1, ShotType.EXTREME_WIDE),
        (0.45, 0.8, ShotType.CLOSE_UP),
        (0, 0, ShotType.UNKNOWN),
    ],
)
def test_the_shot_type_follows_from_the_size_of_the_largest_face_or_person(
    face: float, person: float, shot: ShotType
) -> None:
    assert shot_type_of(evidence(face=face, person=person)) is shot


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (evidence(face=0.45), "A close-up of a face, in moderate colours."),
        (
            evidence(person=0.3, brightness=(30, 30), motion=CameraMotion.PAN_LEFT),
            "A wide shot of a person, very dark and in moderate colours. "
            "The camera pans to the left.",
        ),
        (
            evidence(text=True, contrast=80, hue="blue"),
            "A shot with text on the screen, high in contrast and mostly blue.",
        ),
        (
            evidence(brightness=(60, 110), colourfulness=2, motion=CameraMotion.STATIC),
            "A shot, in black and white. The camera stays still, and the picture grows brighter.",
        ),
        (
            evidence(brightness=(120, 60), colourfulness=70),
            "A shot, in vivid colours. The picture grows darker.",
        ),
    ],
)
def test_sentences_say_what_was_measured(seen: SceneEvidence, words: str) -> None:
    assert sentences(seen, shot_type_of(seen)) == words


@pytest.mark.parametrize("motion", list(CameraMotion))
def test_every_camera_motion_can_be_put_into_words(motion: CameraMotion) -> None:
    words = sentences(evidence(motion=motion), ShotType.UNKNOWN)
    assert ("camera" in words or "view" in words) == (motion is not CameraMotion.UNKNOWN)


def test_objects_are_sorted_nouns() -> None:
    assert objects_in(evidence(face=0.4, person=0.8, text=True)) == ("face", "person", "text")


def test_brightness_contrast_and_hue_are_measured() -> None:
    half = plain(0, 0, 0)
    half[:, 160:] = (255, 255, 255)
    assert measure(half).brightness == pytest.approx(127.5, abs=2)
    assert measure(half).contrast == pytest.approx(127.5, abs=2)
    assert measure(half).hue is None
    assert measure(plain(200, 20, 20)).hue == "red"
    assert measure(plain(20, 140, 30)).hue == "green"
    assert measure(plain(240, 150, 40)).hue == "orange"
    assert measure(plain(110, 65, 25)).hue == "brown"


def test_text_lines_lie_where_the_text_is() -> None:
    boxes = text_lines(title("HELLO WORLD"))
    assert boxes
    assert all(0.25 < box.top + box.height / 2 < 0.5 for box in boxes)


@pytest.mark.shared_media
@pytest.mark.parametrize(
    ("name", "seconds", "objects", "shot"),
    [
        ("formats/sample.mp4", (0.2, 0.5, 0.9), ("face",), ShotType.CLOSE_UP),
        ("cuts/flower.mp4", (1, 2, 4), (), ShotType.UNKNOWN),
        pytest.param(
            "cuts/flower.mp4", (4.0, 4.7), (), ShotType.UNKNOWN, id="petals like a profile"
        ),
        pytest.param("cuts/friday.mp4", (2.9, 3.6), ("face",), ShotType.MEDIUM, id="a profile"),
        ("cuts/car-detection.mp4", (2, 10, 20), (), ShotType.UNKNOWN),
        ("cuts/bottle-detection.mp4", (2, 15, 30), (), ShotType.UNKNOWN),
        ("cuts/counter.mp4", (0.2, 0.4, 0.6), ("text",), ShotType.UNKNOWN),
    ],
)
def test_real_footage(
    describer: PackagedSceneDescriber,
    name: str,
    seconds: tuple[float, ...],
    objects: tuple[str, ...],
    shot: ShotType,
) -> None:
    path = MEDIA / name
    if not path.is_file():
        pytest.skip(f"{name} is not beside the project")
    (found,) = describer.describe([scene(*_stills(path, seconds))])
    assert found.objects == objects
    assert found.shot_type is shot


def _stills(path: Path, seconds: tuple[float, ...]) -> list[Picture]:
    stills: list[Picture] = []
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            if frame.time is not None and frame.time >= seconds[len(stills)]:
                stills.append(np.asarray(frame.to_ndarray(format="rgb24"), np.uint8))
            if len(stills) == len(seconds):
                return stills
    return stills
