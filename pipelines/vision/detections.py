"""Steps that look for objects, faces and blocked content in sampled frames and stills.

Objects are of known classes, in sampled frames. Faces of the scenes' stills get
vectors, which are grouped by average linkage, where the service and the job both allow it. What is
doubtful stays apart: somebody may be two people here, two are hardly ever one. Vectors are deleted
once the groups are made, with all pictures of faces but one of each person. The content policy is
checked before any still is kept.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import cv2
import numpy as np
import scipy

from models.contracts import Box, DetectedObject, Movement, Picture, SeenObject
from models.provider import ModelProvider
from models.tasks import CLASSIFY_CONTENT, DETECT_OBJECTS, EMBED_FACES
from pipelines.codec import Artifact, Made, digest
from pipelines.execution.chain import Step, Workspace
from pipelines.types import (
    Appearance,
    ObjectTrack,
    Person,
    SeenBox,
    StageCode,
    StageError,
    VideoSource,
)
from pipelines.vision.bars import cropped, upright_box
from pipelines.vision.features import Times, even_times, nearest_frame
from pipelines.vision.policy import ContentPolicy, find_breach
from pipelines.vision.scenes import SceneBorders
from pipelines.vision.stills import FrameTimes, segment_at, stills_at
from storage.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class ObjectsConfig:
    """Which frames the detector gets."""

    every_ms: int = 2_000
    max_frames: int = 20_000
    """Of a video, 11 hours at one in two seconds, beside the fewest of each scene; a longer one is
    sampled less often, evenly."""
    frames_at_once: int = 64
    """Most frames in memory at the same time."""
    still_long_side_px: int = 640
    """Side of the square that RT-DETRv2 resizes its input to."""


_FEWEST_SAMPLES = 2
"""Of a scene: what is seen in two of its frames is there."""


def object_times(
    times_ms: Times, easy_times_ms: Times, scenes: Sequence[SceneBorders], config: ObjectsConfig
) -> list[int]:
    """Frame times to sample, rising: of each scene those nearest to the middles of equal parts of
    what no transition touches; easy ones (see FoundCuts), where a part has any.

    ``times_ms`` holds all frame times of the video, one at least.
    """
    duration_ms = int(times_ms[-1] - times_ms[0]) + 1
    every_ms = max(config.every_ms, -(-duration_ms // config.max_frames))
    found: set[int] = set()
    for scene in scenes:
        start_ms, end_ms = scene.clear_start_ms, scene.clear_end_ms
        parts = max(_FEWEST_SAMPLES, round((end_ms - start_ms) / every_ms))
        step_ms = (end_ms - start_ms) / parts
        for middle_ms in start_ms + step_ms * (np.arange(parts) + 0.5):
            low_ms, high_ms = middle_ms - step_ms / 2, middle_ms + step_ms / 2
            easy = easy_times_ms[slice(*np.searchsorted(easy_times_ms, [low_ms, high_ms]))]
            own = easy if len(easy) else times_ms
            nearest_ms = int(own[nearest_frame(own, int(middle_ms))])
            if start_ms <= nearest_ms < end_ms:
                found.add(nearest_ms)
    return sorted(found)


Detections = dict[int, tuple[DetectedObject, ...]]
"""Time of a sampled frame in ms -> what was found in it, the most certain first."""


@dataclass(frozen=True)
class DetectObjects(Step[FrameTimes, Made]):
    """Frames to what they show, stored (DETECTIONS).

    ``models_digest`` names the backends in use: results of one are not reused for another.
    The detector gets the ``active`` picture of each part: it makes all squares of one size, and
    bars would leave less of that. Boxes are in the whole upright picture.
    """

    name = "Detecting objects"
    code = StageCode.VISION_FAILED
    version = 5
    video: VideoSource
    workspace: Workspace
    models: ModelProvider
    config: ObjectsConfig
    models_digest: str
    active: tuple[Box, ...]

    def process(self, item: FrameTimes) -> Made:
        frames = item.sources(self.video, self.workspace)
        inputs = frames, item.times_ms, self.config, self.models_digest, self.active
        key = DETECTIONS.key(self.workspace.prefix, *inputs, position=item.position)
        return DETECTIONS.make(self.workspace.store, key, lambda: self._detections(item))

    def _detections(self, item: FrameTimes) -> Detections:
        """By frame time; frames that cannot be decoded are left out."""
        detector = self.models.find(DETECT_OBJECTS)
        if detector is None:
            raise ValueError("The profile has no detector of objects.")
        found: Detections = {}
        for some in item.in_runs(self.config.frames_at_once):
            self.workspace.check()
            stills = stills_at(self.video, some, self.workspace, self.config.still_long_side_px)
            boxes = []
            for time_ms in stills:
                segment = segment_at(self.video, time_ms)
                orientation = self.video.part_of(segment).stream.orientation
                boxes.append(upright_box(self.active[segment.part], orientation))
            shown = [cropped(*each) for each in zip(stills.values(), boxes, strict=True)]
            for time_ms, box, own in zip(stills, boxes, detector.find(shown), strict=True):
                found[time_ms] = tuple(replace(each, box=each.box.placed(box)) for each in own)
        return found


DETECTIONS = Artifact.of(Detections, "vision/objects", version=DetectObjects.version)

MISSED_SAMPLES = 1
"""So many samples in a row may lack an object without ending its track: detectors lose objects for
a frame (SORT, Bewley et al. 2016, takes the same maximum age of a track)."""

SEEN_ONCE = 0.8
"""Least confidence of an object in a single one of a scene's two samples."""


def object_tracks(
    found: Mapping[int, Sequence[DetectedObject]], start_ms: int, end_ms: int
) -> tuple[ObjectTrack, ...]:
    """Return tracks of a scene by start and label; several objects of one label are one track.

    A sample stands for the times that are nearer to it than to the scene's other samples, so
    an object in all of them is there from the scene's start to its end. Confidence is the mean of
    the samples that show the object.
    """
    samples = sorted(time_ms for time_ms in found if start_ms <= time_ms < end_ms)
    middles = [(one + two) // 2 for one, two in pairwise(samples)]
    starts, ends = [start_ms, *middles], [*middles, end_ms]
    tracks = []
    for label, confidences in _confirmed([found[time_ms] for time_ms in samples]).items():
        for run in _runs(sorted(confidences)):
            mean = sum(confidences[index] for index in run) / len(run)
            boxes = tuple(
                SeenBox(samples[index], box.rounded())
                for index in run
                for box in sorted(
                    (each.box for each in found[samples[index]] if each.label == label),
                    key=lambda box: (box.left, box.top),
                )
            )
            tracks.append(ObjectTrack(label, starts[run[0]], ends[run[-1]], mean, boxes))
    return tuple(sorted(tracks, key=lambda track: (track.start_ms, track.label)))


def _confirmed(samples: Sequence[Sequence[DetectedObject]]) -> dict[str, dict[int, float]]:
    """Label -> sample -> confidence of the best detection, of what a neighbouring sample confirms.
    In one of two samples an object must be all but certain: a scene this short has no more. In one
    of many even that is not enough (of a car seen from above, a phone with 0.98)."""
    best: dict[str, dict[int, float]] = {}
    for index, objects in enumerate(samples):
        for each in objects:
            of_label = best.setdefault(each.label, {})
            of_label[index] = max(each.confidence, of_label.get(index, 0.0))
    return {
        label: seen
        for label, seen in best.items()
        if len(samples) == 1
        or any(later - sooner <= MISSED_SAMPLES + 1 for sooner, later in pairwise(sorted(seen)))
        or (len(samples) == 2 and max(seen.values()) >= SEEN_ONCE)
    }


def seen_objects(
    found: Mapping[int, Sequence[DetectedObject]], start_ms: int, end_ms: int
) -> tuple[SeenObject, ...]:
    """Return what is in a scene, one a label, the largest first."""
    samples = [found[time_ms] for time_ms in sorted(found) if start_ms <= time_ms < end_ms]
    objects = []
    for label, confidences in _confirmed(samples).items():
        boxes = {
            index: [each.box for each in samples[index] if each.label == label]
            for index in sorted(confidences)
        }
        counts = sorted(len(each) for each in boxes.values())
        most = counts[-1]
        if len(samples) > _FEWEST_SAMPLES:
            # One look may see an object twice: three of two laptops.
            most = min(most, max(2, counts[-2]))
        middle = min(boxes, key=lambda index: abs(2 * index - len(samples) + 1))
        is_followed = len(boxes) == len(samples) and counts[-1] == 1
        moved = _movement([box for [box] in boxes.values()]) if is_followed else None
        largest = max(boxes[middle], key=lambda box: box.area)
        objects.append(SeenObject(label, counts[0], most, largest, moved))
    return tuple(sorted(objects, key=lambda item: (-item.box.area, item.label)))


_ABOUT_MS = 1_500
"""Objects seen so near to a still's time are likely in it."""


def seen_about(
    found: Mapping[int, Sequence[DetectedObject]], sampled_ms: Times, times_ms: Sequence[int]
) -> tuple[int, ...]:
    """Return how many objects are in the sampled frame nearest to each time, 0 where that is far
    away."""
    nearest = [int(sampled_ms[nearest_frame(sampled_ms, time_ms)]) for time_ms in times_ms]
    return tuple(
        len(found[near]) if abs(near - time_ms) <= _ABOUT_MS else 0
        for near, time_ms in zip(nearest, times_ms, strict=True)
    )


_FEWEST_LOOKS, _MOVED, _GROWN = 3, 0.15, 1.4
"""Looks at an object, share of the picture's width and ratio of heights from which it has moved."""
_STEADY_SHARE = 0.02
"""Of the width, by which a box may go back on its way: boxes tremble."""


def _movement(boxes: Sequence[Box]) -> Movement | None:
    """From look to look in one direction, to the side or in size; None where not, or too little."""
    if len(boxes) < _FEWEST_LOOKS:
        return None
    middles = [box.left + box.width / 2 for box in boxes]
    ways = (
        (Movement.LEFT, [-middle for middle in middles], _MOVED, _STEADY_SHARE),
        (Movement.RIGHT, middles, _MOVED, _STEADY_SHARE),
        (Movement.NEARER, [math.log(box.height) for box in boxes], math.log(_GROWN), 0.05),
        (Movement.AWAY, [-math.log(box.height) for box in boxes], math.log(_GROWN), 0.05),
    )
    for movement, places, least, slack in ways:
        forwards = all(after - before > -slack for before, after in pairwise(places))
        if forwards and places[-1] - places[0] >= least:
            return movement
    return None


def _runs(shown: list[int]) -> list[list[int]]:
    """Rising indices parted where more than MISSED_SAMPLES are left out."""
    runs = [[shown[0]]]
    for before, index in pairwise(shown):
        if index - before > MISSED_SAMPLES + 1:
            runs.append([])
        runs[-1].append(index)
    return runs


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
class FindFaces(Step[FrameTimes, Made]):
    """Stills to the vectors of their faces, stored until they are grouped (FACES)."""

    name = "Finding faces"
    code = StageCode.VISION_FAILED
    version = 2
    video: VideoSource
    workspace: Workspace
    models: ModelProvider
    models_digest: str

    def process(self, item: FrameTimes) -> Made:
        inputs = item.sources(self.video, self.workspace), item.times_ms, self.models_digest
        key = FACES.key(self.workspace.prefix, *inputs, position=item.position)
        return FACES.make(self.workspace.store, key, lambda: self._faces(item))

    def _faces(self, item: FrameTimes) -> Faces:
        found: Faces = {}
        for some in item.in_runs(_AT_ONCE):
            self.workspace.check()
            stills = stills_at(self.video, some, self.workspace, long_side_px=960)
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
    """Return a JPEG of the face with what is around it."""
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
    return rising[:: max(1, -(-len(rising) // MOST_STILLS))]


def group_faces(
    made: Sequence[Made], scenes: Mapping[int, int], store: ObjectStore
) -> list[Person]:
    """Return the people of a video by their first appearance; ``scenes``: time of a still -> its
    scene.

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
    """Return which of the faces (time, unit vector) are of one person: indices that rise, of two
    faces at least, by the first. Two faces of one time are of two people."""
    if len(faces) < _FEWEST_FACES:
        return []
    vectors = np.array([vector for _, vector in faces], np.float32)
    times = np.array([time for time, _ in faces])
    distances = 1 - vectors @ vectors.T
    # So far that no mean with others makes a group of the two.
    distances[times[:, None] == times[None]] = len(faces) * 2.0
    np.fill_diagonal(distances, 0)
    pairs = scipy.spatial.distance.squareform(np.maximum(distances, 0), checks=False)
    tree = scipy.cluster.hierarchy.linkage(pairs, "average")
    labels = scipy.cluster.hierarchy.fcluster(tree, 1 - SAME_PERSON, "distance").tolist()
    groups = [
        [n for n, own in enumerate(labels) if own == label] for label in dict.fromkeys(labels)
    ]
    return [group for group in groups if len(group) >= _FEWEST_FACES]


log = logging.getLogger("vas.policy")

BLOCKED_MESSAGE = "The content is not permitted by the acceptable-use policy."
"""All that a client receives: more would help to evade the policy."""

_EVERY_MS = 5_000
"""A picture shown for at least this long is checked, whatever the scenes are."""


def checked_times(times_ms: Times, still_times_ms: Sequence[int]) -> tuple[int, ...]:
    """Frame times to check, rising: the scenes' stills and a frame every few seconds.

    ``times_ms`` holds all frame times of the video, one at least.
    """
    return tuple(sorted({*even_times(times_ms, _EVERY_MS), *still_times_ms}))


@dataclass(frozen=True)
class CheckPolicy(Step[FrameTimes, Made]):
    """Frames to the mark that they are permitted. Raises StageError with CONTENT_BLOCKED for the
    first that is not."""

    name = "Checking the pictures"
    code = StageCode.VISION_FAILED
    version = 2
    video: VideoSource
    workspace: Workspace
    models: ModelProvider
    policy: ContentPolicy

    def process(self, item: FrameTimes) -> Made:
        inputs = item.sources(self.video, self.workspace), item.times_ms, self.policy
        key = PERMITTED.key(self.workspace.prefix, *inputs, position=item.position)
        return PERMITTED.make(self.workspace.store, key, lambda: self._check(item))

    def _check(self, item: FrameTimes) -> bool:
        models, policy = self.models, self.policy
        classifier = models.get(CLASSIFY_CONTENT) if policy.label_limits else None
        for some in item.in_runs(_AT_ONCE):
            self.workspace.check()
            stills = stills_at(self.video, some, self.workspace, long_side_px=448)
            breach = find_breach(list(stills.values()), policy, classifier)
            if breach is not None:
                time_ms = list(stills)[breach.index]
                prefix = self.workspace.prefix
                log.warning("%s: blocked at %d ms: %s", prefix, time_ms, breach.reason)
                raise StageError(StageCode.CONTENT_BLOCKED, BLOCKED_MESSAGE)
        return True


PERMITTED = Artifact.of(bool, "vision/policy", version=CheckPolicy.version)
