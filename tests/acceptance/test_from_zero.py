"""The node types of cluster.yaml under Ray's autoscaler: a job brings a node, and it goes again.

Ray's provider for tests starts real raylets on this machine in place of machines of a cloud.
Takes minutes on two cores.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config

from serve_app.deployment.local import free_port
from tests.acceptance.cluster_service import HEAD, head_node, wait_for
from tests.acceptance.ray_nodes import START_SECONDS
from tests.places import DEMO, PROJECT

pytestmark = [pytest.mark.service, pytest.mark.long, pytest.mark.timeout(560)]

IDLE_SECONDS = 15
MOST_OF_A_RESOURCE = 2
"""That a node of this machine pretends to have."""


def local_config(ray_address: str) -> dict[str, Any]:
    """cluster.yaml with nodes on this machine: small, and with nothing to set up."""
    # Ray's loader fills in what the monitor takes for granted.
    config: dict[str, Any] = prepare_config(yaml.safe_load((PROJECT / "cluster.yaml").read_text()))
    types = {
        name: each
        | {
            "node_config": {},
            "resources": {
                resource: min(amount, MOST_OF_A_RESOURCE)
                for resource, amount in each["resources"].items()
            },
        }
        for name, each in config["available_node_types"].items()
    }
    types["ray.head.default"] = types.pop(config["head_node_type"])
    lists = [name for name, value in config.items() if isinstance(value, list)]
    return (
        config
        | {key: [] for key in lists}
        | {
            "available_node_types": types,
            "head_node_type": "ray.head.default",
            "idle_timeout_minutes": IDLE_SECONDS / 60,
            "file_mounts": {},
            "docker": {},
            "provider": {
                "type": "fake_multinode",
                "gcs_address": ray_address,
                "use_node_id_as_ip": True,
                "disable_node_updaters": True,
                "disable_launch_config_check": True,
            },
        }
    )


def test_a_job_brings_a_node_which_goes_when_nothing_is_left_to_do(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "cluster.json"
    config.write_text(json.dumps(local_config(f"{HEAD}:{port}")))
    with head_node(
        "--num-cpus=0",
        '--resources={"service": 1}',
        f"--autoscaling-config={config}",
        ray_port=port,
        RAY_FAKE_CLUSTER="1",
        AUTOSCALER_UPDATE_INTERVAL_S="1",
    ) as head:
        wait_for(lambda: len(head.living()) == 1, START_SECONDS, "a head", head.node)
        service = head.deploy(service_resource="service", model_replicas={"transcribe": 1})
        assert head.living() == [HEAD]
        job = service.submit(DEMO)
        wait_for(lambda: len(head.living()) > 1, 120, "a node for the shards", head.node)
        service.completed(job)
        wait_for(lambda: head.living() == [HEAD], 240, "every node goes", head.node)
