"""One running API with the limits that the specification states, for the whole suite."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path

import psycopg
import pytest

from serve_app.settings import Settings
from tests.api.conftest import SECRET
from tests.contract.calling import Caller, ContractApi
from tests.contract.runner_side import RunnerSide


@contextmanager
def fresh_settings(postgres_url: str, folder: Path) -> Iterator[Settings]:
    """Settings over a database of their own; beside that, as delivered.

    Loopback is allowed, so that tests can stand behind callbacks; one camera RAW
    family is enabled, so that its tier can be reached.
    """
    name = f"contract_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template_vas')
        yield Settings(
            data_dir=folder,
            database_url=postgres_url.replace("/postgres?", f"/{name}?"),
            secret_key=SECRET,
            raw_decoders={"r3d": "decode {input} {output}"},
            allowed_networks=(ip_network("127.0.0.0/8"),),
        )
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(scope="session")
def contract_settings(
    postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    with fresh_settings(postgres_url, tmp_path_factory.mktemp("contract")) as settings:
        yield settings


@pytest.fixture(scope="session")
def api(contract_settings: Settings) -> Iterator[ContractApi]:
    """The running API."""
    with ContractApi(contract_settings) as running:
        yield running


@pytest.fixture(scope="session")
def strict_api(contract_settings: Settings) -> Iterator[ContractApi]:
    """A replica whose operator allows no private network at all."""
    with ContractApi(contract_settings.model_copy(update={"allowed_networks": ()})) as running:
        yield running


@pytest.fixture(scope="session")
def runner(api: ContractApi) -> RunnerSide:
    """What runners and the reaper would do."""
    return RunnerSide(api)


@pytest.fixture
def caller(api: ContractApi) -> Caller:
    """A new account with credits, calling with its key."""
    return api.caller()
