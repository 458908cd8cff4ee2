"""``deploy/`` against settings, metrics, ``cluster.yaml`` and ``serve_config.yaml``.

The Dockerfile is carried out in ``tests/acceptance/test_image.py``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_app import __version__
from serve_app.deployment.application import STOP_SECONDS
from serve_app.observability.metrics import CATALOGUE
from serve_app.settings import Settings
from tests.acceptance.image_root import Image, instructions
from tests.places import PROJECT
from tests.tables import every

DEPLOY = PROJECT / "deploy"
IMAGE = "video-analysis-service"
PORTS_OF_CLIENTS = {8000}


def documents(name: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((DEPLOY / name).read_text()) if each]


def only(name: str) -> dict[str, Any]:
    [document] = documents(name)
    return document


# Images


def last_stage() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for each in instructions():
        found = [] if each.name == "FROM" else [*found, (each.name, each.rest)]
    return found


def test_the_image_runs_as_a_user_under_tini_and_is_asked_for_its_health() -> None:
    stage = dict(last_stage())
    assert stage["USER"] == "vas"
    assert stage["ENTRYPOINT"] == '["tini", "--"]'
    assert "tini" in (DEPLOY / "install-system.sh").read_text()
    image = Image(DEPLOY, described=stage)
    assert image.exec_form("CMD") == ["vas", "serve"]
    program = image.exec_form("HEALTHCHECK")
    assert "/healthz" in program[-1]
    compile(program[-1], "HEALTHCHECK", "exec")


def test_everything_that_the_image_copies_is_sent_to_the_builder() -> None:
    sent = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [each.rest.split()[:-1] for each in instructions() if each.name == "COPY"]
    names = {name for words in copied for name in words if not words[0].startswith("--from")}
    assert names >= {"requirements", "serve_app", "pipelines", "models", "storage"}
    for name in names:
        assert (PROJECT / name).exists(), name
        assert f"!{name}" in sent or (name.startswith("deploy/") and "!deploy/*.sh" in sent), name


@every(
    "path",
    [
        "deploy/Dockerfile",
        "deploy/compose.yaml",
        "deploy/kubernetes/kustomization.yaml",
        "deploy/kubernetes/backfill.yaml",
        "cluster.yaml",
    ],
)
def test_every_place_that_names_the_image_names_this_version(path: str) -> None:
    text = (PROJECT / path).read_text()
    versions = re.findall(rf"{IMAGE}(?:-cuda)?:([\w.]+)", text) + re.findall(
        r"newTag: ([\w.]+)", text
    )
    assert set(versions) == {__version__}


# One machine


def test_the_composition_sets_only_settings_that_there_are() -> None:
    service = only("compose.yaml")["services"]["service"]
    known = {f"VAS_{field.upper()}" for field in Settings.model_fields}
    assert service["environment"].keys() <= known
    assert service["image"] == f"{IMAGE}:{__version__}"


def test_the_composition_opens_ports_on_loopback_only_and_waits_for_a_stop() -> None:
    services = only("compose.yaml")["services"]
    ports = [port for each in services.values() for port in each.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert int(services["service"]["stop_grace_period"].removesuffix("s")) > STOP_SECONDS


def test_every_secret_of_the_composition_is_asked_for_in_its_example() -> None:
    asked = set(re.findall(r"\$\{(\w+):\?\}", (DEPLOY / "compose.yaml").read_text()))
    example = (DEPLOY / "compose.env.example").read_text()
    assert asked == set(re.findall(r"^(\w+)=$", example, re.MULTILINE))


def test_prometheus_scrapes_the_port_that_the_service_is_given_and_grafana_finds_both() -> None:
    services = only("compose.yaml")["services"]
    [job] = only("prometheus/prometheus.yml")["scrape_configs"]
    port = services["service"]["environment"]["VAS_METRICS_PORT"]
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{port}"]}]
    assert services["prometheus"]["network_mode"] == "service:service"
    for volume in (*services["prometheus"]["volumes"], *services["grafana"]["volumes"]):
        source = volume.split(":")[0]
        if source.startswith("."):
            assert (DEPLOY / source).exists(), source
    [provider] = only("grafana/dashboards/video-analysis-service.yaml")["providers"]
    assert any(provider["options"]["path"] in each for each in services["grafana"]["volumes"])


def test_the_root_of_the_object_store_is_known_to_it_and_to_what_makes_the_bucket_alone() -> None:
    services = only("compose.yaml")["services"]
    root = services["objects"]["environment"]
    assert services["bucket"]["environment"].items() >= root.items()
    names = {
        name
        for name, each in services.items()
        if not root.keys().isdisjoint(each.get("environment", {}))
        or root["MINIO_ROOT_PASSWORD"] in str(each)
    }
    assert names == {"objects", "bucket"}
    ours = services["service"]["environment"]
    assert ours["VAS_S3_ACCESS_KEY_ID"] != root["MINIO_ROOT_USER"]


MC = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$*" in
    "admin policy attach"*) [ -z "$ATTACHED" ] ;;
    "admin user info"*) echo "$ATTACHED" ;;
esac
"""


@pytest.mark.parametrize(
    ("attached", "succeeds"),
    [("", True), ("PolicyName: video-analysis", True), ("PolicyName: other", False)],
    ids=["new", "again", "another's"],
)
def test_the_services_user_gets_the_buckets_policy_and_no_other(
    tmp_path: Path, attached: str, succeeds: bool
) -> None:
    """The container's script, with the far side, MinIO's client, played."""
    services = only("compose.yaml")["services"]
    *shell, script = services["bucket"]["entrypoint"]
    (tmp_path / "mc").write_text(MC)
    (tmp_path / "mc").chmod(0o755)
    calls = tmp_path / "calls"
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CALLS": str(calls),
        "ATTACHED": attached,
        "MINIO_ROOT_USER": "root",
        "MINIO_ROOT_PASSWORD": "r$",
        "S3_SECRET_ACCESS_KEY": "s$",
    }
    command = [*shell, script.replace("$$", "$")]
    done = subprocess.run(command, env=environment, timeout=30, check=False)
    assert (done.returncode == 0) is succeeds
    bucket = services["service"]["environment"]["VAS_S3_BUCKET"]
    user = services["service"]["environment"]["VAS_S3_ACCESS_KEY_ID"]
    assert calls.read_text().splitlines()[:5] == [
        "alias set own http://objects:9000 root r$",
        f"mb --ignore-existing own/{bucket}",
        f"admin policy create own {bucket} /bucket-policy.json",
        f"admin user add own {user} s$",
        f"admin policy attach own {bucket} --user {user}",
    ]
    [mounted] = services["bucket"]["volumes"]
    assert mounted == "./bucket-policy.json:/bucket-policy.json:ro"


def test_the_policy_of_the_bucket_permits_what_the_documentation_names_and_nothing_else() -> None:
    statements = json.loads((DEPLOY / "bucket-policy.json").read_text())["Statement"]
    assert {each["Effect"] for each in statements} == {"Allow"}
    permitted = {each["Resource"].rpartition(":")[2]: set(each["Action"]) for each in statements}
    text = (PROJECT / "docs/operations.md").read_text()
    section = re.search(r"- Permissions: (.*?) on\s+objects; (.*?) on the bucket", text, re.DOTALL)
    assert section is not None
    on_objects, on_bucket = (
        {f"s3:{name}" for name in re.findall(r"`(?:s3:)?(\w+)`", each)} for each in section.groups()
    )
    bucket = only("compose.yaml")["services"]["service"]["environment"]["VAS_S3_BUCKET"]
    assert permitted == {f"{bucket}/*": on_objects, bucket: on_bucket}


# Kubernetes


def clusters() -> list[dict[str, Any]]:
    return [
        only("kubernetes/service.yaml")["spec"]["rayClusterConfig"],
        only("kubernetes/backfill.yaml")["spec"]["rayClusterSpec"],
    ]


def groups(cluster: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Node types by their names in cluster.yaml."""
    return {
        "head": cluster["headGroupSpec"],
        **{each["groupName"]: each for each in cluster["workerGroupSpecs"]},
    }


def containers(group: dict[str, Any]) -> list[dict[str, Any]]:
    pod = group["template"]["spec"]
    return [*pod.get("initContainers", ()), *pod["containers"]]


def test_kubernetes_deploys_the_application_of_serve_config() -> None:
    service = only("kubernetes/service.yaml")["spec"]
    ours = yaml.safe_load((PROJECT / "serve_config.yaml").read_text())
    assert yaml.safe_load(service["serveConfigV2"]) == ours


def test_the_node_types_of_kubernetes_are_those_of_the_cluster() -> None:
    cluster = yaml.safe_load((PROJECT / "cluster.yaml").read_text())
    service, backfill = clusters()
    assert groups(service).keys() == cluster["available_node_types"].keys()
    for name, ours in cluster["available_node_types"].items():
        group = groups(service)[name]
        assert {key: int(value) for key, value in group["resources"].items()} == ours["resources"]
        if name != cluster["head_node_type"]:
            bounds = (group["minReplicas"], group["maxReplicas"])
            assert bounds == (ours["min_workers"], ours["max_workers"])
    for options in (service["autoscalerOptions"], backfill["autoscalerOptions"]):
        assert options["idleTimeoutSeconds"] == cluster["idle_timeout_minutes"] * 60
    theirs, processors = groups(service)["processors"], groups(backfill)["processors"]
    for field in ("resources", "minReplicas", "maxReplicas", "rayStartParams"):
        assert processors[field] == theirs[field]


@every("cluster", clusters(), ids=["service", "backfill"])
def test_a_pod_has_its_environment_before_ray_starts_and_no_privileges(
    cluster: dict[str, Any],
) -> None:
    uid = re.search(r"--uid (\d+)", (DEPLOY / "Dockerfile").read_text())
    assert uid is not None
    for group in groups(cluster).values():
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == int(uid[1])
        [ray] = pod["containers"]
        assert ray["args"][0].index("node-environment") < ray["args"][0].index("KUBERAY_GEN")
        for container in containers(group):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


@every("cluster", clusters(), ids=["service", "backfill"])
def test_kubernetes_names_the_version_of_ray_that_is_installed(cluster: dict[str, Any]) -> None:
    locked = re.search(
        r"^ray==([\w.]+)", (PROJECT / "requirements/core.txt").read_text(), re.MULTILINE
    )
    assert locked is not None
    assert cluster["rayVersion"] == locked[1]


def secrets_of(container: dict[str, Any]) -> set[str]:
    """Keys of the secret ``vas`` that a container gets; ``*`` for all of them."""
    wholes = {"*" for each in container.get("envFrom", ()) if each["secretRef"]["name"] == "vas"}
    sources = (each.get("valueFrom", {}) for each in container.get("env", ()))
    references = [each["secretKeyRef"] for each in sources if "secretKeyRef" in each]
    return wholes | {each["key"] for each in references if each["name"] == "vas"}


def test_a_pod_gets_no_more_of_the_secret_than_what_runs_there_reads() -> None:
    """Replicas and the driver run on the head; tasks and models are given what they need."""
    bucket = {"ENDPOINT_URL", "REGION", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY"}
    given = [
        {container["name"]: secrets_of(container) for group in each for container in group}
        for each in (map(containers, groups(cluster).values()) for cluster in clusters())
    ]
    assert given == [
        {"ray-head": {"*"}, "ray-worker": set(), "weights": {"HF_TOKEN"}},
        {"ray-head": {f"VAS_S3_{name}" for name in bucket}, "ray-worker": set()},
    ]


def ports(rule: dict[str, Any]) -> set[int]:
    return {each["port"] for each in rule.get("ports", ())}


def test_only_the_port_of_clients_is_open_to_all() -> None:
    documented = documents("kubernetes/network-policy.yaml")
    policies = {each["metadata"]["name"]: each["spec"] for each in documented}
    rules = [rule for each in policies.values() for rule in each.get("ingress", ())]
    assert [ports(rule) for rule in rules if "from" not in rule] == [PORTS_OF_CLIENTS]
    nodes = policies["nodes"]
    every_group = [group for cluster in clusters() for group in groups(cluster).values()]
    for group in every_group:
        labels = group["template"]["metadata"]["labels"]
        assert nodes["podSelector"]["matchLabels"].items() <= labels.items()
    [metrics] = {group["rayStartParams"]["metrics-export-port"] for group in every_group}
    assert set.union(*map(ports, nodes["ingress"])) == {8265, *PORTS_OF_CLIENTS, int(metrics)}


METADATA_OF_THE_CLOUD = ip_address("169.254.169.254")
PRIVATE = [ip_address(text) for text in ("10.0.0.1", "172.16.0.1", "192.168.0.1", "fd00::1")]
PUBLIC = [ip_address("203.0.113.7"), ip_address("2001:db8::7")]


def reached(rule: dict[str, Any], address: IPv4Address | IPv6Address) -> bool:
    """Whether a rule opens the way to an address that is no pod's."""
    blocks = [each["ipBlock"] for each in rule["to"] if "ipBlock" in each]
    return any(
        address in ip_network(block["cidr"])
        and not any(address in ip_network(each) for each in block.get("except", ()))
        for block in blocks
    )


def test_pods_reach_what_they_work_with_and_no_private_network() -> None:
    documented = documents("kubernetes/network-policy.yaml")
    policies = {each["metadata"]["name"]: each["spec"] for each in documented}
    nodes, head = policies["nodes-egress"], policies["head-egress"]
    assert nodes["podSelector"] == policies["nodes"]["podSelector"]
    assert head["podSelector"] == policies["clients"]["podSelector"]
    rules = [*nodes["egress"], *head["egress"]]
    assert all(rule["to"] for rule in rules)
    assert not any(reached(rule, METADATA_OF_THE_CLOUD) for rule in rules)

    def ports_at(policy: dict[str, Any], address: IPv4Address | IPv6Address) -> set[int]:
        return {port for r in policy["egress"] if reached(r, address) for port in ports(r)}

    for address in PUBLIC:
        assert ports_at(nodes, address) == {443}
        assert 1 in ports_at(head, address)  # of a range that ends at 65535
    for address in PRIVATE:
        assert ports_at(nodes, address) == set()
        # The database and Kubernetes' own API may lie in private networks.
        assert ports_at(head, address) <= {443, 5432, 6443}
    assert policies["redis"]["egress"] == []


def test_every_manifest_is_applied_but_the_backfill() -> None:
    applied = only("kubernetes/kustomization.yaml")["resources"]
    there = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    assert there - {*applied} == {"kustomization.yaml", "backfill.yaml"}


# Alerts

RUNBOOKS = (PROJECT / "docs" / "operations.md").read_text()


def alerts() -> list[dict[str, Any]]:
    [group] = only("prometheus/alerts.yaml")["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


@every("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_an_alert_asks_for_metrics_that_are_exported_and_has_a_runbook(
    alert: dict[str, Any],
) -> None:
    exported = {name for metric in CATALOGUE for name in metric.series} | names_of_ray()
    names = set(re.findall(r"\bray_\w+|\bup\b", alert["expr"]))
    labels = set(re.findall(r"[{,]\s*(\w+)\s*=", alert["expr"]))
    labels |= set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", alert["expr"]))))
    assert names
    assert names <= exported | {"up"}
    known = {"job", "instance"} | {label for metric in CATALOGUE for label in metric.labels}
    assert labels <= known
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert page == "docs/operations.md"
    assert anchor == alert["alert"].lower()
    assert f"\n#### {alert['alert']}\n" in RUNBOOKS


def test_every_runbook_has_an_alert() -> None:
    section = RUNBOOKS.partition("\n### Alerts\n")[2].partition("\n### ")[0]
    assert re.findall(r"^#### (\w+)$", section, re.MULTILINE) == [it["alert"] for it in alerts()]


def test_every_alert_is_tried_with_what_raises_it_and_what_does_not() -> None:
    tests = only("prometheus/alerts_test.yaml")["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    raised = {case["alertname"] for case in cases if "exp_alerts" in case}
    silent = {case["alertname"] for case in cases if "exp_alerts" not in case}
    assert raised == silent == {alert["alert"] for alert in alerts()}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (package prometheus)")
def test_alerts_are_raised_when_they_should_be() -> None:
    command = ["promtool", "test", "rules", str(DEPLOY / "prometheus/alerts_test.yaml")]
    subprocess.run(command, check=True, timeout=60)


def names_of_ray() -> set[str]:
    """Series of the node that Ray's agent exports by itself."""
    from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

    return {f"ray_{name}" for name in METRICS_GAUGES}
