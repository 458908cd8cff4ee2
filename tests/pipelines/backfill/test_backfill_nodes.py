"""A backfill in pools on nodes that come and go: one without a GPU, others with a made-up one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from pipelines.backfill.driver import BackfillTally, Pacing, RunStoppedError, run_items
from pipelines.backfill.items import ItemWork
from pipelines.backfill.manifest import Item
from pipelines.backfill.output import begin_output, open_output
from pipelines.collection import BucketAccess, place_at
from storage.types import StageStatus
from tests.pipelines.backfill.backfill_material import carry_out, write_clips
from tests.pipelines.backfill.backfill_models import MadeUpModels, Notes
from tests.pipelines.backfill.test_backfill_operators import results
from tests.places import PROJECT

CLIPS = 10


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head with two processors."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 0})
    try:
        environment = {"env_vars": {"PYTHONPATH": str(PROJECT)}}
        ray.init(address=made.address, runtime_env=environment, log_to_driver=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_backfill_goes_on_over_nodes_that_come_up_and_are_lost_and_over_its_own_end(
    cluster: Cluster, tmp_path: Path
) -> None:
    clips = write_clips(tmp_path / "clips", CLIPS)
    items = [Item(path.stem, n, str(path), path.name) for n, path in enumerate(clips, start=1)]
    (tmp_path / "notes").mkdir()
    notes = Notes(tmp_path / "notes")
    place = place_at(str(tmp_path / "out"), BucketAccess())
    work = ItemWork(place, MadeUpModels(seconds=0.2), "gpu", "one", observe=notes)

    def rows(name: str) -> int:
        return len(notes.batches().get(f"operator {name}", []))

    nodes: list[object] = []
    output = begin_output(place, {"profile": "gpu"})
    tally = BackfillTally(total=CLIPS, finished_before=0, started_seconds=0.0)

    def nodes_come_and_go() -> bool:
        if not nodes and rows("read"):
            assert not rows("voices")
            nodes.append(cluster.add_node(num_cpus=4, num_gpus=1))
        if len(nodes) == 1 and rows("look"):
            cluster.remove_node(nodes[0], allow_graceful=False)
            nodes.append(cluster.add_node(num_cpus=4, num_gpus=1))
        return len(nodes) == 2 and tally.done > 1

    pacing = Pacing(part_items=2)
    with pytest.raises(RunStoppedError, match="Interrupted"):
        run_items(
            items, work, output, tally, pacing=pacing, report=print, is_stopped=nodes_come_and_go
        )
    before = output.finished()
    assert 1 < len(before) < CLIPS
    read = rows("read")
    rest = [item for item in items if item.id not in before]
    tally = BackfillTally(total=CLIPS, finished_before=len(before), started_seconds=0.0)
    run_items(rest, replace(work, run="two"), output, tally, pacing=pacing, report=print)
    assert (tally.done, tally.failed, tally.left) == (len(rest), 0, 0)
    assert rows("read") - read == len(rest)
    finished = open_output(place).finished()
    assert finished == {item.id: StageStatus.COMPLETED for item in items}
    found = [outcome for part in open_output(place).outcomes() for outcome in part]
    assert Counter(outcome.item.id for outcome in found) == Counter(item.id for item in items)
    alone = place_at(str(tmp_path / "alone"), BucketAccess())
    work = ItemWork(alone, MadeUpModels(), "gpu", "one")
    begin_output(alone, {"profile": "gpu"}).commit([carry_out(work, item) for item in items[:2]])
    [expected] = open_output(alone).outcomes()
    by_id = {each.item.id: results(each) for each in found}
    assert [by_id[each.item.id] for each in expected] == [results(each) for each in expected]
    assert len({process for *_, process in notes.read()}) > 1
    batches = notes.batches()
    assert max(batches["segment_speakers"]) > 1, "windows of several files are one batch"
