"""Programmes as files: codecs, frame rates, uneven and dropped frames; the truth beside them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from benchmarks.programmes.editing import Programme, Transition
from benchmarks.programmes.shots import ShotLibrary, Size

Picture = npt.NDArray[np.uint8]

_TICKS = 90_000


@dataclass(frozen=True, slots=True)
class Form:
    """How a programme is stored."""

    name: str
    size: Size
    frame_rate: Fraction
    suffix: str = "mp4"
    codec: str = "libx264"
    options: tuple[tuple[str, str], ...] = (("crf", "23"), ("preset", "veryfast"))
    uneven: float = 0.0
    """Frames last up to this share longer or shorter than their rate says."""
    dropped: float = 0.0
    """Share of the frames that are missing; their time passes all the same."""


_NTSC = Fraction(30_000, 1001)
_CINEMA = Fraction(24_000, 1001)

FORMS: tuple[Form, ...] = (
    Form("h264 25", (640, 360), Fraction(25)),
    Form("h264 23.976 crf 30", (640, 360), _CINEMA, options=(("crf", "30"), ("preset", "medium"))),
    Form("h264 720p 29.97", (1280, 720), _NTSC, options=(("crf", "26"), ("preset", "veryfast"))),
    Form("h264 portrait 30", (360, 640), Fraction(30)),
    Form("h264 vfr", (640, 360), Fraction(30), uneven=0.45),
    Form("h264 dropped", (640, 360), Fraction(25), dropped=0.06),
    Form("mpeg4 25", (640, 352), Fraction(25), "avi", "mpeg4", (("b", "1500000"),)),
    Form(
        "vp9 vfr dropped",
        (640, 360),
        Fraction(30),
        "webm",
        "libvpx-vp9",
        (("crf", "33"), ("b", "0"), ("deadline", "realtime"), ("cpu-used", "8")),
        uneven=0.3,
        dropped=0.04,
    ),
)


def written(folder: Path, seed: int, form: Form, transitions: int, with_held_out: bool) -> Path:
    """The programme of ``seed`` as a file, made unless it is there; its truth is beside it."""
    name = f"{seed}-{FORMS.index(form)}-{transitions}{'-all' if with_held_out else ''}"
    path = folder / f"{name}.{form.suffix}"
    truth = path.with_suffix(".truth.json")
    if truth.exists():
        return path
    chance = random.Random(seed * 1000 + FORMS.index(form))
    library = ShotLibrary(form.size, with_held_out)
    programme = Programme(chance.getrandbits(40), library, transitions)
    times = _encode(path, programme.pictures(), form, chance)
    truth.write_text(json.dumps(_truth(programme, times)))
    return path


def _encode(
    path: Path, pictures: Iterable[Picture], form: Form, chance: random.Random
) -> list[int | None]:
    """Write the file; ticks of each picture, None for those that were dropped."""
    times: list[int | None] = []
    clock = 0.0
    with av.open(str(path), "w") as container:
        stream = container.add_stream(form.codec, rate=form.frame_rate)
        stream.width, stream.height = form.size
        stream.pix_fmt, stream.options = "yuv420p", dict(form.options)
        ticked = form.uneven or form.dropped
        base = Fraction(1, _TICKS) if ticked else 1 / form.frame_rate
        stream.time_base = stream.codec_context.time_base = base
        for picture in pictures:
            missing = len(times) > 0 and chance.random() < form.dropped
            times.append(None if missing else round(clock))
            if not missing:
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts, frame.time_base = round(clock), base
                container.mux(stream.encode(frame))
            length = float(1 / form.frame_rate / base)
            clock += length * (1 + chance.uniform(-form.uneven, form.uneven))
        container.mux(stream.encode(None))
    return times


def _truth(programme: Programme, times: list[int | None]) -> dict[str, Any]:
    """Transitions and incidents, in numbers of the frames that are in the file."""
    shown = np.cumsum([0, *(time is not None for time in times)])
    return {
        "frames": int(shown[-1]),
        "transitions": [
            asdict(transition)
            | {"start": int(shown[transition.start]), "end": int(shown[transition.end])}
            for transition in programme.truth
        ],
        "incidents": [
            asdict(incident)
            | {
                "start": int(shown[incident.start]),
                "end": int(shown[min(incident.end, len(times))]),
            }
            for incident in programme.incidents
        ],
    }


def read_truth(path: Path) -> tuple[int, list[Transition], list[dict[str, Any]]]:
    """Frames in the file at ``path``, its transitions and incidents."""
    stored = json.loads(path.with_suffix(".truth.json").read_text())
    transitions = [Transition(**row) for row in stored["transitions"]]
    return stored["frames"], transitions, stored["incidents"]
