"""Two Ray nodes that share nothing but the network, one of which is lost in the middle of a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from serve_app.deployment.local import free_port
from tests.acceptance.cluster_service import HEAD, Head, head_node, wait_for
from tests.acceptance.ray_nodes import START_SECONDS, RayNode, ray_node
from tests.acceptance.service import Service, wait_until
from tests.places import DEMO
from tests.storage.s3_server import everything_in

pytestmark = [pytest.mark.service, pytest.mark.long, pytest.mark.timeout(900)]

WORKER = "127.0.0.3"
SHARD = "Map("
"""How Ray Data names the tasks that work on segments and stretches of speech."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Two nodes with the service on them."""

    head: Head
    worker: RayNode
    service: Service

    def shards(self, *, running: bool = False) -> dict[str, set[str]]:
        """Address of a node to the ids of shards that ran there, or that run there now."""
        addresses = {node["node_id"]: node["node_ip"] for node in self.head.listed("nodes")}
        found: dict[str, set[str]] = {HEAD: set(), WORKER: set()}
        for task in self.head.listed("tasks", limit=10_000):
            if SHARD in task["name"] and (not running or task["state"] == "RUNNING"):
                found.get(addresses.get(task["node_id"], ""), set()).add(task["task_id"])
        return found


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with head_node("--num-cpus=1", ray_port=free_port()) as head:
        address = f"--address={head.address}"
        # As on Kubernetes, where worker pods have nothing of the service's secret.
        theirs = {name: v for name, v in head.environment.items() if not name.startswith("VAS_")}
        arguments = (WORKER, theirs, "--num-cpus=1", address)
        with ray_node(head.folder / "2", *arguments) as worker:
            wait_for(lambda: len(head.living()) == 2, START_SECONDS, "two nodes", worker)
            yield Cluster(head, worker, head.deploy(model_replicas={"transcribe": 2}))


def test_a_job_survives_the_loss_of_a_node_on_which_its_shards_ran(cluster: Cluster) -> None:
    undisturbed = cluster.service.submit(DEMO)
    cluster.service.completed(undisturbed)
    earlier = cluster.shards()
    assert earlier[HEAD]
    assert earlier[WORKER]

    disturbed = cluster.service.submit(DEMO)

    def runs_on_both() -> bool:
        ran, runs = cluster.shards(), cluster.shards(running=True)
        return bool(ran[HEAD] - earlier[HEAD] and runs[WORKER] - earlier[WORKER])

    wait_until(runs_on_both, 300, "shards of the second job on both nodes")
    cluster.worker.kill()
    cluster.service.completed(disturbed)
    assert cluster.service.results(disturbed) == cluster.service.results(undisturbed)
    assert [key for key in everything_in(cluster.head.store) if disturbed in key]
    assert not cluster.head.node.data.exists()
    assert not cluster.worker.data.exists()
