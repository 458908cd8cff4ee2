"""Models behind Ray Serve whose replicas die in the middle of a call."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from models import provider
from models.contracts import Samples
from models.provider import DEPLOYMENT_NAMES
from models.registry import Task

APP_NAME = "lost-replicas"
PAUSES = 2
"""Fewer than in the service: each replica takes seconds to start."""


class DyingModel:
    """Kills its own process at as many calls as the file says are left."""

    def __init__(self, deaths: Path) -> None:
        self._deaths = deaths

    def __call__(self, samples: Samples) -> list[tuple[float, float]]:
        left = int(self._deaths.read_text())
        if left:
            self._deaths.write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return [(0.0, float(len(samples)))]


@pytest.fixture
def deaths(ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that says how often the detector will die; it serves meanwhile."""
    from ray import serve

    monkeypatch.setattr(provider, "LOST_REPLICA_PAUSES_SECONDS", (0.1,) * PAUSES)
    path = tmp_path / "deaths"
    path.write_text("0")
    name = DEPLOYMENT_NAMES[Task.DETECT]
    options = {"num_cpus": 0.1}
    app = serve.deployment(DyingModel, name=name, ray_actor_options=options).bind(path)
    serve.start(proxy_location="Disabled")
    try:
        serve.run(app, name=APP_NAME, route_prefix=None)
        yield path
    finally:
        serve.shutdown()
        provider._handle.cache_clear()


def test_a_call_outlives_lost_replicas_but_not_any_number_of_them(deaths: Path) -> None:
    from ray.exceptions import RayActorError

    model = provider._ServedDetector(APP_NAME)
    assert model.detect(np.zeros(5, np.float32)) == [(0.0, 5.0)]

    deaths.write_text(str(PAUSES))
    assert model.detect(np.zeros(7, np.float32)) == [(0.0, 7.0)]
    assert deaths.read_text() == "0"

    deaths.write_text(str(PAUSES + 2))
    with pytest.raises(RayActorError):
        model.detect(np.zeros(5, np.float32))
    assert deaths.read_text() == "1", "an input that kills every replica is given up"
