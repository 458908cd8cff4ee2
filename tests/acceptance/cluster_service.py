"""The service on Ray nodes of this machine: a database over TCP, a bucket, ``serve deploy``."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from pydantic import SecretStr

from serve_app.cli.accounts import demo_key
from serve_app.deployment.local import free_port
from serve_app.settings import Settings
from storage.objects.s3 import S3Store
from tests.acceptance.ray_nodes import PROGRAMS, START_SECONDS, RayNode, ray_node
from tests.acceptance.service import Service, wait_until
from tests.leftovers import short_place
from tests.places import PROJECT
from tests.storage.s3_server import fresh_store, s3_process
from tests.storage.tcp_postgres import tcp_postgres

HEAD = "127.0.0.2"
DEPLOY_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Head:
    """The first node of a cluster, and what all its nodes reach over the network."""

    node: RayNode
    folder: Path
    environment: dict[str, str]
    """Addresses and secrets, as ``vas.env`` holds them for every node."""
    address: str
    dashboard_url: str
    database_url: str
    store: S3Store

    def listed(self, kind: str, **parameters: Any) -> list[dict[str, Any]]:
        """Ray's own record of its ``kind`` (nodes, tasks)."""
        answer = httpx.get(
            f"{self.dashboard_url}/api/v0/{kind}",
            params=parameters,
            headers={"Authorization": f"Bearer {self.environment['RAY_AUTH_TOKEN']}"},
            trust_env=False,
            timeout=30,
        )
        found: list[dict[str, Any]] = answer.raise_for_status().json()["data"]["result"]["result"]
        return found

    def living(self) -> list[str]:
        """Addresses of the nodes that live; none while the dashboard does not answer."""
        try:
            nodes = self.listed("nodes")
        except httpx.HTTPError:
            return []
        return [node["node_ip"] for node in nodes if node["state"] == "ALIVE"]

    def deploy(self, **changes: Any) -> Service:
        """``serve deploy`` of the project's file with other arguments; waits for its answer."""
        port = free_port()
        self.serve_deploy(port, changes)
        root = f"http://127.0.0.1:{port}"
        wait_for(lambda: _answers(root), DEPLOY_SECONDS, "the service answers", self.node)
        settings = Settings(
            database_url=self.database_url,
            data_dir=self.folder / "operator",
            secret_key=SecretStr(self.environment["VAS_SECRET_KEY"]),
        )
        key = demo_key(settings)
        return Service(self.node.process, f"{root}/v1/api", key, self.node.data, port)

    def serve_deploy(self, port: int, changes: dict[str, Any]) -> None:
        """``serve deploy``; a service that runs on the port is replaced replica by replica."""
        target = self.folder / "serve_config.yaml"
        target.write_text(_config(port, changes))
        command = [str(PROGRAMS / "serve"), "deploy", "--address", self.dashboard_url, str(target)]
        ended = subprocess.run(
            command,
            env=self.node.environment,
            capture_output=True,
            text=True,
            timeout=DEPLOY_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr


@contextlib.contextmanager
def head_node(
    *arguments: str, ray_port: int, store_endpoint: str | None = None, **environment: str
) -> Iterator[Head]:
    """A head that takes nodes, with ``arguments`` of ``ray start``; all of it ends with the block.

    ``environment`` is for every node; ``store_endpoint`` for a server of objects that runs already.
    """
    with contextlib.ExitStack() as stack:
        # Sockets of Ray and HAProxy lie below it, and their paths must be short.
        folder = Path(tempfile.mkdtemp(prefix="vas-", dir=short_place(tempfile.gettempdir())))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        database_url = stack.enter_context(tcp_postgres(folder / "postgres"))
        store = fresh_store(store_endpoint or stack.enter_context(s3_process()))
        common = _environment_of_nodes(database_url, store) | environment
        dashboard_port = free_port()
        ports = {"port": ray_port, "dashboard-port": dashboard_port}
        ports["ray-client-server-port"] = free_port()
        options = [f"--{name}={value}" for name, value in ports.items()]
        node = stack.enter_context(
            ray_node(folder / "1", HEAD, common, "--head", *options, *arguments)
        )
        wait_for(lambda: _listens(ray_port), START_SECONDS, "Ray takes nodes", node)
        dashboard_url = f"http://127.0.0.1:{dashboard_port}"
        address = f"{HEAD}:{ray_port}"
        yield Head(node, folder, common, address, dashboard_url, database_url, store)


def _environment_of_nodes(database_url: str, store: S3Store) -> dict[str, str]:
    place = store.place
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "VAS_DATABASE_URL": database_url,
        "VAS_SECRET_KEY": secrets.token_urlsafe(48),
        "VAS_S3_BUCKET": place.bucket,
        "VAS_S3_PREFIX": "ours",
        "VAS_S3_ENDPOINT_URL": place.endpoint_url or "",
        "VAS_S3_ACCESS_KEY_ID": place.access_key_id or "",
        "VAS_S3_SECRET_ACCESS_KEY": place.secret_access_key or "",
        "VAS_SEGMENT_SECONDS": "3",
        "VAS_TRANSCRIPT_SHARD_SECONDS": "4",
    }


def _config(port: int, changes: dict[str, Any]) -> str:
    """The project's file but for the port, the arguments, most of which need a GPU, and where
    ``changes`` have an ``import_path`` the graph."""
    changes = {**changes}
    config = yaml.safe_load((PROJECT / "serve_config.yaml").read_text())
    config["http_options"]["port"] = port
    [application] = config["applications"]
    application["import_path"] = changes.pop("import_path", application["import_path"])
    application["args"] = {"model_profile": "packaged"} | changes
    text: str = yaml.safe_dump(config)
    return text


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HEAD, port)) == 0


def _answers(root: str) -> bool:
    try:
        return bool(httpx.get(f"{root}/health", trust_env=False, timeout=5).is_success)
    except httpx.HTTPError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float, what: str, node: RayNode) -> None:
    """``wait_until``; a failure shows what the node printed last."""
    try:
        wait_until(condition, seconds, what)
    except AssertionError as error:
        error.add_note(node.log()[-3000:])
        raise
