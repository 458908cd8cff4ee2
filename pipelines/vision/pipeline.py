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
from pipelines.execution.chain import Control, Mapped, Mapper, Row, Step, Workspace
from pipelines.execution.ray_data import map_on_ray
from pipelines.processor_time import vision_work
from pipelines.types import Scene, StageCode, StageError, VideoSource, VisionResult
from pipelines.vision.camera_motion import pair_times
from pipelines.vision.cuts.pipeline import find_cuts
from pipelines.vision.cuts.selection import Cut, CutConfig
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
    """How a video is looked at."""

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
    with_objects = models.object_detector() is not None
    ends = chain_ends(video, with_policy=config.policy.is_active, with_objects=with_objects)
    features = _features_chain(video, workspace, control, config, mapper, ends.features)
    looked = find_cuts(
        features,
        video,
        workspace,
        control,
        config=config.cuts,
        learned=None if config.boundaries is None else config.boundaries(),
        mapper=mapper,
        progress=(ends.features, ends.cuts),
    )
    times_ms = looked.times_ms
    if len(times_ms) == 0:
        message = "No picture of the video could be decoded."
        raise StageError(StageCode.VISION_FAILED, message)
    plans, borders = _plans(looked.cuts, times_ms, looked.key_times_ms, video.duration_ms)
    if config.policy.is_active:
        _policy_chain(
            plans, times_ms, video, workspace, models, control, config.policy, mapper, ends
        )
    detected: list[Row] = []
    if plans and with_objects:
        detected = _objects_chain(times_ms, video, workspace, models, control, config, mapper, ends)
    described = _describe_chain(
        plans, video, workspace, models, control, config, mapper, ends.objects
    )
    control.progress(1.0)
    reused_features = sum(bool(row["reused"]) for row in features)
    computed = sum(int(row["computed"]) for row in [*detected, *described])
    return VisionResult(
        scenes=_scenes(described, detected, borders, workspace),
        shards_computed=len(features) - reused_features + computed,
        shards_reused=reused_features + len(detected) + len(plans) - computed,
    )


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


def _features_chain(
    video: VideoSource,
    workspace: Workspace,
    control: Control,
    config: VisionConfig,
    mapper: Mapper,
    progress_to: float,
) -> list[Row]:
    """1:1, a row a segment, in order of time."""
    rows = [
        {
            "index": segment.index,
            "key": segment.key,
            "start_ms": segment.start_ms,
            "end_ms": segment.end_ms,
            "part": segment.part,
        }
        for segment in video.segments
    ]
    features = replace(
        config.features,
        decode_threads=_decode_threads(config, len(rows)),
        with_pictures=config.boundaries is not None,
    )
    step = make_features_step(video, workspace, features)
    done = _mapped(rows, step, "Reading the pictures", control, (0.0, progress_to), mapper)
    return sorted(done, key=lambda row: int(row["index"]))


def _decode_threads(config: VisionConfig, segments: int) -> int:
    """As configured, else the cluster's CPUs shared out among the segments."""
    if config.features.decode_threads:
        return config.features.decode_threads
    import ray

    if not ray.is_initialized():
        return 1
    cpus = int(ray.cluster_resources().get("CPU", 1))
    return max(1, min(_MOST_DECODE_THREADS, cpus // max(1, segments)))


def _policy_chain(
    plans: Sequence[ScenePlan],
    times_ms: Times,
    video: VideoSource,
    workspace: Workspace,
    models: ModelProvider,
    control: Control,
    policy: ContentPolicy,
    mapper: Mapper,
    ends: ChainEnds,
) -> None:
    """1:1, a row a segment; raises StageError where the policy is broken."""
    stills = [time_ms for plan in plans for time_ms in plan.still_times_ms]
    times = checked_times(times_ms, stills)
    rows = _rows_by_segment(times, video)
    step = make_policy_step(video, workspace, models, policy)
    try:
        shares = (ends.cuts, ends.policy)
        _mapped(rows, step, "Checking the pictures", control, shares, mapper)
    except StageError as error:
        if error.code is StageCode.CONTENT_BLOCKED:
            workspace.store.delete_prefix(workspace.key("vision"))
        raise


def _objects_chain(
    times_ms: Times,
    video: VideoSource,
    workspace: Workspace,
    models: ModelProvider,
    control: Control,
    config: VisionConfig,
    mapper: Mapper,
    ends: ChainEnds,
) -> list[Row]:
    """1:1, a row a segment."""
    rows = _rows_by_segment(object_times(times_ms, config.objects), video)
    step = make_objects_step(video, workspace, models, config.objects, config.describe.models)
    shares = (ends.policy, ends.objects)
    return _mapped(rows, step, "Detecting objects", control, shares, mapper)


def _rows_by_segment(times_ms: Sequence[int], video: VideoSource) -> list[Row]:
    """A row for each segment that has any of the frames at ``times_ms``."""
    by_segment: dict[int, list[int]] = {}
    for time_ms in times_ms:
        by_segment.setdefault(segment_at(video, time_ms).index, []).append(time_ms)
    return [{"index": index, "times_ms": json.dumps(own)} for index, own in by_segment.items()]


def _describe_chain(
    plans: Sequence[ScenePlan],
    video: VideoSource,
    workspace: Workspace,
    models: ModelProvider,
    control: Control,
    config: VisionConfig,
    mapper: Mapper,
    progress_from: float,
) -> list[Row]:
    """1:1, a row a group of neighbouring scenes, in order of time."""
    groups = grouped(plans, video, config.max_scenes_a_task)
    rows = [{"index": index, "plans": plans_to(group)} for index, group in enumerate(groups)]
    step = make_describe_step(video, workspace, models, config.describe)
    shares = (progress_from, 1.0)
    done = _mapped(rows, step, "Describing the scenes", control, shares, mapper)
    return sorted(done, key=lambda row: int(row["index"]))


def _mapped(
    rows: list[Row],
    step: Step,
    name: str,
    control: Control,
    progress: tuple[float, float],
    mapper: Mapper,
) -> list[Row]:
    """``step`` over ``rows``."""
    mapped = Mapped(step, name, StageCode.VISION_FAILED)
    return mapper(rows, [mapped], control, progress_from=progress[0], progress_to=progress[1])


def _plans(
    cuts: Sequence[Cut], times_ms: Times, key_times_ms: Times, duration_ms: int
) -> tuple[list[ScenePlan], list[SceneBorders]]:
    borders = scenes_between(cuts, duration_ms)
    plans = [
        ScenePlan(
            index=index,
            start_ms=scene.start_ms,
            end_ms=scene.end_ms,
            still_times_ms=still_times(times_ms, key_times_ms, scene),
            motion_pairs_ms=tuple(pair_times(times_ms, scene.clear_start_ms, scene.clear_end_ms)),
        )
        for index, scene in enumerate(borders)
    ]
    return plans, borders


def grouped(plans: Sequence[ScenePlan], video: VideoSource, at_most: int) -> list[list[ScenePlan]]:
    """Neighbouring scenes that lie in one segment, no more than ``at_most`` together."""
    groups = []
    for _, members in groupby(plans, key=lambda plan: _home(plan, video)):
        together = list(members)
        groups += [together[first : first + at_most] for first in range(0, len(together), at_most)]
    return groups


def _home(plan: ScenePlan, video: VideoSource) -> int:
    """The segment that the scene's middle still comes from."""
    return segment_at(video, plan.still_times_ms[len(plan.still_times_ms) // 2]).index


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
