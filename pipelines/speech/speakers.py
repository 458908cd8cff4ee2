"""Speakers of a track: local voices of windows, clustered over the whole track.

The design of pyannote.audio's pipeline (Bredin 2023): local speakers of overlapping windows,
agglomerative clustering (average linkage, cosine distance) of where they speak alone, then each is
the nearest of the voices. Several who take short turns are one local speaker at times: pieces of a
second are embedded too, and one whose pieces are far apart is parted before the clustering. A voice
needs evidence: too little of it is given to the nearest. A request may state how many speakers
there are, or at most are.

Windows of ten seconds lie on one grid over the whole track, so that neither sharding nor a retry
changes what is found in them. Neighbours overlap by half; of each the middle counts, so that every
frame is judged with context on both sides.
"""

from __future__ import annotations

import bisect
import io
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
import scipy

from models import contracts
from models.provider import ModelProvider
from models.tasks import DETECT_SOUNDS, EMBED_VOICE, SEGMENT_SPEAKERS, SoundDetector
from pipelines import types
from pipelines.codec import Artifact
from pipelines.execution.chain import Step, Workspace
from pipelines.media.audio import SampleReader, read_blocks
from pipelines.speech.words import to_ms

STEP_FRAMES = 296
"""From one window to the next: half a window, in whole frames. Half of it (148) gave the same
diarisation errors for twice the time."""
STEP_SAMPLES = STEP_FRAMES * contracts.ACTIVITY_FRAME_SAMPLES
FRAME_SECONDS = contracts.ACTIVITY_FRAME_SAMPLES / contracts.SAMPLE_RATE_HZ
BEGIN_SECONDS = contracts.ACTIVITY_START_SAMPLES / contracts.SAMPLE_RATE_HZ
"""Of a window's first frame."""
MARGIN_FRAMES = (contracts.ACTIVITY_FRAMES - STEP_FRAMES) // 2
"""At each end of a window the neighbour decides, where there is one."""
CELL_FRAMES = 8
"""Frames of one probability of sounds: 0.135 s, of which a step has whole ones (37)."""
_CELLS = contracts.ACTIVITY_FRAMES // CELL_FRAMES
_BATCH_WINDOWS = 8
"""Windows a call: enough to fill a batch, few enough to notice a stop."""
_WINDOWS_A_SHARD = 24
_MOST_SHARDS = 32
"""Each may fetch the whole track from the object store."""
_ENOUGH_ALONE_SECONDS = 0.4
"""From it on a voice is embedded by what it speaks alone, below by all that it speaks."""

_PIECE_SECONDS, _SHORTEST_PIECE_SECONDS = 1.0, 0.6
_ONE_VOICE_DISTANCE = 0.7
"""Cosine distance of pieces, in the mean over all pairs, up to which they are one voice. Of those
of one reader 19 in 20 were up to 0.65 apart, of two people 19 in 20 from 0.77 on."""
_SHORTEST_PART_SECONDS = 0.6
"""Less of another voice is none: its vectors vary most."""
_PARTED_SPEAKERS = 6
"""The most of a window, parted ones included."""

Activity = npt.NDArray[np.bool_]
"""Shape (windows, ACTIVITY_FRAMES, _PARTED_SPEAKERS): who speaks, by the window's own numbers."""


@dataclass(frozen=True, slots=True)
class LocalVoices:
    """Windows of a track in order; 24 hours take 115 MB."""

    speaking: Activity
    vectors: npt.NDArray[np.float16]
    """Of unit length, shape (windows, _PARTED_SPEAKERS, dimensions); zeros of who does not
    speak."""
    sounds: npt.NDArray[np.uint8]
    """Probabilities of the kinds of SoundKind in 255ths, shape (windows, cells, kinds)."""
    speech: npt.NDArray[np.uint8]
    """Probability that anybody speaks in 255ths, shape (windows, ACTIVITY_FRAMES)."""

    def to_npz(self) -> bytes:
        stream = io.BytesIO()
        bits, vectors = np.packbits(self.speaking), self.vectors
        np.savez_compressed(
            stream, speaking=bits, vectors=vectors, sounds=self.sounds, speech=self.speech
        )
        return stream.getvalue()

    @staticmethod
    def from_npz(data: bytes) -> LocalVoices:
        with np.load(io.BytesIO(data)) as arrays:
            vectors = arrays["vectors"]
            shape = len(vectors), contracts.ACTIVITY_FRAMES, vectors.shape[1]
            bits = np.unpackbits(arrays["speaking"], count=math.prod(shape))
            speaking = bits.reshape(shape).astype(np.bool_)
            return LocalVoices(speaking, vectors, arrays["sounds"], arrays["speech"])


def join_voices(parts: Sequence[LocalVoices]) -> LocalVoices:
    """Return the windows of all parts, in order."""
    names = [each.name for each in fields(LocalVoices)]
    return LocalVoices(*(np.concatenate([getattr(it, name) for it in parts]) for name in names))


def speech_activity(parts: Iterable[LocalVoices]) -> contracts.Probabilities:
    """Return the probability that anybody speaks in each frame of a track; where two windows
    overlap, their mean."""
    curves = np.concatenate([part.speech for part in parts])
    total = np.zeros(STEP_FRAMES * (len(curves) - 1) + contracts.ACTIVITY_FRAMES, np.float32)
    windows = np.zeros_like(total)
    for number, curve in enumerate(curves):
        total[number * STEP_FRAMES :][: contracts.ACTIVITY_FRAMES] += curve
        windows[number * STEP_FRAMES :][: contracts.ACTIVITY_FRAMES] += 255
    return total / windows


@dataclass(frozen=True, slots=True)
class VoiceShard:
    """Windows of a track that one task looks at, and where what is found is stored."""

    audio_key: str
    first_window: int
    windows: int
    voices_key: str


@dataclass(frozen=True)
class EmbedVoices(Step[VoiceShard, VoiceShard]):
    """A shard to itself, its voices (VOICES) stored unless they are there."""

    name = "Voice embedding"
    code = types.StageCode.TRANSCRIPT_FAILED
    version = 5
    workspace: Workspace
    models: ModelProvider

    def process(self, shard: VoiceShard) -> VoiceShard:
        VOICES.make(self.workspace.store, shard.voices_key, lambda: self._voices(shard))
        return shard

    def _voices(self, shard: VoiceShard) -> LocalVoices:
        store, check = self.workspace.store, self.workspace.check
        found = []
        with store.local_copy(shard.audio_key, check=check) as path:
            reader = SampleReader(read_blocks(path, shard.first_window * STEP_SAMPLES))
            for first in range(0, shard.windows, _BATCH_WINDOWS):
                check()
                numbers = range(first, min(first + _BATCH_WINDOWS, shard.windows))
                starts = [number * STEP_SAMPLES for number in numbers]
                windows = [reader.read(at, at + contracts.ACTIVITY_WINDOW_SAMPLES) for at in starts]
                found.append(embedded(windows, self.models))
        return join_voices(found)


VOICES = Artifact(
    "transcript/voices",
    EmbedVoices.version,
    to_bytes=LocalVoices.to_npz,
    from_bytes=LocalVoices.from_npz,
    ending=".npz",
)


def plan_voice_shards(
    track: types.AudioTrack, workspace: Workspace, models_digest: str
) -> list[VoiceShard]:
    """Shards in order that cover the track; ``models_digest`` names the backends in use."""
    inputs = track.key, workspace.store.size_bytes(track.key), models_digest
    count = windows_of(track.duration_seconds * contracts.SAMPLE_RATE_HZ)
    size = max(_WINDOWS_A_SHARD, math.ceil(count / _MOST_SHARDS))
    shards = []
    for first in range(0, count, size):
        windows = min(size, count - first)
        key = VOICES.key(workspace.prefix, *inputs, windows, position=first)
        shards.append(VoiceShard(track.key, first, windows, key))
    return shards


def windows_of(samples: float) -> int:
    """Return how many windows cover so many samples."""
    return 1 + max(0, math.ceil((samples - contracts.ACTIVITY_WINDOW_SAMPLES) / STEP_SAMPLES))


def embedded(windows: Sequence[contracts.Samples], models: ModelProvider) -> LocalVoices:
    """Return who speaks in each window, and a vector of each of them."""
    activity = models.get(SEGMENT_SPEAKERS).segment(windows)
    found = np.stack([each.speaking for each in activity])
    speech = (255 * np.stack([each.speech for each in activity])).round().astype(np.uint8)
    spoken = np.argwhere(found.any(axis=1)).tolist()
    # The last window of a track may be shorter than its frames.
    lengths = [len(_framed(window)) // contracts.ACTIVITY_FRAME_SAMPLES for window in windows]
    pieces = [
        (at, local, span)
        for at, local in spoken
        for span in _pieces(found[at, : lengths[at]], local)
    ]
    utterances = [_utterance(windows[at], found[at], local) for at, local in spoken]
    utterances += [
        _framed(windows[at])[
            first * contracts.ACTIVITY_FRAME_SAMPLES : end * contracts.ACTIVITY_FRAME_SAMPLES
        ]
        for at, _, (first, end) in pieces
    ]
    embeddings = models.get(EMBED_VOICE).embed(utterances)
    speaking = np.zeros((len(windows), contracts.ACTIVITY_FRAMES, _PARTED_SPEAKERS), np.bool_)
    vectors = np.zeros((len(windows), _PARTED_SPEAKERS, embeddings.shape[1]), np.float16)
    used = [0] * len(windows)
    for number, (at, local) in enumerate(spoken):
        own = [n for n, each in enumerate(pieces, start=len(spoken)) if each[:2] == (at, local)]
        spans = [pieces[n - len(spoken)][2] for n in own]
        waiting = sum(1 for other, _ in spoken[number + 1 :] if other == at)
        room = _PARTED_SPEAKERS - used[at] - waiting
        whole = [(found[at, :, local], embeddings[number])]
        for frames, vector in _parted(found[at, :, local], spans, embeddings[own], room) or whole:
            speaking[at, :, used[at]], vectors[at, used[at]] = frames, vector
            used[at] += 1
    return LocalVoices(speaking, vectors, _sounds(windows, models.get(DETECT_SOUNDS)), speech)


def _pieces(speaking: Activity, local: int) -> list[tuple[int, int]]:
    """Return frames of what a local speaker speaks alone in pieces of about a second, those that
    are long enough; none of a single one, which cannot be parted from others. ``speaking`` has
    shape (frames, LOCAL_SPEAKERS)."""
    alone = speaking[:, local] & (speaking.sum(axis=1) == 1)
    found: list[tuple[int, int]] = []
    for first, end in runs_in(alone):
        count = max(1, round((end - first) * FRAME_SECONDS / _PIECE_SECONDS))
        cuts = np.linspace(first, end, count + 1).round().astype(int).tolist()
        found += itertools.pairwise(cuts)
    found = [it for it in found if (it[1] - it[0]) * FRAME_SECONDS >= _SHORTEST_PIECE_SECONDS]
    return found if len(found) > 1 else []


def _parted(
    active: npt.NDArray[np.bool_],
    spans: Sequence[tuple[int, int]],
    vectors: npt.NDArray[np.float32],
    most: int,
) -> list[tuple[npt.NDArray[np.bool_], Curve]]:
    """Return the voices of what was found as one speaker, frames and a vector of each; none where
    they are one. ``vectors`` are those of the pieces at ``spans``; ``active`` frames between are of
    the nearest piece."""
    if len(spans) < 2 or most < 2:
        return []
    tree = scipy.cluster.hierarchy.linkage(vectors, "average", "cosine")
    clusters = scipy.cluster.hierarchy.fcluster(tree, _ONE_VOICE_DISTANCE, "distance")
    firsts, ends = np.array(spans).T
    lengths = np.bincount(clusters, ends - firsts)
    kept = np.argsort(-lengths, kind="stable")[:most]
    kept = kept[lengths[kept] * FRAME_SECONDS >= _SHORTEST_PART_SECONDS]
    if len(kept) < 2:
        return []
    frames = np.arange(len(active))[:, None]
    away = np.maximum(firsts - frames, frames - ends + 1).clip(0).astype(np.float64)
    away[:, ~np.isin(clusters, kept)] = np.inf
    owners = clusters[away.argmin(axis=1)]
    found = []
    for each in kept.tolist():
        inside = clusters == each
        total = (vectors[inside] * (ends - firsts)[inside, None]).sum(axis=0)
        found.append((active & (owners == each), total / np.linalg.norm(total)))
    return found


def _sounds(windows: Sequence[contracts.Samples], detector: SoundDetector) -> npt.NDArray[np.uint8]:
    """Of consecutive windows, taken as one piece: what lies outside the middle of the first and of
    the last lacks the sound before and after."""
    beyond = contracts.ACTIVITY_WINDOW_SAMPLES - STEP_SAMPLES
    whole = np.concatenate([windows[0], *(window[beyond:] for window in windows[1:])])
    probabilities = detector.find_sounds(whole)
    cell_samples = CELL_FRAMES * contracts.ACTIVITY_FRAME_SAMPLES
    width = cell_samples // contracts.SOUND_FRAME_SAMPLES
    padded = np.pad(probabilities, ((0, max(0, width - len(probabilities))), (0, 0)))
    means = scipy.ndimage.uniform_filter1d(padded, width, axis=0, mode="nearest")
    middles = contracts.ACTIVITY_START_SAMPLES + cell_samples * (np.arange(_CELLS) + 0.5)
    middles = middles + STEP_SAMPLES * np.arange(len(windows))[:, None]
    frames = (middles / contracts.SOUND_FRAME_SAMPLES - 1.25).round().astype(np.intp)
    inside = (frames < len(probabilities))[:, :, None]
    chosen = means[frames.clip(0, len(means) - 1)] * inside
    in_255ths: npt.NDArray[np.uint8] = (255 * chosen).round().astype(np.uint8)
    return in_255ths


def _utterance(
    window: contracts.Samples, speaking: npt.NDArray[np.bool_], local: int
) -> contracts.Samples:
    """Return what a local speaker speaks alone, end to end; all of it where that is too little."""
    frames = speaking[:, local] & (speaking.sum(axis=1) == 1)
    if np.count_nonzero(frames) * FRAME_SECONDS < _ENOUGH_ALONE_SECONDS:
        frames = speaking[:, local]
    chosen = np.repeat(frames, contracts.ACTIVITY_FRAME_SAMPLES)
    framed = _framed(window)
    utterance: contracts.Samples = framed[chosen[: len(framed)]]
    return utterance


def _framed(window: contracts.Samples) -> contracts.Samples:
    """Return the samples of the window's frames, end to end."""
    return window[contracts.ACTIVITY_START_SAMPLES :][
        : contracts.ACTIVITY_FRAMES * contracts.ACTIVITY_FRAME_SAMPLES
    ]


Curve = npt.NDArray[np.float64]
Clusters = npt.NDArray[np.int32]

MAX_SPEAKERS = 20
"""The most that are believed in, and that a request may state."""
_SHORTEST_TURN_SECONDS = 0.1
"""Gaps that are shorter are part of a turn: closures of stops last 50 to 80 ms."""


@dataclass(frozen=True, slots=True)
class SpeakerRules:
    """How voices are distinguished.

    By ``benchmarks/speakers.py``: on the half that was tuned on, and on the other, distances
    from 0.5 to 0.6 and evidence from 1.5 to 3 s give the same errors.
    """

    expected: int | None = None
    """How many voices there are, where somebody knows; then distances do not decide."""
    at_most: int = MAX_SPEAKERS
    max_distance: float = 0.55
    """Cosine distance, in the mean over all pairs, up to which clusters are one voice."""
    min_alone_seconds: float = 0.5
    """A local speaker who speaks less alone is no exemplar."""
    min_voice_seconds: float = 2.0
    """A voice that speaks less alone in the exemplars is taken for the one that is nearest."""
    min_far_voice_seconds: float = 1.2
    far_distance: float = 0.7
    """But one that speaks so long counts where it is so far from all others: who only replies. Of
    the half that is tuned on, 1.35 s of the only other voice's at 0.60 were none; of 30 readers
    none has half a second that is farther than ``max_distance`` from the rest."""
    max_exemplars: int = 1500
    """Local speakers that are clustered, evenly over the track. Bounds memory (9 MB of distances)
    and time (under a second); in a day a voice needs a minute to be found."""


@dataclass(frozen=True, slots=True)
class VoiceTurn:
    """Somebody speaks, in seconds of the track; voices are numbered from 0."""

    voice: int
    start_seconds: float
    end_seconds: float


def find_turns(voices: LocalVoices, centroids: Curve) -> list[VoiceTurn]:
    """Return who speaks when over the whole track, by start; turns of different voices may overlap.

    ``centroids`` are those of ``find_voices``.
    """
    if not len(centroids):
        return []
    # The nearest voice of each; two of a window may be one, which was parted.
    spoken: npt.NDArray[np.bool_] = np.any(voices.speaking, axis=1)
    nearness = voices.vectors.astype(np.float32) @ centroids.T.astype(np.float32)
    owners = np.where(spoken, nearness.argmax(axis=2), -1)
    least = _SHORTEST_TURN_SECONDS / FRAME_SECONDS
    turns = [
        VoiceTurn(voice, *(BEGIN_SECONDS + each * FRAME_SECONDS for each in run))
        for voice in range(len(centroids))
        for run in runs_in(_activity(voices, owners == voice), least)
    ]
    return sorted(turns, key=lambda turn: (turn.start_seconds, turn.end_seconds))


def find_voices(voices: LocalVoices, rules: SpeakerRules) -> Curve:
    """Unit centroids, shape (voices, dimensions); none where nobody speaks."""
    alone = voices.speaking & (voices.speaking.sum(axis=2, keepdims=True) == 1)
    seconds = alone.sum(axis=1) * FRAME_SECONDS
    chosen = np.argwhere(seconds >= rules.min_alone_seconds)
    if len(chosen) < (rules.expected or 1):
        chosen = np.argwhere(voices.speaking.any(axis=1))
    if not len(chosen):
        return np.empty((0, voices.vectors.shape[2]))
    spread = np.linspace(0, len(chosen) - 1, min(len(chosen), rules.max_exemplars))
    chosen = chosen[np.unique(spread.round().astype(np.intp))]
    vectors = voices.vectors[chosen[:, 0], chosen[:, 1]].astype(np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    # Frames of the track, so that what two windows see is counted once.
    frames = [
        window * STEP_FRAMES + np.flatnonzero(alone[window, :, local]) for window, local in chosen
    ]
    clusters, kept = _clusters(vectors, frames, rules)
    weights = np.maximum(seconds[chosen[:, 0], chosen[:, 1]], FRAME_SECONDS)[:, None]
    sums = [(vectors * weights)[clusters == each].sum(axis=0) for each in kept]
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    centroids: Curve = np.array(sums) / np.maximum(lengths, 1e-12)
    return centroids


def _clusters(
    vectors: Curve, frames: Sequence[npt.NDArray[np.intp]], rules: SpeakerRules
) -> tuple[Clusters, list[int]]:
    """Return a cluster number an exemplar, and the clusters that are voices."""
    count = len(vectors)
    if count == 1:
        return np.ones(1, np.int32), [1]
    tree = scipy.cluster.hierarchy.linkage(vectors, "average", "cosine")

    def voices_in(clusters: Clusters) -> list[int]:
        """Return those with evidence enough; the one with most where none has."""
        seconds = {
            int(each): len(np.unique(np.concatenate([frames[i] for i in members.tolist()])))
            * FRAME_SECONDS
            for each in np.unique(clusters)
            if len(members := np.flatnonzero(clusters == each))
        }
        kept: list[int] = []
        for each in sorted(seconds, key=lambda each: -seconds[each]):
            far = seconds[each] >= rules.min_far_voice_seconds and all(
                1 - np.mean(vectors[clusters == each] @ vectors[clusters == other].T)
                >= rules.far_distance
                for other in kept
            )
            if not kept or far or seconds[each] >= rules.min_voice_seconds:
                kept.append(each)
        return sorted(kept)

    if rules.expected is None:
        clusters = scipy.cluster.hierarchy.fcluster(tree, rules.max_distance, "distance")
        kept = voices_in(clusters)
        if len(kept) <= rules.at_most:
            return clusters, kept
    number = min(rules.expected or rules.at_most, count)
    # Ranks for heights: a cut between equal heights is a cut too.
    tree[:, 2] = np.arange(1, count)
    for more in range(number, min(count, 4 * number) + 1):
        clusters = scipy.cluster.hierarchy.fcluster(tree, more, "maxclust")
        kept = voices_in(clusters)
        if len(kept) == number:
            return clusters, kept
    clusters = scipy.cluster.hierarchy.fcluster(tree, number, "maxclust")
    return clusters, np.unique(clusters).tolist()


def _activity(voices: LocalVoices, owned: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return frames of the track in which a voice speaks, which owns these local speakers."""
    last = len(owned) - 1
    active = np.zeros(last * STEP_FRAMES + contracts.ACTIVITY_FRAMES, np.bool_)
    for window in np.flatnonzero(owned.any(axis=1)):
        low = MARGIN_FRAMES if window > 0 else 0
        high = MARGIN_FRAMES + STEP_FRAMES if window < last else contracts.ACTIVITY_FRAMES
        middle = voices.speaking[window, low:high] & owned[window]
        active[window * STEP_FRAMES + low : window * STEP_FRAMES + high] = middle.any(axis=1)
    return active


def runs_in(present: npt.NDArray[np.bool_], least: float = 0.0) -> list[tuple[int, int]]:
    """Return the first frame and the one after the last of each run; shorter gaps than ``least``
    are part of one, and shorter runs are none."""
    edges = np.flatnonzero(np.diff(np.pad(present, 1)))
    gaps = edges[1:-1].reshape(-1, 2)
    gaps = gaps[np.diff(gaps)[:, 0] >= least]
    runs = np.concatenate([edges[:1], gaps.ravel(), edges[-1:]]).reshape(-1, 2).tolist()
    return [(first, end) for first, end in runs if end - first >= least]


def place_turns(
    turns: Sequence[VoiceTurn], track: types.AudioTrack, media_duration_ms: int
) -> list[types.SpeakerTurn]:
    """Return the turns inside the media, by start; speakers have the numbers of their voices."""
    placed = []
    for turn in turns:
        start_ms = max(0, to_ms(turn.start_seconds + track.offset_seconds))
        end_seconds = min(turn.end_seconds, track.duration_seconds) + track.offset_seconds
        end_ms = min(media_duration_ms, to_ms(end_seconds))
        if start_ms < end_ms:
            placed.append(types.SpeakerTurn(str(turn.voice), start_ms, end_ms))
    return sorted(placed, key=lambda turn: (turn.start_ms, turn.end_ms))


@dataclass(frozen=True, slots=True)
class Attribution:
    """Who speaks: words each with a speaker, turns, and the speakers by first appearance."""

    words: list[types.TranscriptWord]
    turns: tuple[types.SpeakerTurn, ...]
    speakers: tuple[types.Speaker, ...]
    ids: Mapping[str, str]
    """Of speakers, by what the turns named them before."""


def attribute(
    words: Sequence[types.TranscriptWord], turns: Sequence[types.SpeakerTurn]
) -> Attribution:
    """Words, by start, to the speakers of the turns, which are renamed ``speaker_0``…, by their
    first words; behind these whoever has turns without words.

    A word is of whom it shares most time with; of who spoke before where two speak at once, of the
    nearest turn where nobody does. Without turns all words are of one speaker.
    """
    owners = zip(words, _speakers(words, turns), strict=True)
    spoken = [replace(word, speaker=name) for word, name in owners]
    first: dict[str, int] = {}
    milliseconds: dict[str, int] = {}
    for turn in turns or spoken:
        name = turn.speaker or ""
        first[name] = min(first.get(name, turn.start_ms), turn.start_ms)
        milliseconds[name] = milliseconds.get(name, 0) + turn.end_ms - turn.start_ms
    worded: dict[str, int] = {}
    for word in spoken:
        worded.setdefault(word.speaker or "", word.start_ms)
    order = sorted(first, key=lambda name: (worded.get(name, math.inf), first[name]))
    ids = {name: f"speaker_{number}" for number, name in enumerate(order)}
    return Attribution(
        [replace(word, speaker=ids[word.speaker or ""]) for word in spoken],
        tuple(replace(turn, speaker=ids[turn.speaker]) for turn in turns),
        tuple(
            types.Speaker(id_, f"Speaker {number}", milliseconds[name] / 1000)
            for number, (name, id_) in enumerate(ids.items(), start=1)
        ),
        ids,
    )


def _speakers(
    words: Sequence[types.TranscriptWord], turns: Sequence[types.SpeakerTurn]
) -> Iterator[str]:
    """Of each word."""
    starts = [turn.start_ms for turn in turns]
    ends = np.maximum.accumulate([turn.end_ms for turn in turns] or [0]).tolist()
    before = "0"
    for word in words:
        # All turns that the word shares time with, the last that ends before and the first after.
        first = max(0, bisect.bisect_right(ends, word.start_ms) - 1)
        near = turns[first : bisect.bisect_left(starts, word.end_ms) + 1]
        shared: Counter[str] = Counter()
        for turn in near:
            shared[turn.speaker] += max(0, _shared_ms(turn, word))
        if shared.total() > 0:
            (best, most), *_ = shared.most_common(1)
            before = before if shared[before] == most else best
        elif near:
            before = max(near, key=lambda turn: _shared_ms(turn, word)).speaker
        yield before


def _shared_ms(turn: types.SpeakerTurn, word: types.TranscriptWord) -> int:
    """Less than 0 where they are so far apart."""
    return min(turn.end_ms, word.end_ms) - max(turn.start_ms, word.start_ms)
