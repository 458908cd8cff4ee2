"""The cluster's files against Ray's own schemas and loaders, and what a cluster refuses."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from ray import cloudpickle
from ray.autoscaler._private.node_provider_availability_tracker import NodeAvailabilitySummary
from ray.autoscaler._private.resource_demand_scheduler import (
    _default_utilization_scorer,
    get_nodes_for,
)
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.exceptions import RayActorError
from ray.serve import Application
from ray.serve._private.build_app import build_app as ray_build_app
from ray.serve.schema import ServeDeploySchema

from models.registry import REGISTRY
from serve_app import __version__
from serve_app.cli.main import COMMANDS
from serve_app.deployment import cluster
from serve_app.deployment import local as local_service
from serve_app.deployment.application import APP_NAME, build_app, build_named_app
from serve_app.deployment.cluster import (
    ClusterSettingsError,
    cluster_settings,
    require_cluster_settings,
)
from serve_app.deployment.local import ServiceStartError
from serve_app.deployment.proxy import (
    SERVE_ENVIRONMENT,
    HaproxyFolderError,
    export_lines,
    node_environment,
)
from serve_app.settings import Settings
from tests.places import PROJECT
from tests.serve_app.running_api import SECRET
from tests.storage.tcp_postgres import tcp_postgres
from tests.tables import every

WRITTEN_BY_THE_OPERATOR = {"vas.env", "~/.ray/auth_token"}

ENVIRONMENT = {
    "VAS_DATABASE_URL": "postgresql://vas:secret@db.internal/vas",
    "VAS_S3_BUCKET": "footage",
    "VAS_SECRET_KEY": SECRET,
}


@pytest.fixture
def on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that a node has from vas.env."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def cluster_config(*, with_image: bool = False) -> dict[str, Any]:
    """cluster.yaml as ``ray up`` reads it; raises where Ray's schema or loader refuses it.

    ``with_image``: its lines about Docker are no comments.
    """
    text = (PROJECT / "cluster.yaml").read_text()
    if with_image:
        text = re.sub(r"(?m)^( *)# (docker:.*|  \w+: .*)$", r"\1\2", text)
    written = yaml.safe_load(text)
    config: dict[str, Any] = prepare_config(copy.deepcopy(written))
    validate_config(config)
    return config


def serve_config() -> ServeDeploySchema:
    """serve_config.yaml as ``serve deploy`` reads it."""
    written = yaml.safe_load((PROJECT / "serve_config.yaml").read_text())
    return ServeDeploySchema.model_validate(written)


def added_for(demands: list[dict[str, float]], running: dict[str, int]) -> dict[str, int]:
    """Nodes that Ray's autoscaler adds for ``demands`` beside the ``running`` ones."""
    config = cluster_config()

    def score(resources: Any, wanted: Any, node_type: str) -> Any:
        summary = NodeAvailabilitySummary(node_availabilities={})
        return _default_utilization_scorer(
            resources, wanted, node_type, node_availability_summary=summary
        )

    added, _ = get_nodes_for(
        config["available_node_types"],
        running,
        config["head_node_type"],
        config["max_workers"],
        demands,
        score,
    )
    return dict(added)


def placements(settings: Settings) -> dict[str, dict[str, Any]]:
    """Deployment to what a replica of it asks Ray for."""
    built = ray_build_app(build_named_app(settings), name=APP_NAME, default_runtime_env={})
    return {each.name: each.ray_actor_options for each in built.deployments}


def test_a_model_on_another_node_is_given_no_secret(on_a_node: None) -> None:
    settings = configured(s3_access_key_id="id", s3_secret_access_key="of the bucket")
    built = ray_build_app(build_named_app(settings), name=APP_NAME, default_runtime_env={})
    sent = {each.name: cloudpickle.dumps(each.init_args) for each in built.deployments}
    secrets = [value.encode() for value in (*ENVIRONMENT.values(), "of the bucket")]
    on_the_head = {"Api", "Runner", "WebhookSender"}
    for name, arguments in sent.items():
        assert any(secret in arguments for secret in secrets) is (name in on_the_head), name
    assert sent.keys() > on_the_head


def configured(**changes: Any) -> Settings:
    """What ``serve deploy`` of the project's file would make of a node's environment."""
    return cluster_settings(dict(serve_config().applications[0].args) | changes)


def test_every_worker_scales_from_zero_and_the_head_takes_no_tasks() -> None:
    config = cluster_config()
    types = config["available_node_types"]
    assert types[config["head_node_type"]]["resources"]["CPU"] == 0
    workers = [each for name, each in types.items() if name != config["head_node_type"]]
    assert [each["min_workers"] for each in workers] == [0, 0]
    assert all(each["max_workers"] > 0 for each in workers)


@every(
    ("demands", "added"),
    [
        pytest.param([{"CPU": 1.0}] * 20, {"processors": 2}, id="twenty segments"),
        pytest.param([{"CPU": 0.25}] * 8, {"processors": 1}, id="eight stretches of speech"),
        pytest.param([{"GPU": 0.4}], {"gpus": 1}, id="a transcriber"),
        pytest.param([{"GPU": 0.4}] * 4, {"gpus": 2}, id="four transcribers"),
        pytest.param(
            [{"GPU": entry.gpus} for entry in REGISTRY["gpu"].values()],
            {"gpus": 1},
            id="a replica of every model",
        ),
    ],
)
def test_ray_starts_the_nodes_that_work_needs(
    demands: list[dict[str, float]], added: dict[str, int]
) -> None:
    assert added_for(demands, {"head": 1}) == added


@pytest.mark.usefixtures("on_a_node")
def test_the_service_itself_stays_on_the_head_and_models_take_gpus() -> None:
    asked = placements(configured())
    head = cluster_config()["available_node_types"]["head"]["resources"]
    for name in ("Api", "Runner", "WebhookSender"):
        [resource] = asked[name]["resources"]
        assert head[resource] == 1
        assert added_for([{resource: 0.001}], {"head": 1}) == {}
    assert {name: each["num_gpus"] for name, each in asked.items() if "num_gpus" in each} == {
        task.contract_name: row.gpus
        for task, row in REGISTRY["gpu"].items()
        if row.gpus and not task.enabled_by
    }
    assert asked["Transcriber"]["num_gpus"] > 0
    assert all(each["num_cpus"] == 0 for each in asked.values())


@pytest.mark.usefixtures("on_a_node")
def test_models_without_gpus_take_the_processors_that_they_are_given() -> None:
    asked = placements(configured(model_profile="cpu", model_cpus=4))
    assert asked["Transcriber"]["num_cpus"] == 4
    assert asked["Runner"]["num_cpus"] == 0


def test_nodes_may_have_the_image_in_place_of_their_set_up() -> None:
    config = cluster_config(with_image=True)
    assert config["docker"]["image"] == f"video-analysis-service:{__version__}"
    gpus = config["available_node_types"]["gpus"]["docker"]
    assert gpus["worker_image"] == f"video-analysis-service-cuda:{__version__}"
    plain = cluster_config()
    assert not plain.get("docker", {}).get("image")
    assert config["setup_commands"] == plain["setup_commands"]
    installing = [each for each in plain["setup_commands"] if "install" in each]
    assert len(installing) == 2
    assert all(each.startswith("test -x /opt/vas/bin/vas ||") for each in installing)


def test_every_file_that_nodes_get_is_there() -> None:
    mounted = set(cluster_config()["file_mounts"].values())
    assert mounted >= WRITTEN_BY_THE_OPERATOR
    missing = [name for name in mounted - WRITTEN_BY_THE_OPERATOR if not (PROJECT / name).exists()]
    assert missing == []


@every("place", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_a_node_has_its_environment_before_ray_starts(place: str) -> None:
    stop, start = cluster_config()[place]
    assert stop == "ray stop"
    assert start.index('eval "$environment"') < start.index("ray start")
    assert "node-environment" in COMMANDS


def test_the_lines_for_the_shell_say_what_the_environment_is(tmp_path: Path) -> None:
    environment = {"PLAIN": "1", "SPACED": "conn-failure empty-response", "QUOTED": "it's $HOME"}
    script = tmp_path / "lines"
    script.write_text(export_lines(environment))
    shown = subprocess.run(
        ["sh", "-c", f'eval "$(cat {script})" && env -0'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = dict(line.split("=", 1) for line in shown.split("\0") if line)
    assert {name: found[name] for name in environment} == environment


def test_haproxy_is_switched_on_with_a_front_that_can_be_run() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        environment = node_environment(Settings(), Path(folder))
        front = environment["RAY_SERVE_HAPROXY_BINARY_PATH"]
        ended = subprocess.run([front, "-v"], capture_output=True, text=True, check=False)
    assert ended.stdout.startswith("HAProxy version")
    assert environment["RAY_SERVE_ENABLE_HA_PROXY"] == "1"


def test_serve_gives_a_starting_proxy_the_time_that_a_busy_machine_needs() -> None:
    constants = "from ray.serve._private.constants import "
    constants += "HTTP_PROXY_TIMEOUT as whole, PROXY_READY_CHECK_TIMEOUT_S as start"
    ended = subprocess.run(
        [sys.executable, "-c", f"{constants}; print(start, whole)"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | SERVE_ENVIRONMENT,
    )
    start, whole = map(float, ended.stdout.split()[-2:])
    assert 30 <= start < whole


def test_a_proxy_that_does_not_start_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(**_options: object) -> None:
        raise RayActorError

    ended: list[bool] = []
    monkeypatch.setattr("ray.serve.start", killed)
    # Where no Ray runs, Serve's own would start one to end it.
    monkeypatch.setattr("ray.serve.shutdown", lambda: ended.append(True))
    with (
        pytest.raises(ServiceStartError, match="does not start in time"),
        local_service._serve(Settings(), build_app(Settings()), tmp_path),
    ):
        pass
    assert ended == [True]


def test_a_proxy_that_does_not_come_to_serve_is_said_in_a_sentence() -> None:
    with (
        pytest.raises(ServiceStartError, match="does not start in time"),
        local_service._proxy_in_time(TimeoutError),
    ):
        raise TimeoutError("Proxies not available after 60s.")


def test_a_folder_too_deep_for_its_sockets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HaproxyFolderError, match="name a shorter folder"):
        node_environment(Settings(), tmp_path / ("x" * 40))


@pytest.mark.usefixtures("on_a_node")
def test_the_application_of_the_file_is_the_one_that_its_models_are_looked_up_in() -> None:
    [application] = serve_config().applications
    assert application.name == APP_NAME
    assert application.import_path == "serve_app.deployment.cluster:app"
    assert isinstance(build_named_app(configured()), Application)
    assert callable(cluster.app)


@pytest.mark.usefixtures("on_a_node")
def test_what_the_file_says_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAS_MODEL_REPLICAS", '{"transcribe": 7, "embed_voice": 5}')
    monkeypatch.setenv("VAS_LEASE_SECONDS", "9")
    settings = configured(model_replicas={"transcribe": 3})
    assert settings.model_replicas == {"transcribe": 3, "embed_voice": 5}
    assert settings.lease_seconds == 9


@every(
    ("changes", "sentence"),
    [
        pytest.param({"database_url": None}, "VAS_DATABASE_URL is not set", id="no database"),
        pytest.param(
            {"database_url": "postgresql://postgres@/vas?host=/run/postgres"},
            "Unix socket",
            id="database on a socket",
        ),
        pytest.param({"database_url": "postgresql:///vas"}, "Unix socket", id="database by name"),
        pytest.param(
            {"database_url": "postgresql://one.internal,/vas?host=one,/run/postgres"},
            "Unix socket",
            id="one server of two on a socket",
        ),
        pytest.param({"s3_bucket": None}, "VAS_S3_BUCKET is not set", id="no bucket"),
        pytest.param({"secret_key": ""}, "VAS_SECRET_KEY", id="no secret key"),
        pytest.param({"model_profile": "auto"}, "Name the models", id="models by this machine"),
        pytest.param({"caption_rules_file": "a.toml"}, "caption_rules_file", id="rules"),
        pytest.param({"price_file": "prices.toml"}, "price_file as absolute", id="relative path"),
        pytest.param({"replicas": 3}, "no settings named replicas", id="unknown setting"),
        pytest.param({"runners": 0}, "VAS_RUNNERS: Input should be", id="out of bounds"),
    ],
)
@pytest.mark.usefixtures("on_a_node")
def test_what_cannot_work_on_several_nodes_is_refused_in_a_sentence(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ClusterSettingsError, match=sentence):
        configured(**changes)


def test_all_that_is_missing_is_said_at_once_and_no_secret_with_it() -> None:
    settings = Settings.model_validate({"oidc_client_secret": "hunter2"})
    with pytest.raises(ClusterSettingsError) as raised:
        require_cluster_settings(settings)
    sentences = str(raised.value)
    for name in ("VAS_DATABASE_URL", "VAS_S3_BUCKET", "VAS_SECRET_KEY", "model_profile"):
        assert name in sentences
    assert "hunter2" not in sentences


def test_a_refused_value_is_not_repeated() -> None:
    with pytest.raises(ClusterSettingsError) as raised:
        cluster_settings({"s3_access_key_id": "AKIA-hunter2"})
    assert "belong together" in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.usefixtures("on_a_node")
def test_the_builder_migrates_the_database_that_it_is_given(tmp_path: Path) -> None:
    with tcp_postgres(tmp_path / "postgres") as url:
        built = cluster.app(dict(serve_config().applications[0].args) | {"database_url": url})
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
    assert isinstance(built, Application)
