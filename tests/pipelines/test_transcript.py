"""Track to transcript on Ray: the same words however it is sharded, and after a retry."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import ray

from models.contracts import (
    SAMPLE_RATE_HZ,
    AudioChunk,
    ChunkTranscript,
    SceneDescriber,
    SpeakerEmbedder,
    SpeechDetector,
    Transcriber,
)
from models.sources import LocalModels, ModelSource
from pipelines.chains import FreeRun, Workspace
from pipelines.contracts import (
    AudioTrack,
    StageCode,
    StageError,
    StageStoppedError,
    TranscriptResult,
    TranscriptWord,
)
from pipelines.steps.speech_regions import Sharding
from pipelines.steps.track_audio import read_blocks, write_flac
from pipelines.transcript import TranscriptConfig, transcribe_track
from storage.objects import FolderStore

SPEECH = Path(__file__).resolve().parents[1] / "media" / "speech"
TWO_VOICES_MS = 15_900
SHARDED = TranscriptConfig(sharding=Sharding(shard_seconds=3.0))

pytestmark = pytest.mark.usefixtures("ray_session")


class BrokenTranscriber:
    """A backend whose every call fails."""

    def transcribe(self, chunks: Sequence[AudioChunk]) -> list[ChunkTranscript]:
        raise RuntimeError("out of memory")


@dataclass(frozen=True)
class BrokenModels:
    """The embedded models, but for the transcriber."""

    rest: LocalModels

    def transcriber(self) -> Transcriber:
        return BrokenTranscriber()

    def speech_detector(self) -> SpeechDetector:
        return self.rest.speech_detector()

    def speaker_embedder(self) -> SpeakerEmbedder:
        return self.rest.speaker_embedder()

    def scene_describer(self) -> SceneDescriber:
        return self.rest.scene_describer()


# Ray's workers cannot import this file by name.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path)


@pytest.fixture
def track(store: FolderStore) -> AudioTrack:
    """Six sentences, two voices in turn, pauses of 0.7 s."""
    return put_track(store, [*read_blocks(SPEECH / "two_voices.flac")])


def put_track(store: FolderStore, pieces: Sequence[np.ndarray]) -> AudioTrack:
    with store.writer("tracks/0.flac") as stream:
        write_flac(stream, pieces)
    seconds = sum(map(len, pieces)) / SAMPLE_RATE_HZ
    return AudioTrack(0, "camera", "tracks/0.flac", seconds)


def transcript(
    store: FolderStore,
    track: AudioTrack,
    *,
    config: TranscriptConfig = SHARDED,
    models: ModelSource | None = None,
    control: FreeRun | None = None,
    duration_ms: int = TWO_VOICES_MS,
) -> TranscriptResult:
    return transcribe_track(
        track,
        workspace=Workspace(store, "jobs/1"),
        models=models or LocalModels(),
        control=control or FreeRun(),
        config=config,
        media_duration_ms=duration_ms,
    )


def words_of(result: TranscriptResult) -> list[TranscriptWord]:
    return [word for segment in result.segments for word in segment.words]


def test_sentences_are_heard_when_and_by_whom_they_are_said(
    store: FolderStore, track: AudioTrack
) -> None:
    result = transcript(store, track)
    truth = json.loads((SPEECH / "truth.json").read_text())["two_voices.flac"]["sentences"]
    assert result.language == "en"
    assert len(result.segments) == len(truth)
    wrong = 0
    for segment, sentence in zip(result.segments, truth, strict=True):
        assert segment.start_ms == pytest.approx(sentence["start_ms"], abs=250)
        assert segment.end_ms == pytest.approx(sentence["end_ms"], abs=250)
        wrong += len(set(sentence["text"].split()) ^ set(segment.text.split()))
    assert wrong <= 4
    assert [segment.speaker for segment in result.segments] == ["speaker_0", "speaker_1"] * 3
    assert [(speaker.id, speaker.label) for speaker in result.speakers] == [
        ("speaker_0", "Speaker 1"),
        ("speaker_1", "Speaker 2"),
    ]


@pytest.mark.parametrize("shard_seconds", [5.0, 20.0, None], ids=["5 s", "20 s", "unsharded"])
def test_sharding_changes_nothing_in_the_result(
    store: FolderStore, track: AudioTrack, shard_seconds: float | None
) -> None:
    pieces = [*read_blocks(SPEECH / "two_voices.flac"), np.zeros(2 * SAMPLE_RATE_HZ, np.float32)]
    track = put_track(store, [*pieces, *read_blocks(SPEECH / "one_voice.flac")])
    reference = transcript(store, track, duration_ms=30_000)
    config = TranscriptConfig(sharding=Sharding(shard_seconds=shard_seconds))
    result = transcript(store, track, config=config, duration_ms=30_000)
    assert result.segments == reference.segments
    assert result.speakers == reference.speakers


def test_a_retry_computes_only_what_is_missing(store: FolderStore, track: AudioTrack) -> None:
    pieces = [*read_blocks(SPEECH / "two_voices.flac"), np.zeros(2 * SAMPLE_RATE_HZ, np.float32)]
    track = put_track(store, [*pieces, *pieces])
    first = transcript(store, track, duration_ms=40_000)
    assert (first.shards_computed, first.shards_reused) == (2, 0)
    lost = next(key for key in store.list_keys("jobs/1") if key.endswith(".voices.npz"))
    store.delete(lost)
    again = transcript(store, track, duration_ms=40_000)
    assert (again.shards_computed, again.shards_reused) == (1, 1)
    assert again.segments == first.segments


def test_results_of_other_models_are_not_reused(store: FolderStore, track: AudioTrack) -> None:
    transcript(store, track)
    other = transcript(store, track, config=replace(SHARDED, models="other"))
    assert other.shards_reused == 0


@pytest.mark.parametrize(
    ("offset_seconds", "duration_ms"),
    [
        pytest.param(0.0, TWO_VOICES_MS, id="track and video alike"),
        pytest.param(2.5, 60_000, id="track starts after the video"),
        pytest.param(-4.0, 8_000, id="track starts before the video and outlasts it"),
    ],
)
def test_words_lie_on_the_videos_timeline_inside_it(
    store: FolderStore, track: AudioTrack, offset_seconds: float, duration_ms: int
) -> None:
    plain = words_of(transcript(store, track))
    moved = replace(track, offset_seconds=offset_seconds)
    result = transcript(store, moved, duration_ms=duration_ms)
    shift = round(offset_seconds * 1000)
    expected = [
        (word.text, max(0, word.start_ms + shift), min(duration_ms, word.end_ms + shift))
        for word in plain
        if word.end_ms + shift > 0 and word.start_ms + shift < duration_ms
    ]
    assert [(word.text, word.start_ms, word.end_ms) for word in words_of(result)] == expected
    ids = [speaker.id for speaker in result.speakers]
    assert ids == list(dict.fromkeys(segment.speaker for segment in result.segments))


@pytest.mark.parametrize("seconds", [0, 1, 5])
def test_silence_gives_an_empty_transcript(store: FolderStore, seconds: int) -> None:
    track = put_track(store, [np.zeros(seconds * SAMPLE_RATE_HZ, np.float32)])
    result = transcript(store, track, duration_ms=5000)
    assert (result.language, result.speakers, result.segments) == (None, (), ())


def test_progress_rises_to_one(store: FolderStore, track: AudioTrack) -> None:
    control = FreeRun()
    transcript(store, track, control=control)
    assert control.fractions == sorted(control.fractions)
    assert control.fractions[-1] == 1.0


def test_a_failing_model_fails_the_stage_by_name(store: FolderStore, track: AudioTrack) -> None:
    with pytest.raises(StageError, match="Transcription failed: RuntimeError: out of memory") as it:
        transcript(store, track, models=BrokenModels(LocalModels()))
    assert it.value.code is StageCode.TRANSCRIPT_FAILED


def test_a_track_that_is_no_audio_fails_the_stage(store: FolderStore) -> None:
    store.write_bytes("tracks/0.flac", b"this is not audio")
    with pytest.raises(StageError, match="Speech detection failed") as it:
        transcript(store, AudioTrack(0, "camera", "tracks/0.flac", 1.0))
    assert it.value.code is StageCode.TRANSCRIPT_FAILED


def test_a_stop_marker_ends_the_work(store: FolderStore, track: AudioTrack) -> None:
    Workspace(store, "jobs/1").request_stop()
    with pytest.raises(StageStoppedError):
        transcript(store, track)
    assert not any(key.endswith(".words.json") for key in store.list_keys("jobs/1"))
