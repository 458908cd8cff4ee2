"""The running API, and a customer who calls it; what a refusal must look like to the letter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any, TypeVar

import httpx

from serve_app.settings import Settings
from storage import keys
from storage.database import Connection
from tests.databases import fresh_database
from tests.serve_app.running_api import SECRET, Customer, RunningApi

Result = TypeVar("Result")
RATE_HEADERS = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")


class ContractApi(RunningApi):
    """The API on a socket, and those who call it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._visitors = 0

    def operator_session(self) -> str:
        """The token of a session of the operator."""

        async def exchange(connection: Connection) -> str | None:
            link = await keys.create_operator_link(connection)
            return await keys.exchange_operator_link(connection, link)

        session = self.transact(exchange)
        assert session is not None
        return session

    def discover(self, path: str, address: str | None = None, **query: Any) -> httpx.Response:
        """A request without a key, from an address of its own unless one is given."""
        self._visitors += 1
        shown_address = address or f"198.18.{self._visitors // 250}.{self._visitors % 250 + 1}"
        headers = {"X-Forwarded-For": shown_address}
        return self.client.get(path, headers=headers, params=query or None)

    def caller(self, credits_cents: int = 1000) -> Caller:
        """A new customer, ready to call."""
        return Caller(self, self.customer(credits_cents))


@contextmanager
def fresh_api(postgres_url: str, folder: Path, **changes: Any) -> Iterator[ContractApi]:
    """A running API over a database of its own; but for the changes, set as delivered.

    Loopback is allowed, so that tests can stand behind callbacks; one camera RAW
    family is enabled, so that its tier can be reached.
    """
    with fresh_database(postgres_url) as url:
        settings = Settings(
            data_dir=folder,
            database_url=url,
            secret_key=SECRET,
            raw_decoders={"r3d": "decode {input} {output}"},
            allowed_networks=(ip_network("127.0.0.0/8"),),
        )
        with ContractApi(settings.model_copy(update=changes)) as api:
            yield api


@dataclass(frozen=True, slots=True)
class Caller:
    """A customer and the API: one account, one key, one place to ask from."""

    api: ContractApi
    customer: Customer

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A request with the key; ``headers`` are added to it."""
        headers = {"X-API-Key": self.customer.key} | options.pop("headers", {})
        return self.api.client.request(method, path, headers=headers, **options)

    def get(self, path: str, **query: Any) -> httpx.Response:
        return self.ask("GET", path, params=query or None)

    def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """``headers`` in the form ``idempotency_key="…"``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", path, json=body, headers=named)

    def create(self, **body: Any) -> Any:
        """A new upload job, as shown."""
        return shown(self.post("/jobs", {"fileName": "clip.mp4"} | body))

    def job(self, job_id: str, include: str = "none") -> Any:
        return shown(self.get(f"/jobs/{job_id}", include=include))

    def sign_in(self) -> dict[str, str]:
        """The header of a dashboard session."""
        token = self.api.transact(lambda c: keys.create_sign_in_link(c, self.customer.account_id))
        answer = self.api.client.post("/sessions", json={"token": token})
        return {"Authorization": f"Bearer {shown(answer)['session']}"}


def shown(answer: httpx.Response) -> Any:
    """``data`` of a success; fails for anything else."""
    assert answer.is_success, answer.text
    return answer.json()["data"]


def refusal(
    answer: httpx.Response,
    status: int,
    code: str,
    *,
    param: str | None = None,
    retry_after: str | None = None,
    **extra: Any,
) -> dict[str, Any]:
    """The body of an error answer, held to the envelope: these fields and no others."""
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["code"]) == (status, code), body
    expected = {"error", "code", "docUrl", "requestId", *extra}
    assert set(body) == expected | ({"param"} if param is not None else set()), body
    assert body.get("param") == param
    assert {name: body[name] for name in extra} == extra
    assert body["requestId"] == answer.headers["x-request-id"]
    assert answer.headers.get("retry-after") == retry_after
    return body
