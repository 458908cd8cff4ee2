"""One pass over a file: its video cut into segments, its audio as 16 kHz mono FLAC.

Runs in the confined child process, which may write to one temporary folder only.
Each segment is reported as soon as it is complete, and the report is waited for, so that at most
one segment lies in that folder at a time (audio tracks grow there until the end).

Memory is bounded whatever the length. Tracks whose channels need another mix than the usual one, or
more level, or are to be transcribed one by one, are read a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import av.error
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet

from pipelines.ingest.segments import VideoCut, VideoOrder, VideoPiece, shift_needed_ms
from pipelines.ingest.tracks import TrackExtractor, TrackFile
from pipelines.media.files import PACKETS_PER_REPORT, Source, packets_of
from pipelines.media_types import ChannelUse
from pipelines.sandbox.child import MediaRefusedError

Emit = Callable[[object], None]

_ONE_SEGMENT_MS = 1 << 40
_UNREADABLE_PICTURE = "The file's clock leaps, and its picture cannot be laid out without it."


@dataclass(frozen=True, slots=True)
class TrackPick:
    """What a track is made of: an audio stream of the file, or some channels of it mixed."""

    stream_index: int
    name: str
    channels: tuple[int, ...] | None = None
    use: ChannelUse = ChannelUse.MIXED
    """What is done with channels that are voices apart, beside the mix."""

    @property
    def file_name(self) -> str:
        """Of the FLAC file; distinct for distinct picks from one file."""
        chosen = "".join(f"-{channel}" for channel in self.channels or ())
        return f"track-{self.stream_index:02d}{chosen}.flac"


@dataclass(frozen=True, slots=True)
class CutOrder:
    """What to take out of a file, and the folder for it."""

    source: Source
    folder: Path
    video: VideoOrder | None
    audio: tuple[TrackPick, ...]
    origin_ms: int
    duration_seconds: float


@dataclass(frozen=True, slots=True)
class CutVideo:
    """How the video was cut."""

    segments: tuple[VideoPiece, ...]
    in_files: bool
    times_in_order: bool
    shift_ms: int


@dataclass(frozen=True, slots=True)
class FilePieces:
    """What the pass over a file wrote."""

    video: CutVideo | None = None
    tracks: tuple[TrackFile, ...] = ()


def cut(order: CutOrder, emit: Emit) -> FilePieces:
    """Cut and extract. Emits ``{"segment": VideoPiece}`` for every segment and ``{"fraction": …}``.
    Raises MediaRefusedError for pictures of a repaired timeline that no segment can hold."""
    source, folder, video, found = order.source, order.folder, order.video, None
    with source.open() as container:
        if video:
            shift_ms = shift_needed_ms(source, video.index)
            picture: Any = container.streams[video.index]
            found = VideoCut(picture, video, folder, emit, shift_ms)
        # For each requested stream, by its index, what reads it for all of its tracks.
        readers: dict[int, AudioReader] = {}
        for pick in order.audio:
            stream: Any = container.streams[pick.stream_index]
            reader = readers.setdefault(stream.index, AudioReader(stream, order.origin_ms, []))
            track = folder / pick.file_name, order.duration_seconds, pick.channels
            reader.tracks.append(TrackExtractor(*track, use=pick.use))
        _run(source, container, found, readers, order.duration_seconds, emit)
        finished = [track for reader in readers.values() for track in reader.finish()]
    again = {index: kept for index, reader in readers.items() if (kept := reader.to_be_mixed())}
    if again:
        with source.open() as container:
            streams: Any = container.streams
            readers = {
                index: AudioReader(streams[index], order.origin_ms, tracks)
                for index, tracks in again.items()
            }
            _run(source, container, None, readers, 0.0, emit)
            for reader in readers.values():
                reader.finish()
    cut_video = None if found is None else _video_result(source, found, folder, emit)
    return FilePieces(cut_video, tuple(finished))


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


def _video_result(source: Source, cut: VideoCut, folder: Path, emit: Emit) -> CutVideo:
    """Return the segments, as files if possible; else as ranges of the source, or none. The
    source's own times are no use where they were repaired: then there are files in any case."""
    obstacle, order = cut.obstacle, cut.order
    if obstacle is not None and source.repairs:
        if obstacle == "times":
            order = replace(order, segment_ms=_ONE_SEGMENT_MS)
        cut = _cut_again(source, order, folder, emit)
        if cut.obstacle is not None:
            raise MediaRefusedError(_UNREADABLE_PICTURE)
    elif obstacle == "container":
        cut = _cut_again(source, order, None, emit)
    in_files = cut.folder is not None and cut.obstacle is None
    return CutVideo(
        segments=tuple(cut.segments) if cut.obstacle is None else (),
        in_files=in_files,
        times_in_order="times" not in (obstacle, cut.obstacle),
        shift_ms=cut.shift_ms if in_files else 0,
    )


def _cut_again(source: Source, order: VideoOrder, folder: Path | None, emit: Emit) -> VideoCut:
    """NUT holds what Matroska does not, and presentation times of it."""
    with source.open() as container:
        stream: Any = container.streams[order.index]
        shift_ms = shift_needed_ms(source, order.index) if folder else 0
        cut = VideoCut(stream, order, folder, emit, shift_ms, "nut")
        _run(source, container, cut, {}, 0.0, lambda _: None)
    return cut


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

    def to_be_mixed(self) -> list[TrackExtractor]:
        """Return what is to be read again: tracks that need another mix, which replace the files,
        and channels that are voices apart."""
        return [again for track in self.tracks for again in track.again()]

    def finish(self) -> list[TrackFile]:
        """Close the files; those that are not empty."""
        finished = [track.finish(self.stream.index, self.damaged_packets) for track in self.tracks]
        return [track for track in finished if track is not None]
