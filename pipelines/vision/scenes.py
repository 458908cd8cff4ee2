"""From cuts to scenes, which frames of each to use, and the step that describes and stores them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import cv2
import numpy as np

from models import contracts
from models.pictures import by_what_they_show, palette
from models.provider import ModelProvider
from models.tasks import CLASSIFY_CONTENT, DESCRIBE_SCENES, EMBED_PICTURES
from pipelines import types
from pipelines.codec import Artifact, Made, digest
from pipelines.execution.chain import Step, Workspace
from pipelines.vision.bars import WHOLE, cropped, inside, upright_box
from pipelines.vision.camera_motion import camera_motion
from pipelines.vision.cuts.selection import Cut
from pipelines.vision.features import (
    FEATURES,
    FrameFeatures,
    Shapes,
    Times,
    features_key,
    joined,
    nearest_frame,
)
from pipelines.vision.stills import segment_at, stills_at
from pipelines.vision.tags import Tagger

_EXPLICIT = "nsfw"
"""The label of it, which the packaged classifier and that of the other profiles have."""


@dataclass(frozen=True, slots=True)
class DescribeConfig:
    """What is made of a scene besides its description."""

    models: str = ""
    """Names the backends in use: results of one are not reused for another."""
    still_long_side_px: int = 960
    thumbnail_width_px: int = 480
    thumbnail_quality: int = 85
    judges_explicit: bool = False
    """Whether stills get the probability that they are explicit: where the policy has its model."""


@dataclass(frozen=True, slots=True)
class ScenePlan:
    """Which frames of a scene to use, or of the whole video; all times are frame times."""

    index: int
    start_ms: int
    end_ms: int
    confidence: float
    still_times_ms: tuple[int, ...]
    motion_pairs_ms: tuple[tuple[int, int], ...]
    active: contracts.Box = WHOLE
    """The picture between bars, as stored."""
    texts: tuple[types.ScreenText, ...] = ()
    """Writing in it."""
    objects: tuple[contracts.SeenObject, ...] = ()
    """With boxes in the whole upright picture."""
    tracks: tuple[types.ObjectTrack, ...] = ()
    visible: tuple[int, ...] = ()
    """How many objects are seen about the time of each still; empty without a detector."""

    @property
    def middle_ms(self) -> int:
        """The time of the middle one of the stills."""
        return self.still_times_ms[len(self.still_times_ms) // 2]

    @property
    def text(self) -> tuple[contracts.TextLine, ...]:
        """What of the writing the middle still shows, or else what is there first."""
        at = self.middle_ms
        own = [it for it in self.texts if (it.start_ms or 0) <= at < (it.end_ms or math.inf)]
        own = own or [it for it in self.texts if it.start_ms == self.texts[0].start_ms]
        by_place = sorted(own, key=lambda line: (line.box.top, line.box.left))
        return tuple(contracts.TextLine(line.text, line.confidence, line.box) for line in by_place)


@dataclass(frozen=True)
class DescribeScenes(Step[tuple[ScenePlan, ...], tuple[Made, ...]]):
    """Plans of neighbouring scenes to each stored as far as its stills show it (SCENES)."""

    name = "Describing the scenes"
    code = types.StageCode.VISION_FAILED
    version = 16
    video: types.VideoSource
    workspace: Workspace
    models: ModelProvider
    config: DescribeConfig
    tagger: Tagger | None = None

    def process(self, plans: tuple[ScenePlan, ...]) -> tuple[Made, ...]:
        store = self.workspace.store
        keys = [self._key(plan) for plan in plans]
        made = [Made(key, computed=not store.exists(key)) for key in keys]
        planned = zip(plans, made, strict=True)
        missing = [(plan, each.key) for plan, each in planned if each.computed]
        if missing:
            describer = self.models.get(DESCRIBE_SCENES)
            seen = self._pictured([plan for plan, _ in missing])
            self.workspace.check()
            described = describer.describe([each.stills for each in seen])
            self.workspace.check()
            orders = [said.stills or each.order for each, said in zip(seen, described, strict=True)]
            tags: list[tuple[types.Tag, ...]] = [()] * len(seen)
            if self.tagger is not None:
                ordered = zip(seen, orders, strict=True)
                shown = [each.stills.stills[order[0]] for each, order in ordered]
                tags = self.tagger.tags(self.models.get(EMBED_PICTURES), shown)
            for (plan, key), each, said, order, own in zip(
                missing, seen, described, orders, tags, strict=True
            ):
                self.workspace.check()
                SCENES.save(store, key, replace(self._scene(plan, each, said, order), tags=own))
        return tuple(made)

    def _key(self, plan: ScenePlan) -> str:
        touched = _touched(self.video, plan)
        frames = [features_key(self.video, segment, self.workspace) for segment in touched]
        parts = [self.video.part_of(segment) for segment in touched]
        inputs: tuple[object, ...] = plan, self.config, frames, parts
        if self.tagger is not None:
            inputs = *inputs, self.tagger.identity
        return SCENES.key(self.workspace.prefix, *inputs, position=plan.index)

    def _pictured(self, plans: Sequence[ScenePlan]) -> list[_Seen]:
        """Return what the models get: stills without bars, motion and writing, which may be in
        bars."""
        features = self._features(plans)
        looks = features.looks()
        times = {time for plan in plans for time in plan.still_times_ms}
        stills = stills_at(self.video, times, self.workspace, self.config.still_long_side_px)
        active = {plan.active: inside(features, plan.active) for plan in plans}
        scenes = []
        for plan in plans:
            self.workspace.check()
            times_ms = tuple(time for time in plan.still_times_ms if time in stills)
            pictures = tuple(stills[time] for time in times_ms)
            if not pictures:
                span = f"{plan.start_ms} and {plan.end_ms} ms"
                message = f"No picture between {span} could be decoded."
                raise types.StageError(types.StageCode.VISION_FAILED, message)
            orientation = looks[plan.still_times_ms[0]].orientation
            motion = camera_motion(active[plan.active], plan.motion_pairs_ms, orientation)
            seconds = (plan.end_ms - plan.start_ms) / 1000
            box = upright_box(plan.active, orientation)
            shown = tuple(cropped(picture, box) for picture in pictures)
            objects = tuple(replace(each, box=each.box.within(box)) for each in plan.objects)
            about = dict(zip(plan.still_times_ms, plan.visible, strict=False))
            visible = tuple(about[time] for time in times_ms) if about else ()
            own = contracts.SceneStills(shown, seconds, motion, plan.text, objects, visible)
            scenes.append(_Seen(own, times_ms, pictures, box))
        return scenes

    def _features(self, plans: Sequence[ScenePlan]) -> FrameFeatures:
        """Return those of just the frames that the plans name, one segment in memory at a time."""
        times = {time for plan in plans for pair in plan.motion_pairs_ms for time in pair}
        times |= {time for plan in plans for time in plan.still_times_ms}
        indices = {segment.index for plan in plans for segment in _touched(self.video, plan)}
        parts = []
        for segment in self.video.segments:
            if segment.index in indices:
                self.workspace.check()
                key = features_key(self.video, segment, self.workspace)
                all_of = FEATURES.load(self.workspace.store, key)
                rows = [row for row, time in enumerate(all_of.times_ms.tolist()) if time in times]
                parts.append(all_of.rows(rows))
        return joined(parts)

    def _scene(
        self, plan: ScenePlan, seen: _Seen, said: contracts.SceneDescription, order: Sequence[int]
    ) -> types.Scene:
        part = self.video.part_of(segment_at(self.video, plan.middle_ms))
        judge = self.models.get(CLASSIFY_CONTENT) if self.config.judges_explicit else None
        stills = []
        for index in _shown(seen.times_ms, order, plan.end_ms - plan.start_ms):
            jpeg = thumbnail(seen.whole[index], self.config)
            key = self.workspace.key(f"vision/thumbnails/{digest(jpeg)}.jpg")
            self.workspace.store.write_bytes(key, jpeg)
            explicit = None
            if judge is not None:
                [scores] = judge.classify([seen.whole[index]])
                explicit = scores.get(_EXPLICIT)
            stills.append(types.StillFrame(seen.times_ms[index], key, explicit))
        return types.Scene(
            index=plan.index,
            start_ms=plan.start_ms,
            end_ms=plan.end_ms,
            confidence=plan.confidence,
            description=said.description,
            objects=tuple(sorted({*said.objects, *(track.label for track in plan.tracks)})),
            shot_type=said.shot_type,
            shot_angle=said.shot_angle,
            camera_motion=seen.stills.camera_motion,
            color_palette=palette(seen.stills.stills, on_white=part.stream.transparent),
            thumbnail_key=stills[0].key,
            object_tracks=plan.tracks,
            active_picture=seen.active,
            on_screen_text=plan.texts,
            stills=tuple(stills),
        )


@dataclass(frozen=True, slots=True)
class _Seen:
    """A scene's pictures: those that the models get; with bars, and where these are not."""

    stills: contracts.SceneStills
    times_ms: tuple[int, ...]
    whole: tuple[contracts.Picture, ...]
    active: contracts.Box

    @property
    def order(self) -> tuple[int, ...]:
        """The stills by what they show, where the describer did not look at that."""
        return by_what_they_show(self.whole, self.stills.visible or [0] * len(self.whole))


def _shown(times_ms: Sequence[int], order: Sequence[int], length_ms: int) -> list[int]:
    """Of the stills by what they show the first; of a long scene the next from elsewhere too."""
    first = order[0]
    if length_ms <= LONG_SCENE_MS:
        return [first]
    apart_ms = STILLS_APART * length_ms
    others = (each for each in order if abs(times_ms[each] - times_ms[first]) >= apart_ms)
    return [first, *islice(others, 1)]


SCENES = Artifact.of(types.Scene, "vision/scenes", version=DescribeScenes.version)


def _touched(video: types.VideoSource, plan: ScenePlan) -> list[types.Segment]:
    """Return segments that hold any frame of the plan, in order."""
    times = [*plan.still_times_ms, *(time for pair in plan.motion_pairs_ms for time in pair)]
    indices = {segment_at(video, time_ms).index for time_ms in times}
    return [segment for segment in video.segments if segment.index in indices]


def thumbnail(still: contracts.Picture, config: DescribeConfig) -> bytes:
    """Return a JPEG of the still, at most ``thumbnail_width_px`` wide."""
    height, width = still.shape[:2]
    if width > config.thumbnail_width_px:
        scale = config.thumbnail_width_px / width
        size = (config.thumbnail_width_px, max(1, round(height * scale)))
        still = cv2.resize(still, size, interpolation=cv2.INTER_AREA)
    quality = [cv2.IMWRITE_JPEG_QUALITY, config.thumbnail_quality]
    done, encoded = cv2.imencode(".jpg", cv2.cvtColor(still, cv2.COLOR_RGB2BGR), quality)
    if not done:
        raise ValueError("The thumbnail could not be encoded.")
    return bytes(encoded.tobytes())


LONG_SCENE_MS = 30_000
"""A longer scene has two stills that are shown, ``STILLS_APART`` of its length between them."""
STILLS_APART = 0.2
STILL_POSITIONS = (
    (2_000, (0.5,)), (6_000, (0.3, 0.7)), (LONG_SCENE_MS, (0.2, 0.5, 0.8)),
    (None, (0.14, 0.38, 0.62, 0.86)),
)  # fmt: skip
"""Where in a scene's clear part its stills are taken, by the length in ms that it is below."""
_EASY_WITHIN = 0.5
"""So far from there, as a share of the length, an easy frame is taken instead (see FoundCuts)."""


@dataclass(frozen=True, slots=True)
class SceneBorders:
    """A scene and the part of it that no transition touches."""

    start_ms: int
    end_ms: int
    confidence: float
    clear_start_ms: int
    clear_end_ms: int


def scenes_between(cuts: Sequence[Cut], duration_ms: int) -> list[SceneBorders]:
    """Contiguous scenes from 0 to ``duration_ms``; none where there are no cuts."""
    if not cuts:
        return []
    openings = [Cut(0, cuts[0].kind, 1.0, 0, 0), *cuts]
    endings = [*cuts, Cut(duration_ms, cuts[-1].kind, 1.0, duration_ms, duration_ms)]
    return [
        SceneBorders(opening.time_ms, ending.time_ms, opening.confidence, *_clear(opening, ending))
        for opening, ending in zip(openings, endings, strict=True)
    ]


def whole_video(duration_ms: int) -> SceneBorders:
    """Return a video without cuts."""
    return SceneBorders(0, duration_ms, 1.0, 0, duration_ms)


def _clear(opening: Cut, ending: Cut) -> tuple[int, int]:
    """From the end of one transition to the start of the next, if anything is left there."""
    start_ms = max(opening.time_ms, opening.end_ms)
    end_ms = min(ending.time_ms, ending.start_ms)
    return (start_ms, end_ms) if end_ms > start_ms else (opening.time_ms, ending.time_ms)


_CLEAR_SHARE, _SHARP_SHARE = 0.6, 0.8
"""Frames with less contrast, or less detail, than this share of what the scene usually has are left
out: they are of fades, or blends, or black, or white; or blurred by movement."""
_USUAL_PERCENTILE = 75


def still_times(
    times_ms: Times, easy_times_ms: Times, contrasts: Shapes, details: Shapes, scene: SceneBorders
) -> tuple[int, ...]:
    """Return times of the frames to take as stills: one to four, rising.

    ``times_ms`` holds all frame times of the video, ``contrasts`` and ``details`` what they have
    (see FrameFacts), ``easy_times_ms`` those that FoundCuts has. A scene without any frame (the
    picture stood still past it) takes the last one before its end.
    """
    low = int(np.searchsorted(times_ms, scene.clear_start_ms))
    high = int(np.searchsorted(times_ms, scene.clear_end_ms))
    if low == high:
        return (int(times_ms[max(0, low - 1)]),)
    shows = np.ones(high - low, bool)
    for measured, share in ((contrasts, _CLEAR_SHARE), (details, _SHARP_SHARE)):
        own = measured[low:high]
        # Of what is left: in a scene that is mostly black, most frames have no detail.
        shows &= own >= share * np.percentile(own[shows], _USUAL_PERCENTILE)
    clear = times_ms[low:high][shows]
    length_ms = scene.clear_end_ms - scene.clear_start_ms
    easy = np.intersect1d(easy_times_ms, clear, assume_unique=True)
    shares = next(shares for below, shares in STILL_POSITIONS if below is None or length_ms < below)
    wanted = [scene.clear_start_ms + int(share * length_ms) for share in shares]
    reach_ms = int(_EASY_WITHIN * length_ms)
    return tuple(sorted({_still_near(time_ms, clear, easy, reach_ms) for time_ms in wanted}))


def _still_near(wanted_ms: int, times_ms: Times, easy_times_ms: Times, reach_ms: int) -> int:
    if len(easy_times_ms):
        easy_ms = int(easy_times_ms[nearest_frame(easy_times_ms, wanted_ms)])
        if abs(easy_ms - wanted_ms) <= reach_ms:
            return easy_ms
    return int(times_ms[nearest_frame(times_ms, wanted_ms)])
