"""How many tasks of a step run at a time."""

from __future__ import annotations

import time

import pytest

from models.registry import Task
from pipelines.execution.chain import FreeRun, Mapped, Row
from pipelines.execution.ray_data import map_on_ray
from pipelines.types import StageCode
from serve_app.settings import Settings
from serve_app.worker.model_capacity import callers_at_once


def most_at_a_time(at_once: int | None, sleep_seconds: float) -> int:
    """Of five tasks, how many were under way together."""

    def step(row: Row) -> Row:
        began = time.time()
        time.sleep(sleep_seconds)
        return {"index": row["index"], "began": began, "ended": time.time()}

    mapped = Mapped(step, "Waiting", StageCode.TRANSCRIPT_FAILED, 0.25, at_once)
    rows = map_on_ray([{"index": index} for index in range(5)], [mapped], FreeRun())
    together = [[it["began"] <= row["began"] < it["ended"] for it in rows] for row in rows]
    return max(map(sum, together))


@pytest.mark.usefixtures("ray_session")
def test_there_are_no_more_than_the_limit_although_processors_would_carry_them() -> None:
    # Long enough for workers to start.
    assert most_at_a_time(None, sleep_seconds=8.0) > 1
    assert most_at_a_time(1, sleep_seconds=0.5) == 1


def test_every_replica_has_an_input_and_the_next_one() -> None:
    settings = Settings(model_profile="packaged", transcriber_replicas=3)
    assert callers_at_once(settings, Task.TRANSCRIBE) == 6
    on_gpu = Settings(model_profile="gpu", transcriber_replicas=1)
    assert callers_at_once(on_gpu, Task.TRANSCRIBE) > 16
