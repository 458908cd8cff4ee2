"""A job's media: one file, a file with external audio, or several clips on one timeline.

1. ``probe_media``: what there is, so that the job can be priced before any work is done.
2. ``ingest_media``: video segments and audio tracks on one timeline.

A clip takes up the length of its longest stream, from where the one before it ends. Every clip
with video begins a scene. Where a clip has no video, the scene before it goes on (or the first one
begins early); where it has no audio, there is silence. Track *n* of the timeline is the *n*-th
audio stream of each clip, so a voice keeps its name from clip to clip.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from models.contracts import SAMPLE_RATE_HZ, Samples
from pipelines.execution.chain import Control, ControlSpan, Workspace
from pipelines.ingest.external_audio import (
    Picture,
    SeparateFile,
    Sound,
    survey_sounds,
    take_in_sounds,
    with_sounds,
)
from pipelines.ingest.pipeline import IngestConfig, ingest, probe_source
from pipelines.media.audio import read_blocks, write_flac
from pipelines.types import (
    AudioStream,
    AudioTrack,
    ClipSpan,
    IngestResult,
    MediaInfo,
    PipelineWarning,
    Segment,
    StageCode,
    StageError,
    VideoPart,
    VideoSource,
)


@dataclass(frozen=True, slots=True)
class Footage:
    """The files of a job in the object store.

    ``is_programme``: ``clips`` are laid end to end; else there is exactly one.
    ``sounds`` replace the clip's own sound.
    """

    clips: tuple[ClipFile, ...]
    sounds: tuple[SeparateFile, ...] = ()
    is_programme: bool = False

    def with_clip_keys(self, key_of: Callable[[ClipFile], str]) -> Footage:
        """The same footage with each clip's file in another place."""
        return replace(self, clips=tuple(replace(clip, key=key_of(clip)) for clip in self.clips))


@dataclass(frozen=True, slots=True)
class Survey:
    """What the footage holds. ``media.audio`` lists the tracks there will be."""

    footage: Footage
    media: MediaInfo
    picture: Picture | None = None
    sounds: tuple[Sound, ...] = ()
    clips: tuple[Clip, ...] = ()


def survey(
    footage: Footage, *, workspace: Workspace, config: IngestConfig, control: Control
) -> Survey:
    """Look at every file. Raises StageError (VALIDATION_FAILED, EXTERNAL_AUDIO_FAILED, …)."""
    if footage.is_programme:
        clips = survey_clips(footage.clips, workspace=workspace, config=config, control=control)
        return Survey(footage, programme_media(clips), clips=clips)
    [clip] = footage.clips
    files = 1 + len(footage.sounds)
    media = probe_source(
        clip.key,
        store=workspace.store,
        config=config,
        control=ControlSpan.of_piece(control, 0, files),
    )
    picture = Picture(clip.key, media)
    if not footage.sounds:
        return Survey(footage, media, picture)
    sounds = survey_sounds(
        footage.sounds,
        picture,
        workspace=workspace,
        config=config,
        control=ControlSpan(control, 1 / files, 1.0),
    )
    return Survey(footage, with_sounds(media, sounds), picture, sounds)


def take_in(
    found: Survey,
    *,
    workspace: Workspace,
    control: Control,
    config: IngestConfig,
    wants_video: bool,
    wants_audio: bool,
) -> IngestResult:
    """Cut the pictures and take out the sound. Raises StageError as ``ingest`` does."""
    if found.picture is None:
        return take_in_clips(
            found.clips,
            workspace=workspace,
            control=control,
            config=config,
            wants_video=wants_video,
            wants_audio=wants_audio,
        )
    if found.sounds and wants_audio:
        return take_in_sounds(
            found.sounds,
            found.picture,
            workspace=workspace,
            control=control,
            config=config,
            wants_video=wants_video,
        )
    return ingest(
        found.picture.key,
        workspace=workspace,
        control=control,
        config=config,
        media=found.picture.media,
        wants_video=wants_video,
        wants_audio=wants_audio,
    )


_VERSION = 1
_SILENCE_SAMPLES = 1 << 16
_CHECK_EVERY_PIECES = 2_000


@dataclass(frozen=True, slots=True)
class ClipFile:
    """A clip as it lies in the object store; the name is for people."""

    key: str
    name: str


@dataclass(frozen=True, slots=True)
class Clip:
    """A clip that was probed, and where it lies on the programme's timeline."""

    file: ClipFile
    media: MediaInfo
    span: ClipSpan


@contextmanager
def naming_clip(index: int, name: str) -> Iterator[None]:
    """A StageError of the block says which clip it is about."""
    try:
        yield
    except StageError as error:
        message = f"Clip {index + 1} ({name}): {error.message}"
        raise StageError(error.code, message) from error


def survey_clips(
    files: Sequence[ClipFile], *, workspace: Workspace, config: IngestConfig, control: Control
) -> tuple[Clip, ...]:
    """Probe the clips and lay them end to end.

    Raises StageError that names the clip; VALIDATION_FAILED too where all together
    are longer than what is taken.
    """
    clips: list[Clip] = []
    start_ms, limit_ms = 0, config.limits.max_duration_seconds * 1000
    for index, file in enumerate(files):
        control.check()
        share = ControlSpan.of_piece(control, index, len(files))
        with naming_clip(index, file.name):
            media = probe_source(file.key, store=workspace.store, config=config, control=share)
        clips.append(Clip(file, media, ClipSpan(index, file.name, start_ms, _length_ms(media))))
        start_ms += _length_ms(media)
        if start_ms > limit_ms:
            message = f"The clips together are longer than {limit_ms // 1000} seconds, the limit."
            raise StageError(StageCode.VALIDATION_FAILED, message)
    return tuple(clips)


def _length_ms(media: MediaInfo) -> int:
    end_ms = 0 if media.video is None else media.video.end_ms
    return max(1, end_ms, round(media.duration_seconds * 1000))


def programme_media(clips: Sequence[Clip]) -> MediaInfo:
    """The programme as if it were one file: ``audio`` lists its tracks."""
    video = next((clip.media.video for clip in clips if clip.media.video is not None), None)
    warnings = [_of_clip(warning, clip) for clip in clips for warning in clip.media.warnings]
    columns = zip_longest(*(clip.media.audio for clip in clips))
    return MediaInfo(
        container="programme",
        size_bytes=sum(clip.media.size_bytes for clip in clips),
        duration_seconds=sum(clip.span.duration_ms for clip in clips) / 1000,
        video=video,
        audio=tuple(_track_stream(number, column) for number, column in enumerate(columns)),
        warnings=tuple(warnings),
    )


def _track_stream(number: int, streams: Sequence[AudioStream | None]) -> AudioStream:
    """What a programme's track is called: as its streams are, if they agree."""
    there = [stream for stream in streams if stream is not None]
    names = {stream.title or stream.language for stream in there}
    name = names.pop() if len(names) == 1 else None
    return replace(there[0], index=number, title=name or f"Track {number + 1}", language=None)


def _of_clip(warning: PipelineWarning, clip: Clip) -> PipelineWarning:
    message = f"Clip {clip.span.index + 1} ({clip.span.name}): {warning.message}"
    return replace(warning, message=message)


def take_in_clips(
    clips: Sequence[Clip],
    *,
    workspace: Workspace,
    control: Control,
    config: IngestConfig,
    wants_video: bool,
    wants_audio: bool,
) -> IngestResult:
    """Every clip cut and taken apart, then all joined. Raises StageError naming the clip."""
    results = []
    for position, clip in enumerate(clips):
        with naming_clip(position, clip.file.name):
            result = ingest(
                clip.file.key,
                workspace=workspace,
                control=ControlSpan.of_piece(control, position, len(clips)),
                config=config,
                media=clip.media,
                wants_video=wants_video,
                wants_audio=wants_audio,
            )
        results.append(result)
    return joined(clips, results, workspace, control, wants_audio=wants_audio)


def joined(
    clips: Sequence[Clip],
    results: Sequence[IngestResult],
    workspace: Workspace,
    control: Control,
    *,
    wants_audio: bool,
) -> IngestResult:
    """The clips' results as one: their segments renumbered, their tracks joined."""
    media = programme_media(clips)
    tracks = media.audio if wants_audio else ()
    warnings = [
        _of_clip(warning, clip)
        for clip, result in zip(clips, results, strict=True)
        for warning in result.warnings
    ]
    return IngestResult(
        media=media,
        video=joined_video(clips, results),
        tracks=tuple(
            _joined_track(stream, clips, results, workspace, control) for stream in tracks
        ),
        warnings=tuple(warnings),
        clips=tuple(clip.span for clip in clips),
    )


def joined_video(clips: Sequence[Clip], results: Sequence[IngestResult]) -> VideoSource | None:
    """The clips' pictures as parts of one video; None where no clip has any."""
    parts: list[VideoPart] = []
    segments: list[Segment] = []
    for clip, result in zip(clips, results, strict=True):
        if result.video is not None:
            for segment in result.video.segments:
                segments.append(_moved(segment, len(segments), len(parts), clip.span))
            parts.append(_part(result.video, clip.span))
    if not parts:
        return None
    last = clips[-1].span
    return VideoSource(
        stream=parts[0].stream,
        duration_ms=last.start_ms + last.duration_ms,
        origin_ms=parts[0].origin_ms,
        segments=tuple(segments),
        parts=tuple(parts),
    )


def _part(video: VideoSource, span: ClipSpan) -> VideoPart:
    return VideoPart(
        stream=video.stream,
        origin_ms=video.origin_ms - span.start_ms,
        start_ms=span.start_ms,
        end_ms=span.start_ms + span.duration_ms,
    )


def _moved(segment: Segment, index: int, part: int, span: ClipSpan) -> Segment:
    end_ms = min(segment.end_ms, span.duration_ms)
    return Segment(
        index, segment.key, segment.start_ms + span.start_ms, end_ms + span.start_ms, part
    )


def _joined_track(
    stream: AudioStream,
    clips: Sequence[Clip],
    results: Sequence[IngestResult],
    workspace: Workspace,
    control: Control,
) -> AudioTrack:
    """One track over the whole programme; what an earlier run joined is used again."""
    pairs = zip(clips, results, strict=True)
    pieces = [_piece(stream.index, clip, result) for clip, result in pairs]
    spans = [clip.span for clip in clips]
    key = workspace.key(f"programme/track-{stream.index:02d}-{_digest(pieces, spans)}.flac")
    total = _samples_at(spans[-1].start_ms + spans[-1].duration_ms)
    if not workspace.store.exists(key):
        samples = _laid_out(pieces, spans, total, workspace, control)
        with workspace.store.writer(key) as target:
            write_flac(target, samples)
    name = stream.title or f"Track {stream.index + 1}"
    return AudioTrack(stream.index, name, key, total / SAMPLE_RATE_HZ)


def _digest(pieces: Sequence[AudioTrack | None], spans: Sequence[ClipSpan]) -> str:
    """Names a joined track by all that it depends on."""
    parts = [piece and [piece.key, piece.offset_seconds] for piece in pieces]
    facts = [_VERSION, parts, [[span.start_ms, span.duration_ms] for span in spans]]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def _samples_at(time_ms: int) -> int:
    return round(time_ms * SAMPLE_RATE_HZ / 1000)


def _piece(track: int, clip: Clip, result: IngestResult) -> AudioTrack | None:
    """The clip's own part of a track: of its ``track``-th stream, if that could be decoded."""
    if track >= len(clip.media.audio):
        return None
    wanted = clip.media.audio[track].index
    ending = f"/track-{wanted:02d}.flac"
    return next((item for item in result.tracks if item.key.endswith(ending)), None)


def _laid_out(
    pieces: Sequence[AudioTrack | None],
    spans: Sequence[ClipSpan],
    total: int,
    workspace: Workspace,
    control: Control,
) -> Iterator[Samples]:
    """The pieces in their places with silence between, a block at a time."""
    done = 0
    for piece, span in zip(pieces, spans, strict=True):
        if piece is None:
            continue
        start, end = _samples_at(span.start_ms), _samples_at(span.start_ms + span.duration_ms)
        begin = start + round(piece.offset_seconds * SAMPLE_RATE_HZ)
        first = min(max(begin, start, done), end)
        yield from _silence(first - done)
        done = first
        for block in _blocks(piece, first - begin, workspace, control):
            part = block[: max(0, end - done)]
            done += len(part)
            yield part
    yield from _silence(total - done)


def _blocks(
    piece: AudioTrack, skip: int, workspace: Workspace, control: Control
) -> Iterator[Samples]:
    with workspace.store.local_copy(piece.key) as path:
        for count, block in enumerate(read_blocks(path)):
            if count % _CHECK_EVERY_PIECES == 0:
                control.check()
            yield block[min(skip, len(block)) :]
            skip -= min(skip, len(block))


def _silence(samples: int) -> Iterator[Samples]:
    while samples > 0:
        part = min(samples, _SILENCE_SAMPLES)
        yield np.zeros(part, np.float32)
        samples -= part
