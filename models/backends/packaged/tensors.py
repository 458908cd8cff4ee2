"""Weights that torch.save wrote, read without torch.

The unpickler constructs nothing but dictionaries and lists of numbers.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from models.weights import WeightsError

Tensor = npt.NDArray[np.float32]
Tensors = dict[str, Tensor]


class _Storage:
    """Stands for the numbers of a tensor, which are a file of the archive."""

    def __init__(self, key: str) -> None:
        self.key = key


class _Tensor:
    """Stands for a tensor: its storage, where it begins in there, and its shape."""

    def __init__(self, storage: _Storage, offset: int, shape: tuple[int, ...], *_: object) -> None:
        self.storage = storage
        self.offset = offset
        self.shape = shape


class _TensorUnpickler(pickle.Unpickler):
    """Constructs dictionaries and stand-ins for tensors; raises for all else."""

    _ALLOWED: ClassVar[dict[tuple[str, str], Any]] = {
        ("collections", "OrderedDict"): OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): _Tensor,
        ("torch", "FloatStorage"): "<f4",
        ("torch", "LongStorage"): "<i8",
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in weights")
        return self._ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        _, _, key, _, _ = pid
        return _Storage(key)


_UNREADABLE = (
    zipfile.BadZipFile, pickle.UnpicklingError, EOFError,
    AttributeError, ValueError, KeyError, TypeError,
)  # fmt: skip


def read_tensors(data: bytes) -> Tensors:
    """Tensors of float32 by name, from an archive as torch.save writes it since version 1.6.

    It holds a pickle of the objects and, for each storage, its numbers. Raises WeightsError.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            [pickled] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            folder = pickled.removesuffix("data.pkl") + "data/"
            state = _TensorUnpickler(io.BytesIO(archive.read(pickled))).load()
            return {
                name: _numbers(archive.read(folder + each.storage.key), each)
                for name, each in state.items()
                if not name.endswith("num_batches_tracked")
            }
    except _UNREADABLE as error:
        raise WeightsError(f"The weights are unreadable: {error}") from error


def _numbers(data: bytes, tensor: _Tensor) -> Tensor:
    count = math.prod(tensor.shape)
    return np.frombuffer(data, "<f4", count, 4 * tensor.offset).reshape(tensor.shape)
