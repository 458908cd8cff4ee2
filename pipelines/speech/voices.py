"""Step: a stretch of a track to who speaks when in each of its windows, their voices, and sounds.

Windows of ten seconds lie on one grid over the whole track, so that neither sharding nor a retry
changes what is found in them. Neighbours overlap by half; of each the middle counts, so that every
frame is judged with context on both sides.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.ndimage import uniform_filter1d

from models.contracts import (
    ACTIVITY_FRAME_SAMPLES,
    ACTIVITY_FRAMES,
    ACTIVITY_START_SAMPLES,
    ACTIVITY_WINDOW_SAMPLES,
    LOCAL_SPEAKERS,
    SAMPLE_RATE_HZ,
    SOUND_FRAME_SAMPLES,
    Probabilities,
    Samples,
)
from models.provider import ModelProvider
from models.tasks import DETECT_SOUNDS, EMBED_VOICE, SEGMENT_SPEAKERS, SoundDetector
from pipelines.artifacts import Artifact
from pipelines.execution.chain import Step, Workspace
from pipelines.media.audio import SampleReader, read_blocks
from pipelines.types import AudioTrack, StageCode

STEP_FRAMES = 296
"""From one window to the next: half a window, in whole frames. Half of it (148) gave the same
diarisation errors for twice the time."""
STEP_SAMPLES = STEP_FRAMES * ACTIVITY_FRAME_SAMPLES
FRAME_SECONDS = ACTIVITY_FRAME_SAMPLES / SAMPLE_RATE_HZ
MARGIN_FRAMES = (ACTIVITY_FRAMES - STEP_FRAMES) // 2
"""At each end of a window the neighbour decides, where there is one."""
CELL_FRAMES = 8
"""Frames of one probability of sounds: 0.135 s, of which a step has whole ones (37)."""
_CELLS = ACTIVITY_FRAMES // CELL_FRAMES
_BATCH_WINDOWS = 8
"""Windows a call: enough to fill a batch, few enough to notice a stop."""
_WINDOWS_A_STRETCH = 24
_MOST_STRETCHES = 32
"""Each may fetch the whole track from the object store."""
_ENOUGH_ALONE_SECONDS = 0.4
"""From it on a voice is embedded by what it speaks alone, below by all that it speaks."""

Activity = npt.NDArray[np.bool_]
"""Shape (windows, ACTIVITY_FRAMES, LOCAL_SPEAKERS): who speaks, by the window's own numbers."""


@dataclass(frozen=True, slots=True)
class LocalVoices:
    """Windows of a track in order; 24 hours take 65 MB."""

    speaking: Activity
    vectors: npt.NDArray[np.float16]
    """Of unit length, shape (windows, LOCAL_SPEAKERS, dimensions); zeros of who does not speak."""
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
            shape = len(vectors), ACTIVITY_FRAMES, LOCAL_SPEAKERS
            bits = np.unpackbits(arrays["speaking"], count=math.prod(shape))
            speaking = bits.reshape(shape).astype(np.bool_)
            return LocalVoices(speaking, vectors, arrays["sounds"], arrays["speech"])


def join_voices(parts: Sequence[LocalVoices]) -> LocalVoices:
    """The windows of all parts, in order."""
    return LocalVoices(
        np.concatenate([part.speaking for part in parts]),
        np.concatenate([part.vectors for part in parts]),
        np.concatenate([part.sounds for part in parts]),
        np.concatenate([part.speech for part in parts]),
    )


def speech_activity(parts: Iterable[LocalVoices]) -> Probabilities:
    """That anybody speaks in each frame of a track; where two windows overlap, their mean."""
    curves = np.concatenate([part.speech for part in parts])
    total = np.zeros(STEP_FRAMES * (len(curves) - 1) + ACTIVITY_FRAMES, np.float32)
    windows = np.zeros_like(total)
    for number, curve in enumerate(curves):
        total[number * STEP_FRAMES :][:ACTIVITY_FRAMES] += curve
        windows[number * STEP_FRAMES :][:ACTIVITY_FRAMES] += 255
    return total / windows


@dataclass(frozen=True, slots=True)
class Stretch:
    """Windows of a track that one task looks at, and where what is found is stored."""

    audio_key: str
    first_window: int
    windows: int
    voices_key: str


@dataclass(frozen=True)
class EmbedVoices(Step[Stretch, Stretch]):
    """A stretch to itself, its voices (VOICES) stored unless they are there."""

    name = "Voice embedding"
    code = StageCode.TRANSCRIPT_FAILED
    version = 4
    workspace: Workspace
    models: ModelProvider

    def process(self, stretch: Stretch) -> Stretch:
        VOICES.make(self.workspace.store, stretch.voices_key, lambda: self._voices(stretch))
        return stretch

    def _voices(self, stretch: Stretch) -> LocalVoices:
        store, check = self.workspace.store, self.workspace.check
        found = []
        with store.local_copy(stretch.audio_key, check=check) as path:
            reader = SampleReader(read_blocks(path, stretch.first_window * STEP_SAMPLES))
            for first in range(0, stretch.windows, _BATCH_WINDOWS):
                check()
                numbers = range(first, min(first + _BATCH_WINDOWS, stretch.windows))
                starts = [number * STEP_SAMPLES for number in numbers]
                windows = [reader.read(at, at + ACTIVITY_WINDOW_SAMPLES) for at in starts]
                found.append(embedded(windows, self.models))
        return join_voices(found)


VOICES = Artifact(
    "transcript/voices",
    EmbedVoices.version,
    to_bytes=LocalVoices.to_npz,
    from_bytes=LocalVoices.from_npz,
    ending=".npz",
)


def plan_stretches(track: AudioTrack, workspace: Workspace, models_digest: str) -> list[Stretch]:
    """Stretches in order that cover the track; ``models_digest`` names the backends in use."""
    inputs = track.key, workspace.store.size_bytes(track.key), models_digest
    count = windows_of(track.duration_seconds * SAMPLE_RATE_HZ)
    size = max(_WINDOWS_A_STRETCH, math.ceil(count / _MOST_STRETCHES))
    stretches = []
    for first in range(0, count, size):
        windows = min(size, count - first)
        key = VOICES.key(workspace.prefix, *inputs, windows, position=first)
        stretches.append(Stretch(track.key, first, windows, key))
    return stretches


def windows_of(samples: float) -> int:
    """How many windows cover so many samples."""
    return 1 + max(0, math.ceil((samples - ACTIVITY_WINDOW_SAMPLES) / STEP_SAMPLES))


def embedded(windows: Sequence[Samples], models: ModelProvider) -> LocalVoices:
    """Who speaks in each window, and a vector of each of them."""
    activity = models.get(SEGMENT_SPEAKERS).segment(windows)
    speaking = np.stack([each.speaking for each in activity])
    speech = (255 * np.stack([each.speech for each in activity])).round().astype(np.uint8)
    spoken = np.argwhere(speaking.any(axis=1))
    utterances = [_utterance(windows[at], speaking[at], local) for at, local in spoken]
    vectors = models.get(EMBED_VOICE).embed(utterances)
    found = np.zeros((len(windows), LOCAL_SPEAKERS, vectors.shape[1]), np.float16)
    found[spoken[:, 0], spoken[:, 1]] = vectors
    return LocalVoices(speaking, found, _sounds(windows, models.get(DETECT_SOUNDS)), speech)


def _sounds(windows: Sequence[Samples], detector: SoundDetector) -> npt.NDArray[np.uint8]:
    """Of consecutive windows, taken as one piece: what lies outside the middle of the first and of
    the last lacks the sound before and after."""
    beyond = ACTIVITY_WINDOW_SAMPLES - STEP_SAMPLES
    whole = np.concatenate([windows[0], *(window[beyond:] for window in windows[1:])])
    probabilities = detector.find_sounds(whole)
    cell_samples = CELL_FRAMES * ACTIVITY_FRAME_SAMPLES
    width = cell_samples // SOUND_FRAME_SAMPLES
    padded = np.pad(probabilities, ((0, max(0, width - len(probabilities))), (0, 0)))
    means = uniform_filter1d(padded, width, axis=0, mode="nearest")
    middles = ACTIVITY_START_SAMPLES + cell_samples * (np.arange(_CELLS) + 0.5)
    middles = middles + STEP_SAMPLES * np.arange(len(windows))[:, None]
    frames = (middles / SOUND_FRAME_SAMPLES - 1.25).round().astype(np.intp)
    inside = (frames < len(probabilities))[:, :, None]
    chosen = means[frames.clip(0, len(means) - 1)] * inside
    in_255ths: npt.NDArray[np.uint8] = (255 * chosen).round().astype(np.uint8)
    return in_255ths


def _utterance(window: Samples, speaking: npt.NDArray[np.bool_], local: int) -> Samples:
    """What a local speaker speaks alone, end to end; all of it where that is too little."""
    frames = speaking[:, local] & (speaking.sum(axis=1) == 1)
    if np.count_nonzero(frames) * FRAME_SECONDS < _ENOUGH_ALONE_SECONDS:
        frames = speaking[:, local]
    chosen = np.repeat(frames, ACTIVITY_FRAME_SAMPLES)
    framed = window[ACTIVITY_START_SAMPLES:][: len(chosen)]
    utterance: Samples = framed[chosen[: len(framed)]]
    return utterance
