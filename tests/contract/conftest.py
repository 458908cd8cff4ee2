"""One running API with the limits that the specification states, for the whole suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serve_app.jobs import events
from tests.contract.calling import Caller, ContractApi, fresh_api
from tests.contract.runner_side import RunnerSide


@pytest.fixture(scope="session")
def api(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContractApi]:
    """The running API."""
    with fresh_api(postgres_url, tmp_path_factory.mktemp("contract")) as running:
        yield running


@pytest.fixture(autouse=True, scope="module")
def short_streams() -> Iterator[None]:
    """Whoever follows a job is let go soon: callers here read whole answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "STREAM_SECONDS", 0.2)
        yield


@pytest.fixture(scope="session")
def strict_api(api: ContractApi) -> Iterator[ContractApi]:
    """A replica whose operator allows no private network at all."""
    with ContractApi(api.settings.model_copy(update={"allowed_networks": ()})) as running:
        yield running


@pytest.fixture(scope="session")
def runner(api: ContractApi) -> RunnerSide:
    """What runners and the reaper would do."""
    return RunnerSide(api)


@pytest.fixture
def caller(api: ContractApi) -> Caller:
    """A new account with credits, calling with its key."""
    return api.caller()
