"""The packaged detector of objects with its real weights."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks.descriptions import read_frame
from benchmarks.speech.noises import made
from models.backends.packaged.pictures import (
    CLASSES,
    PackagedObjectDetector,
    open_object_detector,
)
from models.backends.packaged.sounds import FireRedSoundDetector
from models.contracts import SAMPLE_RATE_HZ, Picture, Samples, SoundKind
from models.provider import LocalModels
from models.registry import FIRE_RED, PACKAGED
from models.tasks import DETECT_OBJECTS, DETECT_SOUNDS
from models.weights import WeightsError
from pipelines.media.audio import read_blocks
from tests.media.studio.people import HOST, Pose, draw_person
from tests.places import SHARED_MEDIA
from tests.tables import every


@pytest.fixture(scope="module")
def detector() -> PackagedObjectDetector:
    return open_object_detector(PACKAGED[DETECT_OBJECTS], None)


def drawn_person() -> Picture:
    picture = np.full((540, 960, 3), (0.35, 0.45, 0.5), np.float32)
    draw_person(picture, HOST, Pose((480, 230), 75))
    return np.asarray(np.clip(picture * 255, 0, 255), np.uint8)


def test_a_drawn_person_is_found_where_she_is(detector: PackagedObjectDetector) -> None:
    [objects] = detector.find([drawn_person()])
    assert [item.label for item in objects] == ["person"]
    box = objects[0].box
    assert box.left < 0.45
    assert box.left + box.width > 0.55
    assert 0.55 <= objects[0].confidence <= 1


@pytest.mark.shared_media
def test_colour_alone_is_no_fruit(detector: PackagedObjectDetector) -> None:
    film = SHARED_MEDIA / "field/47-analysis-mistakes/mosaic-balloons-candy.mp4"
    stills = [read_frame(film, second) for second in (1.0, 2.4, 3.2, 4.4)]
    found = {item.label for objects in detector.find(stills) for item in objects}
    assert found <= {"cake"}  # The others are balloons, and sweets laid out in a round.


def test_what_is_found_is_what_opencv_finds_with_the_same_weights(
    detector: PackagedObjectDetector,
) -> None:
    files = PACKAGED[DETECT_OBJECTS].packaged().paths(None).values()
    network = cv2.dnn.readNetFromTensorflow(*map(str, files))
    small = cv2.resize(drawn_person(), (300, 300), interpolation=cv2.INTER_AREA)
    network.setInput(cv2.dnn.blobFromImage(small))
    # (1, 1, n, 7): picture, class, confidence, left, top, right, bottom; the most confident first.
    _, number, _, left, top, right, bottom = network.forward()[0, 0, 0].tolist()
    [[item]] = detector.find([drawn_person()])
    assert (int(number), item.label) == (1, "person")
    box = item.box
    sides = box.left, box.top, box.left + box.width, box.top + box.height
    assert sides == pytest.approx(np.clip([left, top, right, bottom], 0, 1), abs=1e-3)


@pytest.mark.shared_media
@pytest.mark.parametrize(
    ("name", "objects"),
    [
        ("ji_airplane_0.jpg", {"airplane": 1, "person": 3}),
        ("dk_giraffe.jpg", {"giraffe": 1, "zebra": 1}),
        ("co_hot_dog.jpg", {"hot dog": 1}),
        ("ji_dog_0.jpg", {"dog": 1, "person": 1}),
    ],
)
def test_things_in_photographs_are_found_and_counted(
    detector: PackagedObjectDetector, name: str, objects: dict[str, int]
) -> None:
    picture = cv2.cvtColor(cv2.imread(str(SHARED_MEDIA / "objects" / name)), cv2.COLOR_BGR2RGB)
    [found] = detector.find([picture])
    assert Counter(item.label for item in found) == objects


@pytest.mark.shared_media
@pytest.mark.parametrize(
    ("clip", "seconds", "has_phone"),
    [
        ("cuts/narrated-cuts-a.mp4", 9.4, False),
        ("cuts/car-detection.mp4", 7.0, False),
        ("cuts2/advert-joyrides.mp4", 1.4, True),
    ],
    ids=["a car from above", "another", "a phone"],
)
def test_a_car_from_above_is_no_phone(
    detector: PackagedObjectDetector, clip: str, seconds: float, has_phone: bool
) -> None:
    [found] = detector.find([read_frame(SHARED_MEDIA / clip, seconds)])
    assert ("cell phone" in {item.label for item in found}) is has_phone


@pytest.mark.parametrize(
    "picture",
    [
        pytest.param(np.full((360, 640, 3), 200, np.uint8), id="one colour"),
        pytest.param(np.zeros((2, 2, 3), np.uint8), id="2 x 2"),
        pytest.param(np.arange(12, dtype=np.uint8).reshape(2, 2, 3) * 20, id="2 x 2 of colours"),
        pytest.param(np.tile(np.arange(256, dtype=np.uint8)[:, None, None], (1, 1, 3)), id="line"),
        pytest.param(
            np.tile((np.arange(7680) // 30).astype(np.uint8)[None, :, None], (4320, 1, 3)), id="8K"
        ),
    ],
)
def test_a_picture_of_nothing_has_no_things(
    detector: PackagedObjectDetector, picture: Picture
) -> None:
    assert detector.find([picture]) == [()]


@pytest.mark.parametrize("names", [("person",), ("tie", "person", "vase"), ("vase",)])
def test_a_look_for_some_classes_finds_of_these_what_one_for_all_finds(
    detector: PackagedObjectDetector, names: tuple[str, ...]
) -> None:
    found = detector._look(drawn_person())
    assert "person" in {item.label for item in found}
    assert detector._look(drawn_person(), names) == [it for it in found if it.label in names]


def test_threads_and_their_number_change_nothing(detector: PackagedObjectDetector) -> None:
    still = drawn_person()
    [alone] = detector.find([still])
    try:
        cv2.setNumThreads(4)
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(detector.find, [[still]] * 8)) == [[alone]] * 8
    finally:
        cv2.setNumThreads(1)


def test_every_class_of_coco_has_one_threshold() -> None:
    names = [name for numbers in CLASSES.values() for name in numbers.values()]
    numbers = {number for each in CLASSES.values() for number in each}
    assert len(set(names)) == len(names) == len(numbers) == 80


SPEECH = Path(__file__).resolve().parents[1] / "media" / "speech"
DETECTOR = LocalModels().get(DETECT_SOUNDS)
COLUMNS = {kind: number for number, kind in enumerate(SoundKind)}


def shares(samples: Samples) -> dict[SoundKind, float]:
    """In how much of the samples each kind is found."""
    present = (DETECTOR.find_sounds(samples) > 0.5).mean(axis=0)
    return {kind: float(present[number]) for kind, number in COLUMNS.items()}


@every("gain", [1.0, 0.05], ids=["as recorded", "26 dB quieter"])
def test_a_reader_is_speech_and_no_music(gain: float) -> None:
    samples = np.concatenate([*read_blocks(SPEECH / "one_voice.flac")])
    found = shares((gain * samples).astype(np.float32))
    assert found[SoundKind.SPEECH] > 0.5
    assert found[SoundKind.MUSIC] < 0.02
    assert found[SoundKind.SINGING] < 0.02


def test_a_band_is_music_and_hardly_speech() -> None:
    found = shares(made("band", 30.0, seed=3))
    assert found[SoundKind.MUSIC] > 0.9
    assert found[SoundKind.SPEECH] < 0.05


@every("kind", ["surf", "pink noise", "hum"])
def test_noises_are_neither(kind: str) -> None:
    assert max(shares(made(kind, 20.0, seed=3)).values()) < 0.05


def test_what_is_far_away_changes_nothing() -> None:
    """The network sees eight times twenty frames on both sides: 1.6 s."""
    samples = np.concatenate([*read_blocks(SPEECH / "two_voices.flac")])[: 10 * SAMPLE_RATE_HZ]
    whole = DETECTOR.find_sounds(samples)
    part = DETECTOR.find_sounds(samples[2 * SAMPLE_RATE_HZ : 8 * SAMPLE_RATE_HZ])
    assert part[170:-170] == pytest.approx(whole[370 : 200 + len(part) - 170], abs=1e-4)


@every("count", [0, 10, 399, 400, 560])
def test_there_is_a_row_a_whole_frame(count: int) -> None:
    found = DETECTOR.find_sounds(np.zeros(count, np.float32))
    assert found.shape == (max(0, 1 + (count - 400) // 160), len(SoundKind))


@every("length", [0, 10, 5_000, 500_000])
def test_weights_that_are_cut_short_are_refused(length: int) -> None:
    [data] = FIRE_RED.read(None).values()
    with pytest.raises(WeightsError, match="unreadable"):
        FireRedSoundDetector(data[:length])
