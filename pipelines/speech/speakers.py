"""Speakers of a track: voice vectors of windows of speech, clustered over the whole track.

Agglomerative clustering (complete linkage, cosine distance) of windows into as many voices as have
the best mean silhouette, then each window to the nearest voice, with a penalty on changing voices.
Where the evidence for several voices is weak the answer is one: a wrong turn disturbs a reader more
than a missing one. A request may state the number of speakers; then it is that many as long as
there are windows that differ. Overlapping speech is not modelled: every word has one speaker.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform

from models.contracts import SAMPLE_RATE_HZ, Samples
from models.provider import ModelProvider
from models.tasks import EMBED_VOICE, SpeakerEmbedder
from pipelines.artifacts import Artifact
from pipelines.execution.chain import Step, Workspace
from pipelines.speech.regions import Chunk
from pipelines.speech.transcribe import WORDS, ChunkWords, ShardTask, shard_samples
from pipelines.types import Speaker, StageCode, TranscriptWord

Curve = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.floating]
"""Unit vectors, shape (windows, dimensions)."""
Labels = npt.NDArray[np.intp]
Clusters = npt.NDArray[np.int32]

Cut = tuple[Clusters, list[int]]
"""A cluster number a window, and the clusters that are voices."""

TimeSpan = tuple[float, float]
"""Start and end in seconds of the track."""


_SAME_VOICE = 1e-6
"""Cosine distance below which two windows differ by rounding only."""


@dataclass(frozen=True, slots=True)
class SpeakerRules:
    """How voices are distinguished. No distance among them, so they suit any embedder.

    Chosen on half of the recordings of tests/benchmarks/transcript.py, and on five readers, each
    one voice, and pairs of them. A fixed distance (average linkage, 0.2) gave a DER of 0.23, not
    0.25, on three of that half, and took readers for several voices.
    """

    enabled: bool = True
    expected: int | None = None
    """How many voices there are, where somebody knows; then thresholds do not decide."""
    min_seconds: float = 3.5
    """A voice with less in all the exemplars is taken for the one it is nearest to. With 3 s a
    reader of 11 s was two voices; 3.3 to 4 s gave the same DER."""
    min_silhouette: float = 0.25
    """Several voices are assumed only from this mean silhouette (Rousseeuw 1987: below it there
    is no structure). Single readers cut in parts showed at most 0.16, pairs of readers 0.49 to
    0.61."""
    switch_penalty: float = 0.05
    """Cosine distance that a change of voice between neighbouring windows must win."""
    max_voices: int = 8
    """The most that are believed in without being expected."""
    max_exemplars: int = 1500
    """Windows that are clustered; the others join the nearest voice. Bounds memory
    (9 MB of distances) and time (under a second) for tracks of any length."""


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """Cutting of speech into windows that are embedded. Seconds."""

    pause_seconds: float = 0.25
    """A pause from which on another may have taken over."""
    min_seconds: float = 1.0
    """Shorter windows show little of a voice; they are widened into their surroundings."""
    max_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class VoiceWindow:
    """Samples to embed, in seconds, and how many consecutive words they speak for."""

    start_seconds: float
    end_seconds: float
    word_count: int


def voice_windows(
    words: Sequence[TimeSpan], span: TimeSpan, limits: WindowLimits
) -> list[VoiceWindow]:
    """Windows over the words of one chunk, in order, inside ``span``; every word in one.

    A window crosses a pause only where it must to reach ``min_seconds``.
    """
    windows: list[VoiceWindow] = []
    for run in _utterances(words, limits.pause_seconds):
        for group in _split_run(run, limits.max_seconds):
            start, end = _widened((group[0][0], group[-1][1]), span, limits.min_seconds)
            windows.append(VoiceWindow(start, end, len(group)))
    return windows


def _utterances(words: Sequence[TimeSpan], pause_seconds: float) -> list[list[TimeSpan]]:
    runs: list[list[TimeSpan]] = []
    for word in words:
        if runs and word[0] - runs[-1][-1][1] <= pause_seconds:
            runs[-1].append(word)
        else:
            runs.append([word])
    return runs


def _split_run(run: Sequence[TimeSpan], max_seconds: float) -> list[list[TimeSpan]]:
    """The run in equal parts of about ``max_seconds`` or less, cut between words."""
    start, length = run[0][0], run[-1][1] - run[0][0]
    count = max(1, math.ceil(length / max_seconds))
    parts: dict[int, list[TimeSpan]] = {}
    for word in run:
        middle = (word[0] + word[1]) / 2 - start
        part = min(count - 1, int(count * middle / length)) if length > 0 else 0
        parts.setdefault(part, []).append(word)
    return list(parts.values())


def _widened(window: TimeSpan, span: TimeSpan, min_seconds: float) -> TimeSpan:
    start, end = window
    missing = min_seconds - (end - start)
    if missing <= 0:
        return window
    start = max(span[0], start - missing / 2)
    end = min(span[1], start + min_seconds)
    return max(span[0], min(start, end - min_seconds)), end


def assign_voices(seconds: Curve, vectors: Vectors, rules: SpeakerRules) -> Labels:
    """A voice number a window, from 0 in order of first appearance; all 0 where in doubt.

    ``seconds`` is how long each window is; windows are in time order.
    """
    count = len(seconds)
    everyone = np.zeros(count, dtype=np.intp)
    if not rules.enabled or count < 2 or rules.expected == 1:
        return everyone
    centres = _voices(vectors, seconds, rules)
    if len(centres) < 2:
        return everyone
    distances = 1.0 - vectors.astype(np.float64) @ centres.T
    if rules.expected is None:
        return _in_order_of_appearance(_smooth_path(distances, rules.switch_penalty))
    # As smooth as it can be without losing a voice that is known to be there.
    for penalty in (rules.switch_penalty, rules.switch_penalty / 4, 0.0):
        path = _smooth_path(distances, penalty)
        if len(np.unique(path)) == distances.shape[1]:
            break
    return _in_order_of_appearance(path)


def _voices(vectors: Vectors, seconds: Curve, rules: SpeakerRules) -> Curve:
    """Unit centroids of the voices, shape (voices, dimensions); none where they are in doubt."""
    # At most so many windows, evenly over the track.
    spread = np.linspace(0, len(vectors) - 1, min(len(vectors), rules.max_exemplars))
    chosen = np.unique(spread.round().astype(np.intp))
    sample, weights = vectors[chosen].astype(np.float64), seconds[chosen]
    between = pdist(sample, "cosine")
    tree = linkage(between, method="complete")
    if rules.expected is not None:
        return _centroids(sample, weights, *_expected_cut(tree, weights, rules))
    square, best, found = squareform(between), rules.min_silhouette, None
    for count, cut in _cuts(tree, weights, rules.max_voices, rules.min_seconds).items():
        if count >= 2 and (silhouette := _silhouette(square, *cut)) >= best:
            best, found = silhouette, cut
    return np.empty((0, vectors.shape[1])) if found is None else _centroids(sample, weights, *found)


def _expected_cut(tree: Curve, weights: Curve, rules: SpeakerRules) -> Cut:
    """A cluster a voice, ``rules.expected`` of them or as many as there are different windows."""
    expected = min(rules.expected or 1, _distinct(tree))
    found = _cuts(tree, weights, expected, rules.min_seconds).get(expected)
    if found is not None:
        return found
    labels = fcluster(_ranked(tree), expected, criterion="maxclust")
    return labels, np.unique(labels).tolist()


def _cuts(tree: Curve, weights: Curve, most: int, min_seconds: float) -> dict[int, Cut]:
    """Number of voices, up to ``most`` -> the coarsest cut with so many clusters of some length.

    Shorter clusters are no voices: an odd window, a cough, is far from everything and would
    otherwise take the place of somebody who talks.
    """
    ranked = _ranked(tree)
    cuts: dict[int, Cut] = {}
    for count in range(2, _distinct(tree) + 1):
        labels = fcluster(ranked, count, criterion="maxclust")
        seconds = np.bincount(labels, weights=weights)
        kept = np.flatnonzero((seconds > 0) & (seconds >= min_seconds))
        if len(kept) <= most:
            cuts.setdefault(len(kept), (labels, kept.tolist()))
        if most in cuts:
            break
    return cuts


def _distinct(tree: Curve) -> int:
    """How many windows differ by more than rounding."""
    return 1 + int(np.count_nonzero(tree[:, 2] > _SAME_VOICE))


def _ranked(tree: Curve) -> Curve:
    """The tree with ranks for heights: a cut between equal heights is a cut too."""
    ranked = tree.copy()
    ranked[:, 2] = np.arange(1, len(tree) + 1)
    return ranked


def _centroids(
    vectors: Curve,
    weights: Curve,
    labels: Clusters,
    kept: Sequence[int],
) -> Curve:
    rows = [
        (vectors[labels == label] * weights[labels == label, None]).sum(axis=0) for label in kept
    ]
    centres = np.array(rows).reshape(len(kept), vectors.shape[1])
    unit: Curve = centres / np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    return unit


def _silhouette(between: Curve, labels: Clusters, kept: Sequence[int]) -> float:
    """Mean over the windows of the kept voices: 1 far apart, 0 no structure."""
    inside = np.flatnonzero(np.isin(labels, kept))
    members = (labels[inside, None] == np.array(kept)[None, :]).astype(np.float64)
    sums = between[np.ix_(inside, inside)] @ members
    own = members.astype(bool)
    counts = members.sum(axis=0)
    to_own = sums[own] / np.maximum(counts - 1, 1)[own.argmax(axis=1)]
    to_next = np.where(own, np.inf, sums / counts).min(axis=1)
    return float(np.mean((to_next - to_own) / np.maximum(np.maximum(to_own, to_next), 1e-9)))


def _smooth_path(distances: Curve, penalty: float) -> Labels:
    """The cheapest sequence of voices (Viterbi), a change costing ``penalty``."""
    count, voices = distances.shape
    cost = distances[0].copy()
    came_from = np.zeros((count, voices), dtype=np.intp)
    stay = np.arange(voices)
    for i in range(1, count):
        cheapest = int(np.argmin(cost))
        came_from[i] = np.where(cost <= cost[cheapest] + penalty, stay, cheapest)
        cost = cost[came_from[i]] + penalty * (came_from[i] != stay) + distances[i]
    path = np.empty(count, dtype=np.intp)
    path[-1] = int(np.argmin(cost))
    for i in range(count - 1, 0, -1):
        path[i - 1] = came_from[i, path[i]]
    return path


def _in_order_of_appearance(labels: Labels) -> Labels:
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.intp)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def name_speakers(
    words: Sequence[TranscriptWord],
) -> tuple[list[TranscriptWord], tuple[Speaker, ...]]:
    """The words with their speakers renamed ``speaker_0``… by first appearance, and who speaks."""
    seconds: dict[str, float] = {}
    for word in words:
        if word.speaker is not None:
            spoken = (word.end_ms - word.start_ms) / 1000
            seconds[word.speaker] = seconds.get(word.speaker, 0.0) + spoken
    ids = {name: f"speaker_{number}" for number, name in enumerate(seconds)}
    renamed = [replace(word, speaker=ids.get(word.speaker or "")) for word in words]
    speakers = tuple(
        Speaker(ids[name], f"Speaker {number}", round(spoken, 3))
        for number, (name, spoken) in enumerate(seconds.items(), start=1)
    )
    return renamed, speakers


@dataclass(frozen=True, slots=True)
class ShardVoices:
    """Windows of a shard in time order: seconds and words of each, and their vectors."""

    seconds: npt.NDArray[np.float64]
    word_counts: npt.NDArray[np.int64]
    vectors: Vectors

    def to_npz(self) -> bytes:
        stream = io.BytesIO()
        np.savez(stream, seconds=self.seconds, word_counts=self.word_counts, vectors=self.vectors)
        return stream.getvalue()

    @staticmethod
    def from_npz(data: bytes) -> ShardVoices:
        with np.load(io.BytesIO(data)) as arrays:
            return ShardVoices(arrays["seconds"], arrays["word_counts"], arrays["vectors"])


@dataclass(frozen=True)
class EmbedVoices(Step[ShardTask, ShardTask]):
    """A transcribed shard to itself, its voices (VOICES) stored unless they are there."""

    name = "Voice embedding"
    code = StageCode.TRANSCRIPT_FAILED
    version = 1
    workspace: Workspace
    models: ModelProvider
    limits: WindowLimits

    def process(self, task: ShardTask) -> ShardTask:
        VOICES.make(self.workspace.store, task.voices_key, lambda: self._voices(task))
        return task

    def _voices(self, task: ShardTask) -> ShardVoices:
        store, chunks = self.workspace.store, task.shard.chunks
        words = WORDS.load(store, task.words_key)
        if not any(each.words for each in words):
            return join_voices([])
        embedder = self.models.get(EMBED_VOICE)
        found: list[ShardVoices] = []
        with store.local_copy(task.shard.audio_key) as path:
            for chunk, said, samples in zip(
                chunks, words, shard_samples(chunks, path), strict=True
            ):
                self.workspace.check()
                if said.words:
                    found.append(_embedded(chunk, said, samples, embedder, self.limits))
        return join_voices(found)


VOICES = Artifact(
    "transcript/voices",
    EmbedVoices.version,
    to_bytes=ShardVoices.to_npz,
    from_bytes=ShardVoices.from_npz,
    ending=".npz",
)


def join_voices(parts: Sequence[ShardVoices]) -> ShardVoices:
    """The windows of all parts, in order."""
    parts = [part for part in parts if len(part.seconds)]
    if not parts:
        return ShardVoices(np.empty(0), np.empty(0, np.int64), np.empty((0, 1), np.float32))
    return ShardVoices(
        np.concatenate([part.seconds for part in parts]),
        np.concatenate([part.word_counts for part in parts]),
        np.concatenate([part.vectors for part in parts]),
    )


def _embedded(
    chunk: Chunk,
    said: ChunkWords,
    samples: Samples,
    embedder: SpeakerEmbedder,
    limits: WindowLimits,
) -> ShardVoices:
    spans = [(word.start_seconds, word.end_seconds) for word in said.words]
    windows = voice_windows(spans, (chunk.start_seconds, chunk.end_seconds), limits)
    pieces = []
    for window in windows:
        start = round((window.start_seconds - chunk.start_seconds) * SAMPLE_RATE_HZ)
        end = round((window.end_seconds - chunk.start_seconds) * SAMPLE_RATE_HZ)
        pieces.append(samples[max(0, start) : end])
    return ShardVoices(
        np.array([window.end_seconds - window.start_seconds for window in windows]),
        np.array([window.word_count for window in windows], np.int64),
        embedder.embed(pieces),
    )
