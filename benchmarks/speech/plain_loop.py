"""The transcript pipeline's own functions, called one after the other: no Ray, one process."""

from __future__ import annotations

from pathlib import Path

from models.contracts import SAMPLE_RATE_HZ, Samples
from models.provider import ModelProvider
from pipelines.execution.chain import Workspace
from pipelines.media.audio import write_flac
from pipelines.speech.pipeline import (
    TranscriptConfig,
    in_track_language,
    reduce_shards,
    shard_tasks,
)
from pipelines.speech.regions import SHARDS, CutTrack
from pipelines.speech.speakers import EmbedVoices, plan_voice_shards
from pipelines.speech.transcribe import Transcribe
from pipelines.types import AudioTrack, TranscriptResult
from storage.objects.folder import FolderStore


def put_track(store: FolderStore, samples: Samples, name: str = "0") -> AudioTrack:
    """The samples as a track of the store, as ingest leaves one."""
    key = f"tracks/{name}.flac"
    with store.writer(key) as stream:
        write_flac(stream, [samples])
    return AudioTrack(0, name, key, len(samples) / SAMPLE_RATE_HZ)


def transcribe_in_a_loop(
    track: AudioTrack, workspace: Workspace, models: ModelProvider, config: TranscriptConfig
) -> TranscriptResult:
    """What ``transcribe_track`` gives, without its tasks."""
    embed = EmbedVoices(workspace, models)
    voiced = [embed.process(each) for each in plan_voice_shards(track, workspace, config.models)]
    voices = tuple(each.voices_key for each in voiced)
    cut = CutTrack(workspace, models, config.chunks, config.sharding, config.models, voices)
    shards = SHARDS.load(workspace.store, cut.process(track).key)
    transcribe = Transcribe(workspace, models, config.choice, config.keyterms)
    tasks = shard_tasks(shards, workspace, config)
    tasks = [transcribe.process(task) for task in tasks]
    again = in_track_language(tasks, workspace, config)
    tasks = [transcribe.process(task) for task in again]
    duration_ms = round(track.duration_seconds * 1000)
    return reduce_shards(tasks, voiced, track, workspace, config, duration_ms)


def transcribe_samples(
    samples: Samples, folder: Path, models: ModelProvider, config: TranscriptConfig
) -> TranscriptResult:
    """The transcript of samples, worked out in ``folder``."""
    store = FolderStore(folder)
    track = put_track(store, samples)
    return transcribe_in_a_loop(track, Workspace(store, "work"), models, config)
