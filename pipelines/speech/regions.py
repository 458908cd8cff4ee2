"""Speech, singing and music of a track; the chunks it is cut into for the transcriber; their
shards.

One task streams the whole track: the detector runs hundreds of times faster than real time, so that
sharding it would cost more than it saves. Its windows lie on a fixed grid with context on both
sides. Chunks are counted in level frames of LEVEL_FRAME_SECONDS, so that a chunk is a whole number
of samples. Both depend on the audio only, not on sharding or machine.

Silero detects speech, and the segmentation of speakers, which the voices keep, where Silero doubts:
each is right where the other is not. Of seven recordings of meetings Silero alone, at its default,
covers 72 % of the speech, with nothing false; segmentation alone 94 %, but it takes signals, choirs
and an empty room for speech (5, 7 and 4 s a minute). Its regions of which Silero, at a low
threshold, has two fifths cover 94 % with 3 s false in 120, and of ten minutes of noises as little
as Silero alone.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.contracts import (
    ACTIVITY_FRAME_SAMPLES,
    ACTIVITY_START_SAMPLES,
    SAMPLE_RATE_HZ,
    SPEECH_FRAME_SAMPLES,
    Probabilities,
    SoundKind,
)
from models.provider import ModelProvider
from models.tasks import DETECT_SPEECH
from pipelines.codec import Artifact, Made
from pipelines.execution.chain import Step, Workspace
from pipelines.media import audio
from pipelines.speech import speakers
from pipelines.speech.languages import SpokenPart
from pipelines.speech.words import TrackWord, runs_of, to_ms
from pipelines.types import AudioTrack, StageCode, StageError, TimedSound

_WINDOW_SAMPLES = 120 * SAMPLE_RATE_HZ
_CONTEXT_SAMPLES = 10 * SAMPLE_RATE_HZ
Region = tuple[float, float]


def scan_track(
    path: Path, activity: Probabilities, models: ModelProvider, check: Callable[[], None]
) -> tuple[list[Region], audio.Levels]:
    """Regions of speech in seconds and the level of every frame of a whole file.

    ``activity`` is that of the whole file too: that anybody speaks, by segmentation.
    """
    detector = models.get(DETECT_SPEECH)
    regions: list[Region] = []
    levels: list[audio.Levels] = [np.empty(0, np.float32)]
    blocks = audio.read_blocks(path)
    for start, before, window in audio.overlapping_windows(
        blocks, core=_WINDOW_SAMPLES, context=_CONTEXT_SAMPLES
    ):
        check()
        core = window[before : before + _WINDOW_SAMPLES]
        levels.append(audio.frame_levels(core))
        low, high = start / SAMPLE_RATE_HZ, (start + len(core)) / SAMPLE_RATE_HZ
        shift = low - before / SAMPLE_RATE_HZ
        probabilities = detector.find_speech(window)
        middles = start - before + SPEECH_FRAME_SAMPLES * (np.arange(len(probabilities)) + 0.5)
        frames = (middles - ACTIVITY_START_SAMPLES) // ACTIVITY_FRAME_SAMPLES
        segmented = activity[frames.clip(0, len(activity) - 1).astype(np.intp)]
        found = speech_regions(probabilities, segmented, len(window) / SAMPLE_RATE_HZ)
        inside = [(max(low, a + shift), min(high, b + shift)) for a, b in found]
        regions.extend((a, b) for a, b in inside if b > a)
    return merge_regions(regions), np.concatenate(levels)


SPEECH_PROBABILITY = 0.5
"""From which speech begins: Silero's own default."""
SILENCE_PROBABILITY = 0.35
"""Below which speech may end; Silero's default is 0.15 less than the other."""
DOUBT = (0.15, 0.08)
"""The same two where Silero has a doubt that nobody speaks."""
SUPPORTED_SHARE = 0.4
"""Of a region of segmentation, so much Silero must doubt: with 0.25 rain was speech."""
MIN_SPEECH_SECONDS = 0.1
MIN_SILENCE_SECONDS = 0.1
"""Shorter gaps are part of speech: closures of stops last 50 to 80 ms."""


def speech_regions(
    probabilities: Probabilities, activity: Probabilities, seconds: float
) -> list[Region]:
    """Regions (start, end) in seconds, sorted, disjoint, inside the ``seconds``.

    ``probabilities`` are Silero's, ``activity`` is segmentation's, both of SPEECH_FRAME_SAMPLES.
    """
    certain = regions_of(probabilities, seconds)
    doubts = regions_of(probabilities, seconds, *DOUBT)
    segmented = regions_of(activity, seconds) if doubts else []
    supported = [each for each in segmented if is_supported(each, doubts)]
    return merge_regions([*certain, *supported], MIN_SILENCE_SECONDS)


def regions_of(
    probabilities: Probabilities,
    seconds: float,
    begins: float = SPEECH_PROBABILITY,
    ends: float = SILENCE_PROBABILITY,
) -> list[Region]:
    """Return where speech begins at ``begins`` and lasts until below ``ends``."""
    frame_seconds = SPEECH_FRAME_SAMPLES / SAMPLE_RATE_HZ
    regions: list[Region] = []
    start: int | None = None
    for index, probability in enumerate([*probabilities, 0.0]):
        if start is None and probability >= begins:
            start = index
        elif start is not None and probability < ends:
            regions.append((start * frame_seconds, min(seconds, index * frame_seconds)))
            start = None
    merged = merge_regions(regions, MIN_SILENCE_SECONDS)
    return [(start, end) for start, end in merged if end - start >= MIN_SPEECH_SECONDS]


def is_supported(region: Region, doubts: Sequence[Region]) -> bool:
    """Return whether SUPPORTED_SHARE of the region lies in ``doubts``."""
    inside = sum(max(0.0, min(region[1], end) - max(region[0], start)) for start, end in doubts)
    return inside >= SUPPORTED_SHARE * (region[1] - region[0])


def merge_regions(regions: Sequence[Region], gap_seconds: float = 0.0) -> list[Region]:
    """Sorted regions, those that touch, overlap or are nearer than ``gap_seconds`` merged."""
    merged: list[Region] = []
    for start, end in sorted(regions):
        if merged and (start <= merged[-1][1] or start - merged[-1][1] < gap_seconds):
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


_LENGTH_TOLERANCE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Shard:
    """Chunks of a track that one task transcribes; its stored audio is they end to end."""

    audio_key: str
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Sharding:
    """How chunks are shared out among tasks; changes nothing in the result."""

    shard_seconds: float | None = 20.0
    """Longest interval of the track in one task; None: all of it."""
    max_shards: int = 2000


@dataclass(frozen=True)
class CutTrack(Step[AudioTrack, Made]):
    """A track to its stored shards (SHARDS). Raises StageError if the track's audio is shorter than
    it should be: part of it is lost."""

    name = "Speech detection"
    code = StageCode.TRANSCRIPT_FAILED
    version = 3
    workspace: Workspace
    models: ModelProvider
    limits: ChunkLimits
    sharding: Sharding
    models_digest: str
    """Names the backends in use: results of one are not reused for another."""
    voices_keys: tuple[str, ...]
    """Of the whole track, in order."""

    def process(self, track: AudioTrack) -> Made:
        store = self.workspace.store
        inputs = track.key, store.size_bytes(track.key), self.models_digest, self.voices_keys
        key = SHARDS.key(
            self.workspace.prefix, *inputs, self.limits, self.sharding, position=track.index
        )
        return SHARDS.make(store, key, lambda: self._shards(track, key.removesuffix(".json")))

    def _shards(self, track: AudioTrack, folder: str) -> tuple[Shard, ...]:
        store = self.workspace.store
        activity = speakers.speech_activity(
            speakers.VOICES.load(store, key) for key in self.voices_keys
        )
        with store.local_copy(track.key) as path:
            regions, levels = scan_track(path, activity, self.models, self.workspace.check)
            found_seconds, seconds = len(levels) * audio.LEVEL_FRAME_SECONDS, track.duration_seconds
            if found_seconds < seconds - _LENGTH_TOLERANCE_SECONDS:
                message = f"The track is damaged: {found_seconds:.1f} of {seconds:.1f} s decode."
                raise StageError(StageCode.TRANSCRIPT_FAILED, message)
            groups = group_chunks(plan_chunks(regions, levels, self.limits), self.sharding)
            reader = audio.SampleReader(audio.read_blocks(path))
            shards = []
            for index, group in enumerate(groups):
                self.workspace.check()
                shards.append(Shard(f"{folder}/shard-{index:05d}.flac", tuple(group)))
                with store.writer(shards[-1].audio_key) as stream:
                    audio.write_flac(stream, (reader.read(*chunk.sample_span) for chunk in group))
        return tuple(shards)


_SMOOTHING_FRAMES = 5
"""Levels are averaged over 0.1 s before the quietest place is sought: shorter dips are
the closures of stops (50 to 80 ms), which lie inside words."""


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """How chunks are cut. Seconds."""

    max_seconds: float = 20.0
    """No chunk is longer; models take at most about 30 s."""
    min_seconds: float = 4.0
    """A cut forced by ``max_seconds`` leaves at least this much before it."""
    pause_seconds: float = 0.8
    """A pause that long between padded speech always ends a chunk."""
    overlap_seconds: float = 1.0
    """Where a chunk is cut amid speech, so much of its neighbour is transcribed with it."""
    padding_seconds: float = 0.3
    """Kept on both sides of speech, for soft first and last sounds. Words are cut to it: with 0.1 s
    their starts were off by 0.074 s in the mean, not 0.082, and a DER rose from 0.25 to 0.29."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Frames ``start_frame <= f < end_frame`` of a track, to be transcribed as one piece."""

    start_frame: int
    end_frame: int
    speech: tuple[tuple[int, int], ...] = ()
    """Its padded regions of speech, in frames of the track; none: all of it."""
    detected: tuple[tuple[int, int], ...] = ()
    """The same without the padding, as they were detected."""
    before_frames: int = 0
    after_frames: int = 0
    """Of its neighbours, where it is cut from them amid speech: they are transcribed with it, so
    that no word is cut."""

    @property
    def first_frame(self) -> int:
        """Of what is transcribed."""
        return self.start_frame - self.before_frames

    @property
    def start_seconds(self) -> float:
        return self.start_frame * audio.LEVEL_FRAME_SECONDS

    @property
    def end_seconds(self) -> float:
        return self.end_frame * audio.LEVEL_FRAME_SECONDS

    @property
    def seconds(self) -> float:
        return self.end_seconds - self.start_seconds

    @property
    def sample_span(self) -> tuple[int, int]:
        """First sample and the one after the last of what is transcribed."""
        end_frame = self.end_frame + self.after_frames
        return self.first_frame * audio.FRAME_SAMPLES, end_frame * audio.FRAME_SAMPLES


SHARDS = Artifact.of(tuple[Shard, ...], "transcript", version=CutTrack.version)


def plan_chunks(
    regions: Sequence[tuple[float, float]], levels: audio.Levels, limits: ChunkLimits
) -> list[Chunk]:
    """Return chunks in order, disjoint, inside the track, which cover all of ``regions``.

    ``regions`` are seconds of speech; ``levels`` covers the track. Long speech is cut
    at its longest pause, and speech without a pause where it is quietest.
    """
    padding, frame_seconds = limits.padding_seconds, audio.LEVEL_FRAME_SECONDS
    padded = merge_regions([(start - padding, end + padding) for start, end in regions])
    frames = [
        (max(0, math.floor(a / frame_seconds)), min(len(levels), math.ceil(b / frame_seconds)))
        for a, b in padded
    ]
    merged = merge_regions([(start, end) for start, end in frames if end > start])
    speech = [Chunk(int(start), int(end)) for start, end in merged]
    chunks: list[Chunk] = []
    pause = _frames(limits.pause_seconds)
    for block in runs_of(speech, lambda one, other: other.start_frame - one.end_frame < pause):
        # Smoothed by the block alone, so that its cuts depend on nothing else.
        part = levels[block[0].start_frame : block[-1].end_frame].astype(np.float64)
        around = np.pad(part, _SMOOTHING_FRAMES // 2, mode="edge")
        window = np.full(_SMOOTHING_FRAMES, 1 / _SMOOTHING_FRAMES)
        smooth = np.convolve(around, window, mode="valid").astype(np.float32)
        chunks.extend(_cut_block(block, smooth, limits))
    most = _frames(limits.overlap_seconds)
    shared = [
        min(most, one.end_frame - one.start_frame, other.end_frame - other.start_frame)
        if one.end_frame == other.start_frame
        else 0
        for one, other in itertools.pairwise(chunks)
    ]
    sides = [*itertools.pairwise([0, *shared, 0])][: len(chunks)]
    spans = [
        (chunk.start_frame - before, chunk.end_frame + after)
        for chunk, (before, after) in zip(chunks, sides, strict=True)
    ]
    covering = _inside(spans, [(run.start_frame, run.end_frame) for run in speech])
    bare = _inside(
        [(chunk.start_frame, chunk.end_frame) for chunk in chunks],
        [(_frames(start), _frames(end)) for start, end in regions],
    )
    return [
        replace(chunk, speech=padded, detected=detected, before_frames=before, after_frames=after)
        for chunk, padded, detected, (before, after) in zip(
            chunks, covering, bare, sides, strict=True
        )
    ]


def _inside(
    outer: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]
) -> list[tuple[tuple[int, int], ...]]:
    """Return the parts of sorted spans inside each of the outer ones."""
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    found = []
    for low, high in outer:
        inside = spans[bisect.bisect_right(ends, low) : bisect.bisect_left(starts, high)]
        found.append(tuple((max(start, low), min(end, high)) for start, end in inside))
    return found


def group_chunks(chunks: Sequence[Chunk], sharding: Sharding) -> list[list[Chunk]]:
    """Consecutive chunks in groups, for one task each. A group always holds a chunk; shards grow
    where there would be too many of them."""
    longest = math.inf if sharding.shard_seconds is None else sharding.shard_seconds
    groups: list[list[Chunk]] = []
    for chunk in chunks:
        if groups and chunk.end_seconds - groups[-1][0].start_seconds <= longest:
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    if len(groups) <= sharding.max_shards:
        return groups
    size = math.ceil(len(chunks) / sharding.max_shards)
    return [list(chunks[i : i + size]) for i in range(0, len(chunks), size)]


def _frames(seconds: float) -> int:
    return round(seconds / audio.LEVEL_FRAME_SECONDS)


def _cut_block(block: Sequence[Chunk], smooth: audio.Levels, limits: ChunkLimits) -> list[Chunk]:
    """Return the block in chunks of at most ``max_seconds``, cut from left to right."""
    first, last = block[0].start_frame, block[-1].end_frame
    pauses = [(left.end_frame, right.start_frame) for left, right in itertools.pairwise(block)]
    chunks: list[Chunk] = []
    start = first
    while last - start > _frames(limits.max_seconds):
        low = start + _frames(limits.min_seconds)
        high = start + _frames(limits.max_seconds)
        inside = [(begins, ends) for begins, ends in pauses if low <= begins <= high]
        if inside:
            end, following = max(inside, key=lambda pause: (pause[1] - pause[0], pause[0]))
        else:
            # The last of equal minima: fewer, longer chunks.
            reversed_levels = smooth[low - first : high - first][::-1]
            end = following = high - 1 - int(np.argmin(reversed_levels))
        chunks.append(Chunk(start, end))
        start = following
    chunks.append(Chunk(start, last))
    return chunks


CELL_SECONDS = speakers.CELL_FRAMES * speakers.FRAME_SECONDS
PROBABILITIES = {SoundKind.SPEECH: 0.4, SoundKind.SINGING: 0.5, SoundKind.MUSIC: 0.5}
"""From which on a sound is there: FireRedVAD's own."""
_SHORTEST_SECONDS = 0.5
"""Gaps that are shorter are part of a sound: pauses between words, rests."""
_SUNG_CONFIDENCE = 0.5
"""Mean of a part's words in music or singing below which they are made up."""


def find_sounds(
    voices: speakers.LocalVoices, track: AudioTrack, media_duration_ms: int
) -> tuple[TimedSound, ...]:
    """Sounds inside the media, by start; kinds overlap, as speech over music does."""
    curve = sound_curve(voices)
    found = []
    for column, kind in enumerate(SoundKind):
        present = curve[:, column] >= PROBABILITIES[kind]
        for first, last in speakers.runs_in(present, _SHORTEST_SECONDS / CELL_SECONDS):
            start, end = (speakers.BEGIN_SECONDS + cell * CELL_SECONDS for cell in (first, last))
            start_ms = max(0, to_ms(start + track.offset_seconds))
            end_ms = to_ms(min(end, track.duration_seconds) + track.offset_seconds)
            end_ms = min(media_duration_ms, end_ms)
            if start_ms < end_ms:
                confidence = float(curve[first:last, column].mean())
                found.append(TimedSound(kind, start_ms, end_ms, confidence))
    return tuple(sorted(found, key=lambda sound: (sound.start_ms, sound.end_ms)))


def without_sung(parts: Sequence[SpokenPart], voices: speakers.LocalVoices) -> list[SpokenPart]:
    """Return the parts without words where music or singing is and no speech, if those are
    doubtful.

    A decoder makes words up of music. Of a song that it knows well the words stay, also the
    doubtful ones among them.
    """
    curve = sound_curve(voices)
    present = {kind: curve[:, at] >= PROBABILITIES[kind] for at, kind in enumerate(SoundKind)}
    tuneful = present[SoundKind.MUSIC] | present[SoundKind.SINGING]
    sung = np.concatenate([[0], np.cumsum(tuneful & ~present[SoundKind.SPEECH])])

    def is_sung(word: TrackWord) -> bool:
        start = word.start_seconds - speakers.BEGIN_SECONDS
        end = word.end_seconds - speakers.BEGIN_SECONDS
        first = max(0, math.floor(start / CELL_SECONDS))
        last = min(len(curve), max(first + 1, math.ceil(end / CELL_SECONDS)))
        return bool(2 * (sung[last] - sung[min(first, last)]) > last - first)

    found = []
    for part in parts:
        doubts = [1 - word.confidence for word in part.words if is_sung(word)]
        if doubts and sum(doubts) / len(doubts) > 1 - _SUNG_CONFIDENCE:
            found.append(replace(part, words=tuple(w for w in part.words if not is_sung(w))))
        else:
            found.append(part)
    return found


def sound_curve(voices: speakers.LocalVoices) -> npt.NDArray[np.float32]:
    """Probabilities over the whole track, shape (cells, kinds), a cell each CELL_SECONDS."""
    low = speakers.MARGIN_FRAMES // speakers.CELL_FRAMES
    high = low + speakers.STEP_FRAMES // speakers.CELL_FRAMES
    middle = voices.sounds[:, low:high].reshape(-1, len(SoundKind))
    parts = [voices.sounds[0, :low], middle, voices.sounds[-1, high:]]
    return (np.concatenate(parts) / np.float32(255)).astype(np.float32)
