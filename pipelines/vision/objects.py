"""Step: detect things of known classes in a segment's sampled frames and store their labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from models.provider import ModelProvider
from models.tasks import DETECT_OBJECTS
from pipelines.artifacts import Artifact, Made
from pipelines.execution.chain import Step, Workspace
from pipelines.types import ObjectTrack, StageCode, VideoSource
from pipelines.vision.features import Times, even_times, features_key
from pipelines.vision.stills import SegmentTimes, StillsConfig, segment_stills

_DECORD_FROM = 8
"""Fewer frames are sought: decord's child takes 0.26 s of a processor to start and to index
30 s of 360p, seeking and decoding 0.008 s a frame (measured with a key frame a second)."""


@dataclass(frozen=True, slots=True)
class ObjectsConfig:
    """Which frames the detector gets."""

    every_ms: int = 1_000
    max_frames: int = 20_000
    """Of a video, 5.5 hours at one a second; a longer one is sampled less often, evenly."""
    frames_at_once: int = 64
    """Most frames of a segment in memory at the same time."""
    still_long_side_px: int = 640
    """Side of the square that RT-DETRv2 resizes its input to."""


def object_times(times_ms: Times, config: ObjectsConfig) -> list[int]:
    """Frame times to sample, rising, on a grid of the whole video.

    ``times_ms`` holds all frame times of the video, one at least.
    """
    duration_ms = int(times_ms[-1] - times_ms[0]) + 1
    return even_times(times_ms, max(config.every_ms, -(-duration_ms // config.max_frames)))


Labels = dict[str, float]
"""Label -> confidence of the best detection in a frame."""


@dataclass(frozen=True)
class DetectObjects(Step[SegmentTimes, Made]):
    """Frames of a segment to their stored labels (DETECTIONS).

    ``models_digest`` names the backends in use: results of one are not reused for another.
    """

    name = "Detecting objects"
    code = StageCode.VISION_FAILED
    version = 1
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

    def _detections(self, item: SegmentTimes) -> dict[int, Labels]:
        """By frame time; frames that cannot be decoded are left out."""
        detector = self.models.find(DETECT_OBJECTS)
        if detector is None:
            raise ValueError("The profile has no detector of objects.")
        found: dict[int, Labels] = {}
        stills_config = StillsConfig(self.config.still_long_side_px, batch_from=_DECORD_FROM)
        for some in item.in_runs(self.config.frames_at_once):
            self.workspace.check()
            stills = segment_stills(self.video, some, self.workspace, stills_config)
            every = detector.find(list(stills.values()))
            for time_ms, objects in zip(stills, every, strict=True):
                best = found.setdefault(time_ms, {})
                for each in objects:
                    best[each.label] = max(each.confidence, best.get(each.label, 0.0))
        return found


DETECTIONS = Artifact.of(dict[int, Labels], "vision/objects", version=DetectObjects.version)


MISSED_SAMPLES = 1
"""So many samples in a row may lack a thing without ending its track: detectors lose things for
a frame (SORT, Bewley et al. 2016, takes the same maximum age of a track)."""

Detections = Mapping[int, Mapping[str, float]]
"""Time of a sampled frame in ms -> label -> confidence of the best detection in it."""


def object_tracks(found: Detections, start_ms: int, end_ms: int) -> tuple[ObjectTrack, ...]:
    """Tracks of a scene by start and label; several things of one label are one track.

    A sample stands for the times that are nearer to it than to the scene's other samples, so
    a thing in all of them is there from the scene's start to its end. Confidence is the mean of
    the samples that show the thing.
    """
    samples = sorted(time_ms for time_ms in found if start_ms <= time_ms < end_ms)
    middles = [(one + two) // 2 for one, two in pairwise(samples)]
    starts, ends = [start_ms, *middles], [*middles, end_ms]
    tracks = []
    for label in sorted({label for time_ms in samples for label in found[time_ms]}):
        shown = [index for index, time_ms in enumerate(samples) if label in found[time_ms]]
        for run in _runs(shown):
            confidences = [found[samples[index]][label] for index in run]
            mean = sum(confidences) / len(confidences)
            tracks.append(ObjectTrack(label, starts[run[0]], ends[run[-1]], mean))
    return tuple(sorted(tracks, key=lambda track: (track.start_ms, track.label)))


def _runs(shown: list[int]) -> list[list[int]]:
    """Rising indices parted where more than MISSED_SAMPLES are left out."""
    runs = [[shown[0]]]
    for before, index in pairwise(shown):
        if index - before > MISSED_SAMPLES + 1:
            runs.append([])
        runs[-1].append(index)
    return runs
