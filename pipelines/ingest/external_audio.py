"""External audio: audio files beside a video become its tracks, placed on the video's timeline.

``probe_external``: each file is probed like any media, a WAV file's labels are read, and its
tracks are decided: one a file, or one a channel. A file that cannot be used fails its own tracks;
where that leaves none, the stage fails. ``ingest_external`` then extracts the tracks and places
them by offset, timecode, or alignment with the camera's own audio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipelines.codec import from_json
from pipelines.execution.chain import Control, ControlSpan, Workspace
from pipelines.ingest.pipeline import IngestConfig, TrackPick, ingest, probe_source
from pipelines.ingest.probe import ProbeLimits
from pipelines.ingest.sync.align import CERTAIN, Alignment, hear
from pipelines.ingest.sync.timecode import (
    CannotPlaceError,
    Clocks,
    DayTime,
    SoundLabels,
    SyncMode,
    from_labels,
    parse_timecode,
    start_by_rule,
)
from pipelines.sandbox.confinement import Allowance
from pipelines.sandbox.parent import Task, TaskCrashedError, TaskRefusedError, run_confined
from pipelines.types import (
    AudioStream,
    AudioTrack,
    FailedTrack,
    IngestResult,
    MediaInfo,
    PipelineWarning,
    StageCode,
    StageError,
)

_LABEL_SECONDS = 30
_USUAL_FRAME_RATE = 25.0
_MOST_TRACKS = 512
"""16 files of 32 channels."""


@dataclass(frozen=True, slots=True)
class SeparateFile:
    """A separate audio file as it was asked for; ``key`` is where it lies.

    ``problem`` says why it could not be brought there, if it could not.
    """

    key: str
    name: str
    label: str | None = None
    sync_mode: SyncMode = SyncMode.AUTO
    offset_ms: int | None = None
    per_channel: bool = False
    channels: tuple[int, ...] | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """The video that separate sound belongs to."""

    key: str
    media: MediaInfo

    @property
    def frame_rate(self) -> float:
        """Of the pictures; a usual one for timecodes of sound that stands beside none."""
        return _USUAL_FRAME_RATE if self.media.video is None else self.media.video.frame_rate


@dataclass(frozen=True, slots=True)
class Sound:
    """A file that was looked at: what it holds and what becomes of it, or why nothing does."""

    file: SeparateFile
    picks: tuple[TrackPick, ...]
    media: MediaInfo | None = None
    start_seconds: float | None = None
    """Where it begins on the video's timeline; None where only listening can tell."""
    problem: str | None = None

    @property
    def by_ear(self) -> bool:
        """Whether it must be heard against the camera's sound."""
        return self.problem is None and self.start_seconds is None


def survey_sounds(
    files: Sequence[SeparateFile],
    picture: Picture,
    *,
    workspace: Workspace,
    config: IngestConfig,
    control: Control,
) -> tuple[Sound, ...]:
    """What the files hold. Raises StageError EXTERNAL_AUDIO_FAILED if none can be used."""
    look = _Look(workspace, config, control, picture)
    start = look.start_of_picture(files)
    sounds = tuple(
        replace(look, control=ControlSpan.of_piece(control, index, len(files))).at(file, start)
        for index, file in enumerate(files)
    )
    problems = [sound.problem for sound in sounds if sound.problem is not None]
    if len(problems) == len(sounds):
        raise StageError(StageCode.EXTERNAL_AUDIO_FAILED, problems[0])
    if sum(len(sound.picks) for sound in sounds) > _MOST_TRACKS:
        message = f"The separate audio files make more than {_MOST_TRACKS} tracks."
        raise StageError(StageCode.EXTERNAL_AUDIO_FAILED, message)
    return sounds


@dataclass(frozen=True, slots=True)
class _Look:
    """Looks at files, one after the other."""

    workspace: Workspace
    config: IngestConfig
    control: Control
    picture: Picture

    def start_of_picture(self, files: Sequence[SeparateFile]) -> DayTime | None:
        """When the video begins by its own clock; not asked where no file goes by that."""
        if all(file.sync_mode is SyncMode.OFFSET for file in files):
            return None
        media = self.picture.media
        timecode = parse_timecode(media.timecode, self.picture.frame_rate)
        return timecode or from_labels(self.labels(self.picture.key, media))

    def at(self, file: SeparateFile, picture_start: DayTime | None) -> Sound:
        """One file, with what is wrong with it."""
        self.control.check()
        try:
            return self._usable(file, picture_start)
        except CannotPlaceError as error:
            problem = str(error)
        except StageError as error:
            problem = error.message
        name = file.label or file.name
        return Sound(file, (TrackPick(0, name),), problem=blaming(file, problem))

    def _usable(self, file: SeparateFile, picture_start: DayTime | None) -> Sound:
        if file.problem is not None:
            raise StageError(StageCode.EXTERNAL_AUDIO_FAILED, file.problem)
        store, picture = self.workspace.store, self.picture
        media = probe_source(file.key, store=store, config=self.config, control=self.control)
        labels = self.labels(file.key, media)
        picks = picks_of(file, media, labels)
        own = from_labels(labels) or parse_timecode(media.timecode, picture.frame_rate)
        seconds = picture.media.duration_seconds
        clocks = Clocks(own, media.duration_seconds, picture_start, seconds)
        start = start_by_rule(file.sync_mode, file.offset_ms, clocks)
        return Sound(file, picks, media, start)

    def labels(self, key: str, media: MediaInfo) -> SoundLabels:
        """A WAV file's labels, read in a confined child process; none of any other file."""
        if media.container != "wav":
            return SoundLabels()
        with self.workspace.store.local_copy(key) as path:
            return _read_labels(path.resolve(), self.config.limits, self.control.check)


def blaming(file: SeparateFile, message: str) -> str:
    """The message with the file that it is about."""
    return f"Audio file {file.name}: {message}"


def _read_labels(path: Path, limits: ProbeLimits, check: Callable[[], None]) -> SoundLabels:
    task = Task(
        name="labels",
        arguments={"path": str(path)},
        allowance=Allowance(limits.memory_bytes, _LABEL_SECONDS, file_bytes=0),
        wall_seconds=_LABEL_SECONDS,
        readable=(path,),
    )
    try:
        return from_json(SoundLabels, run_confined(task, check=check))
    except (TaskRefusedError, TaskCrashedError) as error:
        raise StageError(StageCode.EXTERNAL_AUDIO_FAILED, str(error)) from error


def picks_of(file: SeparateFile, media: MediaInfo, labels: SoundLabels) -> tuple[TrackPick, ...]:
    """The tracks that a file becomes; channels count on through all of its streams."""
    if not media.audio:
        raise StageError(StageCode.EXTERNAL_AUDIO_FAILED, "It holds no sound that can be decoded.")
    places = [
        (stream.index, channel) for stream in media.audio for channel in range(stream.channels)
    ]
    chosen = list(dict.fromkeys(file.channels if file.channels is not None else range(len(places))))
    beyond = [channel for channel in chosen if channel >= len(places)]
    if beyond:
        message = f"Channel {beyond[0]} was asked for, but it has {len(places)}, counted from 0."
        raise StageError(StageCode.EXTERNAL_AUDIO_FAILED, message)
    if file.per_channel:
        return tuple(_channel_pick(file, labels, places[channel], channel) for channel in chosen)
    return (_mixed_pick(file, media, labels, [(*places[channel], channel) for channel in chosen]),)


def _channel_pick(
    file: SeparateFile, labels: SoundLabels, place: tuple[int, int], channel: int
) -> TrackPick:
    name = file.label or labels.name_of(channel) or file.name
    return TrackPick(place[0], f"{name} ch{channel}", (place[1],))


def _mixed_pick(
    file: SeparateFile,
    media: MediaInfo,
    labels: SoundLabels,
    places: Sequence[tuple[int, int, int]],
) -> TrackPick:
    """One track of a file: its first stream, or the chosen channels of one stream mixed."""
    first = media.audio[0]
    named = {labels.name_of(channel) for _, _, channel in places}
    own = named.pop() if len(named) == 1 else None
    name = file.label or own or file.name
    if file.channels is None:
        return TrackPick(first.index, name)
    streams = {stream for stream, _, _ in places}
    if len(streams) > 1:
        message = (
            "The channels that were asked for lie in several of its streams and cannot be mixed; "
            "ask for perChannelTranscription."
        )
        raise StageError(StageCode.EXTERNAL_AUDIO_FAILED, message)
    return TrackPick(streams.pop(), name, tuple(channel for _, channel, _ in places))


def with_sounds(media: MediaInfo, sounds: Sequence[Sound]) -> MediaInfo:
    """``media`` with the separate tracks in the place of its own sound."""
    tracks = [
        AudioStream(index, stream.codec, stream.sample_rate_hz, 1, stream.language, pick.name)
        for index, (stream, pick) in enumerate(
            (stream, pick)
            for sound in sounds
            if sound.media is not None
            for pick in sound.picks
            for stream in sound.media.audio
            if stream.index == pick.stream_index
        )
    ]
    return replace(media, audio=tuple(tracks))


_DRIFT_NOTED_SECONDS = 0.020
"""Half a frame: what two clocks run apart over the whole overlap before it is worth a word."""

_DRIFT_CERTAIN_ERRORS = 3.0


def take_in_sounds(
    sounds: Sequence[Sound],
    picture: Picture,
    *,
    workspace: Workspace,
    control: Control,
    config: IngestConfig,
    wants_video: bool,
) -> IngestResult:
    """The video cut into segments, and the separate files as its tracks, in their order.

    Raises StageError EXTERNAL_AUDIO_FAILED where no track is left.
    """
    cut = ingest(
        picture.key,
        workspace=workspace,
        control=ControlSpan.of_piece(control, 0, len(sounds) + 1),
        config=config,
        media=picture.media,
        wants_video=wants_video,
        wants_audio=any(sound.by_ear for sound in sounds) and bool(picture.media.audio),
    )
    intake = _Intake(workspace, control, config, _liveliest(cut.tracks, workspace))
    for position, sound in enumerate(sounds, start=1):
        intake.control = ControlSpan.of_piece(control, position, len(sounds) + 1)
        intake.add(sound, picture.media.duration_seconds)
    return replace(
        cut,
        media=with_sounds(picture.media, sounds),
        tracks=intake.tracks_or_failure(),
        failed_tracks=tuple(intake.failed),
        warnings=(*_of_picture(cut), *intake.warnings),
    )


def _of_picture(cut: IngestResult) -> Iterator[PipelineWarning]:
    """Warnings that are not about the camera's own sound, which nobody will read."""
    return (warning for warning in cut.warnings if not warning.code.startswith("AUDIO_"))


def _liveliest(tracks: Sequence[AudioTrack], workspace: Workspace) -> AudioTrack | None:
    """The camera's track that holds most: silence takes next to no room in FLAC."""
    sizes = {track.key: workspace.store.size_bytes(track.key) for track in tracks}
    return max(tracks, key=lambda track: sizes[track.key], default=None)


@dataclass(slots=True)
class _Intake:
    """Collects the tracks of all files."""

    workspace: Workspace
    control: Control
    config: IngestConfig
    camera: AudioTrack | None
    tracks: list[AudioTrack] = field(default_factory=list)
    failed: list[FailedTrack] = field(default_factory=list)
    warnings: list[PipelineWarning] = field(default_factory=list)
    _index: int = 0

    def add(self, sound: Sound, picture_seconds: float) -> None:
        """Take in one file; what is wrong with it fails its own tracks only."""
        found: dict[str, AudioTrack] = {}
        problem = sound.problem
        if problem is None:
            try:
                found = self._placed(sound, picture_seconds)
            except StageError as error:
                problem = blaming(sound.file, error.message)
        if problem is not None:
            self._warn(str(StageCode.EXTERNAL_AUDIO_FAILED), problem)
        for pick in sound.picks:
            self._take(pick, found.get(pick.file_name))

    def _take(self, pick: TrackPick, track: AudioTrack | None) -> None:
        if track is None:
            code = StageCode.EXTERNAL_AUDIO_FAILED
            self.failed.append(FailedTrack(self._index, pick.name, code))
        else:
            self.tracks.append(replace(track, index=self._index))
        self._index += 1

    def _placed(self, sound: Sound, picture_seconds: float) -> dict[str, AudioTrack]:
        """The file's tracks by file name, on the video's timeline."""
        heard = TrackPick(sound.picks[0].stream_index, sound.file.name)
        known = any(pick.file_name == heard.file_name for pick in sound.picks)
        found = self._taken_out(sound, () if known or not sound.by_ear else (heard,))
        start = sound.start_seconds
        if start is None:
            start = self._start_by_ear(sound, found.get(heard.file_name))
        self._note_outside(sound, found, start, picture_seconds)
        return {
            name: replace(track, offset_seconds=track.offset_seconds + start)
            for name, track in found.items()
        }

    def _taken_out(self, sound: Sound, more: Sequence[TrackPick]) -> dict[str, AudioTrack]:
        """The file's tracks on its own timeline; ``more`` only to be listened to."""
        result = ingest(
            sound.file.key,
            workspace=self.workspace,
            control=self.control,
            config=self.config,
            media=sound.media,
            wants_video=False,
            picks=(*sound.picks, *more),
        )
        self.warnings += [_of_file(warning, sound) for warning in result.warnings]
        return {track.key.rsplit("/", 1)[-1]: track for track in result.tracks}

    def _start_by_ear(self, sound: Sound, track: AudioTrack | None) -> float:
        """Where the file begins by what the camera heard; 0 with a warning if that says nothing."""
        found: Alignment | None = None
        if self.camera is not None and track is not None:
            found = hear(
                self.camera,
                track,
                workspace=self.workspace,
                control=self.control,
                parent=self.config.temporary_folder,
            )
        if self.camera is None or track is None or found is None or found.confidence < CERTAIN:
            why = "the video has no sound" if self.camera is None else "they could not be matched"
            message = f"it was placed at the video's start, because {why} and timecodes do not say."
            self._warn("AUDIO_SYNC_UNCERTAIN", blaming(sound.file, message))
            return 0.0
        self._note_drift(sound, found)
        return self.camera.offset_seconds + found.offset_seconds - track.offset_seconds

    def _note_drift(self, sound: Sound, found: Alignment) -> None:
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
            self._warn("AUDIO_DRIFT", blaming(sound.file, message))

    def _note_outside(
        self, sound: Sound, found: dict[str, AudioTrack], start: float, picture_seconds: float
    ) -> None:
        length = max((track.duration_seconds for track in found.values()), default=0.0)
        if start >= picture_seconds or start + length <= 0:
            message = "at its offset it lies outside the video altogether."
            self._warn("AUDIO_OUTSIDE_VIDEO", blaming(sound.file, message))

    def _warn(self, code: str, message: str) -> None:
        self.warnings.append(PipelineWarning(code, message))

    def tracks_or_failure(self) -> tuple[AudioTrack, ...]:
        """The tracks; raises StageError EXTERNAL_AUDIO_FAILED where there are none."""
        if not self.tracks:
            reasons = [w.message for w in self.warnings if w.code == "EXTERNAL_AUDIO_FAILED"]
            message = (reasons or ["Nothing of the separate audio could be decoded."])[0]
            raise StageError(StageCode.EXTERNAL_AUDIO_FAILED, message)
        return tuple(self.tracks)


def _of_file(warning: PipelineWarning, sound: Sound) -> PipelineWarning:
    return replace(warning, message=blaming(sound.file, warning.message))
