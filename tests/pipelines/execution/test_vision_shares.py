"""How a vision stage's progress is shared out among its chains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipelines.execution.chain import FreeRun, parts_of, vision_work
from pipelines.media_types import Orientation
from pipelines.types import VideoPart, VideoSource, VideoStream

STREAM = VideoStream(0, "h264", 640, 360, Orientation(), 1.0, 25.0, 15_000)
SMALL = VideoSource(STREAM, 600_000, 0, ())


def ends(video: VideoSource, *, policy: bool = False) -> list[float]:
    """At which part of the stage each chain ends."""
    *spans, _ = parts_of(FreeRun(), vision_work(video, policy=policy, objects=True))
    return [span.end for span in spans]


def test_the_chains_of_a_small_and_of_a_large_video_end_where_they_were_seen_to() -> None:
    """Shares of one core's time, measured by ``benchmarks.vision_speed --shares``."""
    assert ends(SMALL)[:2] == pytest.approx((0.14, 0.21), abs=0.12)
    stream = replace(STREAM, width=1920, height=1080)
    assert ends(replace(SMALL, stream=stream))[:2] == pytest.approx((0.47, 0.56), abs=0.12)


def test_parts_count_by_their_own_length_and_size() -> None:
    large = replace(STREAM, width=1920, height=1080)
    parts = (VideoPart(STREAM, 0, 0, 300_000), VideoPart(large, 0, 300_000, 600_000))
    mixed = ends(replace(SMALL, parts=parts))
    assert ends(SMALL)[0] < mixed[0] < ends(replace(SMALL, stream=large))[0]


def test_a_policy_has_a_part_of_what_the_cuts_leave() -> None:
    read, cut, checked, detected, written = ends(SMALL, policy=True)
    assert read < cut < checked < detected < written < 1
    assert ends(SMALL)[1] == ends(SMALL)[2]


@pytest.mark.parametrize("duration_ms", [0, 40])
def test_a_single_frame_has_its_shares_too(duration_ms: int) -> None:
    still = replace(STREAM, frame_rate=0.0, frame_count=1)
    found = ends(VideoSource(still, duration_ms, 0, ()), policy=True)
    assert found == sorted(found)
    assert found[0] >= 0
    assert found[-1] <= 1
