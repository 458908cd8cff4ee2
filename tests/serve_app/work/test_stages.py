"""Stages meet outages, break and are stopped; tracks fail beside others."""

from __future__ import annotations

import errno
import subprocess
from dataclasses import replace

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from pipelines.execution.chain import Control, FreeRun, map_here
from pipelines.sandbox.parent import _answer
from pipelines.stages import OUTAGE_PAUSES_SECONDS, STAGE_ATTEMPTS, StageRunner
from pipelines.types import (
    AudioTrack,
    IngestResult,
    MediaInfo,
    StageCode,
    StageError,
    StageStoppedError,
    TrackOutcome,
    TranscriptResult,
)
from serve_app.work import runner as worker
from storage.jobs import LeaseLostError
from storage.objects import ObjectStoreUnavailableError, is_outage
from storage.types import StageName
from tests.pipelines.execution.steps import Calls
from tests.tables import every

CODE = StageCode.TRANSCRIPT_FAILED
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


def runner(*pauses_seconds: float, stopped: bool = False) -> StageRunner:
    """As a job's, without its pauses."""
    return StageRunner(
        "job",
        is_stopped=lambda: stopped,
        is_outage=worker._is_outage,
        not_repeated=(LeaseLostError,),
        pauses_seconds=pauses_seconds or (0,) * len(OUTAGE_PAUSES_SECONDS),
    )


@every("error", [AWAY, FULL, NO_DATABASE], ids=["store", "disk", "database"])
async def test_an_outage_that_ends_is_waited_for(error: Exception) -> None:
    outage = Outage(len(OUTAGE_PAUSES_SECONDS), error)
    await runner().run(StageName.INGEST, outage)
    assert outage.left == 0


async def test_an_outage_that_does_not_end_is_raised() -> None:
    outage = Outage(len(OUTAGE_PAUSES_SECONDS) + 2)
    with pytest.raises(ObjectStoreUnavailableError):
        await runner().retry_on_outage(StageName.INGEST, outage)
    assert outage.left == 1


async def test_an_outage_that_does_not_end_fails_the_stage() -> None:
    outage = Outage(99)
    with pytest.raises(StageError) as failed:
        await runner().run(StageName.VISION, outage)
    assert failed.value.code is StageCode.VISION_FAILED
    assert outage.left == 99 - STAGE_ATTEMPTS * (len(OUTAGE_PAUSES_SECONDS) + 1)


async def test_an_outage_ends_the_run_where_it_is_not_to_be_repeated() -> None:
    outage = Outage(99)
    with pytest.raises(ObjectStoreUnavailableError):
        await replace(runner(0), not_repeated=(ObjectStoreUnavailableError,)).run(
            StageName.VISION, outage
        )
    assert outage.left == 97


async def test_a_stop_ends_the_pause_of_an_outage() -> None:
    with pytest.raises(StageStoppedError):
        await runner(3600, stopped=True).retry_on_outage(StageName.INGEST, Outage(9))


async def test_an_error_of_the_work_itself_is_not_waited_for() -> None:
    broken = Outage(1, OSError(errno.EACCES, "Permission denied"))
    with pytest.raises(PermissionError):
        await runner(3600).retry_on_outage(StageName.INGEST, broken)


async def test_a_stage_that_broke_is_tried_once_more() -> None:
    await runner().run(StageName.INGEST, Outage(1, RuntimeError("lost")))
    with pytest.raises(StageError, match="RuntimeError"):
        await runner().run(StageName.INGEST, Outage(2, RuntimeError("lost")))


@every(
    "error",
    [StageError(StageCode.CONTENT_BLOCKED, "no"), StageStoppedError("job"), LeaseLostError("job")],
    ids=["failed", "stopped", "lease lost"],
)
async def test_the_end_of_a_stage_is_not_tried_again(error: Exception) -> None:
    with pytest.raises(type(error)):
        await runner().run(StageName.VISION, Outage(1, error))


async def test_what_breaks_after_a_stop_is_no_failure() -> None:
    with pytest.raises(StageStoppedError):
        await runner(stopped=True).run(StageName.VISION, Outage(1, RuntimeError("Ray is gone")))


async def test_a_track_that_fails_leaves_the_others() -> None:
    media = MediaInfo("mov", 1, 2.0, None, ())
    tracks = tuple(AudioTrack(index, "a", "key", 2.0) for index in range(2))
    heard = TranscriptResult("en", (), ())

    async def transcribe(track: AudioTrack, _: Control) -> TranscriptResult:
        if track.index == 0:
            raise RuntimeError("lost")
        return heard

    ingested = IngestResult(media, None, tracks, failed_tracks=(TrackOutcome(2, "b", code=CODE),))
    assert await runner().run_tracks(ingested, FreeRun(), transcribe) == (
        TrackOutcome(0, "a", code=CODE),
        TrackOutcome(1, "a", heard),
        TrackOutcome(2, "b", code=CODE),
    )
    with pytest.raises(StageError):
        await runner().run_tracks(replace(ingested, tracks=tracks[:1]), FreeRun(), transcribe)


@every("error", [AWAY, FULL], ids=["store", "disk"])
def test_a_step_that_met_an_outage_fails_for_that_reason_not_for_its_own(
    error: Exception,
) -> None:
    tries: list[int] = []

    def fail(_: int) -> int:
        tries.append(1)
        raise error

    with pytest.raises(ObjectStoreUnavailableError, match="Calling failed"):
        map_here([0], Calls(fail), FreeRun())
    assert len(tries) == 2


def test_a_sandboxed_task_that_found_the_disk_full_says_so() -> None:
    child = subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with child, pytest.raises(OSError, match="no room") as caught:
        _answer(child, iter([b'{"kind": "full"}']), lambda _: None)
    assert is_outage(caught.value)
