"""Writing, faces and sentences of the packaged models on labelled stills.

    .venv/bin/python -m benchmarks.descriptions [--tuning] [--sheet FILE.png] [--verbose]

Real stills (frames of the shared media by file and time, and of the demo film) were labelled by
looking at them before any model saw them; drawn ones are made here from a seed, with truth by
construction. Thresholds were chosen on the stills for tuning (``--tuning``: other seeds, other
words, other frames) and never on the reported ones. Each still goes the way of a scene's middle
still: the cheap measure decides whether it is read, the describer gets what was read.

- Writing: lines of 20 pixels or more (font size; of real stills by eye) at most 960 pixels wide,
  read exactly: letters, case, marks. A line is invented where nothing like it (similarity 0.6) is
  in the picture, misread where something like it is.
- Faces: ``faces`` can be seen with both eyes; ``hard`` ones are in profile, sideways, in deep
  shade or under 6 % of the picture's height. Finding a hard one is right, missing it is counted
  apart. A found face is right if the place between the eyes lies in it.
- Things of COCO's classes: ``things.toml`` beside this file, with stills of its own; precision of
  the classes found, recall of those clearly visible, stills whose people are counted right.

``--sheet`` draws the stills with what was found, to be looked at. The last line is JSON.
"""

from __future__ import annotations

import argparse
import difflib
import json
import random
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import cv2
import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from benchmarks.programmes.shots import MEDIA
from benchmarks.programmes.worlds import WORLDS
from models.backends.packaged.faces import FaceFinder
from models.contracts import Box, SceneDescription, SceneStills, ShotType, TextLine
from models.pictures import may_show_text
from models.provider import LocalModels
from models.registry import MTCNN
from models.tasks import DESCRIBE_SCENES, DETECT_OBJECTS, READ_TEXT
from pipelines.media.files import orientation_of
from tests.media.studio.people import Looks, Pose, draw_person

Picture = npt.NDArray[np.uint8]
Point = tuple[float, float]
DEMO = Path(__file__).resolve().parents[1] / "tests/media/demo.mp4"
SIZE = (960, 540)
_SIMILAR = 0.6


@dataclass(frozen=True, slots=True)
class Labelled:
    """A still and what a person sees in it. Places are shares of width and height."""

    name: str
    draw: Callable[[], Picture]
    lines: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    """Writing that can be told but is smaller, cut off or part of the scene."""
    faces: tuple[Point, ...] = ()
    """Between the eyes."""
    hard: tuple[Point, ...] = ()
    people: int = 0
    shots: tuple[ShotType, ...] = (ShotType.UNKNOWN,)


def read_frame(path: Path, seconds: float) -> Picture:
    """The frame at that time, upright, at most 960 pixels on its long side."""
    with av.open(str(path)) as container:
        for frame in container.decode(container.streams.video[0]):
            if (frame.time or 0.0) >= seconds:
                break
        picture = orientation_of(frame).upright(frame.to_ndarray(format="rgb24"))
    scale = min(1.0, 960 / max(picture.shape[:2]))
    size = (round(picture.shape[1] * scale), round(picture.shape[0] * scale))
    whole = np.ascontiguousarray(picture, np.uint8)
    return np.asarray(cv2.resize(whole, size, interpolation=cv2.INTER_AREA), np.uint8)


def _real(path: str, seconds: float, **truth: Any) -> Labelled:
    where = DEMO if path == "demo.mp4" else MEDIA / path
    return Labelled(f"{path} at {seconds} s", lambda: read_frame(where, seconds), **truth)


_PEACH = ("THE PEACH OPEN MOVIE PROJECT", "PRESENTS")
_MEDIUM = (ShotType.MEDIUM, ShotType.MEDIUM_CLOSE_UP)
_TALK = (ShotType.MEDIUM,)
_FAR = (ShotType.MEDIUM, ShotType.FULL)


def _room(people: int) -> dict[str, Any]:
    """The shot of ``friday.mp4``: people around a desk."""
    return {"people": people, "shots": _FAR}


def tuning_stills() -> list[Labelled]:
    """Stills that thresholds may be chosen on."""
    bunny, friday, bikes = "cuts/big_buck_bunny_0_30.webm", "cuts/friday.mp4", "cuts/bikes.mp4"
    return [
        _real(bunny, 3), _real(bunny, 9), _real(bunny, 13), _real(bunny, 16), _real(bunny, 18),
        _real(bunny, 21, lines=_PEACH),
        _real(bunny, 24),
        _real(bunny, 26, small=("Big Buck", "BUNNY")),
        _real(friday, 0.3, faces=((0.69, 0.25),), hard=((0.23, 0.5), (0.47, 0.5)), **_room(4)),
        _real(friday, 2, faces=((0.655, 0.25),), hard=((0.41, 0.47),), **_room(4)),
        _real(friday, 3.3, faces=((0.64, 0.25),), hard=((0.43, 0.5),), **_room(4)),
        _real(friday, 5.4, faces=((0.67, 0.22),), hard=((0.46, 0.49),), **_room(4)),
        _real(bikes, 0.6), _real(bikes, 2.4, small=("TAXI",)), _real(bikes, 6), _real(bikes, 9),
        _real(bikes, 1.5, faces=((0.67, 0.2),), people=1, shots=(ShotType.MEDIUM,)),
        _real(bikes, 3.5), _real(bikes, 5, hard=((0.66, 0.16),), people=1),
        _real(bikes, 8, people=1),
        _real("cuts/counter.mp4", 0.5, lines=("Frame = 6", "PTS = 0.5s")),
        _real("formats/smpte-2997.mp4", 2.5, lines=("76.000", "2.536", "00:00:02;16")),
        _real("odd/hlg10-color-test.mp4", 0.1, small=("xrite",)),
        _real("odd/two-audio-tracks-a.mkv", 10),
        _real("demo.mp4", 4, faces=((0.5, 0.42),), people=1, shots=_MEDIUM),
        _real("demo.mp4", 10), _real("demo.mp4", 20),
        *(drawn_writing(seed, held_out=False) for seed in range(1, 41)),
        *(drawn_faces(seed) for seed in range(1, 31)),
    ]  # fmt: skip


def reported_stills() -> list[Labelled]:
    """Stills that nothing was tuned on."""
    friday, nasa = "cuts/friday.mp4", "cuts/nasa_13013.mp4"
    man, phone = "formats/sample.mp4", "odd/internal_emulator_transformer_output_180_rotated.mp4"
    return [
        _real(man, 0.5, faces=((0.53, 0.52),), people=1, shots=_MEDIUM),
        _real("odd/sample_portrait.mp4", 0.5, hard=((0.49, 0.52),), people=1),
        _real("odd/sample_rotate_and_reflect.mp4", 0.5, hard=((0.52, 0.52),), people=1),
        _real(friday, 1, faces=((0.67, 0.27),), hard=((0.24, 0.5), (0.48, 0.49)), **_room(4)),
        _real(friday, 2.8, faces=((0.645, 0.25),), hard=((0.435, 0.48),), **_room(4)),
        _real(friday, 4, faces=((0.655, 0.245),), hard=((0.40, 0.49), (0.24, 0.5)), **_room(4)),
        _real(friday, 4.7, faces=((0.66, 0.22),), hard=((0.435, 0.47),), **_room(5)),
        _real(friday, 6, faces=((0.68, 0.23),), hard=((0.44, 0.5), (0.1, 0.3)), **_room(5)),
        _real(nasa, 2, people=1), _real(nasa, 7, people=1), _real(nasa, 9, people=1),
        _real("cuts/car-detection.mp4", 5), _real("cuts/car-detection.mp4", 20),
        _real("cuts/flower.mp4", 4), _real("cuts/bottle-detection.mp4", 3),
        _real("cuts/bottle-detection.mp4", 30),
        _real("cuts/counter.mp4", 2, lines=("Frame = 21", "PTS = 2.0s")),
        _real("formats/smpte-2997.mp4", 7.5, lines=("225.000", "7.507", "00:00:07;15")),
        _real("formats/h265_bframes.mp4", 0.5, small=("Big Buck", "BUNNY")),
        _real("formats/bt709_full_range.mp4", 0.5, small=("00:00:00.500", "15")),
        _real("formats/sample.avi", 3.1), _real("formats/bear-vp9.webm", 1),
        _real("formats/bbb_642x642_768kbps_30fps_vp9.webm", 1.5),
        _real("formats/sowt-with-video.mov", 1),
        _real("formats/sd-hls0000000000.ts", 1.3, small=("elacard",)),
        _real("formats/av1_video.mkv", 3.8),
        _real("odd/bbb-telecine-480i-a.mpg", 1), _real("odd/bbb-telecine-480i-a.mpg", 8),
        _real("odd/bbb-telecine-480i-a.mpg", 10.5),
        _real("odd/bbb-telecine-480i-a.mpg", 12, lines=_PEACH),
        _real("odd/bbb-telecine-480i-a.mpg", 14),
        _real("odd/portrait_4k60.mp4", 0.1),
        _real("odd/sample_15fps_720p_1s.mp4", 0.5, lines=("0.53",), small=("00:00:00.533", "8")),
        _real("odd/hdr10-video-with-sdr-container.mp4", 0.5),
        _real("odd/sample_sef_slow_motion.mp4", 1),
        _real(phone, 1, hard=((0.03, 0.35),), people=2), _real(phone, 3.7, people=1),
        _real("demo.mp4", 1, lines=("A DAY BY THE SEA", "a short drawn film")),
        _real("demo.mp4", 7, faces=((0.5, 0.42),), people=1, shots=_MEDIUM),
        _real("demo.mp4", 15), _real("demo.mp4", 19),
        _real("demo.mp4", 23, faces=((0.34, 0.42), (0.67, 0.42)), people=2, shots=_TALK),
        _real("demo.mp4", 25.5, faces=((0.34, 0.42), (0.67, 0.42)), people=2, shots=_TALK),
        _real("demo.mp4", 28.5, lines=("THE END", "thank you for watching")),
        *(drawn_writing(seed, held_out=True) for seed in range(101, 141)),
        *(drawn_faces(seed) for seed in range(101, 121)),
    ]  # fmt: skip


_WORDS = {
    False: {
        "title": (
            "THE LAST HARBOUR", "Night Train", "ZERO HOUR", "A Winter's Tale", "Episode 12", "MAPS",
            "Quiet Rooms", "THE GLASS MOUNTAIN", "Part Two", "1987", "Behind the Door",
            "NORTHERN LIGHTS",
        ),
        "caption": (
            "I never said that he was here.", "Where are you going?", "- No. Not today!",
            "We have 24 hours left.", "It's raining in Zürich again.", "Call me at 5:30, please.",
            "(music plays softly)", "You can't be serious, Anna.", "He left the keys with Tom,",
            "and nobody asked him why.",
        ),
        "name": ("Dr. Emily Carter", "Marco Rossi", "Hélène Dubois", "John O'Neill", "Yuki Tanaka"),
        "role": (
            "Marine biologist", "Mayor of Springfield", "Head of Research", "Eyewitness, Lisbon",
        ),
        "credit": (
            "Directed by", "Produced by Ana Silva", "Music: Paul Weber", "Camera: L. Moreau",
            "Sound mix",
            "Edited by Kim Olsen", "Costumes", "© 2019 Harbour Films",
        ),
    },
    True: {
        "title": (
            "THE SALT ROAD", "Summer of '69", "BLACK RIVER", "Chapter Seven",
            "A House of Cards", "ECHO",
            "The Long Way Home", "INTERMISSION", "Season 3", "2041", "Under the Ice", "PAPER MOONS",
        ),
        "caption": (
            "She told me to wait outside.", "Have you seen this man?", "- Yes. Every night.",
            "The train leaves at 10:45.", "They moved to Málaga in May.",
            "Don't touch the red one!",
            "(door slams)", "That's 350 dollars, sir.", "If you find the letter,",
            "burn it at once.",
        ),
        "name": (
            "Prof. Daniel Kim", "Sofia Marin", "André Lefèvre", "Grace Okafor", "Peter van Dijk",
        ),
        "role": ("Volcanologist", "Minister of Transport", "Chief Engineer", "Resident, Old Town"),
        "credit": (
            "Written by", "Executive producer", "Story: Nora Quinn", "Visual effects",
            "With Eva Lund",
            "Casting: R. Boyle", "Lighting", "Filmed in Iceland 2022",
        ),
    },
}  # fmt: skip
_FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSerif", "DejaVuSerif-Bold",
    "DejaVuSerif-Italic", "DejaVuSansMono", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic",
)  # fmt: skip
_FONT_FOLDER = Path(mpl.get_data_path()) / "fonts" / "ttf"


def drawn_writing(seed: int, *, held_out: bool) -> Labelled:
    """A title, a caption, a name strap or credits over a drawn context or a plain ground."""
    chance = random.Random(f"writing {seed}")
    words = _WORDS[held_out]
    kind = ("title", "caption", "strap", "credits")[seed % 4]
    width, height = SIZE
    lines: list[tuple[str, int, float]] = []
    if kind == "title":
        lines.append((chance.choice(words["title"]), chance.randint(48, 96), 0.4))
        if chance.random() < 0.6:
            lines.append((chance.choice(words["credit"]), chance.randint(24, 38), 0.62))
    elif kind == "caption":
        chosen = chance.sample(words["caption"], chance.choice((1, 2)))
        size = chance.randint(22, 36)
        first = 0.93 - 0.075 * len(chosen)
        lines += [(line, size, first + 0.075 * at) for at, line in enumerate(chosen)]
    elif kind == "strap":
        lines.append((chance.choice(words["name"]), chance.randint(28, 40), 0.78))
        lines.append((chance.choice(words["role"]), chance.randint(20, 26), 0.87))
    else:
        size = chance.randint(20, 30)
        chosen = chance.sample(words["credit"], chance.randint(3, 6))
        lines += [(line, size, 0.2 + 0.11 * at) for at, line in enumerate(chosen)]
    font = chance.choice(_FONTS)
    ground = random.Random(chance.random())

    def draw() -> Picture:
        picture = _ground(random.Random(ground.random()), kind)
        image = Image.fromarray(picture)
        pen = ImageDraw.Draw(image)
        if kind == "strap":
            pen.rectangle((40, 0.71 * height, 520, 0.92 * height), fill=(20, 36, 66))
        ink = (245, 240, 225)
        for text, size, middle in lines:
            face = ImageFont.truetype(str(_FONT_FOLDER / f"{font}.ttf"), size)
            place = (60, middle * height) if kind == "strap" else (width / 2, middle * height)
            outline = 2 if kind in ("title", "caption") else 0
            anchor = "lm" if kind == "strap" else "mm"
            pen.text(
                place,
                text,
                ink,
                face,
                anchor=anchor,
                stroke_width=outline,
                stroke_fill=(12, 12, 16),
            )
        return _compressed(np.asarray(image))

    state = ground.getstate()

    def repeatable() -> Picture:
        ground.setstate(state)
        return draw()

    return Labelled(f"drawn {kind} {seed}", repeatable, lines=tuple(text for text, _, _ in lines))


def _ground(chance: random.Random, kind: str) -> Picture:
    if kind == "credits" or (kind == "title" and chance.random() < 0.3):
        level = chance.randint(0, 40)
        return np.full((SIZE[1], SIZE[0], 3), (level, level, level + 10), np.uint8)
    return WORLDS[chance.choice(("landscape", "town", "room", "things"))](chance, SIZE, 1)[0]


def _compressed(picture: npt.NDArray[np.uint8]) -> Picture:
    """As after an encoder."""
    quality = [cv2.IMWRITE_JPEG_QUALITY, 70]
    _, data = cv2.imencode(".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), quality)
    return np.asarray(cv2.cvtColor(cv2.imdecode(data, 1), cv2.COLOR_BGR2RGB), np.uint8)


_SKINS = ("#f0c8a8", "#e0a988", "#c98f6b", "#9a6544", "#6b4329")
_HAIRS = ("#1c1512", "#3a2418", "#5b2a16", "#a8793d", "#8d8a86")


def drawn_faces(seed: int) -> Labelled:
    """One to three drawn people before a drawn context."""
    chance = random.Random(f"faces {seed}")
    width, height = SIZE
    count = chance.choice((1, 1, 2, 3))
    unit = chance.uniform(0.035, 0.2 / count) * height
    places = [
        (
            width * (at + 1) / (count + 1) + chance.uniform(-30, 30),
            height * chance.uniform(0.3, 0.5),
        )
        for at in range(count)
    ]

    def draw() -> Picture:
        own = random.Random(f"people {seed}")
        context = WORLDS[own.choice(("landscape", "town", "room", "things"))](own, SIZE, 1)[0]
        picture = context.astype(np.float32) / np.float32(255)
        for place in places:
            looks = Looks(
                own.choice(_SKINS), own.choice(_HAIRS), "#b5564e", "#4a3a28",
                own.choice(("#27405f", "#7d2f3f", "#3f5f3a")), "#e9e4da", own.random() < 0.5,
            )  # fmt: skip
            draw_person(
                picture, looks, Pose(place, unit, own.uniform(0, 0.6), 0, own.uniform(-0.2, 0.2))
            )
        return _compressed(np.clip(picture * 255, 0, 255).astype(np.uint8))

    centres = tuple((x / width, y / height) for x, y in places)
    shots = tuple(shot for shot in ShotType if shot is not ShotType.UNKNOWN)
    return Labelled(f"drawn faces {seed}", draw, faces=centres, people=count, shots=shots)


@dataclass(frozen=True, slots=True)
class Found:
    """What the models found in one still."""

    text: tuple[TextLine, ...]
    was_read: bool
    faces: tuple[Box, ...]
    said: SceneDescription


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tuning", action="store_true")
    parser.add_argument("--sheet", type=Path)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    labels = tuning_stills() if options.tuning else reported_stills()
    stills = [label.draw() for label in labels]
    models = LocalModels()
    finder = FaceFinder(MTCNN.paths(None))
    found = [look(still, models, finder) for still in stills]
    for label, one in zip(labels, found, strict=True):
        print(f"{label.name}: {one.said.description}")
        wrong = faults(label, one)
        if wrong and options.verbose:
            print(f"    {'; '.join(wrong)}")
    if options.sheet:
        picture = cv2.cvtColor(sheet(stills, found), cv2.COLOR_RGB2BGR)
        cv2.imwrite(str(options.sheet), picture)
    things = thing_figures("tuning" if options.tuning else "reported", verbose=options.verbose)
    print(json.dumps({"stills": len(labels), **figures(labels, found), "things": things}))


def look(still: Picture, models: LocalModels, finder: FaceFinder) -> Found:
    """As the describe step and the describer do."""
    is_read = may_show_text(still)
    text = models.get(READ_TEXT).read([still])[0] if is_read else ()
    [said] = models.get(DESCRIBE_SCENES).describe([SceneStills((still,), 4.0, text=text)])
    faces = finder.find(still) if "face" in said.objects else ()
    return Found(text, is_read, faces, said)


@dataclass(frozen=True, slots=True)
class LabelledThings:
    """A still of ``things.toml``."""

    name: str
    picture: Picture
    things: tuple[str, ...]
    also: tuple[str, ...]
    people: int | None


def labelled_things(part: str) -> list[LabelledThings]:
    """The stills of a part of ``things.toml``: ``tuning`` or ``reported``."""
    table = Path(__file__).with_name("things.toml").read_text()
    stills = []
    for name, truth in tomllib.loads(table)[part].items():
        path, _, seconds = name.partition("@")
        picture = read_frame(DEMO if path == "demo.mp4" else MEDIA / path, float(seconds or 0))
        things, also = (tuple(truth.get(kind, ())) for kind in ("things", "also"))
        stills.append(LabelledThings(name, picture, things, also, truth.get("people")))
    return stills


def thing_figures(part: str, *, verbose: bool = False) -> dict[str, Any]:
    """Of the stills of one part of ``things.toml``, each looked at alone."""
    detector = LocalModels().get(DETECT_OBJECTS)
    counts: Counter[str] = Counter()
    for each in labelled_things(part):
        [found] = detector.find([each.picture])
        labels, visible = {thing.label for thing in found}, set(each.things)
        wrong = labels - visible - set(each.also)
        people = sum(thing.label == "person" for thing in found)
        counts.update(
            {
                "stills": 1,
                "classes found": len(labels),
                "wrong": len(wrong),
                "classes visible": len(visible),
                "of them found": len(visible & labels),
                "stills with counted people": each.people is not None,
                "counted right": each.people == people,
            }
        )
        if verbose and (wrong or visible - labels):
            print(f"{each.name}: wrong {sorted(wrong)}, missed {sorted(visible - labels)}")
    return {
        **counts,
        "precision": _share(counts["classes found"] - counts["wrong"], counts["classes found"]),
        "recall": _share(counts["of them found"], counts["classes visible"]),
    }


def figures(labels: Sequence[Labelled], found: Sequence[Found]) -> dict[str, Any]:
    """All counts and the shares that have a bar."""
    counts: Counter[str] = Counter()
    shots: Counter[str] = Counter()
    for label, one in zip(labels, found, strict=True):
        counts.update(_text_counts(label, one))
        counts.update(_face_counts(label, one))
        shots[_shot_verdict(label, one)] += 1
        counts["people"] += label.people
    text = {name: counts[name] for name in _TEXT_COUNTS}
    faces = {name: counts[name] for name in _FACE_COUNTS}
    right = counts["faces found"] + counts["hard faces found"]
    return {
        "text": text,
        "lines read exactly": _share(counts["lines read exactly"], counts["lines"]),
        "faces": faces,
        "face precision": _share(right, right + counts["false faces"]),
        "face recall": _share(counts["faces found"], counts["faces"]),
        "people labelled": counts["people"],
        "shot type": dict(shots),
    }


_TEXT_COUNTS = (
    "lines", "lines read exactly", "misread", "invented", "stills with lines",
    "left unread by the measure",
    "stills read", "stills read in vain",
)  # fmt: skip
_FACE_COUNTS = ("faces", "faces found", "hard faces", "hard faces found", "false faces")


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None


def _plain(text: str) -> str:
    """Without differences of apostrophes and spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).replace("’", "'").split())


def _text_counts(label: Labelled, found: Found) -> Counter[str]:
    read = [_plain(line.text) for line in found.text]
    exact = [line for line in label.lines if _plain(line) in read]
    misread, invented = _wrong_lines(label, found)
    return Counter(
        {
            "lines": len(label.lines),
            "lines read exactly": len(exact),
            "misread": len(misread),
            "invented": len(invented),
            "stills with lines": bool(label.lines),
            "left unread by the measure": bool(label.lines) and not found.was_read,
            "stills read": found.was_read,
            "stills read in vain": found.was_read and not (label.lines or label.small),
        }
    )


def _wrong_lines(label: Labelled, found: Found) -> tuple[list[str], list[str]]:
    """Lines read wrongly, and lines that are not there at all."""
    truth = [_plain(line) for line in (*label.lines, *label.small)]
    misread: list[str] = []
    invented: list[str] = []
    for line in (_plain(line.text) for line in found.text):
        if line in truth:
            continue
        is_like = any(
            difflib.SequenceMatcher(None, line.lower(), one.lower()).ratio() >= _SIMILAR
            for one in truth
        )
        (misread if is_like else invented).append(line)
    return misread, invented


def _holds(box: Box, point: Point) -> bool:
    across, down = point[0] - box.left, point[1] - box.top
    return 0 <= across <= box.width and 0 <= down <= box.height


def _face_counts(label: Labelled, found: Found) -> Counter[str]:
    truth = (*label.faces, *label.hard)
    return Counter(
        {
            "faces": len(label.faces),
            "faces found": sum(any(_holds(box, at) for box in found.faces) for at in label.faces),
            "hard faces": len(label.hard),
            "hard faces found": sum(
                any(_holds(box, at) for box in found.faces) for at in label.hard
            ),
            "false faces": sum(not any(_holds(box, at) for at in truth) for box in found.faces),
        }
    )


def _shot_verdict(label: Labelled, found: Found) -> str:
    said = found.said.shot_type
    if said is ShotType.UNKNOWN:
        return "left open, rightly" if said in label.shots else "left open"
    return "right" if said in label.shots else "wrong"


def faults(label: Labelled, found: Found) -> list[str]:
    """What is wrong, in words."""
    read = [_plain(line.text) for line in found.text]
    misread, invented = _wrong_lines(label, found)
    missed = [line for line in label.lines if _plain(line) not in read]
    faces = _face_counts(label, found)
    wrong = [f"not read: {line!r}" for line in missed]
    wrong += [f"misread: {line!r}" for line in misread]
    wrong += [f"invented: {line!r}" for line in invented]
    if missed and not found.was_read:
        wrong.append("the measure saw no writing")
    if faces["faces found"] < faces["faces"] or faces["false faces"]:
        wrong.append(str({name: count for name, count in faces.items() if count}))
    if _shot_verdict(label, found) in ("wrong", "left open"):
        wrong.append(f"shot type {found.said.shot_type}")
    return wrong


def sheet(stills: Sequence[Picture], found: Sequence[Found], columns: int = 8) -> Picture:
    """Thumbnails with the lines and faces that were found."""
    tiles = []
    for still, one in zip(stills, found, strict=True):
        marked = still.copy()
        for box, colour in [(line.box, (90, 255, 90)) for line in one.text] + [
            (box, (255, 80, 80)) for box in one.faces
        ]:
            rows, columns_ = still.shape[:2]
            corner = (round(box.left * columns_), round(box.top * rows))
            end = (round((box.left + box.width) * columns_), round((box.top + box.height) * rows))
            cv2.rectangle(marked, corner, end, colour, 4)
        tile = np.full((152, 244, 3), 40, np.uint8)
        scale = min(240 / still.shape[1], 148 / still.shape[0])
        size = (max(1, round(still.shape[1] * scale)), max(1, round(still.shape[0] * scale)))
        small = cv2.resize(marked, size, interpolation=cv2.INTER_AREA)
        tile[: small.shape[0], : small.shape[1]] = small
        tiles.append(tile)
    tiles += [np.full_like(tiles[0], 40)] * (-len(tiles) % columns)
    rows_ = [np.hstack(tiles[at : at + columns]) for at in range(0, len(tiles), columns)]
    return np.asarray(np.vstack(rows_), np.uint8)


if __name__ == "__main__":
    main()
