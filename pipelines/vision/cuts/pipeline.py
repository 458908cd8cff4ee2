"""Where a video's scenes begin, from the stored features of its segments.

Long videos are searched in many tasks, some blocks of frames each; the result does not depend
on that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from models.contracts import Box
from models.provider import ModelProvider
from pipelines.codec import Made
from pipelines.execution.chain import Control, Mapper, Resources, Workspace
from pipelines.types import StageCode, StageError, VideoSource
from pipelines.vision.bars import active_picture
from pipelines.vision.cuts import selection
from pipelines.vision.features import (
    FEATURES,
    FrameFacts,
    Shapes,
    Times,
    facts_from_bytes,
    first_of_seconds,
)
from pipelines.vision.kept import keeps_pictures

_BLOCKS_A_TASK = 3
"""Half a minute of video: less than a second's work, and up to nine where a network sees all of it;
reading the features around them takes a tenth of a second."""

_GRADUAL_ODDS = math.exp(2.95)


@dataclass(frozen=True, slots=True)
class FoundCuts:
    """``cuts`` in order; times of all frames, of the easy and of the damaged ones among them.

    Pictures of the easy ones, one a second at most, are kept, or decode without any other frame.
    ``contrasts`` and ``details`` are the frames' (see FrameFacts), ``active`` is the picture
    between bars of each part, as stored.
    """

    cuts: tuple[selection.Cut, ...]
    times_ms: Times
    easy_times_ms: Times
    damaged_ms: Times
    contrasts: Shapes
    details: Shapes
    active: tuple[Box, ...]


def find_cuts(
    features: Sequence[Made],
    video: VideoSource,
    workspace: Workspace,
    control: Control,
    config: selection.CutConfig,
    *,
    models: ModelProvider,
    mapper: Mapper,
    gpus: float = 0.0,
) -> FoundCuts:
    """Return the cuts of ``video``, of whose segments in order these are the stored features.
    Tasks that search take the share ``gpus`` of a GPU. Raises StageError, VISION_FAILED where there
    is no frame, and StageStoppedError."""
    facts: list[FrameFacts] = []
    stored: list[list[selection.FeaturesPart]] = [[] for _ in video.all_parts]
    facts_of: list[list[FrameFacts]] = [[] for _ in video.all_parts]
    for segment, made in zip(video.segments, features, strict=True):
        control.check()
        facts.append(facts_from_bytes(FEATURES.read(workspace.store, made.key)))
        facts_of[segment.part].append(facts[-1])
        stored[segment.part].append(selection.FeaturesPart(made.key, 0, len(facts[-1].times_ms)))
    if not any(part.after for own in stored for part in own):
        raise StageError(StageCode.VISION_FAILED, "No picture of the video could be decoded.")
    active = tuple(map(active_picture, facts_of))
    step = selection.SearchCuts(workspace, models, config, resources=Resources(gpus=gpus))
    easy = [
        own.kept_times_ms if keeps_pictures(video.part_of(segment).stream) else own.key_times_ms
        for segment, own in zip(video.segments, facts, strict=True)
    ]
    found = _cuts_of_parts(stored, active, video, step, control, config, mapper)
    cuts = timeline_cuts([part.start_ms for part in video.all_parts], found)
    return FoundCuts(
        cuts,
        np.concatenate([own.times_ms for own in facts]),
        first_of_seconds(np.concatenate(easy)),
        np.concatenate([own.damaged_ms for own in facts]),
        np.concatenate([own.contrasts for own in facts]),
        np.concatenate([own.details for own in facts]),
        active,
    )


def _cuts_of_parts(
    stored: Sequence[Sequence[selection.FeaturesPart]],
    active: Sequence[Box],
    video: VideoSource,
    step: selection.SearchCuts,
    control: Control,
    config: selection.CutConfig,
    mapper: Mapper,
) -> list[tuple[selection.Cut, ...]]:
    """Return each part's cuts, its frames searched in tasks."""
    runs = [
        selection.block_runs(own, box, part.start_ms, part.end_ms - part.start_ms, _BLOCKS_A_TASK)
        for part, own, box in zip(video.all_parts, stored, active, strict=True)
    ]
    found = iter(mapper([run for own in runs for run in own], step, control))
    candidates = []
    for part, own in zip(video.all_parts, runs, strict=True):

        def again(
            places: list[int], own: Sequence[selection.BlockRun] = own
        ) -> list[selection.Found]:
            return [*mapper([replace(own[at], judges_all=True) for at in places], step, control)]

        whole = selection.together(selection.settled([*islice(found, len(own))], config, again))
        candidates.append(selection.Candidates.among(whole, part.end_ms - part.start_ms))
    return [tuple(map(calibrated, each.select(config))) for each in candidates]


def calibrated(cut: selection.Cut) -> selection.Cut:
    """The cut with the share of such that are right as its confidence; a hard one's is that.

    The odds of gradual ones were too low by one factor (Platt's scaling, 1999, with his targets and
    a slope of 1), fitted to 316 of seeds 11 to 13 and of real files with
    ``benchmarks/scenes.py``. All thresholds are of what was measured, before this.
    """
    if cut.kind is selection.CutKind.HARD:
        return cut
    right, wrong = _GRADUAL_ODDS * cut.confidence, 1 - cut.confidence
    return replace(cut, confidence=right / (right + wrong))


def timeline_cuts(
    starts_ms: Sequence[int], cuts_of_parts: Sequence[Sequence[selection.Cut]]
) -> tuple[selection.Cut, ...]:
    """Return all cuts on the timeline, in order.

    ``starts_ms`` is when each part starts there; its cuts' times count from then. A
    video that was never cut up is a single part.
    """
    cuts: list[selection.Cut] = []
    for index, (start_ms, own) in enumerate(zip(starts_ms, cuts_of_parts, strict=True)):
        if index:
            cuts.append(selection.Cut(start_ms, selection.CutKind.HARD, 1.0, start_ms, start_ms))
        cuts += [
            replace(
                cut,
                time_ms=cut.time_ms + start_ms,
                start_ms=cut.start_ms + start_ms,
                end_ms=cut.end_ms + start_ms,
            )
            for cut in own
        ]
    return tuple(cuts)
