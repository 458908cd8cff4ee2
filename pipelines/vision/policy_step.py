"""Step: check a segment's stills against the content policy, before anything of them is kept."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict

from models.provider import ModelProvider
from models.tasks import CLASSIFY_CONTENT
from pipelines.execution.chain import Row, Step, Workspace, derived_name
from pipelines.types import Segment, StageCode, StageError, VideoSource
from pipelines.vision.features import Times, even_times
from pipelines.vision.policy import ContentPolicy, find_breach
from pipelines.vision.stills import StillsConfig, segment_stills

log = logging.getLogger("vas.policy")

BLOCKED_MESSAGE = "The content is not permitted by the acceptable-use policy."
"""All that a client receives: more would help to evade the policy."""

_STILLS = StillsConfig(long_side_px=448)
_EVERY_MS = 5_000
"""A picture shown for at least this long is checked, whatever the scenes are."""
_AT_ONCE = 16
"""Stills in memory at the same time."""


def checked_times(times_ms: Times, still_times_ms: Sequence[int]) -> tuple[int, ...]:
    """Frame times to check, rising: the scenes' stills and a frame every few seconds.

    ``times_ms`` holds all frame times of the video, one at least.
    """
    return tuple(sorted({*even_times(times_ms, _EVERY_MS), *still_times_ms}))


def make_policy_step(
    video: VideoSource, workspace: Workspace, models: ModelProvider, policy: ContentPolicy
) -> Step:
    """1:1, a segment's times to a row with how many of its stills were checked.

    Raises StageError with CONTENT_BLOCKED for the first that is not permitted.
    """
    segments = {segment.index: segment for segment in video.segments}

    def run(row: Row) -> Row:
        segment, times = segments[int(row["index"])], json.loads(row["times_ms"])
        key = _verdict_key(video, segment, times, workspace, policy)
        if not workspace.store.exists(key):
            _check(video, segment, times, workspace, models, policy)
            workspace.store.write_bytes(key, b"{}")
        return {"index": segment.index, "stills": len(times)}

    return run


def _verdict_key(
    video: VideoSource,
    segment: Segment,
    times: Sequence[int],
    workspace: Workspace,
    policy: ContentPolicy,
) -> str:
    """An object that is there once the segment was found to be permitted."""
    inputs = {
        "segment": asdict(segment),
        "part": asdict(video.part_of(segment)),
        "times_ms": list(times),
        "policy": policy.digest(),
    }
    return workspace.key(f"vision/policy/{derived_name(segment.index, inputs)}.json")


def _check(
    video: VideoSource,
    segment: Segment,
    times: Sequence[int],
    workspace: Workspace,
    models: ModelProvider,
    policy: ContentPolicy,
) -> None:
    classifier = models.get(CLASSIFY_CONTENT) if policy.label_limits else None
    for first in range(0, len(times), _AT_ONCE):
        workspace.check()
        stills = segment_stills(video, segment, times[first : first + _AT_ONCE], workspace, _STILLS)
        breach = find_breach(list(stills.values()), policy, classifier)
        if breach is not None:
            time_ms = list(stills)[breach.index]
            log.warning("%s: blocked at %d ms: %s", workspace.prefix, time_ms, breach.reason)
            raise StageError(StageCode.CONTENT_BLOCKED, BLOCKED_MESSAGE)
