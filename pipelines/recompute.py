"""Shards of a result computed again from the media, in this process, for ``vas verify``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from models.provider import ModelProvider
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.ingest.pipeline import IngestConfig
from pipelines.ingest.source import ClipFile, SourceMedia
from pipelines.speech.pipeline import (
    TranscriptConfig,
    cut_track,
    read_sound,
    second_pass,
    shard_tasks,
    transcribe_step,
    words_digest,
)
from pipelines.stages import MediaStages
from pipelines.types import AudioTrack, IngestResult, ShardDigest, ShardKind
from pipelines.vision.features import FeaturesConfig, ReadFrames, picture_shards
from pipelines.vision.pipeline import VisionConfig
from storage.objects.folder import FolderStore
from storage.objects.local_files import temporary_folder
from storage.types import ProcessingMode

_FOLDER = "verified"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the result was made, as far as its shards depend on it."""

    mode: ProcessingMode
    ingest: IngestConfig
    transcript: TranscriptConfig


def recompute(
    media: Path, recipe: Recipe, wanted: Sequence[ShardDigest], models: ModelProvider
) -> Iterator[ShardDigest]:
    """The ``wanted`` shards as they are found now; one that there is none of is left out.

    Everything lies in a temporary folder meanwhile. Raises StageError.
    """
    with temporary_folder("verify-", None) as folder:
        workspace = Workspace(FolderStore(folder), _FOLDER)
        key = workspace.key("source")
        place = folder / key
        place.parent.mkdir(parents=True)
        place.symlink_to(media.resolve())
        stages = MediaStages(
            workspace=workspace,
            models=models,
            mode=recipe.mode,
            ingest_config=recipe.ingest,
            vision_config=VisionConfig(),
            transcript_config=recipe.transcript,
            mapper=map_here,
        )
        probed = stages.probe(SourceMedia((ClipFile(key, media.name),)), FreeRun())
        ingested = stages.ingest(probed, FreeRun())
        yield from _pictures(ingested, wanted, workspace)
        for track in ingested.tracks:
            own = [each for each in wanted if each.track == track.index]
            yield from _spoken(track, own, recipe, workspace, models)


def _pictures(
    ingested: IngestResult, wanted: Sequence[ShardDigest], workspace: Workspace
) -> Iterator[ShardDigest]:
    indices = {each.index for each in wanted if each.kind is ShardKind.PICTURES}
    if ingested.video is None:
        return
    video = replace(
        ingested.video,
        segments=tuple(each for each in ingested.video.segments if each.index in indices),
    )
    made = map_here(video.segments, ReadFrames(video, workspace, FeaturesConfig()), FreeRun())
    yield from picture_shards(video, made, workspace.store)


def _spoken(
    track: AudioTrack,
    wanted: Sequence[ShardDigest],
    recipe: Recipe,
    workspace: Workspace,
    models: ModelProvider,
) -> Iterator[ShardDigest]:
    """The track's samples; the words of the wanted shards only, whose cut depends on all of it."""
    if not wanted:
        return
    yield read_sound(track, workspace)[0]
    chosen = {each.index: each.language for each in wanted if each.kind is ShardKind.WORDS}
    if not chosen:
        return
    config, control = recipe.transcript, (FreeRun(), FreeRun())
    _, shards = cut_track(track, workspace, models, config, control, mapper=map_here)
    step = transcribe_step(workspace, models, config)
    for index, first in enumerate(shard_tasks(shards, workspace, config)):
        if index in chosen:
            tasks, language = [first], chosen[index]
            if language is not None:
                tasks += second_pass(tasks, workspace, config, language)
            map_here(tasks, step, FreeRun())
            yield words_digest(track, index, tasks[-1], workspace)
