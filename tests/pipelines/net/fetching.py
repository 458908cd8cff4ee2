"""Fetching in tests: one source, quick limits, and what must be true of every failure."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from pipelines.execution.chain import FreeRun
from pipelines.net.addresses import AddressPolicy
from pipelines.net.fetch import FetchedSource, FetchLimits, fetch
from pipelines.types import StageCode, StageError
from storage.objects.folder import FolderStore
from tests.pipelines.net.fetch_servers import ScriptedServer

LOOPBACK = AddressPolicy((ipaddress.ip_network("127.0.0.0/8"),))
BODY = bytes(itertools.islice(itertools.cycle(range(251)), 300_000))
QUICK = FetchLimits(
    max_bytes=1 << 20,
    total_seconds=120,
    idle_seconds=60,
    idle_bytes=100,
    connect_seconds=60,
    header_seconds=60,
    attempts=3,
    backoff_seconds=0.02,
)
"""Tries again at once, and waits as long as a busy machine takes."""
IMPATIENT = replace(
    QUICK, total_seconds=8, idle_seconds=0.6, connect_seconds=1, header_seconds=1, attempts=1
)
"""For sources that make us wait."""
KEY = "jobs/1/source"

Serve = Callable[..., ScriptedServer]


def get(
    store: FolderStore,
    url: str,
    limits: FetchLimits = QUICK,
    **options: object,
) -> FetchedSource:
    given = {"policy": LOOPBACK, "control": FreeRun(), **options}
    return fetch(url, store=store, key=KEY, limits=limits, **given)  # type: ignore[arg-type]


def refused(store: FolderStore, url: str, limits: FetchLimits = QUICK, **options: object) -> str:
    """The sentence of a fetch that must fail and leave nothing behind."""
    with pytest.raises(StageError) as failure:
        get(store, url, limits, **options)
    assert failure.value.code == StageCode.FETCH_FAILED
    assert nothing_stored(store)
    assert "127." not in failure.value.message
    return failure.value.message


def nothing_stored(store: FolderStore) -> bool:
    return not [path for path in store.root.rglob("*") if path.is_file()]
