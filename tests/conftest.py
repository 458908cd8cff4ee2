"""Fixtures shared by all tests: a real PostgreSQL, real media where they are there."""

from __future__ import annotations

import functools
import gc
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

import models  # noqa: F401  (before any test imports onnxruntime: its telemetry is off then)
from pipelines.ingest import preview
from pipelines.sandbox.parent import ConfinedTask
from storage.database import Database
from tests.background import restore_signals
from tests.databases import fresh_database, place_of_server, server_with_template
from tests.examples import EVERY_EXAMPLE, FEWER_EXAMPLES
from tests.leftovers import Leftovers
from tests.places import PROJECT, SHARED_MEDIA

# All that is imported and collected stays: no collector needs to look through it meanwhile.
gc.disable()

WHOLE_SERVICE = "tests/acceptance/"
RAY = "ray_session"
"""The fixture with a Ray in this process, and the name of the group of files that use it."""
_GROUP = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--long`` is the difference between ``make test`` and ``make test-all``."""
    parser.addoption(
        "--long",
        action="store_true",
        help="also run tests marked long, and generated examples in full number",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Whoever starts the run looks at its end for what was left behind."""
    restore_signals()
    # Ray's workers give way to all others (nice 15): beside other tests they would hardly run.
    os.environ.setdefault("RAY_worker_niceness", "0")
    settings.load_profile(EVERY_EXAMPLE if config.getoption("--long") else FEWER_EXAMPLES)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Leftovers(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests need ``--long``; those that use the collection of real media need it there."""
    if not config.getoption("--long"):
        long = [item for item in items if "long" in item.keywords]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if "long" not in item.keywords]
    # The longest groups first, so that no worker is left alone with one at the end.
    first = {WHOLE_SERVICE: 0, RAY: 1}
    items.sort(key=lambda item: first.get(_group_of(item.nodeid), len(first)))
    if SHARED_MEDIA.is_dir():
        return
    skip = pytest.mark.skip(reason="the collection of real media is not beside the project")
    for item in items:
        if "shared_media" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """From here on garbage is collected as usual, but for what was collected of tests."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what each file took, so that what the suite costs is known where it runs."""
    seconds: Counter[str] = Counter()
    for report in (each for found in terminalreporter.stats.values() for each in found):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]
    if len(seconds) > 1:
        terminalreporter.section(f"seconds of each file, {sum(seconds.values()):.0f} in all")
        for name, took in seconds.most_common():
            terminalreporter.write_line(f"{took:8.1f}  {name}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What failed is said when it fails: the whole suite takes its time to come to its summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(
            f"\nFAILED {report.nodeid} ({report.when})\n{report.longreprtext[-1500:]}", flush=True
        )


def _group_of(nodeid: str) -> str:
    """The file of a test, or a group of files that share what takes long to start."""
    return _group_of_file(nodeid.partition("::")[0])


@functools.cache
def _group_of_file(path: str) -> str:
    if path.startswith(WHOLE_SERVICE):
        return WHOLE_SERVICE
    file = PROJECT / path
    return RAY if file.is_file() and RAY in file.read_text() else path


class _ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """A group of tests to a worker.

    Two services at once would keep each other from being in time, and two Rays cost twice as much.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Where tests run beside each other."""
    return _ByGroup(config, log)


@pytest.fixture(scope="session")
def until_group_ends(request: pytest.FixtureRequest) -> Iterator[ExitStack]:
    """For what the tests of a group share: it ends with them, and takes no time from the others."""
    with ExitStack() as stack:
        request.session.stash[_GROUP] = stack
        yield stack


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The end of a group, once the fixtures of its last test have ended."""
    stack = item.session.stash.get(_GROUP, None)
    if stack and (nextitem is None or _group_of(nextitem.nodeid) != _group_of(item.nodeid)):
        stack.close()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A server for all tests of this process; see ``fresh_database`` for what to use of it."""
    with place_of_server() as folder, server_with_template(folder / "pg") as url:
        yield url


@pytest.fixture
def database_url(postgres_url: str) -> Iterator[str]:
    """A fresh, migrated database of this test's own."""
    with fresh_database(postgres_url) as url:
        yield url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A pool on this test's own database."""
    pool = Database(database_url)
    yield pool
    await pool.close()


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """A server of S3 for all tests of this process, each with buckets of its own."""
    from tests.storage.s3_server import s3_endpoint

    with s3_endpoint() as address:
        yield address


@pytest.fixture
def previews_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Previews are made of idle processor time, of which there is none beside other tests."""

    def task(**given: Any) -> ConfinedTask:
        return ConfinedTask(**(given | {"gives_way": False}))

    monkeypatch.setattr(preview, "ConfinedTask", task)
