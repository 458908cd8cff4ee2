"""Short pieces of the demo video, different from each other: speech and cuts in a few seconds.

Some are as the field sends them: joined with ``cat``, with a clock that leaps by hours, with
pictures lost, and slides, one a second, with a voice on channels of opposite polarity.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import av
import numpy as np

from tests.pipelines.ingest.ingest_material import HOURS_MS, remuxed, with_tag_times
from tests.pipelines.media_builders import HEIGHT, WIDTH, texture
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
    stream = bytearray(remuxed(clips["presenter"].path, folder / "presenter.ts").read_bytes())
    begin, end = (len(stream) // 188 * tenths // 10 * 188 for tenths in (4, 7))
    stream[begin:end] = bytes(end - begin)
    lost = folder / "lost.ts"
    lost.write_bytes(stream)
    slides = _slides(folder / "slides.mp4", clips["closing"].path)
    made = (joined, leaping, lost, slides)
    return clips | {path.stem: Clip(path.stem, path) for path in made}


def _slides(target: Path, voice: Path) -> Path:
    """A picture a second, as long as the voice is, whose right channel is turned over."""
    with av.open(str(voice)) as reader, av.open(str(target), "w") as writer:
        pictures: Any = writer.add_stream("libx264", rate=1, options={"preset": "ultrafast"})
        pictures.width, pictures.height, pictures.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        sound: Any = writer.add_stream("aac", rate=48_000)
        sound.codec_context.layout = "stereo"
        mono = av.AudioResampler("fltp", "mono", 48_000, 1024)
        heard = [part for frame in reader.decode(audio=0) for part in mono.resample(frame)]
        for second in range(sum(part.samples for part in heard) // 48_000):
            picture = av.VideoFrame.from_ndarray(texture(second), format="rgb24")
            picture.pts, picture.time_base = second, Fraction(1)
            writer.mux(pictures.encode(picture))
        writer.mux(pictures.encode(None))
        for number, part in enumerate(heard):
            samples = part.to_ndarray()
            frame = av.AudioFrame.from_ndarray(
                np.concatenate([samples, -samples]), "fltp", "stereo"
            )
            frame.sample_rate, frame.pts, frame.time_base = (
                48_000,
                1024 * number,
                Fraction(1, 48_000),
            )
            writer.mux(sound.encode(frame))
        writer.mux(sound.encode(None))
    return target


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
