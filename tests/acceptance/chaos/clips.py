"""Short pieces of the demo video, different from each other: speech and cuts in a few seconds.

Two are as the field sends them: joined with ``cat``, and with a clock that leaps by hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import av

from tests.pipelines.ingest.clock_material import HOURS_MS, remuxed, with_tag_times
from tests.places import DEMO

WINDOWS_SECONDS = {
    "opening": (0.0, 6.0),
    "presenter": (2.88, 9.6),
    "landscape": (8.88, 15.0),
    "city": (17.04, 24.0),
    "closing": (22.16, 29.0),
}
"""Each begins at a keyframe, so that the packets can be copied."""
NEAR_SECONDS = 0.005
"""Times of packets are fractions that 8.88, say, is not."""
TIMELINES = (("opening", "city"), ("presenter", "closing"))
"""Clips that batches lay end to end."""
BETWEEN = "+"


@dataclass(frozen=True)
class Clip:
    """A file to send, by upload or by its name on the file server."""

    name: str
    path: Path

    @cached_property
    def data(self) -> bytes:
        return self.path.read_bytes()


def make_clips(folder: Path) -> dict[str, Clip]:
    """Cut all of them into ``folder``, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    clips = {
        name: Clip(name, _copied(folder / f"{name}.mp4", *window))
        for name, window in WINDOWS_SECONDS.items()
    }
    fragments = remuxed(
        clips["opening"].path,
        folder / "fragments.mp4",
        muxing={"movflags": "frag_keyframe+empty_moov+default_base_moof"},
    )
    joined = folder / "joined.mp4"
    joined.write_bytes(2 * fragments.read_bytes())
    leaping = with_tag_times(
        remuxed(clips["city"].path, folder / "city.flv"),
        folder / "leaping.flv",
        lambda kind, number, ms: ms + (HOURS_MS if ms > 3_000 else 0),
    )
    return clips | {path.stem: Clip(path.stem, path) for path in (joined, leaping)}


def _copied(target: Path, start: float, end: float) -> Path:
    with av.open(str(DEMO)) as reader, av.open(str(target), "w") as writer:
        streams = {
            stream.index: writer.add_stream_from_template(stream) for stream in reader.streams
        }
        for packet in reader.demux():
            if packet.pts is None or packet.dts is None or packet.time_base is None:
                continue
            shift = round(start / packet.time_base)
            if -NEAR_SECONDS <= float(packet.pts * packet.time_base) - start < end - start:
                packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
                packet.stream = streams[packet.stream.index]
                writer.mux(packet)
    return target
