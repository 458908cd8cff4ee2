"""A voice as a vector: WeSpeaker's ResNet (Wang et al. 2023) as pyannote.audio ships it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch

from models.backends.pyannote.checkpoints import load_checkpoint
from models.backends.transformers.hardware import Batches, Hardware
from models.contracts import SAMPLE_RATE_HZ, Samples

_STEP_SAMPLES = SAMPLE_RATE_HZ // 2
"""Utterances are repeated up to whole half seconds: the network pools over time."""

_LONGEST_SAMPLES = 20 * SAMPLE_RATE_HZ
"""More of the same voice changes nothing but the memory that it takes."""


class PyannoteSpeakerEmbedder:
    """Task ``embed``."""

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
