"""A stage that meets an object store that is away waits for it, and hears a stop meanwhile."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from models.sources import LocalModels
from pipelines.chains import _raise_failure, guarded
from pipelines.contracts import StageCode, StageStoppedError
from serve_app.runner import driver as driving
from serve_app.runner.driver import STORE_PAUSES_SECONDS, JobDriver
from serve_app.runner.publishing import Lease
from serve_app.runner.stage_work import StageWork
from serve_app.settings import Settings
from serve_app.world import build_world
from storage.objects import ObjectStoreUnavailableError
from storage.types import StageName


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDriver:
    """A driver that waits no time between its attempts; its database is never asked."""
    monkeypatch.setattr(driving, "STORE_PAUSES_SECONDS", (0,) * len(STORE_PAUSES_SECONDS))
    settings = Settings(
        data_dir=tmp_path, database_url="postgresql://nowhere/none", secret_key="x" * 32
    )
    lease = Lease(uuid.uuid4(), uuid.uuid4())
    return JobDriver(build_world(settings), LocalModels(), lease, ThreadPoolExecutor(1))


class Outage:
    """Work that fails for want of the store so many times."""

    def __init__(self, times: int) -> None:
        self.left = times

    async def __call__(self, _: StageWork) -> None:
        if self.left:
            self.left -= 1
            raise ObjectStoreUnavailableError("object store: EndpointConnectionError")


async def test_an_outage_that_ends_is_waited_for(driver: JobDriver) -> None:
    outage = Outage(len(STORE_PAUSES_SECONDS))
    await driver._run_patiently(StageName.INGEST, outage)
    assert outage.left == 0


async def test_an_outage_that_does_not_end_fails_the_stage(driver: JobDriver) -> None:
    outage = Outage(len(STORE_PAUSES_SECONDS) + 2)
    with pytest.raises(ObjectStoreUnavailableError):
        await driver._run_patiently(StageName.INGEST, outage)
    assert outage.left == 1


async def test_a_stop_is_heard_while_a_stage_waits(
    driver: JobDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driving, "STORE_PAUSES_SECONDS", (3600,))
    driver.stopped = True
    with pytest.raises(StageStoppedError):
        await driver._run_patiently(StageName.INGEST, Outage(9))


def test_a_step_that_found_no_store_fails_for_that_reason_not_for_its_own() -> None:
    tries: list[int] = []

    def step(row: dict[str, Any]) -> dict[str, Any]:
        tries.append(1)
        raise ObjectStoreUnavailableError("object store: SlowDown")

    row = guarded(step, name="segment 3", code=StageCode.VISION_FAILED)({})
    assert len(tries) == 2
    with pytest.raises(ObjectStoreUnavailableError, match="SlowDown"):
        _raise_failure(row)
