"""Where a model runs and in which precision; batches that shrink when memory runs out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from models.backends import Backend

log = logging.getLogger("vas.models")

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device and the number format that suits it."""

    device: torch.device
    dtype: torch.dtype


ATTENTION = "sdpa"
"""``attn_implementation``: PyTorch's kernels, which pick FlashAttention on a GPU."""


def pick_hardware(device: str = "auto", dtype: str = "auto") -> Hardware:
    """``auto``: the first GPU in bfloat16 (float16 before Ampere), else the processor in float32.

    Raises ValueError for a GPU that is not there or a number format that torch lacks.
    """
    has_gpu = torch.cuda.is_available()
    name = ("cuda" if has_gpu else "cpu") if device == "auto" else device
    if name.startswith("cuda") and not has_gpu:
        raise ValueError("There is no GPU that torch can use.")
    chosen = torch.device(name)
    if dtype != "auto":
        number_format = getattr(torch, dtype, None)
        if not isinstance(number_format, torch.dtype):
            raise ValueError(f"{dtype!r} is not a number format of torch.")
        return Hardware(chosen, number_format)
    if chosen.type != "cuda":
        return Hardware(chosen, torch.float32)
    half = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return Hardware(chosen, half)


def checkpoint_opener(backend: Callable[..., Result]) -> Callable[[Backend, Path | None], Result]:
    """An opener of a backend that is made of one checkpoint of a hub and the hardware."""

    def opened(row: Backend, models_dir: Path | None) -> Result:
        where = row.location(models_dir)
        hardware = pick_hardware(row.device, row.dtype)
        return backend(where.source, hardware, revision=where.revision, max_batch=row.max_batch)

    return opened


class Batches:
    """Runs calls in batches of at most ``limit``; out of memory halves the limit and goes on.

    The halved limit is kept: what did not fit once will not fit the next time.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("A batch holds at least one item.")
        self.limit = limit

    def run(
        self, call: Callable[[Sequence[Item]], Sequence[Result]], items: Sequence[Item]
    ) -> list[Result]:
        """``call`` over all items, in order. Raises OutOfMemoryError if one item alone is too much.

        Raises ValueError when a call gives back another number of results.
        """
        results: list[Result] = []
        while len(results) < len(items):
            batch = items[len(results) : len(results) + self.limit]
            try:
                found = call(batch)
            except torch.OutOfMemoryError:
                if len(batch) == 1:
                    raise
                self.limit = max(1, len(batch) // 2)
                log.warning("a batch of %d did not fit; going on with %d", len(batch), self.limit)
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                continue
            if len(found) != len(batch):
                raise ValueError(f"{len(batch)} inputs gave {len(found)} results")
            results.extend(found)
        return results
