"""Step: detect things of known classes in a segment's sampled frames and store what was found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from models.contracts import Box, DetectedObject, Movement, SeenThing
from models.provider import ModelProvider
from models.tasks import DETECT_OBJECTS
from pipelines.artifacts import Artifact, Made
from pipelines.execution.chain import Step, Workspace
from pipelines.types import ObjectTrack, StageCode, VideoSource
from pipelines.vision.features import Times, features_key, nearest_frame
from pipelines.vision.scenes import SceneBorders
from pipelines.vision.stills import SegmentTimes, StillsConfig, segment_stills


@dataclass(frozen=True, slots=True)
class ObjectsConfig:
    """Which frames the detector gets."""

    every_ms: int = 2_000
    max_frames: int = 20_000
    """Of a video, 11 hours at one in two seconds, beside the fewest of each scene; a longer one is
    sampled less often, evenly."""
    frames_at_once: int = 64
    """Most frames of a segment in memory at the same time."""
    still_long_side_px: int = 640
    """Side of the square that RT-DETRv2 resizes its input to."""


_FEWEST_SAMPLES = 2
"""Of a scene: what is seen in two of its frames is there."""


def object_times(
    times_ms: Times, key_times_ms: Times, scenes: Sequence[SceneBorders], config: ObjectsConfig
) -> list[int]:
    """Frame times to sample, rising: of each scene those nearest to the middles of equal parts of
    what no transition touches; key frames, where a part has any, as others must be decoded from
    the one before them.

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
            keys = key_times_ms[slice(*np.searchsorted(key_times_ms, [low_ms, high_ms]))]
            own = keys if len(keys) else times_ms
            nearest_ms = int(own[nearest_frame(own, int(middle_ms))])
            if start_ms <= nearest_ms < end_ms:
                found.add(nearest_ms)
    return sorted(found)


Detections = dict[int, tuple[DetectedObject, ...]]
"""Time of a sampled frame in ms -> what was found in it, the most certain first."""


@dataclass(frozen=True)
class DetectObjects(Step[SegmentTimes, Made]):
    """Frames of a segment to what they show, stored (DETECTIONS).

    ``models_digest`` names the backends in use: results of one are not reused for another.
    """

    name = "Detecting objects"
    code = StageCode.VISION_FAILED
    version = 3
    video: VideoSource
    workspace: Workspace
    models: ModelProvider
    config: ObjectsConfig
    models_digest: str

    def process(self, item: SegmentTimes) -> Made:
        inputs = item.times_ms, self.config, self.models_digest
        frames = features_key(self.video, item.segment, self.workspace)
        part = self.video.part_of(item.segment)
        key = DETECTIONS.key(
            self.workspace.prefix, frames, part, *inputs, position=item.segment.index
        )
        return DETECTIONS.make(self.workspace.store, key, lambda: self._detections(item))

    def _detections(self, item: SegmentTimes) -> Detections:
        """By frame time; frames that cannot be decoded are left out."""
        detector = self.models.find(DETECT_OBJECTS)
        if detector is None:
            raise ValueError("The profile has no detector of objects.")
        found: Detections = {}
        stills_config = StillsConfig(self.config.still_long_side_px)
        for some in item.in_runs(self.config.frames_at_once):
            self.workspace.check()
            stills = segment_stills(self.video, some, self.workspace, stills_config)
            found |= zip(stills, detector.find(list(stills.values())), strict=True)
        return found


DETECTIONS = Artifact.of(Detections, "vision/objects", version=DetectObjects.version)


MISSED_SAMPLES = 1
"""So many samples in a row may lack a thing without ending its track: detectors lose things for
a frame (SORT, Bewley et al. 2016, takes the same maximum age of a track)."""

SEEN_ONCE = 0.8
"""Least confidence of a thing in a single one of a scene's two samples."""


def object_tracks(
    found: Mapping[int, Sequence[DetectedObject]], start_ms: int, end_ms: int
) -> tuple[ObjectTrack, ...]:
    """Tracks of a scene by start and label; several things of one label are one track.

    A sample stands for the times that are nearer to it than to the scene's other samples, so
    a thing in all of them is there from the scene's start to its end. Confidence is the mean of
    the samples that show the thing.
    """
    samples = sorted(time_ms for time_ms in found if start_ms <= time_ms < end_ms)
    middles = [(one + two) // 2 for one, two in pairwise(samples)]
    starts, ends = [start_ms, *middles], [*middles, end_ms]
    tracks = []
    for label, confidences in _confirmed([found[time_ms] for time_ms in samples]).items():
        for run in _runs(sorted(confidences)):
            mean = sum(confidences[index] for index in run) / len(run)
            tracks.append(ObjectTrack(label, starts[run[0]], ends[run[-1]], mean))
    return tuple(sorted(tracks, key=lambda track: (track.start_ms, track.label)))


def _confirmed(samples: Sequence[Sequence[DetectedObject]]) -> dict[str, dict[int, float]]:
    """Label -> sample -> confidence of the best detection, of what a neighbouring sample confirms.

    In one of two samples a thing must be all but certain: a scene this short has no more. In one of
    many even that is not enough (of a car seen from above, a phone with 0.98).
    """
    best: dict[str, dict[int, float]] = {}
    for index, things in enumerate(samples):
        for each in things:
            of_label = best.setdefault(each.label, {})
            of_label[index] = max(each.confidence, of_label.get(index, 0.0))
    return {
        label: seen
        for label, seen in best.items()
        if len(samples) == 1
        or any(later - sooner <= MISSED_SAMPLES + 1 for sooner, later in pairwise(sorted(seen)))
        or (len(samples) == 2 and max(seen.values()) >= SEEN_ONCE)
    }


def scene_things(
    found: Mapping[int, Sequence[DetectedObject]], start_ms: int, end_ms: int
) -> tuple[SeenThing, ...]:
    """What is in a scene, one a label, the largest first."""
    samples = [found[time_ms] for time_ms in sorted(found) if start_ms <= time_ms < end_ms]
    things = []
    for label, confidences in _confirmed(samples).items():
        boxes = {
            index: [each.box for each in samples[index] if each.label == label]
            for index in sorted(confidences)
        }
        counts = sorted(len(each) for each in boxes.values())
        most = counts[-1]
        if len(samples) > _FEWEST_SAMPLES:  # One look may see a thing twice: three of two laptops.
            most = min(most, max(2, counts[-2]))
        middle = min(boxes, key=lambda index: abs(2 * index - len(samples) + 1))
        is_followed = len(boxes) == len(samples) and counts[-1] == 1
        moved = _movement([box for [box] in boxes.values()]) if is_followed else None
        largest = max(boxes[middle], key=lambda box: box.area)
        things.append(SeenThing(label, counts[0], most, largest, moved))
    return tuple(sorted(things, key=lambda thing: (-thing.box.area, thing.label)))


_ABOUT_MS = 1_500
"""Things seen so near to a still's time are likely in it."""


def seen_about(
    found: Mapping[int, Sequence[DetectedObject]], sampled_ms: Times, times_ms: Sequence[int]
) -> tuple[int, ...]:
    """How many things are in the sampled frame nearest to each time, 0 where that is far away."""
    nearest = [int(sampled_ms[nearest_frame(sampled_ms, time_ms)]) for time_ms in times_ms]
    return tuple(
        len(found[near]) if abs(near - time_ms) <= _ABOUT_MS else 0
        for near, time_ms in zip(nearest, times_ms, strict=True)
    )


_FEWEST_LOOKS, _MOVED, _GROWN = 3, 0.15, 1.4
"""Looks at a thing, share of the picture's width and ratio of heights from which it has moved."""
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
