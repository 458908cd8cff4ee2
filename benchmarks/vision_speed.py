"""Frames a second of the whole vision stage against plain decoding and PySceneDetect.

    .venv/bin/python -m benchmarks.vision_speed [--sizes 1080p 4k] [--cores 1 2] [--files F …]
    .venv/bin/python -m benchmarks.vision_speed --shares

Over the same files, on the same cores (the processes are bound to them), in one call:

- ours: ``analyse_vision`` through Ray Data on segments cut as the service cuts them: features,
  cuts, stills, descriptions, palettes, thumbnails. Ray is started before the clock, and the
  stage has gone over the demo video once, as in a service that is up: workers have their imports.
- cuts: only the part of it that PySceneDetect does too, every frame's features and the cuts.
- ffmpeg: ``ffmpeg -i FILE -f null -``, its video decoded and thrown away; left out where there is
  none.
- PySceneDetect: its default detector over the file, reading with its default backend.

Each side runs ``--rounds`` times, taking turns, and its median counts: the machine may be shared.
Memory is the largest sum of proportional set sizes (PSS) of a side's processes, sampled in one more
run that is not timed: to sample it costs more, the more processes a side has. The
footage is real shots and drawn ones with a cut every few seconds, encoded once, and lengthened by
remuxing for ``--minutes``. ffmpeg is for measuring only. The last line is JSON.

``--shares`` runs the stage in one process without Ray and counts the processor seconds of its
parts, those of confined children with them: they do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pkgutil
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import psutil

from benchmarks.programmes.editing import Programme
from benchmarks.programmes.shots import ShotLibrary

SIZES = {"1080p": (1920, 1080), "4k": (3840, 2160)}
RATE = 25
SAMPLE_SECONDS = 0.5
SEGMENT_SECONDS = 60.0
DEMO = Path(__file__).resolve().parents[1] / "tests/media/demo.mp4"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="length of the encoded footage")
    parser.add_argument("--minutes", type=float, nargs="*", default=[], help="longer ones, remuxed")
    parser.add_argument("--sizes", nargs="*", choices=list(SIZES), default=["1080p"])
    parser.add_argument("--files", type=Path, nargs="*", default=[], help="these, too, as they are")
    parser.add_argument("--cores", type=int, nargs="*", default=[2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keeps the footage from run to run")
    parser.add_argument("--shares", action="store_true", help="processor seconds of the parts")
    parser.add_argument("--side", nargs=2, metavar=("SIDE", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--cpus", type=int, default=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        SIDES[options.side[0]](Path(options.side[1]), options.cpus)
        return
    with tempfile.TemporaryDirectory(prefix="vas-speed-") as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if options.shares:
            print(json.dumps(shares(footage(folder, options.sizes[0], options.seconds))))
            return
        rows = []
        for size in options.sizes:
            short = footage(folder, size, options.seconds)
            files = [short, *(longer(short, minutes) for minutes in options.minutes)]
            rows += [
                measured(file, size, cores, options.rounds)
                for file in files
                for cores in options.cores
            ]
        rows += [
            measured(file, "as it is", cores, options.rounds)
            for file in options.files
            for cores in options.cores
        ]
    print(json.dumps({"cpu_count": os.cpu_count(), "rows": rows}))


def footage(folder: Path, size: str, seconds: int) -> Path:
    """A programme of shots with hard cuts and gradual transitions, as H.264 of 8 Mbit/s or so."""
    path = folder / f"{size}-{seconds}s.mp4"
    if path.exists():
        return path
    part = path.with_suffix(".part.mp4")
    width, height = SIZES[size]
    with av.open(str(part), "w") as container:
        options = {"preset": "veryfast", "crf": "23", "bf": "2", "g": "50"}
        stream = container.add_stream("libx264", rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        pictures = Programme(77, ShotLibrary((1280, 720), True), seconds // 2).pictures()
        for index, picture in zip(range(seconds * RATE), pictures, strict=False):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            large = frame.reformat(width, height, "yuv420p", interpolation="BICUBIC")
            large.pts, large.time_base = index, Fraction(1, RATE)
            container.mux(stream.encode(large))
        container.mux(stream.encode(None))
    return part.rename(path)


def longer(path: Path, minutes: float) -> Path:
    """The file over and over for so long, by copying its packets."""
    target = path.with_name(f"{path.stem}-{minutes:g}min.mp4")
    if target.exists():
        return target
    with av.open(str(target), "w") as out:
        shift, mould, reached = 0, None, 0.0
        while reached < minutes * 60:
            with av.open(str(path)) as source:
                stream = source.streams.video[0]
                mould = mould or out.add_stream_from_template(stream)
                for packet in source.demux(stream):
                    if packet.dts is None:
                        continue
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    packet.stream = mould
                    out.mux(packet)
                shift += stream.duration
                reached = float(shift * stream.time_base)
    return target


def measured(path: Path, size: str, cores: int, rounds: int) -> dict[str, Any]:
    """Every side over the file on so many cores, in turns; prints and returns the row."""
    with av.open(str(path)) as container:
        frames = container.streams.video[0].frames
        frame_rate = float(container.streams.video[0].average_rate or RATE)
    sides = [side for side in SIDES if side != "ffmpeg" or shutil.which("ffmpeg")]
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    memory = dict.fromkeys(sides, 0)
    for _ in range(rounds):
        for side in sides:
            seconds[side].append(run_side(side, path, cores)[0])
    for side in sides:
        memory[side] = run_side(side, path, cores, sampled=True)[1]
    rates = {side: frames / statistics.median(times) for side, times in seconds.items()}
    row = {
        "file": path.name,
        "size": size,
        "cores": cores,
        "frames": frames,
        "frames_a_second": {side: round(rate, 1) for side, rate in rates.items()},
        "peak_mib": {side: peak // 2**20 for side, peak in memory.items()},
        "ours_to_real_time": round(rates["ours"] / frame_rate, 1),
        **{
            f"{own}_to_{side}": round(median_ratio(seconds[own], seconds[side]), 3)
            for own in OWN_SIDES
            for side in sides
            if side not in OWN_SIDES
        },
        "seconds": {side: [round(value, 2) for value in times] for side, times in seconds.items()},
    }
    print(row, flush=True)
    return row


def run_side(side: str, path: Path, cores: int, *, sampled: bool = False) -> tuple[float, int]:
    """(seconds that the side reports, most memory of its processes in bytes where ``sampled``)."""
    bound = ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0))[:cores])
    command = ["taskset", "-c", bound, sys.executable, "-m", "benchmarks.vision_speed"]
    process = subprocess.Popen(
        [*command, "--side", side, str(path), "--cpus", str(cores)],
        stdout=subprocess.PIPE,
        text=True,
    )
    peak, ended = [0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, ended, peak))
    if sampled:
        watcher.start()
    output, _ = process.communicate()
    ended.set()
    if sampled:
        watcher.join()
    if process.returncode != 0:
        raise RuntimeError(f"{side} failed on {path.name}")
    return float(output.strip().splitlines()[-1]), peak[0]


def _watch(pid: int, ended: threading.Event, peak: list[int]) -> None:
    while not ended.wait(SAMPLE_SECONDS):
        peak[0] = max(peak[0], _memory(pid))


def _memory(pid: int) -> int:
    """Proportional set size of a process and all below it."""
    total = 0
    try:
        own = psutil.Process(pid)
        family = [own, *own.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in family:
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def _ours(path: Path, cores: int, *, cuts_only: bool = False) -> None:
    """The vision stage as the service runs it, on a Ray of so many CPUs."""
    import ray

    ray.init(num_cpus=cores, include_dashboard=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    _vision_seconds(DEMO, segment_seconds=10.0, cuts_only=cuts_only)
    print(_vision_seconds(path, SEGMENT_SECONDS, cuts_only=cuts_only))


def _cuts(path: Path, cores: int) -> None:
    _ours(path, cores, cuts_only=True)


_PARTS = (
    ("decoding and features", "pipelines.vision.features", "segment_features"),
    ("of it: strokes of writing", "pipelines.vision.features", "frame_strokes"),
    ("of it: keeping key frames", "pipelines.vision.features.KeptFrames", "add"),
    ("cuts", "pipelines.vision.pipeline", "find_cuts"),
    (
        "of it: judging",
        "models.backends.packaged.pictures.TransNetBoundaryDetector",
        "detect_boundaries",
    ),
    ("stills", "pipelines.vision.scenes", "stills_at"),
    ("when to read", "pipelines.vision.sections", "scene_places"),
    ("frames to read", "pipelines.vision.screen_text", "stills_at"),
    ("is there writing?", "pipelines.vision.screen_text", "may_show_text"),
    ("camera motion", "pipelines.vision.scenes", "camera_motion"),
    ("palettes", "pipelines.vision.scenes", "palette"),
    ("thumbnails", "pipelines.vision.scenes", "thumbnail"),
    ("light and colours", "models.backends.packaged.describer", "measure"),
    ("reading", "models.backends.packaged.text_reader.PackagedTextReader", "read"),
    ("faces", "models.backends.packaged.faces.FaceFinder", "find_marked"),
    ("which still", "models.backends.packaged.describer", "by_what_they_show"),
    ("camera angle", "models.backends.packaged.describer", "shot_angle_of"),
    ("frames for objects", "pipelines.vision.detections", "stills_at"),
    ("objects", "models.backends.packaged.pictures.PackagedObjectDetector", "find"),
)
"""What is timed: a name, and the function by its module or class."""


def shares(path: Path) -> dict[str, Any]:
    """Processor seconds of the parts of the stage over the file, and how often each was called."""
    from pipelines.execution.chain import map_here

    spent: dict[str, list[float]] = {name: [] for name, _, _ in _PARTS}
    _vision_seconds(DEMO, 10.0, map_here)
    for name, place, function in _PARTS:
        owner = pkgutil.resolve_name(place)
        setattr(owner, function, _timed(getattr(owner, function), spent[name]))
    before = _processor_seconds()
    _vision_seconds(path, SEGMENT_SECONDS, map_here)
    whole = _processor_seconds() - before
    parts = {name: round(sum(times), 2) for name, times in spent.items()}
    rest = round(
        whole - sum(each for name, each in parts.items() if not name.startswith("of it")), 2
    )
    return {
        "file": path.name,
        "seconds": {
            **parts,
            "the rest, with cutting into segments": rest,
            "whole": round(whole, 2),
        },
        "calls": {name: len(times) for name, times in spent.items()},
    }


def _timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*arguments: Any, **named: Any) -> Any:
        before = _processor_seconds()
        try:
            return function(*arguments, **named)
        finally:
            spent.append(_processor_seconds() - before)

    return run


def _processor_seconds() -> float:
    """Of this process and its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _vision_seconds(
    path: Path, segment_seconds: float, mapper: Any = None, *, cuts_only: bool = False
) -> float:
    """Wall time of the vision stage over the file's segments, cut before the clock."""
    from models.provider import LocalModels
    from pipelines.execution.chain import FreeRun, Workspace
    from pipelines.execution.ray_data import map_on_ray
    from pipelines.ingest.pipeline import (
        SHORTEST_SEGMENT_SECONDS,
        IngestConfig,
        IngestContext,
        ingest,
    )
    from pipelines.vision.cuts.pipeline import find_cuts
    from pipelines.vision.features import ReadFrames
    from pipelines.vision.pipeline import VisionConfig, analyse_vision, features_config
    from storage.objects.folder import FolderStore

    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(FolderStore(Path(folder)), "job")
        source = Path(folder) / "source"
        try:
            os.link(path, source)
        except OSError:
            shutil.copyfile(path, source)
        ingested = ingest(
            "source",
            IngestContext(
                workspace,
                FreeRun(),
                IngestConfig(
                    segment_seconds=segment_seconds,
                    shortest_segment_seconds=SHORTEST_SEGMENT_SECONDS,
                ),
            ),
            audio=False,
        )
        if ingested.video is None:
            raise RuntimeError("The file has no picture.")
        video, control, on = ingested.video, FreeRun(), mapper or map_on_ray
        config = VisionConfig()
        started = time.perf_counter()
        if cuts_only:
            read = ReadFrames(video, workspace, features_config(config, video))
            features = on(video.segments, read, control)
            find_cuts(
                features, video, workspace, control, config.cuts, models=LocalModels(), mapper=on
            )
        else:
            analyse_vision(
                video,
                workspace=workspace,
                models=LocalModels(),
                control=control,
                config=config,
                mapper=on,
            )
        return time.perf_counter() - started


def _ffmpeg(path: Path, cores: int) -> None:
    started = time.perf_counter()
    command = ["ffmpeg", "-v", "error", "-i", str(path), "-an", "-f", "null", "-"]
    subprocess.run(command, check=True)
    print(time.perf_counter() - started)


def _pyscenedetect(path: Path, cores: int) -> None:
    import scenedetect

    started = time.perf_counter()
    scenedetect.detect(str(path), scenedetect.AdaptiveDetector())
    print(time.perf_counter() - started)


OWN_SIDES = ("ours", "cuts")
SIDES: dict[str, Callable[[Path, int], None]] = {
    "ours": _ours,
    "cuts": _cuts,
    "ffmpeg": _ffmpeg,
    "pyscenedetect": _pyscenedetect,
}


def median_ratio(ours: Sequence[float], peer: Sequence[float]) -> float:
    """How many times as fast the first is, pair by pair: they were taken side by side."""
    return statistics.median(other / own for own, other in zip(ours, peer, strict=True))


if __name__ == "__main__":
    main()
