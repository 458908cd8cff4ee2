"""Ingest of one file: a source in the object store becomes video segments and audio tracks.

1. ``probe_source``: what the file holds, by its packets, in a confined child process (about 0.1 s).
2. ``ingest``: one more child passes over the file once; it cuts the video at key frames by stream
   copy and writes each audio stream as 16 kHz mono.

Results go into the object store under names that follow from the input, so that a worker that takes
over finds them and does not compute them again.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipelines import types
from pipelines.codec import Artifact, CodecError, digest
from pipelines.execution.chain import Control, ControlSpan, FreeRun, Workspace, parts_of
from pipelines.ingest import headers, measure, media_pass
from pipelines.ingest.media_pass import CutOrder, CutVideo, FilePieces, TrackPick
from pipelines.ingest.segments import VideoOrder
from pipelines.ingest.streams import ProbeLimits
from pipelines.ingest.timecode import WavLabels
from pipelines.ingest.tracks import TrackFile
from pipelines.media.files import Source
from pipelines.sandbox import parent
from pipelines.sandbox.confinement import Allowance
from storage.objects import ObjectStore
from storage.objects.local_files import temporary_folder

_LABEL_SECONDS = 30


def run_media_task(
    task: parent.ConfinedTask,
    answer: type[parent.Answer],
    *,
    on_event: Callable[[Any], None] = lambda _: None,
    check: Callable[[], None],
) -> parent.Answer:
    """``run_confined`` with its errors as StageErrors: the refusal's code, or INGEST_FAILED."""
    try:
        return parent.run_confined(task, answer, on_event=on_event, check=check)
    except parent.TaskRefusedError as error:
        raise types.StageError(types.StageCode(error.code), error.message) from None
    except parent.TaskCrashedError as error:
        raise types.StageError(types.StageCode.INGEST_FAILED, str(error)) from error


def probe(
    path: Path,
    limits: ProbeLimits | None = None,
    *,
    check: Callable[[], None] = lambda: None,
    on_progress: Callable[[float], None] = lambda _: None,
) -> types.MediaInfo:
    """Measure the file at ``path``; ``on_progress`` receives the share read so far, 0 to 1. Raises
    StageError: VALIDATION_FAILED where the file cannot be analysed or exceeds a limit,
    INGEST_FAILED where reading it failed. Whatever ``check`` raises ends the child."""
    limits = limits or ProbeLimits()
    path = path.resolve()
    seconds = limits.seconds_for(path.stat().st_size)
    task = parent.ConfinedTask(
        program=measure.probe,
        order=(path, limits),
        allowance=Allowance(limits.memory_bytes, math.ceil(seconds), file_bytes=0),
        wall_seconds=seconds,
        readable=(path,),
    )

    def on_event(event: Any) -> None:
        on_progress(float(event["fraction"]))

    return run_media_task(task, types.MediaInfo, on_event=on_event, check=check)


def read_wav_labels(path: Path, limits: ProbeLimits, check: Callable[[], None]) -> WavLabels:
    """Labels that a recorder wrote into a WAV file. Raises StageError EXTERNAL_AUDIO_FAILED."""
    path = path.resolve()
    task = parent.ConfinedTask(
        program=headers.labels,
        order={"path": str(path)},
        allowance=Allowance(limits.memory_bytes, _LABEL_SECONDS, file_bytes=0),
        wall_seconds=_LABEL_SECONDS,
        readable=(path,),
    )
    try:
        return parent.run_confined(task, WavLabels, check=check)
    except (parent.TaskRefusedError, parent.TaskCrashedError) as error:
        raise types.StageError(types.StageCode.EXTERNAL_AUDIO_FAILED, str(error)) from error


INGESTED = Artifact.of(types.IngestResult, "ingest", version=7)
"""Beside the files that it names, which several results share."""

SHORTEST_SEGMENT_SECONDS = 10.0
"""For ``IngestConfig.shortest_segment_seconds``."""
_FEWEST_SEGMENTS = 8
"""A video is cut into so many where its segments may be shorter than usual, so that several
processors have work to the end. Independent of the cluster's size, which may change before stored
segments are reused."""

_CUT_FROM_LENGTHS = 1.5
"""Video shorter than this many segments stays in one piece."""

_AUDIO_BYTES_PER_SECOND = 40_000
"""Above the 32 000 that 16 kHz 16-bit mono takes uncompressed."""

_SPARE_BYTES = 64 << 20
PROBE_SHARE = 0.1
"""Of the progress of probing and cutting: six hours of 360p were read in a tenth of the time that
both took."""

_SECONDS_PER_MEDIA_SECOND = 0.1
"""Time allowed for decoding a track's audio, twice, beside that for reading the file."""

_TIMES_WARNING = types.PipelineWarning(
    types.WarningCode.TIMESTAMPS_NOT_IN_ORDER,
    "The video's timestamps jump back; it was analysed in one piece.",
)


@dataclass(frozen=True, slots=True)
class IngestConfig:
    """How sources are cut, and the limits that they must keep."""

    segment_seconds: float = 60.0
    shortest_segment_seconds: float | None = None
    """Segments of short videos may be shorter than ``segment_seconds``, down to this."""
    channels: types.ChannelUse = types.ChannelUse.AUTO
    """What is done with those of the file's own sound, where each is a voice."""
    limits: ProbeLimits = field(default_factory=ProbeLimits)
    temporary_folder: Path | None = None
    """Where segments lie until they are stored; None for the system's."""


@dataclass(frozen=True, slots=True)
class IngestContext:
    """What every step of ingest works with."""

    workspace: Workspace
    control: Control
    config: IngestConfig = field(default_factory=IngestConfig)

    def span(self, start: float, end: float) -> IngestContext:
        """Return the same for a part of the work, which moves the whole's progress so far."""
        return replace(self, control=ControlSpan(self.control, start, end))

    def piece(self, position: int, pieces: int) -> IngestContext:
        """Return the same for one of several equal pieces."""
        return replace(self, control=parts_of(self.control, [1.0] * pieces)[position])

    def probe(self, source_key: str) -> types.MediaInfo:
        """As ``probe_source``."""
        return probe_source(
            source_key, store=self.workspace.store, config=self.config, control=self.control
        )


def probe_source(
    source_key: str, *, store: ObjectStore, config: IngestConfig, control: Control | None = None
) -> types.MediaInfo:
    """Return what the source holds. Raises StageError (VALIDATION_FAILED, INGEST_FAILED).

    ``control`` receives the share of the file read so far as progress.
    """
    control = control or FreeRun()
    with store.local_copy(source_key, check=control.check) as path:
        return probe(path, config.limits, check=control.check, on_progress=control.progress)


def ingest(
    source_key: str,
    context: IngestContext,
    *,
    media: types.MediaInfo | None = None,
    video: bool = True,
    audio: bool = True,
    picks: Sequence[TrackPick] | None = None,
) -> types.IngestResult:
    """Cut the source's video into segments and extract its audio tracks.

    ``media`` is the result of ``probe_source``, probed here where it is not given; ``picks`` are
    the tracks to extract, one for each audio stream where not given. Raises StageError
    (VALIDATION_FAILED, INGEST_FAILED), and whatever the context's control raises, within a
    second; nothing temporary is left behind either way.
    """
    context.control.check()
    if media is None:
        media = context.span(0.0, PROBE_SHARE).probe(source_key)
        context = context.span(PROBE_SHARE, 1.0)
    if picks is None:
        use = context.config.channels
        picks = [
            TrackPick(stream.index, stream.title or stream.language or f"Track {number}", use=use)
            for number, stream in enumerate(media.audio, start=1)
        ]
    plan = _Plan(
        workspace=context.workspace,
        source_key=source_key,
        media=media,
        video=media.video if video else None,
        audio=tuple(picks) if audio else (),
        segment_ms=segment_ms(context.config, media.video),
    )
    result = _find_result(plan)
    if result is None:
        result = _result(plan, _extract(plan, context) if plan.cuts or plan.audio else FilePieces())
        INGESTED.save(plan.workspace.store, plan.result_key, result)
    context.control.progress(1.0)
    return result


def segment_ms(config: IngestConfig, video: types.VideoStream | None) -> int:
    """Return how long the segments of ``video`` are to be."""
    longest = round(config.segment_seconds * 1000)
    if config.shortest_segment_seconds is None or video is None:
        return longest
    shortest = round(config.shortest_segment_seconds * 1000)
    return min(longest, max(shortest, video.end_ms // _FEWEST_SEGMENTS))


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be done with a source, and where the results go."""

    workspace: Workspace
    source_key: str
    media: types.MediaInfo
    video: types.VideoStream | None
    audio: tuple[TrackPick, ...]
    segment_ms: int

    @property
    def folder(self) -> str:
        facts = INGESTED.version, self.source_key, self.media.size_bytes, self.segment_ms
        return self.workspace.key(f"{INGESTED.folder}/{digest(*facts)}")

    def key(self, name: str) -> str:
        return f"{self.folder}/{name}"

    @property
    def result_key(self) -> str:
        chosen = self.video is not None, self.audio
        return INGESTED.key(self.workspace.prefix, self.folder, *chosen)

    @property
    def cuts(self) -> bool:
        """Whether the video is to be cut into files, rather than used as it lies there."""
        if self.video is not None and self.media.timeline.repairs:
            return True
        if self.video is None or self.video.keyframe_count < 2:
            return False
        return self.video.end_ms >= _CUT_FROM_LENGTHS * self.segment_ms


def _find_result(plan: _Plan) -> types.IngestResult | None:
    """Return the result that an earlier run stored, if all of it is still there."""
    store = plan.workspace.store
    if not store.exists(plan.result_key):
        return None
    try:
        result = INGESTED.load(store, plan.result_key)
    except CodecError:
        return None  # written by another version: computed again
    keys = [key for track in result.tracks for key in (track.key, *track.channels)]
    if result.video is not None:
        keys += [segment.key for segment in result.video.segments]
    return result if all(map(store.exists, keys)) else None


def _extract(plan: _Plan, context: IngestContext) -> FilePieces:
    """Run the child process; store each segment as it is completed, then the tracks."""
    control, store = context.control, plan.workspace.store

    def put(path: Path) -> None:
        with path.open("rb") as source, store.writer(plan.key(path.name)) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        path.unlink()

    with temporary_folder("ingest-", context.config.temporary_folder) as folder:

        def on_event(event: Any) -> None:
            control.check()
            if "fraction" in event:
                control.progress(float(event["fraction"]))
            elif (segment := folder / event["segment"]["name"]).exists():
                put(segment)

        with store.local_copy(plan.source_key, check=control.check) as path:
            task = _task(plan, path.resolve(), folder.resolve(), context.config.limits)
            pieces = run_media_task(task, FilePieces, on_event=on_event, check=control.check)
        for name in (name for track in pieces.tracks for name in (track.name, *track.channels)):
            control.check()
            put(folder / name)
    return pieces


def _task(plan: _Plan, path: Path, folder: Path, limits: ProbeLimits) -> parent.ConfinedTask:
    media = plan.media
    audio_seconds = media.duration_seconds * len(plan.audio) * _SECONDS_PER_MEDIA_SECOND
    seconds = limits.seconds_for(2 * media.size_bytes) + audio_seconds
    largest = max(media.size_bytes * 2, round(media.duration_seconds * _AUDIO_BYTES_PER_SECOND))
    video = None
    if plan.cuts and plan.video is not None:
        stored = plan.workspace.store.list_keys(plan.folder)
        video = VideoOrder(
            index=plan.video.index,
            segment_ms=plan.segment_ms,
            end_ms=plan.video.end_ms,
            origin_ms=media.origin_ms,
            known=frozenset(key.rsplit("/", 1)[-1] for key in stored),
        )
    source, times = Source(path, *media.timeline.layout), (media.origin_ms, media.duration_seconds)
    return parent.ConfinedTask(
        program=media_pass.cut,
        order=CutOrder(source, folder, video, plan.audio, *times),
        allowance=Allowance(limits.memory_bytes, math.ceil(seconds), largest + _SPARE_BYTES),
        wall_seconds=3 * seconds,
        readable=(path,),
        writable=(folder,),
    )


def _result(plan: _Plan, pieces: FilePieces) -> types.IngestResult:
    if plan.media.video is None and plan.audio and not pieces.tracks:
        message = "Nothing of the file's sound could be decoded."
        raise types.StageError(types.StageCode.VALIDATION_FAILED, message)
    warnings = [*plan.media.warnings, *_track_warnings(plan, pieces.tracks)]
    if pieces.video is not None and not pieces.video.times_in_order:
        warnings.append(_TIMES_WARNING)
    picks = {pick.file_name: pick for pick in plan.audio}
    return types.IngestResult(
        media=plan.media,
        video=None if plan.video is None else _video_source(plan, plan.video, pieces.video),
        tracks=tuple(
            types.AudioTrack(
                index=number,
                name=picks[track.name].name,
                key=plan.key(track.name),
                duration_seconds=track.duration_seconds,
                offset_seconds=track.offset_seconds,
                channels=tuple(map(plan.key, track.channels)),
                are_channels_asked=picks[track.name].use is types.ChannelUse.SEPARATE,
            )
            for number, track in enumerate(pieces.tracks)
        ),
        warnings=tuple(warnings),
    )


def _video_source(
    plan: _Plan, stream: types.VideoStream, cut: CutVideo | None
) -> types.VideoSource:
    end_ms = max(1, stream.end_ms)
    whole = types.VideoSource(
        stream=stream,
        duration_ms=end_ms,
        origin_ms=plan.media.origin_ms,
        segments=(types.Segment(0, plan.source_key, 0, end_ms),),
    )
    if cut is None or not cut.segments:
        return whole
    segments = tuple(
        types.Segment(
            piece.index,
            plan.key(piece.name) if cut.in_files else plan.source_key,
            piece.start_ms,
            piece.end_ms,
        )
        for piece in cut.segments
    )
    return replace(
        whole,
        duration_ms=max(end_ms, segments[-1].end_ms),
        origin_ms=plan.media.origin_ms + cut.shift_ms,
        segments=segments,
    )


def _track_warnings(plan: _Plan, tracks: Sequence[TrackFile]) -> Iterator[types.PipelineWarning]:
    damaged = {track.index: track.damaged_packets for track in tracks}
    for index in dict.fromkeys(pick.stream_index for pick in plan.audio):
        if index not in damaged:
            message = f"Nothing of audio stream {index} could be decoded."
            yield types.PipelineWarning(types.WarningCode.AUDIO_UNREADABLE, message)
    for index, count in damaged.items():
        if count:
            message = f"{count} packets of audio stream {index} were damaged."
            yield types.PipelineWarning(types.WarningCode.AUDIO_DAMAGED, message)
    for number, track in enumerate(tracks):
        yield from (types.PipelineWarning(*found, track_index=number) for found in track.findings)
