"""One pass over a file: its video cut into segments, its audio as 16 kHz mono FLAC.

Runs in the confined child process, which may write to one temporary folder only; needs only PyAV.
Each segment is reported as soon as it is complete, and the report is waited for, so that at most
one segment lies in that folder at a time (audio tracks grow there until the end).

In a track the place of a sample is its time. Decoded frames are mixed down, resampled and laid end
to end. Where timestamps show a gap (lost packets, pauses in a recording) there is silence; where
they go back, what was already covered is left out. Memory is bounded whatever the length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import av.error
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.filter import Graph
from av.packet import Packet

from pipelines.ingest.segments import VideoCut, shift_needed_ms
from pipelines.media.files import PACKETS_PER_REPORT, Source, packets_of
from pipelines.sandbox.child import MediaRefusedError

Values = dict[str, Any]
Emit = Callable[[Values], None]

_ONE_SEGMENT_MS = 1 << 40
_UNREADABLE_PICTURE = "The file's clock leaps, and its picture cannot be laid out without it."


def cut(arguments: Values, emit: Emit) -> Values:
    """Cut and extract: ``{source, folder, video, audio, origin_ms, duration_seconds}``.

    ``video`` is None or ``{index, segment_ms, end_ms, origin_ms, known}``, where ``known`` names
    segments that exist already; ``audio`` lists ``{index, name, channels}``, where ``channels`` is
    None for all of a stream's mixed. Emits ``{"segment": …}`` for every segment and
    ``{"fraction": …}``. Returns ``{video, tracks}``. Raises MediaRefusedError for pictures of a
    repaired timeline that no segment can hold.
    """
    source: Source = arguments["source"]
    folder, video, found = Path(arguments["folder"]), arguments["video"], None
    with source.open() as container:
        if video:
            shift_ms = shift_needed_ms(source, video["index"])
            found = VideoCut(container.streams[video["index"]], video, folder, emit, shift_ms)
        readers = _audio_readers(container, folder, arguments)
        _run(source, container, found, readers, arguments["duration_seconds"], emit)
        finished = [track for reader in readers.values() for track in reader.finish()]
    return {
        "video": None if found is None else _video_result(source, found, folder, emit),
        "tracks": finished,
    }


def _audio_readers(
    container: InputContainer, folder: Path, order: Values
) -> dict[int, AudioReader]:
    """A reader for each requested stream, by its index, with its tracks."""
    readers: dict[int, AudioReader] = {}
    for item in order["audio"]:
        index, channels = item["index"], item["channels"]
        stream: Any = container.streams[index]
        reader = readers.setdefault(index, AudioReader(stream, order["origin_ms"], []))
        chosen = None if channels is None else tuple(channels)
        track = TrackExtractor(folder / item["name"], order["duration_seconds"], chosen)
        reader.tracks.append(track)
    return readers


def _run(
    source: Source,
    container: InputContainer,
    cut: VideoCut | None,
    readers: dict[int, AudioReader],
    duration_seconds: float,
    emit: Emit,
) -> None:
    handlers: dict[int, Callable[[Packet[Any]], None]]
    handlers = {index: reader.add for index, reader in readers.items()}
    if cut is not None:
        handlers[cut.stream.index] = cut.add
    streams = [container.streams[index] for index in sorted(handlers)]
    for count, (index, packet) in enumerate(packets_of(source, container, streams), start=1):
        if count % PACKETS_PER_REPORT == 0 and packet.pts is not None and duration_seconds > 0:
            fraction = float(packet.pts * packet.time_base) / duration_seconds
            emit({"fraction": min(1.0, max(0.0, fraction))})
        handlers[index](packet)
    if cut is not None:
        cut.finish()


def _video_result(source: Source, cut: VideoCut, folder: Path, emit: Emit) -> Values:
    """The segments, as files if possible; else as ranges of the source, or none.

    The source's own times are no use where they were repaired: then there are files in any case.
    """
    obstacle, order = cut.obstacle, cut.order
    if obstacle is not None and source.repairs:
        if obstacle == "times":
            order = order | {"segment_ms": _ONE_SEGMENT_MS}
        cut = _cut_again(source, order, folder, emit)
        if cut.obstacle is not None:
            raise MediaRefusedError(_UNREADABLE_PICTURE)
    elif obstacle == "container":
        cut = _cut_again(source, order, None, emit)
    in_files = cut.folder is not None and cut.obstacle is None
    return {
        "segments": cut.segments if cut.obstacle is None else [],
        "in_files": in_files,
        "shift_ms": cut.shift_ms if in_files else 0,
        "times_in_order": "times" not in (obstacle, cut.obstacle),
    }


def _cut_again(source: Source, order: Values, folder: Path | None, emit: Emit) -> VideoCut:
    """NUT holds what Matroska does not, and presentation times of it."""
    with source.open() as container:
        stream: Any = container.streams[order["index"]]
        shift_ms = shift_needed_ms(source, order["index"]) if folder else 0
        cut = VideoCut(stream, order, folder, emit, shift_ms, "nut")
        _run(source, container, cut, {}, 0.0, lambda _: None)
    return cut


SAMPLE_RATE_HZ = 16_000
"""As ``models.contracts.SAMPLE_RATE_HZ``, whose module imports numpy; a test compares."""

_SAMPLE_BYTES = 2
_TOLERANCE_SECONDS = 0.010
"""Timestamps may be this far off without a correction: containers round to a millisecond,
live recorders jitter by a few; the shortest common packet (Opus) lasts 10 to 20 ms."""

_BLOCK_SAMPLES = 1 << 15
_SILENCE = bytes(_BLOCK_SAMPLES * _SAMPLE_BYTES)
_UNORDERED_LAYOUT = re.compile(r"(\d+) channels")

AudioFormat = tuple[str, str, int, int]
"""Sample format, channel layout, sample rate in Hz, number of channels."""

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


class Resampler:
    """Frames of one format to 16-bit mono samples at SAMPLE_RATE_HZ."""

    def __init__(self, audio_format: AudioFormat, channels: Channels | None = None) -> None:
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
        if pan is not None:
            mixed = self._graph.add("pan", pan)
            source.link_to(mixed)
            source = mixed
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
    _timeline: TrackWriter = field(init=False)
    _format: AudioFormat | None = None
    _resampler: Resampler | None = None
    _due_seconds: float = 0.0

    def __post_init__(self) -> None:
        limit = round((self.duration_seconds + 1.0) * SAMPLE_RATE_HZ)
        self._timeline = TrackWriter(FlacFile(self.path), limit)

    def finish(self) -> dict[str, Any] | None:
        """Close the file; where it begins and how long it is, or None if it is empty."""
        self._end_run()
        file = self._timeline.file
        file.close()
        if not file.samples or self._timeline.first_sample is None:
            return None
        return {
            "name": self.path.name,
            "offset_seconds": self._timeline.first_sample / SAMPLE_RATE_HZ,
            "duration_seconds": file.samples / SAMPLE_RATE_HZ,
        }

    def add(self, frame: AudioFrame, seconds: float | None) -> None:
        """Take the next frame, which begins at ``seconds`` from the media's start if known."""
        layout = frame.layout
        found = (frame.format.name, layout.name, frame.sample_rate, layout.nb_channels)
        resampler = self._resampler
        if resampler is None or self._breaks_run(found, seconds):
            resampler = self._begin_run(found, self._due_seconds if seconds is None else seconds)
        self._due_seconds += frame.samples / frame.sample_rate
        self._timeline.write(resampler.add(frame))

    def _breaks_run(self, found: AudioFormat, seconds: float | None) -> bool:
        if found != self._format:
            return True
        return seconds is not None and abs(seconds - self._due_seconds) > _TOLERANCE_SECONDS

    def _begin_run(self, audio_format: AudioFormat, seconds: float) -> Resampler:
        self._end_run()
        self._format, self._resampler = audio_format, Resampler(audio_format, self.channels)
        self._due_seconds = seconds
        self._timeline.go_to(seconds)
        return self._resampler

    def _end_run(self) -> None:
        if self._resampler is not None:
            self._timeline.write(self._resampler.add(None))
            self._resampler = None


@dataclass(slots=True)
class AudioReader:
    """Decodes one audio stream, once, for all the tracks that are made of it.

    ``origin_ms`` is the media's start in the stream's timestamps.
    """

    stream: AudioStream
    origin_ms: int
    tracks: list[TrackExtractor]
    damaged_packets: int = 0

    def add(self, packet: Packet[Any]) -> None:
        """Take the next packet; an empty one flushes the decoder."""
        stream: Any = packet.stream
        try:
            frames = stream.decode(packet)
        except av.error.MemoryError:
            raise
        except av.error.FFmpegError:
            self.damaged_packets += 1
            return
        for frame in frames:
            if not frame.samples or not frame.sample_rate:
                continue
            base = frame.time_base or stream.time_base
            seconds = None
            if frame.pts is not None and base is not None:
                seconds = float(frame.pts * base) - self.origin_ms / 1000
            frame.pts = None
            for track in self.tracks:
                track.add(frame, seconds)

    def finish(self) -> list[dict[str, Any]]:
        """Close the files; what each holds, without those that are empty."""
        facts = {"index": self.stream.index, "damaged_packets": self.damaged_packets}
        finished = [track.finish() for track in self.tracks]
        return [facts | track for track in finished if track is not None]
