"""Who speaks when, from voice vectors over a whole track. Pure.

Agglomerative clustering (average linkage, cosine distance) of windows of speech,
then each window to the nearest voice, with a penalty on changing voices. Where the
evidence for several voices is weak the answer is one: a wrong turn disturbs a
reader more than a missing one. Whoever knows how many speak can say so; then it is
that many, whatever the evidence, as long as there are windows that differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform

from pipelines.types import Speaker, TranscriptWord

Curve = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.floating]
"""Unit vectors, shape (windows, dimensions)."""
Labels = npt.NDArray[np.intp]
Clusters = npt.NDArray[np.int32]

TimeSpan = tuple[float, float]
"""Start and end in seconds of the track."""


_SAME_VOICE = 1e-6
"""Cosine distance below which two windows differ by rounding only."""


@dataclass(frozen=True, slots=True)
class SpeakerRules:
    """How voices are told apart. The distance suits the embedder: calibrate it with one."""

    enabled: bool = True
    expected: int | None = None
    """How many voices there are, where somebody knows; then thresholds do not decide."""
    distance: float = 0.12
    """Mean cosine distance from which two clusters are two voices. Measured with the
    embedded embedder: within one voice 0.055 (95th percentile 0.126), between voices 0.43
    (5th percentile 0.115)."""
    min_seconds: float = 3.0
    """A voice heard for less in all the exemplars is taken for the one it is nearest to."""
    min_silhouette: float = 0.3
    """Several voices are believed only from this mean silhouette (Rousseeuw 1987: below
    0.25 there is no structure; one voice cut in two shows 0.1, two voices 0.4 to 0.9)."""
    switch_penalty: float = 0.02
    """Cosine distance that a change of voice between neighbouring windows must win."""
    max_voices: int = 8
    """The most that are believed in without being expected."""
    max_exemplars: int = 1500
    """Windows that are clustered; the others join the nearest voice. Bounds memory
    (9 MB of distances) and time (under a second) for tracks of any length."""


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """Cutting of speech into windows that are embedded. Seconds."""

    pause_seconds: float = 0.35
    """A pause from which on another may have taken over."""
    min_seconds: float = 1.5
    """Shorter windows say little about a voice; they are widened into their surroundings."""
    max_seconds: float = 3.5


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
    return _in_order_of_appearance(_path_with_every_voice(distances, rules.switch_penalty))


def _path_with_every_voice(distances: Curve, penalty: float) -> Labels:
    """As smooth as it can be without losing a voice that is known to be there."""
    path = _smooth_path(distances, penalty)
    for eased in (penalty / 4, 0.0):
        if len(np.unique(path)) == distances.shape[1]:
            break
        path = _smooth_path(distances, eased)
    return path


def _voices(vectors: Vectors, seconds: Curve, rules: SpeakerRules) -> Curve:
    """Unit centroids of the voices, shape (voices, dimensions); none where they are in doubt."""
    chosen = _exemplars(len(vectors), rules.max_exemplars)
    sample, weights = vectors[chosen].astype(np.float64), seconds[chosen]
    between = pdist(sample, "cosine")
    tree = linkage(between, method="average")
    if rules.expected is not None:
        labels, kept = _expected_voices(tree, weights, rules.expected, rules.min_seconds)
        return _centroids(sample, labels, weights, kept)
    labels = fcluster(tree, rules.distance, criterion="distance")
    # Of the sample, not scaled up to the track: one odd window must not stand for a voice.
    heard = {label: weights[labels == label].sum() for label in np.unique(labels)}
    kept = sorted(heard, key=lambda label: -heard[label])[: rules.max_voices]
    kept = [label for label in kept if heard[label] >= rules.min_seconds]
    if len(kept) < 2 or _silhouette(squareform(between), labels, kept) < rules.min_silhouette:
        return np.empty((0, vectors.shape[1]))
    return _centroids(sample, labels, weights, kept)


def _expected_voices(
    tree: Curve, weights: Curve, expected: int, min_seconds: float
) -> tuple[Clusters, list[int]]:
    """A cluster number a window, and the clusters that are voices: ``expected``, or all there are.

    The coarsest cut that has so many clusters of some length: an odd window, a cough,
    is far from everything and would otherwise take the place of somebody who talks.
    """
    distinct = 1 + int(np.count_nonzero(tree[:, 2] > _SAME_VOICE))
    expected = min(expected, distinct)
    # By rank, not by height: a cut between equal heights is a cut too.
    ranked = tree.copy()
    ranked[:, 2] = np.arange(1, len(tree) + 1)
    for count in range(expected, distinct + 1):
        labels = fcluster(ranked, count, criterion="maxclust")
        heard = np.bincount(labels, weights=weights)
        kept = np.flatnonzero((heard > 0) & (heard >= min_seconds))
        if len(kept) == expected:
            return labels, kept.tolist()
    labels = fcluster(ranked, expected, criterion="maxclust")
    return labels, np.unique(labels).tolist()


def _exemplars(count: int, limit: int) -> npt.NDArray[np.intp]:
    """Indices of at most ``limit`` windows, evenly over the track."""
    return np.unique(np.linspace(0, count - 1, min(count, limit)).round().astype(np.intp))


def _centroids(
    vectors: Curve,
    labels: Clusters,
    weights: Curve,
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
