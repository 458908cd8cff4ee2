"""An interval of a file by stream copy, from the key frame before it. Runs in the confined child.

Nothing is encoded: the clip is as good as the source and takes a second. It begins at the last key
frame at or before the requested start, and ends with the last frame before the end;
a frame after that is there too where frames before the end refer to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import av
import av.error
from av.container import InputContainer
from av.packet import Packet

from pipelines.ingest.streams import Program, beside, programs_of
from pipelines.media import files
from pipelines.media.audio import silenced
from pipelines.sandbox.child import Emit, MediaRefusedError

_STEPS_BACK_MS = (0, 1_500, 5_000, 30_000, None)
"""How long before the start to look for its key frame; None: from the beginning. Demuxers find
places by decoding times, which differ from those of the pictures."""
_OTHER_FORMAT = "The format changes between these times; no clip can be cut without encoding it."
_AAC_RATES_HZ = frozenset(
    {8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 64_000, 88_200, 96_000}
)
_HELD_BYTES = 512 << 20
"""Between a key frame and the start; more is not held in memory."""


@dataclass(frozen=True, slots=True)
class ClipOrder:
    """``[start_ms, end_ms)`` of the file, to be written to ``folder / NAME``."""

    source: files.Source
    is_ranged: bool
    """Bytes are fetched as they are read (``RangedFile``); not of joined files."""
    picture: int | None
    """The stream that was analysed; None where there is none."""
    folder: Path
    start_ms: int
    """Times count from the media's start."""
    end_ms: int
    origin_ms: int
    """The media's start in the file's own times."""
    muted: tuple[tuple[int, int], ...] = ()
    """Intervals whose sound is silent, in milliseconds as above: then sound is encoded anew."""


@dataclass(frozen=True, slots=True)
class CutClip:
    """FFmpeg's name of what was written, and where it truly begins and ends."""

    container: str
    start_ms: int
    end_ms: int


NAME = "clip"


def copy(order: ClipOrder, emit: Emit) -> CutClip:
    """Copy the interval. Raises MediaRefusedError where the codecs cannot be carried, or nothing
    lies between the times."""
    path, target = order.source.path, order.folder / NAME
    file = files.RangedFile(path, emit) if order.is_ranged else path
    with _opened(order, file) as source:
        is_mp4 = "mp4" in source.format.name
    for container in ("mp4", "matroska") if is_mp4 else ("matroska",):
        try:
            return _copied(order, file, target, container)
        except av.error.MemoryError:
            raise
        except (av.error.FFmpegError, ValueError):
            target.unlink(missing_ok=True)
    raise MediaRefusedError("No clip can be cut out of a file of this kind without encoding it.")


def _opened(order: ClipOrder, file: Path | files.RangedFile) -> InputContainer:
    if not isinstance(file, files.RangedFile):
        return order.source.open()
    file.seek(0)
    return files.open_media(file)


def _copied(
    order: ClipOrder, file: Path | files.RangedFile, target: Path, container: str
) -> CutClip:
    programs = programs_of(file)
    with _opened(order, file) as source:
        found = _Found.in_file(source, order, programs)
        options = {"movflags": "+faststart"} if container == "mp4" else {}
        with av.open(str(target), "w", format=container, options=options) as output:
            packets = found.packets(source)
            copies = {
                number: output.add_stream_from_template(stream)
                for number, stream in found.templates.items()
                if not (order.muted and files.is_sound_stream(stream))
            }
            sounds = {
                number: _MutedSound.into(output, stream, order, found.key_seconds)
                for number, stream in found.templates.items()
                if number not in copies
            }
            bounds: list[int] = []
            for number, packet in packets:
                time_ms = files.packet_time_ms(packet, order.origin_ms)
                bounds += [] if time_ms is None else [time_ms]
                if number in sounds:
                    output.mux(sounds[number].add(packet))
                    continue
                # Shifted by milliseconds, a picture whose time is rounded up would lie before 0.
                ticks = round(found.key_seconds / packet.time_base)
                packet.pts = None if packet.pts is None else packet.pts - ticks
                packet.dts = None if packet.dts is None else packet.dts - ticks
                packet.stream = copies[number]
                output.mux(packet)
            for sound in sounds.values():
                output.mux(sound.finish())
    if not bounds:
        raise MediaRefusedError("The file has nothing between these times.")
    return CutClip(container, max(0, found.start_ms), min(order.end_ms, max(bounds) + 1))


@dataclass(slots=True)
class _MutedSound:
    """A stream of sound, decoded, silenced where it is to be, and encoded as AAC."""

    output: Any
    resampler: Any
    order: ClipOrder
    begins: Fraction
    """Of the clip, in seconds of the file's own times."""

    @classmethod
    def into(cls, target: Any, stream: Any, order: ClipOrder, begins: Fraction) -> _MutedSound:
        context = stream.codec_context
        rate = context.sample_rate if context.sample_rate in _AAC_RATES_HZ else 48_000
        # Files without a layout have a count of channels alone, which no encoder takes.
        layout = {1: "mono", 2: "stereo"}.get(context.layout.nb_channels, context.layout.name)
        output = target.add_stream("aac", rate=rate, layout=layout)
        resampler = av.AudioResampler(format="fltp", layout=layout, rate=rate)
        return cls(output, resampler, order, begins)

    def add(self, packet: Packet[Any]) -> list[Packet[Any]]:
        """Return packets that are ready after ``packet``."""
        try:
            frames = packet.decode()
        except av.error.InvalidDataError:
            return []  # damaged, and so nothing that could be played
        return [out for frame in frames for out in self._encoded(frame)]

    def finish(self) -> list[Packet[Any]]:
        return [*self._encoded(None), *self.output.encode(None)]

    def _encoded(self, frame: Any) -> Iterator[Packet[Any]]:
        for ready in self.resampler.resample(frame):
            rate = ready.sample_rate
            seconds = ready.pts * ready.time_base
            at_ms = float(seconds * 1000) - self.order.origin_ms
            samples = silenced(ready.to_ndarray(), self.order.muted, rate, at_ms)
            quiet: Any = av.AudioFrame.from_ndarray(samples, "fltp", ready.layout.name)
            quiet.sample_rate, quiet.time_base = rate, Fraction(1, rate)
            quiet.pts = round((seconds - self.begins) * rate)
            yield from self.output.encode(quiet)


_Numbered: TypeAlias = "tuple[int, Packet[Any]]"


@dataclass(slots=True)
class _Found:
    """The streams to copy, and the packets from the key frame on, with their streams' numbers."""

    streams: list[Any]
    order: ClipOrder
    start_ms: int = 0
    key_seconds: Fraction = Fraction(0)
    """The exact time of the first key frame, in the file's own times."""
    _held: list[_Numbered] = field(default_factory=list)

    @classmethod
    def in_file(
        cls, source: InputContainer, order: ClipOrder, programs: Sequence[Program]
    ) -> _Found:
        sounds: list[Any] = [stream for stream in source.streams if files.is_sound_stream(stream)]
        streams = sounds
        if order.picture is not None:
            picture = source.streams[order.picture]
            streams = [picture, *beside(programs, picture, sounds)]
        if not streams or any(stream.codec_context is None for stream in streams):
            raise MediaRefusedError("The file has nothing that could be cut out.")
        return cls(streams, order)

    @property
    def leader(self) -> Any:
        """The stream whose key frames count: the picture, else the first sound."""
        return self.streams[0]

    @property
    def templates(self) -> dict[int, Any]:
        """By number, streams with the settings of what is held: joined files have their own."""
        held = {number: packet.stream for number, packet in self._held}
        return {stream.index: held.get(stream.index, stream) for stream in self.streams}

    def packets(self, source: InputContainer) -> Iterator[_Numbered]:
        """Return packets to write, in the file's order; sets the times of the first."""
        for step_ms in (None,) if self.order.source.repairs else _STEPS_BACK_MS:
            rest = self._begin(source, step_ms)
            if rest is not None:
                return self._between(itertools.chain(list(self._held), rest))
        return iter(())

    def _between(self, packets: Iterator[_Numbered]) -> Iterator[_Numbered]:
        done: set[int] = set()
        later: list[_Numbered] = []
        templates = self.templates
        for number, packet in packets:
            time_ms, leads = self._time_ms(packet), number == self.leader.index
            # Nothing of the packet's stream that follows is shown before it is decoded.
            ticks = packet.pts if packet.dts is None else packet.dts
            begins_ms = files.rounded_ms(ticks or 0, packet.time_base) - self.order.origin_ms
            if begins_ms >= self.order.end_ms:
                done.add(number)
                if len(done) == len(self.streams):
                    return
            elif time_ms >= self.order.end_ms and leads:
                later.append((number, packet))
            elif self.start_ms <= time_ms < self.order.end_ms:
                if _format(packet.stream) != _format(templates[number]):
                    raise MediaRefusedError(_OTHER_FORMAT)
                if leads:
                    yield from later
                    later.clear()
                yield number, packet

    def _begin(self, source: InputContainer, step_ms: int | None) -> Iterator[_Numbered] | None:
        """Read up to the first packet after the start; None where no key frame came before it. What
        lies between the key frame and that packet is held."""
        self._held = []
        packets = (each for each in self._read(source, step_ms) if each[1].size)
        packets = (each for each in packets if each[1].pts is not None)
        start_ms = self.order.start_ms
        key: Packet[Any] | None = None
        size = 0
        for number, packet in packets:
            leads = number == self.leader.index
            time_ms = self._time_ms(packet)
            if leads and packet.is_keyframe and (key is None or time_ms <= start_ms):
                if time_ms > start_ms and step_ms is not None:
                    return None
                key, size = packet, 0
                # What is beside the new key frame may lie before it.
                beside = (each for each in self._held if each[0] != number)
                self._held = [each for each in beside if self._time_ms(each[1]) >= time_ms]
            self._held.append((number, packet))
            size += packet.size
            if size > _HELD_BYTES:
                raise MediaRefusedError("Its key frames lie too far apart to cut a clip out.")
            if leads and key is not None and time_ms > start_ms:
                break
        if key is None:
            return None
        self.start_ms, self.key_seconds = self._time_ms(key), (key.pts or 0) * key.time_base
        return packets

    def _read(self, source: InputContainer, step_ms: int | None) -> Iterator[_Numbered]:
        """Yield packets from that long before the start on; None: from the beginning."""
        if self.order.source.repairs:
            yield from files.packets_of(self.order.source, source, self.streams)
            return
        if step_ms is None:
            ticks = self.leader.start_time or 0
        else:
            at_ms = max(0, self.order.start_ms - step_ms) + self.order.origin_ms
            ticks = round(at_ms / (1000 * self.leader.time_base))
        source.seek(ticks, backward=True, stream=self.leader)
        for packet in files.demuxed(source, self.streams):
            yield packet.stream.index, packet

    def _time_ms(self, packet: Packet[Any]) -> int:
        """When the packet is shown, from the media's start; ``_begin`` yields none without."""
        return files.rounded_ms(packet.pts or 0, packet.time_base) - self.order.origin_ms


def _format(stream: Any) -> tuple[Any, ...]:
    """Return what a copy must have in common with what it is written after."""
    context = stream.codec_context
    rate = context.sample_rate if stream.type == "audio" else (context.width, context.height)
    return files.codec_name(stream), rate, context.extradata
