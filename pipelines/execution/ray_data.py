"""Rows of a Ray Data dataset as they come, for somebody who must not wait for them without end.

Ray Data's own iterator comes back with a row or not at all: not while a task runs for hours, while
no node has room for it, nor while one dies and is tried again. So a thread of its own waits there.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.data import Dataset

_Row = dict[str, Any]

_ENDING_TICK_SECONDS = 0.1
_ENDING_SECONDS = 30.0


class _End:
    """Nothing more comes."""


_END = _End()


def rows_as_they_come(dataset: Dataset, tick_seconds: float) -> Generator[_Row | None, None, None]:
    """Each row in order of completion; None after every ``tick_seconds`` in which none came.

    Raises what Ray raises. Closed before the end, it ends the tasks that run or wait.
    Either way Ray Data has tidied up when it is over, and Ray may be shut down.
    """
    rows: queue.SimpleQueue[_Row | _End | BaseException] = queue.SimpleQueue()
    executors: list[Any] = []
    create = dataset._create_executor  # noqa: SLF001

    def created() -> Any:
        executors.append(create())
        return executors[-1]

    # Ray Data tells of its executor only once there is a first row. A private part of Ray 2.60:
    # where another version has none, this says so at once.
    dataset._create_executor = created  # noqa: SLF001

    def feed() -> None:
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
        # Else the dataset would hold itself until somebody collects garbage.
        vars(dataset).pop("_create_executor")


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
