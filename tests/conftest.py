"""Fixtures shared by all tests: a real PostgreSQL, real media where they are there."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

import models  # noqa: F401  (before any test imports onnxruntime: its telemetry is off then)
from storage.database import Database
from tests.databases import fresh_database, server_with_template
from tests.examples import EVERY_EXAMPLE, FEWER_EXAMPLES
from tests.leftovers import Leftovers
from tests.places import SHARED_MEDIA

WHOLE_SERVICE = "tests/acceptance/"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--long`` is the difference between ``make test`` and ``make test-all``."""
    parser.addoption(
        "--long",
        action="store_true",
        help="also run tests marked long, and generated examples in full number",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Whoever starts the run looks at its end for what was left behind."""
    settings.load_profile(EVERY_EXAMPLE if config.getoption("--long") else FEWER_EXAMPLES)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Leftovers(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests need ``--long``; those that use the collection of real media need it there."""
    if not config.getoption("--long"):
        long = [item for item in items if "long" in item.keywords]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if "long" not in item.keywords]
    if SHARED_MEDIA.is_dir():
        return
    skip = pytest.mark.skip(reason="the collection of real media is not beside the project")
    for item in items:
        if "shared_media" in item.keywords:
            item.add_marker(skip)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What failed is said when it fails: the whole suite takes its time to come to its summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(
            f"\nFAILED {report.nodeid} ({report.when})\n{report.longreprtext[-1500:]}", flush=True
        )


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """A file of tests to a worker; all that start the whole service to one.

    Two services at once would keep each other from being in time.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return WHOLE_SERVICE if path.startswith(WHOLE_SERVICE) else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Where tests run beside each other."""
    return _ByFile(config, log)


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server for all tests of this process; see ``fresh_database`` for what to use of it."""
    with server_with_template(tmp_path_factory.mktemp("postgres") / "pg") as url:
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
