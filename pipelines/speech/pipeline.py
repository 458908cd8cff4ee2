"""Transcription of one track: a chain to cut it, a chain to transcribe it, a reduce.

    track -> regions, chunks (1:1)                         sequential, all but free
    shard -> words (1:1) -> voice vectors (1:1)            the models' time
    all shards -> speakers -> segments                     over the whole track

Chunks follow from the audio only; sharding only groups them into tasks. So the words
are the same for every shard length, and after every retry. Every chunk has its own language, so
that a recording may change it; a chunk whose language is improbable is transcribed again in the
language of its track.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from models.provider import ModelProvider
from pipelines.execution.chain import Chain, Control, ControlSpan, Mapper, Row, Workspace
from pipelines.execution.ray_data import map_on_ray
from pipelines.speech.regions import ChunkLimits, Sharding, ShardPlan, make_speech_regions_step
from pipelines.speech.speakers import (
    ShardVoices,
    SpeakerRules,
    WindowLimits,
    assign_voices,
    join_voices,
    make_speaker_embeddings_step,
    name_speakers,
)
from pipelines.speech.transcribe import (
    ChunkWords,
    chunks_to_json,
    is_doubtful,
    make_transcribe_step,
    words_from_json,
)
from pipelines.speech.words import (
    SegmentLimits,
    build_segments,
    place_words,
)
from pipelines.types import AudioTrack, StageCode, TranscriptResult

_FORMAT = 2
"""Raised when stored intermediate results change their meaning, so that old ones are ignored."""
_REGIONS_SHARE = 0.05
"""Share of the progress that cutting the track stands for."""


@dataclass(frozen=True, slots=True)
class TranscriptConfig:
    """How tracks are transcribed."""

    language: str | None = None
    """BCP 47 hint for the transcriber; None: detected."""
    keyterms: tuple[str, ...] = ()
    models: str = ""
    """Names the backends in use: results of one are not reused for another."""
    chunks: ChunkLimits = field(default_factory=ChunkLimits)
    sharding: Sharding = field(default_factory=Sharding)
    windows: WindowLimits = field(default_factory=WindowLimits)
    speakers: SpeakerRules = field(default_factory=SpeakerRules)
    segments: SegmentLimits = field(default_factory=SegmentLimits)
    regions_cpus: float = 0.5
    """Logical CPUs of the task that cuts the track."""
    transcribe_cpus: float = 0.25
    """Of a task that transcribes: it mostly waits for a model in another process."""
    transcribe_concurrency: int | None = None
    """Most tasks that transcribe at a time. More than the models can take only wait, and hold
    processors that the vision stage could use."""


def transcribe_track(
    track: AudioTrack,
    *,
    workspace: Workspace,
    models: ModelProvider,
    control: Control,
    config: TranscriptConfig,
    media_duration_ms: int,
    mapper: Mapper = map_on_ray,
) -> TranscriptResult:
    """The transcript of ``track`` on the timeline of a video of ``media_duration_ms``.

    Raises StageError (TRANSCRIPT_FAILED) if a shard fails twice, StageStoppedError if
    ``control`` or the workspace's stop marker requires it.
    """
    chain, store = Chain(StageCode.TRANSCRIPT_FAILED), workspace.store
    plan_row = track_row(track, workspace, config)
    if not store.exists(plan_row["plan_key"]):
        regions = make_speech_regions_step(workspace, models, config.chunks, config.sharding)
        detection = chain.map("Speech detection", regions, num_cpus=config.regions_cpus)
        detection.run([plan_row], ControlSpan(control, 0.0, _REGIONS_SHARE), on=mapper)
    plan = ShardPlan.from_json(store.read_bytes(plan_row["plan_key"]))

    language, keyterms = config.language, config.keyterms
    transcribe = make_transcribe_step(workspace, models, language=language, keyterms=keyterms)
    embed = make_speaker_embeddings_step(workspace, models, config.windows)
    cpus, concurrency = config.transcribe_cpus, config.transcribe_concurrency
    shard_chain = chain.map(
        "Transcription", transcribe, num_cpus=cpus, concurrency=concurrency
    ).map("Voice embedding", embed, num_cpus=cpus, concurrency=concurrency)

    def compute_missing(rows: Sequence[Row]) -> int:
        missing = [row for row in rows if not _is_done(row, workspace)]
        if missing:
            shard_chain.run(missing, ControlSpan(control, _REGIONS_SHARE, 1.0), on=mapper)
        return len(missing)

    rows = shard_rows(plan, config)
    computed = compute_missing(rows)
    rows = rows_in_track_language(rows, workspace)
    compute_missing([row for row in rows if "track_language" in row])
    result = reduce_shards(rows, track, workspace, config, media_duration_ms)
    control.progress(1.0)
    return replace(result, shards_computed=computed, shards_reused=len(rows) - computed)


def track_row(track: AudioTrack, workspace: Workspace, config: TranscriptConfig) -> Row:
    """Input of the step that cuts a track; its outputs are named by all that they depend on."""
    size_bytes = workspace.store.size_bytes(track.key)
    inputs = [track.key, size_bytes, config.models, asdict(config.chunks), asdict(config.sharding)]
    folder = workspace.key(f"transcript/{track.index}-{_digest(inputs)}")
    return {
        "track_key": track.key,
        "seconds": track.duration_seconds,
        "folder": folder,
        "plan_key": f"{folder}/plan.json",
    }


def shard_rows(plan: ShardPlan, config: TranscriptConfig) -> list[Row]:
    """A row a shard; its outputs are named by all that they depend on."""
    inputs = _digest([config.models, config.language, config.keyterms, asdict(config.windows)])
    rows: list[Row] = []
    for chunks, audio_key in zip(plan.shards, plan.audio_keys, strict=True):
        stem = f"{audio_key.removesuffix('.flac')}-{inputs}"
        rows.append(
            {
                "audio_key": audio_key,
                "chunks": chunks_to_json(chunks),
                "words_key": f"{stem}.words.json",
                "voices_key": f"{stem}.voices.npz",
            }
        )
    return rows


def rows_in_track_language(rows: Sequence[Row], workspace: Workspace) -> list[Row]:
    """The rows, those of shards with chunks of doubtful language as rows of a second pass."""
    words = [words_from_json(workspace.store.read_bytes(row["words_key"])) for row in rows]
    language, _ = track_language([chunk for shard in words for chunk in shard])
    if language is None:
        return list(rows)
    return [
        row
        | {
            "track_language": language,
            "first_words_key": row["words_key"],
            "words_key": row["words_key"].replace(".words.", f".{language}.words."),
            "voices_key": row["voices_key"].replace(".voices.", f".{language}.voices."),
        }
        if any(is_doubtful(chunk, language) for chunk in shard)
        else row
        for row, shard in zip(rows, words, strict=True)
    ]


def _is_done(row: Row, workspace: Workspace) -> bool:
    return all(workspace.store.exists(row[name]) for name in ("words_key", "voices_key"))


def _digest(inputs: object) -> str:
    return hashlib.sha256(json.dumps([_FORMAT, inputs]).encode()).hexdigest()[:16]


def reduce_shards(
    rows: Sequence[Row],
    track: AudioTrack,
    workspace: Workspace,
    config: TranscriptConfig,
    media_duration_ms: int,
) -> TranscriptResult:
    """The stored outputs of all shards of a track, in order, as one transcript."""
    read = workspace.store.read_bytes
    chunks = [chunk for row in rows for chunk in words_from_json(read(row["words_key"]))]
    voices = join_voices([ShardVoices.from_npz(read(row["voices_key"])) for row in rows])
    labels = assign_voices(voices.seconds, voices.vectors, config.speakers)
    spoken = [word for chunk in chunks for word in chunk.words]
    words = [
        replace(word, speaker=str(label))
        for word, label in zip(spoken, np.repeat(labels, voices.word_counts), strict=True)
    ]
    language, probability = track_language(chunks)
    certain = [not is_doubtful(chunk, language) for chunk in chunks for _ in chunk.words]
    placed = place_words(
        itertools.compress(words, certain),
        offset_seconds=track.offset_seconds,
        media_duration_ms=media_duration_ms,
    )
    named, speakers = name_speakers(placed)
    return TranscriptResult(
        language=language,
        language_probability=probability,
        speakers=speakers,
        segments=build_segments(named, config.segments),
        shards_computed=len(rows),
        shards_reused=0,
    )


def track_language(chunks: Sequence[ChunkWords]) -> tuple[str | None, float | None]:
    """The language of most words and its mean probability over them.

    None where no chunk's language is probable, or no backend could tell.
    """
    words: Counter[str] = Counter()
    evidence: defaultdict[str, float] = defaultdict(float)
    for chunk in chunks:
        if chunk.language is not None and chunk.words and not is_doubtful(chunk, None):
            words[chunk.language] += len(chunk.words)
            evidence[chunk.language] += len(chunk.words) * (chunk.language_probability or 0.0)
    if not words:
        return None, None
    language, count = words.most_common(1)[0]
    return language, evidence[language] / count or None
