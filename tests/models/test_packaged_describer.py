"""The packaged describer says what was found and measured, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from models.backends.packaged.describer import (
    PackagedSceneDescriber,
    SceneEvidence,
    objects_in,
    open_describer,
    sentences,
    shot_type_of,
)
from models.backends.packaged.faces import MarkedFace, shot_angle_of
from models.contracts import (
    Box,
    CameraMotion,
    Movement,
    Picture,
    SceneStills,
    SeenObject,
    ShotAngle,
    ShotType,
    TextLine,
)
from models.pictures import (
    PictureFacts,
    by_what_they_show,
    may_show_text,
    measure,
    oklab,
    palette,
    srgb,
)
from models.registry import PACKAGED
from models.tasks import DESCRIBE_SCENES
from tests.tables import every

MEDIA = Path(__file__).resolve().parents[2] / "../shared/media"


@pytest.fixture(scope="module")
def describer() -> PackagedSceneDescriber:
    return open_describer(PACKAGED[DESCRIBE_SCENES], None)


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


def line(text: str, top: float = 0.4, height: float = 0.12) -> TextLine:
    return TextLine(text, 0.98, Box(0.2, top, 0.5, height))


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


def blurred(still: Picture, by: float = 4.0) -> Picture:
    return np.asarray(cv2.GaussianBlur(still, (0, 0), by), np.uint8)


def faded(still: Picture, share: float = 0.3) -> Picture:
    return np.asarray(still * share, np.uint8)


SHARP = foliage(1)


@every(
    ("stills", "seen", "order"),
    [
        pytest.param((SHARP, SHARP, SHARP), (0, 0, 0), (1, 0, 2), id="all alike: the middle"),
        pytest.param((SHARP, blurred(SHARP), SHARP), (0, 3, 0), (0, 2, 1), id="no blur"),
        pytest.param((SHARP, faded(SHARP)), (0, 1), (0, 1), id="no fade"),
        pytest.param((SHARP, SHARP, SHARP), (2, 0, 1), (0, 2, 1), id="most objects and faces"),
        pytest.param((plain(9, 9, 9), plain(9, 9, 9)), (0, 0), (1, 0), id="nothing to see"),
    ],
)
def test_the_still_that_shows_most_comes_first(
    stills: tuple[Picture, ...], seen: tuple[int, ...], order: tuple[int, ...]
) -> None:
    assert by_what_they_show(stills, seen) == order


def turned(still: Picture, degrees: float) -> Picture:
    matrix = cv2.getRotationMatrix2D((160, 90), degrees, 1.6)
    return np.asarray(cv2.warpAffine(still, matrix, (320, 180)), np.uint8)


def face(nose: tuple[float, float] = (0.5, 0.46), right_eye: float = 0.4) -> MarkedFace:
    marks = (0.4, 0.4), (0.6, right_eye), nose, (0.43, 0.52), (0.57, 0.52)
    return MarkedFace(Box(0.35, 0.3, 0.3, 0.3), marks)


LEVEL, DUTCH, UNKNOWN = ShotAngle.EYE_LEVEL, ShotAngle.DUTCH, ShotAngle.UNKNOWN


@every(
    ("still", "faces", "angle"),
    [
        pytest.param(windows(), (), UNKNOWN, id="upright"),
        pytest.param(turned(windows(), 6), (), UNKNOWN, id="held by hand"),
        pytest.param(turned(windows(), 16), (), DUTCH, id="rolled"),
        pytest.param(turned(windows(), -24), (face(),), DUTCH, id="rolled with a face"),
        pytest.param(turned(foliage(1), 16), (), UNKNOWN, id="nothing upright"),
        pytest.param(plain(90, 90, 90), (), UNKNOWN, id="plain"),
        pytest.param(plain(90, 90, 90), (face(),), LEVEL, id="a face from its height"),
        pytest.param(plain(90, 90, 90), (face((0.5, 0.42)),), UNKNOWN, id="from below"),
        pytest.param(plain(90, 90, 90), (face((0.5, 0.51)),), UNKNOWN, id="from above"),
        pytest.param(plain(90, 90, 90), (face((0.6, 0.46)),), UNKNOWN, id="from the side"),
        pytest.param(plain(90, 90, 90), (face(right_eye=0.46),), UNKNOWN, id="tilted"),
    ],
)
def test_the_camera_angle_is_given_where_lines_or_a_face_show_it(
    still: Picture, faces: tuple[MarkedFace, ...], angle: ShotAngle
) -> None:
    assert shot_angle_of(still, faces) is angle


def test_writing_that_was_read_is_quoted(describer: PackagedSceneDescriber) -> None:
    still = title("THE HARBOUR")
    (found,) = describer.describe([SceneStills((still, still), 4.0, text=(line("THE HARBOUR"),))])
    assert found.objects == ("text",)
    assert found.description.startswith("Title “THE HARBOUR”")


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


def test_the_same_stills_are_always_described_the_same(describer: PackagedSceneDescriber) -> None:
    scenes = [scene(foliage(1), foliage(2)), scene(title("THE END"))]
    assert describer.describe(scenes) == describer.describe(scenes)


def test_one_description_comes_back_for_each_scene(describer: PackagedSceneDescriber) -> None:
    assert describer.describe([]) == []
    assert len(describer.describe([scene(foliage(index)) for index in range(3)])) == 3


def test_a_scene_without_stills_is_refused(describer: PackagedSceneDescriber) -> None:
    with pytest.raises(ValueError, match="at least one still"):
        describer.describe([SceneStills((), 1.0)])


def evidence(
    *,
    faces: tuple[float, ...] = (),
    text: tuple[TextLine, ...] = (),
    brightness: tuple[float, float] = (120, 120),
    colourfulness: float = 30,
    colours: tuple[str, ...] = ("green", "grey"),
    accents: tuple[str, ...] = (),
    motion: CameraMotion = CameraMotion.UNKNOWN,
    objects: tuple[SeenObject, ...] = (),
) -> SceneEvidence:
    """``faces`` are their heights."""
    facts = tuple(
        PictureFacts(level, 50, colourfulness, False, colours, accents) for level in brightness
    )
    boxes = tuple(Box(0.3, 0.1, height / 2, height) for height in faces)
    return SceneEvidence(facts, boxes, text, motion, objects, shot_type_of(boxes, objects))


def item(
    label: str,
    count: int | tuple[int, int] = 1,
    box: tuple[float, float, float, float] = (0.4, 0.3, 0.2, 0.4),
    movement: Movement | None = None,
) -> SeenObject:
    """``count``: one number, or the fewest and the most."""
    fewest, most = (count, count) if isinstance(count, int) else count
    return SeenObject(label, fewest, most, Box(*box), movement)


LEFT, RIGHT, SMALL, ALL = (
    (0.05, 0.3, 0.2, 0.4), (0.75, 0.3, 0.2, 0.4), (0.5, 0.5, 0.1, 0.1), (0.0, 0.0, 1.0, 0.9),
)  # fmt: skip
STANDING, FAR = (0.45, 0.1, 0.13, 0.8), (0.5, 0.5, 0.02, 0.15)


@every(
    ("seen", "words"),
    [
        pytest.param(
            evidence(objects=(item("person", box=STANDING), item("dog", box=RIGHT))),
            "A full shot of a person in the middle, with a dog on the right.",
            id="a person and a dog",
        ),
        pytest.param(
            evidence(objects=(item("person", box=FAR),)),
            "An extreme wide shot of a person in the middle in the distance.",
            id="far away",
        ),
        pytest.param(
            evidence(faces=(0.3,), objects=(item("person"), item("laptop", box=LEFT))),
            "A medium close-up of a person, with a laptop on the left.",
            id="a face is a person's",
        ),
        pytest.param(
            evidence(faces=(0.2, 0.2), objects=(item("person", (1, 2)),)),
            "A medium shot of two or more people.",
            id="faces count",
        ),
        pytest.param(
            evidence(objects=(item("person", (2, 4)), item("chair", (1, 2)), item("bus", 2))),
            "A shot of several people, with one or more chairs and two or more buses.",
            id="looks that differ in number",
        ),
        pytest.param(
            evidence(objects=(item("bottle", 3),)), "Three or more bottles.", id="objects alone"
        ),
        pytest.param(
            evidence(objects=(item("airplane", box=ALL), item("bird", box=SMALL))),
            "An airplane filling the picture and a small bird in the middle.",
            id="sizes",
        ),
        pytest.param(
            evidence(objects=(item("train", box=LEFT),), text=(line("Platform 9"),)),
            "A train on the left, with the title “Platform 9”.",
            id="an object and writing",
        ),
        pytest.param(
            evidence(objects=(item("cat", box=LEFT),), brightness=(60, 60), colourfulness=2),
            "A cat on the left, dark, in black and white.",
            id="light, and no colour",
        ),
        pytest.param(
            evidence(
                objects=(item("dog", box=LEFT, movement=Movement.RIGHT), item("person")),
                motion=CameraMotion.STATIC,
            ),
            "A shot of a person in the middle, with a dog on the left. "
            "The camera stays still, and the dog moves to the right.",
            id="what moves before a camera that stands",
        ),
        pytest.param(
            evidence(objects=(item("car", movement=Movement.LEFT),), motion=CameraMotion.PAN_RIGHT),
            "A car in the middle. The camera pans to the right.",
            id="what a pan may only seem to move",
        ),
        pytest.param(
            evidence(objects=tuple(item(each) for each in ("bed", "cup", "vase", "tv", "oven"))),
            "A bed in the middle, a cup in the middle, a vase and a screen.",
            id="no more than four",
        ),
        pytest.param(
            evidence(objects=(item("scissors"), item("skis", 2), item("knife", 2))),
            "Scissors in the middle, skis and two or more knives.",
            id="plurals",
        ),
    ],
)
def test_people_and_things_are_put_into_the_words_of_a_shot_list(
    seen: SceneEvidence, words: str
) -> None:
    assert sentences(seen) == words


@every(
    ("box", "shot"),
    [
        pytest.param(STANDING, ShotType.FULL, id="from head to foot"),
        pytest.param((0.4, 0.3, 0.1, 0.45), ShotType.WIDE, id="half the height"),
        pytest.param(FAR, ShotType.EXTREME_WIDE, id="far away"),
        pytest.param((0.4, 0.2, 0.2, 0.8), ShotType.UNKNOWN, id="cut off below"),
        pytest.param((0.3, 0.3, 0.4, 0.6), ShotType.UNKNOWN, id="sitting"),
    ],
)
def test_the_shot_type_follows_from_a_person_seen_whole(
    box: tuple[float, float, float, float], shot: ShotType
) -> None:
    assert shot_type_of((), (item("person", box=box),)) is shot


@every(
    ("faces", "shot"),
    [
        ((0.85,), ShotType.EXTREME_CLOSE_UP),
        ((0.55,), ShotType.CLOSE_UP),
        ((0.35,), ShotType.MEDIUM_CLOSE_UP),
        ((0.15, 0.08), ShotType.MEDIUM),
        ((0.08,), ShotType.FULL),
        ((), ShotType.UNKNOWN),
    ],
)
def test_the_shot_type_follows_from_the_size_of_the_largest_face(
    faces: tuple[float, ...], shot: ShotType
) -> None:
    assert shot_type_of(evidence(faces=faces).faces) is shot


@every(
    ("seen", "words"),
    [
        (evidence(faces=(0.55,)), "A close-up of a face."),
        (
            evidence(faces=(0.2, 0.15), brightness=(60, 60), motion=CameraMotion.PAN_LEFT),
            "A medium shot of two or more faces, dark. The camera pans to the left.",
        ),
        (
            evidence(faces=(0.35,), text=(line("Anna Weber", top=0.8, height=0.05),)),
            "A medium close-up of a face, with the caption “Anna Weber”.",
        ),
        (
            evidence(text=(line("THE END"), line("thank you", 0.6, 0.05)), colourfulness=2),
            "Title “THE END” and “thank you”.",
        ),
        (
            evidence(text=tuple(line(f"line {n}", 0.1 * n, 0.05) for n in range(5))),
            "Text “line 0”, “line 1”, “line 2” and 2 more lines.",
        ),
        (
            evidence(brightness=(60, 110), colourfulness=2, motion=CameraMotion.STATIC),
            "A picture in black and white. The camera stays still, and the picture grows brighter.",
        ),
        (
            evidence(brightness=(120, 60), colourfulness=70),
            "A picture in vivid green. The picture grows darker.",
        ),
        (
            evidence(colourfulness=4, text=(line("THE END"),)),
            "Title “THE END”.",
        ),
        (evidence(accents=("red",)), "A picture in green and grey, with red."),
        (
            evidence(colours=("grey",), accents=("red", "green"), colourfulness=2),
            "A mostly grey picture, with red and green.",
        ),
        (
            evidence(text=(TextLine("SUGAR", 0.9, Box(0.03, 0.2, 0.14, 0.08)),)),
            "Text “SUGAR”.",
        ),
        (
            evidence(brightness=(60, 60), colours=("grey", "black")),
            "A dark, mostly grey and black picture.",
        ),
        (evidence(), "A picture in green and grey."),
    ],
)
def test_sentences_say_what_was_found(seen: SceneEvidence, words: str) -> None:
    assert sentences(seen) == words


@every("motion", list(CameraMotion))
def test_every_camera_motion_can_be_put_into_words(motion: CameraMotion) -> None:
    words = sentences(evidence(motion=motion))
    assert ("camera" in words or "view" in words) == (motion is not CameraMotion.UNKNOWN)


def test_objects_are_sorted_nouns() -> None:
    assert objects_in(evidence(faces=(0.4,), text=(line("NEWS"),))) == ("face", "text")


def test_brightness_contrast_and_colours_are_measured() -> None:
    half = plain(0, 0, 0)
    half[:, 160:] = (255, 255, 255)
    assert measure(half).brightness == pytest.approx(127.5, abs=2)
    assert measure(half).contrast == pytest.approx(127.5, abs=2)
    assert set(measure(half).colours) == {"black", "white"}
    assert measure(plain(200, 20, 20)).colours == ("red",)
    assert measure(plain(20, 140, 30)).colours == ("green",)
    assert measure(plain(240, 150, 40)).colours == ("orange",)
    assert measure(plain(110, 65, 25)).colours == ("brown",)


@every("light", [1.0, 0.25], ids=["light", "dark"])
@every("scale", [0.5, 1.0, 4.0])
def test_writing_of_all_sizes_is_worth_a_reading(scale: float, light: float) -> None:
    picture = cv2.resize(plain(20, 30, 60), (960, 540))
    cv2.putText(picture, "THE END", (60, 330), cv2.FONT_HERSHEY_SIMPLEX, scale, (240,) * 3, 4)
    assert may_show_text(np.asarray(picture * light, np.uint8))


@every("level", [0, 128, 255])
def test_an_empty_picture_is_not_worth_a_reading(level: int) -> None:
    assert not may_show_text(plain(level, level, level))


@pytest.mark.shared_media
@pytest.mark.parametrize(
    ("name", "seconds", "objects", "shot"),
    [
        ("formats/sample.mp4", (0.2, 0.5, 0.9), ("face",), ShotType.MEDIUM_CLOSE_UP),
        ("cuts/flower.mp4", (1, 2, 4), (), ShotType.UNKNOWN),
        pytest.param(
            "cuts/flower.mp4", (4.0, 4.7), (), ShotType.UNKNOWN, id="petals like a profile"
        ),
        ("cuts/friday.mp4", (2.9, 3.6), ("face",), ShotType.MEDIUM),
        ("cuts/car-detection.mp4", (2, 10, 20), (), ShotType.UNKNOWN),
        ("cuts/bottle-detection.mp4", (2, 15, 30), (), ShotType.UNKNOWN),
    ],
)
def test_objects_and_shots_of_real_media(
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


def test_a_small_patch_of_strong_colour_is_an_accent() -> None:
    picture = np.full((360, 640, 3), 120, np.uint8)
    picture[100:180, 200:340] = (220, 20, 30)
    facts = measure(picture)
    assert (facts.colours, facts.accents) == (("grey",), ("red",))
    picture[10:60, 10:90] = (0, 170, 60)
    picture[300:303, 10:90] = (20, 40, 230)
    assert measure(picture).accents == ("red", "green")
    picture[100:180, 200:340] = (150, 110, 110)
    assert measure(picture).accents == ()


def stripes(*parts: tuple[str, int]) -> Picture:
    """Upright stripes of colours, each as many pixels wide as its number."""
    columns = [
        np.tile(np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)], np.uint8), (width, 1))
        for colour, width in parts
    ]
    return np.tile(np.concatenate(columns)[None], (54, 1, 1))


@every(
    ("parts", "expected"),
    [
        pytest.param([("#204060", 96)], ("#204060",), id="one colour"),
        pytest.param([("#c02020", 32), ("#2040c0", 64)], ("#2040c0", "#c02020"), id="by share"),
        pytest.param([("#000000", 64), ("#ffffff", 32)], ("#000000", "#ffffff"), id="extremes"),
        pytest.param(
            [("#800000", 40), ("#008000", 30), ("#000080", 20), ("#ffff00", 6)],
            ("#800000", "#008000", "#000080", "#ffff00"),
            id="four colours",
        ),
        pytest.param([("#406080", 48), ("#42627f", 48)], ("#416180",), id="shades are one colour"),
    ],
)
def test_the_palette_is_the_colours_of_the_picture(
    parts: list[tuple[str, int]], expected: tuple[str, ...]
) -> None:
    assert palette([stripes(*parts)]) == expected


def test_a_colour_on_a_scrap_of_the_picture_is_left_out() -> None:
    assert palette([stripes(("#204060", 95), ("#ff0000", 1))]) == ("#204060",)


def test_a_vivid_colour_takes_a_place_before_one_more_grey() -> None:
    greys = [(f"#{level:02x}{level:02x}{level:02x}", 17) for level in (0, 60, 120, 180, 240)]
    assert "#e02020" in palette([stripes(*greys, ("#e02020", 11))])


def test_noise_gives_at_most_five_well_formed_colours_and_always_the_same() -> None:
    random = np.random.default_rng(3)
    still = random.integers(0, 256, (90, 160, 3)).astype(np.uint8)
    first = palette([still, still[::-1].copy()])
    assert 1 <= len(first) <= 5
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in first)
    assert palette([still, still[::-1].copy()]) == first


def test_all_stills_count_alike_whatever_their_size() -> None:
    small, large = stripes(("#ff0000", 96)), np.tile(stripes(("#0000ff", 96)), (4, 4, 1))
    assert set(palette([small, large])) == {"#ff0000", "#0000ff"}


def test_oklab_and_back_keeps_every_colour() -> None:
    levels = np.arange(0, 256, 15)
    cube = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(-1, 3)
    assert np.abs(srgb(oklab(cube.astype(np.uint8))).astype(int) - cube).max() <= 1
