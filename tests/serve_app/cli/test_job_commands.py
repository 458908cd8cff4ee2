"""``vas jobs`` and ``vas export``: what the API has, on the screen or in a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from serve_app.cli.main import app
from serve_app.cli.output import UsageError
from serve_app.client.api import RequestFailedError
from tests.places import PROJECT
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.tables import every


@pytest.fixture
def job(api: RunningApi, customer: Customer) -> str:
    job_id = created(api, customer)
    complete(api, job_id, [track(0)], [])
    return job_id


def addressing(api: RunningApi, customer: Customer) -> dict[str, str]:
    return {"VAS_URL": f"{api.root}/v1/api", "VAS_KEY": customer.key}


def vas(api: RunningApi, customer: Customer, *words: str, sent: str = "") -> Result:
    return CliRunner().invoke(app, list(words), input=sent, env=addressing(api, customer))


def queued_job(api: RunningApi, customer: Customer) -> str:
    """Wait for the customer's queued job."""
    deadline = time.monotonic() + 60
    path = "/jobs?state=queued"
    while not (jobs := api.client.get(path, headers=customer.headers).json()["data"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return str(jobs[0]["jobId"])


def run(api: RunningApi, customer: Customer, *words: str) -> str:
    result = vas(api, customer, "export", *words)
    assert result.exit_code == 0, result.output
    return result.stdout


@every(
    ("words", "expected"),
    [
        (["--format", "edl"], "FCM: NON-DROP FRAME"),
        (["--format", "csv"], '"startTimecode"'),
        (["--format", "csv", "--content", "transcript"], '"speaker"'),
        (["--format", "otio", "--content", "chapters"], '"Morning"'),
        (["--format", "webvtt-chapters"], "Morning"),
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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("srt --content scenes", "--content scenes cannot be written as srt"),
        ("md --content chapters", "--content chapters cannot be written as md"),
        ("edl --content transcript", "--content transcript cannot be written as edl"),
        ("edl --track 0", "--track is for transcripts only"),
    ],
)
def test_what_a_type_cannot_hold_is_refused(
    api: RunningApi, customer: Customer, words: str, sentence: str
) -> None:
    result = vas(api, customer, "export", "any-job", "--format", *words.split())
    assert isinstance(result.exception, UsageError)
    assert sentence in str(result.exception)


def test_jobs_are_listed_newest_first_in_whole_lines(
    api: RunningApi, customer: Customer, job: str
) -> None:
    waiting = created(api, customer)
    lines = vas(api, customer, "jobs", "list").output.splitlines()
    assert lines[0].split() == ["job", "file", "state", "done", "length", "created"]
    assert [line.split()[:4] for line in lines[1:]] == [
        [waiting, "clip.mp4", "queued", "0%"],
        [job, "clip.mp4", "completed", "100%"],
    ]
    some = vas(api, customer, "jobs", "list", "--state", "completed", "--json").output
    assert [each["jobId"] for each in json.loads(some)["data"]] == [job]
    assert vas(api, customer, "jobs", "cancel", waiting).exit_code == 0


def test_jobs_come_as_many_as_are_wanted_in_pages_of_the_api(
    api: RunningApi, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [created(api, customer) for _ in range(5)][::-1]
    monkeypatch.setattr("serve_app.cli.remote.MAX_PAGE", 2)
    for words, count, more in (
        ("--limit 3", 3, True),
        ("--all", 5, False),
        ("--limit 5", 5, False),
    ):
        lines = vas(api, customer, "jobs", "list", *words.split()).output.splitlines()
        assert [line.split()[0] for line in lines[1 : count + 1]] == made[:count]
        assert ("More: --limit 6, or --all." in lines) == more
    for each in made:
        assert vas(api, customer, "jobs", "cancel", each).exit_code == 0


def test_a_job_is_shown_in_words_and_cancelled(
    api: RunningApi, customer: Customer, job: str
) -> None:
    shown = vas(api, customer, "jobs", "show", job).output
    rows = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert (rows["state"].strip(), rows["vision"].strip()) == ("completed", "completed")
    assert rows["dashboard"].strip() == f"{api.root}/dashboard/jobs/{job}"
    assert "None" not in shown
    assert "{" not in shown
    waiting = created(api, customer)
    assert "cancelled" in vas(api, customer, "jobs", "cancel", waiting).output
    again = vas(api, customer, "jobs", "cancel", waiting)
    assert isinstance(again.exception, RequestFailedError)
    assert again.exception.code == "JOB_NOT_CANCELLABLE"
    assert json.loads(vas(api, customer, "jobs", "show", waiting, "--json").output)["jobId"] == (
        waiting
    )


def test_a_job_is_erased_once_its_user_confirms(
    api: RunningApi, customer: Customer, job: str
) -> None:
    asked = vas(api, customer, "jobs", "erase", job, sent="n\n")
    assert (asked.exit_code, "Aborted" in asked.stderr) == (1, True)
    path = f"/jobs/{job}/scenes"
    assert api.client.get(path, headers=customer.headers).status_code == 200
    assert vas(api, customer, "jobs", "erase", job, "--yes").exit_code == 0
    assert api.client.get(path, headers=customer.headers).status_code == 404


def test_an_interrupted_analysis_names_its_job_and_what_ends_it(
    api: RunningApi, customer: Customer, tmp_path: Path
) -> None:
    media = tmp_path / "clip.mp4"
    media.write_bytes(b"never analysed")
    command = [sys.executable, "-m", "serve_app.cli", "analyze", str(media), "--out", str(tmp_path)]
    environment = os.environ | addressing(api, customer)
    process = subprocess.Popen(
        command, env=environment, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    with process:
        job_id = queued_job(api, customer)
        time.sleep(2)  # the client learns a moment later that all has arrived
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"Job {job_id} goes on" in said
    assert f"vas jobs cancel {job_id} ends it" in said
    assert queued_job(api, customer) == job_id
    assert vas(api, customer, "jobs", "cancel", job_id).exit_code == 0


def test_an_analysis_prints_the_jobs_id_and_its_page_before_it_ends(
    api: RunningApi, customer: Customer, tmp_path: Path
) -> None:
    media = tmp_path / "clip.mp4"
    media.write_bytes(b"never analysed")
    with ThreadPoolExecutor(1) as aside:
        words = ("analyze", str(media), "--out", str(tmp_path / "out"))
        running = aside.submit(vas, api, customer, *words)
        job_id = queued_job(api, customer)
        api.client.post(f"/jobs/{job_id}/cancel", headers=customer.headers).raise_for_status()
        result = running.result(60)
    assert f"Job {job_id}: {api.root}/dashboard/jobs/{job_id}" in result.output
    assert result.exit_code == 1
    assert "The job cancelled" in result.output


def test_what_to_check_is_listed_with_the_errors_before_and_after(
    api: RunningApi, customer: Customer, job: str
) -> None:
    shown = vas(api, customer, "review", job, "--budget", "60")
    assert shown.exit_code == 0, shown.output
    assert "Good morning." in shown.stdout
    assert "Errors expected now 0.1" in shown.stdout
    assert "then 0.0 (0.0%)." in shown.stdout
    assert "not calibrated" in shown.stdout
    found = json.loads(vas(api, customer, "review", job, "--json").stdout)
    assert [each["segments"] for each in found["stretches"]] == [[0]]
