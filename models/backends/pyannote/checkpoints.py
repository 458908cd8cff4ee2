"""Loading pyannote.audio's checkpoints; the library stays silent towards its makers."""

from __future__ import annotations

import os
from typing import Any

from models.backends.transformers.hardware import Hardware

# The library reports each model that it opens unless told not to before it is imported.
os.environ["PYANNOTE_METRICS_ENABLED"] = "0"


def load_checkpoint(
    checkpoint: str, hardware: Hardware, *, revision: str | None = None, token: str | None = None
) -> Any:
    """A network in evaluation mode, float32: recurrent layers gain nothing from less.

    ``checkpoint`` is a folder with ``pytorch_model.bin``, or a repository with its
    revision. Raises PermissionError where the repository asks for terms to be
    accepted and ``token`` does not do so.
    """
    from pyannote.audio import Model

    model = Model.from_pretrained(
        checkpoint, revision=revision, token=token, map_location=hardware.device
    )
    if model is None:
        raise PermissionError(
            f"{checkpoint} asks for its terms to be accepted: do so on its page and set HF_TOKEN."
        )
    return model.to(hardware.device).eval()
