"""How a vision stage's progress is shared out among its chains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipelines.types import VideoPart, VideoSource, VideoStream
from pipelines.vision.pipeline import chain_ends

STREAM = VideoStream(0, "h264", 640, 360, 0, 1.0, 25.0, 15_000)
SMALL = VideoSource(STREAM, 600_000, 0, ())


def test_the_chains_of_a_small_and_of_a_large_video_end_where_they_were_seen_to() -> None:
    """Shares of one core's time, measured by ``tests.benchmarks.vision_speed --shares``."""
    small = chain_ends(SMALL, with_policy=False)
    assert (small.features, small.cuts) == pytest.approx((0.14, 0.21), abs=0.12)
    stream = replace(STREAM, width=1920, height=1080)
    large = chain_ends(replace(SMALL, stream=stream), with_policy=False)
    assert (large.features, large.cuts) == pytest.approx((0.47, 0.56), abs=0.12)


def test_parts_count_by_their_own_length_and_size() -> None:
    large = replace(STREAM, width=1920, height=1080)
    parts = (VideoPart(STREAM, 0, 0, 300_000), VideoPart(large, 0, 300_000, 600_000))
    mixed = chain_ends(replace(SMALL, parts=parts), with_policy=False)
    one, other = chain_ends(SMALL, with_policy=False), replace(SMALL, stream=large)
    assert one.features < mixed.features < chain_ends(other, with_policy=False).features


def test_a_policy_has_a_part_of_what_the_cuts_leave() -> None:
    ends = chain_ends(SMALL, with_policy=True)
    assert ends.features < ends.cuts < ends.policy < 1


@pytest.mark.parametrize("duration_ms", [0, 40])
def test_a_single_frame_has_its_shares_too(duration_ms: int) -> None:
    still = replace(STREAM, frame_rate=0.0, frame_count=1)
    ends = chain_ends(VideoSource(still, duration_ms, 0, ()), with_policy=True)
    assert 0 <= ends.features <= ends.cuts <= ends.policy <= 1
