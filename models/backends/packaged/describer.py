"""Scenes described from people, things, writing and what can be measured of light and movement.

Every clause of a description stands for a finding; what was not found is not mentioned, and a label
that nothing supports is ``unknown``. The words are those of ``shot_list``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2

from models.backends import Backend
from models.backends.packaged.faces import FaceFinder
from models.backends.packaged.shot_angle import shot_angle_of
from models.backends.packaged.shot_list import SceneEvidence, sentences
from models.contracts import (
    Box,
    SceneDescription,
    SceneStills,
    SeenThing,
    ShotType,
)
from models.pictures import by_what_they_show, measure

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
        seen = [len(own) + things for own, things in zip(faces, visible, strict=True)]
        order = by_what_they_show(scene.stills, seen)
        best, marked = scene.stills[order[0]], faces[order[0]]
        boxes = tuple(face.box for face in marked)
        rows, columns = best.shape[:2]
        evidence = SceneEvidence(
            facts=facts,
            faces=boxes,
            text=scene.text,
            camera_motion=scene.camera_motion,
            things=scene.things,
            shot=shot_type_of(boxes, scene.things, columns / rows),
        )
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
    labels = {thing.label for thing in evidence.things}
    return tuple(sorted({noun for noun, is_found in found.items() if is_found} | labels))


def shot_type_of(
    faces: Sequence[Box], things: Sequence[SeenThing] = (), aspect: float = 16 / 9
) -> ShotType:
    """From the largest face, else from the largest person, if she is seen from head to foot;
    unknown without either. ``aspect``: width over height of the picture."""
    if faces:
        height = max(face.height for face in faces)
        return next(shot for least, shot in _FACE_SHOTS if height >= least)
    person = next((thing.box for thing in things if thing.label == "person"), None)
    if person is None:
        return ShotType.UNKNOWN
    is_whole = person.top >= _EDGE and person.top + person.height <= 1 - _EDGE
    if not is_whole or person.height < _STANDING * person.width * aspect:
        return ShotType.UNKNOWN
    return next(shot for least, shot in _PERSON_SHOTS if person.height >= least)
