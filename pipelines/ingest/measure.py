"""What a file holds, measured from its packets. Runs in the confined child process.

Headers lie about durations and frame rates, so every packet is looked at once;
only enough is decoded to know that each stream can be, and when it starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.error
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from pipelines.ingest.headers import declared_bytes, family_of
from pipelines.media.files import (
    PACKETS_PER_REPORT,
    Reading,
    codec_name,
    is_picture_stream,
    is_sound_stream,
    open_media,
    packets_of,
)
from pipelines.media.timestamps import rounded_ms
from pipelines.sandbox.child import MediaRefusedError, MediaUnreadableError

Values = dict[str, Any]

_DECODE_ATTEMPTS = 400
"""Packets tried before a stream counts as undecodable."""

_TRANSFER_PQ = 16
_TRANSFER_HLG = 18
_TEXT_LENGTH = 200
_NOTHING_USABLE = "The file has neither pictures nor sound that can be decoded."

_UNNAMED_RAW = (
    "This is camera RAW footage ({family}): create the job with a file name that says so."
)

_MISSING_SHARE = 0.01
_MISSING_SECONDS = 0.25
"""Less than either gives no warning: the last packets, a rounded length."""
_LEFT_OVER_SHARE = 0.05
"""Indexes and tags may follow the last packet."""
_RATE_TOLERANCE = Fraction(1, 500)
"""Of a rate that the container names, against the measured one."""
_HARDLY_SHARE = 0.05
_HARDLY_SECONDS = 5.0
"""With less than both of these left, results would not be those of what was sent."""


@dataclass(slots=True)
class Tally:
    """Counts over the packets of one stream so far. Times in ticks of its time base."""

    stream: VideoStream | AudioStream
    time_base: Fraction
    packets: int = 0
    keyframes: int = 0
    first: int | None = None
    last: int | None = None
    end: int | None = None
    attempts: int = 0
    frame: Any = field(default=None)

    def add(self, packet: Packet[Any]) -> None:
        """Count a packet, and decode it while no frame has come yet."""
        if packet.size:
            self._count(packet)
        if self.frame is None and self.attempts < _DECODE_ATTEMPTS:
            self._try_decoding(packet)

    def _count(self, packet: Packet[Any]) -> None:
        if packet.is_discard:
            return
        self.packets += 1
        self.keyframes += packet.is_keyframe
        ticks = packet.pts if packet.pts is not None else packet.dts
        if ticks is None:
            return
        self.first = ticks if self.first is None else min(self.first, ticks)
        self.last = ticks if self.last is None else max(self.last, ticks)
        end = ticks + (packet.duration or 0)
        self.end = end if self.end is None else max(self.end, end)

    def _try_decoding(self, packet: Packet[Any]) -> None:
        self.attempts += 1
        try:
            frames = self.stream.decode(packet)
        except av.error.MemoryError:
            raise
        except av.error.FFmpegError:
            return
        self.frame = next(iter(frames), None)

    @property
    def start(self) -> int:
        """When the first frame is shown; references before it that are not shown do not count."""
        shown = None if self.frame is None else self.frame.pts
        return shown if shown is not None else (self.first or 0)

    @property
    def interval(self) -> Fraction:
        """Mean time between packets, in ticks."""
        if self.packets < 2 or self.first is None or self.last is None:
            return Fraction(0)
        return Fraction(self.last - self.first, self.packets - 1)

    @property
    def stop(self) -> int:
        """When the last frame ends; by the mean interval where its length is not given.

        Muxers take the length of video frames from decoding times, which can be next to nothing.
        """
        if self.end is None or self.last is None:
            return self.start
        duration = self.end - self.last
        least = self.interval / 2 if self.stream.type == "video" else 0
        return self.last + (duration if duration > least else round(self.interval))

    def seconds(self, ticks: int) -> Fraction:
        return ticks * self.time_base


def probe(arguments: Values, emit: Callable[[Values], None]) -> Values:
    """The fields of MediaInfo as plain values: ``{path, limits}``, limits as in ProbeLimits.

    Emits ``{"fraction": …}``, the share of the file read so far. Raises MediaRefusedError where
    nothing is usable or a limit is exceeded, MediaUnreadableError where next to nothing is there.
    """
    path, limits = Path(arguments["path"]), arguments["limits"]
    family = family_of(path)
    if family is not None:
        raise MediaRefusedError(_UNNAMED_RAW.format(family=family))
    with open_media(path) as container:
        count, most = len(container.streams), limits["max_streams"]
        if count > most:
            raise MediaRefusedError(f"The file has {count} streams; the limit is {most}.")
        tallies, warnings = _candidates(container)
        _check_pictures(tallies, limits)
        reading = Reading()
        _read_through(container, tallies, limits, reading, _Meter(path.stat().st_size, emit))
        video, audio = _usable(tallies, warnings)
        if video is None and not audio:
            raise _nothing_usable(path)
        report = _report(container, path, video, audio, warnings)
        report["repaired_timeline"] = reading.times.leaps > 0
        if reading.times.leaps:
            message = (
                f"The file's clock was set anew {reading.times.leaps} times; "
                "times are those of one continuous timeline."
            )
            warnings.append({"code": "TIMELINE_REPAIRED", "message": message})
        claimed_seconds = (container.duration or 0) / av.time_base
        warnings += _loss(path, reading, claimed_seconds, report["duration_seconds"])
        return report


def _check_pictures(tallies: list[Tally], limits: Values) -> None:
    widest, highest = limits["max_width"], limits["max_height"]
    for tally in tallies:
        context: Any = tally.stream.codec_context
        if tally.stream.type == "video" and (context.width > widest or context.height > highest):
            raise MediaRefusedError(
                f"The pictures are {context.width} x {context.height}; "
                f"the limit is {widest} x {highest}."
            )


def _candidates(container: InputContainer) -> tuple[list[Tally], list[Values]]:
    tallies, warnings = [], []
    for stream in container.streams:
        if not (is_picture_stream(stream) or is_sound_stream(stream)):
            continue
        if stream.codec_context is None or stream.time_base is None:
            warnings.append(_ignored(stream.index, "its codec is not known"))
            continue
        stream.codec_context.thread_count = 1
        tallies.append(Tally(stream, stream.time_base))
    return tallies, warnings


def _ignored(index: int, why: str) -> Values:
    return {"code": "STREAM_IGNORED", "message": f"Stream {index} was ignored: {why}."}


def _nothing_usable(path: Path) -> Exception:
    declared = declared_bytes(path)
    if declared is not None and declared * (1 - _MISSING_SHARE) > path.stat().st_size:
        return MediaUnreadableError(_breaks_off("nothing"))
    return MediaRefusedError(_NOTHING_USABLE)


def _breaks_off(what: str) -> str:
    return f"The file breaks off; {what} of it could be read."


def _loss(
    path: Path, reading: Reading, claimed_seconds: float, read_seconds: float
) -> list[Values]:
    """A warning if much could not be read; raises MediaUnreadableError if nearly all.

    That a header claims more seconds proves nothing unless bytes are missing at the end, or
    were left over. Where the claim is missing, or FFmpeg made it fit the file (RIFF), the
    length in seconds follows from that in bytes.
    """
    size, declared = path.stat().st_size, declared_bytes(path) or 0
    is_cut_off = size < declared * (1 - _MISSING_SHARE)
    if is_cut_off and (not claimed_seconds or _claims_fit_file(path)):
        claimed_seconds = read_seconds * declared / size
    elif not is_cut_off and reading.reached_bytes > size * (1 - _LEFT_OVER_SHARE):
        return []
    if claimed_seconds - read_seconds <= _MISSING_SECONDS:
        return []
    if read_seconds < min(_HARDLY_SECONDS, _HARDLY_SHARE * claimed_seconds):
        raise MediaUnreadableError(_breaks_off("next to nothing"))
    message = _breaks_off(f"{read_seconds:.1f} of about {claimed_seconds:.1f} seconds")
    return [{"code": "MEDIA_TRUNCATED", "message": message}]


def _claims_fit_file(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) in (b"RIFF", b"RF64")


@dataclass(slots=True)
class _Meter:
    """Reports how much of the file has been read, by the position of its packets."""

    size_bytes: int
    emit: Callable[[Values], None]
    packets: int = 0
    furthest: int = 0

    def count(self, packet: Packet[Any]) -> None:
        self.packets += 1
        self.furthest = max(self.furthest, packet.pos or 0)
        if self.packets % PACKETS_PER_REPORT == 0:
            self.emit({"fraction": min(1.0, self.furthest / max(1, self.size_bytes))})


def _read_through(
    container: InputContainer,
    tallies: list[Tally],
    limits: Values,
    reading: Reading,
    meter: _Meter,
) -> None:
    by_index = {tally.stream.index: tally for tally in tallies}
    longest = limits["max_duration_seconds"]
    if not by_index:
        return
    most = {index: int(longest / tally.time_base) for index, tally in by_index.items()}
    for packet in packets_of(container, [tally.stream for tally in tallies], reading):
        index = packet.stream.index
        tally = by_index[index]
        tally.add(packet)
        meter.count(packet)
        if tally.last is not None and tally.last - (tally.first or 0) > most[index]:
            raise MediaRefusedError(f"The file is longer than {longest} seconds, the limit.")


def _usable(tallies: list[Tally], warnings: list[Values]) -> tuple[Tally | None, list[Tally]]:
    video: Tally | None = None
    audio: list[Tally] = []
    for tally in tallies:
        if tally.frame is None:
            warnings.append(_ignored(tally.stream.index, "nothing of it can be decoded"))
        elif tally.stream.type == "audio":
            audio.append(tally)
        elif video is None or _area(tally) > _area(video):
            video = tally
    return video, audio


def _area(tally: Tally) -> int:
    return int(tally.frame.width) * int(tally.frame.height)


def _report(
    container: InputContainer,
    path: Path,
    video: Tally | None,
    audio: list[Tally],
    warnings: list[Values],
) -> Values:
    chosen = [*([video] if video else []), *audio]
    origin_ms = min(rounded_ms(tally.start, tally.time_base) for tally in chosen)
    end = max(tally.seconds(tally.stop) for tally in chosen)
    return {
        "container": container.format.name,
        "size_bytes": path.stat().st_size,
        "duration_seconds": max(0.0, float(end - Fraction(origin_ms, 1000))),
        "origin_ms": origin_ms,
        "video": None if video is None else _video(video, origin_ms),
        "audio": [_audio(tally) for tally in audio],
        "timecode": _timecode(container),
        "warnings": warnings,
    }


def _video(tally: Tally, origin_ms: int) -> Values:
    frame: VideoFrame = tally.frame
    rotation = round(-frame.rotation / 90) * 90 % 360
    stream: Any = tally.stream
    aspect = float(stream.sample_aspect_ratio or 1)
    width, height = max(1, round(frame.width * aspect)), frame.height
    if rotation % 180:
        width, height = height, width
    per_second = tally.seconds(1) * tally.interval
    return {
        "index": tally.stream.index,
        "codec": codec_name(tally.stream),
        "width": width,
        "height": height,
        "rotation_degrees": rotation,
        "sample_aspect": aspect,
        "frame_rate": float(1 / per_second) if per_second else 0.0,
        "exact_rate": _exact_rate(stream, 1 / per_second) if per_second else None,
        "frame_count": tally.packets,
        "interlaced": bool(frame.interlaced_frame),
        "pixel_format": frame.format.name,
        "hdr": frame.color_trc in (_TRANSFER_PQ, _TRANSFER_HLG),
        "keyframe_count": tally.keyframes,
        "start_ms": rounded_ms(tally.start, tally.time_base) - origin_ms,
        "end_ms": max(
            rounded_ms(tally.stop, tally.time_base),
            rounded_ms(tally.last or 0, tally.time_base) + 1,
        )
        - origin_ms,
    }


def _exact_rate(stream: Any, measured: Fraction) -> str | None:
    """The rate that the container names, where the packets bear it out.

    A few frames with times in whole milliseconds cannot tell 24 from 23.976 by themselves.
    """
    for named in (stream.guessed_rate, stream.base_rate, stream.average_rate):
        if named and abs(named - measured) <= measured * _RATE_TOLERANCE:
            return str(Fraction(named))
    return None


def _audio(tally: Tally) -> Values:
    stream, frame = tally.stream, tally.frame
    language = stream.metadata.get("language", "")[:_TEXT_LENGTH]
    return {
        "index": stream.index,
        "codec": codec_name(stream),
        "sample_rate_hz": frame.sample_rate,
        "channels": frame.layout.nb_channels,
        "language": None if language in ("", "und") else language,
        "title": stream.metadata.get("title", "")[:_TEXT_LENGTH] or None,
    }


def _timecode(container: InputContainer) -> str | None:
    tags = [container.metadata, *(stream.metadata for stream in container.streams)]
    return next((tag["timecode"][:_TEXT_LENGTH] for tag in tags if tag.get("timecode")), None)
