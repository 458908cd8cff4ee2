"""Chains on Ray Data: they end whatever their tasks do, and leave nothing behind."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import ray

from models.provider import LocalModels
from models.registry import with_others
from models.weights import RemoteModel
from pipelines.execution import ray_data
from pipelines.execution.chain import Control, FreeRun, Resources, Workspace
from pipelines.execution.ray_data import (
    _CaptureExecutor,
    items_as_they_come,
    items_dataset,
    map_on_ray,
    on_a_worker,
)
from pipelines.ingest.pipeline import IngestConfig
from pipelines.speech.pipeline import TranscriptConfig
from pipelines.stages import MediaStages
from pipelines.types import StageCode, StageError, StageStoppedError
from pipelines.vision.pipeline import VisionConfig
from serve_app.settings import Settings
from serve_app.work.stage_work import transcribe_concurrency
from storage.objects.folder import FolderStore
from storage.types import ProcessingMode
from tests.pipelines.execution import steps
from tests.pipelines.execution.steps import Calls

# Ray's workers cannot import it by name.
ray.cloudpickle.register_pickle_by_value(steps)

pytestmark = pytest.mark.usefixtures("ray_session")


class Patience:
    """A Control that stops, or gives up, once ``seconds`` are over.

    They are counted from the moment that ``begun`` is there, where that is given.
    """

    def __init__(self, seconds: float, error: Exception, begun: Path | None = None) -> None:
        self.seconds = seconds
        self.until = time.monotonic() + seconds if begun is None else None
        self.begun = begun
        self.error = error

    def check(self) -> None:
        if self.until is None and self.begun is not None and self.begun.exists():
            self.until = time.monotonic() + self.seconds
        if self.until is not None and time.monotonic() > self.until:
            raise self.error

    def progress(self, fraction: float) -> None:
        """Nobody wants to know."""


def killing(begun: Path) -> Calls[int, int]:
    def run(index: int) -> int:
        (begun / f"{index}-{time.monotonic_ns()}").touch()
        if index == 1:
            os._exit(1)
        return index

    return Calls(run)


def endless(alive: Path, *, deaf: bool = False, cpus: float = 1.0) -> Calls[int, int]:
    def run(_: int) -> int:
        while True:
            try:
                alive.write_text(str(time.monotonic()))
                time.sleep(0.05)
            except KeyboardInterrupt:
                if not deaf:
                    raise

    return Calls(run, resources=Resources(cpus))


def test_processes_that_would_have_nothing_to_do_are_not_started() -> None:
    idle = ("autoscaler/_private/monitor.py", "_private/log_monitor.py", "dashboard/dashboard.py")
    commands = [" ".join(each.cmdline()) for each in psutil.Process().children(recursive=True)]
    assert any("gcs_server" in command for command in commands)
    assert [command for command in commands if any(each in command for each in idle)] == []


ALONE_AND_NOT = pytest.mark.parametrize(
    "items", [pytest.param([1], id="a task"), pytest.param([0, 1], id="a dataset")]
)
"""A single item is a task of Ray, several are a dataset."""


@ALONE_AND_NOT
def test_what_kills_its_worker_each_time_ends_the_chain(tmp_path: Path, items: list[int]) -> None:
    with pytest.raises(Exception, match=r"(?i)worker|crashed|died"):
        map_on_ray(items, killing(tmp_path), Patience(500, AssertionError("it never ended")))
    attempts = [path for path in tmp_path.iterdir() if path.name.startswith("1-")]
    assert len(attempts) == 4


STOPPED = StageStoppedError("job")
TOOK_TOO_LONG = StageError(StageCode.VISION_FAILED, "The stage took too long.")


@pytest.mark.parametrize(
    ("error", "deaf"),
    [
        pytest.param(STOPPED, False, id="stopped-responsive"),
        pytest.param(STOPPED, True, id="stopped-is deaf", marks=pytest.mark.long),
        pytest.param(TOOK_TOO_LONG, False, id="took too long-responsive", marks=pytest.mark.long),
        pytest.param(TOOK_TOO_LONG, True, id="took too long-is deaf"),
    ],
)
@ALONE_AND_NOT
def test_a_task_that_never_ends_is_ended(
    tmp_path: Path, items: list[int], error: Exception, deaf: bool
) -> None:
    alive = tmp_path / "alive"
    step = endless(alive, deaf=deaf)
    with pytest.raises(type(error)):
        map_on_ray(items, step, Patience(0.5, error, alive))
    for _ in range(20):
        before = alive.read_text()
        time.sleep(0.5)
        if alive.read_text() == before:
            return
    raise AssertionError("the task goes on")


@ALONE_AND_NOT
def test_tasks_for_which_there_is_no_room_are_given_up(tmp_path: Path, items: list[int]) -> None:
    step = endless(tmp_path / "alive", cpus=1000.0)
    with pytest.raises(StageStoppedError):
        map_on_ray(items, step, Patience(3, StageStoppedError("job")))
    assert not (tmp_path / "alive").exists()


@ALONE_AND_NOT
def test_another_chain_runs_after_one_that_was_given_up(tmp_path: Path, items: list[int]) -> None:
    alive = tmp_path / "alive"
    step, patience = endless(alive), Patience(0.5, StageStoppedError("job"), alive)
    with pytest.raises(StageStoppedError):
        map_on_ray(items, step, patience)
    doubled = Calls[int, int](lambda number: number * 2)
    done = map_on_ray(range(4), doubled, Patience(500, AssertionError("it never ended")))
    assert done == [0, 2, 4, 6]


def test_items_keep_their_order_and_their_types() -> None:
    def late(number: int) -> tuple[int, float]:
        time.sleep(0.3 * (3 - number))
        return number, 0.5

    step = Calls[int, tuple[int, float]](late)
    assert map_on_ray(range(3), step, FreeRun()) == [(n, 0.5) for n in range(3)]


def test_ray_has_a_bounded_number_of_tasks_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take in all of a hundred thousand before it looks for the first result."""

    def run(index: int) -> int:
        own = tmp_path / str(index)
        own.touch()
        time.sleep(1.5)
        at_once = len(list(tmp_path.iterdir()))
        own.unlink()
        return at_once

    monkeypatch.setattr(ray_data, "_MOST_TASKS", 2)
    at_once = map_on_ray(range(8), Calls(run, resources=Resources(0.1)), FreeRun())
    assert max(at_once) <= 2


def test_an_executor_is_captured_by_the_thread_that_runs_its_dataset() -> None:
    dataset = items_dataset([1, 2]).map(lambda row: row)
    found = [each for each in items_as_they_come(dataset, 0.2) if each is not None]
    assert sorted(found) == [(0, 1), (1, 2)]
    assert not hasattr(_CaptureExecutor.of_thread, "executors")


def run_a_chain(word: str) -> None:
    """A task and a dataset whose step is new, as those of every job are."""

    step = Calls[int, str](lambda _: word)
    assert map_on_ray([0], step, FreeRun()) == [word]
    assert map_on_ray([0, 1], step, FreeRun()) == [word, word]


def growth(count: Callable[[], int]) -> int:
    """By how much ``count`` is more after three further chains."""
    run_a_chain("first")
    before = count()
    for number in range(3):
        run_a_chain(f"later {number}")
    return count() - before


def test_no_pickled_code_is_added_to_what_the_cluster_keeps() -> None:
    from ray._private.ray_constants import KV_NAMESPACE_FUNCTION_TABLE
    from ray.experimental.internal_kv import _internal_kv_list

    assert growth(lambda: len(_internal_kv_list(b"", namespace=KV_NAMESPACE_FUNCTION_TABLE))) == 0


def test_no_remote_function_and_no_class_is_added_to_what_the_driver_keeps() -> None:
    from ray.actor import _ActorClassMethodMetadata
    from ray.data._internal.remote_fn import CACHED_FUNCTIONS

    assert growth(lambda: len(CACHED_FUNCTIONS) + len(_ActorClassMethodMetadata._cache)) == 0


def test_nothing_is_reported_to_the_actor_that_never_forgets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "ray.data._internal.stats.get_or_create_stats_actor", lambda: asked.append("for it")
    )
    run_a_chain("unseen")
    assert asked == []


_PLAIN_RAY = """
import ray, ray.data
from ray._private.ray_constants import KV_NAMESPACE_FUNCTION_TABLE
from ray.actor import _ActorClassMethodMetadata
from ray.data._internal import stats
from ray.data._internal.remote_fn import CACHED_FUNCTIONS
from ray.experimental.internal_kv import _internal_kv_list

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
reports = []
send = stats._StatsManager.register_dataset_to_stats_actor
stats._StatsManager.register_dataset_to_stats_actor = staticmethod(
    lambda *a, **k: reports.append(1) or send(*a, **k)
)

def counts():
    ray.data.from_items([{"n": 1}]).map(lambda row: row).take_all()
    keys = _internal_kv_list(b"", namespace=KV_NAMESPACE_FUNCTION_TABLE)
    return [len(CACHED_FUNCTIONS), len(keys), len(_ActorClassMethodMetadata._cache), len(reports)]

counts()
before, after = counts(), counts()
print(*[b - a for a, b in zip(before, after)])
"""


@pytest.mark.long
def test_ray_still_keeps_something_of_each_dataset() -> None:
    """Fails as soon as a workaround of ``ray_data.forget_datasets`` is no longer needed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", _PLAIN_RAY],
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
        env=environment,
    )
    functions, pickled, classes, reports = map(int, done.stdout.split()[-4:])
    assert functions > 0, (
        "remote functions are shared now: drop _shared_with_retries's part (#63666)"
    )
    assert pickled > 0, "no pickled function a dataset any more (#63666)"
    assert classes > 0, "the coordinator's class is kept once: drop _looked_up_first"
    assert reports > 0, "datasets are not reported any more (#65029)"


def test_ray_still_retries_lost_tasks_without_end() -> None:
    """Fails as soon as ``ray_data._RETRIES`` could be an option, or Ray has a limit of its own."""
    from ray.data._internal import remote_fn
    from ray.data.dataset import Dataset

    made = remote_fn.cached_remote_fn(lambda: None)
    assert made._default_options["max_retries"] == -1
    assert "max_retries" not in inspect.signature(Dataset.map).parameters


def test_ray_still_offers_no_end_of_waiting_for_rows() -> None:
    """Fails as soon as the thread and the captured executor of ``items_as_they_come`` can go."""
    from ray.data import Dataset

    assert "timeout" not in " ".join(inspect.signature(Dataset.iter_rows).parameters)
    assert not {"cancel", "stop", "shutdown"} & set(dir(Dataset))


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
    elsewhere = with_others("packaged", {"transcribe": RemoteModel("http://gpu/v1", "m", None, 7)})
    remote = settings.model_copy(update={"model_profile": elsewhere})
    assert transcribe_concurrency(remote) == 7


def test_ingest_is_a_worker_s_task_where_ray_has_other_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(FolderStore(tmp_path), "job")

    def run(act: Callable[[Control], int]) -> int:
        return on_a_worker(act, StageCode.FETCH_FAILED, workspace, FreeRun())

    assert run(lambda _: os.getpid()) == os.getpid()
    head = {"NodeID": "0" * 56, "Alive": True, "Resources": {}}
    nodes = [*ray.nodes(), head]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    assert run(lambda _: os.getpid()) != os.getpid()

    parts = workspace, LocalModels(), ProcessingMode.ALL, IngestConfig(), VisionConfig()
    stages = MediaStages(*parts, TranscriptConfig())
    for large, is_here in ((40 << 30, False), (41 << 30, True)):  # bytes, and the disk they need
        found = stages.on_a_worker(lambda _: os.getpid(), large, FreeRun())
        assert (found == os.getpid()) is is_here

    def refuse(_: Control) -> int:
        raise TOOK_TOO_LONG

    with pytest.raises(StageError) as refused:
        run(refuse)
    assert refused.value.code is TOOK_TOO_LONG.code
    with pytest.raises(StageError, match="ZeroDivisionError") as broken:
        run(lambda _: 1 // 0)
    assert broken.value.code is StageCode.FETCH_FAILED
    workspace.request_stop()

    def look(control: Control) -> int:
        control.check()
        return 0

    with pytest.raises(StageStoppedError):
        run(look)
