"""What is to be analysed: one file, a file with external audio, or several clips on one timeline.

1. ``probe_media``: what there is, before any work is done.
2. ``ingest_media``: video segments and audio tracks on one timeline.

A clip takes up the length of its longest stream, from where the one before it ends. Every clip with
video begins a scene. Where a clip has no video, the scene before it goes on (or the first one
begins early); where it has no audio, there is silence. Track *n* of the timeline is the *n*-th
audio stream of each clip, its channels mixed, so a voice keeps its name from clip to clip.

Camera RAW is decoded by the operator's command; of which family a file is, its content decides
before its name. A command is a line like ``decode --in {input} --out {output}``: it is split as a
shell would, but no shell runs it; it reads ``{input}``, a file with the family's own extension, and
writes ``{output}``, a video file that is then ingested like any other.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

import numpy as np

from models.contracts import SAMPLE_RATE_HZ, Samples
from pipelines import types
from pipelines.codec import digest
from pipelines.execution.chain import Control
from pipelines.ingest.external_audio import (
    ExternalFile,
    MainFile,
    ProbedExternal,
    ingest_external,
    probe_external,
    with_external_tracks,
)
from pipelines.ingest.headers import command_words, family_of
from pipelines.ingest.pipeline import IngestContext, ingest
from pipelines.media.audio import read_blocks, write_flac
from pipelines.sandbox.parent import ProgramFailedError, Shares, run_program
from storage.objects import ObjectStore
from storage.objects.local_files import temporary_folder

_VERSION = 1
_SILENCE_SAMPLES = 1 << 16
_CHECK_EVERY_PIECES = 2_000


@dataclass(frozen=True, slots=True)
class ClipFile:
    """A clip in the object store; the name is for people."""

    key: str
    name: str


@dataclass(frozen=True, slots=True)
class SourceMedia:
    """The files to analyse, in the object store.

    ``is_timeline``: ``clips`` are laid end to end; else there is exactly one. The tracks of
    ``external_audio`` replace the clip's own.
    """

    clips: tuple[ClipFile, ...]
    external_audio: tuple[ExternalFile, ...] = ()
    is_timeline: bool = False

    def with_clip_keys(self, key_of: Callable[[ClipFile], str]) -> SourceMedia:
        """Return the same media with each clip's file at another key."""
        return replace(self, clips=tuple(replace(clip, key=key_of(clip)) for clip in self.clips))


@dataclass(frozen=True, slots=True)
class MediaClip:
    """A probed clip and its place on the timeline."""

    file: ClipFile
    media: types.MediaInfo
    span: types.ClipSpan


@dataclass(frozen=True, slots=True)
class ProbedMedia:
    """What the media holds. ``media.audio`` lists the tracks that ingest will extract."""

    media: types.MediaInfo
    main: MainFile | None = None
    external_audio: tuple[ProbedExternal, ...] = ()
    clips: tuple[MediaClip, ...] = ()


def probe_media(source: SourceMedia, context: IngestContext) -> ProbedMedia:
    """Probe every file. Raises StageError (VALIDATION_FAILED, EXTERNAL_AUDIO_FAILED, …)."""
    if source.is_timeline:
        clips = _probe_clips(source.clips, context)
        return ProbedMedia(_timeline_media(clips), clips=clips)
    [clip] = source.clips
    files = 1 + len(source.external_audio)
    media = context.piece(0, files).probe(clip.key)
    main = MainFile(clip.key, media)
    if not source.external_audio:
        return ProbedMedia(media, main)
    external = probe_external(source.external_audio, main, context.span(1 / files, 1.0))
    return ProbedMedia(with_external_tracks(media, external), main, external)


def ingest_media(
    probed: ProbedMedia, context: IngestContext, *, video: bool, audio: bool
) -> types.IngestResult:
    """Cut the video and extract the audio. Raises StageError as ``ingest`` does."""
    main = probed.main
    if main is None:
        return _ingest_clips(probed.clips, context, video=video, audio=audio)
    if probed.external_audio and audio:
        return ingest_external(probed.external_audio, main, context, video=video)
    return ingest(main.key, context, media=main.media, video=video, audio=audio)


@contextmanager
def naming_clip(index: int, name: str) -> Iterator[None]:
    """Prefix a StageError of the block with the clip that it is about."""
    try:
        yield
    except types.StageError as error:
        raise types.StageError(error.code, f"Clip {index + 1} ({name}): {error.message}") from error


def _probe_clips(files: Sequence[ClipFile], context: IngestContext) -> tuple[MediaClip, ...]:
    """Probe the clips and lay them end to end.

    Raises StageError that names the clip; VALIDATION_FAILED too where all together exceed the
    longest duration.
    """
    clips: list[MediaClip] = []
    start_ms, limit_ms = 0, context.config.limits.max_duration_seconds * 1000
    for index, file in enumerate(files):
        context.control.check()
        with naming_clip(index, file.name):
            media = context.piece(index, len(files)).probe(file.key)
        video_ms = 0 if media.video is None else media.video.end_ms
        length_ms = max(1, video_ms, round(media.duration_seconds * 1000))
        clock = media.timecode, media.timeline, media.timecode_rate
        span = types.ClipSpan(index, file.name, start_ms, length_ms, *clock)
        clips.append(MediaClip(file, media, span))
        start_ms += length_ms
        if start_ms > limit_ms:
            message = f"The clips together are longer than {limit_ms // 1000} seconds, the limit."
            raise types.StageError(types.StageCode.VALIDATION_FAILED, message)
    return tuple(clips)


def _timeline_media(clips: Sequence[MediaClip]) -> types.MediaInfo:
    """Return the timeline as if it were one file: ``audio`` lists its tracks."""
    columns = zip_longest(*(clip.media.audio for clip in clips))
    return types.MediaInfo(
        container="timeline",
        size_bytes=sum(clip.media.size_bytes for clip in clips),
        duration_seconds=sum(clip.span.duration_ms for clip in clips) / 1000,
        video=next((clip.media.video for clip in clips if clip.media.video is not None), None),
        audio=tuple(_track_stream(number, column) for number, column in enumerate(columns)),
        warnings=tuple(_of_clip(each, clip) for clip in clips for each in clip.media.warnings),
    )


def _track_stream(number: int, streams: Sequence[types.AudioStream | None]) -> types.AudioStream:
    """Return the stream that describes a track: named as the clips' streams are, if they agree."""
    present = [stream for stream in streams if stream is not None]
    names = {stream.title or stream.language for stream in present}
    name = names.pop() if len(names) == 1 else None
    return replace(present[0], index=number, title=name or f"Track {number + 1}", language=None)


def _of_clip(warning: types.PipelineWarning, clip: MediaClip) -> types.PipelineWarning:
    message = f"Clip {clip.span.index + 1} ({clip.span.name}): {warning.message}"
    start_ms, end_ms = (
        None if time_ms is None else time_ms + clip.span.start_ms
        for time_ms in (warning.start_ms, warning.end_ms)
    )
    return replace(warning, message=message, start_ms=start_ms, end_ms=end_ms)


def _ingest_clips(
    clips: Sequence[MediaClip], context: IngestContext, *, video: bool, audio: bool
) -> types.IngestResult:
    """Ingest every clip, then join: segments renumbered, tracks laid end to end. Raises StageError
    that names the clip."""
    results = []
    context = replace(context, config=replace(context.config, channels=types.ChannelUse.MIXED))
    for position, clip in enumerate(clips):
        piece = context.piece(position, len(clips))
        with naming_clip(position, clip.file.name):
            results.append(ingest(clip.file.key, piece, media=clip.media, video=video, audio=audio))
    pairs = list(zip(clips, results, strict=True))
    media = _timeline_media(clips)
    return types.IngestResult(
        media=media,
        video=_joined_video(pairs),
        tracks=tuple(_joined_track(stream, pairs, context) for stream in media.audio if audio),
        warnings=tuple(_of_clip(each, clip) for clip, result in pairs for each in result.warnings),
        clips=tuple(clip.span for clip in clips),
    )


def _joined_video(
    pairs: Sequence[tuple[MediaClip, types.IngestResult]],
) -> types.VideoSource | None:
    """Return the clips' videos as parts of one; None where no clip has any."""
    parts: list[types.VideoPart] = []
    segments: list[types.Segment] = []
    for clip, result in pairs:
        video, span = result.video, clip.span
        if video is None:
            continue
        for each in video.segments:
            start_ms = each.start_ms + span.start_ms
            end_ms = min(each.end_ms, span.duration_ms) + span.start_ms
            segments.append(types.Segment(len(segments), each.key, start_ms, end_ms, len(parts)))
        parts.append(
            types.VideoPart(
                stream=video.stream,
                origin_ms=video.origin_ms - span.start_ms,
                start_ms=span.start_ms,
                end_ms=span.start_ms + span.duration_ms,
            )
        )
    if not parts:
        return None
    last = pairs[-1][0].span
    return types.VideoSource(
        stream=parts[0].stream,
        duration_ms=last.start_ms + last.duration_ms,
        origin_ms=parts[0].origin_ms,
        segments=tuple(segments),
        parts=tuple(parts),
    )


def _joined_track(
    stream: types.AudioStream,
    pairs: Sequence[tuple[MediaClip, types.IngestResult]],
    context: IngestContext,
) -> types.AudioTrack:
    """Return one track over the whole timeline; what an earlier run joined is used again."""
    pieces = [_piece(stream.index, clip, result) for clip, result in pairs]
    spans = [clip.span for clip, _ in pairs]
    facts = digest(_VERSION, pieces, [(span.start_ms, span.duration_ms) for span in spans])
    store = context.workspace.store
    key = context.workspace.key(f"timeline/track-{stream.index:02d}-{facts}.flac")
    total = _samples_at(spans[-1].start_ms + spans[-1].duration_ms)
    if not store.exists(key):
        with store.writer(key) as target:
            write_flac(target, _laid_out(pieces, spans, total, context))
    name = stream.title or f"Track {stream.index + 1}"
    return types.AudioTrack(stream.index, name, key, total / SAMPLE_RATE_HZ)


def _samples_at(time_ms: int) -> int:
    return round(time_ms * SAMPLE_RATE_HZ / 1000)


def _piece(track: int, clip: MediaClip, result: types.IngestResult) -> types.AudioTrack | None:
    """Return the clip's own part of a track: of its ``track``-th stream, if that could be
    decoded."""
    if track >= len(clip.media.audio):
        return None
    ending = f"/track-{clip.media.audio[track].index:02d}.flac"
    return next((item for item in result.tracks if item.key.endswith(ending)), None)


def _laid_out(
    pieces: Sequence[types.AudioTrack | None],
    spans: Sequence[types.ClipSpan],
    total: int,
    context: IngestContext,
) -> Iterator[Samples]:
    """Yield the pieces in their places with silence between, a block at a time."""
    done = 0
    for piece, span in zip(pieces, spans, strict=True):
        if piece is None:
            continue
        start, end = _samples_at(span.start_ms), _samples_at(span.start_ms + span.duration_ms)
        begin = start + round(piece.offset_seconds * SAMPLE_RATE_HZ)
        first = min(max(begin, start, done), end)
        yield from _silence(first - done)
        done = first
        skip = first - begin
        with context.workspace.store.local_copy(piece.key) as path:
            for count, block in enumerate(read_blocks(path)):
                if count % _CHECK_EVERY_PIECES == 0:
                    context.control.check()
                part = block[min(skip, len(block)) :][: max(0, end - done)]
                skip -= min(skip, len(block))
                done += len(part)
                yield part
    yield from _silence(total - done)


def _silence(samples: int) -> Iterator[Samples]:
    while samples > 0:
        part = min(samples, _SILENCE_SAMPLES)
        yield np.zeros(part, np.float32)
        samples -= part


log = logging.getLogger("vas.raw")

GIB = 1024**3
_COPY_BYTES = 4 << 20
_EXTENSIONS = {"r3d": "R3D", "braw": "braw", "arri": "ari"}


@dataclass(frozen=True, slots=True)
class RawConfig:
    """Decoders by family (``r3d``, ``braw``, ``arri``), and what one run of them may use up."""

    decoders: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 21_600.0
    memory_bytes: int = 16 * GIB
    output_bytes: int = 200 * GIB
    temporary_folder: Path | None = None

    @property
    def shares(self) -> Shares:
        return Shares(self.seconds, self.memory_bytes, self.output_bytes)


def decoded_source(
    source_key: str,
    *,
    named_family: str | None,
    store: ObjectStore,
    config: RawConfig,
    control: Control,
) -> str:
    """Return the object to analyse: the source itself, or what its RAW decoder made of it.

    ``named_family`` is the family by the file's name; without one the source is returned as it is
    (probing refuses RAW files whose name does not show the family, as RAW has its own price and
    limits). Raises StageError, VALIDATION_FAILED where no decoder is configured and INGEST_FAILED
    where it fails, and whatever ``control`` raises; the decoder is then ended, its files removed.
    """
    if named_family is None:
        return source_key
    target_key = f"{source_key}-decoded"
    if store.exists(target_key):
        return target_key
    with (
        store.local_copy(source_key, check=control.check) as local,
        temporary_folder("raw-", config.temporary_folder) as folder,
    ):
        path = local.resolve()
        family = family_of(path) or named_family
        if family not in config.decoders:
            message = f"The camera RAW format {family} is not enabled on this service."
            raise types.StageError(types.StageCode.VALIDATION_FAILED, message)
        source = folder / f"source.{_EXTENSIONS[family]}"
        source.symlink_to(path)
        output = folder / "decoded.mov"
        command = [
            word.replace("{input}", str(source)).replace("{output}", str(output))
            for word in command_words(config.decoders[family])
        ]
        try:
            run_program(command, folder, readable=[path], shares=config.shares, check=control.check)
        except ProgramFailedError as error:
            log.warning("decoder for %s %s: %s", family, error, error.errors)
            raise _failed(family, str(error)) from error
        # The decoder's file may be anything, so only a plain file counts.
        found = output.lstat() if output.is_symlink() or output.exists() else None
        if found is None or not stat.S_ISREG(found.st_mode) or found.st_size == 0:
            raise _failed(family, "wrote no video")
        with output.open("rb") as decoded, store.writer(target_key) as target:
            while data := decoded.read(_COPY_BYTES):
                control.check()
                target.write(data)
    return target_key


def _failed(family: str, reason: str) -> types.StageError:
    message = f"The decoder for {family} footage {reason}."
    return types.StageError(types.StageCode.INGEST_FAILED, message)
