"""The notebooks run from top to bottom on the project's own media, and show what they show."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.models.tiny_models import fill_models_folder
from tests.places import PROJECT
from tests.tables import every

NOTEBOOKS = PROJECT / "notebooks"
NAMES = (
    "01_quickstart",
    "02_scene_threshold_tuning",
    "03_transcription_models",
    "04_fine_tune_whisper",
)
CELL_SECONDS = 540

_MACHINE = re.compile(
    r"/(?:home|root|Users|tmp|work|var|mnt|opt)/|[A-Z]:\\\\|vas_live_\w|site-packages"
)
"""Paths and secrets of whoever ran a notebook."""


def executed(name: str) -> Any:
    """The notebook run anew, with the environment of this test."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(NOTEBOOKS)}},
    )
    client.execute()
    return notebook


def printed(notebook: Any) -> str:
    return "".join(
        output["text"]
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
        if output["output_type"] == "stream" and output["name"] == "stdout"
    )


def pictures(notebook: Any) -> list[str]:
    return [
        output["data"]["image/png"]
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]


@every("name", NAMES)
def test_what_is_committed_was_run_and_names_no_machine(name: str) -> None:
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert pictures(notebook)
    said = [
        json.dumps({key: value for key, value in output.items() if key != "data"})
        + json.dumps(output.get("data", {}).get("text/plain", ""))
        for cell in cells
        for output in cell["outputs"]
    ]
    assert not [text for text in said if _MACHINE.search(text)]
    assert not [text for text in said if '"stderr"' in text]


def test_thresholds_are_tuned_on_media_with_known_cuts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VAS_NOTEBOOK_PROGRAMMES", "1")
    monkeypatch.setenv("VAS_NOTEBOOK_TRANSITIONS", "6")
    notebook = executed("02_scene_threshold_tuning")
    [usual] = [line for line in printed(notebook).splitlines() if line.endswith("<- usual")]
    assert float(usual.split()[-3]) >= 0.8
    assert len(pictures(notebook)) >= 5


@pytest.mark.long
def test_transcription_backends_stand_side_by_side(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The neural profile has tiny random weights here: it runs, its words mean nothing."""
    monkeypatch.setenv("VAS_MODELS_DIR", str(fill_models_folder(tmp_path, "cpu")))
    monkeypatch.setenv("VAS_NOTEBOOK_NOISE_DB", "")
    notebook = executed("03_transcription_models")
    said = printed(notebook)
    assert "backends: packaged, plain, neural" in said
    rates = [float(rate) for rate in re.findall(r"two_voices.flac +packaged +\d+ +([\d.]+)", said)]
    assert rates[0] < 0.1
    assert len(pictures(notebook)) == 3


def last_rates(text: str) -> dict[str, list[float]]:
    """The last table of the notebook on fine-tuning: set -> WER before, with key terms, after."""
    table = text[text.rindex("WER  ") :]
    rows = re.findall(r"^([a-z ]+?) +([\d.]+) +([\d.]+) +([\d.]+)$", table, re.MULTILINE)
    return {name: [float(rate) for rate in rates] for name, *rates in rows}


def test_the_committed_fine_tuning_helped_on_clips_that_were_held_back() -> None:
    rates = last_rates(printed(nbformat.read(NOTEBOOKS / "04_fine_tune_whisper.ipynb", 4)))  # type: ignore[no-untyped-call]
    assert {"held back", "other voice", "same voices"} <= rates.keys()
    for name in ("held back", "other voice"):
        before, _, after = rates[name]
        assert after < before


@pytest.mark.long
@pytest.mark.timeout(900)
def test_fine_tuning_spells_names_in_sentences_not_trained_on() -> None:
    notebook = executed("04_fine_tune_whisper")
    said = printed(notebook)
    before, _, after = last_rates(said)["held back"]
    assert after < before
    [(right, spoken)] = re.findall(r"held back +after +(\d+) of (\d+) names right", said)
    assert int(right) / int(spoken) >= 0.75
    assert len(pictures(notebook)) == 2
