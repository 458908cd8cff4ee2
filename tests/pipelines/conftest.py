"""What the pipeline tests share: one small local Ray for the whole run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipelines.execution.ray_start import start_ray


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
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
    yield
    if started_here:
        ray.shutdown()
