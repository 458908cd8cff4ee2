"""The contracts of all tasks with the models of profile ``gpu`` on a real GPU.

Skipped without one. Ray is not needed: ``python -m pytest --noconftest tests/gpu``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import onnxruntime
import pytest
import torch

from models.backends.transformers import Batches, pick_hardware
from models.provider import LocalModels, open_model
from models.tasks import (
    DETECT_BOUNDARIES,
    DETECT_SOUNDS,
    DETECT_SPEECH,
    EMBED_FACES,
    EMBED_VOICE,
    READ_TEXT,
    Task,
)
from models.weights import WeightsError
from pipelines.media.decoding import decode_segment, in_memory
from pipelines.types import Segment
from pipelines.vision.features import MeasuredFrames
from tests.models.test_packaged_networks import people, written
from tests.models.test_packaged_speaker_embedder import noise
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


@pytest.mark.parametrize(
    ("task", "inputs"),
    [
        pytest.param(DETECT_BOUNDARIES, [], id="boundaries"),
        pytest.param(DETECT_SOUNDS, [], id="sounds"),
        pytest.param(DETECT_SPEECH, [], id="speech"),
        pytest.param(EMBED_FACES, [people((430.0, 160.0, 34.0)), people()], id="faces"),
        pytest.param(EMBED_VOICE, [noise(0.6), noise(0.6), noise(2.5)], id="voices"),
        pytest.param(READ_TEXT, [written(("NIGHT TRAIN", 40, 180)), written()], id="text"),
    ],
)
def test_networks_of_onnxruntime_answer_on_the_card_as_on_a_processor(
    task: Task[Any], inputs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime is the one for processors")
    sessions: list[Any] = []
    real = onnxruntime.InferenceSession

    def session(*given: Any, **how: Any) -> Any:
        sessions.append(real(*given, **how))
        return sessions[-1]

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    given = inputs or [task.call.sample()]
    try:
        model = open_model("gpu", task)
    except WeightsError as error:
        pytest.skip(str(error))
    found = task.answers(model, given)
    on_card = [it for it in sessions if it.get_providers()[0] == "CUDAExecutionProvider"]
    assert len(on_card) == len(sessions) > 0
    expected = task.answers(open_model("packaged", task), given)
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, np.ndarray):
            assert np.abs(one - other).max() < 0.01
        else:
            assert [getattr(it, "text", "") for it in one] == [
                getattr(it, "text", "") for it in other
            ]


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
