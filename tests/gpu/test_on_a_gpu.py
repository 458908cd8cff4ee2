"""The contracts of all tasks with the models of profile ``gpu`` on a real GPU.

Skipped without one. Ray is not needed: ``python -m pytest --noconftest tests/gpu``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from models.backends.transformers import Batches, pick_hardware
from models.provider import LocalModels
from pipelines.media.decoding import decode_segment, in_memory
from pipelines.types import Segment
from pipelines.vision.features import MeasuredFrames
from tests.models.test_task_contracts import *  # noqa: F403  (the same tests, other models)
from tests.models.tiny_models import fill_models_folder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture(scope="module")  # type: ignore[no-redef]
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_models_folder(tmp_path_factory.mktemp("models"), "gpu")


@pytest.fixture  # type: ignore[no-redef]
def models(folder: Path) -> LocalModels:
    return LocalModels("gpu", folder)


def test_half_precision_is_chosen() -> None:
    assert pick_hardware().dtype in (torch.bfloat16, torch.float16)


def test_memory_that_runs_out_halves_the_batch_and_goes_on() -> None:
    """A real allocation that cannot succeed: half of all memory for each item."""
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(1.0)  # as before models were opened
    batches = Batches(8)

    def call(items: Sequence[int]) -> list[int]:
        room = torch.empty(len(items) * total * 2 // 5, dtype=torch.uint8, device="cuda")
        return [item + room.ndim for item in items]

    assert batches.run(call, range(8)) == list(np.arange(8) + 1)
    assert batches.limit <= 2


def test_pictures_are_decoded_and_measured_on_the_card(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    numbers = np.random.default_rng(1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 640, 360, "yuv420p"
        blocks = numbers.integers(0, 255, (70, 9, 16, 3), np.uint8)
        for picture in blocks.repeat(40, axis=1).repeat(40, axis=2):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    segment, found = Segment(0, "clip", 0, 2_800), []
    for device in ("cpu", "cuda"):
        measured, formats = MeasuredFrames(), set()
        frames = decode_segment(path, segment, stream_index=0, origin_ms=0, device=device)
        for each in frames:
            measured.add(each.frame)
            formats |= {each.frame.format.name, in_memory(each.frame).format.name}
        measured.finish()
        assert formats == ({"yuv420p"} if device == "cpu" else {"cuda", "nv12"})
        found.append(measured)
    own, other = found
    assert len(own.luma) == len(other.luma) == 70
    assert np.abs(np.stack(own.luma).astype(int) - np.stack(other.luma)).mean() < 1
    assert np.abs(np.stack(own.chroma).astype(int) - np.stack(other.chroma)).mean() < 1
