"""Ingest: a source in the object store becomes segments to look at and tracks to listen to.

1. ``probe_source``: what the file holds, in a confined child process (about 0.1 s).
2. ``ingest``: one more child passes over the file once; it cuts the video at key
   frames by stream copy and writes each audio stream as 16 kHz mono.

What is ready goes into the object store under names that follow from the input,
so a runner that takes over finds it and does not do it again.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipelines.codec import CodecError, from_json, to_json
from pipelines.execution.chain import Control, ControlSpan, FreeRun, Workspace
from pipelines.ingest.probe import ProbeLimits, probe
from pipelines.sandbox.confinement import Allowance
from pipelines.sandbox.parent import Task, TaskCrashedError, TaskRefusedError, run_confined
from pipelines.types import (
    AudioTrack,
    IngestResult,
    MediaInfo,
    PipelineWarning,
    Segment,
    StageCode,
    StageError,
    VideoSource,
    VideoStream,
)
from storage.objects import ObjectStore
from storage.objects.local_files import temporary_folder

Values = dict[str, Any]

_VERSION = 2
"""Of what ingest writes; another number makes stored results of the one before invisible."""

SHORTEST_SEGMENT_SECONDS = 10.0
"""For ``IngestConfig.shortest_segment_seconds``."""
_FEWEST_SEGMENTS = 8
"""A video is cut into so many where its segments may be shorter than usual, so that several
processors have work to the end. The cluster's size does not count: it may change meanwhile, and
segments that are stored are to be found again."""

_CUT_FROM_LENGTHS = 1.5
"""Video shorter than this many segments stays in one piece."""

_AUDIO_BYTES_PER_SECOND = 40_000
"""Above the 32 000 that 16 kHz 16-bit mono takes uncompressed."""

_SPARE_BYTES = 64 << 20
PROBE_SHARE = 0.1
"""Of the progress of probing and cutting: six hours of 360p were read in a tenth of the time that
both took."""

_SECONDS_PER_MEDIA_SECOND = 0.05
"""Time allowed for decoding a track's sound, beside that for reading the file."""


@dataclass(frozen=True, slots=True)
class IngestConfig:
    """How sources are cut, and what they may ask for."""

    segment_seconds: float = 60.0
    shortest_segment_seconds: float | None = None
    """Segments of short videos may be shorter than ``segment_seconds``, down to this."""
    limits: ProbeLimits = field(default_factory=ProbeLimits)
    temporary_folder: Path | None = None
    """Where segments lie for the moment until they are stored; None for the system's."""


@dataclass(frozen=True, slots=True)
class TrackPick:
    """What a track is made of: an audio stream of the file, or some channels of it mixed."""

    stream_index: int
    name: str
    channels: tuple[int, ...] | None = None

    @property
    def file_name(self) -> str:
        """Of the FLAC file; tells picks from one file apart."""
        chosen = "".join(f"-{channel}" for channel in self.channels or ())
        return f"track-{self.stream_index:02d}{chosen}.flac"


def picks_of_streams(media: MediaInfo) -> tuple[TrackPick, ...]:
    """A track for each audio stream, named by its title or language."""
    return tuple(
        TrackPick(stream.index, stream.title or stream.language or f"Track {number}")
        for number, stream in enumerate(media.audio, start=1)
    )


def probe_source(
    source_key: str,
    *,
    store: ObjectStore,
    config: IngestConfig,
    control: Control | None = None,
) -> MediaInfo:
    """What the source holds. Raises StageError (VALIDATION_FAILED, INGEST_FAILED).

    ``control`` hears how much of it is read.
    """
    control = control or FreeRun()
    with store.local_copy(source_key, check=control.check) as path:
        return probe(path, config.limits, check=control.check, on_progress=control.progress)


def ingest(
    source_key: str,
    *,
    workspace: Workspace,
    control: Control,
    config: IngestConfig,
    media: MediaInfo | None = None,
    wants_video: bool = True,
    wants_audio: bool = True,
    picks: Sequence[TrackPick] | None = None,
) -> IngestResult:
    """Cut the source's video into segments and take out its audio tracks.

    ``media`` is what ``probe_source`` said, asked again where it is not given;
    ``picks`` are the tracks to take out, one for each audio stream where not given.
    Raises StageError (VALIDATION_FAILED, INGEST_FAILED), and whatever ``control``
    raises, within a second; nothing temporary is left behind either way.
    """
    control.check()
    if media is None:
        reading = ControlSpan(control, 0.0, PROBE_SHARE)
        media = probe_source(source_key, store=workspace.store, config=config, control=reading)
        control = ControlSpan(control, PROBE_SHARE, 1.0)
    chosen = tuple(picks_of_streams(media) if picks is None else picks)
    plan = _Plan.of(source_key, media, config, wants_video, chosen if wants_audio else ())
    found = _find_result(workspace, plan)
    if found is None:
        found = _carry_out(plan, workspace, control, config)
        data = json.dumps(ingest_result_to_json(found)).encode()
        workspace.store.write_bytes(workspace.key(plan.result_name), data)
    control.progress(1.0)
    return found


def ingest_result_to_json(result: IngestResult) -> Values:
    """``result`` as plain JSON values, for a runner that takes the job over."""
    values: Values = to_json(result)
    return values


def ingest_result_from_json(data: Values) -> IngestResult:
    """The result again; raises CodecError where ``data`` is none of this version."""
    return from_json(IngestResult, data)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be done with a source, and where the results go."""

    source_key: str
    media: MediaInfo
    video: VideoStream | None
    audio: tuple[TrackPick, ...]
    segment_ms: int
    folder: str

    @classmethod
    def of(
        cls,
        source_key: str,
        media: MediaInfo,
        config: IngestConfig,
        wants_video: bool,
        picks: tuple[TrackPick, ...],
    ) -> _Plan:
        length_ms = segment_ms(config, media.video)
        facts = (_VERSION, source_key, media.size_bytes, length_ms)
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        return cls(
            source_key=source_key,
            media=media,
            video=media.video if wants_video else None,
            audio=picks,
            segment_ms=length_ms,
            folder=f"ingest/{digest}",
        )

    @property
    def result_name(self) -> str:
        chosen = json.dumps([(pick.file_name, pick.name) for pick in self.audio]).encode()
        audio = f"audio-{hashlib.sha256(chosen).hexdigest()[:16]}" if self.audio else ""
        parts = ("video" if self.video else "", audio)
        return f"{self.folder}/result-{'-'.join(filter(None, parts)) or 'nothing'}.json"

    @property
    def cuts(self) -> bool:
        """Whether the video is to be cut into files, rather than used as it lies there."""
        if self.video is not None and self.media.repaired_timeline:
            return True
        if self.video is None or self.video.keyframe_count < 2:
            return False
        return self.video.end_ms >= _CUT_FROM_LENGTHS * self.segment_ms


def segment_ms(config: IngestConfig, video: VideoStream | None) -> int:
    """How long the segments of ``video`` are to be."""
    longest = round(config.segment_seconds * 1000)
    if config.shortest_segment_seconds is None or video is None:
        return longest
    shortest = round(config.shortest_segment_seconds * 1000)
    return min(longest, max(shortest, video.end_ms // _FEWEST_SEGMENTS))


def _find_result(workspace: Workspace, plan: _Plan) -> IngestResult | None:
    """What an earlier run stored, if all of it is still there."""
    key = workspace.key(plan.result_name)
    if not workspace.store.exists(key):
        return None
    try:
        result = ingest_result_from_json(json.loads(workspace.store.read_bytes(key)))
    except (CodecError, ValueError):
        return None  # written by another version: made again
    return result if all(map(workspace.store.exists, _keys(result))) else None


def _keys(result: IngestResult) -> Iterator[str]:
    if result.video is not None:
        yield from (segment.key for segment in result.video.segments)
    yield from (track.key for track in result.tracks)


def _carry_out(
    plan: _Plan, workspace: Workspace, control: Control, config: IngestConfig
) -> IngestResult:
    if not plan.cuts and not plan.audio:
        answer: Values = {"video": None, "tracks": []}
        return _result(plan, workspace, answer)
    with temporary_folder("ingest-", config.temporary_folder) as folder:
        shelf = _Shelf(plan, workspace, control, folder)
        with workspace.store.local_copy(plan.source_key, check=control.check) as path:
            answer = _run_child(plan, path.resolve(), shelf, config)
        for track in answer["tracks"]:
            control.check()
            shelf.put(track["name"])
    return _result(plan, workspace, answer)


@dataclass(slots=True)
class _Shelf:
    """Moves what the child has ready from its folder into the object store."""

    plan: _Plan
    workspace: Workspace
    control: Control
    folder: Path

    def stored_names(self) -> list[str]:
        prefix = self.workspace.key(self.plan.folder)
        return [key.rsplit("/", 1)[-1] for key in self.workspace.store.list_keys(prefix)]

    def put(self, name: str) -> None:
        path = self.folder / name
        key = self.workspace.key(f"{self.plan.folder}/{name}")
        with path.open("rb") as source, self.workspace.store.writer(key) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        path.unlink()

    def on_event(self, event: Values) -> None:
        self.control.check()
        if "fraction" in event:
            self.control.progress(float(event["fraction"]))
        elif (self.folder / event["segment"]["name"]).exists():
            self.put(event["segment"]["name"])


def _run_child(plan: _Plan, path: Path, shelf: _Shelf, config: IngestConfig) -> Values:
    media, limits = plan.media, config.limits
    audio_seconds = media.duration_seconds * len(plan.audio) * _SECONDS_PER_MEDIA_SECOND
    seconds = limits.seconds_for(2 * media.size_bytes) + audio_seconds
    largest = max(media.size_bytes * 2, round(media.duration_seconds * _AUDIO_BYTES_PER_SECOND))
    task = Task(
        name="cut",
        arguments=_order(plan, path, shelf),
        allowance=Allowance(limits.memory_bytes, math.ceil(seconds), largest + _SPARE_BYTES),
        wall_seconds=3 * seconds,
        readable=(path,),
        writable=(shelf.folder.resolve(),),
    )
    try:
        return run_confined(task, on_event=shelf.on_event, check=shelf.control.check)
    except TaskRefusedError as error:
        raise StageError(StageCode(error.code), error.message) from None
    except TaskCrashedError as error:
        raise StageError(StageCode.INGEST_FAILED, str(error)) from error


def _order(plan: _Plan, path: Path, shelf: _Shelf) -> Values:
    video: Values | None = None
    if plan.cuts and plan.video is not None:
        video = {
            "index": plan.video.index,
            "segment_ms": plan.segment_ms,
            "end_ms": plan.video.end_ms,
            "origin_ms": plan.media.origin_ms,
            "known": shelf.stored_names(),
        }
    return {
        "path": str(path),
        "folder": str(shelf.folder.resolve()),
        "video": video,
        "audio": [
            {"index": pick.stream_index, "name": pick.file_name, "channels": pick.channels}
            for pick in plan.audio
        ],
        "origin_ms": plan.media.origin_ms,
        "duration_seconds": plan.media.duration_seconds,
    }


def _result(plan: _Plan, workspace: Workspace, answer: Values) -> IngestResult:
    tracks: list[Values] = answer["tracks"]
    if plan.media.video is None and plan.audio and not tracks:
        message = "Nothing of the file's sound could be decoded."
        raise StageError(StageCode.VALIDATION_FAILED, message)
    warnings = [*plan.media.warnings, *_track_warnings(plan, tracks)]
    video = None
    if plan.video is not None:
        video = _video_source(plan, plan.video, workspace, answer["video"])
        if answer["video"] is not None and not answer["video"]["times_in_order"]:
            warnings.append(_TIMES_WARNING)
    return IngestResult(
        media=plan.media,
        video=video,
        tracks=tuple(_track(plan, workspace, number, t) for number, t in enumerate(tracks)),
        warnings=tuple(warnings),
    )


_TIMES_WARNING = PipelineWarning(
    "TIMESTAMPS_NOT_IN_ORDER", "The video's timestamps jump back; it was analysed in one piece."
)


def _video_source(
    plan: _Plan, stream: VideoStream, workspace: Workspace, cut: Values | None
) -> VideoSource:
    end_ms = max(1, stream.end_ms)
    source = VideoSource(
        stream=stream,
        duration_ms=end_ms,
        origin_ms=plan.media.origin_ms,
        segments=(Segment(0, plan.source_key, 0, end_ms),),
    )
    if cut is None or not cut["segments"]:
        return source
    segments = tuple(_segment(plan, workspace, item, cut) for item in cut["segments"])
    return replace(
        source,
        duration_ms=max(end_ms, segments[-1].end_ms),
        origin_ms=plan.media.origin_ms + cut["shift_ms"],
        segments=segments,
    )


def _segment(plan: _Plan, workspace: Workspace, item: Values, cut: Values) -> Segment:
    key = plan.source_key
    if cut["in_files"]:
        key = workspace.key(f"{plan.folder}/{item['name']}")
    return Segment(item["index"], key, item["start_ms"], item["end_ms"])


def _track(plan: _Plan, workspace: Workspace, number: int, values: Values) -> AudioTrack:
    pick = next(item for item in plan.audio if item.file_name == values["name"])
    return AudioTrack(
        index=number,
        name=pick.name,
        key=workspace.key(f"{plan.folder}/{values['name']}"),
        duration_seconds=values["duration_seconds"],
        offset_seconds=values["offset_seconds"],
    )


def _track_warnings(plan: _Plan, tracks: list[Values]) -> Iterator[PipelineWarning]:
    damaged = {track["index"]: track["damaged_packets"] for track in tracks}
    for index in dict.fromkeys(pick.stream_index for pick in plan.audio):
        if index not in damaged:
            message = f"Nothing of audio stream {index} could be decoded."
            yield PipelineWarning("AUDIO_UNREADABLE", message)
    for index, count in damaged.items():
        if count:
            message = f"{count} packets of audio stream {index} were damaged."
            yield PipelineWarning("AUDIO_DAMAGED", message)
