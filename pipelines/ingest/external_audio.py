"""External audio: audio files beside a video become its tracks, placed on the video's timeline.

``probe_external``: each file is probed like any media, a WAV file's labels are read, and its
tracks are decided: one a file, or one a channel. A file that cannot be used fails its own tracks;
where that leaves none, the stage fails. ``ingest_external`` then extracts the tracks and places
them by offset, timecode, or alignment with the camera's own audio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pipelines import types
from pipelines.ingest import timecode
from pipelines.ingest.media_pass import TrackPick
from pipelines.ingest.pipeline import IngestContext, ingest, read_wav_labels
from pipelines.ingest.sync import CERTAIN, Alignment, find_alignment

_USUAL_FRAME_RATE = 25.0
_MOST_TRACKS = 512
"""16 files of 32 channels."""

_DRIFT_NOTED_SECONDS = 0.020
"""Half a frame: smaller drifts over the whole overlap give no warning."""

_DRIFT_CERTAIN_ERRORS = 3.0


@dataclass(frozen=True, slots=True)
class ExternalFile:
    """An external audio file as requested; ``key`` is its place in the object store.

    ``problem`` is why it could not be fetched, if it could not.
    """

    key: str
    name: str
    label: str | None = None
    sync_mode: timecode.SyncMode = timecode.SyncMode.AUTO
    offset_ms: int | None = None
    per_channel: bool = False
    channels: tuple[int, ...] | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class MainFile:
    """The file that external audio belongs to: the camera's, or audio alone."""

    key: str
    media: types.MediaInfo

    @property
    def frame_rate(self) -> float:
        """Of the video; a usual one for timecodes where there is none."""
        return _USUAL_FRAME_RATE if self.media.video is None else self.media.video.frame_rate


@dataclass(frozen=True, slots=True)
class ProbedExternal:
    """A probed external file: its media and tracks, or its problem."""

    file: ExternalFile
    picks: tuple[TrackPick, ...]
    media: types.MediaInfo | None = None
    start_seconds: float | None = None
    """Where it begins on the main file's timeline; None where only alignment can find it."""
    problem: str | None = None

    @property
    def needs_alignment(self) -> bool:
        """Whether it must be aligned with the camera's audio."""
        return self.problem is None and self.start_seconds is None

    def about(self, message: str) -> str:
        """Return the message with the file that it is about."""
        return f"Audio file {self.file.name}: {message}"


def probe_external(
    files: Sequence[ExternalFile], main: MainFile, context: IngestContext
) -> tuple[ProbedExternal, ...]:
    """Return what the files hold. Raises StageError EXTERNAL_AUDIO_FAILED if none can be used."""
    main_start: timecode.DayTime | None = None
    if any(file.sync_mode is not timecode.SyncMode.OFFSET for file in files):
        media = main.media
        main_start = timecode.start_of(media.timecode, media.timecode_rate, main.frame_rate)
        main_start = main_start or timecode.from_labels(_labels(main.key, main.media, context))
    probed = tuple(
        _probe_file(file, main, main_start, context.piece(index, len(files)))
        for index, file in enumerate(files)
    )
    problems = [each.problem for each in probed if each.problem is not None]
    if len(problems) == len(probed):
        raise types.StageError(types.StageCode.EXTERNAL_AUDIO_FAILED, problems[0])
    if sum(len(each.picks) for each in probed) > _MOST_TRACKS:
        message = f"The separate audio files make more than {_MOST_TRACKS} tracks."
        raise types.StageError(types.StageCode.EXTERNAL_AUDIO_FAILED, message)
    return probed


def _probe_file(
    file: ExternalFile, main: MainFile, main_start: timecode.DayTime | None, context: IngestContext
) -> ProbedExternal:
    """Return one file; an error becomes its problem."""
    context.control.check()
    if file.problem is not None:
        return _failed(file, file.problem)
    try:
        media = context.probe(file.key)
        labels = _labels(file.key, media, context)
        picks = _picks(file, media, labels)
        clock = media.timecode, media.timecode_rate, main.frame_rate
        start = timecode.from_labels(labels) or timecode.start_of(*clock)
        lengths = media.duration_seconds, main.media.duration_seconds
        clocks = timecode.Clocks(start, lengths[0], main_start, lengths[1])
        start_seconds = timecode.start_by_rule(file.sync_mode, file.offset_ms, clocks)
        return ProbedExternal(file, picks, media, start_seconds)
    except timecode.CannotPlaceError as error:
        return _failed(file, str(error))
    except types.StageError as error:
        return _failed(file, error.message)


def _failed(file: ExternalFile, problem: str) -> ProbedExternal:
    failed = ProbedExternal(file, (TrackPick(0, file.label or file.name),))
    return replace(failed, problem=failed.about(problem))


def _labels(key: str, media: types.MediaInfo, context: IngestContext) -> timecode.WavLabels:
    """Return a WAV file's labels; none of any other file."""
    if media.container != "wav":
        return timecode.WavLabels()
    with context.workspace.store.local_copy(key) as path:
        return read_wav_labels(path, context.config.limits, context.control.check)


def _picks(
    file: ExternalFile, media: types.MediaInfo, labels: timecode.WavLabels
) -> tuple[TrackPick, ...]:
    """Return the tracks of a file: one a channel, or its first stream, or chosen channels mixed.
    Channels are counted through all streams of the file. Raises StageError."""
    if not media.audio:
        message = "It holds no sound that can be decoded."
        raise types.StageError(types.StageCode.EXTERNAL_AUDIO_FAILED, message)
    places = [(it.index, channel) for it in media.audio for channel in range(it.channels)]
    chosen = list(dict.fromkeys(file.channels if file.channels is not None else range(len(places))))
    beyond = [channel for channel in chosen if channel >= len(places)]
    if beyond:
        message = f"Channel {beyond[0]} was asked for, but it has {len(places)}, counted from 0."
        raise types.StageError(types.StageCode.EXTERNAL_AUDIO_FAILED, message)
    names = dict(labels.channel_names)
    if file.per_channel:
        return tuple(
            TrackPick(stream, f"{file.label or names.get(each) or file.name} ch{each}", (channel,))
            for each in chosen
            for stream, channel in [places[each]]
        )
    chosen_names = {names.get(channel) for channel in chosen}
    own_name = chosen_names.pop() if len(chosen_names) == 1 else None
    name = file.label or own_name or file.name
    if file.channels is None:
        return (TrackPick(media.audio[0].index, name),)
    streams = {places[channel][0] for channel in chosen}
    if len(streams) > 1:
        message = (
            "The channels that were asked for lie in several of its streams and cannot be mixed; "
            "ask for perChannelTranscription."
        )
        raise types.StageError(types.StageCode.EXTERNAL_AUDIO_FAILED, message)
    return (TrackPick(streams.pop(), name, tuple(places[channel][1] for channel in chosen)),)


def with_external_tracks(
    media: types.MediaInfo, external: Sequence[ProbedExternal]
) -> types.MediaInfo:
    """``media`` with the external tracks in the place of its own audio."""
    tracks = [
        types.AudioStream(index, stream.codec, stream.sample_rate_hz, 1, stream.language, pick.name)
        for index, (stream, pick) in enumerate(
            (stream, pick)
            for each in external
            if each.media is not None
            for pick in each.picks
            for stream in each.media.audio
            if stream.index == pick.stream_index
        )
    ]
    return replace(media, audio=tuple(tracks))


def ingest_external(
    external: Sequence[ProbedExternal], main: MainFile, context: IngestContext, *, video: bool
) -> types.IngestResult:
    """Return the video cut into segments, and the external files as its tracks, in their order.

    The main file's own audio is extracted only where some file must be aligned with it. Raises
    StageError EXTERNAL_AUDIO_FAILED where no track is left.
    """
    pieces = len(external) + 1
    result = ingest(
        main.key,
        context.piece(0, pieces),
        media=main.media,
        video=video,
        audio=any(each.needs_alignment for each in external) and bool(main.media.audio),
    )
    # The track with most in it: silence takes next to no room in FLAC.
    size_bytes = context.workspace.store.size_bytes
    camera = max(result.tracks, key=lambda track: size_bytes(track.key), default=None)
    placed = _PlacedTracks(camera, main.media.duration_seconds)
    for position, each in enumerate(external, start=1):
        placed.add(each, context.piece(position, pieces))
    if not placed.tracks:
        failed = types.WarningCode.EXTERNAL_AUDIO_FAILED
        reasons = [each.message for each in placed.warnings if each.code is failed]
        message = (reasons or ["Nothing of the separate audio could be decoded."])[0]
        raise types.StageError(types.StageCode.EXTERNAL_AUDIO_FAILED, message)
    # Warnings about the camera's own audio concern no track of the result.
    of_main = (each for each in result.warnings if not each.code.startswith("AUDIO_"))
    return replace(
        result,
        media=with_external_tracks(main.media, external),
        tracks=tuple(placed.tracks),
        failed_tracks=tuple(placed.failed),
        warnings=(*of_main, *placed.warnings),
    )


@dataclass(slots=True)
class _PlacedTracks:
    """Collects the tracks of all external files."""

    camera: types.AudioTrack | None
    main_seconds: float
    tracks: list[types.AudioTrack] = field(default_factory=list)
    failed: list[types.TrackOutcome] = field(default_factory=list)
    warnings: list[types.PipelineWarning] = field(default_factory=list)

    def add(self, external: ProbedExternal, context: IngestContext) -> None:
        """Extract and place one file's tracks; an error fails only these."""
        found: dict[str, types.AudioTrack] = {}
        problem = external.problem
        if problem is None:
            try:
                found = self._placed(external, context)
            except types.StageError as error:
                problem = external.about(error.message)
        if problem is not None:
            self._warn(types.WarningCode.EXTERNAL_AUDIO_FAILED, problem)
        for pick in external.picks:
            index = len(self.tracks) + len(self.failed)
            track = found.get(pick.file_name)
            if track is None:
                code = types.StageCode.EXTERNAL_AUDIO_FAILED
                self.failed.append(types.TrackOutcome(index, pick.name, code=code))
            else:
                self.tracks.append(replace(track, index=index))

    def _placed(
        self, external: ProbedExternal, context: IngestContext
    ) -> dict[str, types.AudioTrack]:
        """Return the file's tracks by file name, on the main file's timeline."""
        aligned = TrackPick(external.picks[0].stream_index, external.file.name)
        is_picked = any(pick.file_name == aligned.file_name for pick in external.picks)
        extra = () if is_picked or not external.needs_alignment else (aligned,)
        result = ingest(
            external.file.key,
            context,
            media=external.media,
            video=False,
            picks=(*external.picks, *extra),
        )
        first, names = len(self.tracks) + len(self.failed), [it.file_name for it in external.picks]
        for warning in result.warnings:
            at = warning.track_index
            name = "" if at is None else result.tracks[at].key.rsplit("/", 1)[-1]
            index = first + names.index(name) if name in names else None
            self._warn(warning.code, external.about(warning.message), index)
        found = {track.key.rsplit("/", 1)[-1]: track for track in result.tracks}
        start = external.start_seconds
        if start is None:
            start = self._aligned_start(external, found.get(aligned.file_name), context)
        length = max((track.duration_seconds for track in found.values()), default=0.0)
        if start >= self.main_seconds or start + length <= 0:
            message = "at its offset it lies outside the video altogether."
            self._warn(types.WarningCode.AUDIO_OUTSIDE_VIDEO, external.about(message))
        return {
            name: replace(track, offset_seconds=track.offset_seconds + start)
            for name, track in found.items()
        }

    def _aligned_start(
        self, external: ProbedExternal, track: types.AudioTrack | None, context: IngestContext
    ) -> float:
        """Start by alignment with the camera's audio; 0 with a warning where none is certain."""
        found: Alignment | None = None
        if self.camera is not None and track is not None:
            found = find_alignment(
                self.camera,
                track,
                workspace=context.workspace,
                control=context.control,
                parent=context.config.temporary_folder,
            )
        if self.camera is None or track is None or found is None or found.confidence < CERTAIN:
            why = "the video has no sound" if self.camera is None else "they could not be matched"
            message = f"it was placed at the video's start, because {why} and timecodes do not say."
            self._warn(types.WarningCode.AUDIO_SYNC_UNCERTAIN, external.about(message))
            return 0.0
        self._note_drift(external, found)
        return self.camera.offset_seconds + found.offset_seconds - track.offset_seconds

    def _note_drift(self, external: ProbedExternal, found: Alignment) -> None:
        ppm = found.drift_ppm
        if ppm is None or abs(ppm) < _DRIFT_CERTAIN_ERRORS * found.drift_uncertainty_ppm:
            return
        apart_seconds = abs(ppm) * 1e-6 * found.overlap_seconds
        if apart_seconds >= _DRIFT_NOTED_SECONDS:
            pace = "slow" if ppm > 0 else "fast"
            message = (
                f"its clock runs {abs(ppm):.1f} parts per million {pace} against the video's, "
                f"{apart_seconds * 1000:.0f} ms over {found.overlap_seconds:.0f} s; "
                "it fits best in the middle."
            )
            self._warn(types.WarningCode.AUDIO_DRIFT, external.about(message))

    def _warn(self, code: types.WarningCode, message: str, track: int | None = None) -> None:
        self.warnings.append(types.PipelineWarning(code, message, track_index=track))
