"""Vision: a video's segments in, its scenes out.

features  (map, 1:1 a segment)  decode once, store tiny pictures of every frame
cuts      (map, then reduce)    over all segments end to end, as if never cut up
policy    (map, 1:1 a segment)  stills against what is not permitted, where a policy is set
scenes    (map, 1:1 a group)    stills, palette, thumbnail, camera motion, description
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from models.contracts import CameraMotion, ShotAngle, ShotType
from models.sources import ModelSource
from pipelines.chains import Control, Row, Step, Workspace
from pipelines.contracts import Scene, StageCode, StageError, VideoSource, VisionResult
from pipelines.expected_work import vision_work
from pipelines.mapping import Mapped, Mapper, map_on_ray
from pipelines.merge.cuts import Cut, CutConfig
from pipelines.merge.frame_features import Times
from pipelines.merge.motion import pair_times
from pipelines.merge.scene_plans import SceneBorders, scenes_between, still_times
from pipelines.policy.contracts import ContentPolicy
from pipelines.steps.vision_describe import (
    DescribeConfig,
    ScenePlan,
    make_describe_step,
    plans_to,
    read_findings,
    segment_at,
)
from pipelines.steps.vision_features import FeaturesConfig, make_features_step
from pipelines.steps.vision_policy import checked_times, make_policy_step
from pipelines.vision_cuts import find_cuts

_POLICY_SHARE = 1 / 6
"""Of what is left after the cuts, the policy's chain, where there is one."""

_MOST_DECODE_THREADS = 4


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """How a video is looked at."""

    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    cuts: CutConfig = field(default_factory=CutConfig)
    describe: DescribeConfig = field(default_factory=DescribeConfig)
    max_scenes_a_task: int = 8
    """Bounds a task's memory: up to three stills a scene are held at once, 1.6 MB each."""
    policy: ContentPolicy = field(default_factory=ContentPolicy)
    boundary_weights: Path | None = None
    """Weights of TransNetV2: cuts are then found by it in place of the embedded detector."""


def analyse_vision(
    video: VideoSource,
    *,
    workspace: Workspace,
    models: ModelSource,
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
    ends = chain_ends(video, with_policy=config.policy.is_active)
    features = _features_chain(video, workspace, control, config, mapper, ends.features)
    looked = find_cuts(
        features,
        video,
        workspace,
        control,
        config=config.cuts,
        learned_weights=config.boundary_weights,
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
    described = _describe_chain(
        plans, video, workspace, models, control, config, mapper, ends.policy
    )
    control.progress(1.0)
    reused_features = sum(bool(row["reused"]) for row in features)
    computed_scenes = sum(int(row["computed"]) for row in described)
    return VisionResult(
        scenes=_scenes(described, borders, workspace),
        shards_computed=len(features) - reused_features + computed_scenes,
        shards_reused=reused_features + len(plans) - computed_scenes,
    )


@dataclass(frozen=True, slots=True)
class ChainEnds:
    """Progress of the stage, 0 to 1, at which the chains end; the scenes' ends at 1."""

    features: float
    cuts: float
    policy: float


def chain_ends(video: VideoSource, *, with_policy: bool) -> ChainEnds:
    """By what each chain is expected to take."""
    work = vision_work(video)
    whole = max(work.whole, 1e-9)
    cuts = (work.reading + work.cutting) / whole
    policy = cuts + (1 - cuts) * _POLICY_SHARE if with_policy else cuts
    return ChainEnds(work.reading / whole, cuts, policy)


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
        with_pictures=config.boundary_weights is not None,
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
    models: ModelSource,
    control: Control,
    policy: ContentPolicy,
    mapper: Mapper,
    ends: ChainEnds,
) -> None:
    """1:1, a row a segment; raises StageError where the policy is broken."""
    stills = [time_ms for plan in plans for time_ms in plan.still_times_ms]
    times = checked_times(times_ms, stills)
    by_segment: dict[int, list[int]] = {}
    for time_ms in times:
        by_segment.setdefault(segment_at(video, time_ms).index, []).append(time_ms)
    rows = [{"index": index, "times_ms": json.dumps(own)} for index, own in by_segment.items()]
    step = make_policy_step(video, workspace, models, policy)
    try:
        shares = (ends.cuts, ends.policy)
        _mapped(rows, step, "Checking the pictures", control, shares, mapper)
    except StageError as error:
        if error.code is StageCode.CONTENT_BLOCKED:
            workspace.store.delete_prefix(workspace.key("vision"))
        raise


def _describe_chain(
    plans: Sequence[ScenePlan],
    video: VideoSource,
    workspace: Workspace,
    models: ModelSource,
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
    rows: Sequence[Row], borders: Sequence[SceneBorders], workspace: Workspace
) -> tuple[Scene, ...]:
    keys = [key for row in rows for key in row["keys"]]
    scenes = []
    for index, (key, border) in enumerate(zip(keys, borders, strict=True)):
        found = read_findings(workspace, key)
        scenes.append(
            Scene(
                index=index,
                start_ms=border.start_ms,
                end_ms=border.end_ms,
                description=found.description,
                objects=found.objects,
                color_palette=found.color_palette,
                shot_type=ShotType(found.shot_type),
                shot_angle=ShotAngle(found.shot_angle),
                camera_motion=CameraMotion(found.camera_motion),
                confidence=border.confidence,
                thumbnail_key=found.thumbnail_key,
                on_screen_text=found.on_screen_text,
            )
        )
    return tuple(scenes)
