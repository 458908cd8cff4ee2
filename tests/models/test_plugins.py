"""Plug-ins: rows of packages outside the tree, and what of them goes wrong."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from models import provider, registry
from models.backends import plugins
from models.backends.plugins import PluginError
from models.contracts import AudioChunk
from models.profiles import digest_of, replicas_of
from models.provider import LocalModels
from models.registry import REGISTRY, own_profile, with_others
from models.tasks import ALIGN, DETECT_SPEECH, TRANSCRIBE, TRANSLATE_SPEECH
from models.weights import RemoteModel
from serve_app.cli.main import main
from serve_app.deployment.model_choice import ModelProfileError, chosen_models
from serve_app.settings import Settings
from tests.models.plugin_packages import trouble, write_plugin

SECOND = np.zeros(16_000, np.float32)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, with the plug-in ``trouble``, which does as told."""
    folder = tmp_path / "packages"
    write_plugin(folder, "trouble", trouble(6.0))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("TROUBLE", str(tmp_path / "trouble.txt"))
    (tmp_path / "trouble.txt").write_text("")
    forget()
    before = {each.pid for each in psutil.Process().children()}
    yield folder
    forget()
    gone = [each for each in psutil.Process().children() if each.pid not in before]
    assert not psutil.wait_procs(gone, 10)[1], "a model's process ends with whoever called it"


def forget() -> None:
    """As another process, which was started with what is installed now."""
    for cached in (plugins.rows_of, registry._rows_with_others, provider._open_once):
        cached.cache_clear()
    for module in ("trouble", "other", "twin"):
        sys.modules.pop(module, None)
    gc.collect()


def test_an_installed_plugin_changes_nothing_until_it_is_named(packages: Path) -> None:
    assert chosen_models(Settings(model_profile="packaged")).profile == "packaged"
    choice = chosen_models(Settings(model_profile="packaged", model_plugins=("trouble",)))
    profile, rows = choice.profile, REGISTRY[choice.profile]
    assert (choice.name, own_profile(profile)) == ("packaged", "packaged")
    assert {task for task, row in rows.items() if row.plugin == "trouble==1.2"} == {
        DETECT_SPEECH,
        TRANSCRIBE,
    }
    # As the task has it: in the task, or in replicas; who shared the replaced model loads it now.
    assert (replicas_of(profile, DETECT_SPEECH), replicas_of(profile, TRANSCRIBE)) == (
        None,
        TRANSCRIBE,
    )
    assert (rows[ALIGN].shares, rows[TRANSLATE_SPEECH].shares) == (None, ALIGN)
    for task in (DETECT_SPEECH, TRANSCRIBE):
        assert digest_of(profile, [task]) != digest_of("packaged", [task])
    found = LocalModels(profile).get(TRANSCRIBE).transcribe([AudioChunk(SECOND)])
    assert [word.text for each in found for word in each.words] == ["hello"]


def test_results_are_named_by_a_plugins_version(packages: Path) -> None:
    profile = with_others("packaged", {}, ["trouble"])
    before = digest_of(profile, [TRANSCRIBE])
    info = packages / "trouble_dist-1.2.dist-info"
    metadata = info.joinpath("METADATA").read_text().replace("Version: 1.2", "Version: 1.3")
    info.joinpath("METADATA").write_text(metadata)
    forget()
    assert digest_of(with_others("packaged", {}, ["trouble"]), [TRANSCRIBE]) != before
    with pytest.raises(
        PluginError, match=r"trouble==1.2 is not installed here \(there are: trouble==1.3"
    ):
        plugins.rows_of("trouble==1.2")


@pytest.mark.parametrize(
    ("source", "names", "message"),
    [
        ("", "nothing", r"nothing is not installed here \(there are: other==1.2, trouble==1.2\)"),
        (
            "raise ImportError('no torch')",
            "other",
            "other==1.2 cannot be loaded: ImportError: no t",
        ),
        ("ROWS = {'dance': None}", "other", "other==1.2 cannot be loaded: ValueError: 'dance' is"),
        ("ROWS = {}", "other", "other==1.2 has no row"),
        (
            "from models.tasks import *; from models.backends import Backend\n"
            "ROWS = {ALIGN: Backend('other:Model', {}, shares=TRANSCRIBE)}",
            "other",
            "other==1.2 has no row, or none for a task whose model it shares",
        ),
        ("from trouble import ROWS", "trouble,other", "both other==1.2 and trouble==1.2 do detect"),
    ],
)
def test_what_cannot_be_used_refuses_the_start(
    packages: Path, monkeypatch: pytest.MonkeyPatch, source: str, names: str, message: str
) -> None:
    write_plugin(packages, "other", source)
    monkeypatch.setenv("VAS_MODEL_PLUGINS", names)
    with pytest.raises(ModelProfileError, match=f"^VAS_MODEL_PLUGINS: {message}"):
        chosen_models(Settings(model_profile="packaged"))


def test_one_task_has_one_model_and_one_name_one_plugin(packages: Path) -> None:
    elsewhere = {"transcribe": RemoteModel("http://gpu/v1", "m")}
    with pytest.raises(PluginError, match=r"both trouble==1.2 and VAS_REMOTE_MODELS do transcribe"):
        with_others("packaged", elsewhere, ["trouble"])
    write_plugin(packages, "twin", "ROWS = {}", of="trouble")
    with pytest.raises(PluginError, match="trouble is more than once installed here"):
        plugins.rows_of.__wrapped__("trouble")


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("transcribe raises", "transcribe: ValueError: no such luck"),
        ("open raises", "transcribe: ValueError: no such luck"),
        ("transcribe exits", r"transcribe: its process ended \(3\)"),
        ("transcribe dies", r"transcribe: its process ended \(7\)"),
        ("open dies", r"transcribe: its process ended \(7\)"),
        ("transcribe hangs", r"transcribe: a call took longer than 6 s"),
        ("transcribe holds", r"transcribe: a call took longer than 6 s"),
        ("transcribe strays", "transcribe: no answer as in: One transcript a chunk"),
        ("transcribe types", "transcribe: answer: a NoneType in place of ChunkTranscript"),
        ("transcribe miscounts", "transcribe: 0 answers to 1 inputs"),
    ],
)
def test_what_goes_wrong_is_an_error_of_one_line_and_the_next_call_works(
    packages: Path, what: str, reason: str
) -> None:
    model = LocalModels(with_others("packaged", {}, ["trouble"])).get(TRANSCRIBE)
    notes = packages.parent / "trouble.txt"
    notes.write_text(what)
    started = time.monotonic()
    with pytest.raises(PluginError, match=f"^plug-in trouble==1.2, {reason}[^\n]*$"):
        model.transcribe([AudioChunk(SECOND)])
    assert time.monotonic() - started < 60
    notes.write_text("")
    [found] = model.transcribe([AudioChunk(SECOND)])
    assert [word.text for word in found.words] == ["hello"]


@pytest.mark.parametrize("what", ["strays", "miscounts"])
def test_frames_are_checked_too(packages: Path, what: str) -> None:
    model = LocalModels(with_others("packaged", {}, ["trouble"])).get(DETECT_SPEECH)
    (packages.parent / "trouble.txt").write_text(f"detect_speech {what}")
    with pytest.raises(PluginError, match=r"plug-in trouble==1.2, detect_speech: "):
        model.find_speech(SECOND)


def test_a_plugin_is_checked_and_listed_by_commands(
    packages: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def vas(*arguments: str) -> tuple[Any, str]:
        monkeypatch.setattr("sys.argv", ["vas", *arguments])
        try:
            main()
        except SystemExit as ended:
            return ended.code, capsys.readouterr().out
        return 0, capsys.readouterr().out

    monkeypatch.setenv("VAS_MODEL_PROFILE", "packaged")
    status, printed = vas("models", "check", "trouble")
    assert status == 1
    assert "FAIL detect_speech: sample: WrongAnswerError: found speech in noise" in printed
    assert "FAIL detect_speech: no inputs" not in printed
    assert "ok   transcribe: all inputs: 7 answers as the contract requires" in printed
    assert vas("models", "check", "nothing") == (2, "")
    status, printed = vas("models", "list", "--json")
    assert status == 0
    assert '"plugins": {"trouble==1.2": []}' in " ".join(printed.split())
