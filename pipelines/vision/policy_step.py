"""Step: check a segment's stills against the content policy, before anything of them is kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from models.provider import ModelProvider
from models.tasks import CLASSIFY_CONTENT
from pipelines.artifacts import Artifact, Made
from pipelines.execution.chain import Step, Workspace
from pipelines.types import StageCode, StageError, VideoSource
from pipelines.vision.features import Times, even_times
from pipelines.vision.policy import ContentPolicy, find_breach
from pipelines.vision.stills import SegmentTimes, StillsConfig, segment_stills

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


@dataclass(frozen=True)
class CheckPolicy(Step[SegmentTimes, Made]):
    """Frames of a segment to the mark that they are permitted.

    Raises StageError with CONTENT_BLOCKED for the first that is not.
    """

    name = "Checking the pictures"
    code = StageCode.VISION_FAILED
    version = 1
    video: VideoSource
    workspace: Workspace
    models: ModelProvider
    policy: ContentPolicy

    def process(self, item: SegmentTimes) -> Made:
        part = self.video.part_of(item.segment)
        inputs = item, part, self.policy
        key = PERMITTED.key(self.workspace.prefix, *inputs, position=item.segment.index)
        return PERMITTED.make(self.workspace.store, key, lambda: self._check(item))

    def _check(self, item: SegmentTimes) -> bool:
        models, policy = self.models, self.policy
        classifier = models.get(CLASSIFY_CONTENT) if policy.label_limits else None
        for some in item.in_runs(_AT_ONCE):
            self.workspace.check()
            stills = segment_stills(self.video, some, self.workspace, _STILLS)
            breach = find_breach(list(stills.values()), policy, classifier)
            if breach is not None:
                time_ms = list(stills)[breach.index]
                log.warning(
                    "%s: blocked at %d ms: %s", self.workspace.prefix, time_ms, breach.reason
                )
                raise StageError(StageCode.CONTENT_BLOCKED, BLOCKED_MESSAGE)
        return True


PERMITTED = Artifact.of(bool, "vision/policy", version=CheckPolicy.version)
