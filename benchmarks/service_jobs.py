"""What the service adds to what the models take, and the memory of many jobs at once.

    .venv/bin/python -m benchmarks.service_jobs [--jobs 10]

Overhead of a warm service: time from the request that creates a job of a ten-second clip to the
moment that a client, polling every 50 ms, sees it completed, less the time that the same stages
take in this process when the service has ended: ingest, then vision and transcript in a thread
each, warm, without Ray, HTTP and database. Beside it, as in earlier versions, the same less the
time that the transcriber worked. The peer of the memory figure is the same service idle. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import psutil

from models.provider import LocalModels
from models.tasks import TRANSCRIBE
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.ingest.pipeline import IngestContext, ingest
from pipelines.speech.pipeline import TranscriptConfig, transcribe_track
from pipelines.types import IngestResult
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from serve_app.cli.accounts import demo_key
from serve_app.cli.output import in_service
from serve_app.client.api import ApiClient
from serve_app.deployment.application import APP_NAME
from serve_app.deployment.local import free_port, running_service
from serve_app.settings import Settings
from storage.database import Connection
from storage.objects.folder import FolderStore

DEMO = Path(__file__).resolve().parents[1] / "tests/media/demo.mp4"
CLIP_SECONDS = 10.0
POLL_SECONDS = 0.05


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vas-bench-") as folder:
        settings = Settings(
            data_dir=Path(folder), port=free_port(), model_replicas={"transcribe": 1}
        )
        clip = first_seconds(DEMO, Path(folder) / "clip.mp4", CLIP_SECONDS)
        with running_service(settings) as (base, complete):
            key = demo_key(complete)
            with ApiClient(base, key) as client:
                result = {
                    "overhead": overhead(client, clip, complete, options.runs),
                    "concurrency": concurrency(client, options.jobs),
                }
        loop = loop_seconds(clip, Path(folder), options.runs)
    found = result["overhead"]
    found["loop_seconds"] = loop
    found["overhead_to_loop_seconds"] = round(found["median_seconds"]["total"] - loop, 3)
    print(json.dumps(result))


def first_seconds(source: Path, target: Path, seconds: float) -> Path:
    """A stream copy of the beginning."""
    with av.open(str(source)) as reader, av.open(str(target), "w") as writer:
        streams = {
            stream.index: writer.add_stream_from_template(stream) for stream in reader.streams
        }
        for packet in reader.demux():
            if packet.dts is None or packet.pts is None or packet.time_base is None:
                continue
            if packet.pts * packet.time_base < seconds:
                packet.stream = streams[packet.stream.index]
                writer.mux(packet)
    return target


def overhead(client: ApiClient, clip: Path, settings: Settings, runs: int) -> dict[str, Any]:
    """Medians over ``runs`` jobs one after the other, after two to warm up."""
    samples = []
    for number in range(runs + 2):
        before = model_seconds()
        started = time.perf_counter()
        job_id = submit(client, clip)
        job = wait(client, job_id)
        total = time.perf_counter() - started
        worked = model_seconds() - before
        assert job["state"] == "completed", job
        if number >= 2:
            samples.append({"total": total, "model": worked, **stages(settings, job_id)})
    medians = {
        name: round(statistics.median(sample[name] for sample in samples), 3) for name in samples[0]
    }
    overheads = [sample["total"] - sample["model"] for sample in samples]
    return {
        "clip_seconds": CLIP_SECONDS,
        "median_seconds": medians,
        "overhead_seconds": round(statistics.median(overheads), 3),
        "overhead_seconds_worst": round(max(overheads), 3),
    }


def loop_seconds(clip: Path, folder: Path, runs: int) -> float:
    """The stages as plain functions, the analyses side by side as in the service; median of
    ``runs`` after two to warm up."""
    samples, models = [], LocalModels()
    with ThreadPoolExecutor() as threads:
        for number in range(runs + 2):
            store = FolderStore(folder / f"loop-{number}")
            store.write_bytes("source/media", clip.read_bytes())
            started = time.perf_counter()
            workspace, control = Workspace(store, "work"), FreeRun()
            ingested = ingest("source/media", IngestContext(workspace, control))
            place = ingested, workspace, models, control
            for work in [threads.submit(run, *place) for run in (vision_of, transcript_of)]:
                work.result()
            samples.append(time.perf_counter() - started)
    return round(statistics.median(samples[2:]), 3)


def vision_of(
    ingested: IngestResult,
    workspace: Workspace,
    models: LocalModels,
    control: FreeRun,
) -> None:
    assert ingested.video is not None
    analyse_vision(
        ingested.video,
        workspace=workspace,
        models=models,
        control=control,
        config=VisionConfig(),
        mapper=map_here,
    )


def transcript_of(
    ingested: IngestResult,
    workspace: Workspace,
    models: LocalModels,
    control: FreeRun,
) -> None:
    # The model runs in the task here, so that a task takes a core.
    config = replace(TranscriptConfig(), transcribe_cpus=1.0, regions_cpus=1.0)
    transcribe_track(
        ingested.tracks[0],
        workspace=workspace,
        models=models,
        control=control,
        config=config,
        media_duration_ms=round(ingested.media.duration_seconds * 1000),
        mapper=map_here,
    )


def model_seconds() -> float:
    """Seconds that the one model that the embedded profile serves has worked so far."""
    import ray

    name = TRANSCRIBE.contract_name
    return float(ray.get(ray.get_actor(name, namespace=APP_NAME).busy_seconds.remote()))


def stages(settings: Settings, job_id: str) -> dict[str, float]:
    """Where the time went, as the runner recorded it."""

    async def read(connection: Connection) -> list[tuple[str, dict[str, float]]]:
        statement = "SELECT stage, timings FROM stages WHERE job_id = %(id)s"
        rows = await connection.exec_driver_sql(statement, {"id": job_id})
        return [(row.stage, row.timings) for row in rows]

    found = dict(in_service(settings, lambda connection, _: read(connection)))
    return {
        f"{stage}_{name}": seconds
        for stage, timings in sorted(found.items())
        for name, seconds in timings.items()
        if not name.startswith("shards")
    }


def submit(client: ApiClient, path: Path) -> str:
    """Create a job and upload its media."""
    job = client.create_job(path.name, path.stat().st_size)
    client.upload(path, job["uploadUrl"], job["uploadHeaders"])
    job_id: str = job["jobId"]
    return job_id


def wait(client: ApiClient, job_id: str) -> dict[str, Any]:
    """Poll until the job has ended."""
    while True:
        job = dict(client.get_job(job_id))
        if job["state"] in {"completed", "failed", "cancelled", "expired"}:
            return job
        time.sleep(POLL_SECONDS)


def concurrency(client: ApiClient, count: int) -> dict[str, Any]:
    """Memory of the whole service, sampled, while ``count`` jobs of the demo video run."""
    idle = resident_bytes()
    peak = {"bytes": idle}
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(0.5):
            peak["bytes"] = max(peak["bytes"], resident_bytes())

    sampler = threading.Thread(target=sample)
    sampler.start()
    started = time.perf_counter()
    job_ids = [submit(client, DEMO) for _ in range(count)]
    states = []
    for job_id in job_ids:
        while True:
            job = dict(client.get_job(job_id))
            if job["state"] in {"completed", "failed"}:
                break
            time.sleep(1)
        states.append(job["state"])
    seconds = time.perf_counter() - started
    stop.set()
    sampler.join()
    return {
        "jobs": count,
        "states": {state: states.count(state) for state in set(states)},
        "seconds": round(seconds, 1),
        "footage_seconds_per_second": round(count * 29.76 / seconds, 2),
        "idle_mib": round(idle / 2**20),
        "peak_mib": round(peak["bytes"] / 2**20),
        "peak_to_idle": round(peak["bytes"] / idle, 2),
    }


def resident_bytes() -> int:
    """Proportional memory of this process and all below it, shared pages counted once."""
    total = 0
    root = psutil.Process()
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


if __name__ == "__main__":
    main()
