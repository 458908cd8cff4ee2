"""Text reader, faces and content classifier with their real weights, on small drawn pictures."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import pytest
from PIL import Image, ImageDraw, ImageFont

from models.backends import packaged
from models.backends.packaged import Network
from models.backends.packaged.faces import FaceFinder
from models.backends.packaged.text_reader import PackagedTextReader, open_text_reader
from models.contracts import Box, Picture
from models.provider import open_model
from models.registry import MTCNN, OPEN_NSFW, PACKAGED, PP_OCR
from models.tasks import CLASSIFY_CONTENT, DESCRIBE_SCENES, DETECT_BOUNDARIES, READ_TEXT, Task
from models.weights import PackagedWeights, WeightsError
from tests.media.studio.people import GUEST, HOST, Pose, draw_person


@pytest.fixture(scope="module")
def reader() -> PackagedTextReader:
    return open_text_reader(PACKAGED[READ_TEXT], None)


@pytest.fixture(scope="module")
def finder() -> FaceFinder:
    return FaceFinder(MTCNN.paths(None))


def written(*lines: tuple[str, int, int]) -> Picture:
    """Lines (text, size, middle row) centred in a still of 640 x 360."""
    image = Image.new("RGB", (640, 360), (18, 30, 60))
    pen = ImageDraw.Draw(image)
    for text, size, row in lines:
        face = ImageFont.load_default(size)
        pen.text((320, row), text, (240, 235, 220), face, anchor="mm")
    return np.asarray(image, np.uint8)


def people(*faces: tuple[float, float, float]) -> Picture:
    """People by the place between their eyes and half the face's width in 640 x 360 pixels."""
    picture = np.full((360, 640, 3), (0.35, 0.45, 0.5), np.float32)
    for index, (left, top, unit) in enumerate(faces):
        draw_person(picture, (HOST, GUEST)[index % 2], Pose((left, top), unit))
    return np.asarray(np.clip(picture * 255, 0, 255), np.uint8)


def holds(box: Box, left: float, top: float) -> bool:
    across, down = left / 640 - box.left, top / 360 - box.top
    return 0 <= across <= box.width and 0 <= down <= box.height


def test_lines_are_read_exactly_top_to_bottom_where_they_stand(reader: PackagedTextReader) -> None:
    still = written(("A DAY BY THE SEA", 54, 130), ("Lisbon, 12 May 1987", 28, 240))
    [(title, below)] = reader.read([still])
    assert (title.text, below.text) == ("A DAY BY THE SEA", "Lisbon, 12 May 1987")
    assert min(title.confidence, below.confidence) >= 0.9
    assert title.box.top < 130 / 360 < title.box.top + title.box.height
    assert below.box.top < 240 / 360 < below.box.top + below.box.height
    assert abs(title.box.left + title.box.width / 2 - 0.5) < 0.02


def test_lines_of_many_stills_are_read_together_as_alone(
    reader: PackagedTextReader, caplog: pytest.LogCaptureFixture
) -> None:
    """On a device that this onnxruntime lacks: on the processor, with one warning."""
    packaged._warn_once.cache_clear()
    stills = [
        written(("A DAY BY THE SEA", 54, 130), ("Lisbon, 12 May 1987", 28, 240)),
        written(("NIGHT TRAIN", 40, 180)),
        written(),
        written(("Lisbon", 28, 100), ("12 May", 28, 160), ("1987 to 1989", 28, 240)),
    ]
    with caplog.at_level("WARNING", "vas.models"):
        together = PackagedTextReader(PP_OCR.paths(None), 1 << 30, 3)
    assert caplog.text.count("its networks run on a processor") == 1
    found = together.read(stills)
    assert [len(each) for each in found] == [2, 1, 0, 3]
    for one, other in zip(found, reader.read(stills), strict=True):
        assert [line.text for line in one] == [line.text for line in other]
        for line, alone in zip(one, other, strict=True):
            assert line.box == alone.box
            assert line.confidence == pytest.approx(alone.confidence, abs=1e-3)


@pytest.mark.parametrize(
    ("task", "sessions", "limit"),
    [
        pytest.param(READ_TEXT, 2, 1 << 30, id="writing"),
        pytest.param(DETECT_BOUNDARIES, 1, 1 << 30, id="cuts"),
    ],
)
@pytest.mark.parametrize(
    ("visible", "asked", "warned"), [("0", True, True), (None, True, True), ("", False, False)]
)
def test_a_session_asks_for_the_memory_of_a_gpu_that_its_row_declares(
    task: Task[Any],
    sessions: int,
    limit: int,
    visible: str | None,
    asked: bool,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of an onnxruntime that has CUDA's provider, whose libraries or driver are not there; Ray
    hides GPUs from a task that has none."""
    given: list[Any] = []
    real = onnxruntime.InferenceSession

    def session(path: str, options: Any, providers: list[Any]) -> Any:
        given.extend(providers)
        return real(path, options, providers=providers[-1:])

    packaged._warn_once.cache_clear()
    has = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: has)
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with caplog.at_level("WARNING", "vas.models"):
        model = open_model("gpu", task)
    if task is READ_TEXT:
        assert [each.text for each in model.read([written(("NIGHT TRAIN", 40, 180))])[0]]
    else:
        assert len(model.detect_boundaries(np.zeros((3, 27, 48, 3), np.uint8))) == 3
    on_card = [each for each in given if each[0] == "CUDAExecutionProvider"]
    assert [options["gpu_mem_limit"] for _, options in on_card] == [limit] * sessions * asked
    assert given.count("CPUExecutionProvider") == sessions
    assert caplog.text.count("its networks run on a processor") == warned


def test_words_of_a_title_that_stand_apart_are_one_line(reader: PackagedTextReader) -> None:
    image = Image.fromarray(written())
    pen = ImageDraw.Draw(image)
    for place, word in ((220, "NIGHT"), (400, "TRAIN")):
        pen.text((place, 180), word, (240, 235, 220), ImageFont.load_default(50), anchor="mm")
    [(line,)] = reader.read([np.asarray(image, np.uint8)])
    assert line.text == "NIGHT TRAIN"


def test_nothing_is_read_where_nothing_is_written(reader: PackagedTextReader) -> None:
    noise = np.random.default_rng(3).integers(0, 255, (180, 320, 3)).astype(np.uint8)
    stripes = np.zeros((360, 640, 3), np.uint8)
    stripes[:, ::24] = 255
    blurred = np.asarray(cv2.GaussianBlur(written(("HARBOUR", 40, 180)), (61, 61), 0), np.uint8)
    assert reader.read([np.zeros((180, 320, 3), np.uint8), noise, stripes, blurred]) == [()] * 4


@pytest.mark.parametrize("shape", [(1, 1, 3), (3, 900, 3), (900, 3, 3), (40, 33, 3)])
def test_pictures_of_any_shape_are_borne(
    reader: PackagedTextReader, finder: FaceFinder, shape: tuple[int, ...]
) -> None:
    still = np.full(shape, 90, np.uint8)
    assert reader.read([still]) == [()]
    assert finder.find(still) == ()


def test_reading_the_same_still_twice_gives_the_same_lines(reader: PackagedTextReader) -> None:
    still = written(("Lower Street", 30, 300))
    assert reader.read([still, still]) == [reader.read([still])[0]] * 2


def test_faces_are_found_where_they_are_largest_first(finder: FaceFinder) -> None:
    places = ((430.0, 160.0, 34.0), (180.0, 150.0, 52.0))
    faces = finder.find(people(*places))
    assert len(faces) == 2
    assert holds(faces[0], 180, 150)
    assert holds(faces[1], 430, 160)


def test_a_face_cut_off_by_the_edge_is_borne_and_none_is_seen_without_one(
    finder: FaceFinder,
) -> None:
    assert len(finder.find(people((14.0, 20.0, 60.0)))) <= 1
    noise = np.random.default_rng(4).integers(0, 255, (360, 640, 3)).astype(np.uint8)
    assert finder.find(noise) == ()
    assert finder.find(written(("FACES", 120, 180))) == ()


def test_ordinary_pictures_are_normal_content() -> None:
    classifier = open_model("packaged", CLASSIFY_CONTENT)
    scores = classifier.classify([people((320.0, 150.0, 60.0)), written(("NEWS", 60, 180))])
    assert all(score["normal"] > 0.9 and score["nsfw"] < 0.1 for score in scores)
    assert all(score["normal"] + score["nsfw"] == pytest.approx(1, abs=1e-4) for score in scores)


@pytest.mark.parametrize(
    ("task", "weights"),
    [(READ_TEXT, PP_OCR), (DESCRIBE_SCENES, MTCNN), (CLASSIFY_CONTENT, OPEN_NSFW)],
)
def test_altered_weights_are_refused_in_a_sentence(
    tmp_path: Path, task: Task[Any], weights: PackagedWeights
) -> None:
    name = weights.files[-1].name
    (tmp_path / weights.name).mkdir()
    (tmp_path / weights.name / name).write_bytes(b"something else")
    with pytest.raises(WeightsError, match=f"{name} from .* is not the published file"):
        open_model("packaged", task, tmp_path)


def test_weights_of_the_models_folder_come_before_the_carriers(tmp_path: Path) -> None:
    own = tmp_path / MTCNN.name
    own.mkdir()
    shutil.copy(MTCNN.paths(None)["onet.onnx"], own / "onet.onnx")
    located = MTCNN.paths(tmp_path)
    assert located["onet.onnx"] == own / "onet.onnx"
    assert located["pnet.onnx"] == MTCNN.paths(None)["pnet.onnx"]


def test_a_file_that_is_no_network_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "odd.onnx"
    path.write_bytes(b"odd")
    with pytest.raises(WeightsError, match=r"odd\.onnx cannot be run on this machine"):
        Network(path)
