"""What Ray Data does for ever with each dataset, done no longer: a service makes datasets for ever.

Ray 2.60 tries a task again, without end, whose worker or node is lost: what kills its worker each
time would never end. Here it is tried four times. (``Dataset.map`` takes a limit as one of the
``ray_remote_args`` that Ray 2.64 is to have no more.)

It keeps of a dataset, until the process or the cluster ends:

- time series of more than 80 metrics for each operator, in the actor that collects them and in the
  agent of the node (ray-project/ray, issue 65029): most of 2.6 MB a job over a soak of 500. What
  is said of jobs, the service measures itself, so these reports are not sent.
- a remote function of its own, because the operator's id is among what the function is looked up
  by: in the driver, and as pickled code in the GCS until the Ray job ends (issue 63666). Each call
  sets that label anyway, so it is left out of the function's own.
- a class of the actor that all datasets share: looked for before it is made again.

Measured by ``tests/benchmarks/soak.py``. These are private parts of Ray: where another version does
not have them, this says so at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

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
    """Datasets that this process runs from now on leave nothing behind; once a process.

    Raises AttributeError or ImportError where Ray has no such parts.
    """
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
