"""``kill -9`` in the middle of erasing: all of it is done, or begins again and is done then."""

from __future__ import annotations

import multiprocessing
import signal
import uuid

import pytest

from tests.serve_app import eraser_process
from tests.serve_app.beside_jobs import make_due
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_erasing import MARKER, erase, job, places_of, rows_of
from tests.serve_app.test_retention import fill, remove

__all__ = ["job"]

MOMENTS = (2, 5, 8, 11, 14, 17, 19, 21, 22, 23)


@pytest.mark.parametrize(
    "moment", [pytest.param(each, marks=pytest.mark.long) for each in MOMENTS[1:-1]]
    + [MOMENTS[0], MOMENTS[-1]],
)  # fmt: skip
def test_nothing_is_left_of_a_job_whose_erasing_was_killed(
    api: RunningApi, customer: Customer, job: str, moment: int
) -> None:
    store = api.context.objects
    fill(store, job)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.serve_app.eraser_process"])
    arguments = (api.settings, customer.account_id, job, moment)
    victim = processes.Process(target=eraser_process.erase, args=arguments)
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL, "the moment comes after the end"
    begun = rows_of(api, "SELECT erased_at FROM jobs WHERE id = :id", id=uuid.UUID(job))[0][0]
    assert bool(places_of(api, MARKER)) == (not begun)
    if not begun:  # All of it is there still, and the client has no answer: it comes again.
        erase(api, customer, job)
    assert places_of(api, MARKER) == set()
    # The lease of who was killed ends by itself after two minutes.
    make_due(api)
    remove(api, store)
    assert list(store.list_keys(f"jobs/{job}")) in ([], [f"jobs/{job}/work/stop-1"])
    assert list(store.list_partials(f"jobs/{job}")) == []
