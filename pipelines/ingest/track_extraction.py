"""Frames of decoded sound as a track: 16 kHz mono FLAC.

Runs in the confined child process. The place of a sample is its time: frames are mixed down,
resampled and laid end to end. Where timestamps show a gap (lost packets, pauses in a recording)
there is silence; where they go back, what was already covered is left out.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import av.error
from av.audio.frame import AudioFrame
from av.filter import Graph

from pipelines.ingest.mix import AudioFormat, Meter, Mix, Weights
from pipelines.media_types import WarningCode

SAMPLE_RATE_HZ = 16_000
"""As ``models.contracts.SAMPLE_RATE_HZ``, whose module imports numpy; a test compares."""

_SAMPLE_BYTES = 2
_TOLERANCE_SECONDS = 0.010
"""Timestamps may be this far off without a correction: containers round to a millisecond,
live recorders jitter by a few; the shortest common packet (Opus) lasts 10 to 20 ms."""

_BLOCK_SAMPLES = 1 << 15
_SILENCE = bytes(_BLOCK_SAMPLES * _SAMPLE_BYTES)
_UNORDERED_LAYOUT = re.compile(r"(\d+) channels")

Channels = tuple[int, ...]
"""Which channels of a stream make up a track, from 0."""


def down_mix(layout: str) -> str | None:
    """The ``pan`` filter's argument where FFmpeg's own down-mix is not right; else None.

    FFmpeg weights channels by speaker position, with a sum of 1, so nothing clips, and drops the
    low-frequency channel. Channels of a recorder have no position: each counts the same.
    """
    match = _UNORDERED_LAYOUT.fullmatch(layout)
    if match is None or int(match[1]) <= 2:
        return None
    return mix_of(range(int(match[1])))


def mix_of(channels: Iterable[int]) -> str:
    """The ``pan`` filter's argument for these channels mixed, each counting the same."""
    chosen = list(channels)
    return "mono|c0=" + "+".join(f"{1 / len(chosen):.9f}*c{channel}" for channel in chosen)


def remixing(weights: Weights, gain_db: float) -> list[tuple[str, str]]:
    """Filters, in floating point: what is raised has lost nothing to rounding.

    A constant part, or rumble, would be raised too.
    """
    pan = "mono|c0=" + "+".join(f"{each:.9f}*c{index}" for index, each in enumerate(weights))
    filters = [("aformat", "sample_fmts=fltp"), ("pan", pan.replace("+-", "-"))]
    if gain_db:
        filters += [("highpass", "f=60"), ("volume", f"{gain_db:.3f}dB:precision=float")]
    return filters


class Resampler:
    """Frames of one format to 16-bit mono samples at SAMPLE_RATE_HZ."""

    def __init__(
        self, audio_format: AudioFormat, channels: Channels | None = None, mix: Mix | None = None
    ) -> None:
        """``channels``: those that count, all of them if None; ``mix``: weights, or none."""
        name, layout, rate_hz, count = audio_format
        self._graph = Graph()
        source = self._graph.add(
            "abuffer",
            sample_fmt=name,
            channel_layout=layout,
            sample_rate=str(rate_hz),
            time_base=f"1/{rate_hz}",
        )
        pan = down_mix(layout)
        if channels is not None:
            # Channels that this run of frames lacks are silent.
            present = [channel for channel in channels if channel < count]
            pan = mix_of(present) if present else "mono|c0=0*c0"
        filters = [] if pan is None else [("pan", pan)]
        if mix is not None and layout in mix.weights:
            filters = remixing(mix.weights[layout], mix.gain_db)
        for filter_name, arguments in filters:
            following = self._graph.add(filter_name, arguments)
            source.link_to(following)
            source = following
        wanted = self._graph.add(
            "aformat",
            sample_fmts="s16",
            channel_layouts="mono",
            sample_rates=str(SAMPLE_RATE_HZ),
        )
        sink = self._graph.add("abuffersink")
        source.link_to(wanted)
        wanted.link_to(sink)
        self._graph.configure()

    def add(self, frame: AudioFrame | None) -> bytes:
        """Samples that are ready after ``frame``; after None, all the rest."""
        self._graph.push(frame)
        pieces: list[bytes] = []
        while True:
            try:
                ready: Any = self._graph.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                return b"".join(pieces)
            pieces.append(bytes(ready.planes[0])[: ready.samples * _SAMPLE_BYTES])


class FlacFile:
    """A growing 16-bit mono FLAC file at SAMPLE_RATE_HZ."""

    def __init__(self, path: Path) -> None:
        self._container = av.open(str(path), "w", format="flac")
        self._stream: Any = self._container.add_stream("flac", rate=SAMPLE_RATE_HZ)
        self._stream.codec_context.layout = "mono"
        self._stream.codec_context.format = "s16"
        self._pending = bytearray()
        self.samples = 0

    def write(self, data: bytes) -> None:
        """Append samples."""
        self._pending += data
        self.samples += len(data) // _SAMPLE_BYTES
        while len(self._pending) >= len(_SILENCE):
            self._encode(bytes(self._pending[: len(_SILENCE)]))
            del self._pending[: len(_SILENCE)]

    def write_silence(self, samples: int) -> None:
        """Append silence of any length."""
        while samples > 0:
            part = min(samples, _BLOCK_SAMPLES)
            self.write(_SILENCE[: part * _SAMPLE_BYTES])
            samples -= part

    def close(self) -> None:
        if self._pending:
            self._encode(bytes(self._pending))
        if self.samples:
            self._container.mux(self._stream.encode(None))
        self._container.close()

    def _encode(self, data: bytes) -> None:
        frame = AudioFrame("s16", "mono", len(data) // _SAMPLE_BYTES)
        frame.sample_rate = SAMPLE_RATE_HZ
        frame.planes[0].update(data)
        self._container.mux(self._stream.encode(frame))


@dataclass(frozen=True, slots=True)
class TrackFile:
    """A track as a file of this name."""

    index: int
    name: str
    duration_seconds: float
    offset_seconds: float
    damaged_packets: int
    findings: tuple[tuple[WarningCode, str], ...] = ()


@dataclass(slots=True)
class TrackWriter:
    """Where samples go: silence for gaps, nothing for what is covered already.

    Samples are counted from the media's start. The first sample is put where its
    time is; the track begins there.
    """

    file: FlacFile
    limit_samples: int
    """The media's end: nothing is written behind it, whatever timestamps claim."""
    first_sample: int | None = None
    _skip_samples: int = 0

    def go_to(self, seconds: float) -> None:
        """Continue at this time."""
        target = round(seconds * SAMPLE_RATE_HZ)
        if self.first_sample is None:
            self.first_sample = target
        target = min(target, self.limit_samples)
        missing = target - self.first_sample - self.file.samples
        self.file.write_silence(missing)
        self._skip_samples = max(0, -missing)

    def write(self, data: bytes) -> None:
        """Append samples, less those whose place is taken."""
        skipped = min(self._skip_samples, len(data) // _SAMPLE_BYTES)
        self._skip_samples -= skipped
        room = self.limit_samples - (self.first_sample or 0) - self.file.samples
        self.file.write(data[skipped * _SAMPLE_BYTES :][: max(0, room) * _SAMPLE_BYTES])


@dataclass(slots=True)
class TrackExtractor:
    """Turns one audio stream, or some of its channels, frame by frame into a FLAC file."""

    path: Path
    duration_seconds: float
    channels: Channels | None = None
    mix: Mix = field(default_factory=Mix)
    """Found out by the first reading; without weights there is no second."""
    _meter: Meter | None = field(init=False, default=None)
    _timeline: TrackWriter = field(init=False)
    _format: AudioFormat | None = None
    _resampler: Resampler | None = None
    _due_seconds: float = 0.0

    def __post_init__(self) -> None:
        limit = round((self.duration_seconds + 1.0) * SAMPLE_RATE_HZ)
        self._timeline = TrackWriter(FlacFile(self.path), limit)
        if not self.mix.weights:
            self._meter = Meter(self.duration_seconds, self.channels)

    def again(self) -> TrackExtractor:
        """The same track, with the mix that was found out."""
        return TrackExtractor(self.path, self.duration_seconds, self.channels, self.mix)

    def finish(self, index: int, damaged_packets: int) -> TrackFile | None:
        """Close the file of stream ``index``; None if it is empty."""
        self._end_run()
        file = self._timeline.file
        file.close()
        if self._meter is not None:
            self.mix = self._meter.choose(self._usual_weights)
        if not file.samples or self._timeline.first_sample is None:
            return None
        return TrackFile(
            index=index,
            name=self.path.name,
            duration_seconds=file.samples / SAMPLE_RATE_HZ,
            offset_seconds=self._timeline.first_sample / SAMPLE_RATE_HZ,
            damaged_packets=damaged_packets,
            findings=tuple(self.mix.findings(index)),
        )

    def _usual_weights(self, layout: str, count: int) -> Weights:
        """How much each channel counts, as the usual mix shows: an impulse in one after another."""
        resampler = Resampler(("flt", layout, SAMPLE_RATE_HZ, count), self.channels)
        impulses = AudioFrame("flt", layout, count)
        impulses.sample_rate = SAMPLE_RATE_HZ
        values = [0.5 * (channel == time) for time in range(count) for channel in range(count)]
        impulses.planes[0].update(array("f", values).tobytes())
        mixed = array("h", resampler.add(impulses) + resampler.add(None))
        return tuple(sample / 2**14 for sample in mixed)

    def add(self, frame: AudioFrame, seconds: float | None) -> None:
        """Take the next frame, which begins at ``seconds`` from the media's start if known."""
        layout = frame.layout
        found = (frame.format.name, layout.name, frame.sample_rate, layout.nb_channels)
        resampler = self._resampler
        if resampler is None or self._breaks_run(found, seconds):
            seconds = self._due_seconds if seconds is None else seconds
            self._end_run()
            self._format = found
            self._resampler = Resampler(found, self.channels, self.mix)
            self._due_seconds = seconds
            self._timeline.go_to(seconds)
            resampler = self._resampler
        self._due_seconds += frame.samples / frame.sample_rate
        if self._meter is not None:
            self._meter.add(frame, found)
        self._timeline.write(resampler.add(frame))

    def _breaks_run(self, found: AudioFormat, seconds: float | None) -> bool:
        if found != self._format:
            return True
        return seconds is not None and abs(seconds - self._due_seconds) > _TOLERANCE_SECONDS

    def _end_run(self) -> None:
        if self._resampler is not None:
            self._timeline.write(self._resampler.add(None))
            self._resampler = None
