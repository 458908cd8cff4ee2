"""The running API with payments on, and room for many jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serve_app.settings import Settings
from tests.contract.calling import Caller, ContractApi
from tests.contract.runner_side import RunnerSide
from tests.databases import fresh_database
from tests.money.stripe_side import STRIPE_SECRET
from tests.serve_app.running_api import SECRET


@pytest.fixture(scope="module")
def money_url(postgres_url: str) -> Iterator[str]:
    """A migrated database of this module's own."""
    with fresh_database(postgres_url) as url:
        yield url


@pytest.fixture(scope="module")
def settings(money_url: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """As delivered, but for many active jobs and a payment provider."""
    return Settings(
        data_dir=tmp_path_factory.mktemp("money"),
        database_url=money_url,
        secret_key=SECRET,
        max_active_jobs=500,
        payment_provider="stripe",
        stripe_webhook_secret=STRIPE_SECRET,
    )


@pytest.fixture(scope="module")
def api(settings: Settings) -> Iterator[ContractApi]:
    """The running API."""
    with ContractApi(settings) as running:
        yield running


@pytest.fixture(scope="module")
def runner(api: ContractApi) -> RunnerSide:
    """What runners and the reaper would do."""
    return RunnerSide(api)


@pytest.fixture
def caller(api: ContractApi) -> Caller:
    """A new account with 1000 cents, calling with its key."""
    return api.caller()
