"""Networks whose weights installed packages carry: what runs them, and what reads their files.

Networks in ONNX are run by one thread: a task has one core, and several share the machine. Weights
that ``torch.save`` wrote are read without torch; the unpickler constructs nothing but dictionaries
and lists of numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import logging
import math
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from models.weights import WeightsError

Tensor = npt.NDArray[np.float32]

_CUDA = "CUDAExecutionProvider"
_CUDA_OPTIONS = {
    "arena_extend_strategy": "kSameAsRequested",
    # Inputs have many shapes: to try out all kernels for each takes longer than any saves.
    "cudnn_conv_algo_search": "HEURISTIC",
}

log = logging.getLogger("vas.models")
_warn_once = functools.cache(log.warning)


class Network:
    """A network with one input."""

    def __init__(self, path: Path, gpu_bytes: int = 0) -> None:
        """``path`` is a verified file. Raises WeightsError where this machine cannot run it."""
        self._session = open_session(path, gpu_bytes)
        self._input = self._session.get_inputs()[0].name

    def __call__(self, tensor: Tensor) -> list[Tensor]:
        """The outputs, in the network's order."""
        outputs: list[Tensor] = self._session.run(None, {self._input: tensor})
        return outputs

    def metadata(self, key: str) -> str:
        """The file's own metadata under ``key``; raises KeyError."""
        return str(self._session.get_modelmeta().custom_metadata_map[key])


def batched(
    run: Callable[[Tensor], Sequence[Tensor]], tensors: Sequence[Tensor], most: int, width: int = 0
) -> list[list[Tensor]]:
    """The outputs for each tensor, in order; those of one shape go together, ``most`` at most, or
    of narrow ones as many as are no wider than so many of a ``width``."""
    found: list[list[Tensor]] = [[] for _ in tensors]
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault(tensor.shape, []).append(index)
    for shape, own in groups.items():
        together = most * max(1, width // shape[-1])
        for first in range(0, len(own), together):
            indices = own[first : first + together]
            outputs = run(np.stack([tensors[index] for index in indices]))
            for index, *answers in zip(indices, *outputs, strict=True):
                found[index] = answers
    return found


def open_session(path: Path, gpu_bytes: int = 0) -> Any:
    """A session of onnxruntime for a verified file: on a GPU where it may take ``gpu_bytes`` of one
    that this process sees and onnxruntime can use, else on one thread of a processor.

    The memory arena of onnxruntime is off there: it would keep what the largest picture took. It
    loads files and no bytes, of which it would keep a copy (31 MB of the text reader's). Raises
    WeightsError where this machine cannot run it.
    """
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 3
        providers: list[Any] = ["CPUExecutionProvider"]
        # Empty is Ray's, for a task without a GPU.
        is_on_card = gpu_bytes > 0 and os.environ.get("CUDA_VISIBLE_DEVICES") != ""
        if is_on_card and _CUDA in onnxruntime.get_available_providers():
            onnxruntime.preload_dlls()
            providers.insert(0, (_CUDA, _CUDA_OPTIONS | {"gpu_mem_limit": gpu_bytes}))
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        # It goes on without a provider whose libraries or driver it does not find.
        if is_on_card and _CUDA not in session.get_providers():
            _warn_once(
                "onnxruntime cannot use the GPU (%s): its networks run on a processor", _CUDA
            )
    except Exception as error:  # onnxruntime raises errors without a common class
        raise WeightsError(f"{path.name} cannot be run on this machine: {error}") from error
    # What it was made of is freed, but kept by the C library: of 130 MB for the largest nothing.
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return session


_OPSET, _IR_VERSION = 18, 9
"""Of ONNX; onnxruntime reads them since 1.14."""


class Graph:
    """Nodes of a network in ONNX, each named by its output, and their constants."""

    def __init__(self) -> None:
        from onnx.helper import make_model, make_opsetid
        from onnx.onnx_pb import GraphProto

        opsets = [make_opsetid("", _OPSET)]
        self._model = make_model(GraphProto(), opset_imports=opsets, ir_version=_IR_VERSION)

    def add(self, kind: str, *inputs: str | npt.NDArray[Any], **attributes: Any) -> str:
        """A node with one output, whose name is returned; arrays become constants."""
        from onnx.helper import make_node

        name = f"{kind}{len(self._model.graph.node)}"
        names = [self._named(each, f"{name}.{at}") for at, each in enumerate(inputs)]
        self._model.graph.node.append(make_node(kind, names, [name], **attributes))
        return name

    def _named(self, value: str | npt.NDArray[Any], name: str) -> str:
        from onnx.numpy_helper import from_array

        if isinstance(value, str):
            return value
        self._model.graph.initializer.append(from_array(np.ascontiguousarray(value), name))
        return name

    def session(
        self,
        shape: Sequence[str | int],
        outputs: Sequence[str],
        gpu_bytes: int = 0,
        *,
        name: str = "pictures",
        kind: npt.DTypeLike = np.uint8,
    ) -> Any:
        """Runs it on numbers named ``name``, of this shape and kind. Raises WeightsError as
        ``Network`` does; nothing can be added after."""
        from onnx import TensorProto
        from onnx.helper import make_tensor_value_info, np_dtype_to_tensor_dtype

        graph, self._model.graph.name = self._model.graph, "network"
        own = np_dtype_to_tensor_dtype(np.dtype(kind))
        graph.input.append(make_tensor_value_info(name, own, shape))
        graph.output.extend(make_tensor_value_info(it, TensorProto.FLOAT, None) for it in outputs)
        data = self._model.SerializeToString()
        self._model.Clear()
        descriptor = os.memfd_create("network")
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
            del data, graph
            return open_session(Path(f"/proc/self/fd/{descriptor}"), gpu_bytes)
        finally:
            os.close(descriptor)


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
