"""One pass over a file that cuts its pictures into segments and takes out its sound.

Runs in the confined child process, which may write to one temporary folder only.
What is ready is reported at once and waited for, so that no more than a segment
lies in that folder at a time (sound tracks grow there until the end).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from av.container import InputContainer
from av.packet import Packet

from pipelines.ingest.extract_audio import SoundReader, TrackExtractor
from pipelines.ingest.segment_files import VideoCut, shift_needed_ms
from pipelines.media.files import (
    CARRIED_CODECS,
    PACKETS_PER_REPORT,
    codec_name,
    open_media,
    packets_of,
)

Values = dict[str, Any]
Emit = Callable[[Values], None]


def cut_media(path: Path, folder: Path, order: Values, emit: Emit) -> Values:
    """Cut and extract as ``order`` says; ``folder`` takes the files.

    ``order["video"]`` is None or ``{index, segment_ms, end_ms, origin_ms,
    known}``, where ``known`` names segments that exist already;
    ``order["audio"]`` lists ``{index, name, channels}``, where ``channels`` is None
    for all of a stream's mixed. Emits ``{"segment": …}`` for every
    segment and ``{"fraction": …}``. Returns ``{video, tracks}``.
    """
    video = order["video"]
    with open_media(path) as container:
        cut = None
        if video:
            shift_ms = shift_needed_ms(path, video["index"])
            cut = _video_cut(container, video, folder, emit, shift_ms)
        readers = _sound_readers(container, folder, order)
        _run(container, cut, readers, order["duration_seconds"], emit)
        finished = [track for reader in readers.values() for track in reader.finish()]
    return {
        "video": None if cut is None else _video_result(path, cut),
        "tracks": finished,
    }


def _video_cut(
    container: InputContainer, order: Values, folder: Path | None, emit: Emit, shift_ms: int
) -> VideoCut:
    stream: Any = container.streams[order["index"]]
    cut = VideoCut(stream, order, folder, emit, shift_ms)
    if folder is not None and codec_name(stream) not in CARRIED_CODECS:
        cut.obstacle = "container"
    return cut


def _sound_readers(
    container: InputContainer, folder: Path, order: Values
) -> dict[int, SoundReader]:
    """A reader for each stream that is wanted, by its index, with its tracks."""
    readers: dict[int, SoundReader] = {}
    for item in order["audio"]:
        index, channels = item["index"], item["channels"]
        stream: Any = container.streams[index]
        reader = readers.setdefault(index, SoundReader(stream, order["origin_ms"], []))
        chosen = None if channels is None else tuple(channels)
        track = TrackExtractor(folder / item["name"], order["duration_seconds"], chosen)
        reader.tracks.append(track)
    return readers


def _run(
    container: InputContainer,
    cut: VideoCut | None,
    readers: dict[int, SoundReader],
    duration_seconds: float,
    emit: Emit,
) -> None:
    takers: dict[int, Callable[[Packet[Any]], None]]
    takers = {index: reader.add for index, reader in readers.items()}
    if cut is not None:
        takers[cut.stream.index] = cut.add
    streams = [container.streams[index] for index in sorted(takers)]
    for count, packet in enumerate(packets_of(container, streams), start=1):
        if count % PACKETS_PER_REPORT == 0 and packet.pts is not None and duration_seconds > 0:
            fraction = float(packet.pts * packet.time_base) / duration_seconds
            emit({"fraction": min(1.0, max(0.0, fraction))})
        takers[packet.stream.index](packet)
    if cut is not None:
        cut.finish()


def _video_result(path: Path, cut: VideoCut) -> Values:
    """The segments, as files if all went well; else as ranges of the source, or the whole."""
    in_files = cut.obstacle is None
    if cut.obstacle == "container":
        cut = _cut_into_ranges(path, cut.order)
    whole = cut.obstacle is not None
    return {
        "segments": [] if whole else cut.segments,
        "in_files": in_files,
        "shift_ms": cut.shift_ms if in_files else 0,
        "times_in_order": cut.obstacle != "times",
    }


def _cut_into_ranges(path: Path, order: Values) -> VideoCut:
    with open_media(path) as container:
        cut = _video_cut(container, order, None, lambda _: None, 0)
        _run(container, cut, {}, 0.0, lambda _: None)
    return cut


def cut(arguments: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """``cut_media`` as a task of the confined child: ``{path, folder, …}``."""
    return cut_media(Path(arguments["path"]), Path(arguments["folder"]), arguments, emit)
