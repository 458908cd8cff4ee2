"""What the stills of scenes show, against a frame of the scene's middle and the best there is.

    .venv/bin/python -m benchmarks.stills [--sheet FILE.png]

Scenes of the files with known cuts beside the project and of the music video, as the service finds
them. Of each a frame in ten is measured: its sharpness (spread of the Laplacian at 480 pixels) as
a share of the sharpest's, and how many faces it shows. ``soft``: less than 0.6 of the sharpest.
``faceless``: no face where a fifth of the frames measured show some. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import cv2
import numpy as np

from benchmarks.scenes import real_files
from models.backends.packaged.faces import FaceFinder
from models.contracts import Picture
from models.pictures import grey
from models.provider import LocalModels
from models.registry import MTCNN
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.types import Scene
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from storage.objects.folder import FolderStore
from tests.pipelines.media_builders import video_source

_EVERY, _SOFT, _SOMETIMES = 10, 0.6, 0.2


@dataclass(frozen=True, slots=True)
class Look:
    """A frame measured."""

    time_ms: int
    sharpness: float
    faces: int
    picture: Picture


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sheet", type=Path, help="a PNG: of each scene its still, its middle")
    parser.add_argument("--verbose", action="store_true", help="prints the descriptions too")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    shares: dict[str, list[float]] = {"still": [], "middle": []}
    shown = []
    finder = FaceFinder(MTCNN.paths(None))
    for path in (file.path for file in real_files()):
        scenes = _scenes(path)
        wanted = {still.time_ms for scene in scenes for still in scene.stills}
        looks = list(_looks(path, wanted, finder))
        for scene in scenes:
            own = [each for each in looks if scene.start_ms <= each.time_ms < scene.end_ms]
            if options.verbose:
                where = f"{path.name} {scene.start_ms / 1000:.2f}"
                print(f"{where}: {scene.description} {scene.shot_angle}", flush=True)
            if not own:
                continue
            middle_ms = (scene.start_ms + scene.end_ms) // 2
            best, often = max(each.sharpness for each in own), np.mean([it.faces > 0 for it in own])
            for kind, at_ms in (("still", scene.stills[0].time_ms), ("middle", middle_ms)):
                look = min(own, key=lambda each: abs(each.time_ms - at_ms))
                shares[kind].append(look.sharpness / best)
                counts[f"{kind} soft"] += look.sharpness < _SOFT * best
                counts[f"{kind} faceless"] += not look.faces and bool(often >= _SOMETIMES)
                shown.append(look.picture)
            counts["scenes"] += 1
            counts["with faces"] += bool(often >= _SOMETIMES)
    if options.sheet:
        cv2.imwrite(str(options.sheet), cv2.cvtColor(_sheet(shown), cv2.COLOR_RGB2BGR))
    means = {f"{kind} sharpness": round(float(np.mean(own)), 3) for kind, own in shares.items()}
    print(json.dumps({**counts, **means}))


def _sheet(pictures: list[Picture]) -> Picture:
    small = [cv2.resize(each, (240, 135), interpolation=cv2.INTER_AREA) for each in pictures]
    small += [np.zeros_like(small[0])] * (-len(small) % 6)
    rows = [np.hstack(small[at : at + 6]) for at in range(0, len(small), 6)]
    return np.asarray(np.vstack(rows), np.uint8)


def _scenes(path: Path) -> list[Scene]:
    """The file's scenes; what is seen of the whole where it has none."""
    with tempfile.TemporaryDirectory(prefix="vas-stills-") as folder:
        workspace = Workspace(FolderStore(Path(folder)), "job")
        found = analyse_vision(
            video_source(workspace, path),
            workspace=workspace,
            models=LocalModels(),
            control=FreeRun(),
            config=VisionConfig(),
            mapper=map_here,
        )
    return [*found.scenes] or [found.overview]


def _looks(path: Path, wanted: set[int], finder: FaceFinder) -> Iterator[Look]:
    """Every tenth frame, and those that are wanted."""
    origin_ms = None
    with av.open(str(path)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            time_ms = round(1000 * float(frame.time or 0))
            origin_ms = time_ms if origin_ms is None else origin_ms
            at_ms = time_ms - origin_ms
            if number % _EVERY and not any(abs(at_ms - each) <= 1 for each in wanted):
                continue
            picture = frame.to_ndarray(format="rgb24")
            sharpness = float(cv2.Laplacian(grey(picture, 480), cv2.CV_16S, ksize=3).std())
            yield Look(at_ms, sharpness, len(finder.find(picture)), picture)


if __name__ == "__main__":
    main()
