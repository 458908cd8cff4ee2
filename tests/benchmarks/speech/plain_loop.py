"""The transcript pipeline's own functions, called one after the other: no Ray, one process."""

from __future__ import annotations

from pathlib import Path

from models.contracts import SAMPLE_RATE_HZ, Samples
from models.provider import ModelProvider
from pipelines.execution.chain import Workspace
from pipelines.media.audio import write_flac
from pipelines.speech.pipeline import (
    TranscriptConfig,
    reduce_shards,
    rows_in_track_language,
    shard_rows,
    track_row,
)
from pipelines.speech.regions import ShardPlan, make_speech_regions_step
from pipelines.speech.speakers import make_speaker_embeddings_step
from pipelines.speech.transcribe import make_transcribe_step
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
    row = track_row(track, workspace, config)
    make_speech_regions_step(workspace, models, config.chunks, config.sharding)(row)
    plan = ShardPlan.from_json(workspace.store.read_bytes(row["plan_key"]))
    rows = shard_rows(plan, config)
    transcribe = make_transcribe_step(
        workspace, models, language=config.language, keyterms=config.keyterms
    )
    embed = make_speaker_embeddings_step(workspace, models, config.windows)
    done = [embed(transcribe(row)) for row in rows]
    done = [embed(transcribe(row)) for row in rows_in_track_language(done, workspace)]
    return reduce_shards(done, track, workspace, config, round(track.duration_seconds * 1000))


def transcribe_samples(
    samples: Samples, folder: Path, models: ModelProvider, config: TranscriptConfig
) -> TranscriptResult:
    """The transcript of samples, worked out in ``folder``."""
    store = FolderStore(folder)
    track = put_track(store, samples)
    return transcribe_in_a_loop(track, Workspace(store, "work"), models, config)
