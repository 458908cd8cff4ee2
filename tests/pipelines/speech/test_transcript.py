"""Track to transcript on Ray: the same words however it is sharded, and after a retry."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import ray
from scipy.signal import butter, sosfilt

from models.backends.packaged.voices import OnnxSpeakerSegmenter
from models.contracts import (
    SAMPLE_RATE_HZ,
    AudioChunk,
    ChunkTranscript,
    Samples,
    SpeakerActivity,
    Word,
)
from models.provider import LocalModels, ModelProvider
from models.tasks import TRANSCRIBE, Contract, Task
from pipelines.across.voices import recognise
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.media.audio import read_blocks, write_flac
from pipelines.speech.languages import LanguageChoice
from pipelines.speech.pipeline import TranscriptConfig, transcribe_track
from pipelines.speech.regions import ChunkLimits, Sharding
from pipelines.speech.speakers import SpeakerRules, windows_of
from pipelines.types import (
    AudioTrack,
    StageCode,
    StageError,
    StageStoppedError,
    TranscriptResult,
    TranscriptWord,
    WarningCode,
)
from storage.objects.folder import FolderStore

SPEECH = Path(__file__).resolve().parents[2] / "media" / "speech"
SAID = json.loads((SPEECH / "truth.json").read_text())["two_voices.flac"]["sentences"][:4]
"""What is said in the track of these tests: two voices in turn."""
PAUSE_MS = 2000
MEDIA_MS = 60_000
SHARDED = TranscriptConfig(sharding=Sharding(shard_seconds=3.0))


class BrokenTranscriber:
    """A backend whose every call fails."""

    def transcribe(self, chunks: Sequence[AudioChunk]) -> list[ChunkTranscript]:
        raise RuntimeError("out of memory")


class BrokenModels(LocalModels):
    """The packaged models, but for the transcriber."""

    def find(self, task: Task[Contract]) -> Contract | None:
        return cast("Contract", BrokenTranscriber()) if task is TRANSCRIBE else super().find(task)


# Ray's workers cannot import this file by name.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def kept_store(tmp_path_factory: pytest.TempPathFactory) -> FolderStore:
    return FolderStore(tmp_path_factory.mktemp("transcript"))


@pytest.fixture(scope="module")
def track(kept_store: FolderStore) -> AudioTrack:
    """The sentences of SAID, PAUSE_MS of silence after each: as many chunks."""
    samples = np.concatenate([*read_blocks(SPEECH / "two_voices.flac")])
    pieces = []
    for sentence in SAID:
        pieces.append(samples[sentence["start_ms"] * 16 : sentence["end_ms"] * 16])
        pieces.append(np.zeros(PAUSE_MS * 16, np.float32))
    return put_track(kept_store, pieces)


@pytest.fixture(scope="module")
def control() -> FreeRun:
    """Hears the progress of computing ``result``."""
    return FreeRun()


@pytest.fixture(scope="module")
def result(
    ray_session: None, kept_store: FolderStore, track: AudioTrack, control: FreeRun
) -> TranscriptResult:
    """The transcript of the track, computed in a shard a sentence."""
    return transcript(kept_store, track, control=control)


@pytest.fixture
def store(result: TranscriptResult, kept_store: FolderStore, tmp_path: Path) -> FolderStore:
    """A store with the track and all the shards of ``result``, to change at will."""
    shutil.copytree(kept_store.root, tmp_path / "store")
    return FolderStore(tmp_path / "store")


def put_track(store: FolderStore, pieces: Sequence[Samples]) -> AudioTrack:
    with store.writer("tracks/0.flac") as stream:
        write_flac(stream, pieces)
    seconds = sum(map(len, pieces)) / SAMPLE_RATE_HZ
    return AudioTrack(0, "camera", "tracks/0.flac", seconds)


def transcript(
    store: FolderStore,
    track: AudioTrack,
    *,
    config: TranscriptConfig = SHARDED,
    models: ModelProvider | None = None,
    control: FreeRun | None = None,
    duration_ms: int = MEDIA_MS,
) -> TranscriptResult:
    return transcribe_track(
        track,
        workspace=Workspace(store, "jobs/1"),
        models=models or LocalModels(),
        control=control or FreeRun(),
        config=config,
        media_duration_ms=duration_ms,
    )


VOICED = np.concatenate([*read_blocks(SPEECH / "two_voices.flac")])


def put_channels(store: FolderStore, left: Samples, right: Samples) -> AudioTrack:
    """A track whose channels are voices apart, as ingest leaves one."""
    mixed = put_track(store, [((left + right) / 2).astype(np.float32)])
    for number, samples in enumerate((left, right)):
        with store.writer(f"tracks/0-{number}.flac") as stream:
            write_flac(stream, [samples])
    return replace(mixed, channels=("tracks/0-0.flac", "tracks/0-1.flac"))


def said_at(starts_ms: Sequence[int], sentences: Sequence[dict[str, Any]]) -> Samples:
    """Twelve seconds in which each sentence begins at its time."""
    samples = np.zeros(12 * SAMPLE_RATE_HZ, np.float32)
    for at, sentence in zip(starts_ms, sentences, strict=True):
        piece = VOICED[sentence["start_ms"] * 16 : sentence["end_ms"] * 16]
        samples[at * 16 : at * 16 + len(piece)] = piece
    return samples


def by_speaker(result: TranscriptResult) -> list[tuple[str, set[str]]]:
    return [
        (each.id, {it.text.lower().strip(".,") for it in words_of(result) if it.speaker == each.id})
        for each in result.speakers
    ]


def in_channels(
    store: FolderStore, track: AudioTrack, rules: SpeakerRules | None = None
) -> TranscriptResult:
    return transcribe_track(
        track,
        workspace=Workspace(store, "jobs/1"),
        models=LocalModels(),
        control=FreeRun(),
        config=TranscriptConfig(speakers=rules or SpeakerRules()),
        media_duration_ms=12_000,
        mapper=map_here,
    )


def test_voices_of_two_channels_are_heard_whole_where_both_speak(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    left, right = SAID[0::2], SAID[1::2]
    track = put_channels(store, said_at([300, 5_000], left), said_at([1_200, 6_000], right))
    found = in_channels(store, track)
    assert found.language == "en"
    for (_, words), said in zip(by_speaker(found), (left, right), strict=True):
        expected = {word for each in said for word in each["text"].split()}
        assert len(expected - words) <= 2  # "ten" is written 10
    starts = [segment.start_ms for segment in found.segments]
    assert starts == sorted(starts)
    assert [segment.index for segment in found.segments] == [0, 1, 2, 3]
    assert found.segments[1].start_ms < found.segments[0].end_ms
    assert {turn.speaker for turn in found.turns} == {voice.speaker for voice in found.voices}
    assert in_channels(store, track, SpeakerRules(expected=3)).segments != found.segments
    assert found.sound_print == in_channels(store, replace(track, channels=())).sound_print


def test_channels_of_dialogue_and_of_what_is_no_speech_are_mixed(tmp_path: Path) -> None:
    """Two speakers in one channel stay two."""
    store = FolderStore(tmp_path)
    dialogue = said_at([300, 3_000, 5_500, 8_000], SAID)
    tone = np.sin(np.arange(len(dialogue)) * 0.2).astype(np.float32) * (dialogue == 0) * 0.05
    found = in_channels(store, put_channels(store, dialogue, tone))
    assert len(found.speakers) == 2


def words_of(result: TranscriptResult) -> list[TranscriptWord]:
    return [word for segment in result.segments for word in segment.words]


def test_sentences_are_heard_when_and_by_whom_they_are_said(result: TranscriptResult) -> None:
    assert result.language == "en"
    assert len(result.segments) == len(SAID)
    start_ms = 0
    for segment, sentence in zip(result.segments, SAID, strict=True):
        end_ms = start_ms + sentence["end_ms"] - sentence["start_ms"]
        assert segment.start_ms == pytest.approx(start_ms, abs=320)
        assert segment.end_ms == pytest.approx(end_ms, abs=250)
        words = segment.text.lower().strip(".").split()
        assert len(set(sentence["text"].split()) ^ set(words)) <= 2  # "ten" is written 10
        start_ms = end_ms + PAUSE_MS
    assert [segment.speaker for segment in result.segments] == ["speaker_0", "speaker_1"] * 2


def test_speakers_are_known_by_their_voices_in_another_recording(result: TranscriptResult) -> None:
    assert [each.speaker for each in result.voices] == [each.id for each in result.speakers]
    anna, berta = (np.array(each.vector, np.float32) for each in result.voices)
    assert recognise(result.voices, [("Anna", anna), ("Berta", berta)]) == {
        "speaker_0": "Anna",
        "speaker_1": "Berta",
    }
    assert recognise(result.voices, [("Berta", berta)]) == {"speaker_1": "Berta"}


def test_speakers_are_listed_with_the_time_they_speak(result: TranscriptResult) -> None:
    listed = [(speaker.id, speaker.label) for speaker in result.speakers]
    assert listed == [("speaker_0", "Speaker 1"), ("speaker_1", "Speaker 2")]
    for speaker in result.speakers:
        own = [turn for turn in result.turns if turn.speaker == speaker.id]
        spoken_ms = sum(turn.end_ms - turn.start_ms for turn in own)
        assert speaker.speaking_seconds == pytest.approx(spoken_ms / 1000)


def test_a_turn_is_when_a_speaker_speaks(result: TranscriptResult) -> None:
    assert [turn.speaker for turn in result.turns] == ["speaker_0", "speaker_1"] * 2
    start_ms = 0
    for turn, sentence in zip(result.turns, SAID, strict=True):
        end_ms = start_ms + sentence["end_ms"] - sentence["start_ms"]
        assert turn.start_ms == pytest.approx(start_ms, abs=150)
        assert turn.end_ms == pytest.approx(end_ms, abs=150)
        start_ms = end_ms + PAUSE_MS


@pytest.mark.parametrize(
    ("shard_seconds", "shards"),
    [
        pytest.param(5.0, 4, id="5 s"),
        pytest.param(8.0, 2, id="8 s", marks=pytest.mark.long),
        pytest.param(20.0, 1, id="20 s", marks=pytest.mark.long),
        pytest.param(None, 1, id="unsharded"),
    ],
)
def test_sharding_changes_nothing_in_the_result(
    store: FolderStore,
    track: AudioTrack,
    result: TranscriptResult,
    shard_seconds: float | None,
    shards: int,
) -> None:
    config = TranscriptConfig(sharding=Sharding(shard_seconds=shard_seconds))
    other = transcript(store, track, config=config)
    assert (other.shards_computed, other.shards_reused) == (shards, 0)
    assert (other.segments, other.speakers, other.turns) == (
        result.segments,
        result.speakers,
        result.turns,
    )


def test_progress_rises_to_one(result: TranscriptResult, control: FreeRun) -> None:
    assert control.fractions == sorted(control.fractions)
    assert len(set(control.fractions)) >= len(SAID)
    assert control.fractions[-1] == 1.0


@pytest.mark.parametrize("max_seconds", [5.0, pytest.param(8.0, marks=pytest.mark.long)])
def test_the_seams_of_chunks_cut_no_word(
    store: FolderStore, track: AudioTrack, result: TranscriptResult, max_seconds: float
) -> None:
    """Speech with short pauses, so that chunks of the usual length hold it in one piece."""
    samples = np.concatenate([*read_blocks(SPEECH / "two_voices.flac")])
    whole = put_track(store, [samples])
    limits = ChunkLimits(max_seconds=max_seconds, min_seconds=2.0, pause_seconds=3.0)
    cut = transcript(store, whole, config=replace(SHARDED, chunks=limits))
    uncut = transcript(store, whole, config=replace(SHARDED, chunks=ChunkLimits(pause_seconds=3.0)))
    assert cut.shards_computed > uncut.shards_computed
    assert [word.text for word in words_of(cut)] == [word.text for word in words_of(uncut)]
    for one, other in zip(words_of(cut), words_of(uncut), strict=True):
        assert one.start_ms == pytest.approx(other.start_ms, abs=200)


def words_all_over(chunk: AudioChunk, text: str) -> tuple[Word, ...]:
    """The word again and again, so that no speech of the chunk is without words."""
    halves = int(2 * len(chunk.samples) / SAMPLE_RATE_HZ)
    return tuple(Word(text, at / 2, at / 2 + 0.5, 0.9) for at in range(halves))


class TwoLanguages:
    """A transcriber that detects the language of short chunks with little certainty."""

    def __init__(self) -> None:
        self.hints: list[str | None] = []

    def transcribe(self, chunks: Sequence[AudioChunk]) -> list[ChunkTranscript]:
        self.hints += [chunk.language for chunk in chunks if chunk.has_words]
        return [self._one(chunk) for chunk in chunks]

    def _one(self, chunk: AudioChunk) -> ChunkTranscript:
        if not chunk.has_words:
            return ChunkTranscript((), None, languages=(("en", 0.9),))
        sure = len(chunk.samples) > 2.5 * SAMPLE_RATE_HZ
        return ChunkTranscript(
            words_all_over(chunk, "yes" if chunk.language or sure else "ja"),
            chunk.language or ("en" if sure else "de"),
            0.9 if chunk.language or sure else 0.3,
            -0.3,
        )


class ModelsOfTwoLanguages(LocalModels):
    """The packaged models, but for the transcriber, which is the same at every request."""

    def find(self, task: Task[Contract]) -> Contract | None:
        return cast("Contract", SCRIPTED) if task is TRANSCRIBE else super().find(task)


SCRIPTED = TwoLanguages()


@pytest.mark.parametrize("shard_seconds", [3.0, None], ids=["a chunk a shard", "unsharded"])
def test_a_chunk_of_doubtful_language_is_transcribed_in_that_of_its_track(
    store: FolderStore, track: AudioTrack, shard_seconds: float | None
) -> None:
    SCRIPTED.hints.clear()
    found = transcribe_track(
        track,
        workspace=Workspace(store, "jobs/2"),
        models=ModelsOfTwoLanguages(),
        control=FreeRun(),
        config=TranscriptConfig(sharding=Sharding(shard_seconds=shard_seconds)),
        media_duration_ms=MEDIA_MS,
        mapper=map_here,
    )
    assert {word.text for word in words_of(found)} == {"yes"}
    assert found.language == "en"
    doubtful = SCRIPTED.hints.count("en")
    assert 0 < doubtful < len(SAID)
    assert SCRIPTED.hints.count(None) == len(SAID)


@pytest.mark.parametrize(
    ("probability", "fit", "language"),
    [
        pytest.param(0.4, -0.3, "sr", id="shared by neighbours"),
        pytest.param(0.4, -0.9, "sr", id="shared by neighbours, in noise"),
        pytest.param(0.18, -0.3, "sr", id="improbable, but the text fits"),
        pytest.param(0.18, -0.9, None, id="no speech"),
    ],
)
def test_text_of_doubtful_language_is_kept_with_a_warning(
    store: FolderStore,
    track: AudioTrack,
    monkeypatch: pytest.MonkeyPatch,
    probability: float,
    fit: float,
    language: str | None,
) -> None:
    shares = (("sr", probability), ("hr", probability - 0.05), ("bs", 0.1))

    def transcribe(chunks: Sequence[AudioChunk]) -> list[ChunkTranscript]:
        return [
            ChunkTranscript(words_all_over(chunk, "da"), "sr", probability, fit, shares)
            for chunk in chunks
        ]

    monkeypatch.setattr(SCRIPTED, "transcribe", transcribe)
    found = transcribe_track(
        track,
        workspace=Workspace(store, f"jobs/{probability}{fit}"),
        models=ModelsOfTwoLanguages(),
        control=FreeRun(),
        config=TranscriptConfig(),
        media_duration_ms=MEDIA_MS,
        mapper=map_here,
    )
    assert found.language == language
    if language is None:
        assert found.segments == ()
        return
    assert found.language_probability == pytest.approx(probability)
    assert {word.text for word in words_of(found)} == {"da"}
    assert {segment.language for segment in found.segments} == {None}
    [warning] = found.warnings
    assert (warning.code, warning.track_index) == (WarningCode.LANGUAGE_UNCERTAIN, track.index)
    assert f"{probability:.2f}" in warning.message


@pytest.mark.parametrize(
    ("choice", "keyterms", "texts"),
    [
        pytest.param(LanguageChoice(), (), {"说"}, id="that of most"),
        pytest.param(
            LanguageChoice(language="zh-TW"), (), {"說"}, id="that of the client's language"
        ),
        pytest.param(LanguageChoice(), ("說",), {"說"}, id="a key term as it is spelt"),
    ],
)
def test_a_track_keeps_one_script_of_chinese(
    store: FolderStore,
    track: AudioTrack,
    monkeypatch: pytest.MonkeyPatch,
    choice: LanguageChoice,
    keyterms: tuple[str, ...],
    texts: set[str],
) -> None:
    def answer(chunk: AudioChunk) -> ChunkTranscript:
        text = "说" if len(chunk.samples) > 2.5 * SAMPLE_RATE_HZ else "說"
        return ChunkTranscript(words_all_over(chunk, text + "。"), "zh", 0.9, -0.3, (("zh", 0.9),))

    monkeypatch.setattr(SCRIPTED, "transcribe", lambda chunks: [*map(answer, chunks)])
    found = transcribe_track(
        track,
        workspace=Workspace(store, f"jobs/{choice.language}{keyterms}"),
        models=ModelsOfTwoLanguages(),
        control=FreeRun(),
        config=TranscriptConfig(choice, keyterms),
        media_duration_ms=MEDIA_MS,
        mapper=map_here,
    )
    assert {word.text.strip("。") for word in words_of(found)} == texts


def test_speech_that_stays_without_words_is_a_warning_with_its_times(
    store: FolderStore, track: AudioTrack, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = ChunkTranscript((), None)
    monkeypatch.setattr(SCRIPTED, "transcribe", lambda chunks: [nothing] * len(chunks))
    found = transcribe_track(
        replace(track, offset_seconds=1.0),
        workspace=Workspace(store, "jobs/4"),
        models=ModelsOfTwoLanguages(),
        control=FreeRun(),
        config=TranscriptConfig(),
        media_duration_ms=MEDIA_MS,
        mapper=map_here,
    )
    assert found.segments == ()
    assert {warning.code for warning in found.warnings} == {WarningCode.SPEECH_WITHOUT_WORDS}
    ends, start_ms = [], 1000
    for sentence in SAID:
        ends.append((start_ms, start_ms := start_ms + sentence["end_ms"] - sentence["start_ms"]))
        start_ms += PAUSE_MS
    spans = [(warning.start_ms, warning.end_ms) for warning in found.warnings]
    assert spans == [pytest.approx(each, abs=350) for each in ends]


def test_every_window_of_a_track_is_segmented_once(
    store: FolderStore, track: AudioTrack, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, windows = OnnxSpeakerSegmenter.segment, list[Samples]()

    def counted(segmenter: OnnxSpeakerSegmenter, given: Sequence[Samples]) -> list[SpeakerActivity]:
        windows.extend(given)
        return segment(segmenter, given)

    monkeypatch.setattr(OnnxSpeakerSegmenter, "segment", counted)
    monkeypatch.setattr(
        SCRIPTED, "transcribe", lambda chunks: [ChunkTranscript((), None)] * len(chunks)
    )
    transcribe_track(
        track,
        workspace=Workspace(store, "jobs/5"),
        models=ModelsOfTwoLanguages(),
        control=FreeRun(),
        config=TranscriptConfig(),
        media_duration_ms=MEDIA_MS,
        mapper=map_here,
    )
    assert len(windows) == windows_of(track.duration_seconds * SAMPLE_RATE_HZ)


@pytest.mark.parametrize(
    ("lost", "computed"),
    [
        pytest.param("/transcript/words/00002-", 1, id="words lost"),
        pytest.param("/transcript/voices/00000-", 0, id="voices lost"),
    ],
)
def test_a_retry_computes_only_what_is_missing(
    store: FolderStore, track: AudioTrack, result: TranscriptResult, lost: str, computed: int
) -> None:
    assert result.shards_computed == len(SAID)
    [key] = [key for key in store.list_keys("jobs/1") if lost in key]
    store.delete(key)
    again = transcript(store, track)
    assert store.exists(key)
    assert (again.shards_computed, again.shards_reused) == (computed, len(SAID) - computed)
    assert (again.segments, again.turns) == (result.segments, result.turns)


def test_a_complete_retry_needs_no_model(store: FolderStore, track: AudioTrack) -> None:
    again = transcript(store, track, models=BrokenModels())
    assert (again.shards_computed, again.shards_reused) == (0, len(SAID))


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(replace(SHARDED, models="large"), id="other models"),
        pytest.param(replace(SHARDED, choice=LanguageChoice(language="fr")), id="other language"),
        pytest.param(replace(SHARDED, keyterms=("Pemberley",)), id="other key terms"),
    ],
)
def test_shards_are_not_reused_for_another_question_and_a_failing_model_fails_the_stage(
    store: FolderStore, track: AudioTrack, config: TranscriptConfig
) -> None:
    with pytest.raises(StageError, match="Transcription failed: RuntimeError: out of memory") as it:
        transcript(store, track, config=config, models=BrokenModels())
    assert it.value.code is StageCode.TRANSCRIPT_FAILED


def test_replacements_are_in_words_and_segments_and_cost_no_model_again(
    store: FolderStore, track: AudioTrack, result: TranscriptResult
) -> None:
    heard = words_of(result)[0].text.strip(".,")
    config = replace(SHARDED, replacements=((heard, "Good Pemberley"),))
    again = transcript(store, track, config=config, models=BrokenModels())
    assert words_of(again)[0].text == "Good"
    assert again.segments[0].text.startswith("Good Pemberley")
    assert len(words_of(again)) > len(words_of(result))
    assert (again.turns, again.speakers) == (result.turns, result.speakers)


@pytest.mark.parametrize("expected", [1, 2, 3])
def test_the_number_of_speakers_can_be_told_and_costs_no_model_again(
    store: FolderStore, track: AudioTrack, result: TranscriptResult, expected: int
) -> None:
    config = replace(SHARDED, speakers=SpeakerRules(expected=expected))
    again = transcript(store, track, config=config, models=BrokenModels())
    assert len(again.speakers) == expected
    assert [word.text for word in words_of(again)] == [word.text for word in words_of(result)]


@pytest.mark.parametrize(
    ("offset_seconds", "duration_ms"),
    [
        pytest.param(2.5, MEDIA_MS, id="track starts after the video"),
        pytest.param(-1.0, MEDIA_MS, id="track starts before the video"),
        pytest.param(-4.0, 5_000, id="track starts before the video and outlasts it"),
        pytest.param(100.0, MEDIA_MS, id="track starts after the end"),
    ],
)
def test_words_lie_on_the_videos_timeline_inside_it(
    store: FolderStore,
    track: AudioTrack,
    result: TranscriptResult,
    offset_seconds: float,
    duration_ms: int,
) -> None:
    moved = transcript(
        store, replace(track, offset_seconds=offset_seconds), duration_ms=duration_ms
    )
    shift_ms = round(offset_seconds * 1000)
    expected = [
        (word.text, max(0, word.start_ms + shift_ms), min(duration_ms, word.end_ms + shift_ms))
        for word in words_of(result)
        if word.end_ms + shift_ms > 0 and word.start_ms + shift_ms < duration_ms
    ]
    assert [(word.text, word.start_ms, word.end_ms) for word in words_of(moved)] == expected
    order = dict.fromkeys(segment.speaker for segment in moved.segments)
    assert [speaker.id for speaker in moved.speakers] == list(order)


@pytest.mark.parametrize("seconds", [0, 5])
def test_silence_gives_an_empty_transcript(ray_session: None, tmp_path: Path, seconds: int) -> None:
    store = FolderStore(tmp_path)
    silent = put_track(store, [np.zeros(seconds * SAMPLE_RATE_HZ, np.float32)])
    empty = transcript(store, silent)
    assert (empty.language, empty.speakers, empty.segments) == (None, (), ())


@pytest.mark.parametrize(
    ("kept_bytes", "message"),
    [(0, "The track is damaged: 0.0 of"), (100_000, "Invalid data found")],
    ids=["empty", "truncated"],
)
def test_a_damaged_track_fails_the_stage_instead_of_losing_words(
    store: FolderStore, track: AudioTrack, kept_bytes: int, message: str
) -> None:
    store.write_bytes(track.key, store.read_bytes(track.key)[:kept_bytes])
    with pytest.raises(StageError, match=message) as it:
        transcript(store, track)
    assert it.value.code is StageCode.TRANSCRIPT_FAILED


def test_a_stop_marker_ends_the_work(store: FolderStore, track: AudioTrack) -> None:
    Workspace(store, "jobs/1").request_stop()
    config = replace(SHARDED, models="not asked yet")
    with pytest.raises(StageStoppedError):
        transcript(store, track, config=config)


def murmur(samples: Samples) -> Samples:
    """Noise in three bands, each as loud as the voice is there: nobody understands a word."""
    noise = np.random.default_rng(7).normal(size=len(samples))
    smoothing = butter(2, 30, fs=SAMPLE_RATE_HZ, output="sos")
    total = np.zeros(len(samples))
    for low, high in pairwise(np.geomspace(150, 5_000, 4)):
        band = butter(3, [low, high], "bandpass", fs=SAMPLE_RATE_HZ, output="sos")
        levels = sosfilt(smoothing, np.abs(sosfilt(band, samples))).clip(0)
        total += levels * sosfilt(band, noise)
    loud: Samples = (0.4 * total / np.abs(total).max()).astype(np.float32)
    return loud


AROUND = 6_400
"""Samples before and after what is heard in a clip."""


def clip_transcript(folder: Path, samples: Samples) -> TranscriptResult:
    store = FolderStore(folder)
    track = put_track(store, [samples])
    return transcribe_track(
        track,
        workspace=Workspace(store, "jobs/1"),
        models=LocalModels(),
        control=FreeRun(),
        config=TranscriptConfig(),
        media_duration_ms=round(track.duration_seconds * 1000),
        mapper=map_here,
    )


@pytest.mark.parametrize(
    ("start_seconds", "seconds"), [(2.05, 0.9), (2.05, 1.4), (7.0, 0.9), (9.2, 1.4), (13.05, 1.4)]
)
def test_a_short_clip_of_murmur_has_no_words_and_a_warning(
    start_seconds: float, seconds: float, tmp_path: Path
) -> None:
    """Whisper makes "Thank you.", "Thank you for sharing." and "Thank you very much." of them."""
    heard = murmur(np.concatenate([*read_blocks(SPEECH / "two_voices.flac")]))
    start = round(start_seconds * SAMPLE_RATE_HZ)
    silence = np.zeros(AROUND, np.float32)
    heard = heard[start : start + round(seconds * SAMPLE_RATE_HZ)]
    found = clip_transcript(tmp_path, np.concatenate([silence, heard, silence]))
    assert [word.text for word in words_of(found)] == []
    assert {each.code for each in found.warnings} == {WarningCode.SPEECH_WITHOUT_WORDS}


REPLIES = json.loads((SPEECH / "truth.json").read_text())["replies.flac"]["sentences"]


@pytest.mark.parametrize("reply", REPLIES, ids=[each["text"] for each in REPLIES])
def test_a_short_reply_that_is_spoken_alone_is_there(reply: dict[str, Any], tmp_path: Path) -> None:
    samples = np.concatenate([*read_blocks(SPEECH / "replies.flac")])
    start, end = reply["start_ms"] * 16 - AROUND, reply["end_ms"] * 16 + AROUND
    found = clip_transcript(tmp_path, samples[start:end])
    said = " ".join(word.text.casefold().strip(".,!") for word in words_of(found))
    assert said == reply["text"]
    confidence = np.mean([word.confidence for word in words_of(found)])
    doubts = [WarningCode.LANGUAGE_UNCERTAIN] if confidence < 0.85 else []
    assert [each.code for each in found.warnings] == doubts
