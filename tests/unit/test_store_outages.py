"""A stage that meets an outage waits for its end, and hears a stop meanwhile."""

from __future__ import annotations

import errno
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from models.provider import LocalModels
from pipelines.execution.chain import _raise_failure, guarded
from pipelines.sandbox.parent import _answer
from pipelines.types import StageCode, StageStoppedError
from serve_app.context import build_context
from serve_app.settings import Settings
from serve_app.worker import driver as driving
from serve_app.worker.calibration import Calibration
from serve_app.worker.driver import OUTAGE_PAUSES_SECONDS, JobDriver
from serve_app.worker.publishing import Lease
from storage.objects import ObjectStoreUnavailableError, is_outage
from storage.types import StageName


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDriver:
    """A driver that waits no time between its attempts; its database is never asked."""
    monkeypatch.setattr(driving, "OUTAGE_PAUSES_SECONDS", (0,) * len(OUTAGE_PAUSES_SECONDS))
    settings = Settings(
        data_dir=tmp_path, database_url="postgresql://nowhere/none", secret_key="x" * 32
    )
    lease = Lease(uuid.uuid4(), uuid.uuid4())
    return JobDriver(
        build_context(settings),
        LocalModels(),
        lease,
        ThreadPoolExecutor(1),
        Calibration("packaged"),
    )


AWAY = ObjectStoreUnavailableError("object store: EndpointConnectionError")
FULL = OSError(errno.ENOSPC, "No space left on device")
NO_DATABASE = OperationalError("SELECT 1", {}, psycopg.OperationalError("server closed"))


class Outage:
    """Work that fails for want of something so many times."""

    def __init__(self, times: int, error: Exception = AWAY) -> None:
        self.left = times
        self._error = error

    async def __call__(self) -> None:
        if self.left:
            self.left -= 1
            raise self._error


@pytest.mark.parametrize("error", [AWAY, FULL, NO_DATABASE], ids=["store", "disk", "database"])
async def test_an_outage_that_ends_is_waited_for(driver: JobDriver, error: Exception) -> None:
    outage = Outage(len(OUTAGE_PAUSES_SECONDS), error)
    await driver._retry_on_outage(StageName.INGEST, outage)
    assert outage.left == 0


async def test_an_outage_that_does_not_end_fails_the_stage(driver: JobDriver) -> None:
    outage = Outage(len(OUTAGE_PAUSES_SECONDS) + 2)
    with pytest.raises(ObjectStoreUnavailableError):
        await driver._retry_on_outage(StageName.INGEST, outage)
    assert outage.left == 1


async def test_a_stop_is_heard_while_a_stage_waits(
    driver: JobDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driving, "OUTAGE_PAUSES_SECONDS", (3600,))
    driver.stopped = True
    with pytest.raises(StageStoppedError):
        await driver._retry_on_outage(StageName.INGEST, Outage(9))


async def test_what_is_the_works_own_fault_is_not_waited_for(driver: JobDriver) -> None:
    broken = Outage(1, OSError(errno.EACCES, "Permission denied"))
    with pytest.raises(PermissionError):
        await driver._retry_on_outage(StageName.INGEST, broken)


@pytest.mark.parametrize("error", [AWAY, FULL], ids=["store", "disk"])
def test_a_step_that_met_an_outage_fails_for_that_reason_not_for_its_own(
    error: Exception,
) -> None:
    tries: list[int] = []

    def step(row: dict[str, Any]) -> dict[str, Any]:
        tries.append(1)
        raise error

    row = guarded(step, name="segment 3", code=StageCode.VISION_FAILED)({})
    assert len(tries) == 2
    with pytest.raises(ObjectStoreUnavailableError, match="segment 3"):
        _raise_failure(row)


def test_a_sandboxed_task_that_found_the_disk_full_says_so() -> None:
    child = subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with child, pytest.raises(OSError, match="no room") as caught:
        _answer(child, iter([b'{"kind": "full"}']), lambda _: None)
    assert is_outage(caught.value)
