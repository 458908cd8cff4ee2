"""Where a model runs and in which precision; batches that shrink when memory runs out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import cv2
import numpy as np
import torch

from models.backends import Backend
from models.contracts import DeviceMemoryError, Picture

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
    Raises ValueError for a GPU that is not there or a number format that torch lacks."""
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


_granted_bytes = 0


def bound_memory(row: Backend) -> None:
    """Let this process have what its models declare of a GPU, and no more: another process may
    have the rest."""
    global _granted_bytes  # noqa: PLW0603  (the limit is the process's)
    if row.gpu_memory_bytes and torch.cuda.is_available():
        _granted_bytes += row.gpu_memory_bytes
        _, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(min(1.0, _granted_bytes / total))


_LONG_SIDE_PX = 1920


def on_device(stills: Sequence[Picture], hardware: Hardware) -> list[torch.Tensor]:
    """Stills as tensors (colours, height, width) of bytes on the device.

    To a GPU all go at once, from memory that it can read while the processor goes on; large ones
    are shrunk before: its kernels shrink no picture of 33 million pixels to a network's 50,000.
    """
    if hardware.device.type == "cuda":
        stills = [_shrunk(still) for still in stills]
    tensors = [torch.from_numpy(np.ascontiguousarray(still)) for still in stills]
    if hardware.device.type == "cuda":
        sizes = [tensor.numel() for tensor in tensors]
        pinned = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
        for part, tensor in zip(torch.split(pinned, sizes), tensors, strict=True):
            part.copy_(tensor.view(-1))
        parts = torch.split(pinned.to(hardware.device, non_blocking=True), sizes)
        tensors = [part.view(it.shape) for part, it in zip(parts, tensors, strict=True)]
    return [tensor.permute(2, 0, 1) for tensor in tensors]


def _shrunk(still: Picture) -> Picture:
    scale = _LONG_SIDE_PX / max(still.shape)
    if scale >= 1:
        return still
    size = [max(1, round(side * scale)) for side in still.shape[1::-1]]
    return np.asarray(cv2.resize(still, size, interpolation=cv2.INTER_AREA), np.uint8)


class CheckpointModel:
    """A network with what makes its inputs ready, and batches of them. ``checkpoint`` is a
    repository with its revision, or a folder."""

    _kind: Any
    """The class of transformers that loads it."""
    _reads: Any
    """That of its processor or tokenizer."""
    _how: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self,
        checkpoint: str,
        hardware: Hardware,
        *,
        revision: str | None = None,
        max_batch: int = 16,
    ) -> None:
        of: dict[str, Any] = {"revision": revision}
        self._reader: Any = self._reads.from_pretrained(checkpoint, **of)
        of |= {"dtype": hardware.dtype, **self._how}
        model: Any = self._kind.from_pretrained(checkpoint, **of)
        self._model = model.to(hardware.device).eval()
        self._hardware = hardware
        self._batches = Batches(max_batch)


def checkpoint_opener(backend: Callable[..., Result]) -> Callable[[Backend, Path | None], Result]:
    """An opener of a backend that is made of one checkpoint of a hub and the hardware."""

    def opened(row: Backend, models_dir: Path | None) -> Result:
        where = row.location(models_dir)
        hardware = pick_hardware(row.device, row.dtype)
        return backend(where.source, hardware, revision=where.revision, max_batch=row.max_batch)

    return opened


Prepared = TypeVar("Prepared")
_GOOD_BATCHES = 16
"""After so many a limit that memory had halved is doubled again, up to what it was."""
_PAUSES_SECONDS = (0.5, 1.0, 2.0)
"""Before an input that does not fit alone is tried again: what a neighbour takes, it gives back."""


class Batches:
    """Runs calls in batches of at most ``limit``; out of memory halves the limit and goes on.

    What took the memory may have been a neighbour on the same device, so the limit recovers. The
    next batch is made ready while one is computed. Threads take turns to compute.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("A batch holds at least one item.")
        self.limit = self._most = limit
        self._good = 0
        self._computing = threading.Lock()

    def run(
        self, call: Callable[[Sequence[Item]], Sequence[Result]], items: Sequence[Item]
    ) -> list[Result]:
        """``call`` over all items, in order. Raises DeviceMemoryError if one item alone is too
        much for some seconds, and ValueError when a call gives back another number of results."""
        return self.run_prepared(lambda batch: batch, call, items)

    def run_prepared(
        self,
        prepare: Callable[[Sequence[Item]], Prepared],
        call: Callable[[Prepared], Sequence[Result]],
        items: Sequence[Item],
    ) -> list[Result]:
        """As ``run``, with ``call`` over what ``prepare`` makes of a batch."""
        results: list[Result] = []
        pauses = iter(_PAUSES_SECONDS)
        with ThreadPoolExecutor(1) as pool:
            batch = items[: self.limit]
            ready = pool.submit(prepare, batch) if len(batch) else None
            while ready is not None:
                after = items[len(results) + len(batch) :][: self.limit]
                following = pool.submit(prepare, after) if len(after) else None
                found = self._computed(call, ready)
                if found is None:
                    following = None
                    self._shrink(len(batch), pauses)
                    batch = items[len(results) :][: self.limit]
                    ready = pool.submit(prepare, batch)
                    continue
                if len(found) != len(batch):
                    raise ValueError(f"{len(batch)} inputs gave {len(found)} results")
                results.extend(found)
                self._good += 1
                if self._good >= _GOOD_BATCHES and self.limit < self._most:
                    self.limit, self._good = min(self._most, 2 * self.limit), 0
                batch, ready = after, following
        return results

    def _computed(
        self, call: Callable[[Prepared], Sequence[Result]], ready: Future[Prepared]
    ) -> Sequence[Result] | None:
        """What comes of a batch; None where memory ran out: what it held is free by then."""
        try:
            inputs = ready.result()
            with self._computing:
                return call(inputs)
        except torch.OutOfMemoryError:
            return None

    def _shrink(self, size: int, pauses: Iterator[float]) -> None:
        """Half of ``size`` from now on; a pause where that was one. Raises DeviceMemoryError."""
        self.limit, self._good = max(1, size // 2), 0
        log.warning("a batch of %d did not fit; going on with %d", size, self.limit)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if size == 1:
            pause = next(pauses, None)
            if pause is None:
                raise DeviceMemoryError("The device's memory does not hold one input.")
            time.sleep(pause)
