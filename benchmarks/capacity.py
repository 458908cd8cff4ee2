"""What an hour of footage costs: processor time, database work, bytes kept and bytes in passing.

    .venv/bin/python -m benchmarks.capacity [--file VIDEO] [--repeats 4] [--jobs 2]

The file, laid end to end ``repeats`` times by stream copy, goes through the whole service as jobs
of each mode, one after the other. Processor seconds are those of all processes of the
service, PostgreSQL apart; what the idle service takes in the same time is subtracted and shown:
it is the peer of every figure. The last line is JSON; docs/capacity.md computes with it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import av
import psutil
import psycopg

from serve_app.cli.accounts import demo_key
from serve_app.client.api import ApiClient
from serve_app.deployment.local import free_port, running_service
from serve_app.settings import Settings

Mode = Literal["vision", "transcript", "all"]
DEMO = Path(__file__).resolve().parents[1] / "tests/media/demo.mp4"
IDLE_SECONDS = 20.0
CLEANED_SECONDS = 20.0
"""After retention, how long the reaper is given to remove what need not stay."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Totals so far, or differences of two readings."""

    seconds: float
    service_cpu_seconds: float
    postgres_cpu_seconds: float
    transactions: int
    rows_written: int
    table_bytes: int

    def since(self, earlier: Reading) -> dict[str, float]:
        return {name: getattr(self, name) - getattr(earlier, name) for name in self.__slots__}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=DEMO)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vas-bench-") as folder:
        clip = repeated(options.file, Path(folder) / "clip.mp4", options.repeats)
        settings = Settings(
            data_dir=Path(folder), port=free_port(), model_replicas={"transcribe": 1},
            source_retention_seconds=5,
        )  # fmt: skip
        with running_service(settings) as (base, complete):
            key = demo_key(complete)
            with ApiClient(base, key) as client:
                result = measure(client, complete, clip, options.jobs)
    print(json.dumps(result))


def repeated(source: Path, target: Path, times: int) -> Path:
    """The source ``times`` over, without encoding anything again."""
    with av.open(str(target), "w") as writer:
        offset = 0.0
        streams: dict[int, Any] = {}
        for _ in range(times):
            with av.open(str(source)) as reader:
                for stream in reader.streams:
                    if stream.index not in streams:
                        streams[stream.index] = writer.add_stream_from_template(stream)
                for packet in reader.demux():
                    if packet.dts is None or packet.pts is None or packet.time_base is None:
                        continue
                    shift = round(offset / packet.time_base)
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    packet.stream = streams[packet.stream.index]
                    writer.mux(packet)
                offset += (reader.duration or 0) / av.time_base
    return target


def measure(client: ApiClient, settings: Settings, clip: Path, jobs: int) -> dict[str, Any]:
    """Idle first, then jobs of each mode after one that warms up."""
    with psycopg.connect(settings.database_url or "", autocommit=True) as connection:
        run_job(client, clip, "all")
        before = read(connection, settings)
        time.sleep(IDLE_SECONDS)
        idle = read(connection, settings).since(before)
        with av.open(str(clip)) as media:
            seconds = (media.duration or 0) / av.time_base
            picture = f"{media.streams.video[0].width}x{media.streams.video[0].height}"
        modes: tuple[Mode, ...] = ("vision", "transcript", "all")
        return {
            "clip": {"seconds": round(seconds, 2), "bytes": clip.stat().st_size, "size": picture},
            "idle_per_second": {
                name: round(value / idle["seconds"], 4) for name, value in idle.items()
            },
            **{
                mode: of_mode(client, settings, connection, clip, (mode, jobs, seconds), idle)
                for mode in modes
            },
        }


def of_mode(
    client: ApiClient,
    settings: Settings,
    connection: psycopg.Connection[Any],
    clip: Path,
    asked: tuple[Mode, int, float],
    idle: dict[str, float],
) -> dict[str, Any]:
    """Per hour of footage and per job, less what idling took meanwhile."""
    mode, jobs, seconds = asked
    before = read(connection, settings)
    job_ids, passing = [], 0.0
    for _ in range(jobs):
        job_ids.append(run_job(client, clip, mode))
        passing += bytes_below(settings, job_ids[-1]) / jobs
    spent = read(connection, settings).since(before)
    wall = spent["seconds"]
    net = {name: spent[name] - idle[name] * wall / idle["seconds"] for name in spent}
    hours = jobs * seconds / 3600
    time.sleep((settings.source_retention_seconds or 0) + CLEANED_SECONDS)
    kept = sum(bytes_below(settings, job_id) for job_id in job_ids) / jobs
    return {
        "jobs": jobs,
        "wall_seconds_a_footage_hour": round(wall / hours),
        "service_cpu_seconds_a_footage_hour": round(net["service_cpu_seconds"] / hours),
        "postgres_cpu_seconds_a_footage_hour": round(net["postgres_cpu_seconds"] / hours, 1),
        "transactions_a_job": round(net["transactions"] / jobs, 1),
        "rows_written_a_job": round(net["rows_written"] / jobs, 1),
        "table_bytes_a_footage_hour": round(spent["table_bytes"] / hours),
        "object_bytes_in_passing_a_footage_hour": round(passing * 3600 / seconds),
        "object_bytes_kept_a_footage_hour": round(kept * 3600 / seconds),
    }


def run_job(client: ApiClient, clip: Path, mode: Mode) -> str:
    """One job to its end; the client asks for it every half second."""
    job = client.create_job(clip.name, clip.stat().st_size, mode)
    client.upload(clip, job["uploadUrl"], job["uploadHeaders"])
    while True:
        found = dict(client.get_job(job["jobId"]))
        if found["state"] in {"completed", "failed"}:
            break
        time.sleep(0.5)
    if found["state"] != "completed":
        raise RuntimeError(f"the job failed: {found['error']}")
    job_id: str = job["jobId"]
    return job_id


def read(connection: psycopg.Connection[Any], settings: Settings) -> Reading:
    """Everything that adds up, now."""
    row = connection.execute(
        """
        SELECT xact_commit, tup_inserted + tup_updated + tup_deleted,
               (SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables)::bigint
          FROM pg_stat_database WHERE datname = current_database()
        """
    ).fetchone()
    assert row is not None
    pid = int((settings.data_dir / "postgres" / "postmaster.pid").read_text().split()[0])
    database = set(family(psutil.Process(pid)))
    service = set(family(psutil.Process())) - database
    return Reading(time.monotonic(), cpu_seconds(service), cpu_seconds(database), *row)


def family(root: psutil.Process) -> Iterator[psutil.Process]:
    yield root
    yield from root.children(recursive=True)


def cpu_seconds(processes: set[psutil.Process]) -> float:
    """Of the processes and of their children that have ended."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def bytes_below(settings: Settings, job_id: str) -> int:
    folder = settings.data_dir / "objects" / "jobs" / job_id
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
