"""All that touches Ray Data: chains of tasks as datasets, and what Ray 2.60 lacks for them.

Each workaround names the upstream issue or what is missing; ``tests/pipelines/test_ray_data.py``
has a test for each that fails as soon as Ray no longer needs it.

- Ray Data keeps of a dataset, until the process or the cluster ends: time series of more than 80
  metrics for each operator, in the actor that collects them and in the agent of the node
  (ray-project/ray, issue 65029; most of 2.6 MB a job over a soak of 500); a remote function of its
  own, because the operator's id is among what the function is looked up by, in the driver and as
  pickled code in the GCS (issue 63666); and a class of the actor that all datasets share. A service
  makes datasets without end, so these reports are not sent, the label is left out of the
  function's key, and the actor is looked for before its class is made again.
- A task whose worker or node is lost is tried again without end: what kills its worker each time
  would never end. Here it is tried four times. (``Dataset.map`` takes a limit as one of the
  ``ray_remote_args`` that Ray 2.64 is to have no more.)
- The iterator of rows returns with a row or not at all: not while a task runs for hours, while no
  node has room for it, nor while one dies and is tried again. So a thread waits there, and the
  executor, which an execution callback captures, is shut down by whoever must not wait.

Measured by ``tests/benchmarks/soak.py``. Where another version of Ray lacks one of the private
parts, an AttributeError or ImportError names it at the first dataset.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pipelines.execution.chain import Control, Mapped, Row, collected, guarded
from pipelines.types import StageStoppedError

if TYPE_CHECKING:
    from ray.data import Dataset


def map_on_ray(
    rows: Sequence[Row],
    steps: Sequence[Mapped],
    control: Control,
    *,
    progress_from: float = 0.0,
    progress_to: float = 1.0,
) -> list[Row]:
    """A Ray Data chain, a task a row and step; rows in order of completion."""
    if not rows:
        return []
    from ray.data import TaskPoolStrategy

    dataset = rows_dataset(rows)
    for each in steps:
        step = guarded(each.step, name=each.name, code=each.code)
        compute = TaskPoolStrategy(size=each.concurrency)
        dataset = dataset.map(step, compute=compute, num_cpus=each.num_cpus)
    return run_chain(
        dataset,
        control,
        rows_expected=len(rows),
        progress_from=progress_from,
        progress_to=progress_to,
        concurrency=_concurrency(steps),
    )


def _concurrency(steps: Sequence[Mapped]) -> int:
    """About how many rows will be under way at a time, if nothing else is."""
    import ray

    cpus = float(ray.cluster_resources().get("CPU", 1.0))
    return max(1, min(each.concurrency or int(cpus / each.num_cpus) for each in steps))


def rows_dataset(rows: Sequence[Row]) -> Dataset:
    """A block a row, for tasks that take long and return little.

    Ray Data would set half of the processors aside for what comes after a step, and
    on two processors run one task after the other. Here nothing comes after it.
    """
    import ray.data

    let_go_of_datasets()
    ray.data.DataContext.get_current().op_resource_reservation_enabled = False
    return ray.data.from_items([*rows], override_num_blocks=len(rows))


def run_chain(
    dataset: Dataset,
    control: Control,
    *,
    rows_expected: int,
    progress_from: float = 0.0,
    progress_to: float = 1.0,
    concurrency: int = 1,
) -> list[Row]:
    """Run ``dataset`` and return its rows in order of completion.

    Between the ends of rows, progress follows from ``concurrency``: about so many are under way.
    ``control`` is asked while no row comes, too: tasks that cannot begin, or never end, are then
    ended. Raises StageStoppedError if a step met the stop marker or ``control`` says
    so, StageError with the failed step's code, StageError with
    PROCESSING_FAILED if rows went missing, and ObjectStoreUnavailableError if
    the store was away for a step, or a disk full: nobody's fault, worth another try later.
    """
    with contextlib.closing(rows_as_they_come(dataset, _LISTEN_SECONDS)) as rows:
        try:
            return collected(
                _heeding(rows, control),
                control,
                rows_expected=rows_expected,
                progress_from=progress_from,
                progress_to=progress_to,
                concurrency=concurrency,
            )
        except StageStoppedError:
            _let_end(rows)
            raise


def _let_end(rows: Iterator[Row | None]) -> None:
    """Tasks that hear of a stop end in order; what does not is ended when ``rows`` are closed."""
    deadline = time.monotonic() + _STOPPING_SECONDS
    for _ in rows:
        if time.monotonic() > deadline:
            return


def _heeding(rows: Iterator[Row | None], control: Control) -> Iterator[Row]:
    for row in rows:
        if row is None:
            control.check()
        else:
            yield row


_LISTEN_SECONDS = 0.5
_STOPPING_SECONDS = 3.0
_ENDING_TICK_SECONDS = 0.1
_ENDING_SECONDS = 30.0


class _End:
    """Nothing more comes."""


_END = _End()


class _CaptureExecutor:
    """An execution callback of Ray Data: keeps the executor for the thread that started it.

    Travels to the tasks with the dataset's context, by reference, as its state is the thread's.
    """

    of_thread = threading.local()

    def before_execution_starts(self, executor: Any) -> None:
        getattr(self.of_thread, "executors", []).append(executor)

    def on_execution_step(self, executor: Any) -> None: ...
    def after_execution_succeeds(self, executor: Any) -> None: ...
    def after_execution_fails(self, executor: Any, error: Exception) -> None: ...


def rows_as_they_come(dataset: Dataset, tick_seconds: float) -> Generator[Row | None, None, None]:
    """Each row in order of completion; None after every ``tick_seconds`` in which none came.

    Raises what Ray raises. Closed before the end, it ends the tasks that run or wait.
    Either way Ray Data has tidied up when it is over, and Ray may be shut down.
    """
    rows: queue.SimpleQueue[Row | _End | BaseException] = queue.SimpleQueue()
    executors: list[Any] = []
    dataset.context.custom_execution_callback_classes = [_CaptureExecutor]

    def feed() -> None:
        _CaptureExecutor.of_thread.executors = executors
        try:
            for row in dataset.iter_rows():
                rows.put(row)
        except BaseException as error:
            rows.put(error)
        rows.put(_END)

    feeder = threading.Thread(target=feed, name="rows", daemon=True)
    feeder.start()
    try:
        while True:
            try:
                row = rows.get(timeout=tick_seconds)
            except queue.Empty:
                yield None
                continue
            if isinstance(row, _End):
                return
            if isinstance(row, BaseException):
                raise row
            yield row
    finally:
        _end(feeder, executors)


def _end(feeder: threading.Thread, executors: list[Any]) -> None:
    """Wait for the thread; again and again, as an executor that has not begun yet hears nothing."""
    for _ in range(round(_ENDING_SECONDS / _ENDING_TICK_SECONDS)):
        feeder.join(_ENDING_TICK_SECONDS)
        if not feeder.is_alive():
            return
        for executor in executors:
            _end_tasks(executor)
            executor.shutdown(force=False)


def _end_tasks(executor: Any) -> None:
    """End the processes of the tasks that run: an exception, Ray's milder way, may be swallowed.

    Ray Data's own ``shutdown(force=True)`` does the same, but waits for it without end.
    """
    import ray

    for operator in list(executor._topology or ()):  # noqa: SLF001
        for task in operator.get_active_tasks():
            try:
                ray.cancel(task.get_waitable(), force=True)
            except ValueError:  # an actor's task: Ray Data ends the actor
                continue


_REPORTS = (
    "register_dataset_to_stats_actor",
    "update_execution_metrics",
    "update_iteration_metrics",
)
_RETRIES = 3
_COORDINATOR = "AutoscalingCoordinator"
"""Name and namespace of the actor that shares the cluster out among datasets."""


@functools.cache
def let_go_of_datasets() -> None:
    """Datasets that this process runs from now on leave nothing behind; once a process."""
    from ray.data._internal import stats
    from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator as coordinator
    from ray.data._internal.execution.operators import task_pool_map_operator as operator

    for name in _REPORTS:
        _replace(stats._StatsManager, name, lambda _: staticmethod(_nothing))  # noqa: SLF001
    _replace(operator, "cached_remote_fn", _with_an_end)
    _replace(coordinator, "get_or_create_autoscaling_coordinator", _looked_for)


def _replace(module: Any, name: str, by: Callable[[Any], Any]) -> None:
    setattr(module, name, by(getattr(module, name)))


def _nothing(*_: Any, **__: Any) -> None:
    """Instead of a report."""


def _with_an_end(remote_function: Any) -> Any:
    def shared(function: Any, *, _labels: Any = None, **options: Any) -> Any:
        return remote_function(function, **{"max_retries": _RETRIES} | options)

    return shared


def _looked_for(made: Any) -> Any:
    def found_or_made() -> Any:
        import ray

        try:
            return ray.get_actor(_COORDINATOR, namespace=_COORDINATOR)
        except ValueError:
            return made()

    return found_or_made
