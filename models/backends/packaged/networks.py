"""Networks in ONNX, each run by one thread: a task has one core, and several share the machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from models.backends import Backend
from models.contracts import Picture
from models.weights import WeightsError

Tensor = npt.NDArray[np.float32]


class Network:
    """A network with one input.

    The memory arena of onnxruntime is off: it would keep what the largest picture took. It loads
    files and no bytes, of which it would keep a copy (31 MB of the text reader's).
    """

    def __init__(self, path: Path) -> None:
        """``path`` is a verified file. Raises WeightsError where this machine cannot run it."""
        self._session = open_session(path)
        self._input = self._session.get_inputs()[0].name

    def __call__(self, tensor: Tensor) -> list[Tensor]:
        """The outputs, in the network's order."""
        outputs: list[Tensor] = self._session.run(None, {self._input: tensor})
        return outputs

    def metadata(self, key: str) -> str:
        """The file's own metadata under ``key``; raises KeyError."""
        return str(self._session.get_modelmeta().custom_metadata_map[key])


def open_session(path: Path) -> Any:
    """A session of onnxruntime for a verified file. Raises WeightsError as ``Network`` does."""
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
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

    def session(self, pictures: Sequence[str | int], outputs: Sequence[str]) -> Any:
        """Runs it on bytes named ``pictures``, of this shape. Raises WeightsError as ``Network``
        does; nothing can be added after."""
        from onnx import TensorProto
        from onnx.helper import make_tensor_value_info

        graph, self._model.graph.name = self._model.graph, "network"
        graph.input.append(make_tensor_value_info("pictures", TensorProto.UINT8, pictures))
        graph.output.extend(make_tensor_value_info(it, TensorProto.FLOAT, None) for it in outputs)
        data = self._model.SerializeToString()
        self._model.Clear()
        descriptor = os.memfd_create("network")
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
            del data, graph
            return open_session(Path(f"/proc/self/fd/{descriptor}"))
        finally:
            os.close(descriptor)


_WHOLE_PX, _MIDDLE_PX = 256, 224
"""The still is stretched to the first, square; its middle is classified."""
_MEAN_BGR = np.array([104, 117, 123], np.float32)


def open_classifier(row: Backend, models_dir: Path | None) -> PackagedContentClassifier:
    """The classifier with its verified weights. Raises WeightsError."""
    [path] = row.packaged().paths(models_dir).values()
    return PackagedContentClassifier(Network(path))


class PackagedContentClassifier:
    """ContentClassifier. Deterministic; one still at a time, on one core."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def classify(self, stills: Sequence[Picture]) -> list[dict[str, float]]:
        edge, found = (_WHOLE_PX - _MIDDLE_PX) // 2, []
        for still in stills:
            whole = cv2.resize(still, (_WHOLE_PX, _WHOLE_PX), interpolation=cv2.INTER_AREA)
            middle = whole[edge : edge + _MIDDLE_PX, edge : edge + _MIDDLE_PX, ::-1]
            # (1, 224, 224, 3), BGR less the training pictures' mean.
            tensor = np.ascontiguousarray(middle.astype(np.float32) - _MEAN_BGR)[None]
            normal, nsfw = self._network(tensor)[0][0]
            found.append({"normal": float(normal), "nsfw": float(nsfw)})
        return found
