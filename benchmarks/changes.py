"""What must not matter: the same clips changed, and whether cuts, palettes and text stay the same.

    .venv/bin/python -m benchmarks.changes [--verbose]

Stretches of ten real clips are made 360 lines high, and of each come the changes of ``CHANGES``.
A cut is the same where it is at the frame that is nearest to it. Palettes (of the middles of
scenes: how much of one has a colour of the other within 0.1 in OKLab) and lines of text read there
are compared with those of the unchanged stretch. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import av.filter
import cv2
import numpy as np

from benchmarks.scenes import found_cuts, stored_features, video_of
from models.contracts import Picture
from models.pictures import may_show_text, oklab, palette
from models.provider import LocalModels
from models.tasks import READ_TEXT
from pipelines.types import CutsBy
from pipelines.vision.bars import active_picture, cropped
from pipelines.vision.features import facts_from_bytes, to_bytes
from tests.places import SHARED_MEDIA

CLIPS = (
    ("cuts/bikes.mp4", 0, 11), ("cuts/narrated-cuts-a.mp4", 2, 19), ("cuts/nasa_13013.mp4", 4, 12),
    ("cuts/big_buck_bunny_0_30.webm", 8, 26), ("cuts/friday.mp4", 0, 7),
    ("cuts2/google-paris.mp4", 0, 10), ("cuts2/advert-joyrides.mp4", 2, 11),
    ("cuts2/chrome-imaginary-forces.mp4", 27, 34), ("cuts2/boulder-eats.mp4", 0, 9),
    ("cuts2/two-men-one-shot.webm", 0, 8),
)  # fmt: skip
"""With first and last second."""
CHANGES = {
    "the same": "",
    "bars": "pad=iw:ih*4/3:0:(oh-ih)/2",
    "pillars": "pad=iw*4/3:ih:(ow-iw)/2:0",
    "interlaced": "weave",
    "telecined": "telecine=pattern=23",
    "180 lines": "scale=-2:180",
    "120 kbit/s": "",
    "10 frames a second": "fps=10",
    "50 frames a second": "fps=50",
    "grey": "hue=s=0",
    "dark": "lutyuv=y=16+(val-16)*0.35",
    "noise": "noise=alls=16:allf=t",
    "overlay": "drawbox=x=iw*0.06:y=ih*0.76:w=iw*0.5:h=ih*0.14:color=navy@0.85:t=fill",
}
"""Name -> filters of FFmpeg. Woven frames have their second field from the frame after them."""
_OTHER_COLOURS = frozenset({"grey", "dark", "overlay"})
_OTHER_TEXT = frozenset({"overlay", "180 lines", "120 kbit/s", "10 frames a second"})
_SAME_COLOUR = 0.1


@dataclass(frozen=True, slots=True)
class Seen:
    """Of a file: cuts and, at the middles of scenes, palettes and text."""

    cuts_ms: tuple[int, ...]
    times_ms: tuple[int, ...]
    pictures: tuple[Picture, ...]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    cv2.setNumThreads(1)
    counts = {name: Counter[str]() for name in CHANGES}
    with tempfile.TemporaryDirectory(prefix="vas-changes-") as folder:
        for clip, start, end in CLIPS:
            plain = write(
                SHARED_MEDIA / clip, Path(folder) / "plain.mp4", "scale=-2:360", start, end
            )
            reference = look(plain, None)
            for name, filters in CHANGES.items():
                rate = 120_000 if name == "120 kbit/s" else None
                path = write(plain, Path(folder) / f"{name[:5]}.mp4", filters, bit_rate=rate)
                own = counts[name]
                found = look(path, reference)
                compared = _compared(reference, found, name)
                own.update(compared)
                if options.verbose and compared["lost"] + compared["added"]:
                    print(f"{clip} {name}: {reference.cuts_ms}, {found.cuts_ms}", flush=True)
                for made in Path(folder).glob(f"{name[:5]}*"):
                    made.unlink()
            for made in Path(folder).glob("plain*"):
                made.unlink()
    for name, own in counts.items():
        print(f"{name:20}", dict(own))
    print(json.dumps(counts))


def write(
    source: Path,
    path: Path,
    filters: str,
    start: float = 0,
    end: float = 1e9,
    *,
    bit_rate: int | None = None,
) -> Path:
    """The stretch of a file's first video, filtered."""
    options = {"preset": "ultrafast", "crf": "16", "g": "50"}
    if bit_rate:
        options = {"preset": "veryfast", "g": "250"}
    with av.open(str(source)) as container, av.open(str(path), "w") as out:
        stream = container.streams.video[0]
        rate = Fraction(stream.average_rate or 25).limit_denominator(1001)
        made = None
        for frame in _filtered(_stretch(container, start, end), stream, rate, filters):
            if made is None:
                made = out.add_stream("libx264", rate=_rate(filters, rate), options=options)
                made.width, made.height, made.pix_fmt = frame.width, frame.height, "yuv420p"
                made.codec_context.time_base = Fraction(1, 90_000)
                if bit_rate:
                    made.bit_rate = bit_rate
            out.mux(made.encode(frame))
        if made is not None:
            out.mux(made.encode(None))
    return path


def _rate(filters: str, rate: Fraction) -> Fraction:
    if filters.startswith("fps="):
        return Fraction(filters.partition("=")[2])
    return rate * Fraction(5, 4) if filters.startswith("telecine") else rate


def _stretch(
    container: av.container.InputContainer, start: float, end: float
) -> Iterator[av.VideoFrame]:
    for frame in container.decode(video=0):
        if start <= (frame.time or 0) < end:
            yield frame


def _filtered(
    frames: Iterator[av.VideoFrame],
    stream: av.video.stream.VideoStream,
    rate: Fraction,
    filters: str,
) -> Iterator[av.VideoFrame]:
    """At a constant rate, counted from 0, in time steps of 1/90,000 s."""
    if filters == "weave":
        frames, filters = _woven(frames), ""
    if filters.startswith("telecine"):
        filters = f"fps={rate},{filters}"  # It takes nothing without a frame rate.
    graph = av.filter.Graph()
    last = graph.add_buffer(template=stream, time_base=Fraction(1, 90_000))
    for each in [*filter(None, filters.split(",")), "format=yuv420p"]:
        name, _, arguments = each.partition("=")
        node = graph.add(name, arguments or None)
        last.link_to(node)
        last = node
    last.link_to(graph.add("buffersink"))
    graph.configure()
    origin = None
    for frame in frames:
        at = round(float(frame.time or 0) * 90_000)
        origin = at if origin is None else origin
        frame.pts, frame.time_base = at - origin, Fraction(1, 90_000)
        graph.vpush(frame)
        yield from _pulled(graph, rate)
    graph.vpush(None)
    yield from _pulled(graph, rate)


def _pulled(graph: av.filter.Graph, rate: Fraction) -> Iterator[av.VideoFrame]:
    while True:
        try:
            frame = graph.vpull()
        except (BlockingIOError, EOFError, av.error.FFmpegError):
            return
        seconds = (frame.pts or 0) * frame.time_base
        frame.pts, frame.time_base = round(seconds * 90_000), Fraction(1, 90_000)
        frame.pict_type = av.video.frame.PictureType.NONE
        yield frame


def _woven(frames: Iterator[av.VideoFrame]) -> Iterator[av.VideoFrame]:
    """Each frame with the odd lines of the one after it."""
    before = None
    for frame in frames:
        if before is not None:
            rows = before.to_ndarray(format="yuv420p").copy()
            after = frame.to_ndarray(format="yuv420p")
            rows[1 : before.height : 2] = after[1 : before.height : 2]
            woven = av.VideoFrame.from_ndarray(rows, format="yuv420p")
            woven.pts, woven.time_base = before.pts, before.time_base
            yield woven
        before = frame


def look(path: Path, like: Seen | None) -> Seen:
    """What the service finds; pictures at the middles of its scenes, or of those of ``like``."""
    times_ms, source = video_of(path)
    cuts = tuple(round(cut.time_ms) for cut in found_cuts(path, source, CutsBy.JUDGED))
    edges = [0, *cuts, times_ms[-1]]
    middles = [(one + two) // 2 for one, two in itertools.pairwise(edges)]
    shown = middles if like is None else list(like.times_ms)
    box = active_picture([facts_from_bytes(to_bytes(stored_features(path, source)))])
    pictures = [cropped(picture, box) for picture in _pictures(path, shown)]
    return Seen(cuts, tuple(shown), tuple(pictures))


def _pictures(path: Path, times_ms: Sequence[int]) -> Iterator[Picture]:
    """The first frames at those times or later."""
    wanted = list(times_ms)
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            while wanted and (frame.time or 0) * 1000 >= wanted[0] - 1:
                wanted.pop(0)
                yield np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
        for _ in wanted:
            yield np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)


def _compared(one: Seen, other: Seen, name: str) -> Counter[str]:
    frame_ms = 100 if name.startswith("10 ") else 45
    free = list(other.cuts_ms)
    counts = Counter(cuts=len(one.cuts_ms))
    for cut in one.cuts_ms:
        near = [each for each in free if abs(each - cut) <= frame_ms]
        counts["lost"] += not near
        if near:
            free.remove(min(near, key=lambda each: abs(each - cut)))
    counts["added"] = len(free)
    reader = LocalModels().get(READ_TEXT)
    for before, after in zip(one.pictures, other.pictures, strict=True):
        if name not in _OTHER_COLOURS:
            counts["palettes"] += 1
            counts["alike"] += _alike(before, after) >= 0.75
        if name not in _OTHER_TEXT:
            lines = [
                {line.text for line in reader.read([each])[0]} if may_show_text(each) else set()
                for each in (before, after)
            ]
            counts["lines"] += len(lines[0])
            counts["read again"] += len(lines[0] & lines[1])
    return counts


def _alike(one: Picture, other: Picture) -> float:
    """Share of the colours of one palette that the other has."""
    sides = [
        oklab(np.array([tuple(bytes.fromhex(each[1:])) for each in palette([picture])], np.uint8))
        for picture in (one, other)
    ]
    gaps = np.linalg.norm(sides[0][:, None] - sides[1][None], axis=2).min(axis=1)
    return float(np.mean(gaps <= _SAME_COLOUR))


if __name__ == "__main__":
    main()
