"""Vision: a video's segments in, its scenes out.

features  (map, 1:1 a segment)  decode once, store tiny pictures of every frame
cuts      (map, then reduce)    over all segments end to end, as if never cut up
policy    (map, 1:1 a segment)  stills against what is not permitted, where a policy is set
objects   (map, then reduce)    things of known classes, once a second, where there is a detector
scenes    (map, 1:1 a group)    stills, palette, thumbnail, camera motion, description
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from models.contracts import BoundaryDetector, CameraMotion, ShotAngle, ShotType
from models.provider import ModelProvider
from models.tasks import DETECT_OBJECTS
from pipelines.execution.chain import (
    Chain,
    Control,
    ControlSpan,
    Mapper,
    Row,
    Step,
    Workspace,
    map_here,
)
from pipelines.execution.ray_data import map_on_ray
from pipelines.processor_time import vision_work
from pipelines.types import Scene, StageCode, StageError, VideoSource, VisionResult
from pipelines.vision.camera_motion import pair_times
from pipelines.vision.cuts.pipeline import FoundCuts, find_cuts
from pipelines.vision.cuts.selection import CutConfig
from pipelines.vision.features import FeaturesConfig, Times, make_features_step
from pipelines.vision.objects import (
    ObjectsConfig,
    make_objects_step,
    object_times,
    object_tracks,
    read_detections,
)
from pipelines.vision.policy import ContentPolicy
from pipelines.vision.policy_step import checked_times, make_policy_step
from pipelines.vision.scenes import (
    DescribeConfig,
    SceneBorders,
    ScenePlan,
    make_describe_step,
    plans_to,
    read_findings,
    scenes_between,
    segment_at,
    still_times,
)

_POLICY_SHARE = 1 / 6
"""Of what is left after the cuts, the policy's chain, where there is one."""

_OBJECTS_SHARE = 1 / 3
"""Of what is left after that, the detector's chain, where there is one."""

_MOST_DECODE_THREADS = 4


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """How a video is analysed."""

    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    cuts: CutConfig = field(default_factory=CutConfig)
    objects: ObjectsConfig = field(default_factory=ObjectsConfig)
    describe: DescribeConfig = field(default_factory=DescribeConfig)
    max_scenes_a_task: int = 8
    """Bounds a task's memory: up to three stills a scene are held at once, 1.6 MB each."""
    policy: ContentPolicy = field(default_factory=ContentPolicy)
    boundaries: Callable[[], BoundaryDetector] | None = None
    """Opens a learned detector, which then finds the cuts in place of the measured one."""


def analyse_vision(
    video: VideoSource,
    *,
    workspace: Workspace,
    models: ModelProvider,
    control: Control,
    config: VisionConfig,
    mapper: Mapper = map_on_ray,
) -> VisionResult:
    """The scenes of ``video``; none where it has no cuts.

    Outputs that an earlier run stored in ``workspace`` are used again. Raises
    StageError (VISION_FAILED where nothing can be decoded, CONTENT_BLOCKED where
    the policy does not permit it: then nothing seen of it is kept) and
    StageStoppedError.
    """
    run = _Run(video, workspace, models, control, config, mapper)
    with_objects = models.find(DETECT_OBJECTS) is not None
    ends = chain_ends(video, with_policy=config.policy.is_active, with_objects=with_objects)
    features = run.features((0.0, ends.features))
    found = run.cuts(features, (ends.features, ends.cuts))
    if len(found.times_ms) == 0:
        message = "No picture of the video could be decoded."
        raise StageError(StageCode.VISION_FAILED, message)
    borders = scenes_between(found.cuts, video.duration_ms)
    plans = [_plan(index, scene, found) for index, scene in enumerate(borders)]
    if config.policy.is_active:
        run.check_policy(plans, found.times_ms, (ends.cuts, ends.policy))
    detected: list[Row] = []
    if plans and with_objects:
        detected = run.objects(found.times_ms, (ends.policy, ends.objects))
    described = run.descriptions(plans, (ends.objects, 1.0))
    control.progress(1.0)
    reused_features = sum(bool(row["reused"]) for row in features)
    computed = sum(int(row["computed"]) for row in [*detected, *described])
    return VisionResult(
        scenes=_scenes(described, detected, borders, workspace),
        shards_computed=len(features) - reused_features + computed,
        shards_reused=reused_features + len(detected) + len(plans) - computed,
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """The chains of one run of the stage; ``progress`` is where each starts and ends, 0 to 1."""

    video: VideoSource
    workspace: Workspace
    models: ModelProvider
    control: Control
    config: VisionConfig
    mapper: Mapper

    def mapped(
        self, rows: Sequence[Row], step: Step, name: str, progress: tuple[float, float]
    ) -> list[Row]:
        """``step`` over ``rows``."""
        start, end = progress
        chain = Chain(StageCode.VISION_FAILED).map(name, step)
        return chain.run(rows, ControlSpan(self.control, start, end), on=self.mapper)

    def features(self, progress: tuple[float, float]) -> list[Row]:
        """1:1, a row a segment, in order of time."""
        rows = [
            {
                "index": segment.index,
                "key": segment.key,
                "start_ms": segment.start_ms,
                "end_ms": segment.end_ms,
                "part": segment.part,
            }
            for segment in self.video.segments
        ]
        features = replace(
            self.config.features,
            decode_threads=_decode_threads(self.config, len(rows)),
            with_pictures=self.config.boundaries is not None,
        )
        step = make_features_step(self.video, self.workspace, features)
        return sorted(self.mapped(rows, step, "Reading the pictures", progress), key=_index)

    def cuts(self, features: Sequence[Row], progress: tuple[float, float]) -> FoundCuts:
        """Over all segments; what a single task can do is done in this process."""

        def mapped(rows: Sequence[Row], step: Step) -> list[Row]:
            run = self if len(rows) > 1 else replace(self, mapper=map_here)
            return run.mapped(rows, step, "Finding the cuts", progress)

        return find_cuts(
            features,
            self.video,
            self.workspace,
            self.control,
            self.config.cuts,
            learned=None if self.config.boundaries is None else self.config.boundaries(),
            mapped=mapped,
        )

    def check_policy(
        self, plans: Sequence[ScenePlan], times_ms: Times, progress: tuple[float, float]
    ) -> None:
        """1:1, a row a segment; raises StageError where the policy is broken."""
        stills = [time_ms for plan in plans for time_ms in plan.still_times_ms]
        rows = _rows_by_segment(checked_times(times_ms, stills), self.video)
        step = make_policy_step(self.video, self.workspace, self.models, self.config.policy)
        try:
            self.mapped(rows, step, "Checking the pictures", progress)
        except StageError as error:
            if error.code is StageCode.CONTENT_BLOCKED:
                self.workspace.store.delete_prefix(self.workspace.key("vision"))
            raise

    def objects(self, times_ms: Times, progress: tuple[float, float]) -> list[Row]:
        """1:1, a row a segment."""
        config = self.config
        rows = _rows_by_segment(object_times(times_ms, config.objects), self.video)
        step = make_objects_step(
            self.video, self.workspace, self.models, config.objects, config.describe.models
        )
        return self.mapped(rows, step, "Detecting objects", progress)

    def descriptions(self, plans: Sequence[ScenePlan], progress: tuple[float, float]) -> list[Row]:
        """1:1, a row a group of neighbouring scenes, in order of time."""
        groups = grouped(plans, self.video, self.config.max_scenes_a_task)
        rows = [{"index": index, "plans": plans_to(group)} for index, group in enumerate(groups)]
        step = make_describe_step(self.video, self.workspace, self.models, self.config.describe)
        return sorted(self.mapped(rows, step, "Describing the scenes", progress), key=_index)


def _index(row: Row) -> int:
    return int(row["index"])


@dataclass(frozen=True, slots=True)
class ChainEnds:
    """Progress of the stage, 0 to 1, at which the chains end; the scenes' ends at 1."""

    features: float
    cuts: float
    policy: float
    objects: float


def chain_ends(video: VideoSource, *, with_policy: bool, with_objects: bool = False) -> ChainEnds:
    """By what each chain is expected to take."""
    work = vision_work(video)
    whole = max(work.whole, 1e-9)
    cuts = (work.reading + work.cutting) / whole
    policy = cuts + (1 - cuts) * _POLICY_SHARE if with_policy else cuts
    objects = policy + (1 - policy) * _OBJECTS_SHARE if with_objects else policy
    return ChainEnds(work.reading / whole, cuts, policy, objects)


def _decode_threads(config: VisionConfig, segments: int) -> int:
    """As configured, else the cluster's CPUs shared out among the segments."""
    if config.features.decode_threads:
        return config.features.decode_threads
    import ray

    if not ray.is_initialized():
        return 1
    cpus = int(ray.cluster_resources().get("CPU", 1))
    return max(1, min(_MOST_DECODE_THREADS, cpus // max(1, segments)))


def _rows_by_segment(times_ms: Sequence[int], video: VideoSource) -> list[Row]:
    """A row for each segment that has any of the frames at ``times_ms``."""
    by_segment: dict[int, list[int]] = {}
    for time_ms in times_ms:
        by_segment.setdefault(segment_at(video, time_ms).index, []).append(time_ms)
    return [{"index": index, "times_ms": json.dumps(own)} for index, own in by_segment.items()]


def _plan(index: int, scene: SceneBorders, found: FoundCuts) -> ScenePlan:
    return ScenePlan(
        index=index,
        start_ms=scene.start_ms,
        end_ms=scene.end_ms,
        still_times_ms=still_times(found.times_ms, found.key_times_ms, scene),
        motion_pairs_ms=tuple(pair_times(found.times_ms, scene.clear_start_ms, scene.clear_end_ms)),
    )


def grouped(plans: Sequence[ScenePlan], video: VideoSource, at_most: int) -> list[list[ScenePlan]]:
    """Neighbouring scenes whose middle stills lie in one segment, at most ``at_most`` a group."""

    def home(plan: ScenePlan) -> int:
        return segment_at(video, plan.still_times_ms[len(plan.still_times_ms) // 2]).index

    groups = []
    for _, members in groupby(plans, key=home):
        together = list(members)
        groups += [together[first : first + at_most] for first in range(0, len(together), at_most)]
    return groups


def _scenes(
    rows: Sequence[Row],
    detected: Sequence[Row],
    borders: Sequence[SceneBorders],
    workspace: Workspace,
) -> tuple[Scene, ...]:
    keys = [key for row in rows for key in row["keys"]]
    detections: dict[int, dict[str, float]] = {}
    for row in detected:
        detections |= read_detections(workspace, row["key"])
    scenes = []
    for index, (key, border) in enumerate(zip(keys, borders, strict=True)):
        found = read_findings(workspace, key)
        tracks = object_tracks(detections, border.start_ms, border.end_ms)
        scenes.append(
            Scene(
                index=index,
                start_ms=border.start_ms,
                end_ms=border.end_ms,
                description=found.description,
                objects=tuple(sorted({*found.objects, *(track.label for track in tracks)})),
                color_palette=found.color_palette,
                shot_type=ShotType(found.shot_type),
                shot_angle=ShotAngle(found.shot_angle),
                camera_motion=CameraMotion(found.camera_motion),
                confidence=border.confidence,
                thumbnail_key=found.thumbnail_key,
                object_tracks=tracks,
                on_screen_text=found.on_screen_text,
            )
        )
    return tuple(scenes)
