"""The streams of a file, and which of them are analysed. Runs in the confined child process.

The picture is the one that moves, of those the largest; posters and previews that editors store as
streams of their own are left out. Of a multiplex picture and sound are those of one program.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av.error
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream

from pipelines.ingest.programs import programs_of
from pipelines.media.files import is_picture_stream, is_sound_stream, pixel_aspect
from pipelines.media.runs import Lane, Run
from pipelines.media_types import PipelineWarning, WarningCode
from pipelines.sandbox.child import MediaRefusedError

_DECODE_ATTEMPTS = 400
"""Packets tried, since the last key frame, before a stream counts as undecodable."""
_STILL_PACKETS = 2
_STILL_SHARE = 0.1
"""A picture with so few packets, or so few beside another's, stands still."""
_SHORTEST_PICTURE = Fraction(1, 120)
_LONGEST_SOUND = 10
"""Seconds of a packet of sound; some encoders end with one of years."""
_KEY_FRAMES_TRIED = 20
"""A stream of which none of so many key frames can be decoded is tried no more."""


_SLOWEST_READ_BYTES_PER_SECOND = 10 << 20
"""A file is given the time to be read at this speed, beside a fixed allowance."""


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """The most that a file may have, and that reading it may take."""

    max_duration_seconds: int = 86_400
    max_width: int = 8_192
    max_height: int = 8_192
    max_streams: int = 32
    memory_bytes: int = 4 << 30
    """Address space of the process that reads the file."""
    seconds: float = 120.0
    """Processor and wall time for a small file; large ones get more by their size. A day of
    tiny packets takes most of it."""

    def seconds_for(self, size_bytes: int) -> float:
        """Time to read a file of this size."""
        return self.seconds + size_bytes / _SLOWEST_READ_BYTES_PER_SECOND


@dataclass(slots=True)
class Tally:
    """What the packets of one stream hold. Times in seconds of the timeline, once it is known."""

    stream: VideoStream | AudioStream
    lane: Lane
    packets: int = 0
    keyframes: int = 0
    frame: Any = None
    """The first that could be decoded."""
    frame_aspect: float = 1.0
    """Of its pixels, by the decoder."""
    _attempts: int = 0

    @property
    def is_picture(self) -> bool:
        return self.stream.type == "video"

    def add(self, packet: Packet[Any], file: int, order: int) -> None:
        """Count a packet, and decode it while no frame has come yet."""
        if packet.size:
            self.lane.add(packet, packet.stream.time_base, file, order)
            if not packet.is_discard:
                self.packets += 1
                self.keyframes += packet.is_keyframe
        if self.frame is None:
            self._try_decoding(packet)

    def _try_decoding(self, packet: Packet[Any]) -> None:
        # Recorders join streams between key frames, which may be seconds apart.
        is_next_key = self.is_picture and packet.is_keyframe
        may_begin = is_next_key and self.keyframes <= _KEY_FRAMES_TRIED
        self._attempts = 0 if may_begin else self._attempts + 1
        if self._attempts >= _DECODE_ATTEMPTS:
            return
        try:
            frames = packet.stream.decode(packet)
        except av.error.MemoryError:
            raise
        except av.error.FFmpegError:
            return
        self.frame = next(iter(frames), None)
        if self.frame is not None and self.is_picture:
            self.frame_aspect = pixel_aspect(packet.stream)

    @property
    def start(self) -> Fraction:
        """When the first frame is shown; references before it that are not shown do not count."""
        shown = None if self.frame is None else self.frame.pts
        if shown is None:
            return self.first
        within = (run for run in self.lane.runs if run.first <= shown <= run.last)
        run = next(within, self.lane.runs[0] if self.lane.runs else None)
        return shown * self.stream.time_base if run is None else run.seconds(shown)

    @property
    def first(self) -> Fraction:
        return min((run.seconds(run.first) for run in self.lane.runs), default=Fraction(0))

    @property
    def last(self) -> Fraction:
        return max((run.seconds(run.last) for run in self.lane.runs), default=Fraction(0))

    @property
    def losses(self) -> list[tuple[Fraction, Fraction]]:
        """From when to when packets are missing; where the clock leaps nobody knows how many."""
        return [
            (before.seconds(end), run.seconds(first))
            for before, end, run, first in self.lane.losses
            if before.offset_us == run.offset_us and not before.is_stray and not run.is_stray
        ]

    @property
    def interval(self) -> Fraction:
        """Mean time between packets."""
        return (self.last - self.first) / (self.packets - 1) if self.packets > 1 else Fraction(0)

    @property
    def stop(self) -> Fraction:
        """When the last frame ends; by the mean interval where its length is not given.

        Muxers take the length of video frames from decoding times, which can be next to nothing.
        Recorders of screens write frames only where something changes: there the mean is no guide.
        """
        if not self.lane.runs:
            return self.start
        run = max(self.lane.runs, key=lambda run: run.seconds(run.last))
        duration = (run.end - run.last) * run.time_base
        least = min(self.interval / 2, _SHORTEST_PICTURE) if self.is_picture else 0
        if duration <= least or (duration > _LONGEST_SOUND and not self.is_picture):
            duration = round(self.interval / run.time_base) * run.time_base
        return run.seconds(run.last) + duration


def candidates(
    container: InputContainer, limits: ProbeLimits
) -> tuple[list[Tally], list[PipelineWarning]]:
    """The streams of picture and sound; attachments, subtitles and data do not count."""
    streams: list[Any] = [
        stream
        for stream in container.streams
        if is_picture_stream(stream) or is_sound_stream(stream)
    ]
    most = limits.max_streams
    if len(streams) > most:
        message = f"The file has {len(streams)} streams; the limit is {most} of picture and sound."
        raise MediaRefusedError(message)
    tallies: list[Tally] = []
    warnings: list[PipelineWarning] = []
    places: dict[int, tuple[Run, int]] = {}
    for stream in streams:
        context = stream.codec_context
        if context is None or stream.time_base is None:
            warnings.append(_ignored(stream.index, "its codec is not known"))
            continue
        is_picture = stream.type == "video"
        widest, highest = limits.max_width, limits.max_height
        if is_picture and (context.width > widest or context.height > highest):
            raise MediaRefusedError(
                f"The pictures are {context.width} x {context.height}; "
                f"the limit is {widest} x {highest}."
            )
        is_transport = container.format.name == "mpegts"
        lane = Lane(stream.index, is_picture, len(streams) == 1, places, is_transport=is_transport)
        tallies.append(Tally(stream, lane))
    return tallies, warnings


def _ignored(index: int, why: str) -> PipelineWarning:
    return PipelineWarning(WarningCode.STREAM_IGNORED, f"Stream {index} was ignored: {why}.")


def chosen(
    tallies: list[Tally], warnings: list[PipelineWarning], path: Path
) -> tuple[Tally | None, list[Tally]]:
    """The picture that moves, and the sounds that go with it; of the others there are warnings.

    Of a multiplex of several programs: those of the one with that picture, or the first sound.
    """
    pictures = [tally for tally in tallies if tally.is_picture and tally.frame is not None]
    # Posters and previews are stored as streams too: the largest of those that move.
    moving = [tally for tally in pictures if not _stands_still(tally, pictures)]
    video = max(moving, key=lambda tally: tally.frame.width * tally.frame.height, default=None)
    leader = video or next((tally for tally in tallies if tally.frame is not None), None)
    ids = {tally.stream.id for tally in tallies}
    programs = [each for each in programs_of(path) if each.pids & ids] if len(ids) > 1 else []
    own = next((each for each in programs if leader and leader.stream.id in each.pids), None)
    if own is not None and len(programs) > 1:
        names = ", ".join(map(str, programs))
        message = f"The file holds {len(programs)} programs: {names}. {own} was analysed."
        warnings.append(PipelineWarning(WarningCode.PROGRAM_CHOSEN, message))
        tallies = [tally for tally in tallies if tally.stream.id in own.pids]
    for tally in tallies:
        if tally.frame is None:
            warnings.append(_ignored(tally.stream.index, "nothing of it can be decoded"))
        elif tally.is_picture and tally is not video:
            stands = "it stands still beside the one that moves"
            why = stands if _stands_still(tally, pictures) else "another picture was analysed"
            warnings.append(_ignored(tally.stream.index, why))
    sounds = [tally for tally in tallies if not tally.is_picture and tally.frame is not None]
    return video, sounds


def _stands_still(tally: Tally, pictures: list[Tally]) -> bool:
    most = max(each.packets for each in pictures)
    return tally.packets < most * _STILL_SHARE or tally.packets <= _STILL_PACKETS < most
