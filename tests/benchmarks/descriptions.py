"""What the embedded describer says of real stills, against labels given by looking at them.

    .venv/bin/python -m tests.benchmarks.descriptions [--sheet FILE.png]

Each still stands for a scene of its own. Labels were given by eye before the describer was asked:
how many faces can be told from the front or the side, whether writing of some size stands in the
picture, whether it is a test picture or plain, how much of a person the shot shows. There are few
people among the shared media, so the figures on shot types say little. ``--sheet`` draws the
stills beside their palettes, to be looked at. The peer of every figure is the label. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt

from models.backends.packaged.describer import PackagedSceneDescriber
from models.backends.packaged.palette import palette
from models.contracts import SceneDescription, SceneStills, ShotAngle, ShotType
from tests.benchmarks.programmes.shots import MEDIA

Picture = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Label:
    """What a person sees in a still."""

    path: str
    seconds: float
    faces: int = 0
    text: bool = False
    test_picture: bool = False
    plain: bool = False
    shot_types: tuple[ShotType, ...] = (ShotType.UNKNOWN,)
    """Any of these is right; without a person that could be measured none but unknown is."""
    angle: ShotAngle = ShotAngle.EYE_LEVEL


_MEDIUM = (ShotType.MEDIUM, ShotType.MEDIUM_CLOSE_UP)

LABELS: tuple[Label, ...] = (
    Label("cuts/big_buck_bunny_0_30.webm", 3),
    Label("cuts/big_buck_bunny_0_30.webm", 9),
    Label("cuts/big_buck_bunny_0_30.webm", 13, angle=ShotAngle.HIGH),
    Label("cuts/big_buck_bunny_0_30.webm", 18),
    Label("cuts/big_buck_bunny_0_30.webm", 26, text=True),
    Label("cuts/bikes.mp4", 0.6, angle=ShotAngle.HIGH),
    Label("cuts/bikes.mp4", 2),
    Label("cuts/bikes.mp4", 4),
    Label("cuts/bikes.mp4", 6.5),
    Label("cuts/bikes.mp4", 8.5),
    Label("cuts/nasa_13013.mp4", 2),
    Label(
        "cuts/nasa_13013.mp4", 7, shot_types=(ShotType.FULL, ShotType.MEDIUM), angle=ShotAngle.LOW
    ),
    Label("cuts/nasa_13013.mp4", 10),
    Label("cuts/friday.mp4", 1, faces=2, shot_types=(ShotType.MEDIUM, ShotType.FULL)),
    Label("cuts/friday.mp4", 4, faces=3, shot_types=(ShotType.MEDIUM, ShotType.FULL)),
    Label("cuts/car-detection.mp4", 5, angle=ShotAngle.OVERHEAD),
    Label("cuts/car-detection.mp4", 20, angle=ShotAngle.OVERHEAD),
    Label("cuts/bottle-detection.mp4", 3),
    Label("cuts/bottle-detection.mp4", 30),
    Label("cuts/flower.mp4", 4, angle=ShotAngle.HIGH),
    Label("formats/sample.avi", 2.5, angle=ShotAngle.LOW),
    Label("odd/portrait_4k60.mp4", 0.1),
    Label("odd/sample_15fps_720p_1s.mp4", 0.5, text=True, test_picture=True),
    Label("formats/bt709_full_range.mp4", 0.5, test_picture=True),
    Label("formats/sample.mp4", 0.5, faces=1, shot_types=_MEDIUM),
    Label("formats/bear-vp9.webm", 1),
    Label("formats/h265_bframes.mp4", 0.5, text=True),
    Label("odd/hlg10-color-test.mp4", 0.1),
    Label("odd/hdr10-video-with-sdr-container.mp4", 0.5, angle=ShotAngle.HIGH),
    Label("formats/smpte-2997.mp4", 3, text=True, test_picture=True),
    Label("cuts/delayed_start.mp4", 1, plain=True),
    Label("cuts/fades.mp4", 1, plain=True),
    Label("cuts/fades.mp4", 5, plain=True),
    Label("odd/sample_sef_slow_motion.mp4", 1, angle=ShotAngle.HIGH),
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sheet", type=Path)
    options = parser.parse_args()
    stills = [still(label) for label in LABELS]
    describer = PackagedSceneDescriber()
    said = describer.describe([SceneStills((picture,), 4.0) for picture in stills])
    for label, description in zip(LABELS, said, strict=True):
        print(f"{label.path} at {label.seconds} s: {description.description}")
    if options.sheet:
        cv2.imwrite(str(options.sheet), cv2.cvtColor(sheet(stills), cv2.COLOR_RGB2BGR))
    print(json.dumps({"stills": len(LABELS), **figures(said)}))


def still(label: Label) -> Picture:
    """The frame at the label's time, upright, at most 960 pixels on its long side."""
    with av.open(str(MEDIA / label.path)) as container:
        for frame in container.decode(container.streams.video[0]):
            if (frame.time or 0.0) >= label.seconds:
                break
        picture = np.asarray(np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90))
    scale = min(1.0, 960 / max(picture.shape[:2]))
    size = (round(picture.shape[1] * scale), round(picture.shape[0] * scale))
    whole = np.ascontiguousarray(picture, np.uint8)
    return np.asarray(cv2.resize(whole, size, interpolation=cv2.INTER_AREA), np.uint8)


def figures(said: list[SceneDescription]) -> dict[str, Any]:
    """Right and wrong by kind of statement."""
    counts: dict[str, Counter[str]] = {
        name: Counter() for name in ("face", "text", "test picture", "plain", "shot type", "angle")
    }
    for label, description in zip(LABELS, said, strict=True):
        sentence = description.description
        _count(counts["face"], "face" in description.objects, label.faces > 0)
        _count(counts["text"], "text" in description.objects, label.text)
        _count(counts["test picture"], "test picture" in sentence, label.test_picture)
        _count(counts["plain"], sentence.endswith(" screen."), label.plain)
        _judge(counts["shot type"], str(description.shot_type), label.shot_types)
        _judge(counts["angle"], str(description.shot_angle), (label.angle,))
    return {name: dict(count) for name, count in counts.items()}


def _count(count: Counter[str], said: bool, true: bool) -> None:
    if said:
        count["said rightly" if true else "said wrongly"] += 1
    else:
        count["missed" if true else "rightly not said"] += 1


def _judge(count: Counter[str], said: str, right: tuple[str, ...]) -> None:
    if said == "unknown":
        count["left open, rightly" if "unknown" in right else "left open"] += 1
    else:
        count["right" if said in right else "wrong"] += 1


def sheet(stills: list[Picture], columns: int = 6) -> Picture:
    """Thumbnails with their palettes under them."""
    tiles = []
    for picture in stills:
        tile = np.full((150, 224, 3), 40, np.uint8)
        scale = min(220 / picture.shape[1], 116 / picture.shape[0])
        size = (max(1, round(picture.shape[1] * scale)), max(1, round(picture.shape[0] * scale)))
        small = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
        tile[: small.shape[0], : small.shape[1]] = small
        for place, colour in enumerate(palette([picture])):
            tile[120:148, place * 44 : place * 44 + 42] = list(bytes.fromhex(colour[1:]))
        tiles.append(tile)
    tiles += [np.full_like(tiles[0], 40)] * (-len(tiles) % columns)
    rows = [np.hstack(tiles[at : at + columns]) for at in range(0, len(tiles), columns)]
    return np.asarray(np.vstack(rows), np.uint8)


if __name__ == "__main__":
    main()
