"""Two cuts compared: edits of real footage whose truth is known, each re-encoded, graded anew and
reframed, or some of that; one line of JSON.

    python -m benchmarks.comparisons [--set report] [--edits 50] [--seed 1]

``--set tune`` takes other footage: what was tuned was tuned on that. A change counts as found where
kind and shots are right: a shot of the truth is the found one that lies over half of it or more.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt

from models.provider import LocalModels
from pipelines.across.comparison import ShotChange, compare_shots
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.ingest.pipeline import IngestConfig, IngestContext, ingest
from pipelines.vision.cuts.pipeline import find_cuts
from pipelines.vision.cuts.selection import CutConfig
from pipelines.vision.features import FeaturesConfig, ReadFrames
from pipelines.vision.fingerprints import Fingerprints
from pipelines.vision.pipeline import fingerprints_of
from pipelines.vision.scenes import scenes_between, whole_video
from storage.objects.folder import FolderStore
from tests.places import SHARED_MEDIA

Picture = npt.NDArray[np.uint8]
RATE, WIDTH, HEIGHT = 25, 320, 180
FOOTAGE: dict[str, dict[str, list[tuple[float, float]]]] = {
    "tune": {
        "cuts/big_buck_bunny_0_30.webm": [
            (2.2, 5.2), (6, 9), (9.4, 11.7), (11.9, 15.5), (15.8, 19), (19.5, 22.8), (23.1, 26),
        ],
        "cuts/bikes.mp4": [(1.3, 3.0), (3.1, 5.4), (5.55, 7.4), (7.55, 9.6)],
        "cuts/car-detection.mp4": [(0, 4), (13, 17)],
        "cuts2/boulder-eats.mp4": [(1.5, 4.5)],
        "cuts2/two-men-one-shot.webm": [(2, 6), (20, 24)],
        "objects/01_dog.mp4": [(0, 4), (5, 9)],
    },
    "report": {
        "cuts2/google-paris.mp4": [
            (7.45, 9.6), (9.8, 14.3), (14.5, 17.9), (18.1, 20.2), (20.4, 23.6), (23.75, 25.6),
            (25.75, 27.2), (27.4, 31.6),
        ],
        "cuts2/advert-joyrides.mp4": [(0, 2.4), (3.6, 4.85), (5.0, 7.5)],
        "cuts2/chrome-imaginary-forces.mp4": [(2, 5), (9, 12), (16, 19), (23, 26)],
        "cuts/nasa_13013.mp4": [(0.2, 4.9), (8.2, 12.8)],
        "cuts/friday.mp4": [(0.2, 5.8)],
        "cuts/bottle-detection.mp4": [(2, 6), (20, 24)],
        "objects/02_cups.mp4": [(0, 4), (5.5, 9.5)],
        "formats/sample.avi": [(0, 4)],
    },
}  # fmt: skip
"""Stretches without a cut, in seconds."""
MARGIN = 12
"""Frames of a stretch that the first cut leaves out at each end, where it is long."""


@dataclass(frozen=True, slots=True)
class Take:
    """A shot of a cut: frames of a stretch of footage."""

    stretch: int
    first: int
    frames: int


def footage(name: str) -> list[list[Picture]]:
    """The frames of each stretch, in RGB."""
    stretches = []
    for path, spans in FOOTAGE[name].items():
        with av.open(str(SHARED_MEDIA / path)) as container:
            stream = container.streams.video[-1 if "nasa" in path else 0]
            timed = [
                (
                    float(frame.pts * frame.time_base),
                    frame.reformat(WIDTH, HEIGHT, "rgb24").to_ndarray(),
                )
                for frame in container.decode(stream)
                if frame.pts is not None
            ]
        begin = timed[0][0]
        for start, end in spans:
            stretches.append([each for at, each in timed if start <= at - begin < end])
    return stretches


Look = Callable[[Picture], Picture]


def graded(random: np.random.Generator) -> Look:
    """A new grade: a curve a channel, less or more colour."""
    gamma = random.uniform(0.65, 1.5)
    contrast, tint = random.uniform(0.75, 1.35), random.uniform(-18, 18, 3)
    colour = random.uniform(0.0, 1.4)
    levels = 255 * (np.arange(256) / 255) ** gamma
    curve = (levels - 128) * contrast + 128
    table = np.clip(curve[:, None] + tint, 0, 255).astype(np.uint8)[None]

    def look(picture: Picture) -> Picture:
        shown = cv2.LUT(picture, table)
        grey = cv2.cvtColor(cv2.cvtColor(shown, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
        return np.asarray(cv2.addWeighted(shown, colour, grey, 1 - colour, 0), np.uint8)

    return look


def reframed(random: np.random.Generator) -> tuple[str, Look]:
    """A zoom, or narrower or flatter pictures: cut to them, or between bars."""
    kind = str(random.choice(["zoom", "narrow", "tall", "flat", "bars"]))
    if kind == "zoom":
        width = height = float(random.uniform(0.68, 0.92))
    else:
        width = {"narrow": 0.75, "tall": 0.5625 if random.random() < 0.5 else 0.4}.get(kind, 1.0)
        height = {"flat": 0.757, "bars": 0.757}.get(kind, 1.0)
    left, top = random.uniform(0, 1 - width), random.uniform(0, 1 - height)
    box = round(left * WIDTH), round(top * HEIGHT), round(width * WIDTH), round(height * HEIGHT)

    def look(picture: Picture) -> Picture:
        x, y, wide, high = box
        part = np.ascontiguousarray(picture[y : y + high, x : x + wide])
        if kind == "bars":
            return np.pad(part, ((0, HEIGHT - high), (0, 0), (0, 0)))[
                np.roll(np.arange(HEIGHT), (HEIGHT - high) // 2)
            ]
        size = (round(wide * HEIGHT / high) // 2 * 2, HEIGHT)
        return np.asarray(cv2.resize(part, size, interpolation=cv2.INTER_CUBIC), np.uint8)

    return kind, look


def written(path: Path, pictures: Iterator[Picture], crf: int) -> None:
    first = next(pictures)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE)
        stream.height, stream.width = first.shape[:2]
        stream.pix_fmt, stream.codec_context.thread_count = "yuv420p", 1
        stream.options = {"crf": str(crf), "preset": "superfast"}
        for number, picture in enumerate(each for one in ([first], pictures) for each in one):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def analysed(path: Path) -> Fingerprints:
    """What a job stores of the shots of a file."""
    with tempfile.TemporaryDirectory(prefix="vas-") as folder:
        store, control = FolderStore(Path(folder)), FreeRun()
        store.write_bytes("job/source", path.read_bytes())
        workspace, models = Workspace(store, "job"), LocalModels()
        ingested = ingest(
            "job/source", IngestContext(workspace, control, IngestConfig()), audio=False
        )
        video = ingested.video
        assert video is not None
        features = map_here(video.segments, ReadFrames(video, workspace, FeaturesConfig()), control)
        cuts = find_cuts(
            features, video, workspace, control, CutConfig(), models=models, mapper=map_here
        )
        shots = scenes_between(cuts.cuts, video.duration_ms) or [whole_video(video.duration_ms)]
        return fingerprints_of(video, features, shots, cuts.active, store)


def first_cut(
    stretches: Sequence[Sequence[Picture]], count: int, random: np.random.Generator
) -> list[Take]:
    order = random.permutation(len(stretches))[:count]
    return [inner(int(each), len(stretches[each])) for each in order]


def inner(stretch: int, frames: int) -> Take:
    margin = MARGIN if frames > 4 * MARGIN else 0
    return Take(stretch, margin, min(frames - 2 * margin, 60))


@dataclass(frozen=True, slots=True)
class Edit:
    """A second cut: each shot with the place in the first that it comes from, if any."""

    shots: tuple[tuple[int | None, Take], ...]

    def truth(self, before: Sequence[Take]) -> set[tuple[str, int | None, int | None]]:
        kept = [(at, own) for own, (at, _) in enumerate(self.shots) if at is not None]
        in_order = heaviest(
            [(at, min(before[at].frames, self.shots[own][1].frames)) for at, own in kept]
        )
        found: set[tuple[str, int | None, int | None]] = {
            ("removed", at, None) for at in set(range(len(before))) - {at for at, _ in kept}
        }
        found |= {("added", None, own) for own, (at, _) in enumerate(self.shots) if at is None}
        for at, own in kept:
            if at not in in_order:
                found.add(("moved", at, own))
            if abs(before[at].frames - self.shots[own][1].frames) > 3:
                found.add(("retimed", at, own))
        return found


def heaviest(pairs: Sequence[tuple[int, int]]) -> set[int]:
    """Of places in order the rising ones that weigh most."""
    best: list[tuple[int, list[int]]] = []
    for number, (at, weight) in enumerate(pairs):
        earlier = [best[each] for each in range(number) if pairs[each][0] < at]
        total, chain = max(earlier, key=lambda it: it[0], default=(0, []))
        best.append((total + weight, [*chain, at]))
    return set(max(best, key=lambda it: it[0], default=(0, []))[1])


def edited(
    before: Sequence[Take], stretches: Sequence[Sequence[Picture]], random: np.random.Generator
) -> Edit:
    """Shots taken out, put in, moved and trimmed, one to three of each."""
    shots: list[tuple[int | None, Take]] = list(enumerate(before))
    for at in sorted(random.choice(len(shots), int(random.integers(1, 3)), replace=False))[::-1]:
        del shots[at]
    for at in random.choice(len(shots), int(random.integers(1, 4)), replace=False).tolist():
        origin, take = shots[at]
        cut = int(random.integers(9, max(10, take.frames // 2)))
        if take.frames - cut < 12:
            continue
        head = cut if random.random() < 0.5 else 0
        shots[at] = origin, replace(take, first=take.first + head, frames=take.frames - cut)
    if random.random() < 0.7:
        length = int(random.integers(1, 3))
        at = int(random.integers(0, len(shots) - length + 1))
        block = shots[at : at + length]
        del shots[at : at + length]
        places = [each for each in range(len(shots) + 1) if abs(each - at) > length + 1]
        goal = int(random.choice(places)) if places else at
        shots[goal:goal] = block
    unused = [each for each in range(len(stretches)) if each not in {it.stretch for it in before}]
    for stretch in random.permutation(unused)[: int(random.integers(1, 3))].tolist():
        take = inner(stretch, len(stretches[stretch]))
        shots.insert(int(random.integers(0, len(shots) + 1)), (None, take))
    return Edit(tuple(shots))


def spans(takes: Sequence[Take]) -> list[tuple[float, float]]:
    ends = np.cumsum([take.frames for take in takes]) * 1000 / RATE
    return [*zip([0.0, *ends[:-1].tolist()], ends.tolist(), strict=True)]


def place_of(span: tuple[int, int], truth: Sequence[tuple[float, float]]) -> int | None:
    """The shot of the truth that lies under a found one, over half of it or more."""
    start, end = span
    if start == end:
        return None
    shared = [min(end, last) - max(start, first) for first, last in truth]
    best = int(np.argmax(shared))
    return best if shared[best] >= 0.5 * (truth[best][1] - truth[best][0]) else -1


def found_changes(
    before: Fingerprints,
    after: Fingerprints,
    truths: tuple[list[tuple[float, float]], list[tuple[float, float]]],
) -> set[tuple[str, int | None, int | None]]:
    changes = set[tuple[str, int | None, int | None]]()
    for pair in compare_shots(before, after):
        places = place_of(pair.before_ms, truths[0]), place_of(pair.after_ms, truths[1])
        if pair.change in {ShotChange.REMOVED, ShotChange.ADDED}:
            changes.add((str(pair.change), *places))
            continue
        if pair.moved:
            changes.add(("moved", *places))
        if pair.retimed:
            changes.add(("retimed", *places))
    return changes


def takes_of(
    takes: Sequence[Take], stretches: Sequence[Sequence[Picture]], looks: Sequence[Look]
) -> Iterator[Picture]:
    for take in takes:
        for picture in stretches[take.stretch][take.first : take.first + take.frames]:
            yield functools.reduce(lambda shown, look: look(shown), looks, picture)


def run(name: str, edits: int, seed: int, folder: Path, *, an_original: int = 5) -> dict[str, Any]:
    """``edits`` edits, so many of each first cut."""
    random = np.random.default_rng(seed)
    stretches = footage(name)
    counts = {kind: [0, 0, 0] for kind in ("removed", "added", "moved", "retimed")}
    by_look: dict[str, list[int]] = {}
    seconds = 0.0
    for number in range(edits):
        if number % an_original == 0:
            original = first_cut(stretches, min(12, len(stretches) - 3), random)
            path = folder / f"{number}-before.mp4"
            if not path.with_suffix(".npz").exists():
                written(path, takes_of(original, stretches, []), 20)
                path.with_suffix(".npz").write_bytes(analysed(path).to_bytes())
            before = Fingerprints.from_bytes(path.with_suffix(".npz").read_bytes())
        edit = edited(original, stretches, random)
        looks: list[Look] = []
        kinds = ["encoded"]
        grade, (frame_kind, frame) = graded(random), reframed(random)
        if number % 4 in {1, 3}:
            looks, kinds = [*looks, grade], [*kinds, "graded"]
        if number % 4 in {2, 3}:
            looks, kinds = [*looks, frame], [*kinds, frame_kind]
        crf = int(random.integers(24, 36))
        path = folder / f"{number}-after.mp4"
        if not path.with_suffix(".npz").exists():
            written(path, takes_of([take for _, take in edit.shots], stretches, looks), crf)
            path.with_suffix(".npz").write_bytes(analysed(path).to_bytes())
        after = Fingerprints.from_bytes(path.with_suffix(".npz").read_bytes())
        began = time.process_time()
        truths = spans(original), spans([take for _, take in edit.shots])
        found = found_changes(before, after, truths)
        seconds += time.process_time() - began
        truth = edit.truth(original)
        for kind, count in counts.items():
            mine, real = ({each for each in some if each[0] == kind} for some in (found, truth))
            count[0] += len(mine & real)
            count[1] += len(mine - real)
            count[2] += len(real - mine)
        look = "+".join(kinds)
        own = by_look.setdefault(look, [0, 0, 0])
        own[0] += len(found & truth)
        own[1] += len(found - truth)
        own[2] += len(truth - found)
        if found != truth:
            print(
                json.dumps(
                    {
                        "edit": number,
                        "look": look,
                        "wrong": sorted(map(str, found - truth)),
                        "missed": sorted(map(str, truth - found)),
                    }
                ),
                file=__import__("sys").stderr,
                flush=True,
            )
    total = [sum(column) for column in zip(*counts.values(), strict=True)]
    return {
        "set": name,
        "edits": edits,
        "f1": f1(total),
        "changes": sum(total[::2]),
        "f1_by_kind": {kind: f1(count) for kind, count in counts.items()},
        "f1_by_look": {look: f1(count) for look, count in sorted(by_look.items())},
        "seconds_a_comparison": round(seconds / edits, 3),
    }


def f1(count: Sequence[int]) -> float:
    true, wrong, missed = count
    return round(2 * true / max(1, 2 * true + wrong + missed), 4)


def main() -> None:
    """One line of JSON; on stderr a line for each edit with a mistake."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=FOOTAGE, default="report")
    parser.add_argument("--edits", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the films, reused where there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vas-") as folder:
        place = options.keep or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        print(json.dumps(run(options.set, options.edits, options.seed, place)))


if __name__ == "__main__":
    main()
