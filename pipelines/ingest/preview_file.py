"""A small H.264/AAC MP4 of a file that browsers cannot play. Runs in the confined child process.

Its times are those of the media: the picture stands from 0 on, sound lies at its timestamps,
with silence before it and in gaps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import av
import av.error
import numpy as np
from av.audio.frame import AudioFrame
from av.filter import Graph
from av.packet import Packet
from av.video.frame import VideoFrame

from pipelines.ingest.streams import beside, programs_of
from pipelines.media import files
from pipelines.media.audio import silenced
from pipelines.media.decoding import is_high_dynamic_range, on_white, standard_range
from pipelines.media_types import Orientation, PixelShape
from pipelines.sandbox.child import Emit, MediaRefusedError

NAME = "preview.mp4"
SOUND_RATE_HZ = 48_000

_TICKS = 90_000
"""Of the picture's times, a second."""
_KEY_FRAME_SECONDS = 2
_TOLERANCE_SECONDS = 0.05
"""Sound may be this far from where its timestamps put it without a correction."""
_SILENCE_SAMPLES = 1 << 15
_SAME_SHAPE_PX = 3
"""A preview's sides are rounded to even numbers."""


@dataclass(frozen=True, slots=True)
class SmallPicture:
    """Of a video stream: its size as shown, and how it is encoded."""

    index: int
    width: int
    height: int
    step: int
    """Every how many frames one is kept."""
    bits: int
    """A second, at most."""
    orientation: Orientation
    pixels: PixelShape


@dataclass(frozen=True, slots=True)
class EncodeOrder:
    """What becomes of the file, to be written to ``folder / NAME``."""

    source: files.Source
    folder: Path
    video: SmallPicture | None
    audio_bits: int
    origin_ms: int
    duration_seconds: float
    muted: tuple[tuple[int, int], ...] = ()
    """Milliseconds of the media, in order: intervals without sound."""


def make(order: EncodeOrder, emit: Emit) -> dict[str, int]:
    """Write the preview; returns the numbers of ``frames`` and ``samples``. Raises
    MediaRefusedError where nothing could be decoded."""
    path, options = str(order.folder / NAME), {"movflags": "+faststart"}
    with (
        order.source.open() as container,
        av.open(path, "w", format="mp4", options=options) as target,
    ):
        writers = dict(_writers(container, target, order))
        streams = [container.streams[index] for index in sorted(writers)]
        shown = {stream.index: files.ShownOrder(stream) for stream in streams}
        decoders = files.Decoders()
        for index, packet in files.packets_of(order.source, container, streams):
            stream: Any = packet.stream
            shown[index].put_in(packet)
            try:
                frames = decoders[stream].decode(packet)
            except av.error.MemoryError:
                raise
            except av.error.FFmpegError:
                continue
            for frame in frames:
                shown[index].take_out(frame)
                target.mux(writers[index].add(frame, stream))
        for writer in writers.values():
            target.mux(writer.finish())
        written = {writer.unit: writer.written for writer in writers.values()}
    if not any(written.values()):
        raise MediaRefusedError("Nothing of the file could be decoded.")
    return written


def _writers(
    container: Any, target: Any, order: EncodeOrder
) -> Iterator[tuple[int, Pictures | Sound]]:
    """Yield what becomes of the chosen streams, by their index."""
    sounds = [stream for stream in container.streams if files.is_sound_stream(stream)]
    if order.video is not None:
        picture = container.streams[order.video.index]
        sounds = beside(programs_of(order.source.path), picture, sounds)
        yield picture.index, Pictures.into(target, picture, order.video, order.origin_ms)
    if sounds and sounds[0].codec_context is not None:
        yield sounds[0].index, Sound.into(target, sounds[0], order)


@dataclass(slots=True)
class Pictures:
    """Makes frames small and upright, and encodes them."""

    output: Any
    time_base: Fraction
    origin_ms: int
    order: SmallPicture
    written: int = 0
    unit: str = "frames"
    _seen: int = 0
    _turning: files.Turning = field(default_factory=files.Turning)
    _first: Orientation | None = None
    """As the first frame itself states it."""
    _last: int = -1
    _graph: Graph | None = None
    _input: tuple[object, ...] = ()

    @classmethod
    def into(cls, target: Any, stream: Any, order: SmallPicture, origin_ms: int) -> Pictures:
        rate = Fraction(stream.guessed_rate or 25) / order.step
        output = target.add_stream("libx264", rate=max(1, round(rate)))
        output.width, output.height, output.pix_fmt = order.width, order.height, "yuv420p"
        output.codec_context.time_base = Fraction(1, _TICKS)
        output.codec_context.thread_count = 1
        output.options = {
            "preset": "veryfast",
            "crf": "26",
            "profile": "main",
            "maxrate": str(order.bits),
            "bufsize": str(2 * order.bits),
        }
        output.codec_context.gop_size = max(1, round(rate * _KEY_FRAME_SECONDS))
        return cls(output, stream.time_base, origin_ms, order)

    def add(self, frame: VideoFrame, stream: Any) -> list[Packet[Any]]:
        """Return packets that are ready after ``frame``, one of every ``step`` that is kept."""
        self._seen += 1
        stated = self._turning.of(frame)
        self._first = self._first or stated
        orientation = self.order.orientation if stated == self._first else stated
        if (self._seen - 1) % self.order.step or frame.pts is None:
            return []
        seconds = float(frame.pts * (frame.time_base or self.time_base)) - self.origin_ms / 1000
        ticks = round(seconds * _TICKS) if self.written else 0
        if ticks <= self._last:
            return []
        small = self._small(frame, files.pixel_aspect(stream), orientation)
        small.pts, small.time_base, self._last = ticks, Fraction(1, _TICKS), ticks
        small.pict_type = 0
        self.written += 1
        packets: list[Packet[Any]] = self.output.encode(small)
        return packets

    def finish(self) -> list[Packet[Any]]:
        return list(self.output.encode(None)) if self.written else []

    def _small(
        self, frame: VideoFrame, decoder_aspect: float, orientation: Orientation
    ) -> VideoFrame:
        aspect = self.order.pixels.picture_aspect(frame.width, frame.height, decoder_aspect)
        width, height = self.order.width, self.order.height
        stored = (height, width) if orientation.swaps_sides else (width, height)
        inside = _fitting(aspect, *stored)
        if is_high_dynamic_range(frame):
            # Small first: the curves are slow.
            frame = frame.reformat(*inside, "rgb48le")
            frame = VideoFrame.from_ndarray(standard_range(frame), format="rgb24")
        frame = on_white(frame)
        found = (frame.width, frame.height, frame.format.name, inside, stored, orientation)
        if self._graph is None or found != self._input:
            self._graph, self._input = _new_graph(*found), found
        frame.pts = None
        self._graph.push(frame)
        small: Any = self._graph.pull()
        return cast("VideoFrame", small)


def _fitting(aspect: float, width: int, height: int) -> tuple[int, int]:
    """Return the size of a picture of this shape inside the other, both even."""
    if abs(aspect * height - width) < _SAME_SHAPE_PX:
        return width, height
    wide, high = round(height * aspect / 2) * 2, round(width / aspect / 2) * 2
    return max(2, min(width, wide)), max(2, min(height, high))


def _new_graph(
    width: int,
    height: int,
    pixels: str,
    inside: tuple[int, int],
    stored: tuple[int, int],
    orientation: Orientation,
) -> Graph:
    """Scales to ``inside``, pads to ``stored``, and turns upright."""
    graph = Graph()
    size = f"video_size={width}x{height}:pix_fmt={pixels}:time_base=1/{_TICKS}:pixel_aspect=1/1"
    steps = [graph.add("buffer", size)]
    steps.append(graph.add("scale", f"{inside[0]}:{inside[1]}:flags=area"))
    if inside != stored:
        steps.append(graph.add("pad", f"{stored[0]}:{stored[1]}:(ow-iw)/2:(oh-ih)/2"))
    steps += [graph.add(*each) for each in orientation.filters]
    steps += [graph.add("format", "yuv420p"), graph.add("buffersink")]
    for one, following in itertools.pairwise(steps):
        one.link_to(following)
    graph.configure()
    return graph


@dataclass(slots=True)
class Sound:
    """Resamples to stereo and encodes, each sample in its place."""

    output: Any
    time_base: Fraction
    origin_ms: int
    most_samples: int
    """Nothing is written behind the media's end, whatever timestamps claim."""
    muted: tuple[tuple[int, int], ...] = ()
    written: int = 0
    unit: str = "samples"
    _format: tuple[str, str, int] = ("", "", 0)
    _resampler: Any = None

    @classmethod
    def into(cls, target: Any, stream: Any, order: EncodeOrder) -> Sound:
        output = target.add_stream("aac", rate=SOUND_RATE_HZ)
        output.codec_context.layout = "stereo"
        output.codec_context.bit_rate = order.audio_bits
        most = math.ceil((order.duration_seconds + 1) * SOUND_RATE_HZ)
        return cls(output, stream.time_base, order.origin_ms, most, order.muted)

    def add(self, frame: AudioFrame, _: Any) -> list[Packet[Any]]:
        """Return packets that are ready after ``frame``."""
        if not frame.samples or not frame.sample_rate:
            return []
        packets: list[Packet[Any]] = []
        found = (frame.format.name, frame.layout.name, frame.sample_rate)
        seconds = None
        if frame.pts is not None:
            seconds = float(frame.pts * (frame.time_base or self.time_base))
            seconds -= self.origin_ms / 1000
        if found != self._format:
            packets += self._drain()
            self._resampler = av.AudioResampler(format="fltp", layout="stereo", rate=SOUND_RATE_HZ)
            self._format = found
        skip = 0
        if seconds is not None:
            off = round(seconds * SOUND_RATE_HZ) - self.written
            if abs(off) > _TOLERANCE_SECONDS * SOUND_RATE_HZ:
                packets += self._silence(off)
                skip = max(0, -off)
        frame.pts = None
        for ready in self._resampler.resample(frame):
            packets += self._write(ready.to_ndarray()[:, skip:])
        return packets

    def finish(self) -> list[Packet[Any]]:
        packets = self._drain()
        return [*packets, *self.output.encode(None)] if self.written else packets

    def _drain(self) -> list[Packet[Any]]:
        if self._resampler is None:
            return []
        rest, self._resampler = self._resampler.resample(None), None
        return [packet for frame in rest for packet in self._write(frame.to_ndarray())]

    def _silence(self, samples: int) -> Iterator[Packet[Any]]:
        while samples > 0:
            part = min(samples, _SILENCE_SAMPLES)
            samples -= part
            yield from self._write(np.zeros((2, part), np.float32))

    def _write(self, samples: Any) -> list[Packet[Any]]:
        samples = samples[:, : max(0, self.most_samples - self.written)]
        if not samples.shape[1]:
            return []
        if self.muted:
            at_ms = self.written * 1000 / SOUND_RATE_HZ
            samples = silenced(samples, self.muted, SOUND_RATE_HZ, at_ms)
        frame: Any = AudioFrame.from_ndarray(np.ascontiguousarray(samples), "fltp", "stereo")
        frame.sample_rate, frame.time_base = SOUND_RATE_HZ, Fraction(1, SOUND_RATE_HZ)
        frame.pts = self.written
        self.written += samples.shape[1]
        packets: list[Packet[Any]] = self.output.encode(frame)
        return packets
