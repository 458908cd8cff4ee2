"""The same face across a video's scenes, where the service and the job both allow it.

Faces of the scenes' stills get vectors, which are grouped by average linkage. What is doubtful
stays apart: somebody may be two people here, two are hardly ever one. Vectors are deleted once the
groups are made, with all pictures of faces but one of each person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from models.contracts import Box, Picture
from models.provider import ModelProvider
from models.tasks import EMBED_FACES
from pipelines.artifacts import Artifact, Made, digest
from pipelines.execution.chain import Step, Workspace
from pipelines.types import Appearance, Person, StageCode, VideoSource
from pipelines.vision.features import features_key
from pipelines.vision.stills import SegmentTimes, StillsConfig, segment_stills
from storage.objects import ObjectStore

MOST_STILLS = 2_000
"""Of a video, evenly: the time of grouping grows with the square of the faces."""
SAME_PERSON = 0.45
"""Least mean cosine of the vectors of two groups that are one person. Neighbouring frames show the
same face at 0.67 or more in 95 of 100 pairs, one frame shows two people at 0.24 at most (45 and 34
pairs of ``two-men-one-shot``); OpenCV's own threshold for two pictures is 0.363."""
_FEWEST_FACES = 2
_AT_ONCE = 16
_MARGIN = 0.3
"""Around a face in its picture, of its height."""
_PICTURE_PX = 160


@dataclass(frozen=True, slots=True)
class FoundFace:
    """A face in a still, and the object of its picture."""

    box: Box
    vector: tuple[float, ...]
    picture_key: str


Faces = dict[int, tuple[FoundFace, ...]]
"""Time of a still in ms -> its faces, the largest first."""


@dataclass(frozen=True)
class FindFaces(Step[SegmentTimes, Made]):
    """Stills of a segment to the vectors of their faces, stored until they are grouped (FACES)."""

    name = "Finding faces"
    code = StageCode.VISION_FAILED
    version = 1
    video: VideoSource
    workspace: Workspace
    models: ModelProvider
    models_digest: str

    def process(self, item: SegmentTimes) -> Made:
        frames = features_key(self.video, item.segment, self.workspace)
        inputs = frames, self.video.part_of(item.segment), item.times_ms, self.models_digest
        key = FACES.key(self.workspace.prefix, *inputs, position=item.segment.index)
        return FACES.make(self.workspace.store, key, lambda: self._faces(item))

    def _faces(self, item: SegmentTimes) -> Faces:
        found: Faces = {}
        for some in item.in_runs(_AT_ONCE):
            self.workspace.check()
            stills = segment_stills(self.video, some, self.workspace, StillsConfig(960))
            vectors = self.models.get(EMBED_FACES).embed_faces(list(stills.values()))
            for (time_ms, still), faces in zip(stills.items(), vectors, strict=True):
                portraits = [_portrait(still, face.box) for face in faces]
                keys = [self.workspace.key(f"vision/people/{digest(it)}.jpg") for it in portraits]
                for key, jpeg in zip(keys, portraits, strict=True):
                    self.workspace.store.write_bytes(key, jpeg)
                found[time_ms] = tuple(
                    FoundFace(face.box, face.vector, key)
                    for face, key in zip(faces, keys, strict=True)
                )
        return found


FACES = Artifact.of(Faces, "vision/faces", version=FindFaces.version)


def _portrait(still: Picture, box: Box) -> bytes:
    """A JPEG of the face with what is around it."""
    rows, columns = still.shape[:2]
    margin = _MARGIN * box.height * rows
    top, bottom = box.top * rows - margin, (box.top + box.height) * rows + margin
    left, right = box.left * columns - margin, (box.left + box.width) * columns + margin
    part = still[max(0, int(top)) : int(bottom) + 1, max(0, int(left)) : int(right) + 1]
    scale = _PICTURE_PX / max(part.shape[:2])
    size = (max(1, round(part.shape[1] * scale)), max(1, round(part.shape[0] * scale)))
    small = cv2.resize(part, size, interpolation=cv2.INTER_AREA)
    return cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR))[1].tobytes()


def sampled_stills(times_ms: Sequence[int]) -> list[int]:
    """At most MOST_STILLS of the times, evenly, rising."""
    rising = sorted(set(times_ms))
    step = max(1, -(-len(rising) // MOST_STILLS))
    return rising[::step]


def group_faces(
    made: Sequence[Made], scenes: Mapping[int, int], store: ObjectStore
) -> list[Person]:
    """The people of a video by their first appearance; ``scenes``: time of a still -> its scene.

    Deletes the vectors, and all pictures of faces that show nobody who is returned.
    """
    faces = {time: own for each in made for time, own in FACES.load(store, each.key).items()}
    seen = [(time, face) for time in sorted(faces) for face in faces[time]]
    people = []
    for number, group in enumerate(same_people([(time, face.vector) for time, face in seen])):
        own = [seen[n] for n in group]
        largest = max(own, key=lambda pair: pair[1].box.height)
        appearances = tuple(Appearance(time, face.box, scenes.get(time)) for time, face in own)
        people.append(Person(f"person_{number}", appearances, largest[1].picture_key))
    kept = {person.still_key for person in people}
    store.delete_keys({face.picture_key for _, face in seen} - kept)
    store.delete_keys(each.key for each in made)
    return people


def same_people(faces: Sequence[tuple[int, tuple[float, ...]]]) -> list[list[int]]:
    """Which of the faces (time, unit vector) are of one person: indices that rise, of two faces at
    least, by the first. Two faces of one time are of two people."""
    if len(faces) < _FEWEST_FACES:
        return []
    vectors = np.array([vector for _, vector in faces], np.float32)
    times = np.array([time for time, _ in faces])
    distances = 1 - vectors @ vectors.T
    # So far that no mean with others makes a group of the two.
    distances[times[:, None] == times[None]] = len(faces) * 2.0
    np.fill_diagonal(distances, 0)
    tree = linkage(squareform(np.maximum(distances, 0), checks=False), "average")
    labels = fcluster(tree, 1 - SAME_PERSON, "distance").tolist()
    groups = [
        [n for n, own in enumerate(labels) if own == label] for label in dict.fromkeys(labels)
    ]
    return [group for group in groups if len(group) >= _FEWEST_FACES]
