"""Time and memory of the whole pipeline over longer and longer footage, on two cores.

    .venv/bin/python -m benchmarks.scale [--minutes 10 60] [--modes all vision transcript]

Footage: the demo video over and over, by stream copy. A run is a process of its own: ingest, then
vision, then the transcript through Ray Data, with the models in the tasks. Reported for each: wall
and processor seconds (of all processes) per hour of footage, and the most memory (PSS) of the
driver, of the largest task process, and of all processes together. Where other work runs beside
it, look at the processor seconds: they do not count the others. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import av
import psutil

from models.provider import LocalModels
from pipelines.execution.chain import Mapper, Workspace
from pipelines.execution.ray_data import map_on_ray
from pipelines.ingest.pipeline import IngestContext, ingest
from pipelines.speech.pipeline import TranscriptConfig, transcribe_track
from pipelines.types import IngestResult
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from storage.objects.folder import FolderStore
from tests.places import DEMO, PROJECT

SAMPLE_SECONDS, MEMORY_SECONDS = 0.5, 5.0
"""Processor times are looked at often, memory seldom: that is dear with many processes."""
CORES = 2


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, nargs="*", default=[10.0])
    parser.add_argument("--modes", nargs="*", default=["all"])
    parser.add_argument("--run", help="used by the benchmark itself: one run, as JSON")
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(**json.loads(options.run))))
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="vas-scale-") as folder:
        for minutes in options.minutes:
            footage = looped(DEMO, Path(folder) / f"{minutes:g}.mp4", minutes * 60)
            for mode in options.modes:
                rows.append(measured(footage, minutes, mode))
                print(json.dumps(rows[-1]), flush=True)
    print(json.dumps({"runs": rows}))


def looped(source: Path, target: Path, seconds: float) -> Path:
    """The source's packets over and over, with rising times, at least ``seconds`` long."""
    with av.open(str(source)) as reader, av.open(str(target), "w") as writer:
        streams = {s.index: writer.add_stream_from_template(s) for s in reader.streams}
        packets = [(packet, bytes(packet)) for packet in reader.demux() if packet.size]
        length = reader.duration / av.time_base
        for turn in range(max(1, round(seconds / length))):
            for original, data in packets:
                packet = av.Packet(data)
                shift = round(turn * length / original.time_base)
                packet.pts, packet.dts = original.pts + shift, original.dts + shift
                packet.time_base, packet.duration = original.time_base, original.duration
                packet.is_keyframe = original.is_keyframe
                packet.stream = streams[original.stream.index]
                writer.mux(packet)
    return target


def measured(footage: Path, minutes: float, mode: str) -> dict[str, Any]:
    """One run in a process of its own, watched."""
    asked = {"path": str(footage), "mode": mode}
    command = [sys.executable, "-m", "benchmarks.scale", "--run", json.dumps(asked)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=PROJECT) as process:
        watch = Watch(psutil.Process(process.pid))
        with watch.running():
            assert process.stdout is not None
            output = process.stdout.read().decode()
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    hours = minutes / 60
    return {
        "minutes": minutes,
        "mode": mode,
        "wall_seconds_per_hour": round(found["wall_seconds"] / hours, 1),
        "processor_seconds_per_hour": round(watch.processor_seconds / hours, 1),
        "peak_mib": watch.peaks_mib(process.pid),
    } | found


@dataclass(slots=True)
class Watch:
    """The most memory that each process below ``root`` had, and the processor time of all."""

    root: psutil.Process
    peak_bytes: dict[int, int]
    cpu_seconds: dict[int, float]
    most_bytes: int = 0

    def __init__(self, root: psutil.Process) -> None:
        self.root, self.peak_bytes, self.cpu_seconds, self.most_bytes = root, {}, {}, 0

    @property
    def processor_seconds(self) -> float:
        """Of all processes that were seen."""
        return sum(self.cpu_seconds.values())

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Look twice a second during the block, at memory every five seconds."""
        ended = threading.Event()

        def look() -> None:
            for position in itertools.count(1):
                if ended.wait(SAMPLE_SECONDS):
                    return
                self.look(at_memory=position % round(MEMORY_SECONDS / SAMPLE_SECONDS) == 0)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def look(self, *, at_memory: bool) -> None:
        """Take the present state of all processes."""
        total = 0
        with contextlib.suppress(psutil.Error):
            for process in [self.root, *self.root.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    self.cpu_seconds[process.pid] = times.user + times.system
                    if at_memory:
                        size = process.memory_full_info().pss
                        total += size
                        known = self.peak_bytes.get(process.pid, 0)
                        self.peak_bytes[process.pid] = max(size, known)
        self.most_bytes = max(self.most_bytes, total)

    def peaks_mib(self, driver: int) -> dict[str, int]:
        """The driver's, the largest other process's, and the most of all together."""
        others = [size for pid, size in self.peak_bytes.items() if pid != driver]
        return {
            "driver": round(self.peak_bytes.get(driver, 0) / 2**20),
            "largest_other": round(max(others, default=0) / 2**20),
            "together": round(self.most_bytes / 2**20),
        }


def run(path: str, mode: str) -> dict[str, Any]:
    """Ingest and analyse; seconds without those that starting Ray takes, paid once a service."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:CORES]))
    with tempfile.TemporaryDirectory(prefix="vas-scale-work-") as folder:
        store = FolderStore(Path(folder))
        with store.writer("source/media") as stream, Path(path).open("rb") as source:
            for block in iter(lambda: source.read(1 << 20), b""):
                stream.write(block)
        with ray_data():
            before = processor_seconds()
            started = time.perf_counter()
            found = analyse(store, mode)
            return found | {
                "wall_seconds": round(time.perf_counter() - started, 2),
                "work_processor_seconds": round(processor_seconds() - before, 2),
            }


def analyse(store: FolderStore, mode: str) -> dict[str, Any]:
    """The whole job, stage by stage."""
    workspace, models = Workspace(store, "work"), LocalModels()
    recorder = Recorder()
    ingested = ingest("source/media", IngestContext(workspace, recorder))
    stages = {"ingest": recorder.summary()}
    found: dict[str, Any] = {"stages": stages}
    for stage, work in (("vision", vision_of), ("transcript", transcript_of)):
        if mode in {"all", stage}:
            recorder = Recorder()
            found |= work(ingested, workspace, models, recorder, map_on_ray)
            stages[stage] = recorder.summary()
    return found


class Recorder:
    """A Control that never stops a stage and keeps when it told which progress."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.seen: list[tuple[float, float]] = [(0.0, 0.0)]

    def check(self) -> None:
        """Go on."""

    def progress(self, fraction: float) -> None:
        """Keep it."""
        self.seen.append((time.perf_counter() - self.started, fraction))

    def summary(self) -> dict[str, Any]:
        """Seconds; the longest standstill; whether it went back; how wrong the end was told.

        The last: the worst of (expected - true) / true whole time after a tenth of it, where the
        end is expected from the share that is done.
        """
        whole = time.perf_counter() - self.started
        moves = [(0.0, 0.0)]
        for now, fraction in self.seen:
            if fraction - moves[-1][1] >= 1e-6:
                moves.append((now, fraction))
        times = [now for now, _ in moves] + [whole]
        errors = [abs(now / f - whole) / whole for now, f in self.seen if f and now > whole / 10]
        standstills = [later - earlier for earlier, later in itertools.pairwise(times)]
        fractions = [fraction for _, fraction in self.seen]
        return {
            "seconds": round(whole, 2),
            "longest_standstill_seconds": round(max(standstills), 2),
            "went_back": fractions != sorted(fractions),
            "worst_eta_error": round(max(errors, default=0.0), 3),
        }


def vision_of(
    ingested: IngestResult,
    workspace: Workspace,
    models: LocalModels,
    control: Recorder,
    mapper: Mapper,
) -> dict[str, int]:
    assert ingested.video is not None
    result = analyse_vision(
        ingested.video,
        workspace=workspace,
        models=models,
        control=control,
        config=VisionConfig(),
        mapper=mapper,
    )
    return {"scenes": len(result.scenes)}


def transcript_of(
    ingested: IngestResult,
    workspace: Workspace,
    models: LocalModels,
    control: Recorder,
    mapper: Mapper,
) -> dict[str, int]:
    # The model runs in the task here, so that a task takes a core.
    config = replace(TranscriptConfig(), transcribe_cpus=1.0, regions_cpus=1.0)
    result = transcribe_track(
        ingested.tracks[0],
        workspace=workspace,
        models=models,
        control=control,
        config=config,
        media_duration_ms=round(ingested.media.duration_seconds * 1000),
        mapper=mapper,
    )
    words = sum(len(segment.words) for segment in result.segments)
    return {"words": words, "speakers": len(result.speakers)}


@contextlib.contextmanager
def ray_data() -> Iterator[None]:
    """A local Ray, warm."""
    import ray

    ray.init("local", num_cpus=CORES, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    ray.data.from_items([{"n": n} for n in range(CORES)]).map(lambda row: row).materialize()
    try:
        yield
    finally:
        ray.shutdown()


def processor_seconds() -> float:
    """Of this process and all of Ray's; task processes outlive the measurement."""
    own = psutil.Process().cpu_times()
    total = float(own.user + own.system + own.children_user + own.children_system)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


if __name__ == "__main__":
    main()
