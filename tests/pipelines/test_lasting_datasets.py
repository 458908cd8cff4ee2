"""Datasets leave nothing behind in the process that runs them, nor in the cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipelines.execution.chain import FreeRun, Row
from pipelines.execution.mapping import Mapped, map_on_ray
from pipelines.types import StageCode

pytestmark = pytest.mark.usefixtures("ray_session")


def run_a_chain(word: str) -> None:
    """A dataset whose step is new, as that of every job is."""

    def step(row: Row) -> Row:
        return {"index": row["index"], "said": word}

    mapped = Mapped(step, "Saying", StageCode.VISION_FAILED)
    rows = map_on_ray([{"index": 0}, {"index": 1}], [mapped], FreeRun())
    assert {row["said"] for row in rows} == {word}


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
