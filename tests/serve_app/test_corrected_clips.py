"""The notebook on fine-tuning reads what people corrected, with its sound, from a service."""

from __future__ import annotations

import ast
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speech.material import load
from models.contracts import SAMPLE_RATE_HZ
from serve_app.client.api import ApiClient
from tests.places import DEMO, PROJECT
from tests.serve_app.published_jobs import complete, created
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_transcript_edits import edit, said

SPANS = ((1.0, 3.4), (6.0, 7.4))
"""Of the first two lines that are said, in seconds."""


def notebook() -> dict[str, Any]:
    """The names that the notebook defines for reading corrections, and what these need."""
    cells = json.loads((PROJECT / "notebooks/04_fine_tune_whisper.ipynb").read_text())["cells"]
    [source] = [
        "".join(c["source"]) for c in cells if "def corrected_clips" in "".join(c["source"])
    ]
    defined = [
        node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    names: dict[str, Any] = {
        "np": np,
        "load": load,
        "json": json,
        "tempfile": tempfile,
        "Path": Path,
        "dataclass": dataclass,
        "SAMPLE_RATE_HZ": SAMPLE_RATE_HZ,
        "ApiClient": ApiClient,
        "__name__": __name__,
    }
    exec(compile(ast.Module([*defined], []), "notebook", "exec"), names)  # noqa: S102
    return names


def read(api: RunningApi, customer: Customer, job: str) -> list[Any]:
    with ApiClient(f"{api.root}/v1/api", customer.key) as client:
        found: list[Any] = notebook()["corrected_clips"](client, job)
        return found


def test_corrected_sentences_come_with_their_sound(api: RunningApi, customer: Customer) -> None:
    job = created(api, customer)
    complete(api, job, [said()], [])
    with api.context.objects.writer(f"jobs/{job}/source/clip-000") as stream:
        stream.write(DEMO.read_bytes())
    assert read(api, customer, job) == []
    lines = ["Good morning to Zorvane.", "Today it snows."]
    edit(api, customer, job, segments=[{"index": n, "text": it} for n, it in enumerate(lines)])
    clips = read(api, customer, job)
    assert [clip.text for clip in clips] == lines
    source = load(DEMO)
    for (start, end), clip in zip(SPANS, clips, strict=True):
        there = source[round(16_000 * (start - 0.2)) : round(16_000 * (end + 0.2))]
        assert abs(len(clip.samples) - len(there)) < 32
        energy = float((there**2).sum())
        assert abs(float((clip.samples**2).sum()) - energy) < 0.05 * energy


def test_a_redacted_job_is_left_out(api: RunningApi, customer: Customer) -> None:
    job = created(api, customer, redact=["name"])
    complete(api, job, [said()], [])
    assert read(api, customer, job) == []
