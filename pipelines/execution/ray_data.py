"""All that touches Ray Data: steps as datasets, and workarounds for Ray 2.60.

``tests/pipelines/execution/test_ray_data.py`` has a test for each workaround, which fails once Ray
no longer needs it. Where another version of Ray lacks one of the private parts, an AttributeError
or ImportError names it at the first dataset. Measured by ``benchmarks/soak.py``.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import queue
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypedDict

from pipelines.execution.chain import (
    Control,
    In,
    Out,
    Step,
    Workspace,
    WorkspaceControl,
    attempt,
    collected,
)
from pipelines.types import StageCode, StageStoppedError

if TYPE_CHECKING:
    from ray.data import Dataset


def map_on_ray(items: Sequence[In], step: Step[In, Out], control: Control) -> list[Out]:
    """Return a Ray Data chain, a task an item; a single item is a task of Ray without one.

    ``control`` is checked while no item comes, too: tasks that cannot begin, or never end, are then
    ended. Raises as ``pipelines.execution.chain.collected``.
    """
    if not items:
        return []
    import ray

    need = step.resources
    cpus = float(ray.cluster_resources().get("CPU", 1.0))
    concurrency = max(1, need.concurrency or int(cpus / need.cpus))
    coming = _one_item(items[0], step) if len(items) == 1 else _sharded(items, step)
    return _collected(items, coming, control, concurrency)


def _collected(
    items: Sequence[object], coming: Coming, control: Control, concurrency: int
) -> list[Any]:
    with contextlib.closing(coming) as done:
        try:
            return collected(done, control, count=len(items), concurrency=concurrency)
        except StageStoppedError:
            # Tasks that read the stop marker end in order; the others are ended with ``done``.
            deadline = time.monotonic() + _STOPPING_SECONDS
            for _ in done:
                if time.monotonic() > deadline:
                    break
            raise


def on_a_worker(
    act: Callable[[Control], Out], code: StageCode, workspace: Workspace, control: Control
) -> Out:
    """Return what ``act`` returns, as a task where Ray has other nodes than this one, else here.

    A cluster's head has no processors for media. All of a workspace are done by one node where it
    can, which has the files by then. ``act`` travels pickled. Raises as it does, and as
    ``map_on_ray`` where it is a task, with ``code`` for errors that have none of their own.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]] if ray.is_initialized() else []
    if len(nodes) < 2:
        return act(control)
    workers = sorted(node["NodeID"] for node in nodes if node["Resources"].get("CPU"))
    strategy: Any = "SPREAD"
    if workers:
        number = zlib.crc32(workspace.prefix.encode()) % len(workers)
        strategy = NodeAffinitySchedulingStrategy(workers[number], soft=True)
    step: _Act[Out] = _Act(code, workspace)
    found: list[Out] = _collected([act], _one_item(act, step, strategy), control, 1)
    return found[0]


@dataclass(frozen=True)
class _Act(Step[Callable[[Control], Out], Out], Generic[Out]):
    """Carries out what it is given."""

    name = "Reading the media"
    code: StageCode  # type: ignore[misc]  # of a class elsewhere
    workspace: Workspace

    def process(self, act: Callable[[Control], Out]) -> Out:
        return act(WorkspaceControl(self.workspace))


Coming: TypeAlias = Generator[tuple[int, Any] | None, None, None]
"""Each item with its position, in order of completion; None where none came for a tick."""


def _sharded(items: Sequence[In], step: Step[In, Out]) -> Coming:
    from ray.data import TaskPoolStrategy

    need, task = step.resources, ItemTask(functools.partial(attempt, step))
    dataset = items_dataset(items).map(
        task,
        # A task an item, of which at most so many are with Ray, which warns of a bound above them.
        compute=TaskPoolStrategy(size=max(1, min(len(items), need.concurrency or _MOST_TASKS))),
        num_cpus=need.cpus,
        num_gpus=need.gpus or None,
    )
    return items_as_they_come(dataset, _CHECK_SECONDS)


def _one_item(item: In, step: Step[In, Out], strategy: Any = "SPREAD") -> Coming:
    """As a dataset would: spread over the nodes, tried again where its worker is lost. All chains
    of a short medium are of one item. With a step that does nothing a dataset took 31 ms, the task
    2.4. Raises what Ray raises."""
    import ray

    need = step.resources
    where = {"num_cpus": need.cpus, "num_gpus": need.gpus or None, "scheduling_strategy": strategy}
    task = _attempted().options(**where).remote(step, item)
    try:
        while not ray.wait([task], timeout=_CHECK_SECONDS)[0]:
            yield None
    except GeneratorExit:
        # Only where it has not ended: Ray would kill the worker, which is idle by then.
        ray.cancel(task, force=True)
        ray.wait([task], timeout=_ENDING_SECONDS)
        raise
    yield 0, ray.get(task)


@functools.cache
def _attempted() -> Any:
    """``attempt`` as a remote function, which the cluster keeps once; named as Ray Data's are."""
    import ray

    options = {"max_retries": _RETRIES, "name": "Map(attempt)"}
    return ray.remote(**options)(attempt)


class ItemTask(Generic[In, Out]):
    """A function of items as one of rows.

    Items travel pickled: Ray Data would make columns of their fields, and lists of tuples.
    """

    def __init__(self, process: Callable[[In], Out]) -> None:
        self._process = process

    def __call__(self, row: Row) -> Row:
        item = pickle.loads(row["item"])  # noqa: S301 - pickled by ``_row``
        return _row(row["position"], self._process(item))


RowFunction: TypeAlias = Callable[[Any], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Pool:
    """Processes that stay, with what they have loaded: ``least`` to ``most``, as many rows at a
    time in each as it has ``threads``."""

    gpus: float
    threads: int
    most: int
    least: int = 1


@dataclass(frozen=True, slots=True)
class StreamOperator:
    """A function of rows to any number of rows, opened in each process that works on them."""

    name: str
    open: Callable[[], RowFunction]
    cpus: float = 1.0
    pool: Pool | None = None
    """None: a task a row."""


class _RowTask:
    """A StreamOperator's function as one of Ray's rows; given as a class, it is an actor's."""

    def __init__(self, open_: Callable[[], RowFunction]) -> None:
        self._open, self._lock = open_, threading.Lock()

    def __reduce__(self) -> tuple[type, tuple[Any]]:
        return type(self), (self._open,)

    @functools.cached_property
    def _process(self) -> RowFunction:
        return self._open()

    def __call__(self, row: Row) -> list[Row]:
        with self._lock:
            process = self._process
        item = pickle.loads(row["item"])  # noqa: S301 - pickled by ``_row``
        return [_row(row["position"], each) for each in process(item)]


def streamed(rows: Sequence[object], operators: Sequence[StreamOperator]) -> Dataset:
    """Return what comes of ``rows`` behind all operators, none of which waits for another.

    A row is a block, and so a task, and what may begin is up to Admission. Ray Data's own policies
    go by CPUs and by bytes in its object store; here these are in a store that it does not see.
    """
    from ray.data import ActorPoolStrategy, TaskPoolStrategy

    dataset = items_dataset(rows)
    warnings.filterwarnings("ignore", "The maximum number of concurrent tasks")
    for place, each in enumerate(operators):
        # Ray Data makes neighbours one operator, whose tasks would then work on all rows that come
        # of one, unless their sizes differ; it warns of a size above the number of rows. An
        # operator's name is that of the class.
        task = type(each.name, (_RowTask,), {})
        if each.pool is None:
            tasks = TaskPoolStrategy(size=_MOST_TASKS + place)
            dataset = dataset.flat_map(task(each.open), compute=tasks, num_cpus=each.cpus)
            continue
        dataset = dataset.flat_map(
            task,
            fn_constructor_args=(each.open,),
            compute=ActorPoolStrategy(
                min_size=each.pool.least,
                max_size=each.pool.most,
                max_concurrent_calls_per_actor=each.pool.threads,
                enable_true_multi_threading=True,
            ),
            num_cpus=each.cpus,
            num_gpus=each.pool.gpus,
        )
    dataset.context.target_max_block_size = 1
    dataset.context.set_config("backpressure_policies.enabled", [Admission])
    return dataset


@dataclass(slots=True)
class UnderWay:
    """What is between the first operator and the end, and the most of it. Of one dataset."""

    most_items: int | None = None
    most_bytes: int = 64 << 30
    ended: int = 0
    ended_bytes: int = 0

    def end(self, size_bytes: int) -> None:
        """Another item has ended, which took so many bytes."""
        self.ended += 1
        self.ended_bytes += size_bytes

    def is_full(self, begun: int) -> bool:
        """Return whether no more shall begin than ``begun``. Items are taken to be of one size,
        which becomes known as they end."""
        items = begun - self.ended
        mean_bytes = self.ended_bytes / self.ended if self.ended else _UNKNOWN_BYTES
        over = self.most_items is not None and items >= self.most_items
        return over or (items + 1) * mean_bytes > self.most_bytes


_UNKNOWN_BYTES = 1 << 30
_QUEUED_ROWS = 256
"""Before a pool: a few seconds' work, so that it never waits for the operators before it."""


class Admission:
    """A back-pressure policy of Ray Data: what is begun goes on before anything begins.

    Tasks take no more processors than the cluster has by now, and one, so that none of them waits
    for the next task. Of the operators with work the last goes first. None works ahead of a pool
    before which many rows wait, and the first begins nothing while ``under_way`` is full.
    """

    name = "Admission"
    under_way: ClassVar[UnderWay] = UnderWay()
    """Of the class: the policy travels to the tasks with the dataset's context, by reference."""

    def __init__(self, _: object, topology: Any, resources: Any) -> None:
        self._topology, self._resources = topology, resources

    def can_add_input(self, operator: Any) -> bool:
        places = list(self._topology)
        place = places.index(operator)
        if _is_pool(operator):
            return True
        for each in places[place + 1 :]:
            queued = self._topology[each].total_enqueued_input_blocks()
            if queued > (_QUEUED_ROWS if _is_pool(each) else 0):
                return False
        if place == 1 and self.under_way.is_full(operator.metrics.num_tasks_submitted):
            return False
        # What pools have asked for and not got takes nothing yet.
        used = self._resources.get_global_running_usage()
        return bool(used.cpu < self._resources.get_global_limits().cpu + 1)

    def max_task_output_bytes_to_read(self, _: object) -> None:
        """Return no limit."""


def _is_pool(operator: Any) -> bool:
    return bool(operator.get_autoscaling_actor_pools())


_MOST_TASKS = 1000
"""That Ray has at a time, running and waiting. Of more it would take in all before it looks for the
first result, and keep 35 KB for each; an autoscaler starts as many processors for them."""


class Row(TypedDict):
    """Of Ray Data: an item, pickled, and its position among all."""

    position: int
    item: bytes


def _row(position: int, item: object) -> Row:
    return Row(position=position, item=pickle.dumps(item))


def items_dataset(items: Sequence[object]) -> Dataset:
    """Return a block an item, for tasks that take long and return little.

    Ray Data would set half of the processors aside for what comes after a step, and
    on two processors run one task after the other. Here nothing comes after it.
    """
    import ray.data

    forget_datasets()
    ray.data.DataContext.get_current().op_resource_reservation_enabled = False
    rows = [_row(*each) for each in enumerate(items)]
    return ray.data.from_items(rows, override_num_blocks=len(rows))


_CHECK_SECONDS = 0.5
_STOPPING_SECONDS = 3.0
_ENDING_TICK_SECONDS = 0.1
_ENDING_SECONDS = 30.0


class _CaptureExecutor:
    """An execution callback of Ray Data: keeps the executor for the thread that started it. Travels
    to the tasks with the dataset's context, by reference, as its state is the thread's."""

    of_thread = threading.local()

    def before_execution_starts(self, executor: Any) -> None:
        getattr(self.of_thread, "executors", []).append(executor)

    def on_execution_step(self, executor: Any) -> None: ...
    def after_execution_succeeds(self, executor: Any) -> None: ...
    def after_execution_fails(self, executor: Any, error: Exception) -> None: ...


def items_as_they_come(dataset: Dataset, tick_seconds: float) -> Coming:
    """Return what comes out of ``dataset``. Raises what Ray raises.

    Closed before the end, it ends the tasks that run or wait. Either way Ray Data has tidied up
    when it is over, and Ray may be shut down.
    """
    rows: queue.SimpleQueue[Row | BaseException | None] = queue.SimpleQueue()
    executors: list[Any] = []
    dataset.context.custom_execution_callback_classes = [_CaptureExecutor]

    def feed() -> None:
        _CaptureExecutor.of_thread.executors = executors
        try:
            for row in dataset.iter_rows():
                rows.put(row)
        except BaseException as error:
            rows.put(error)
        rows.put(None)  # nothing more comes

    feeder = threading.Thread(target=feed, name="rows", daemon=True)
    feeder.start()
    try:
        while True:
            try:
                row = rows.get(timeout=tick_seconds)
            except queue.Empty:
                yield None
                continue
            if row is None:
                return
            if isinstance(row, BaseException):
                raise row
            yield row["position"], pickle.loads(row["item"])  # noqa: S301
    finally:
        _end(feeder, executors)


def _end(feeder: threading.Thread, executors: list[Any]) -> None:
    """Wait for the thread; again and again: an executor that has not begun ignores a shutdown."""
    for _ in range(round(_ENDING_SECONDS / _ENDING_TICK_SECONDS)):
        feeder.join(_ENDING_TICK_SECONDS)
        if not feeder.is_alive():
            return
        for executor in executors:
            _end_tasks(executor)
            executor.shutdown(force=False)


def _end_tasks(executor: Any) -> None:
    """End the processes of the tasks that run: an exception, Ray's milder way, may be swallowed.
    Ray Data's own ``shutdown(force=True)`` does the same, but waits for it without end."""
    import ray

    for operator in list(executor._topology or ()):  # noqa: SLF001
        for task in operator.get_active_tasks():
            try:
                ray.cancel(task.get_waitable(), force=True)
            except ValueError:  # an actor's task
                continue
        for pool in operator.get_autoscaling_actor_pools():
            pool.shutdown(force=True)  # else an actor works off what it was given


_REPORTS = (
    "register_dataset_to_stats_actor",
    "update_execution_metrics",
    "update_iteration_metrics",
)
_RETRIES = 3
_COORDINATOR = "AutoscalingCoordinator"
"""Name and namespace of the actor that shares the cluster out among datasets."""


@functools.cache
def forget_datasets() -> None:
    """Datasets that this process runs from now on leave nothing behind; once a process."""
    from ray.data._internal import stats
    from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator as coordinator
    from ray.data._internal.execution.operators import task_pool_map_operator as operator

    for name in _REPORTS:
        _replace(stats._StatsManager, name, lambda _: staticmethod(_nothing))  # noqa: SLF001
    _replace(operator, "cached_remote_fn", _shared_with_retries)
    _replace(coordinator, "get_or_create_autoscaling_coordinator", _looked_up_first)


def _replace(module: Any, name: str, by: Callable[[Any], Any]) -> None:
    setattr(module, name, by(getattr(module, name)))


def _nothing(*_: Any, **__: Any) -> None:
    """Instead of a report."""


def _shared_with_retries(remote_function: Any) -> Any:
    def shared(function: Any, *, _labels: Any = None, **options: Any) -> Any:
        return remote_function(function, **{"max_retries": _RETRIES} | options)

    return shared


def _looked_up_first(made: Any) -> Any:
    def found_or_made() -> Any:
        import ray

        try:
            return ray.get_actor(_COORDINATOR, namespace=_COORDINATOR)
        except ValueError:
            return made()

    return found_or_made
