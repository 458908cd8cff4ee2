"""Eight Ray nodes on one machine: how much of the ideal they reach, what a loss of two costs.

    .venv/bin/python -m benchmarks.cluster [--nodes 1 2 4 8] [--seconds 3] [--rounds 12]
    .venv/bin/python -m benchmarks.cluster --items 100000 --seconds 0
    .venv/bin/python -m benchmarks.cluster --pools FOLDER

Nodes are raylets with logical processors, two each; the work of a shard or an item is a sleep of
``--seconds``, so that the machine's own processors carry Ray and the driver alone. Both ways in:
``service`` has a job a node, each of which maps its shards by ``map_on_ray`` from a thread, as
runners do; ``backfill`` is ``run_items`` with its real outcomes, parts and commits. Each processor
has ``--rounds`` sleeps to do; efficiency is that ideal by the wall time, workers already started.
Then two of the most nodes are killed a third of the way in: what comes out must be complete, and
efficiency counts the processors that were there.

``--items``: a backfill of so many items on the most nodes; items a second, processor seconds and
memory of the driver.

``--pools``: a backfill of 64 short films in the operators of the profile ``gpu``, whose models are
made up and take a fixed time a batch, on four nodes of which two have a made-up GPU. One of these
is killed a third of the way in; at two thirds the run is stopped, and the same goes on. FOLDER has
the occupancy of each operator and the driver's memory over time (``pools.png``) afterwards. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import psutil
import ray
from matplotlib import pyplot as plt
from ray.cluster_utils import Cluster

from models.provider import LocalModels, ModelProvider
from models.registry import REGISTRY
from pipelines.backfill.driver import BackfillTally, Pacing, RunStoppedError, run_items
from pipelines.backfill.items import ItemRun, ItemWork
from pipelines.backfill.manifest import Item
from pipelines.backfill.operators import OPERATORS
from pipelines.backfill.output import begin_output, open_output
from pipelines.collection import BucketAccess, place_at
from pipelines.execution.chain import FreeRun, Mapper, Step
from pipelines.execution.ray_data import map_on_ray
from pipelines.types import IngestResult, MediaInfo, StageCode
from storage.types import StageStatus
from tests.pipelines.backfill.backfill_material import write_clips
from tests.pipelines.backfill.backfill_models import MadeUpModels, Notes
from tests.places import PROJECT

CPUS_A_NODE = 2
STORE_BYTES = 80 * 1024 * 1024
LOST_NODES = 2
FILMS, FILM_SHOTS, FILM_SECONDS = 64, 14, 30.0
BATCH_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class SleepStep(Step[int, int]):
    """Takes ``seconds`` and no processor."""

    name: ClassVar[str] = "sleep"
    code: ClassVar[StageCode] = StageCode.PROCESSING_FAILED
    seconds: float

    def process(self, item: int) -> int:
        time.sleep(self.seconds)
        return item


@dataclass(frozen=True, slots=True)
class SleepingWork(ItemWork):
    """An item's work with a sleep in place of its source; its outcome is stored as any."""

    seconds: float = 0.0

    def start(self, item: Item, mapper: Mapper, models: ModelProvider) -> ItemRun:
        return SleepingRun(self, item, mapper, models, seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class SleepingRun(ItemRun):
    """A medium without picture and sound, which no stage has work with."""

    seconds: float = 0.0

    def ingest(self) -> IngestResult:
        time.sleep(self.seconds)
        return IngestResult(MediaInfo("none", 0, 1.0, None, ()), None, ())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=3.0, help="a sleep")
    parser.add_argument("--rounds", type=int, default=12, help="sleeps a processor")
    parser.add_argument("--items", type=int, help="a backfill of so many items instead")
    parser.add_argument("--pools", type=Path, metavar="FOLDER", help="pools of models instead")
    options = parser.parse_args()
    most = max(options.nodes)
    if options.pools:
        print(json.dumps(pools(options.pools)))
    elif options.items:
        with nodes(most):
            print(json.dumps(backfill(most, options.items, options.seconds)))
    else:
        rows = []
        for count in options.nodes:
            with nodes(count) as cluster:
                for way in (service, backfill):
                    items = count * CPUS_A_NODE * options.rounds
                    rows.append(way(count, items, options.seconds))
                    print(json.dumps(rows[-1]), flush=True)
                if count == most > LOST_NODES:
                    for way in (service, backfill):
                        rows.append(with_a_loss(cluster, way, count, items, options.seconds))
                        print(json.dumps(rows[-1]), flush=True)
        print(json.dumps({"runs": rows}))


@contextlib.contextmanager
def nodes(count: int) -> Iterator[Cluster]:
    """A head without processors and ``count`` nodes, whose workers have started."""
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": STORE_BYTES},
    )
    try:
        for _ in range(count):
            cluster.add_node(num_cpus=CPUS_A_NODE, object_store_memory=STORE_BYTES)
        environment = {"env_vars": {"PYTHONPATH": str(PROJECT)}}
        ray.init(address=cluster.address, runtime_env=environment, log_to_driver=False)
        cluster.wait_for_nodes()
        warm_up(count)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def warm_up(count: int) -> None:
    """Every processor's worker has run both kinds of task once."""
    service(count, count * CPUS_A_NODE * 2, 1.0)
    backfill(count, count * CPUS_A_NODE * 2, 1.0)


def service(count: int, items: int, seconds: float) -> dict[str, Any]:
    """A job a node at once, each with its share of the shards."""
    shards = range(items // count)

    def job(_: int) -> list[int]:
        return map_on_ray(shards, SleepStep(seconds=seconds), FreeRun())

    with measured() as row, ThreadPoolExecutor(count) as jobs:
        done = list(jobs.map(job, range(count)))
    assert done == [list(shards)] * count
    return row.finished("service", count, items, seconds)


def backfill(count: int, items: int, seconds: float) -> dict[str, Any]:
    """All items in one run."""
    with tempfile.TemporaryDirectory(prefix="vas-cluster-") as folder, measured() as row:
        place = place_at(folder, BucketAccess())
        work = SleepingWork(place, LocalModels(), "packaged", "run", seconds=seconds)
        output = begin_output(place, {"kind": "benchmark"})
        run_items(
            [Item(str(n), n + 1, f"/{n}.mp4", f"{n}.mp4") for n in range(items)],
            work,
            output,
            BackfillTally(items, 0, time.monotonic()),
            pacing=Pacing(),
            report=lambda line: print(line, file=sys.stderr, flush=True),
        )
        row.ended = time.monotonic()
        assert len(output.finished()) == items
    return row.finished("backfill", count, items, seconds)


@dataclass(slots=True)
class Measured:
    """Wall time and the driver's own processor time and memory."""

    started: float
    cpu_started: float
    ended: float = 0.0
    cpu_ended: float = 0.0

    def finished(self, way: str, count: int, items: int, seconds: float) -> dict[str, Any]:
        """The row; ``efficiency`` is the ideal wall time by the real one."""
        wall = self.ended - self.started
        ideal = items * seconds / (count * CPUS_A_NODE)
        return {
            "way": way,
            "nodes": count,
            "items": items,
            "wall_seconds": round(wall, 1),
            "ideal_seconds": round(ideal, 1),
            "efficiency": round(ideal / wall, 3),
            "items_a_second": round(items / wall, 1),
            "driver_cpu_seconds": round(self.cpu_ended - self.cpu_started, 1),
            "driver_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }


@contextlib.contextmanager
def measured() -> Iterator[Measured]:
    row = Measured(time.monotonic(), time.process_time())
    yield row
    row.ended = row.ended or time.monotonic()
    row.cpu_ended = time.process_time()


def with_a_loss(
    cluster: Cluster,
    way: Callable[[int, int, float], dict[str, Any]],
    count: int,
    items: int,
    seconds: float,
) -> dict[str, Any]:
    """``way`` with LOST_NODES nodes killed a third of the way in; they are started again then."""
    after = items * seconds / (count * CPUS_A_NODE) / 3

    def kill() -> None:
        for node in list(cluster.worker_nodes)[:LOST_NODES]:
            cluster.remove_node(node, allow_graceful=False)

    timer = threading.Timer(after, kill)
    timer.start()
    try:
        row = way(count, items, seconds)
    finally:
        timer.join()
    for _ in range(LOST_NODES):
        cluster.add_node(num_cpus=CPUS_A_NODE, object_store_memory=STORE_BYTES)
    cluster.wait_for_nodes()
    # The ideal with what is left; a shard that was lost is done again, and that is no part of it.
    left = (count - LOST_NODES) * CPUS_A_NODE
    ideal = after + (items * seconds - after * count * CPUS_A_NODE) / left
    efficiency = round(ideal / row["wall_seconds"], 3)
    return row | {"lost": LOST_NODES, "ideal_seconds": round(ideal, 1), "efficiency": efficiency}


def pools(folder: Path) -> dict[str, Any]:
    """A backfill through pools that loses a node, is stopped and goes on; what became of it."""
    for name in ("notes", "out"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "notes").mkdir(parents=True)
    notes, place = Notes(folder / "notes"), place_at(str(folder / "out"), BucketAccess())
    films = write_clips(folder / "films", FILMS, shots=FILM_SHOTS, seconds=FILM_SECONDS)
    items = [Item(path.stem, row, str(path), path.name) for row, path in enumerate(films, 1)]
    moments: dict[str, float] = {}
    with pool_nodes() as (cluster, with_gpu), sampled_memory() as memory:
        for run, share in (("first", 2 / 3), ("second", 1.1)):
            output = begin_output(place, {"kind": "benchmark"})
            output.recover()
            finished = output.finished()
            tally = BackfillTally(FILMS, len(finished), time.monotonic())
            moments[f"the {run} run"] = time.time()

            def is_stopped(tally: BackfillTally = tally, share: float = share) -> bool:
                done = tally.finished_before + tally.done
                if done >= FILMS / 3 and "a node is killed" not in moments:
                    moments["a node is killed"] = time.time()
                    cluster.remove_node(with_gpu, allow_graceful=False)
                return done >= FILMS * share

            models = MadeUpModels(seconds=BATCH_SECONDS)
            # The second is not stopped: what ends it shall be seen.
            with contextlib.suppress(*([RunStoppedError] if run == "first" else [])):
                run_items(
                    [item for item in items if item.id not in finished],
                    ItemWork(place, models, "gpu", run, observe=notes),
                    output,
                    tally,
                    pacing=Pacing(gpus=2, part_items=4),
                    report=lambda line: print(line, file=sys.stderr, flush=True),
                    is_stopped=is_stopped,
                )
        moments["the end"] = time.time()
    found = [each for part in open_output(place).outcomes() for each in part]
    draw_pools(folder / "pools.png", notes.read(), memory, moments)
    batches, rows = notes.batches(), REGISTRY["gpu"]
    of_models = {
        task.name: (rows[rows[task].shares or task].max_batch, batches[task.name])
        for task in rows
        if task.name in batches
    }
    began = moments["the first run"]
    return {
        "films": FILMS,
        "seconds": round(moments["the end"] - began, 1),
        "lost": len({item.id for item in items} - {each.item.id for each in found}),
        "twice": len(found) - len({each.item.id for each in found}),
        "failed": sum(each.status is StageStatus.FAILED for each in found),
        "killed_after_seconds": round(moments["a node is killed"] - began, 1),
        "resumed_after_seconds": round(moments["the second run"] - began, 1),
        "batches": {
            name: {"limit": most, "mean": round(sum(sizes) / len(sizes), 1), "count": len(sizes)}
            for name, (most, sizes) in of_models.items()
        },
        "rows": {each.name: len(batches[f"operator {each.name}"]) for each in OPERATORS},
        "driver_mib": [round(mib) for _, mib in memory[:: max(1, len(memory) // 10)]],
    }


@contextlib.contextmanager
def pool_nodes() -> Iterator[tuple[Cluster, Any]]:
    """A head without processors, two nodes with two each, two with four and a GPU each."""
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")
    size = {"object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **size})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=CPUS_A_NODE, **size)
        made = [cluster.add_node(num_cpus=4, num_gpus=1, **size) for _ in range(2)]
        environment = {"env_vars": {"PYTHONPATH": str(PROJECT)}}
        ray.init(address=cluster.address, runtime_env=environment, log_to_driver=False)
        cluster.wait_for_nodes()
        yield cluster, made[0]
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextlib.contextmanager
def sampled_memory() -> Iterator[list[tuple[float, float]]]:
    """MiB of this process at each second."""
    own, samples, ended = psutil.Process(), [(0.0, 0.0)], threading.Event()
    samples.clear()

    def sample() -> None:
        while not ended.wait(1.0):
            samples.append((time.time(), own.memory_info().rss / 2**20))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def draw_pools(
    path: Path,
    notes: Sequence[tuple[str, int, float, float, int]],
    memory: Sequence[tuple[float, float]],
    moments: dict[str, float],
) -> None:
    """Of each operator the rows at work, of each pool the share of time that its models compute."""
    began, end = moments["the first run"], moments["the end"]
    seconds = np.arange(0.0, end - began, 1.0)

    def busy(names: Sequence[str]) -> npt.NDArray[np.float64]:
        found = np.zeros(len(seconds))
        for name, _, took, ended, _ in notes:
            if name in names:
                low, high = ended - took - began - seconds, ended - began - seconds
                found += np.clip(high, 0, 1) - np.clip(low, 0, 1)
        return found

    figure, axes = plt.subplots(len(OPERATORS) + 1, 1, figsize=(11, 13), sharex=True)
    for axis, each in zip(axes, OPERATORS, strict=False):
        axis.fill_between(seconds, busy([f"operator {each.name}"]), step="post", alpha=0.3)
        axis.set_ylabel(f"{each.name}\nrows")
        if each.gpus("gpu"):
            other = axis.twinx()
            computing = busy([task.name for task in each.tasks])
            other.step(seconds, computing, where="post", color="tab:red", linewidth=0.9)
            other.set_ylabel("batches", color="tab:red")
            other.set_ylim(bottom=0)
    axes[-1].plot([at - began for at, _ in memory], [mib for _, mib in memory])
    axes[-1].set_ylim(bottom=0)
    axes[-1].set_ylabel("driver\nMiB")
    axes[-1].set_xlabel("seconds")
    for axis in axes:
        for name, at in moments.items():
            axis.axvline(at - began, color="black", linestyle=":", linewidth=0.8)
            if axis is axes[0]:
                axis.text(at - began, axis.get_ylim()[1], name, fontsize=8, rotation=20)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main()
