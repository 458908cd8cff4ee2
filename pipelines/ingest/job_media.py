"""A job's footage as ingest takes it in: one file, a file with separate audio, or a programme.

1. ``survey``: what there is, so that the job can be priced before any work is done.
2. ``take_in``: segments to look at and tracks to listen to, on one timeline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipelines.execution.chain import Control, ControlSpan, Workspace
from pipelines.ingest.external_audio import Picture, SeparateFile, Sound, survey_sounds, with_sounds
from pipelines.ingest.external_tracks import take_in_sounds
from pipelines.ingest.pipeline import IngestConfig, ingest, probe_source
from pipelines.ingest.timeline import Clip, ClipFile, programme_media, survey_clips, take_in_clips
from pipelines.types import IngestResult, MediaInfo


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
