"""Taking in separate audio: each file's tracks, moved to where they belong on the timeline.

cut    (the video)  segments, and the camera's own sound where some file must be heard
place  (1:1 a file) its tracks taken out; heard against the camera's sound if need be
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from pipelines.execution.chain import Control, ControlSpan, Workspace
from pipelines.ingest.external_audio import Picture, Sound, blaming, with_sounds
from pipelines.ingest.pipeline import IngestConfig, TrackPick, ingest
from pipelines.ingest.sync.align import CERTAIN, Alignment
from pipelines.ingest.sync.stored_offset import hear
from pipelines.types import (
    AudioTrack,
    FailedTrack,
    IngestResult,
    PipelineWarning,
    StageCode,
    StageError,
)

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
