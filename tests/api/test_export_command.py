"""``vas export``: what the API writes, in a file or on the screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serve_app.cli.main import app
from tests.api.published_jobs import complete, created, track
from tests.api.running_api import Customer, RunningApi


@pytest.fixture
def job(api: RunningApi, customer: Customer) -> str:
    job_id = created(api, customer)
    complete(api, job_id, [track(0)], [])
    return job_id


def run(api: RunningApi, customer: Customer, *words: str) -> str:
    environment = {"VAS_URL": f"{api.root}/v1/api", "VAS_KEY": customer.key}
    result = CliRunner().invoke(app, ["export", *words], env=environment)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--format", "edl"], "FCM: NON-DROP FRAME"),
        (["--format", "csv"], '"startTimecode"'),
        (["--format", "csv", "--content", "transcript"], '"speaker"'),
        (["--format", "otio", "--content", "chapters"], '"Morning"'),
        (["--format", "youtube"], "0:00 Morning"),
        (["--format", "srt"], "00:00:01,200 -->"),
    ],
)
def test_a_file_is_printed(
    api: RunningApi, customer: Customer, job: str, words: list[str], expected: str
) -> None:
    assert expected in run(api, customer, job, *words)


def test_a_file_is_written_and_reported_as_json(
    api: RunningApi, customer: Customer, job: str, tmp_path: Path
) -> None:
    out = tmp_path / "cuts.edl"
    shown = json.loads(run(api, customer, job, "--format", "edl", "--out", str(out), "--json"))
    assert shown == {"jobId": job, "format": "edl", "file": str(out)}
    assert out.read_text() == run(api, customer, job, "--format", "edl")
    printed = json.loads(run(api, customer, job, "--format", "edl", "--json"))
    assert printed["content"] == out.read_text()
