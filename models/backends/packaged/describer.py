"""Scenes described from people, objects, writing and what can be measured of light and movement.

Every clause of a description stands for a finding; what was not found is not mentioned, and a label
that nothing supports is ``unknown``. The words are those of a shot list, in one small grammar::

    scene    = screen | subject [", " light] "." [change "."]
    subject  = shot " of " people [", with " objects] | objects | text | picture
    change   = camera [", and " movement] [", and " brightness]

Text is joined to people and objects. Colours are named only of a picture in which nothing else is
known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import cv2

from models.backends import Backend
from models.backends.packaged.faces import FaceFinder, shot_angle_of
from models.contracts import (
    Box,
    CameraMotion,
    Movement,
    SceneDescription,
    SceneStills,
    SeenObject,
    ShotType,
    TextLine,
)
from models.pictures import NEUTRALS, PictureFacts, by_what_they_show, measure

_FACE_SHOTS = (
    (0.80, ShotType.EXTREME_CLOSE_UP),
    (0.55, ShotType.CLOSE_UP),
    (0.28, ShotType.MEDIUM_CLOSE_UP),
    (0.12, ShotType.MEDIUM),
    (0.00, ShotType.FULL),
)
"""Least height of the largest face, from brow to chin, of the picture's height. The whole head is
about 1.4 times as high, a standing person eight heads: a close-up is filled by a head, a medium
close-up reaches to the chest, a medium shot to the waist."""
_PERSON_SHOTS = ((0.65, ShotType.FULL), (0.30, ShotType.WIDE), (0.00, ShotType.EXTREME_WIDE))
"""Least height of the largest person who is seen from head to foot, of the picture's height."""
_EDGE = 0.03
"""Of the picture, that a person keeps from its upper and lower edge who is not cut off."""
_STANDING = 1.8
"""Height over width of people who stand; who sits, or is half behind a desk, is broader."""
_BLANK_CONTRAST = 5.0


def open_describer(row: Backend, models_dir: Path | None) -> PackagedSceneDescriber:
    """The describer with its verified weights. Raises WeightsError."""
    faces = FaceFinder(row.packaged("faces").paths(models_dir))
    return PackagedSceneDescriber(faces)


class PackagedSceneDescriber:
    """SceneDescriber without a language model. Deterministic.

    One call works on one core: OpenCV's own threads are turned off, because
    a task has no more, and several share the machine.
    """

    def __init__(self, faces: FaceFinder) -> None:
        cv2.setNumThreads(1)
        self._faces = faces

    def describe(self, scenes: Sequence[SceneStills]) -> list[SceneDescription]:
        return [self._described(scene) for scene in scenes]

    def _described(self, scene: SceneStills) -> SceneDescription:
        if not scene.stills:
            raise ValueError("A scene to describe needs at least one still.")
        facts = tuple(measure(still) for still in scene.stills)
        faces = [
            self._faces.find_marked(still)
            if fact.contrast >= _BLANK_CONTRAST and not fact.colour_bars
            else ()
            for still, fact in zip(scene.stills, facts, strict=True)
        ]
        visible = scene.visible or [0] * len(facts)
        seen = [len(own) + objects for own, objects in zip(faces, visible, strict=True)]
        order = by_what_they_show(scene.stills, seen)
        best, marked = scene.stills[order[0]], faces[order[0]]
        boxes = tuple(face.box for face in marked)
        rows, columns = best.shape[:2]
        shot = shot_type_of(boxes, scene.objects, columns / rows)
        measured = scene.text, scene.camera_motion, scene.objects
        evidence = SceneEvidence(facts, boxes, *measured, shot)
        return SceneDescription(
            description=sentences(evidence),
            objects=objects_in(evidence),
            shot_type=evidence.shot,
            shot_angle=shot_angle_of(best, marked),
            stills=order,
        )


def objects_in(evidence: SceneEvidence) -> tuple[str, ...]:
    """What was found, as sorted nouns."""
    found = {"face": bool(evidence.faces), "text": bool(evidence.text)}
    labels = {item.label for item in evidence.objects}
    return tuple(sorted({noun for noun, is_found in found.items() if is_found} | labels))


def shot_type_of(
    faces: Sequence[Box], objects: Sequence[SeenObject] = (), aspect: float = 16 / 9
) -> ShotType:
    """From the largest face, else from the largest person, if she is seen from head to foot;
    unknown without either. ``aspect``: width over height of the picture."""
    if faces:
        height = max(face.height for face in faces)
        return next(shot for least, shot in _FACE_SHOTS if height >= least)
    person = next((item.box for item in objects if item.label == "person"), None)
    if person is None:
        return ShotType.UNKNOWN
    is_whole = person.top >= _EDGE and person.top + person.height <= 1 - _EDGE
    if not is_whole or person.height < _STANDING * person.width * aspect:
        return ShotType.UNKNOWN
    return next(shot for least, shot in _PERSON_SHOTS if person.height >= least)


_SHOT_NAMES = {
    ShotType.EXTREME_WIDE: "An extreme wide shot",
    ShotType.WIDE: "A wide shot",
    ShotType.FULL: "A full shot",
    ShotType.MEDIUM: "A medium shot",
    ShotType.MEDIUM_CLOSE_UP: "A medium close-up",
    ShotType.CLOSE_UP: "A close-up",
    ShotType.EXTREME_CLOSE_UP: "An extreme close-up",
    ShotType.UNKNOWN: "A shot",
}
_CAMERA = {
    CameraMotion.STATIC: "the camera stays still",
    CameraMotion.PAN_LEFT: "the camera pans to the left",
    CameraMotion.PAN_RIGHT: "the camera pans to the right",
    CameraMotion.TILT_UP: "the camera tilts upwards",
    CameraMotion.TILT_DOWN: "the camera tilts downwards",
    CameraMotion.ZOOM_IN: "the view moves in closer",
    CameraMotion.ZOOM_OUT: "the view widens",
    CameraMotion.HANDHELD: "the camera is unsteady, as if held by hand",
    CameraMotion.UNKNOWN: "",
}
_MOVEMENTS = {
    Movement.LEFT: "moves to the left",
    Movement.RIGHT: "moves to the right",
    Movement.NEARER: "comes nearer",
    Movement.AWAY: "moves away",
}
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NOUNS = {
    "tv": "screen", "dining table": "table", "sports ball": "ball", "cell phone": "phone",
    "remote": "remote control", "mouse": "computer mouse", "tie": "tie",
}  # fmt: skip
"""What is called otherwise than COCO does."""
_PLURALS = {
    "person": "people", "bus": "buses", "sheep": "sheep", "bench": "benches", "couch": "couches",
    "sandwich": "sandwiches", "knife": "knives", "wine glass": "wine glasses",
    "computer mouse": "computer mice", "toothbrush": "toothbrushes", "skis": "skis",
    "scissors": "scissors", "broccoli": "broccoli",
}  # fmt: skip
_UNCOUNTED = frozenset({"skis", "scissors", "broccoli"})
_MOST_OBJECTS, _PLACED_OBJECTS = 4, 2
"""Labels that a description names, the largest first, and those of them with a place."""
_LEFT, _RIGHT = 0.36, 0.64
"""Shares of the width between which the middle of an object in the middle lies."""
_FILLS, _SMALL, _FAR = 0.5, 0.02, 0.22
"""Share of the picture that an object fills or is small in, and of its height below which people
are far away."""
_CLOSE_SHOTS = frozenset(
    {ShotType.MEDIUM, ShotType.MEDIUM_CLOSE_UP, ShotType.CLOSE_UP, ShotType.EXTREME_CLOSE_UP}
)
_CHANGING_LEVELS = 35.0
"""Difference of mean brightness between the first and the last still worth mentioning."""
_TITLE_HEIGHT, _TITLE_TO_OTHERS = 0.06, 1.5
"""Of the picture's height, and of the height of most lines where there are several: larger writing
above the captions is a title."""
_TITLE_WIDTH = 0.25
"""Of the picture's width: what is narrower, and not in the middle, is on an object or a sign."""
_CAPTION_TOP = 0.70
"""Of the picture's height: writing that begins below is a caption."""
_QUOTED_LINES, _QUOTED_CHARACTERS = 3, 80
"""The most that a description repeats; the rest is in ``onScreenText``."""


@dataclass(frozen=True, slots=True)
class SceneEvidence:
    """All that was found and measured in a scene's stills."""

    facts: tuple[PictureFacts, ...]
    faces: tuple[Box, ...]
    """In the still that shows most, largest first."""
    text: tuple[TextLine, ...]
    camera_motion: CameraMotion
    objects: tuple[SeenObject, ...] = ()
    """The largest first."""
    shot: ShotType = ShotType.UNKNOWN

    @property
    def is_blank(self) -> bool:
        return all(fact.contrast < _BLANK_CONTRAST for fact in self.facts)

    @property
    def is_test_picture(self) -> bool:
        return sum(fact.colour_bars for fact in self.facts) * 2 > len(self.facts)


def sentences(evidence: SceneEvidence) -> str:
    """One or two sentences of what was found."""
    if evidence.is_blank and not evidence.text and not evidence.objects:
        level = median(fact.brightness for fact in evidence.facts)
        if level < 20:
            return "A black screen."
        if level > 235:
            return "A white screen."
        named = (name for name in evidence.facts[0].colours if name not in NEUTRALS)
        return f"A plain {next(named, 'grey')} screen."
    changes = ", and ".join(_changes(evidence))
    parts = filter(None, (_subject(evidence), changes))
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in parts)


def _subject(evidence: SceneEvidence) -> str:
    """The first sentence: people, else objects, else writing, else the picture; then its light."""
    written = _written(evidence.text)
    if evidence.is_test_picture:
        return f"Colour bars, a test picture{f', with the {written}' if written else ''}"
    people, objects = _people(evidence), list(_objects(evidence))
    # How it was filmed, of a picture with something in it: black letters on white are not.
    is_filmed = bool(evidence.faces or evidence.objects)
    is_colourless = is_filmed and _colour_strength(evidence) < 3.0
    look = [part for part in (_light(evidence), is_colourless and _COLOURLESS[0][1]) if part]
    text = [f"the {written}"] if written else []
    if people:
        others = f"with {_listed([*objects, *text])}" if objects or text else ""
        return ", ".join(part for part in (people, others, *look) if part)
    if objects:
        others = f"with {_listed(text)}" if text else ""
        return ", ".join(part for part in (_listed(objects), others, *look) if part)
    return ", ".join([written, *look]) if written else _picture(evidence)


def _people(evidence: SceneEvidence) -> str:
    """``A medium shot of two people on the left``; empty where there are none."""
    found = next((item for item in evidence.objects if item.label == "person"), None)
    faces, shot = len(evidence.faces), _SHOT_NAMES[evidence.shot]
    if found is None:
        return f"{shot} of {_counted('face', faces, faces)}" if faces else ""
    who = _counted("person", max(faces, found.fewest), max(faces, found.most))
    is_one = max(faces, found.most) == 1
    where = _where(found.box) if is_one else ""
    if where in ("in the middle", "filling the picture") and evidence.shot in _CLOSE_SHOTS:
        where = ""
    far = "in the distance" if found.box.height < _FAR else ""
    return " ".join(part for part in (shot, "of", who, where, far) if part)


def _objects(evidence: SceneEvidence) -> Iterator[str]:
    """``a dog on the left``, ``three or more bottles``: each label that is not people's."""
    others = [item for item in evidence.objects if item.label != "person"][:_MOST_OBJECTS]
    for index, item in enumerate(others):
        size = "small " if item.box.area < _SMALL else ""
        words = _counted(item.label, item.fewest, item.most, size)
        is_placed = item.most == 1 and index < _PLACED_OBJECTS
        yield f"{words} {_where(item.box)}" if is_placed else words


def _counted(label: str, fewest: int, most: int, size: str = "") -> str:
    """``a dog``, ``two or more dogs``, ``several dogs``: what all looks agree on."""
    noun = _NOUNS.get(label, label)
    if noun in _UNCOUNTED:
        return f"{size}{noun}"
    if most == 1:
        return f"{'an' if (size or noun)[0] in 'aeiou' else 'a'} {size}{noun}"
    plural = f"{size}{_PLURALS.get(noun, f'{noun}s')}"
    if fewest < most:
        return f"one or more {plural}" if most == 2 else f"several {plural}"
    # What is close to others or far away is missed: of what is counted as two people, more are
    # in five of twelve labelled stills, of two bottles there are three.
    return f"{_NUMBERS[most]} or more {plural}" if most < len(_NUMBERS) else f"many {plural}"


def _where(box: Box) -> str:
    if box.area >= _FILLS:
        return "filling the picture"
    middle = box.left + box.width / 2
    if middle < _LEFT:
        return "on the left"
    return "on the right" if middle > _RIGHT else "in the middle"


def _written(lines: Sequence[TextLine]) -> str:
    """What is written: ``title “THE END” and “thank you”``; empty without writing."""
    if not lines:
        return ""
    most, texts = _QUOTED_CHARACTERS, [line.text for line in lines[:_QUOTED_LINES]]
    cut = [it if len(it) <= most else f"{it[: most - 1].rstrip()}…" for it in texts]
    quoted = [f"“{text}”" for text in cut]
    more = len(lines) - len(quoted)
    if more:
        quoted.append("another line" if more == 1 else f"{more} more lines")
    return f"{_role(lines)} {_listed(quoted)}"


def _role(lines: Sequence[TextLine]) -> str:
    """What kind of writing it is, by its tallest line: a small one aside is of the scene's."""
    tallest = max(lines, key=lambda line: line.box.height).box
    if tallest.top >= _CAPTION_TOP:
        return "caption"
    middle = tallest.left + tallest.width / 2
    if tallest.width < _TITLE_WIDTH and not _LEFT <= middle <= _RIGHT:
        return "text"
    others = median(line.box.height for line in lines)
    stands_out = len(lines) <= 2 or tallest.height >= _TITLE_TO_OTHERS * others
    return "title" if tallest.height >= _TITLE_HEIGHT and stands_out else "text"


def _picture(evidence: SceneEvidence) -> str:
    """A picture in which nothing was found: its light and its colours."""
    fact = evidence.facts[len(evidence.facts) // 2]
    light, colours = _light(evidence), fact.colours
    kind = f"a {light} picture".replace("  ", " ")
    colourless = _graded(_colour_strength(evidence), _COLOURLESS)
    if colourless and not fact.accents:
        return f"{kind} {colourless}"
    some = f", with {_listed(fact.accents)}" if fact.accents else ""
    if colours and set(colours) <= NEUTRALS:
        adjectives = ", ".join(part for part in (light, f"mostly {_listed(colours)}") if part)
        return f"a {adjectives} picture{some}"
    strength = _graded(_colour_strength(evidence), _STRENGTHS)
    if not colours:
        return f"{kind} in many {strength} colours{some}".replace("  ", " ")
    if strength == "vivid":
        colours = tuple(name for name in colours if name not in NEUTRALS)
    manner = f"{strength} " if len(colours) == 1 else f"{strength} colours: "
    return f"{kind} in {manner if strength else ''}{_listed(colours)}{some}"


_BRIGHTNESSES = ((40, "very dark"), (85, "dark"), (165, ""), (200, "bright"), (256, "very bright"))
"""Mean level below which a picture is called so."""
_STRENGTHS = ((22.0, "muted"), (50.0, ""), (1e9, "vivid"))
"""Colourfulness below which the colours are called so."""
_COLOURLESS = ((3.0, "in black and white"), (6.0, "with hardly any colour"), (1e9, ""))


def _light(evidence: SceneEvidence) -> str:
    """Brightness, as far as it is out of the ordinary."""
    return _graded(median(fact.brightness for fact in evidence.facts), _BRIGHTNESSES)


def _colour_strength(evidence: SceneEvidence) -> float:
    return median(fact.colourfulness for fact in evidence.facts)


def _changes(evidence: SceneEvidence) -> Iterator[str]:
    """What the camera does, what moves before one that stands still, and how the light changes."""
    if words := _CAMERA[evidence.camera_motion]:
        yield words
    if evidence.camera_motion is CameraMotion.STATIC:
        moving = (item for item in evidence.objects if item.movement is not None)
        for item in sorted(moving, key=lambda item: item.label != "person")[:1]:
            noun = _NOUNS.get(item.label, item.label)
            yield f"the {noun} {_MOVEMENTS[Movement(item.movement or '')]}"
    change = evidence.facts[-1].brightness - evidence.facts[0].brightness
    if abs(change) >= _CHANGING_LEVELS:
        yield "the picture grows brighter" if change > 0 else "the picture grows darker"


def _listed(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(part for part in (", ".join(parts[:-1]), "".join(parts[-1:])) if part)


def _graded(value: float, grades: Sequence[tuple[float, str]]) -> str:
    return next(word for limit, word in grades if value < limit)
