"""Where somebody speaks, cut where the speaker changes.

The segmentation network (Bredin 2023, "pyannote.audio 2.1 speaker diarization
pipeline"; powerset classes after Plaquet and Bredin 2023) sees windows of a few
seconds and separates up to three local speakers in each. Windows overlap by
half; of each the inner half counts, so every frame is judged with context on
both sides. Neighbouring windows agree on who is who by what both cover;
who is who over the whole track is clustering's business.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linear_sum_assignment

from models.backends.transformers.hardware import Batches, Hardware, checkpoint_opener
from models.contracts import SAMPLE_RATE_HZ, Samples

Activity = npt.NDArray[np.float32]
"""Shape (frames, local speakers): 0 or 1."""

Region = tuple[float, float]

_SHORTEST_SPEECH_SECONDS = 0.2
_SHORTEST_PAUSE_SECONDS = 0.3
_SHORTEST_TURN_SECONDS = 0.5
"""A change of speaker for less than this is an interjection, not a turn."""


class PyannoteSpeechDetector:
    """Task ``detect_speech``: regions of speech, each of one speaker of the model's."""

    def __init__(
        self,
        checkpoint: str,
        hardware: Hardware,
        *,
        revision: str | None = None,
        token: str | None = None,
        max_batch: int = 32,
    ) -> None:
        self._model = load_checkpoint(checkpoint, hardware, revision=revision, token=token)
        self._hardware = hardware
        self._batches = Batches(max_batch)
        self._window = round(self._model.specifications.duration * SAMPLE_RATE_HZ)
        self._step = self._window // 2
        self._speakers = _class_members(self._model.specifications)

    def detect(self, samples: Samples) -> list[Region]:
        """Regions in seconds, sorted, disjoint, inside the samples."""
        if not len(samples):
            return []
        starts = list(window_starts(len(samples), self._window, self._step))
        activities = self._batches.run(lambda batch: self._activities(samples, batch), starts)
        whole = stitched(activities, starts, self._window, len(samples))
        frame_seconds = self._window / len(activities[0]) / SAMPLE_RATE_HZ
        turns = [
            (first * frame_seconds, last * frame_seconds)
            for first, last in turns_of(whole, frame_seconds)
        ]
        return tidy_regions(turns, len(samples) / SAMPLE_RATE_HZ)

    @torch.inference_mode()
    def _activities(self, samples: Samples, starts: Any) -> list[Activity]:
        parts = [samples[start : start + self._window] for start in starts]
        windows = np.stack([np.pad(part, (0, self._window - len(part))) for part in parts])
        inputs = torch.from_numpy(windows).unsqueeze(1).to(self._hardware.device)
        scores = self._model(inputs).float().cpu().numpy()
        if self._speakers is None:
            return list((scores > 0.5).astype(np.float32))
        return list(self._speakers[scores.argmax(axis=-1)])


def window_starts(length: int, window: int, step: int) -> Iterator[int]:
    """First samples of windows that cover ``length`` samples; the last may reach beyond."""
    start = 0
    while True:
        yield start
        if start + window >= length:
            return
        start += step


def stitched(
    activities: Sequence[Activity], starts: Sequence[int], window: int, length: int
) -> Activity:
    """The windows' inner halves end to end, shape (frames of the whole, local speakers).

    Each window's speakers are first put into the order of the window before it,
    by who speaks when in the half that both cover.
    """
    frame = window / len(activities[0])
    centres = (np.arange(int(np.ceil(length / frame))) + 0.5) * frame
    whole = np.zeros((len(centres), activities[0].shape[1]), dtype=np.float32)
    previous: Activity | None = None
    for index, (start, activity) in enumerate(zip(starts, activities, strict=True)):
        ordered = activity if previous is None else activity[:, same_speakers(previous, activity)]
        previous = ordered
        # The later window overwrites from a quarter of the way in, its own inner half.
        first = start if index == 0 else start + window // 4
        chosen = (centres >= first) & (centres < start + window)
        local = ((centres[chosen] - start) / frame).astype(int).clip(0, len(activity) - 1)
        whole[chosen] = ordered[local]
    return whole


def same_speakers(before: Activity, after: Activity) -> list[int]:
    """Which speaker of ``after`` each speaker of ``before`` is, windows overlapping by half."""
    half = len(before) // 2
    together = before[-half:].T @ after[:half]
    _, order = linear_sum_assignment(-together)
    return [int(speaker) for speaker in order]


def _class_members(specifications: Any) -> Activity | None:
    """Powerset class -> its speakers, shape (classes, speakers); None for plain multi-label."""
    if not specifications.powerset:
        return None
    from pyannote.audio.utils.powerset import Powerset

    powerset = Powerset(len(specifications.classes), specifications.powerset_max_classes)
    members: Activity = powerset.mapping.numpy().astype(np.float32)
    return members


def turns_of(activity: Activity, frame_seconds: float) -> list[tuple[int, int]]:
    """Runs of frames (first, past the last) with speech and without a change of main speaker.

    The main speaker of a frame stays who it was while that one goes on speaking,
    so overlap does not cut; short changes are ignored.
    """
    main = _main_speakers(activity)
    shortest = max(1, round(_SHORTEST_TURN_SECONDS / frame_seconds))
    turns: list[tuple[int, int]] = []
    labels: list[int] = []
    for first, last, speaker in _runs(main):
        if speaker < 0:
            continue
        touches = bool(turns) and turns[-1][1] == first
        if touches and (last - first < shortest or labels[-1] == speaker):
            turns[-1] = (turns[-1][0], last)
        else:
            turns.append((first, last))
            labels.append(speaker)
    return turns


def _main_speakers(activity: Activity) -> npt.NDArray[np.int64]:
    """Who mainly speaks in each frame; -1 where nobody does."""
    main = np.full(len(activity), -1, dtype=np.int64)
    current = -1
    for frame, speaking in enumerate(activity > 0):
        if not speaking.any():
            current = -1
        elif current < 0 or not speaking[current]:
            current = int(speaking.argmax())
        main[frame] = current
    return main


def _runs(labels: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """(first, past the last, label) of each run of equal labels."""
    if not len(labels):
        return
    edges = [0, *(np.flatnonzero(np.diff(labels)) + 1).tolist(), len(labels)]
    for first, last in pairwise(edges):
        yield first, last, int(labels[first])


def tidy_regions(regions: list[Region], seconds: float) -> list[Region]:
    """Regions in order, inside the samples, no overlap; too short ones and pauses are dropped.

    Regions that touch stay apart: there the speaker changes. A pause that is too
    short to count is given to the region before it.
    """
    tidy: list[Region] = []
    for begin, end in sorted(regions):
        start, stop = max(0.0, begin), min(seconds, end)
        if tidy and start < tidy[-1][1]:
            start = tidy[-1][1]
        if stop - start < _SHORTEST_SPEECH_SECONDS:
            continue
        if tidy and 0 < start - tidy[-1][1] < _SHORTEST_PAUSE_SECONDS:
            tidy[-1] = (tidy[-1][0], start)
        tidy.append((start, stop))
    return tidy


_STEP_SAMPLES = SAMPLE_RATE_HZ // 2
"""Utterances are repeated up to whole half seconds: the network pools over time."""

_LONGEST_SAMPLES = 20 * SAMPLE_RATE_HZ
"""More of the same voice changes nothing but the memory that it takes."""


class PyannoteSpeakerEmbedder:
    """Task ``embed_voice``."""

    def __init__(
        self,
        checkpoint: str,
        hardware: Hardware,
        *,
        revision: str | None = None,
        token: str | None = None,
        max_batch: int = 32,
    ) -> None:
        self._model = load_checkpoint(checkpoint, hardware, revision=revision, token=token)
        self._hardware = hardware
        self._batches = Batches(max_batch)

    def embed(self, utterances: Sequence[Samples]) -> npt.NDArray[np.float32]:
        """Unit vectors, shape (utterances, dimensions), in order.

        A vector depends on its utterance only, never on the company it came in.
        """
        waveforms = [_of_whole_steps(samples) for samples in utterances]
        order = sorted(range(len(waveforms)), key=lambda index: len(waveforms[index]))
        vectors = np.zeros((len(waveforms), self._model.dimension), dtype=np.float32)
        for _, members in groupby(order, key=lambda index: len(waveforms[index])):
            indices = list(members)
            vectors[indices] = self._batches.run(self._embed, [waveforms[i] for i in indices])
        return vectors

    @torch.inference_mode()
    def _embed(self, waveforms: Sequence[Samples]) -> list[npt.NDArray[np.float32]]:
        """Waveforms of one length to unit vectors."""
        inputs = torch.from_numpy(np.stack(waveforms)).unsqueeze(1).to(self._hardware.device)
        vectors = torch.nn.functional.normalize(self._model(inputs).float(), dim=-1)
        return list(vectors.cpu().numpy())


def _of_whole_steps(samples: Samples) -> Samples:
    """The utterance repeated up to whole steps, or cut: few lengths make full batches."""
    if not len(samples):
        return np.zeros(_STEP_SAMPLES, dtype=np.float32)
    steps = -(-len(samples) // _STEP_SAMPLES)
    length = min(steps * _STEP_SAMPLES, _LONGEST_SAMPLES)
    repeats = -(-length // len(samples))
    return np.tile(samples, repeats)[:length].astype(np.float32)


# The library reports each model that it opens unless that is disabled before it is imported.
os.environ["PYANNOTE_METRICS_ENABLED"] = "0"


def load_checkpoint(
    checkpoint: str, hardware: Hardware, *, revision: str | None = None, token: str | None = None
) -> Any:
    """A network in evaluation mode, float32: recurrent layers gain nothing from less.

    ``checkpoint`` is a folder with ``pytorch_model.bin``, or a repository with its
    revision. Raises PermissionError where the repository requires terms to be
    accepted and ``token`` does not do so.
    """
    from pyannote.audio import Model

    model = Model.from_pretrained(
        checkpoint, revision=revision, token=token, map_location=hardware.device
    )
    if model is None:
        raise PermissionError(
            f"{checkpoint} requires its terms to be accepted: do so on its page and set HF_TOKEN."
        )
    return model.to(hardware.device).eval()


open_speech_detector = checkpoint_opener(PyannoteSpeechDetector)
open_speaker_embedder = checkpoint_opener(PyannoteSpeakerEmbedder)
