"""How many tasks of a step run at a time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import ray

from pipelines.execution.chain import FreeRun, Resources
from pipelines.execution.ray_data import map_on_ray
from serve_app.settings import Settings
from serve_app.work.stage_work import transcribe_concurrency
from tests.pipelines.execution import steps
from tests.pipelines.execution.steps import Calls

# Ray's workers cannot import it by name.
ray.cloudpickle.register_pickle_by_value(steps)


def most_at_a_time(concurrency: int | None, begun: Path, *, meeting_seconds: float) -> int:
    """Of five tasks, how many were under way together; each waits so long for another one."""
    begun.mkdir()

    def wait(index: int) -> tuple[float, float]:
        began = time.time()
        (begun / str(index)).touch()
        while len(list(begun.iterdir())) < 2 and time.time() < began + meeting_seconds:
            time.sleep(0.05)
        return began, time.time()

    step = Calls(wait, resources=Resources(0.25, concurrency))
    spans = map_on_ray(range(5), step, FreeRun())
    together = [[began <= other < ended for began, ended in spans] for other, _ in spans]
    return max(map(sum, together))


@pytest.mark.usefixtures("ray_session")
def test_there_are_no_more_than_the_limit_although_processors_would_carry_them(
    tmp_path: Path,
) -> None:
    # Long enough for a second worker to start on a busy machine.
    assert most_at_a_time(None, tmp_path / "free", meeting_seconds=60.0) > 1
    # By now there are two workers.
    assert most_at_a_time(1, tmp_path / "one", meeting_seconds=1.0) == 1


def test_every_replica_has_an_input_and_the_next_one() -> None:
    settings = Settings(model_profile="packaged", model_replicas={"transcribe": 3})
    assert transcribe_concurrency(settings) == 6
    on_gpu = Settings(model_profile="gpu", model_replicas={"transcribe": 1})
    assert transcribe_concurrency(on_gpu) > 16
