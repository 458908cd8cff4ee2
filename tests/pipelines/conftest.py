"""What the pipeline tests share: one small local Ray."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from pipelines.execution.ray_start import start_ray


@pytest.fixture(scope="session")
def ray_session(until_group_ends: ExitStack) -> None:
    """Ray with two CPUs, joined if this process already has one."""
    import ray

    started_here = not ray.is_initialized()
    start_ray(
        num_cpus=2,
        include_dashboard=False,
        configure_logging=True,
        log_to_driver=False,
        namespace="tests",
        ignore_reinit_error=True,
    )
    if started_here:
        until_group_ends.callback(ray.shutdown)
