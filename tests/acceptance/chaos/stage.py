"""What a chaos run plays on: two Ray nodes, or one with all of the service in one process;
PostgreSQL, a bucket, customers, their endpoints."""

from __future__ import annotations

import contextlib
import random
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from cryptography.hazmat.primitives.serialization import Encoding

from serve_app.deployment.local import free_port
from storage import keys, ledger, people
from storage.database import Connection
from storage.objects.s3 import S3Place
from storage.types import TERMINAL_EVENTS, EventType, Role
from tests.acceptance.chaos.database_server import DatabaseServer
from tests.acceptance.chaos.object_store import StoreServer, store_server
from tests.acceptance.cluster_service import Head, head_node, wait_for
from tests.acceptance.ray_nodes import START_SECONDS, RayNode, ray_node
from tests.acceptance.service import Service
from tests.pipelines.net.fetch_servers import Asked, Authority, ScriptedServer, answer
from tests.places import PROJECT
from tests.serve_app.running_api import transact
from tests.storage.s3_server import fresh_store
from tests.webhooks.receivers import Delivered, Receiver, Verifier, status

WORKER = "127.0.0.3"
CUSTOMERS = 3
CREDITS_CENTS = 10_000_000
FAILING_SHARE = 0.1
"""Of the deliveries that customers' endpoints answer badly, so that they come again."""
MARK = "VAS_CHAOS_MARK"

DEPLOYED = {
    "api_replicas": 2,
    "runners": 2,
    "runner_concurrency": 2,
    "webhook_senders": 1,
    "model_replicas": {"transcribe": 2},
}
"""Arguments of ``serve deploy``: two of what jobs cannot do without."""
ONE_PROCESS = {"runner_concurrency": 4, "import_path": "tests.acceptance.chaos.one_process:app"}
"""The same for API, runner and sender in one."""


@dataclass(frozen=True, slots=True)
class Customer:
    """An account, as its owner has it."""

    account: str
    key: str
    secret: str
    """What its webhooks are signed with."""
    owner: str
    """The session of a user who owns it."""


@dataclass(slots=True)
class Worker:
    """The second node, which may be lost and come back, each time as a new machine."""

    head: Head
    stack: contextlib.ExitStack
    nodes: list[RayNode] = field(default_factory=list)

    @property
    def node(self) -> RayNode:
        return self.nodes[-1]

    def start(self) -> None:
        """Join the cluster; returns once the head knows the node."""
        folder = self.head.folder / f"w{len(self.nodes)}"
        address = f"--address={self.head.address}"
        arguments = (WORKER, self.head.environment, "--num-cpus=1", address)
        node = self.stack.enter_context(ray_node(folder, *arguments))
        self.nodes.append(node)
        wait_for(lambda: WORKER in self.head.living(), START_SECONDS, "the second node", node)


@dataclass(frozen=True, slots=True)
class Stage:
    """The running service with everything around it."""

    head: Head
    worker: Worker | None
    """None where all of the service is one process."""
    service: Service
    database: DatabaseServer
    store: StoreServer
    footage: S3Place
    """The customers' bucket, which archives are of."""
    receiver: Receiver
    """Of the jobs' callback URLs."""
    subscriber: Receiver
    """Of the customers' endpoints, each with a secret of its own."""
    endpoints: dict[str, str]
    """Account to the id of its endpoint."""
    files: ScriptedServer
    customers: tuple[Customer, ...]
    reference: Customer
    """Whose jobs nothing disturbs; the others' results must be theirs."""
    hostile: Customer
    """Who would have the others wait."""
    mark: str
    deployed: dict[str, Any]
    """What ``serve deploy`` is given."""

    def processes(self) -> list[psutil.Process]:
        """All living processes of both nodes, whoever their parents are by now."""
        found = []
        for process in psutil.process_iter(["status"]):
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def titled(self, *titles: str) -> list[psutil.Process]:
        """Processes whose title has one of ``titles``."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if any(title in line for title in titles):
                    found.append(process)
        return found

    def temporary_folders(self) -> list[Path]:
        """Where the nodes' processes keep what is for a moment; a lost node's are lost too."""
        nodes = [self.head.node, *([] if self.worker is None else [self.worker.node])]
        return [node.folder / "tmp" for node in nodes]


@contextlib.contextmanager
def chaos_stage(
    folder: Path, clips: Path, chance: random.Random, *, one_process: bool = False
) -> Iterator[Stage]:
    """Start everything; files in ``clips`` are what URLs lead to."""
    mark = secrets.token_hex(8)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(store_server(folder / "store"))
        authority = _authority(folder / "authority")
        head = stack.enter_context(
            head_node(
                f"--num-cpus={1 + one_process}",
                ray_port=free_port(),
                store_endpoint=store.endpoint,
                VAS_ALLOWED_NETWORKS='["127.0.0.0/8"]',
                VAS_WEBHOOK_CA_FILE=str(folder / "authority" / "authority.pem"),
                VAS_LEASE_SECONDS="10",
                VAS_SOURCE_RETENTION_SECONDS="20",
                PYTHONPATH=str(PROJECT),
                **{MARK: mark},
            )
        )
        worker = None if one_process else Worker(head, stack)
        if worker is not None:
            worker.start()
        wait_for(lambda: bool(head.living()), START_SECONDS, "Ray's dashboard", head.node)
        deployed = ONE_PROCESS if one_process else DEPLOYED
        service = head.deploy(**deployed)
        customers = tuple(_customer(service, head.database_url) for _ in range(CUSTOMERS))
        secrets_of = [customer.secret for customer in customers]
        receiver = stack.enter_context(_receiver(authority, secrets_of, chance).running())
        endpoints_secrets: list[str] = []
        subscriber = _receiver(authority, endpoints_secrets, chance)
        stack.enter_context(subscriber.running())
        endpoints = {}
        for customer in customers:
            made = _endpoint(service, customer, subscriber.url)
            endpoints[customer.account] = made["id"]
            endpoints_secrets.append(made["secret"])
        yield Stage(
            head,
            worker,
            service,
            DatabaseServer(head.folder / "postgres", head.database_url),
            store,
            fresh_store(store.endpoint, prefix="").place,
            receiver,
            subscriber,
            endpoints,
            stack.enter_context(ScriptedServer(_serving(clips)).running()),
            customers,
            _customer(service, head.database_url),
            _customer(service, head.database_url),
            mark,
            deployed,
        )


def _authority(folder: Path) -> Authority:
    folder.mkdir(parents=True)
    made = Authority.new(folder)
    pem = made.certificate.public_bytes(Encoding.PEM)
    (folder / "authority.pem").write_bytes(pem)
    return made


def _customer(service: Service, database_url: str) -> Customer:
    name = f"customer-{secrets.token_hex(4)}"

    async def create(connection: Connection) -> tuple[str, str, str | None]:
        account = await keys.create_account(connection, name)
        await ledger.grant(connection, account.id, CREDITS_CENTS, "credits")
        invitation = await people.invite(
            connection, account.id, f"owner@{name}.example.com", Role.OWNER
        )
        owner = await people.accept_invitation(connection, invitation)
        token = await keys.create_sign_in_link(connection, account.id)
        return (await keys.create_key(connection, account.id)).secret, token, owner

    key, token, owner = transact(database_url, create)
    assert owner is not None
    with httpx.Client(base_url=service.base_url, trust_env=False, timeout=30) as client:
        session = client.post("/sessions", json={"token": token}).json()["data"]["session"]
        shown = client.get("/webhooks/secret", headers={"Authorization": f"Bearer {session}"})
    return Customer(name, key, shown.json()["data"]["secret"], owner)


def _endpoint(service: Service, customer: Customer, url: str) -> Any:
    headers = {"Authorization": f"Bearer {customer.key}"}
    body = {"url": url, "events": [*TERMINAL_EVENTS.values(), EventType.JOB_ERASED]}
    with httpx.Client(base_url=service.base_url, trust_env=False, timeout=30) as client:
        answer = client.post("/webhooks/endpoints", json=body, headers=headers)
    return answer.raise_for_status().json()["data"]


def _receiver(authority: Authority, secrets_of: list[str], chance: random.Random) -> Receiver:
    tls = authority.server_context("127.0.0.1")
    verifier = Verifier(secrets_of)

    def script(delivered: Delivered, connection: socket.socket) -> None:
        if chance.random() < FAILING_SHARE:
            status(chance.choice([500, 503, 429]))(delivered, connection)
        else:
            time.sleep(chance.uniform(0, 0.2))
            status(204)(delivered, connection)

    return Receiver(script, tls, verifier)


def _serving(folder: Path) -> Callable[[Asked, socket.socket], None]:
    def serve(asked: Asked, connection: socket.socket) -> None:
        path = folder / asked.target.rsplit("/", 1)[-1]
        if path.is_file():
            answer(connection, 200, path.read_bytes(), content_type="video/mp4")
        else:
            answer(connection, 404)

    return serve
