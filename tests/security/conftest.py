"""One running API as delivered, and two customers with everything that an account can have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.calling import ContractApi, fresh_api
from tests.contract.runner_side import RunnerSide
from tests.security.furnished_accounts import FurnishedAccount


@pytest.fixture(scope="session")
def api(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContractApi]:
    """The running API; no private network is allowed."""
    folder = tmp_path_factory.mktemp("secured")
    changes = {"allowed_networks": (), "upload_lifetime_seconds": 600}
    with fresh_api(postgres_url, folder, **changes) as running:
        yield running


@pytest.fixture(scope="session")
def runner(api: ContractApi) -> RunnerSide:
    """What runners and the reaper would do."""
    return RunnerSide(api)


@pytest.fixture(scope="module")
def own(api: ContractApi, runner: RunnerSide) -> FurnishedAccount:
    """The account that asks."""
    return FurnishedAccount.furnish(api, runner, "own")


@pytest.fixture(scope="module")
def foreign(api: ContractApi, runner: RunnerSide) -> FurnishedAccount:
    """The account that it must learn nothing of."""
    return FurnishedAccount.furnish(api, runner, "foreign")
