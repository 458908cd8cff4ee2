"""Vision: a video's segments in, its scenes out.

features  (map, 1:1 a segment)  decode once, store tiny pictures of every frame
cuts      (map, then reduce)    over all segments end to end, as if never cut up
policy    (map, 1:1 a segment)  stills against what is not permitted, where a policy is set
objects   (map, then reduce)    objects of known classes in frames of every scene
text      (map, then reduce)    writing on the screen, where strokes of writing were seen
scenes    (map, 1:1 a group)    stills, palette, thumbnail, camera motion, description; so too of
                                the whole video, its overview

Every task takes a logical CPU; what each part is expected to take: ``processor_time``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, pairwise
from operator import attrgetter

import numpy as np

from models.contracts import Box, TextLine
from models.provider import ModelProvider
from models.tasks import DETECT_OBJECTS, EMBED_PHRASES
from pipelines.codec import Made
from pipelines.execution.chain import Control, Mapper, Workspace, parts_of, vision_work
from pipelines.execution.ray_data import map_on_ray
from pipelines.types import (
    Person,
    PipelineWarning,
    ScreenText,
    StageCode,
    StageError,
    VideoSource,
    VisionResult,
    WarningCode,
)
from pipelines.vision.bars import inside
from pipelines.vision.camera_motion import pair_times
from pipelines.vision.cuts.pipeline import FoundCuts, find_cuts
from pipelines.vision.cuts.selection import CutConfig
from pipelines.vision.detections import (
    DETECTIONS,
    CheckPolicy,
    Detections,
    DetectObjects,
    FindFaces,
    ObjectsConfig,
    checked_times,
    group_faces,
    object_times,
    object_tracks,
    sampled_stills,
    seen_about,
    seen_objects,
)
from pipelines.vision.features import (
    FEATURES,
    FeaturesConfig,
    ReadFrames,
    nearest_frame,
    no_frames,
)
from pipelines.vision.fingerprints import (
    Fingerprints,
    Pictures,
    joined_shots,
    picture_of,
    sample_times,
)
from pipelines.vision.policy import ContentPolicy
from pipelines.vision.scenes import (
    SCENES,
    DescribeConfig,
    DescribeScenes,
    SceneBorders,
    ScenePlan,
    scenes_between,
    segment_at,
    still_times,
    whole_video,
)
from pipelines.vision.screen_text import (
    MOST_LINES,
    READINGS,
    ReadText,
    ScenePlaces,
    StrokeSamples,
    load_strokes,
    screen_texts,
)
from pipelines.vision.stills import SegmentTimes
from pipelines.vision.tags import TagBank, load_tag_bank, open_tagger
from storage.objects import ObjectStore

_MOST_DECODE_THREADS = 4


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """How a video is analysed."""

    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    cuts: CutConfig = field(default_factory=CutConfig)
    objects: ObjectsConfig = field(default_factory=ObjectsConfig)
    describe: DescribeConfig = field(default_factory=DescribeConfig)
    tags: TagBank = field(default_factory=load_tag_bank)
    people: bool = False
    """Whether faces of the same person are put together."""
    max_scenes_a_task: int = 8
    """Bounds a task's memory: up to five stills a scene are held at once, 1.6 MB each."""
    policy: ContentPolicy = field(default_factory=ContentPolicy)


def analyse_vision(
    video: VideoSource,
    *,
    workspace: Workspace,
    models: ModelProvider,
    control: Control,
    config: VisionConfig,
    mapper: Mapper = map_on_ray,
) -> VisionResult:
    """Return the scenes of ``video``, none where it has no cuts, and its overview.

    Outputs that an earlier run stored in ``workspace`` are used again. Raises StageError
    (VISION_FAILED where nothing can be decoded, CONTENT_BLOCKED where the policy does not permit
    it: then nothing seen of it is kept) and StageStoppedError.
    """
    detects = models.find(DETECT_OBJECTS) is not None
    weights = vision_work(video, policy=config.policy.is_active, objects=detects)
    reading, cutting, checking, detecting, written, describing = parts_of(control, weights)
    place = video, workspace, models

    read = ReadFrames(video, workspace, features_config(config, video))
    features = mapper(video.segments, read, reading)

    found = find_cuts(
        features, video, workspace, cutting, config.cuts, models=models, mapper=mapper
    )
    scenes = scenes_between(found.cuts, video.duration_ms)
    plans = [_plan(index, each, found) for index, each in enumerate(scenes)]
    plans.append(_whole(plans, found, video.duration_ms))
    plans = [_between_bars(plan, video, found) for plan in plans]
    borders = scenes or [whole_video(video.duration_ms)]

    stills = [time_ms for plan in plans for time_ms in plan.still_times_ms]
    looked: list[int] = []
    if detects:
        looked = object_times(found.times_ms, found.key_times_ms, borders, config.objects)
    if config.policy.is_active:
        times = by_segment(checked_times(found.times_ms, [*stills, *looked]), video)
        with nothing_kept_if_blocked(workspace):
            mapper(times, CheckPolicy(*place, config.policy), checking)

    detected: list[Made] = []
    seen: Detections = {}
    if detects:
        detect = DetectObjects(*place, config.objects, config.describe.models)
        detected = mapper(by_segment(looked, video), detect, detecting)
        for each in detected:
            seen |= DETECTIONS.load(workspace.store, each.key)
        plans = _with_objects(plans, seen)

    strokes = load_strokes(features, workspace.store, video.duration_ms)
    texts = _texts(plans, strokes, video, ReadText(*place, config.describe.models), written, mapper)
    plans = [replace(plan, text=_shown(plan, texts[plan.index])) for plan in plans]

    groups = grouped(plans, video, config.max_scenes_a_task)
    people: tuple[Person, ...] | None = None
    if config.people:
        facing, describing = parts_of(describing, (1, 2))
        find = FindFaces(*place, config.describe.models)
        faces = mapper(by_segment(sampled_stills(stills), video), find, facing)
        homes = {time: plan.index for plan in plans[:-1] for time in plan.still_times_ms}
        people = tuple(group_faces(faces, homes, workspace.store))

    phrases = models.find(EMBED_PHRASES)
    tagger = None if phrases is None else open_tagger(phrases, config.tags)
    described = mapper(groups, DescribeScenes(*place, config.describe, tagger), describing)
    control.progress(1.0)
    result = _result([*features, *detected], [*chain(*described)], seen, texts, workspace.store)
    prints = fingerprints_of(video, features, borders, found.active, workspace.store)
    return replace(
        result,
        warnings=tuple(damage_warnings(found.damaged_ms.tolist())),
        people=people,
        fingerprints=prints.to_bytes(),
    )


def fingerprints_of(
    video: VideoSource,
    features: Sequence[Made],
    shots: Sequence[SceneBorders],
    active: Sequence[Box],
    store: ObjectStore,
) -> Fingerprints:
    """Return what the shots look like, from the stored features of each segment in turn."""
    spans = [(shot.start_ms, shot.end_ms) for shot in shots]
    wanted = sorted({int(each) for span in spans for each in sample_times(*span)})
    found: dict[int, tuple[Pictures, bool]] = {}
    for segment, made in zip(video.segments, features, strict=True):
        own = [it for it in wanted if segment_at(video, it) == segment]
        stored = FEATURES.load(store, made.key) if own else no_frames()
        if not len(stored):
            continue
        rows = [nearest_frame(stored.times_ms, time_ms) for time_ms in own]
        shown = inside(stored.rows(rows), active[segment.part])
        for time_ms, look in zip(own, shown.looks_in_order(), strict=True):
            found[time_ms] = picture_of(look.orientation.upright(look.luma))
    return joined_shots(spans, found)


def _with_objects(plans: Sequence[ScenePlan], seen: Detections) -> list[ScenePlan]:
    """Return the plans with what is in their scenes, and about the times of their stills.

    Where a sampled frame of a scene shows more than is about any of these, it is one of them.
    """
    if not seen:
        return [*plans]
    sampled_ms, made = np.array(sorted(seen), np.int64), []
    for plan in plans:
        times_ms = plan.still_times_ms
        own = sampled_ms[slice(*np.searchsorted(sampled_ms, [plan.start_ms, plan.end_ms]))]
        best_ms = max(own.tolist(), key=lambda time_ms: len(seen[time_ms]), default=None)
        most = max(seen_about(seen, sampled_ms, times_ms))
        is_overview = plan is plans[-1] and len(plans) > 1
        if best_ms is not None and len(seen[best_ms]) > most and not is_overview:
            times_ms = tuple(sorted({*times_ms, best_ms}))
        made.append(
            replace(
                plan,
                still_times_ms=times_ms,
                objects=seen_objects(seen, plan.start_ms, plan.end_ms),
                visible=seen_about(seen, sampled_ms, times_ms),
            )
        )
    return made


_ONE_DAMAGE_MS = 2_000
"""Damage that is nearer together is one interval: a lost packet spoils all that refers to it."""
_MOST_WARNINGS = 20


def damage_warnings(damaged_ms: Sequence[int]) -> Iterator[PipelineWarning]:
    """Yield one for each interval of damaged pictures, whose times rise; the last for all the
    rest."""
    gaps = [after for before, after in pairwise(damaged_ms) if after - before > _ONE_DAMAGE_MS]
    starts = [*damaged_ms[:1], *gaps[: _MOST_WARNINGS - 1]]
    for start_ms, next_ms in pairwise([*starts, math.inf]):
        own = [time_ms for time_ms in damaged_ms if start_ms <= time_ms < next_ms]
        message = f"{len(own)} pictures are damaged." if len(own) > 1 else "A picture is damaged."
        yield PipelineWarning(WarningCode.PICTURE_DAMAGED, message, start_ms=own[0], end_ms=own[-1])


def _texts(
    plans: Sequence[ScenePlan],
    strokes: StrokeSamples,
    video: VideoSource,
    read: ReadText,
    control: Control,
    mapper: Mapper,
) -> list[tuple[ScreenText, ...]]:
    """Return the writing in each scene and, last, in the whole video, which is that of all
    scenes."""
    scenes = plans[:-1] or plans
    places = [ScenePlaces.of(strokes, plan.start_ms, plan.end_ms) for plan in scenes]
    times: set[int] = set()
    for plan, own in zip(scenes, places, strict=True):
        # Where there is no sample, in a scene of less than a second, its still may show some.
        short = plan.still_times_ms[:1] if not own.samples.times_ms else ()
        times |= {*own.times_ms, *short}
    made = mapper(by_segment(sorted(times), video), read, control) if times else []
    readings: dict[int, tuple[TextLine, ...]] = {}
    for each in made:
        readings |= READINGS.load(read.workspace.store, each.key)
    texts = [screen_texts(own, readings) for own in places]
    if len(plans) > 1:
        first = {line.text.casefold(): line for own in reversed(texts) for line in reversed(own)}
        together = sorted(first.values(), key=lambda line: (line.start_ms or 0, line.box.top))
        texts.append(tuple(together[:MOST_LINES]))
    return texts


def _shown(plan: ScenePlan, texts: Sequence[ScreenText]) -> tuple[TextLine, ...]:
    """Return what of a scene's writing its middle still shows, or else what is there first."""
    if not texts:
        return ()
    middle_ms = plan.still_times_ms[len(plan.still_times_ms) // 2]
    own = [it for it in texts if (it.start_ms or 0) <= middle_ms < (it.end_ms or middle_ms + 1)]
    own = own or [it for it in texts if it.start_ms == texts[0].start_ms]
    by_place = sorted(own, key=lambda line: (line.box.top, line.box.left))
    return tuple(TextLine(line.text, line.confidence, line.box) for line in by_place)


_OVERVIEW_SHARES = (0.15, 0.5, 0.85)
"""Which of a video's scenes are shown of it as a whole, by their places among all."""


def _whole(plans: Sequence[ScenePlan], found: FoundCuts, duration_ms: int) -> ScenePlan:
    """Return the whole video as one scene, with stills that its scenes have too."""
    if not plans:
        return _plan(0, whole_video(duration_ms), found)
    shown = {round((len(plans) - 1) * share) for share in _OVERVIEW_SHARES}
    stills = [plans[index].still_times_ms for index in sorted(shown)]
    middles = tuple(own[len(own) // 2] for own in stills)
    return ScenePlan(len(plans), 0, duration_ms, 1.0, middles, ())


@contextmanager
def nothing_kept_if_blocked(workspace: Workspace) -> Iterator[None]:
    """Nothing that was seen of a video that the policy does not permit is kept."""
    try:
        yield
    except StageError as error:
        if error.code is StageCode.CONTENT_BLOCKED:
            workspace.store.delete_prefix(workspace.key("vision"))
        raise


def features_config(config: VisionConfig, video: VideoSource) -> FeaturesConfig:
    """Threads as configured, else the cluster's CPUs shared out among the segments."""
    import ray

    threads = config.features.decode_threads
    if not threads:
        cpus = int(ray.cluster_resources().get("CPU", 1)) if ray.is_initialized() else 1
        threads = max(1, min(_MOST_DECODE_THREADS, cpus // max(1, len(video.segments))))
    return replace(config.features, decode_threads=threads)


def by_segment(times_ms: Iterable[int], video: VideoSource) -> list[SegmentTimes]:
    """Return the frames at ``times_ms``, rising, by the segments that they belong to."""
    return [
        SegmentTimes(segment, tuple(own))
        for segment, own in groupby(times_ms, key=lambda time_ms: segment_at(video, time_ms))
    ]


def _plan(index: int, scene: SceneBorders, found: FoundCuts) -> ScenePlan:
    return ScenePlan(
        index=index,
        start_ms=scene.start_ms,
        end_ms=scene.end_ms,
        confidence=scene.confidence,
        still_times_ms=still_times(
            found.times_ms, found.key_times_ms, found.contrasts, found.details, scene
        ),
        motion_pairs_ms=tuple(pair_times(found.times_ms, scene.clear_start_ms, scene.clear_end_ms)),
    )


def _between_bars(plan: ScenePlan, video: VideoSource, found: FoundCuts) -> ScenePlan:
    """Return the plan with its picture between bars; all of it where the stills have several."""
    parts = {segment_at(video, time_ms).part for time_ms in plan.still_times_ms}
    boxes = {found.active[part] for part in parts}
    return replace(plan, active=boxes.pop()) if len(boxes) == 1 else plan


def grouped(
    plans: Sequence[ScenePlan], video: VideoSource, at_most: int
) -> list[tuple[ScenePlan, ...]]:
    """Neighbouring scenes whose middle stills lie in one segment, at most ``at_most`` a group."""

    def home(plan: ScenePlan) -> int:
        return segment_at(video, plan.still_times_ms[len(plan.still_times_ms) // 2]).index

    groups = []
    for _, members in groupby(plans, key=home):
        own = tuple(members)
        groups += [own[first : first + at_most] for first in range(0, len(own), at_most)]
    return groups


def _result(
    before: Sequence[Made],
    described: Sequence[Made],
    seen: Detections,
    texts: Sequence[tuple[ScreenText, ...]],
    store: ObjectStore,
) -> VisionResult:
    scenes = []
    for each, text in zip(described, texts, strict=True):
        scene = SCENES.load(store, each.key)
        tracks = object_tracks(seen, scene.start_ms, scene.end_ms)
        objects = sorted({*scene.objects, *(track.label for track in tracks)})
        scenes.append(
            replace(scene, objects=tuple(objects), object_tracks=tracks, on_screen_text=text)
        )
    made = [*before, *described]
    computed = sum(each.computed for each in made)
    *rest, overview = scenes
    if rest:
        everything = {*overview.objects, *chain(*(scene.objects for scene in rest))}
        tags = {
            tag.label: tag
            for tag in sorted(chain(*(it.tags for it in scenes)), key=attrgetter("score"))
        }
        best = sorted(tags.values(), key=attrgetter("score"), reverse=True)
        overview = replace(overview, objects=tuple(sorted(everything)), tags=tuple(best))
    return VisionResult(
        tuple(rest), overview, shards_computed=computed, shards_reused=len(made) - computed
    )
