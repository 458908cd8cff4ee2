"""Step: the scenes of a section of the video to all that is found in them.

A section has the scenes whose middle still lies in one segment. One task looks for objects, writing
and faces in their frames and describes them, so that what is read of a segment is read once, and no
scene waits for those of other sections. Longer scenes have their frames looked at by segment; they
are described once all of these are done.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.codec import Made
from pipelines.execution.chain import Step
from pipelines.types import StageCode, VideoSource
from pipelines.vision import detections, screen_text
from pipelines.vision.scenes import DescribeScenes, ScenePlan
from pipelines.vision.stills import FrameTimes, segment_at

_SHORT_MS = 60_000
"""A scene up to so long is looked at in one task: a few seconds' work."""


@dataclass(frozen=True, slots=True)
class Section:
    """Scenes to find all of in one task, and times at which to look for longer ones."""

    index: int
    """Its segment's."""
    plans: tuple[ScenePlan, ...] = ()
    object_times_ms: tuple[int, ...] = ()
    text_times_ms: tuple[int, ...] = ()
    """Of longer scenes; those of ``plans`` follow from where strokes are."""
    face_times_ms: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Looked:
    """What was made of a section: scenes in the order of its plans, and what was seen."""

    scenes: tuple[Made, ...] = ()
    detected: tuple[Made, ...] = ()
    read: tuple[Made, ...] = ()
    faces: tuple[Made, ...] = ()


@dataclass(frozen=True)
class LookAtScenes(Step[Section, Looked]):
    """A section to what is seen in it, and its scenes, all stored."""

    name = "Looking at the scenes"
    code = StageCode.VISION_FAILED
    detect: detections.DetectObjects | None
    read: screen_text.ReadText
    find_faces: detections.FindFaces | None
    describe: DescribeScenes
    scenes_at_once: int

    def process(self, section: Section) -> Looked:
        store = self.describe.workspace.store
        detected: tuple[Made, ...] = ()
        plans, seen = section.plans, detections.Detections()
        if self.detect is not None and section.object_times_ms:
            times = FrameTimes(section.index, section.object_times_ms)
            detected = (self.detect.process(times),)
            seen = detections.DETECTIONS.load(store, detected[0].key)
        if seen:
            plans = tuple(with_objects(plan, seen) for plan in plans)
        plans, read = self._with_texts(plans, section)
        faces: tuple[Made, ...] = ()
        if self.find_faces is not None and section.face_times_ms:
            times = FrameTimes(section.index, section.face_times_ms)
            faces = (self.find_faces.process(times),)
        scenes: list[Made] = []
        for first in range(0, len(plans), self.scenes_at_once):
            scenes += self.describe.process(plans[first : first + self.scenes_at_once])
        return Looked(tuple(scenes), detected, read, faces)

    def _with_texts(
        self, plans: tuple[ScenePlan, ...], section: Section
    ) -> tuple[tuple[ScenePlan, ...], tuple[Made, ...]]:
        places = scene_places(plans, self.read)
        times = {*section.text_times_ms}.union(*map(reading_times, plans, places))
        if not times:
            return plans, ()
        made = self.read.process(FrameTimes(section.index, tuple(sorted(times))))
        readings = screen_text.READINGS.load(self.read.workspace.store, made.key)
        return tuple(
            replace(plan, texts=screen_text.screen_texts(own, readings))
            for plan, own in zip(plans, places, strict=True)
        ), (made,)


def scene_places(
    plans: Sequence[ScenePlan], read: screen_text.ReadText
) -> list[screen_text.ScenePlaces]:
    """Return where writing may be in each of the scenes, which are in order."""
    if not plans:
        return []
    span = plans[0].start_ms, plans[-1].end_ms
    strokes = screen_text.load_strokes(read.video, read.workspace, *span)
    return [screen_text.ScenePlaces.of(strokes, plan.start_ms, plan.end_ms) for plan in plans]


def reading_times(plan: ScenePlan, places: screen_text.ScenePlaces) -> set[int]:
    """Return when to read what is written in a scene."""
    # Where there is no sample, in a scene of less than a second, its still may show some.
    return {*places.times_ms} if places.samples.times_ms else {*plan.still_times_ms[:1]}


def with_objects(
    plan: ScenePlan, seen: detections.Detections, *, all_stills: bool = False
) -> ScenePlan:
    """Return the plan with what is in its scene, and about the times of its stills.

    Where a sampled frame of the scene shows more than is about any of these, it is one of them,
    unless the plan has ``all_stills`` already.
    """
    own = {at: objects for at, objects in sorted(seen.items()) if plan.start_ms <= at < plan.end_ms}
    if not own:
        return replace(plan, visible=(0,) * len(plan.still_times_ms))
    sampled_ms, times_ms = np.array([*own], np.int64), plan.still_times_ms
    best_ms = max(own, key=lambda time_ms: len(own[time_ms]))
    if len(own[best_ms]) > max(detections.seen_about(own, sampled_ms, times_ms)) and not all_stills:
        times_ms = tuple(sorted({*times_ms, best_ms}))
    tracks = detections.object_tracks(own, plan.start_ms, plan.end_ms)
    if all_stills:  # the scenes of the video have the boxes
        tracks = tuple(replace(each, boxes=None) for each in tracks)
    return replace(
        plan,
        still_times_ms=times_ms,
        objects=detections.seen_objects(own, plan.start_ms, plan.end_ms),
        tracks=tracks,
        visible=detections.seen_about(own, sampled_ms, times_ms),
    )


def sections_of(
    plans: Sequence[ScenePlan],
    video: VideoSource,
    object_times_ms: Sequence[int],
    text_times_ms: Sequence[int],
    face_times_ms: Sequence[int],
) -> list[Section]:
    """Return the sections of a video whose scenes are ``plans``, in order; none that is empty.

    Objects of scenes that ``is_short`` are looked for with them, wherever their frames are.
    """
    plans_of: dict[int, list[ScenePlan]] = {}
    for plan in plans:
        if is_short(plan):
            plans_of.setdefault(segment_at(video, plan.middle_ms).index, []).append(plan)
    starts = [plan.start_ms for plan in plans]
    home = {plan.index: index for index, own in plans_of.items() for plan in own}

    def place_of(time_ms: int) -> int:
        return segment_at(video, time_ms).index

    def home_of(time_ms: int) -> int:
        return home.get(plans[bisect_right(starts, time_ms) - 1].index, place_of(time_ms))

    objects = _by_section(object_times_ms, home_of)
    texts, faces = (_by_section(times, place_of) for times in (text_times_ms, face_times_ms))
    return [
        Section(index, tuple(plans_of.get(index, ())), objects[index], texts[index], faces[index])
        for index in range(len(video.segments))
        if index in plans_of or objects[index] or texts[index] or faces[index]
    ]


def _by_section(
    times_ms: Sequence[int], section_of: Callable[[int], int]
) -> defaultdict[int, tuple[int, ...]]:
    found: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
    for time_ms in times_ms:
        found[section_of(time_ms)] += (time_ms,)
    return found


def is_short(plan: ScenePlan) -> bool:
    """Return whether one task is to look at all of a scene."""
    return plan.end_ms - plan.start_ms <= _SHORT_MS
