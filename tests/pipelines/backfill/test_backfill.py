"""The command as it is run: killed and gone on with, and what it makes of bad items.

``VAS_BACKFILL_ITEMS=200`` kills and resumes a backfill of so many clips (12 by default) and prints
figures.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import ray

from models.provider import LocalModels
from models.registry import REGISTRY
from models.tasks import DESCRIBE_SCENES, Contract, Task
from models.weights import RemoteModel
from pipelines.backfill import __main__ as backfill
from pipelines.backfill.driver import BackfillTally, Pacing, run_items
from pipelines.backfill.items import ItemWork
from pipelines.backfill.manifest import Item
from pipelines.backfill.output import begin_output
from pipelines.collection import BucketAccess, place_at
from storage.types import ProcessingMode, StageStatus
from tests.pipelines.backfill.backfill_material import (
    differences,
    everything_in,
    part_names,
    rows_in,
    write_clips,
)
from tests.places import PROJECT

CLIPS = int(os.environ.get("VAS_BACKFILL_ITEMS", "12")) - 4
"""Beside them are a twin, one to listen to only, one that is missing, one that is no media."""
BAD_ROWS = 2
PART_ITEMS = max(2, CLIPS // 20)
FEW_PARTS = 1 if CLIPS < 20 else 5
RUN_SECONDS = 400 + 5 * CLIPS


@dataclass(frozen=True, slots=True)
class Footage:
    """Clips with a manifest of them, and the Ray that works on them."""

    manifest: Path
    items: int
    address: str

    def command(self, out: Path, *options: str) -> list[str]:
        arguments = [str(self.manifest), str(out), "--address", self.address, *options]
        pace = ["--part-items", str(PART_ITEMS), "--progress-seconds", "1"]
        return [sys.executable, "-m", "pipelines.backfill", *arguments, *pace]

    def run(self, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        return subprocess.run(
            self.command(out, *options),
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )


@pytest.fixture(scope="module")
def footage(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Footage:
    import ray

    folder = tmp_path_factory.mktemp("footage")
    rows: list[dict[str, Any]] = [
        {"source": f"clips/{path.name}", "mode": "vision" if number % 3 == 2 else "all"}
        for number, path in enumerate(write_clips(folder / "clips", CLIPS))
    ]
    (folder / "notes.txt").write_text("no media at all")
    rows += [
        {"source": "clips/clip-0001.mkv", "mode": "all"},
        {"id": "sound", "source": "clips/clip-0000.mkv", "mode": "transcript"},
        {"id": "missing", "source": "clips/nowhere.mkv"},
        {"id": "text", "source": "notes.txt"},
        {"id": "bad-mode", "source": "clips/clip-0000.mkv", "mode": "everything"},
        {"id": "sound", "source": "clips/clip-0002.mkv"},
    ]
    manifest = folder / "manifest.jsonl"
    manifest.write_text("\n".join(map(json.dumps, rows)))
    address = ray.get_runtime_context().gcs_address
    return Footage(manifest, len(rows) - BAD_ROWS, address)


@dataclass(frozen=True, slots=True)
class Resumed:
    """A run that was killed, the one that went on and was told to stop, and the one to the end."""

    out: Path
    killed: dict[str, bytes]
    """What the killed run had committed: the files of ``items`` by part."""
    stopped: dict[str, bytes]
    """The same after the second run."""
    stopped_status: int
    last: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def undisturbed(footage: Footage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run that nobody disturbed."""
    out = tmp_path_factory.mktemp("undisturbed")
    started = time.monotonic()
    done = footage.run(out)
    assert done.returncode == backfill.WITH_ERRORS, done.stdout + done.stderr
    print(f"{footage.items} items undisturbed: {time.monotonic() - started:.1f} s")
    return out


@pytest.fixture(scope="module")
def resumed(footage: Footage, tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    out = tmp_path_factory.mktemp("resumed")
    started = time.monotonic()
    _run_until_parts(footage, out, FEW_PARTS, signal.SIGKILL)
    killed = _committed(out)
    status = _run_until_parts(footage, out, len(killed) + FEW_PARTS, signal.SIGTERM)
    stopped = _committed(out)
    last = footage.run(out)
    counts = (_count(out, parts) for parts in (killed, stopped, _committed(out)))
    print(f"killed, stopped, done at {[*counts]} items: {time.monotonic() - started:.1f} s")
    return Resumed(out, killed, stopped, status, last)


def _run_until_parts(footage: Footage, out: Path, parts: int, number: signal.Signals) -> int:
    """Start the command, send it a signal once so many parts are committed; its status."""
    with _started(footage.command(out)) as process:
        _wait_for_parts(out, parts, process)
        process.send_signal(number)
        return process.wait(RUN_SECONDS)


def _committed(out: Path) -> dict[str, bytes]:
    return {name: _part(out, name).read_bytes() for name in part_names(out)}


def _count(out: Path, parts: dict[str, bytes]) -> int:
    return sum(int(pq.read_metadata(_part(out, name)).num_rows) for name in parts)


@contextlib.contextmanager
def _started(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_for_parts(out: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + RUN_SECONDS
    while len(part_names(out)) < count:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline, "no part was committed"
        time.sleep(0.02)


def _part(out: Path, name: str) -> Path:
    return out / "items" / name / "data.parquet"


@pytest.mark.timeout(4 * RUN_SECONDS)
def test_no_item_is_lost_or_doubled_by_a_kill(undisturbed: Path, resumed: Resumed) -> None:
    assert resumed.last.returncode == backfill.WITH_ERRORS, resumed.last.stderr
    assert differences(resumed.out, undisturbed) == []


@pytest.mark.timeout(4 * RUN_SECONDS)
def test_what_was_committed_is_not_done_again(footage: Footage, resumed: Resumed) -> None:
    out, kept = resumed.out, _committed(resumed.out)
    finished = _count(out, resumed.stopped)
    assert 0 < _count(out, resumed.killed) < finished < footage.items
    assert f"{footage.items} items, {finished} of them finished before" in resumed.last.stdout
    assert resumed.killed.items() <= resumed.stopped.items() <= kept.items()
    assert not (out / "_work").exists()


def test_a_run_that_is_told_to_stop_says_that_it_is_not_finished(resumed: Resumed) -> None:
    assert resumed.stopped_status == backfill.NOT_FINISHED


def test_every_item_is_there_once_twins_included(footage: Footage, undisturbed: Path) -> None:
    items = rows_in(undisturbed, "items")
    assert len({row["item_id"] for row in items}) == len(items) == footage.items
    twins = [row for row in items if row["source"].endswith("clip-0001.mkv")]
    assert len(twins) == 2
    assert twins[0]["scene_count"] == twins[1]["scene_count"] == 2


def test_the_error_table_names_stage_code_and_column(undisturbed: Path) -> None:
    errors = rows_in(undisturbed, "errors")
    found = {(row["item_id"], row["stage"], row["code"], row["column"]) for row in errors}
    assert found == {
        ("missing", "ingest", "FETCH_FAILED", None),
        ("text", "ingest", "VALIDATION_FAILED", None),
        ("bad-mode", "manifest", "BAD_ROW", "mode"),
        ("sound", "manifest", "BAD_ROW", "id"),
    }
    assert len(errors) == len(found)


def test_scenes_words_and_stills_are_there(undisturbed: Path) -> None:
    items = {row["item_id"]: row for row in rows_in(undisturbed, "items")}
    for row in rows_in(undisturbed, "scenes"):
        assert (undisturbed / row["still"]).read_bytes().startswith(b"\xff\xd8")
        assert items[row["item_id"]]["mode"] != "transcript"
    spoken = {row["item_id"] for row in rows_in(undisturbed, "words")}
    assert spoken
    assert {items[item]["mode"] for item in spoken} <= {"all", "transcript"}


@pytest.mark.timeout(2 * RUN_SECONDS)
def test_a_run_with_nothing_left_adds_nothing_and_errors_are_tried_again_when_asked(
    footage: Footage, undisturbed: Path
) -> None:
    before = everything_in(undisturbed)
    (footage.manifest.parent / "clips" / "nowhere.mkv").write_bytes(
        (footage.manifest.parent / "clips" / "clip-0003.mkv").read_bytes()
    )
    idle = footage.run(undisturbed)
    assert idle.returncode == backfill.WITH_ERRORS, idle.stdout + idle.stderr
    assert everything_in(undisturbed) == before
    again = footage.run(undisturbed, "--retry-errors")
    assert again.returncode == backfill.WITH_ERRORS, again.stdout + again.stderr
    assert "2 failed items are tried again." in again.stdout
    items = {row["item_id"]: row["status"] for row in rows_in(undisturbed, "items")}
    assert (items["missing"], items["text"]) == ("completed", "failed")
    assert len(items) == footage.items
    (footage.manifest.parent / "clips" / "nowhere.mkv").unlink()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["nowhere.csv", "out"], "There is no manifest nowhere.csv", id="no manifest"),
        pytest.param(["m.csv", "ftp://out"], "neither a folder nor s3", id="no place"),
        pytest.param(
            ["m.csv", "out", "--blocked-hashes", "none.txt"], "none.txt cannot be read", id="hashes"
        ),
    ],
)
def test_what_cannot_begin_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.csv").write_text("source\na.mp4\n")
    assert backfill.main(arguments) == backfill.NOT_BEGUN
    assert message in capsys.readouterr().out


@pytest.mark.parametrize(("gpus", "profile"), [("2", "gpu"), ("0", "cpu")])
def test_gpus_that_are_to_come_count_for_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, profile: str
) -> None:
    monkeypatch.setattr("models.profiles.missing_checkpoints", lambda *_: [])
    given = ["m.csv", "out", "--gpus", gpus, "--models-dir", str(tmp_path)]
    assert backfill._profile(backfill._parser().parse_args(given)) == profile


def test_models_of_other_servers_are_of_an_output_s_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def parsed(*more: str) -> Any:
        given = ["m.csv", "out", "--profile", "packaged", "--gpus", "0", *more]
        return backfill._parser().parse_args(given)

    assert "remote_models" not in backfill._kind("packaged", parsed())
    row = {"url": "http://gpu:8000/v1", "model": "qwen3-vl"}
    monkeypatch.setenv("VAS_REMOTE_MODELS", json.dumps({"describe_scenes": row}))
    profile = backfill._profile(parsed())
    model = REGISTRY[profile][DESCRIBE_SCENES].remote
    assert model == RemoteModel("http://gpu:8000/v1", "qwen3-vl")
    kind = backfill._kind(profile, parsed())
    assert (kind["profile"], kind["remote_models"]) == (
        "packaged", {"describe_scenes": model.identity}
    )  # fmt: skip
    with pytest.raises(SystemExit):
        parsed("--remote-models", '{"describe_scenes": {"key": "s3cret"}}')
    assert "unexpected keyword argument 'key'" in capsys.readouterr().err


class DeadlyModels(LocalModels):
    """The packaged models; whoever describes a scene with them dies of it."""

    def find(self, task: Task[Contract]) -> Contract | None:
        if task is DESCRIBE_SCENES:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().find(task)


# Ray's workers cannot import this file by name.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_an_item_that_ends_its_workers_fails_and_the_others_complete(
    ray_session: None, tmp_path: Path
) -> None:
    clips = write_clips(tmp_path / "clips", 3)
    modes = (ProcessingMode.TRANSCRIPT, ProcessingMode.VISION, ProcessingMode.TRANSCRIPT)
    items = [
        Item(id=str(row), row=row, source=str(path), name=path.name, mode=mode)
        for row, (path, mode) in enumerate(zip(clips, modes, strict=True), start=1)
    ]
    place = place_at(str(tmp_path / "out"), BucketAccess())
    output = begin_output(place, {"profile": "packaged"})
    work = ItemWork(out=place, models=DeadlyModels(), profile="packaged", run="one")
    tally = BackfillTally(total=3, finished_before=0, started_seconds=0.0)
    run_items(items, work, output, tally, pacing=Pacing(part_items=2), report=lambda line: None)
    assert (tally.done, tally.failed, tally.left) == (3, 1, 0)
    assert output.finished() == {
        "1": StageStatus.COMPLETED,
        "2": StageStatus.FAILED,
        "3": StageStatus.COMPLETED,
    }
    [error] = rows_in(tmp_path / "out", "errors")
    assert (error["item_id"], error["code"]) == ("2", "PROCESSING_FAILED")
    assert error["message"] == "The worker was lost 2 times over this item."
