"""When each word was spoken, from Whisper's own cross-attention, where no acoustic model serves.

The attention of some heads over the audio follows the speech; a path through it by dynamic time
warping gives each token's start. The method and its constants are those of ``timing.py`` of
OpenAI's Whisper, which CTranslate2 follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.ndimage import median_filter
from transformers.modeling_outputs import BaseModelOutput

_MEDIAN_FRAMES = 7
FRAME_SECONDS = 0.02
"""Of audio that one position of the encoder stands for."""

Matrix = npt.NDArray[np.float64]


class AttentionAligner:
    """Starts of tokens, for a checkpoint whose generation config names its alignment heads."""

    def __init__(self, model: Any) -> None:
        heads = getattr(model.generation_config, "alignment_heads", None) or []
        self._model = model
        self._heads: dict[int, list[int]] = {}
        for layer, head in heads:
            self._heads.setdefault(layer, []).append(head)

    @property
    def is_able(self) -> bool:
        """Whether the checkpoint names alignment heads."""
        return bool(self._heads)

    @torch.inference_mode()
    def starts(
        self,
        encoded: torch.Tensor,
        opening: Sequence[int],
        tokens: Sequence[int],
        end: int,
        seconds: float,
    ) -> list[float]:
        """Start of each token in seconds, and after the last where it ends; rising.

        ``encoded``: states of one chunk, shape (1, positions, width); ``opening``: what the
        decoder was given before ``tokens``, its last token the one for no timestamps.
        """
        frames = max(1, min(encoded.shape[1], round(seconds / FRAME_SECONDS)))
        sequence = torch.tensor([[*opening, *tokens, end]], device=encoded.device)
        with self._attention(encoded) as weights:
            self._model(
                encoder_outputs=BaseModelOutput(last_hidden_state=encoded),
                decoder_input_ids=sequence,
                use_cache=False,
            )
        attention = torch.cat(weights)[:, :, :frames].softmax(dim=-1)
        deviation, mean = torch.std_mean(attention, dim=-2, keepdim=True, unbiased=False)
        normal = ((attention - mean) / deviation.clamp(min=1e-9)).cpu().numpy()
        smooth = median_filter(normal, size=(1, 1, _MEDIAN_FRAMES), mode="reflect")
        rows = smooth.mean(axis=0)[len(opening) - 1 : -1]
        return [frame * FRAME_SECONDS for frame in first_columns(-rows.astype(np.float64))]

    @contextmanager
    def _attention(self, encoded: torch.Tensor) -> Iterator[list[torch.Tensor]]:
        """Scores of the alignment heads, (heads, tokens, positions) a layer, of a call inside.

        They are worked out beside the model's own kernels, which keep none.
        """
        found: list[torch.Tensor] = []

        def keep(module: Any, arguments: tuple[Any, ...], layer: int) -> None:
            shape = (-1, module.num_heads, module.head_dim)
            queries = (module.q_proj(arguments[0][0]) * module.scaling).view(shape)
            keys = module.k_proj(encoded[0]).view(shape)
            heads = self._heads[layer]
            scores = torch.einsum("qhd,khd->hqk", queries[:, heads], keys[:, heads])
            found.append(scores.float())

        with ExitStack() as stack:
            for layer in sorted(self._heads):
                module = self._model.model.decoder.layers[layer].encoder_attn
                hook = module.register_forward_pre_hook(
                    lambda module, arguments, layer=layer: keep(module, arguments, layer)
                )
                stack.callback(hook.remove)
            yield found


def first_columns(costs: Matrix) -> list[int]:
    """Where each row begins on the cheapest path from the first cell to the last.

    Steps go right, down or both (dynamic time warping). With ``S`` a row's running sum, its
    cheapest costs are ``S[j] + min over k <= j of (entry[k] - S[k - 1])``: a running minimum.
    """
    before = np.concatenate([[0.0], np.full(costs.shape[1], np.inf)])
    totals = []
    for row in costs:
        sums = np.cumsum(row)
        entry = np.minimum(before[1:], before[:-1])
        total = sums + np.minimum.accumulate(entry - (sums - row))
        before = np.concatenate([[np.inf], total])
        totals.append(before)
    firsts = [0] * len(costs)
    column = costs.shape[1]
    for row in range(len(costs) - 1, 0, -1):
        above, here = totals[row - 1], totals[row]
        while column > 1 and here[column - 1] < min(above[column - 1], above[column]):
            column -= 1
        firsts[row] = column - 1
        if above[column - 1] <= above[column]:
            column -= 1
    return firsts
