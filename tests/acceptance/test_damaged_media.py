"""Damaged, lying and hostile files as jobs of one running service: each ends, in its own way.

By default a few, made here. With ``VAS_DAMAGED_MEDIA=all`` every file of the collection of
real media beside the project, and ``VAS_DAMAGED_COUNT`` (60) damaged variants of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_app.client.api import ApiClient, RequestFailedError
from tests.acceptance.camera_raw import RAW, decoders
from tests.acceptance.service import Service, running
from tests.pipelines.ingest.damaged_media import (
    BOMBS,
    DamagedFile,
    bombs,
    damaged_files,
    misnamed_files,
    tag_bombs,
)
from tests.pipelines.ingest.format_samples import STANDARD, write_sample
from tests.places import SHARED_MEDIA

EVERYTHING = os.environ.get("VAS_DAMAGED_MEDIA") == "all"
COUNT = int(os.environ.get("VAS_DAMAGED_COUNT", "60"))
SEED = int(os.environ.get("VAS_DAMAGED_SEED", "1"))
JOB_SECONDS = 900 if EVERYTHING else 240
GROUPS = ("formats", "odd", "cuts", "speech", "speakers", "broken")
NOT_MEDIA = {".json", ".txt", ".vtt", ".srt", ".rttm", ".uem"}
LARGEST_ORIGINAL_BYTES = 1_500_000
MEMORY_BOUND_BYTES = 10 << 30
"""Of all the service's processes together, databases and models included."""

CODES = {
    "ingest": {"VALIDATION_FAILED", "INGEST_FAILED"},
    "vision": {"VISION_FAILED"},
    "transcript": {"TRANSCRIPT_FAILED"},
}
"""With which codes media may fail each stage."""

UNREADABLE = {
    "bad.wav", "html-error-page.mp4", "invalid-bitstream.webm", "mono.invalid.wav", "awful.wav",
    "play-trimmed.mp3", "sample_fragmented_clearkey.mp4", "truncated-60pct-no-moov.mp4",
}  # fmt: skip
"""Of the collection's whole files, those that nobody can read; its empty ones are not sent."""

HARMLESS_BOMBS = {"chapters.mkv", "packets.mka"}
"""Bombs that are media all the same."""

pytestmark = [
    pytest.mark.service,
    pytest.mark.long,
    pytest.mark.timeout(3_400 if EVERYTHING else 900),
]


@dataclass(slots=True)
class Ended:
    """What became of a file that was sent."""

    file: DamagedFile
    job: dict[str, Any]
    seconds: float

    @property
    def code(self) -> str | None:
        error = self.job.get("error")
        return None if error is None else str(error["code"])


@dataclass(slots=True)
class Memory:
    """Samples the service's memory in a thread of its own."""

    service: Service
    peak_bytes: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def sample(self) -> None:
        while not self._stop.wait(2.0):
            self.peak_bytes = max(self.peak_bytes, self.service.resident_bytes())

    def stop(self) -> None:
        self._stop.set()


@dataclass(slots=True)
class Run:
    """All files sent through one service, and what was seen of it meanwhile."""

    service: Service
    ended: list[Ended]
    replicas_before: set[tuple[str, int]]
    replicas_after: set[tuple[str, int]]
    base_bytes: int
    peak_bytes: int


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[DamagedFile]:
    folder = tmp_path_factory.mktemp("damaged")
    return [*raw_files(folder), *(everything(folder) if EVERYTHING else a_few(folder))]


def raw_files(folder: Path) -> Iterator[DamagedFile]:
    for name, (content, _) in RAW.items():
        (folder / name).write_bytes(content)
        yield DamagedFile(folder / name, "camera RAW", name)


def a_few(folder: Path) -> list[DamagedFile]:
    """Damaged variants of two small files made here, and the bombs."""
    originals = [write_sample(folder, STANDARD[0]), write_sample(folder, STANDARD[8])]
    whole = [DamagedFile(path, "whole", path.name) for path in originals]
    damaged = list(damaged_files(originals, folder, seed=SEED, count=6))
    chosen = {f"bomb-{name}" for name in ("billion.mp4", "packets.mka", "list.m3u8", "rate.wav")}
    return [*whole, *damaged, *(file for file in bombs(folder) if file.path.name in chosen)]


def everything(folder: Path) -> list[DamagedFile]:
    """The whole collection, variants of its smaller files, wrong names and all bombs."""
    found = [path for group in GROUPS for path in sorted((SHARED_MEDIA / group).glob("*"))]
    media = [p for p in found if p.suffix not in NOT_MEDIA or p.name.startswith("real-")]
    whole = [DamagedFile(path, "whole", path.name) for path in media if path.stat().st_size]
    small = [
        path
        for path in media
        if 1_000 < path.stat().st_size < LARGEST_ORIGINAL_BYTES and path.parent.name != "broken"
    ]
    return [
        *bombs(folder),
        *tag_bombs(small, folder),
        *misnamed_files(small, folder, seed=SEED),
        *damaged_files(small, folder, seed=SEED, count=COUNT),
        *whole,
    ]


@pytest.fixture(scope="module")
def temporary() -> Iterator[Path]:
    """Where the service is told to put its temporary files. Sockets need short paths."""
    folder = Path(tempfile.mkdtemp(prefix="vas-damaged-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def run(
    files: list[DamagedFile], temporary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Run]:
    """Every file as a job, several at a time; the report is printed."""
    folder = tmp_path_factory.mktemp("service")
    settings = {
        "VAS_RAW_DECODERS": decoders(folder),
        "VAS_SEGMENT_SECONDS": "5",
        "VAS_SOURCE_RETENTION_SECONDS": "1",
        # What grows with the load shrinks again: that would look like a death.
        "VAS_MODEL_REPLICAS": '{"transcribe": 1}',
        "TMPDIR": str(temporary),
    }
    with running(folder / "data", folder / "service.log", **settings) as service:
        before, base = replicas(service), service.resident_bytes()
        memory = Memory(service)
        watcher = threading.Thread(target=memory.sample, daemon=True)
        watcher.start()
        ended = send_all(service, files)
        memory.stop()
        watcher.join()
        done = Run(service, ended, before, replicas(service), base, memory.peak_bytes)
        report(done)
        yield done


def send_all(service: Service, files: Sequence[DamagedFile]) -> list[Ended]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda file: send(service, file), files))


def send(service: Service, file: DamagedFile) -> Ended:
    """One job, from its creation to its end; a refused creation is an end too."""
    began = time.monotonic()
    with ApiClient(service.base_url, service.api_key) as client:
        try:
            job = client.create_job(file.path.name, file.path.stat().st_size)
            client.upload(file.path, job["uploadUrl"], job["uploadHeaders"])
            job = dict(client.wait(job["jobId"], timeout_seconds=JOB_SECONDS))
        except RequestFailedError as error:
            job = {"state": "refused", "error": {"code": error.code}}
    return Ended(file, job, time.monotonic() - began)


def replicas(service: Service) -> set[tuple[str, int]]:
    """Deployments' replicas with their processes."""
    found = set()
    for process in service.processes():
        # Ray puts what a replica is called for at the moment behind its name.
        name = re.match(r"ray::ServeReplica:vas:\w+", " ".join(process.cmdline()))
        if name:
            found.add((name.group(), process.pid))
    return found


def report(done: Run) -> None:
    outcomes = Counter((end.file.kind, end.job["state"], end.code) for end in done.ended)
    for end in done.ended:
        print(
            f"{end.file.path.name[:44]:44} {end.file.kind[:28]:28} {end.job['state']:9}"
            f" {end.code or '-':18} {end.seconds:6.1f} s",
            [warning["code"] for warning in end.job.get("warnings", [])],
            (end.job.get("error") or {}).get("message", ""),
        )
    summary = {
        "files": len(done.ended),
        "outcomes": {" / ".join(map(str, key)): count for key, count in outcomes.items()},
        "base_mib": done.base_bytes >> 20,
        "peak_mib": done.peak_bytes >> 20,
    }
    print(json.dumps(summary))


def test_every_job_ends_completed_or_failed_in_the_right_stage(run: Run) -> None:
    for end in run.ended:
        assert end.job["state"] in ("completed", "failed"), (end.file, end.job)
        stages = end.job["stages"]
        failed = [name for name, stage in stages.items() if stage["status"] == "failed"]
        assert bool(failed) == (end.job["state"] == "failed"), (end.file, stages)
        for name in failed:
            assert stages[name]["error"]["code"] in CODES[name], (end.file, stages)
        ended = {"completed", "failed", "skipped"}
        assert {stage["status"] for stage in stages.values()} <= ended, (end.file, stages)


def test_whole_files_complete_and_what_nobody_can_read_fails_validation(run: Run) -> None:
    for end in run.ended:
        if end.file.kind in ("whole", "wrong name"):
            expected = "VALIDATION_FAILED" if end.file.origin in UNREADABLE else None
            assert end.code == expected, (end.file, end.job.get("error"))


def test_bombs_are_refused_and_those_that_are_media_are_analysed(run: Run) -> None:
    for end in run.ended:
        if end.file.origin in BOMBS:
            expected = None if end.file.origin in HARMLESS_BOMBS else "VALIDATION_FAILED"
            assert end.code == expected, (end.file, end.job.get("error"))


def test_camera_raw_is_decoded_by_its_command_and_charged_by_its_tier(run: Run) -> None:
    for end in run.ended:
        if end.file.origin in RAW:
            assert end.code == RAW[end.file.origin][1], end.job.get("error")
            assert end.job["tier"] == "raw"
    address = f"{run.service.base_url}/pricing/estimate?durationSeconds=2&tier=raw"
    estimate = httpx.get(address, trust_env=False).json()["data"]
    whole = next(end for end in run.ended if end.file.origin == "clip.r3d")
    assert whole.job["chargedCents"] == estimate["cents"]
    assert whole.job["durationSeconds"] == pytest.approx(2.0, abs=0.1)


def test_camera_raw_without_a_command_is_refused_at_once(run: Run) -> None:
    with run.service.client() as client, pytest.raises(RequestFailedError) as caught:
        client.create_job("clip.braw", 1_000)
    assert (caught.value.code, caught.value.status) == ("UNSUPPORTED_FORMAT", 415)


def test_no_worker_died_and_nobody_was_run_twice(run: Run) -> None:
    assert run.replicas_after >= run.replicas_before
    [(leases,)] = run.service.query("SELECT max(lease_count) FROM jobs")
    assert leases == 1


def test_memory_stays_bounded(run: Run) -> None:
    assert 0 < run.peak_bytes < MEMORY_BOUND_BYTES


def test_nothing_is_left_behind(run: Run, temporary: Path) -> None:
    """Neither in temporary folders nor, once it was cleaned, in the object store."""
    ours = ("ingest-", "raw-", "tmp")
    assert [path.name for path in temporary.iterdir() if path.name.startswith(ours)] == []
    # Marks that tell tasks to stop stay for two minutes; then the folder is searched again.
    deadline = time.monotonic() + 180
    while (left := left_in_store(run)) and time.monotonic() < deadline:
        time.sleep(1)
    assert left == []


def left_in_store(run: Run) -> list[str]:
    """Objects other than the stills that results show."""
    store = run.service.data / "objects"
    files = [path for path in store.rglob("*") if path.is_file()]
    return [str(path.relative_to(store)) for path in files if "thumbnails" not in path.parts]
