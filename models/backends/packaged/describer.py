"""Scenes described from what can be measured without downloaded weights.

Every clause of a description stands for a measurement; what was not measured
is not said, and a label that nothing supports is ``unknown``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import cv2

from models.backends.packaged.faces import FaceFinder, PeopleFinder
from models.backends.packaged.pictures import Box, PictureFacts, measure, text_lines
from models.contracts import (
    CameraMotion,
    SceneDescription,
    SceneStills,
    ShotAngle,
    ShotType,
)

_FACE_SHOTS = (
    (0.60, ShotType.EXTREME_CLOSE_UP),
    (0.35, ShotType.CLOSE_UP),
    (0.22, ShotType.MEDIUM_CLOSE_UP),
    (0.11, ShotType.MEDIUM),
    (0.00, ShotType.FULL),
)
"""Least height of the largest face, of the picture's height. A head is about an eighth of
a standing person: a face of a tenth leaves room for the whole figure."""

_PERSON_SHOTS = ((0.50, ShotType.FULL), (0.20, ShotType.WIDE), (0.00, ShotType.EXTREME_WIDE))
"""Least height of the tallest person, of the picture's height."""

_SHOT_NAMES = {
    ShotType.EXTREME_CLOSE_UP: "An extreme close-up",
    ShotType.CLOSE_UP: "A close-up",
    ShotType.MEDIUM_CLOSE_UP: "A medium close-up",
    ShotType.MEDIUM: "A medium shot",
    ShotType.FULL: "A full shot",
    ShotType.WIDE: "A wide shot",
    ShotType.EXTREME_WIDE: "An extreme wide shot",
    ShotType.UNKNOWN: "A shot",
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
_SHORTEST_LINE = 0.12
"""Share of the picture's width below which a row of letter-like shapes proves nothing."""

_SAME_LINE = 0.3


@dataclass(frozen=True, slots=True)
class SceneEvidence:
    """All that was measured of a scene's stills."""

    facts: tuple[PictureFacts, ...]
    faces: tuple[tuple[Box, ...], ...]
    people: tuple[tuple[Box, ...], ...]
    text: bool
    camera_motion: CameraMotion

    @property
    def is_blank(self) -> bool:
        return all(fact.contrast < _BLANK_CONTRAST for fact in self.facts)


class PackagedSceneDescriber:
    """SceneDescriber by classical picture measurements. Deterministic; holds no GPU.

    One call works on one core: OpenCV's own threads are turned off, because
    a task has no more, and several share the machine.
    """

    def __init__(self) -> None:
        cv2.setNumThreads(1)
        self._faces = FaceFinder()
        self._people = PeopleFinder()

    def describe(self, scenes: Sequence[SceneStills]) -> list[SceneDescription]:
        return [self._describe(scene) for scene in scenes]

    def _describe(self, scene: SceneStills) -> SceneDescription:
        if not scene.stills:
            raise ValueError("A scene to describe needs at least one still.")
        evidence = self._evidence(scene)
        shot_type = shot_type_of(evidence)
        return SceneDescription(
            description=sentences(evidence, shot_type),
            objects=objects_in(evidence),
            shot_type=shot_type,
            shot_angle=ShotAngle.UNKNOWN,
        )

    def _evidence(self, scene: SceneStills) -> SceneEvidence:
        facts = tuple(measure(still) for still in scene.stills)
        shown = [
            still
            for still, fact in zip(scene.stills, facts, strict=True)
            if fact.contrast >= _BLANK_CONTRAST and not fact.colour_bars
        ]
        return SceneEvidence(
            facts=facts,
            faces=tuple(tuple(boxes) for boxes in self._faces.find(shown)),
            people=tuple(tuple(boxes) for boxes in self._people.find(shown)),
            text=_shows_text([text_lines(still) for still in shown]),
            camera_motion=scene.camera_motion,
        )


def _shows_text(lines: Sequence[Sequence[Box]]) -> bool:
    """Whether writing stands at one place in two stills (or in the only one).

    Short runs are left out: leaves and pebbles make letter-like rows too, but small ones.
    """
    lines = [[line for line in still if line.width >= _SHORTEST_LINE] for still in lines]
    if len(lines) < 2:
        return any(lines)
    return any(
        one.overlap(other) >= _SAME_LINE
        for index, first in enumerate(lines)
        for second in lines[index + 1 :]
        for one in first
        for other in second
    )


def objects_in(evidence: SceneEvidence) -> tuple[str, ...]:
    """What the detectors found, as sorted nouns."""
    found = {
        "face": any(evidence.faces),
        "person": any(evidence.people),
        "text": evidence.text,
    }
    return tuple(sorted(noun for noun, seen in found.items() if seen))


def shot_type_of(evidence: SceneEvidence) -> ShotType:
    """From the largest face, else from the tallest person, else unknown."""
    for boxes, table in ((evidence.faces, _FACE_SHOTS), (evidence.people, _PERSON_SHOTS)):
        heights = [max(box.height for box in still) for still in boxes if still]
        if heights:
            height = median(heights)
            return next(shot for least, shot in table if height >= least)
    return ShotType.UNKNOWN


def sentences(evidence: SceneEvidence, shot_type: ShotType) -> str:
    """One or two sentences of what was measured."""
    if evidence.is_blank:
        return _blank_sentence(evidence.facts)
    if sum(fact.colour_bars for fact in evidence.facts) * 2 > len(evidence.facts):
        return "Colour bars, a test picture."
    first = f"{_SHOT_NAMES[shot_type]}{_subject(evidence)}{_look(evidence)}."
    return " ".join(part for part in (first, _second(evidence)) if part)


def _blank_sentence(facts: Sequence[PictureFacts]) -> str:
    level = median(fact.brightness for fact in facts)
    if level < 20:
        return "A black screen."
    if level > 235:
        return "A white screen."
    return f"A plain {facts[0].hue or 'grey'} screen."


def _subject(evidence: SceneEvidence) -> str:
    faces, people = (max(map(len, boxes), default=0) for boxes in (evidence.faces, evidence.people))
    shown = []
    if faces:
        shown.append("a face" if faces == 1 else f"{_NUMBERS.get(faces, 'several')} faces")
    elif people:
        shown.append("a person" if people == 1 else f"{_NUMBERS.get(people, 'several')} people")
    subject = f" of {shown[0]}" if shown else ""
    if evidence.text:
        subject += " and text on the screen" if shown else " with text on the screen"
    return subject


def _look(evidence: SceneEvidence) -> str:
    """Light, contrast and colour, as far as they are out of the ordinary."""
    facts = evidence.facts
    clauses = [
        _graded(
            median(fact.brightness for fact in facts),
            ((40, "very dark"), (85, "dark"), (165, ""), (200, "bright"), (256, "very bright")),
        ),
        _graded(
            median(fact.contrast for fact in facts),
            ((22, "low in contrast"), (68, ""), (256, "high in contrast")),
        ),
        _colour(evidence),
    ]
    said = [clause for clause in clauses if clause]
    if len(said) > 1:
        said = [*said[:-2], f"{said[-2]} and {said[-1]}"]
    return f", {', '.join(said)}"


def _colour(evidence: SceneEvidence) -> str:
    facts = evidence.facts
    strength = median(fact.colourfulness for fact in facts)
    if strength < 6:
        return "in black and white"
    hues = [fact.hue for fact in facts if fact.hue]
    if len(hues) * 2 > len(facts) and len(set(hues)) == 1:
        return f"mostly {hues[0]}"
    return _graded(
        strength,
        ((22, "in muted colours"), (50, "in moderate colours"), (1e9, "in vivid colours")),
    )


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
