"""Workers that die over an item: it fails by name, and the others are done."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import ray

from models.provider import LocalModels
from models.tasks import DESCRIBE_SCENES, Contract, Task
from pipelines.backfill.driver import BackfillTally, Pacing, run_items
from pipelines.backfill.items import ItemWork
from pipelines.backfill.manifest import Item
from pipelines.backfill.output import begin_output
from pipelines.backfill.places import S3Access, place_at
from storage.types import ProcessingMode, StageStatus
from tests.pipelines.backfill.backfill_material import rows_in, write_clips


class DeadlyModels(LocalModels):
    """The packaged models; whoever describes a scene with them dies of it."""

    def find(self, task: Task[Contract]) -> Contract | None:
        if task is DESCRIBE_SCENES:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().find(task)


# Ray's workers cannot import this file by name.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_an_item_that_ends_its_workers_fails_and_the_others_complete(
    ray_session: None, tmp_path: Path
) -> None:
    clips = write_clips(tmp_path / "clips", 3)
    modes = (ProcessingMode.TRANSCRIPT, ProcessingMode.VISION, ProcessingMode.TRANSCRIPT)
    items = [
        Item(id=str(row), row=row, source=str(path), name=path.name, mode=mode)
        for row, (path, mode) in enumerate(zip(clips, modes, strict=True), start=1)
    ]
    place = place_at(str(tmp_path / "out"), S3Access())
    output = begin_output(place, {"profile": "packaged"})
    work = ItemWork(out=place, models=DeadlyModels(), profile="packaged", run="one")
    tally = BackfillTally(total=3, finished_before=0, started_seconds=0.0)
    run_items(items, work, output, tally, pacing=Pacing(part_items=2), report=lambda line: None)
    assert (tally.done, tally.failed, tally.left) == (3, 1, 0)
    assert output.finished() == {
        "1": StageStatus.COMPLETED,
        "2": StageStatus.FAILED,
        "3": StageStatus.COMPLETED,
    }
    [error] = rows_in(tmp_path / "out", "errors")
    assert (error["item_id"], error["code"]) == ("2", "PROCESSING_FAILED")
    assert error["message"] == "The worker was lost 2 times over this item."
