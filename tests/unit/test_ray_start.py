"""Ray that does not come up in time is tried again, and only that."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import ray
import ray._private.node

from pipelines.execution.ray_start import RayStartError, start_ray

LATE = Exception("The current node timed out during startup. This could happen because...")


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Exception | None]]:
    """What becomes of each start of Ray, in turn; empty once all were made."""
    planned: list[Exception | None] = []

    def init(**_: Any) -> None:
        outcome = planned.pop(0)
        if outcome is not None:
            raise outcome

    monkeypatch.setattr(ray, "init", init)
    yield planned
    assert planned == []


def test_what_is_looked_for_is_what_ray_says() -> None:
    assert "timed out during startup" in inspect.getsource(ray._private.node)


def test_a_start_that_was_late_is_made_again(starts: list[Exception | None]) -> None:
    starts += [LATE, LATE, None]
    start_ray(num_cpus=1)


def test_after_three_late_starts_it_is_said_in_a_sentence(starts: list[Exception | None]) -> None:
    starts += [LATE, LATE, LATE]
    with pytest.raises(RayStartError, match="too busy"):
        start_ray(num_cpus=1)


def test_anything_else_is_not_tried_again(starts: list[Exception | None]) -> None:
    starts += [ValueError("num_cpus must be a number")]
    with pytest.raises(ValueError, match="num_cpus"):
        start_ray(num_cpus="many")
