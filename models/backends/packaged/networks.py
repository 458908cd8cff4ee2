"""Networks in ONNX, each run by one thread: a task has one core, and several share the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models.weights import WeightsError

Tensor = npt.NDArray[np.float32]


class Network:
    """A network with one input.

    The memory arena of onnxruntime is off: it would keep what the largest picture took. It loads
    files and no bytes, of which it would keep a copy (31 MB of the text reader's).
    """

    def __init__(self, path: Path) -> None:
        """``path`` is a verified file. Raises WeightsError where this machine cannot run it."""
        try:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.enable_cpu_mem_arena = False
            options.log_severity_level = 3
            self._session: Any = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime raises errors without a common class
            message = f"{path.name} cannot be run on this machine: {error}"
            raise WeightsError(message) from error
        self._input = self._session.get_inputs()[0].name

    def __call__(self, tensor: Tensor) -> list[Tensor]:
        """The outputs, in the network's order."""
        outputs: list[Tensor] = self._session.run(None, {self._input: tensor})
        return outputs

    def metadata(self, key: str) -> str:
        """What the file says of itself under ``key``; raises KeyError."""
        return str(self._session.get_modelmeta().custom_metadata_map[key])
