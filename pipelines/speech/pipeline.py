"""Transcription of one track: a step a part of it, one to cut it, one a shard, a reduce.

    part -> who speaks in each window, voices, sounds      a 40th of the sound's length
    track -> regions, chunks (1:1)                         sequential, all but free
    shard -> words (1:1)                                   the transcriber's time
    all parts, shards -> speakers -> segments              over the whole track

Windows and chunks follow from the audio only; sharding only groups them into tasks. So the words
are the same for every shard length, and after every retry. Every chunk has its own language, so
that a recording may change it, and so has each part of a chunk that changes it; a part whose
language is uncertain is transcribed again in that of its track.

Of a track whose channels are voices apart each is transcribed by itself, the channel the speaker.

Confidences become shares of what is right by Platt's scaling (1999) of the recogniser's log-odds,
its numbers in ``calibration.toml``.
"""

from __future__ import annotations

import functools
import itertools
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from models.contracts import Samples
from models.provider import ModelProvider
from pipelines.execution.chain import Control, Mapper, Resources, Workspace, parts_of
from pipelines.execution.ray_data import map_on_ray
from pipelines.media.audio import LEVEL_FRAME_SECONDS, SoundPrint, print_of, read_blocks
from pipelines.speech import regions
from pipelines.speech.edits import replaced
from pipelines.speech.languages import PROBABLE, LanguageChoice, SpokenPart, elected, is_noise
from pipelines.speech.speakers import (
    VOICES,
    EmbedVoices,
    SpeakerRules,
    VoiceShard,
    attribute,
    find_turns,
    find_voices,
    join_voices,
    place_turns,
    plan_voice_shards,
)
from pipelines.speech.transcribe import (
    WORDS,
    ChunkWords,
    ShardTask,
    Transcribe,
    founded,
    uncovered,
    without_overlaps,
)
from pipelines.speech.words import (
    SegmentLimits,
    TimeSpan,
    build_segments,
    in_one_script,
    place_words,
    to_ms,
)
from pipelines.types import (
    AudioTrack,
    PipelineWarning,
    SpeakerVoice,
    TimedSound,
    TranscriptResult,
    TranscriptSegment,
    TranscriptWord,
    WarningCode,
)

_LEAST_PROBABILITY = 0.005
"""What is nearer to 0 or 1 is taken for this: no share of a few hundred words is nearer."""


@dataclass(frozen=True, slots=True)
class WordCalibration:
    """``bias`` and ``slope`` of the log-odds that a word is right, over those given for it."""

    bias: float
    slope: float

    def confidence(self, probability: float) -> float:
        """Return the share of words of such a probability that is right."""
        return 1 / (1 + math.exp(-self.bias - self.slope * log_odds(probability)))


def log_odds(probability: float) -> float:
    """Within what a calibration is of."""
    sure = min(max(probability, _LEAST_PROBABILITY), 1 - _LEAST_PROBABILITY)
    return math.log(sure / (1 - sure))


@functools.cache
def word_calibrations() -> Mapping[str, WordCalibration]:
    """By the digest of the transcriber that each was measured with."""
    table = tomllib.loads(files("pipelines.speech").joinpath("calibration.toml").read_text())
    return {name: WordCalibration(row["bias"], row["slope"]) for name, row in table.items()}


def calibrated(found: TranscriptResult, calibration: WordCalibration) -> TranscriptResult:
    """Return the transcript with such confidences; a segment's is the share of its words that is
    right."""
    segments = []
    for segment in found.segments:
        right = [calibration.confidence(word.confidence) for word in segment.words]
        pairs = zip(segment.words, right, strict=True)
        words = tuple(replace(word, confidence=share) for word, share in pairs)
        segments.append(replace(segment, confidence=sum(right) / len(right), words=words))
    return replace(found, segments=tuple(segments), calibrated=True)


_VOICES_SHARE, _REGIONS_SHARE = 0.2, 0.05
"""Shares of the progress that voices and cutting the track stand for."""
CHINESE = frozenset({"zh", "yue"})
_MOST_WARNED = 20
_WARNED_APART_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class TranscriptConfig:
    """How tracks are transcribed."""

    choice: LanguageChoice = field(default_factory=LanguageChoice)
    keyterms: tuple[str, ...] = ()
    replacements: tuple[tuple[str, str], ...] = ()
    """What is written in the place of what is heard."""
    models: str = ""
    """Names the backends in use: results of one are not reused for another."""
    transcriber: str = ""
    """Digest of the one in use: where no calibration stands under it, confidences are its own."""
    chunks: regions.ChunkLimits = field(default_factory=regions.ChunkLimits)
    sharding: regions.Sharding = field(default_factory=regions.Sharding)
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
    """Return the transcript of ``track`` on the timeline of a video of ``media_duration_ms``.
    Raises StageError (TRANSCRIPT_FAILED) if a shard fails twice, StageStoppedError if ``control``
    or the workspace's stop marker requires it."""
    shares = _VOICES_SHARE, _REGIONS_SHARE, 1.0 - _VOICES_SHARE - _REGIONS_SHARE
    embedding, cutting, transcribing = parts_of(control, shares)
    waits = Resources(
        config.transcribe_cpus,
        config.transcribe_concurrency,
        why="It mostly waits for a model in another process.",
    )
    transcribe = Transcribe(workspace, models, config.choice, config.keyterms, resources=waits)

    def compute_missing(tasks: Sequence[ShardTask]) -> int:
        missing = [task for task in tasks if not workspace.store.exists(task.words_key)]
        if missing:
            mapper(missing, transcribe, transcribing)
        return len(missing)

    def cut(sounds: Sequence[AudioTrack]) -> list[CutSound]:
        return cut_sounds(sounds, workspace, models, config, (embedding, cutting), mapper=mapper)

    sounds = [replace(track, key=key, channels=()) for key in track.channels]
    found = cut(sounds) if sounds else []
    if found and not (track.are_channels_asked or are_speakers(found, config.speakers)):
        found, sounds = [], []
    found = found or cut([track])
    first = [shard_tasks(each.shards, workspace, config) for each in found]
    computed = compute_missing([task for tasks in first for task in tasks])
    again = [in_track_language(tasks, workspace, config) for tasks in first]
    compute_missing([task for tasks in again for task in tasks if task.track_language])
    if sounds:
        config = replace(config, speakers=SpeakerRules(expected=1))
    results = [
        reduce_shards(tasks, each.voiced, each.sound, workspace, config, media_duration_ms)
        for tasks, each in zip(again, found, strict=True)
    ]
    control.progress(1.0)
    return replace(
        joined_channels(results) if sounds else results[0],
        sound_print=print_of_track(track, workspace).to_bytes(),
        shards_computed=computed,
        shards_reused=sum(map(len, again)) - computed,
    )


@dataclass(frozen=True, slots=True)
class CutSound:
    """A track, or a channel of one: who speaks in its windows, and the shards to transcribe."""

    sound: AudioTrack
    voiced: tuple[VoiceShard, ...]
    shards: tuple[regions.Shard, ...]


def cut_sounds(
    sounds: Sequence[AudioTrack],
    workspace: Workspace,
    models: ModelProvider,
    config: TranscriptConfig,
    controls: tuple[Control, Control],
    *,
    mapper: Mapper,
) -> list[CutSound]:
    """Return the sounds cut; windows of all, then cutting, has a control."""
    short = Resources(
        config.regions_cpus,
        why="A 200th of the sound's length: no reason to keep the vision stage off a processor.",
    )
    windows = [plan_voice_shards(sound, workspace, config.models) for sound in sounds]
    done = iter(
        mapper([each for of in windows for each in of], EmbedVoices(workspace, models), controls[0])
    )
    limits = config.chunks, config.sharding
    found = []
    cutting = parts_of(controls[1], [1.0] * len(sounds))
    for sound, planned, control in zip(sounds, windows, cutting, strict=True):
        voiced = tuple(itertools.islice(done, len(planned)))
        voices = tuple(each.voices_key for each in voiced)
        cut = regions.CutTrack(workspace, models, *limits, config.models, voices, resources=short)
        [made] = mapper([sound], cut, control)
        found.append(CutSound(sound, voiced, regions.SHARDS.load(workspace.store, made.key)))
    return found


_SPEAKS_SECONDS = 1.0
Spoken = TypeVar("Spoken", TranscriptWord, TranscriptSegment)


def are_speakers(channels: Sequence[CutSound], rules: SpeakerRules) -> bool:
    """Return whether people speak in two channels at least, and in as many as a client expects.

    Else they are dialogue beside music, or the like, and who speaks is to be found out.
    """
    seconds = [
        sum(end - start for shard in each.shards for c in shard.chunks for start, end in c.detected)
        * LEVEL_FRAME_SECONDS
        for each in channels
    ]
    count = sum(each >= _SPEAKS_SECONDS for each in seconds)
    return 2 <= count <= rules.at_most and rules.expected in (None, count)


def joined_channels(results: Sequence[TranscriptResult]) -> TranscriptResult:
    """Return the transcripts of channels as one by time, each channel with words a speaker.

    Words and segments of different speakers may overlap. The language is that of most words.
    """
    spoken = sorted(
        (each for each in results if each.segments), key=lambda each: each.segments[0].start_ms
    )
    if not spoken:
        return replace(results[0], warnings=tuple(w for each in results for w in each.warnings))
    main = max(spoken, key=lambda each: sum(len(segment.words) for segment in each.segments))
    named = [
        _renamed(each, number, None if each.language == main.language else each.language)
        for number, each in enumerate(spoken)
    ]
    segments = sorted((it for each in named for it in each.segments), key=lambda it: it.start_ms)
    return replace(
        main,
        speakers=tuple(it for each in named for it in each.speakers),
        segments=tuple(replace(it, index=index) for index, it in enumerate(segments)),
        turns=tuple(
            sorted(
                (it for each in named for it in each.turns), key=lambda it: (it.start_ms, it.end_ms)
            )
        ),
        sounds=_joined_sounds([it for each in results for it in each.sounds]),
        voices=tuple(it for each in named for it in each.voices),
        warnings=tuple(dict.fromkeys(w for each in results for w in each.warnings)),
    )


def _renamed(found: TranscriptResult, number: int, language: str | None) -> TranscriptResult:
    """Return the transcript of one channel as all of its speaker of that number; ``language`` is
    its own where it is not that of the others."""
    name, label = f"speaker_{number}", f"Speaker {number + 1}"

    def of_speaker(each: Spoken) -> Spoken:
        return replace(each, speaker=name, language=each.language or language)

    return replace(
        found,
        speakers=tuple(replace(it, id=name, label=label) for it in found.speakers),
        segments=tuple(
            replace(of_speaker(it), words=tuple(map(of_speaker, it.words))) for it in found.segments
        ),
        turns=tuple(replace(it, speaker=name) for it in found.turns),
        voices=tuple(replace(it, speaker=name) for it in found.voices),
    )


def _joined_sounds(sounds: Sequence[TimedSound]) -> tuple[TimedSound, ...]:
    """Return the sounds by start, those of a kind that overlap as one."""
    found: list[TimedSound] = []
    for each in sorted(sounds, key=lambda it: (it.kind, it.start_ms)):
        last = found[-1] if found else None
        if last and last.kind is each.kind and each.start_ms <= last.end_ms:
            end_ms = max(last.end_ms, each.end_ms)
            confidence = max(last.confidence, each.confidence)
            found[-1] = replace(last, end_ms=end_ms, confidence=confidence)
        else:
            found.append(each)
    return tuple(sorted(found, key=lambda it: (it.start_ms, it.end_ms)))


def print_of_track(track: AudioTrack, workspace: Workspace) -> SoundPrint:
    """Return what a track's sound is found again by."""

    def blocks(path: Path) -> Iterator[Samples]:
        for block in read_blocks(path):
            workspace.check()
            yield block

    with workspace.store.local_copy(track.key) as path:
        return print_of(blocks(path), to_ms(track.offset_seconds))


def shard_tasks(
    shards: Iterable[regions.Shard],
    workspace: Workspace,
    config: TranscriptConfig,
    language: str | None = None,
) -> list[ShardTask]:
    """Return a task a shard; ``language`` is that of the track where it is a second pass."""
    inputs = config.models, config.choice, config.keyterms, language
    return [
        ShardTask(it, WORDS.key(workspace.prefix, it.audio_key, *inputs, position=position))
        for position, it in enumerate(shards)
    ]


def in_track_language(
    tasks: Sequence[ShardTask], workspace: Workspace, config: TranscriptConfig
) -> list[ShardTask]:
    """Return the tasks, those of shards with chunks of doubtful language as ones of a second
    pass."""
    if config.choice.language is not None:
        return [*tasks]
    words = [WORDS.load(workspace.store, task.words_key) for task in tasks]
    language, _ = elected(part for shard in words for chunk in shard for part in chunk.parts)
    if language is None:
        return [*tasks]
    again = shard_tasks((task.shard for task in tasks), workspace, config, language)
    return [
        replace(second, track_language=language, first_words_key=first.words_key)
        if any(part.may_be_in(language) for chunk in shard for part in chunk.parts)
        else first
        for first, second, shard in zip(tasks, again, words, strict=True)
    ]


def reduce_shards(
    tasks: Sequence[ShardTask],
    voiced: Sequence[VoiceShard],
    track: AudioTrack,
    workspace: Workspace,
    config: TranscriptConfig,
    media_duration_ms: int,
) -> TranscriptResult:
    """Return the stored outputs of all shards of a track, in order, as one transcript."""
    store = workspace.store
    planned = [chunk for task in tasks for chunk in task.shard.chunks]
    chunks = [chunk for task in tasks for chunk in WORDS.load(store, task.words_key)]
    chunks = [
        ChunkWords(tuple(map(founded, chunk.parts))) for chunk in without_overlaps(planned, chunks)
    ]
    parts = [part for chunk in chunks for part in chunk.parts]
    voices = join_voices([VOICES.load(store, each.voices_key) for each in voiced])
    centroids = find_voices(voices, config.speakers)
    turns = find_turns(voices, centroids)
    parts = regions.without_sung(parts, voices)
    language, probability = elected(parts)
    if is_noise(parts, probability):
        chunks, parts, language, probability = [ChunkWords(()) for _ in chunks], [], None, None
    words = [
        replace(word, language=None if part.language == language else part.language)
        for part in parts
        for word in part.words
    ]
    is_chinese = [(word.language or language) in CHINESE for word in words]
    chinese = [word.text for word in itertools.compress(words, is_chinese)]
    spelt = iter(in_one_script(chinese, config.choice.chinese_script, config.keyterms))
    words = [
        replace(word, text=next(spelt)) if chosen else word
        for word, chosen in zip(words, is_chinese, strict=True)
    ]
    placed = place_words(
        words, offset_seconds=track.offset_seconds, media_duration_ms=media_duration_ms
    )
    found = attribute(placed, place_turns(turns, track, media_duration_ms))
    result = TranscriptResult(
        language=language,
        language_probability=probability,
        speakers=found.speakers,
        segments=build_segments(replaced(found.words, config.replacements), config.segments),
        shards_computed=len(tasks),
        shards_reused=0,
        turns=found.turns,
        sounds=regions.find_sounds(voices, track, media_duration_ms),
        voices=tuple(
            SpeakerVoice(speaker, tuple(centroids[int(number)].tolist()))
            for number, speaker in found.ids.items()
            if len(centroids)
        ),
    )
    silent = [
        (start * LEVEL_FRAME_SECONDS, end * LEVEL_FRAME_SECONDS)
        for chunk, spoken in zip(planned, chunks, strict=True)
        for start, end in uncovered(chunk, spoken.words)
    ]
    warnings = [*_warnings(parts, silent, track, result, media_duration_ms)]
    # At the very end: all thresholds above are of the recogniser's own confidences.
    calibration = word_calibrations().get(config.transcriber)
    result = result if calibration is None else calibrated(result, calibration)
    is_said = {each.code for each in warnings}
    if config.choice.language is None and WarningCode.LANGUAGE_UNCERTAIN not in is_said:
        warnings += _improbable_words(result, track)
    return replace(result, warnings=tuple(warnings))


_LEAST_CONFIDENCE, _OF_FEW_WORDS = 0.7, 0.85
"""Mean calibrated confidences of words below which a language is doubtful. Quick dialogue that was
taken for Italian had 0.36; the second is a guess."""
_FEW_SECONDS = 5.0


def _improbable_words(result: TranscriptResult, track: AudioTrack) -> Iterator[PipelineWarning]:
    """Yield a warning where the words are too improbable to prove a language: a detection that was
    shared among a few rivals, or made of a few seconds, is certain of itself all the same."""
    words = [word for segment in result.segments for word in segment.words]
    seconds = sum(word.end_ms - word.start_ms for word in words) / 1000
    if not words or result.language is None:
        return
    confidence = sum(word.confidence for word in words) / len(words)
    if confidence < (_OF_FEW_WORDS if seconds < _FEW_SECONDS else _LEAST_CONFIDENCE):
        message = (
            f"What is said is taken for {result.language}, but its words are uncertain: "
            f"{confidence:.2f} on average."
        )
        yield PipelineWarning(WarningCode.LANGUAGE_UNCERTAIN, message, track_index=track.index)


def _warnings(
    parts: Sequence[SpokenPart],
    silent: Sequence[TimeSpan],
    track: AudioTrack,
    result: TranscriptResult,
    media_ms: int,
) -> Iterator[PipelineWarning]:
    """Of speech without words, and of doubtful languages: the track's, or another's in places."""
    message = "Somebody seems to speak here, but no words could be made out."
    yield from interval_warnings(WarningCode.SPEECH_WITHOUT_WORDS, message, silent, track, media_ms)
    probability = result.language_probability
    if probability is not None and probability < PROBABLE:
        message = f"What is said is taken for {result.language}, with a probability of {{:.2f}}."
        yield PipelineWarning(
            WarningCode.LANGUAGE_UNCERTAIN, message.format(probability), track_index=track.index
        )
    spans = [
        (part.words[0].start_seconds, part.words[-1].end_seconds)
        for part in parts
        if part.words and part.language != result.language and part.is_doubtful
    ]
    message = "What is said here is in another language than the rest, but in which is uncertain."
    yield from interval_warnings(WarningCode.LANGUAGE_UNCERTAIN, message, spans, track, media_ms)


def interval_warnings(
    code: WarningCode, message: str, spans: Sequence[TimeSpan], track: AudioTrack, media_ms: int
) -> list[PipelineWarning]:
    """Return a warning for each interval, those nearer than _WARNED_APART_SECONDS as one.

    From the _MOST_WARNED-th on the rest is one interval. Spans are in seconds of the track.
    """
    merged: list[TimeSpan] = []
    for start, end in spans:
        is_near = merged and start - merged[-1][1] < _WARNED_APART_SECONDS
        if merged and (is_near or len(merged) == _MOST_WARNED):
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    placed = [
        (max(0, to_ms(start + track.offset_seconds)), to_ms(end + track.offset_seconds))
        for start, end in merged
    ]
    return [
        PipelineWarning(
            code, message, track_index=track.index, start_ms=start, end_ms=min(end, media_ms)
        )
        for start, end in placed
        if start < min(end, media_ms)
    ]
