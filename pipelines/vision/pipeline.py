"""Vision: a video's segments in, its scenes out.

features  (map, 1:1 a segment)  decode once, store tiny pictures of every frame, keep one a second
cuts      (map, then reduce)    over all segments end to end, as if never cut up
policy    (map, 1:1 a segment)  stills against what is not permitted, where a policy is set
sections  (map, 1:1 a section)  objects, writing and faces in frames of the scenes of a section;
                                stills, palette, thumbnail, camera motion, description of each
rest      (map, 1:1 a scene)    the same of long scenes, once all of their frames were looked at;
                                and of the whole video, its overview

Every task takes a logical CPU; what each part is expected to take: ``processor_time``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, pairwise
from operator import attrgetter

from models.contracts import Box
from models.provider import ModelProvider
from models.tasks import DETECT_OBJECTS, EMBED_PHRASES
from pipelines import types
from pipelines.codec import Made
from pipelines.execution.chain import Control, Mapper, Resources, Workspace, parts_of, vision_work
from pipelines.execution.ray_data import map_on_ray
from pipelines.vision import detections, fingerprints, screen_text
from pipelines.vision.bars import inside
from pipelines.vision.camera_motion import pair_times
from pipelines.vision.cuts.pipeline import FoundCuts, find_cuts
from pipelines.vision.cuts.selection import CutConfig
from pipelines.vision.features import FEATURES, FeaturesConfig, ReadFrames, nearest_frame, no_frames
from pipelines.vision.policy import ContentPolicy
from pipelines.vision.scenes import (
    SCENES,
    DescribeConfig,
    DescribeScenes,
    SceneBorders,
    ScenePlan,
    scenes_between,
    still_times,
    whole_video,
)
from pipelines.vision.sections import (
    LookAtScenes,
    Looked,
    Section,
    is_short,
    reading_times,
    scene_places,
    sections_of,
    with_objects,
)
from pipelines.vision.stills import FrameTimes, segment_at
from pipelines.vision.tags import TagBank, load_tag_bank, open_tagger
from storage.objects import ObjectStore

_MOST_DECODE_THREADS = 4


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """How a video is analysed."""

    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    cuts: CutConfig = field(default_factory=CutConfig)
    objects: detections.ObjectsConfig = field(default_factory=detections.ObjectsConfig)
    describe: DescribeConfig = field(default_factory=DescribeConfig)
    tags: TagBank = field(default_factory=load_tag_bank)
    people: bool = False
    """Whether faces of the same person are put together."""
    max_scenes_a_task: int = 8
    """Bounds a task's memory: up to five stills a scene are held at once, 1.6 MB each."""
    policy: ContentPolicy = field(default_factory=ContentPolicy)


def analyse_vision(
    video: types.VideoSource,
    *,
    workspace: Workspace,
    models: ModelProvider,
    control: Control,
    config: VisionConfig,
    mapper: Mapper = map_on_ray,
) -> types.VisionResult:
    """Return the scenes of ``video``, none where it has no cuts, and its overview.

    Outputs that an earlier run stored in ``workspace`` are used again. Raises StageError
    (VISION_FAILED where nothing can be decoded, CONTENT_BLOCKED where the policy does not permit
    it: then nothing seen of it is kept) and StageStoppedError.
    """
    weights = vision_work(video, policy=config.policy.is_active)
    reading, cutting, checking, looking, describing = parts_of(control, weights)
    need = Resources(gpus=config.features.gpus)
    read = ReadFrames(video, workspace, features_config(config, video), resources=need)
    features = mapper(video.segments, read, reading)
    place = features, video, workspace, cutting
    found = find_cuts(*place, config.cuts, models=models, mapper=mapper, gpus=need.gpus)
    plan = plan_vision(found, video, workspace, models, config)
    if config.policy.is_active:
        check = detections.CheckPolicy(video, workspace, models, config.policy)
        try:
            mapper(plan.checked, check, checking)
        except types.StageError as error:
            if error.code is types.StageCode.CONTENT_BLOCKED:
                workspace.store.delete_prefix(workspace.key("vision"))
            raise
    looked = mapper(plan.sections, plan.look, looking)
    rest = plan.rest(looked)
    described = mapper([(each,) for each in rest], plan.look.describe, describing)
    control.progress(1.0)
    return plan.result(features, looked, [*chain(*described)])


@dataclass(frozen=True, slots=True)
class VisionPlan:
    """What is to be looked at of a video whose cuts are known, and how results come of it."""

    found: FoundCuts
    look: LookAtScenes
    borders: tuple[SceneBorders, ...]
    scenes: tuple[ScenePlan, ...]
    checked: tuple[FrameTimes, ...]
    """What the policy looks at."""
    sections: tuple[Section, ...]
    long: dict[int, screen_text.ScenePlaces]
    """Scenes that no section has, by their index, and where writing may be in them."""

    @property
    def _video(self) -> types.VideoSource:
        return self.look.describe.video

    @property
    def _store(self) -> ObjectStore:
        return self.look.describe.workspace.store

    def rest(self, looked: Sequence[Looked]) -> list[ScenePlan]:
        """Return what is to be described once all sections are: long scenes, and all of a video
        that has several."""
        seen, readings = detections.Detections(), screen_text.Readings()
        for each in looked:
            for made in each.detected:
                seen |= detections.DETECTIONS.load(self._store, made.key)
            for made in each.read if self.long else ():
                readings |= screen_text.READINGS.load(self._store, made.key)
        rest = [
            replace(
                with_objects(self.scenes[index], seen),
                texts=screen_text.screen_texts(places, readings),
            )
            for index, places in self.long.items()
        ]
        if len(self.scenes) > 1:
            texts = {plan.index: plan.texts for plan in rest}
            for made in chain(*(each.scenes for each in looked)):
                scene = SCENES.load(self._store, made.key)
                texts[scene.index] = scene.on_screen_text
            # The whole video as one scene, with stills that its scenes have too.
            shown = {round((len(self.scenes) - 1) * share) for share in _OVERVIEW_SHARES}
            middles = tuple(self.scenes[index].middle_ms for index in sorted(shown))
            whole = ScenePlan(len(self.scenes), 0, self._video.duration_ms, 1.0, middles, ())
            whole = with_objects(whole, seen, all_stills=True)
            whole = replace(
                whole, texts=screen_text.together([texts[index] for index in sorted(texts)])
            )
            rest.append(_between_bars(whole, self._video, self.found))
        return rest

    def result(
        self, features: Sequence[Made], looked: Sequence[Looked], described: Sequence[Made]
    ) -> types.VisionResult:
        """Return the result; ``described`` are the scenes of ``rest``."""
        shown = [*chain(*(each.scenes for each in looked)), *described]
        scenes = [SCENES.load(self._store, each.key) for each in shown]
        *rest, overview = sorted(scenes, key=attrgetter("index"))
        made = [*features, *chain(*(each.detected for each in looked)), *shown]
        computed = sum(each.computed for each in made)
        prints = fingerprints_of(
            self._video, features, self.borders, self.found.active, self._store
        )
        return types.VisionResult(
            tuple(rest),
            _overview(overview, rest),
            people=self._people(looked),
            warnings=tuple(damage_warnings(self.found.damaged_ms.tolist())),
            fingerprints=prints.to_bytes(),
            shards_computed=computed,
            shards_reused=len(made) - computed,
        )

    def _people(self, looked: Sequence[Looked]) -> tuple[types.Person, ...] | None:
        if self.look.find_faces is None:
            return None
        homes = {at: plan.index for plan in self.scenes for at in plan.still_times_ms}
        faces = [*chain(*(each.faces for each in looked))]
        return tuple(detections.group_faces(faces, homes if self.found.cuts else {}, self._store))


def plan_vision(
    found: FoundCuts,
    video: types.VideoSource,
    workspace: Workspace,
    models: ModelProvider,
    config: VisionConfig,
) -> VisionPlan:
    """Return which frames of a video with these cuts to look at, and in which tasks."""
    place, digest = (video, workspace, models), config.describe.models
    detects = models.find(DETECT_OBJECTS) is not None
    phrases = models.find(EMBED_PHRASES)
    look = LookAtScenes(
        detections.DetectObjects(*place, config.objects, digest, found.active) if detects else None,
        screen_text.ReadText(*place, digest),
        detections.FindFaces(*place, digest) if config.people else None,
        DescribeScenes(
            *place,
            replace(config.describe, judges_explicit=bool(config.policy.label_limits)),
            None if phrases is None else open_tagger(phrases, config.tags),
        ),
        config.max_scenes_a_task,
    )
    borders = scenes_between(found.cuts, video.duration_ms) or [whole_video(video.duration_ms)]
    scenes = [
        _between_bars(_plan(index, each, found), video, found) for index, each in enumerate(borders)
    ]
    stills = [time_ms for plan in scenes for time_ms in plan.still_times_ms]
    times = found.times_ms, found.easy_times_ms
    objects = detections.object_times(*times, borders, config.objects) if detects else []
    shown, is_checked = [*stills, *objects], config.policy.is_active
    checked = detections.checked_times(found.times_ms, shown) if is_checked else ()
    long = {plan.index: scene_places([plan], look.read)[0] for plan in scenes if not is_short(plan)}
    written = (reading_times(scenes[index], places) for index, places in long.items())
    faces = detections.sampled_stills(stills) if config.people else []
    return VisionPlan(
        found,
        look,
        tuple(borders),
        tuple(scenes),
        tuple(by_segment(checked, video)),
        tuple(sections_of(scenes, video, objects, sorted(set().union(*written)), faces)),
        long,
    )


def fingerprints_of(
    video: types.VideoSource,
    features: Sequence[Made],
    shots: Sequence[SceneBorders],
    active: Sequence[Box],
    store: ObjectStore,
) -> fingerprints.Fingerprints:
    """Return what the shots look like, from the stored features of each segment in turn."""
    spans = [(shot.start_ms, shot.end_ms) for shot in shots]
    wanted = sorted({int(each) for span in spans for each in fingerprints.sample_times(*span)})
    found: dict[int, tuple[fingerprints.Pictures, bool]] = {}
    for segment, made in zip(video.segments, features, strict=True):
        own = [it for it in wanted if segment_at(video, it) == segment]
        stored = FEATURES.load(store, made.key) if own else no_frames()
        if not len(stored):
            continue
        rows = [nearest_frame(stored.times_ms, time_ms) for time_ms in own]
        shown = inside(stored.rows(rows), active[segment.part])
        for time_ms, look in zip(own, shown.looks_in_order(), strict=True):
            found[time_ms] = fingerprints.picture_of(look.orientation.upright(look.luma))
    return fingerprints.joined_shots(spans, found)


_ONE_DAMAGE_MS = 2_000
"""Damage that is nearer together is one interval: a lost packet spoils all that refers to it."""
_MOST_WARNINGS = 20


def damage_warnings(damaged_ms: Sequence[int]) -> Iterator[types.PipelineWarning]:
    """Yield one for each interval of damaged pictures, whose times rise; the last for all the
    rest."""
    gaps = [after for before, after in pairwise(damaged_ms) if after - before > _ONE_DAMAGE_MS]
    starts = [*damaged_ms[:1], *gaps[: _MOST_WARNINGS - 1]]
    for start_ms, next_ms in pairwise([*starts, math.inf]):
        own = [time_ms for time_ms in damaged_ms if start_ms <= time_ms < next_ms]
        message = f"{len(own)} pictures are damaged." if len(own) > 1 else "A picture is damaged."
        yield types.PipelineWarning(
            types.WarningCode.PICTURE_DAMAGED, message, start_ms=own[0], end_ms=own[-1]
        )


_OVERVIEW_SHARES = (0.15, 0.5, 0.85)
"""Which of a video's scenes are shown of it as a whole, by their places among all."""


def _overview(overview: types.Scene, scenes: Sequence[types.Scene]) -> types.Scene:
    """Return the overview with what is in any of the scenes. Its description is that of the shot of
    its still, introduced as one of several: what is true of one shot (light that grows, how many
    people) need not be of the others."""
    if not scenes:
        return overview
    every = [*scenes, overview]
    shown_ms = overview.stills[0].time_ms
    own = next(scene for scene in scenes if scene.start_ms <= shown_ms < scene.end_ms)
    tags = {tag.label: tag for tag in sorted(chain(*(it.tags for it in every)), key=_score)}
    return replace(
        overview,
        description=f"One of {len(scenes)} shots: {own.description}",
        objects=tuple(sorted({*chain(*(scene.objects for scene in every))})),
        tags=tuple(sorted(tags.values(), key=_score, reverse=True)),
    )


_score = attrgetter("score")


def features_config(config: VisionConfig, video: types.VideoSource) -> FeaturesConfig:
    """Threads as configured, else the cluster's CPUs shared out among the segments."""
    import ray

    threads = config.features.decode_threads
    if not threads:
        cpus = int(ray.cluster_resources().get("CPU", 1)) if ray.is_initialized() else 1
        threads = max(1, min(_MOST_DECODE_THREADS, cpus // max(1, len(video.segments))))
    return replace(config.features, decode_threads=threads)


def by_segment(times_ms: Iterable[int], video: types.VideoSource) -> list[FrameTimes]:
    """Return the frames at ``times_ms``, rising, by the segments that they belong to."""
    return [
        FrameTimes(index, tuple(own))
        for index, own in groupby(times_ms, key=lambda at: segment_at(video, at).index)
    ]


def _plan(index: int, scene: SceneBorders, found: FoundCuts) -> ScenePlan:
    return ScenePlan(
        index=index,
        start_ms=scene.start_ms,
        end_ms=scene.end_ms,
        confidence=scene.confidence,
        still_times_ms=still_times(
            found.times_ms, found.easy_times_ms, found.contrasts, found.details, scene
        ),
        motion_pairs_ms=tuple(pair_times(found.times_ms, scene.clear_start_ms, scene.clear_end_ms)),
    )


def _between_bars(plan: ScenePlan, video: types.VideoSource, found: FoundCuts) -> ScenePlan:
    """Return the plan with its picture between bars; all of it where the stills have several."""
    parts = {segment_at(video, time_ms).part for time_ms in plan.still_times_ms}
    boxes = {found.active[part] for part in parts}
    return replace(plan, active=boxes.pop()) if len(boxes) == 1 else plan
