"""Cuts found in edited programmes with known cut lists: ours against PySceneDetect's detectors.

    .venv/bin/python -m tests.benchmarks.scenes [--seeds 11 12 20] [--folder DIR] [--ours-only]

Programmes are edited from the real shots beside the project and from drawn ones (eight files a
seed: codecs, sizes, frame rates, uneven and dropped frames). Thresholds are tuned on the tuning
seeds; figures to quote are those of the reported seed, whose programmes also use footage that
the tuning seeds never see. The same rule for every detector:

- A hard cut is found by a detection within two frames of its first new frame. A gradual
  transition is found by a detection inside it, or within two frames of either end.
- Each transition takes one detection; more are false alarms of its kind.
- A detection outside every transition is a false alarm, and is charged to the hard cuts.
- A detection's time stands for the frame nearest to it.

With the collection of real media beside the project, its files with known cuts are measured too.
TransNetV2 runs as the service runs it. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import av
import cv2

from models.opening import boundaries_opener
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.media.timestamps import rounded_ms
from pipelines.orientation import Orientation
from pipelines.types import Segment, VideoSource, VideoStream
from pipelines.vision.cuts.pipeline import find_cuts
from pipelines.vision.cuts.selection import detect_cuts
from pipelines.vision.features import (
    FeaturesConfig,
    FrameFeatures,
    ReadFrames,
    from_bytes,
    segment_features,
    to_bytes,
)
from pipelines.vision.pipeline import VisionConfig, features_config
from storage.objects.folder import FolderStore
from tests.benchmarks.programmes.editing import Kind, Transition
from tests.benchmarks.programmes.encoding import FORMS, read_truth, written
from tests.places import SHARED_MEDIA

TUNING_SEEDS = (11, 12)
REPORTED_SEED = 20
TRANSITIONS_A_FILE = 27
TOLERANCE_FRAMES = 2
ALL = "all"


@dataclass(slots=True)
class Tally:
    """Counts of one detector over some files, by kind of transition."""

    hits: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    alarms: Counter[str] = field(default_factory=Counter)
    alarms_at: Counter[str] = field(default_factory=Counter)
    """False alarms outside transitions, by what happened there."""
    exact: int = 0
    """Hard cuts found at the very frame."""
    misses_at: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        for name in ("hits", "misses", "alarms", "alarms_at"):
            getattr(self, name).update(getattr(other, name))
        self.exact += other.exact
        self.misses_at += other.misses_at


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[*TUNING_SEEDS, REPORTED_SEED])
    parser.add_argument("--folder", type=Path, help="keeps the programmes from run to run")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="lists every miss and false alarm")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vas-scenes-") as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        names = ["ours"] if options.ours_only else ["ours", *_peers()]
        work = [(folder, seed, form, names) for seed in options.seeds for form in range(len(FORMS))]
        with ProcessPoolExecutor(options.workers) as pool:
            measured = list(pool.map(_measure, work))
            real = list(pool.map(_measure_real, _real_files(folder), itertools.repeat(names)))
    result = {}
    for seed in options.seeds:
        tallies = {name: Tally() for name in names}
        for (_, own_seed, _, _), found in zip(work, measured, strict=True):
            if own_seed == seed:
                for name, tally in found.items():
                    tallies[name].add(tally)
        result[str(seed)] = _report(f"seed {seed}", tallies, options.verbose)
    if real:
        tallies = {name: Tally() for name in names}
        for found in real:
            for name, tally in found.items():
                tallies[name].add(tally)
        result["real"] = _report("real files", tallies, options.verbose)
    print(json.dumps({"reported_seed": REPORTED_SEED, "seeds": result}))


def _measure(work: tuple[Path, int, int, list[str]]) -> dict[str, Tally]:
    """Every detector over one file."""
    folder, seed, form, names = work
    cv2.setNumThreads(1)
    path = written(folder, seed, FORMS[form], TRANSITIONS_A_FILE, seed == REPORTED_SEED)
    _, transitions, incidents = read_truth(path)
    return _tallies(path, names, transitions, incidents)


def _real_files(folder: Path) -> list[Path]:
    """Links in ``folder``, beside which features are kept, to the files with one known cut list."""
    files = []
    for truth in sorted((SHARED_MEDIA / "cuts").glob("*.truth.json")):
        if isinstance(json.loads(truth.read_text()).get("hard_cuts_s"), list):
            (path,) = (each for each in truth.parent.glob(f"{truth.name.split('.')[0]}.*")
                       if each.suffix != ".json")  # fmt: skip
            link = folder / path.name
            link.unlink(missing_ok=True)
            link.symlink_to(path)
            files.append(link)
    return files


def _measure_real(path: Path, names: list[str]) -> dict[str, Tally]:
    """Every detector over a file of the collection, of which the hard cuts are known."""
    cv2.setNumThreads(1)
    truth = json.loads(path.resolve().with_suffix(".truth.json").read_text())
    times_ms, _ = _video(path)
    frames = [_nearest(times_ms, time * 1000) for time in truth["hard_cuts_s"]]
    transitions = [Transition(Kind.HARD, "hard", frame, frame) for frame in frames]
    return _tallies(path, names, transitions, [])


def _tallies(
    path: Path,
    names: Sequence[str],
    transitions: Sequence[Transition],
    incidents: Sequence[dict[str, Any]],
) -> dict[str, Tally]:
    times_ms, source = _video(path)
    tallies = {}
    for name in names:
        found_ms = _ours(path, source) if name == "ours" else _peers()[name](path)
        frames = sorted(_nearest(times_ms, time_ms) for time_ms in found_ms)
        tallies[name] = score(frames, transitions, incidents, path.stem)
    return tallies


def score(
    found: Sequence[int],
    transitions: Sequence[Transition],
    incidents: Sequence[dict[str, Any]],
    name: str,
) -> Tally:
    """Detections, in frame numbers, against the truth."""
    tally, free = Tally(), list(found)
    for true in transitions:
        low = true.start - TOLERANCE_FRAMES
        high = max(true.start, true.end - (true.end > true.start)) + TOLERANCE_FRAMES
        inside = [frame for frame in free if low <= frame <= high]
        free = [frame for frame in free if not low <= frame <= high]
        (tally.hits if inside else tally.misses)[true.kind] += 1
        tally.alarms[true.kind] += max(0, len(inside) - 1)
        if true.kind == Kind.HARD and true.start in inside:
            tally.exact += 1
        if not inside or len(inside) > 1:
            length = true.end - true.start
            tally.misses_at.append(
                f"{name} {true.kind} {true.name} at {true.start}+{length} found {inside}"
            )
    for frame in free:
        at = [row["name"] for row in incidents if row["start"] <= frame < row["end"]]
        tally.alarms[Kind.HARD] += 1
        tally.alarms_at[at[0] if at else "plain shot"] += 1
        tally.misses_at.append(f"{name} false alarm at {frame}: {at}")
    return tally


def _report(title: str, tallies: dict[str, Tally], verbose: bool) -> dict[str, Any]:
    """Print a table; the same as values."""
    print(f"\n{title}: F1 (precision/recall) by kind")
    report: dict[str, Any] = {}
    for name, tally in tallies.items():
        figures = {kind: _figures(tally, [kind]) for kind in map(str, Kind)}
        figures[ALL] = _figures(tally, [str(kind) for kind in Kind])
        report[name] = {
            "kinds": figures,
            "hard_to_the_frame": tally.exact,
            "false_alarms_at": dict(tally.alarms_at),
        }
        line = "  ".join(
            f"{kind} {row['f1']:.3f} ({row['precision']:.2f}/{row['recall']:.2f} of {row['true']})"
            for kind, row in figures.items()
        )
        print(f"{name:18} {line}  exact {tally.exact}  alarms {dict(tally.alarms_at)}")
        if verbose and name == "ours":
            print(*tally.misses_at, sep="\n")
    return report


def _figures(tally: Tally, kinds: Sequence[str]) -> dict[str, float]:
    hits, misses, alarms = (
        sum(counts[kind] for kind in kinds) for counts in (tally.hits, tally.misses, tally.alarms)
    )
    return {
        "true": hits + misses,
        "precision": round(hits / max(1, hits + alarms), 4),
        "recall": round(hits / max(1, hits + misses), 4),
        "f1": round(2 * hits / max(1, 2 * hits + misses + alarms), 4),
    }


def _video(path: Path) -> tuple[list[int], VideoSource]:
    """Times of the file's frames from its start, and the file as one segment."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        times = sorted(
            rounded_ms(packet.pts if packet.pts is not None else packet.dts, packet.time_base)
            for packet in container.demux(stream)
            if packet.dts is not None or packet.pts is not None
        )
        width, height, codec = stream.width, stream.height, stream.codec_context.name
    origin_ms = times[0]
    times_ms = [time - origin_ms for time in times]
    duration_ms = times_ms[-1] + times_ms[-1] // max(1, len(times_ms) - 1)
    video = VideoStream(0, codec, width, height, Orientation(), 1.0, 0.0, len(times))
    segment = Segment(0, path.name, 0, duration_ms)
    return times_ms, VideoSource(video, duration_ms, origin_ms, (segment,))


def _ours(path: Path, source: VideoSource) -> list[float]:
    features = _features(path, source)
    return [cut.time_ms for cut in detect_cuts([features], source.duration_ms)]


def _features(path: Path, source: VideoSource) -> FrameFeatures:
    """What the vision stage's first step stores of the file; kept beside it."""
    kept = path.with_suffix(f".features-{ReadFrames.version}.npz")
    if not kept.exists():
        workspace = Workspace(FolderStore(path.parent), "work")
        features = segment_features(source, source.segments[0], workspace, FeaturesConfig())
        kept.write_bytes(to_bytes(features))
    return from_bytes(kept.read_bytes())


def _peers() -> dict[str, Callable[[Path], list[float]]]:
    """PySceneDetect's detectors with their defaults; times of the new scenes in ms."""
    import scenedetect

    detectors = {
        "AdaptiveDetector": scenedetect.AdaptiveDetector,
        "ContentDetector": scenedetect.ContentDetector,
        "HashDetector": scenedetect.HashDetector,
        "ThresholdDetector": scenedetect.ThresholdDetector,
    }

    def times(path: Path, detector: Callable[[], Any]) -> list[float]:
        scenes = scenedetect.detect(str(path), detector())
        return [scene[0].seconds * 1000 for scene in scenes[1:]]

    peers: dict[str, Callable[[Path], list[float]]] = {
        name: partial(times, detector=made) for name, made in detectors.items()
    }
    return {"TransNetV2": _transnet} | peers


def _transnet(path: Path) -> list[float]:
    """With the packaged weights, as ``VAS_BOUNDARY_WEIGHTS=packaged`` finds the cuts."""
    _, source = _video(path)
    opened = boundaries_opener("packaged", None)
    config = VisionConfig(boundaries=opened)
    workspace, control = Workspace(FolderStore(path.parent), f"work-{path.name}"), FreeRun()
    read = ReadFrames(source, workspace, features_config(config, source))
    features = map_here(source.segments, read, control)
    learned = None if opened is None else opened()
    found = find_cuts(
        features, source, workspace, control, config.cuts, learned=learned, mapper=map_here
    )
    return [cut.time_ms for cut in found.cuts]


def _nearest(times_ms: Sequence[int], time_ms: float) -> int:
    after = bisect_left(times_ms, time_ms)
    near = [index for index in (after - 1, after) if 0 <= index < len(times_ms)]
    return min(near, key=lambda index: abs(times_ms[index] - time_ms))


if __name__ == "__main__":
    main()
