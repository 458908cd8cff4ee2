"""Scenes described from faces, writing and what can be measured of light, colour and movement.

Every clause of a description stands for a finding; what was not found is not mentioned, and a label
that nothing supports is ``unknown``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import cv2

from models.backends import Backend
from models.backends.packaged.faces import FaceFinder
from models.contracts import (
    Box,
    CameraMotion,
    SceneDescription,
    SceneStills,
    ShotAngle,
    ShotType,
    TextLine,
)
from models.pictures import NEUTRALS, PictureFacts, measure

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

_SHOT_NAMES = {
    ShotType.EXTREME_CLOSE_UP: "An extreme close-up",
    ShotType.CLOSE_UP: "A close-up",
    ShotType.MEDIUM_CLOSE_UP: "A medium close-up",
    ShotType.MEDIUM: "A medium shot",
    ShotType.FULL: "A full shot",
}

_MOTION_SENTENCES = {
    CameraMotion.STATIC: "The camera stays still.",
    CameraMotion.PAN_LEFT: "The camera pans to the left.",
    CameraMotion.PAN_RIGHT: "The camera pans to the right.",
    CameraMotion.TILT_UP: "The camera tilts upwards.",
    CameraMotion.TILT_DOWN: "The camera tilts downwards.",
    CameraMotion.ZOOM_IN: "The view moves in closer.",
    CameraMotion.ZOOM_OUT: "The view widens.",
    CameraMotion.HANDHELD: "The camera is unsteady, as if held by hand.",
    CameraMotion.UNKNOWN: "",
}

_NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}
_BLANK_CONTRAST = 5.0
_CHANGING_LEVELS = 35.0
"""Difference of mean brightness between the first and the last still worth mentioning."""
_TITLE_HEIGHT, _TITLE_TO_OTHERS = 0.06, 1.5
"""Of the picture's height, and of the height of most lines where there are several: larger writing
above the captions is a title."""
_CAPTION_TOP = 0.70
"""Of the picture's height: writing that begins below is a caption."""
_QUOTED_LINES, _QUOTED_CHARACTERS = 3, 80
"""The most that a description repeats; the rest is in ``onScreenText``."""


@dataclass(frozen=True, slots=True)
class SceneEvidence:
    """All that was found and measured in a scene's stills."""

    facts: tuple[PictureFacts, ...]
    faces: tuple[Box, ...]
    """In the middle still, largest first."""
    text: tuple[TextLine, ...]
    camera_motion: CameraMotion

    @property
    def is_blank(self) -> bool:
        return all(fact.contrast < _BLANK_CONTRAST for fact in self.facts)

    @property
    def is_test_picture(self) -> bool:
        return sum(fact.colour_bars for fact in self.facts) * 2 > len(self.facts)


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
        return [
            SceneDescription(
                description=sentences(evidence),
                objects=objects_in(evidence),
                shot_type=shot_type_of(evidence.faces),
                shot_angle=ShotAngle.UNKNOWN,
            )
            for evidence in map(self._evidence, scenes)
        ]

    def _evidence(self, scene: SceneStills) -> SceneEvidence:
        if not scene.stills:
            raise ValueError("A scene to describe needs at least one still.")
        facts = tuple(measure(still) for still in scene.stills)
        middle = len(facts) // 2
        may_show_faces = facts[middle].contrast >= _BLANK_CONTRAST and not facts[middle].colour_bars
        return SceneEvidence(
            facts=facts,
            faces=self._faces.find(scene.stills[middle]) if may_show_faces else (),
            text=scene.text,
            camera_motion=scene.camera_motion,
        )


def objects_in(evidence: SceneEvidence) -> tuple[str, ...]:
    """What was found, as sorted nouns."""
    found = {"face": bool(evidence.faces), "text": bool(evidence.text)}
    return tuple(sorted(noun for noun, is_found in found.items() if is_found))


def shot_type_of(faces: Sequence[Box]) -> ShotType:
    """From the largest face; unknown without one."""
    if not faces:
        return ShotType.UNKNOWN
    height = max(face.height for face in faces)
    return next(shot for least, shot in _FACE_SHOTS if height >= least)


def sentences(evidence: SceneEvidence) -> str:
    """One or two sentences of what was found."""
    if evidence.is_blank and not evidence.text:
        level = median(fact.brightness for fact in evidence.facts)
        if level < 20:
            return "A black screen."
        if level > 235:
            return "A white screen."
        return f"A plain {evidence.facts[0].hue or 'grey'} screen."
    first = f"{_subject(evidence)}."
    return " ".join(part for part in (first, _second(evidence)) if part)


def _subject(evidence: SceneEvidence) -> str:
    """The first sentence: faces, else writing, else the picture itself; then its light."""
    # Light and colour beside what was found, as far as they are out of the ordinary.
    light, colour = _light(evidence), _colour(evidence)
    joint = ", " if colour.startswith(("in ", "with ")) else " and "
    look = joint.join(clause for clause in (light, colour) if clause)
    written = _written(evidence.text)
    if evidence.is_test_picture:
        return f"Colour bars, a test picture{f', with the {written}' if written else ''}"
    if evidence.faces:
        shot = _SHOT_NAMES[shot_type_of(evidence.faces)]
        count = len(evidence.faces)
        shown = "a face" if count == 1 else f"{_NUMBERS.get(count, 'many')} faces"
        words = f"with the {written}" if written else ""
        return ", ".join(part for part in (f"{shot} of {shown}", words, look) if part)
    if written:
        return ", ".join(part for part in (written[0].upper() + written[1:], look) if part)
    return _picture(evidence)


def _written(lines: Sequence[TextLine]) -> str:
    """What is written: ``title “THE END” and “thank you”``; empty without writing."""
    if not lines:
        return ""
    quoted = [
        f"“{text}”"
        if len(text := line.text) <= _QUOTED_CHARACTERS
        else f"“{text[: _QUOTED_CHARACTERS - 1].rstrip()}…”"
        for line in lines[:_QUOTED_LINES]
    ]
    more = len(lines) - len(quoted)
    if more:
        quoted.append("another line" if more == 1 else f"{more} more lines")
    return f"{_role(lines)} {_listed(quoted)}"


def _role(lines: Sequence[TextLine]) -> str:
    """What kind of writing it is, by its tallest line."""
    tallest = max(lines, key=lambda line: line.box.height).box
    if tallest.top >= _CAPTION_TOP:
        return "caption"
    others = median(line.box.height for line in lines)
    stands_out = len(lines) <= 2 or tallest.height >= _TITLE_TO_OTHERS * others
    return "title" if tallest.height >= _TITLE_HEIGHT and stands_out else "text"


def _picture(evidence: SceneEvidence) -> str:
    """A picture in which nothing was found: its light and its colours."""
    light, colours = _light(evidence), evidence.facts[len(evidence.facts) // 2].colours
    if colourless := _colourless(evidence):
        return f"{_article(light)} picture {colourless}"
    accent = evidence.facts[len(evidence.facts) // 2].accent
    some = f", with some {accent}" if accent else ""
    if colours and set(colours) <= NEUTRALS:
        adjectives = ", ".join(part for part in (light, f"mostly {_listed(colours)}") if part)
        return f"{_article(adjectives)} picture{some}"
    kind, strength = f"{_article(light)} picture", _graded(_colour_strength(evidence), _STRENGTHS)
    if not colours:
        return f"{kind} in many {strength} colours{some}".replace("  ", " ")
    if strength == "vivid":
        colours = tuple(name for name in colours if name not in NEUTRALS)
    manner = f"{strength} " if len(colours) == 1 else f"{strength} colours: "
    return f"{kind} in {manner if strength else ''}{_listed(colours)}{some}"


def _article(adjectives: str) -> str:
    return f"A {adjectives}".rstrip()


_BRIGHTNESSES = ((40, "very dark"), (85, "dark"), (165, ""), (200, "bright"), (256, "very bright"))
"""Mean level below which a picture is called so."""
_STRENGTHS = ((22.0, "muted"), (50.0, ""), (1e9, "vivid"))
"""Colourfulness below which the colours are called so."""
_COLOURLESS = ((3.0, "in black and white"), (6.0, "with hardly any colour"), (1e9, ""))


def _light(evidence: SceneEvidence) -> str:
    """Brightness, as far as it is out of the ordinary."""
    return _graded(median(fact.brightness for fact in evidence.facts), _BRIGHTNESSES)


def _colour(evidence: SceneEvidence) -> str:
    if colourless := _colourless(evidence):
        return colourless
    facts = evidence.facts
    hues = [fact.hue for fact in facts if fact.hue]
    if len(hues) * 2 > len(facts) and len(set(hues)) == 1:
        return f"mostly {hues[0]}"
    strength = _graded(_colour_strength(evidence), _STRENGTHS)
    return f"in {strength} colours" if strength else ""


def _colourless(evidence: SceneEvidence) -> str:
    """Of a picture without colour, or nearly; else empty."""
    return _graded(_colour_strength(evidence), _COLOURLESS)


def _colour_strength(evidence: SceneEvidence) -> float:
    return median(fact.colourfulness for fact in evidence.facts)


def _listed(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(part for part in (", ".join(parts[:-1]), "".join(parts[-1:])) if part)


def _graded(value: float, grades: Sequence[tuple[float, str]]) -> str:
    return next(word for limit, word in grades if value < limit)


def _second(evidence: SceneEvidence) -> str:
    """How the scene changes: its camera, else its light."""
    change = evidence.facts[-1].brightness - evidence.facts[0].brightness
    motion = _MOTION_SENTENCES[evidence.camera_motion]
    if abs(change) < _CHANGING_LEVELS:
        return motion
    light = "grows brighter" if change > 0 else "grows darker"
    return f"{motion[:-1]}, and the picture {light}." if motion else f"The picture {light}."
