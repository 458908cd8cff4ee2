"""The committed media are what their truth files say, so that other tests may rely on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from models.backends.packaged.faces import FaceFinder
from models.registry import MTCNN
from tests.tables import every

MEDIA = Path(__file__).parent
DEMO = MEDIA / "demo.mp4"
TRUTH: dict[str, Any] = json.loads((MEDIA / "demo.truth.json").read_text())
SPEECH_TRUTH: dict[str, Any] = json.loads((MEDIA / "speech" / "truth.json").read_text())
NAMES = MEDIA / "product_names"
PRODUCT_NAMES = ("Zorvane", "Quillbrix", "Nevastra", "Plumeris", "Tarkwell", "Vexalith", "Brimora",
                 "Dulvane")  # fmt: skip
NAMES_TRUTH: dict[str, Any] = json.loads((NAMES / "truth.json").read_text())
FRAME_MS = 1000 // int(TRUTH["media"]["frame_rate"])

Gray = NDArray[np.uint8]


@pytest.fixture(scope="module")
def frames() -> list[Gray]:
    """The luma of every frame."""
    with av.open(str(DEMO)) as container:
        return [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]


def sound_of(path: Path) -> tuple[NDArray[np.float32], int]:
    """All samples of the first channel, and how many make a second."""
    with av.open(str(path)) as container:
        rate = container.streams.audio[0].rate
        resampler = av.AudioResampler("fltp", "mono", rate)
        pieces = [
            part.to_ndarray()[0]
            for frame in [*container.decode(audio=0), None]
            for part in resampler.resample(frame)
        ]
    return np.concatenate(pieces), rate


def changes(frames: list[Gray], first: int, last: int) -> NDArray[np.float64]:
    """Mean absolute difference of each frame from the one before it."""
    pairs = zip(frames[first - 1 : last - 1], frames[first:last], strict=True)
    return np.array([cv2.absdiff(before, after).mean() for before, after in pairs])


def test_the_demo_is_small_and_as_long_as_it_says(frames: list[Gray]) -> None:
    assert DEMO.stat().st_size < 2_000_000
    assert len(frames) == TRUTH["media"]["frames"]
    assert len(frames) * FRAME_MS == TRUTH["media"]["duration_ms"]
    assert frames[0].shape == (TRUTH["media"]["height"], TRUTH["media"]["width"])


def test_the_shots_of_the_demo_follow_each_other_without_gaps() -> None:
    starts = [shot["start_ms"] for shot in TRUTH["shots"]]
    ends = [shot["end_ms"] for shot in TRUTH["shots"]]
    assert starts == [0, *[cut["time_ms"] for cut in TRUTH["cuts"]]]
    assert ends == [*starts[1:], TRUTH["media"]["duration_ms"]]
    assert len(TRUTH["shots"]) >= 6


@every("cut", [pytest.param(cut, id=f"frame {cut['frame']}") for cut in TRUTH["cuts"]])
def test_the_picture_changes_where_the_truth_has_a_joint(
    frames: list[Gray], cut: dict[str, Any]
) -> None:
    frame = cut["frame"]
    if cut["kind"] == "fade":
        assert max(frames[frame - 1].mean(), frames[frame].mean()) < 18  # black in video range
        assert frames[cut["start_ms"] // FRAME_MS - 1].mean() > 60
        assert frames[cut["end_ms"] // FRAME_MS].mean() > 60
    else:
        around = changes(frames, frame - 5, frame + 6)
        assert around.argmax() == 5
        assert around[5] > 4 * np.delete(around, 5).max()


@pytest.mark.parametrize(
    "shot", [pytest.param(shot, id=shot["name"]) for shot in TRUTH["shots"] if shot["faces"]]
)
def test_the_drawn_faces_are_found(frames: list[Gray], shot: dict[str, Any]) -> None:
    finder = FaceFinder(MTCNN.paths(None))
    for frame in range(shot["start_ms"] // FRAME_MS, shot["end_ms"] // FRAME_MS, 25):
        picture = np.repeat(frames[frame][:, :, None], 3, axis=2)
        assert len(finder.find(picture)) == shot["faces"]


def _all_sentences() -> list[Any]:
    spoken = [(DEMO, TRUTH["sentences"])]
    spoken += [(MEDIA / "speech" / name, SPEECH_TRUTH[name]["sentences"]) for name in SPEECH_TRUTH]
    spoken += [(NAMES / name, NAMES_TRUTH[name]["sentences"]) for name in NAMES_TRUTH]
    return [pytest.param(path, sentences, id=path.name) for path, sentences in spoken]


@every(("path", "sentences"), _all_sentences())
def test_it_is_loud_while_somebody_speaks_and_quiet_just_before_and_after(
    path: Path, sentences: list[dict[str, Any]]
) -> None:
    samples, rate = sound_of(path)

    def loudness(start_ms: int, end_ms: int) -> float:
        part = samples[start_ms * rate // 1000 : end_ms * rate // 1000]
        return float(np.sqrt((part**2).mean()))

    for sentence in sentences:
        start, end = sentence["start_ms"], sentence["end_ms"]
        assert loudness(start, end) > 0.05, sentence
        assert loudness(start - 150, start - 20) < 0.01, sentence
        assert loudness(end + 20, end + 150) < 0.01, sentence


def test_the_speech_files_have_one_and_two_voices_in_turn() -> None:
    voices = {name: [s["voice"] for s in SPEECH_TRUTH[name]["sentences"]] for name in SPEECH_TRUTH}
    assert len(set(voices["one_voice.flac"])) == 1
    assert len(set(voices["two_voices.flac"])) == 2
    assert voices["two_voices.flac"] == voices["two_voices.flac"][:2] * 3


def test_sentences_and_a_voice_of_the_product_names_are_held_back() -> None:
    said = {
        name: [(each["text"], each["voice"]) for each in NAMES_TRUTH[name]["sentences"]]
        for name in NAMES_TRUTH
    }
    trained = said["trained.ogg"]
    held_back, other = said["held_back.ogg"], said["other_voice.ogg"]
    assert not {text for text, _ in trained} & {text for text, _ in [*held_back, *other]}
    assert {voice for _, voice in trained} == {voice for _, voice in held_back}
    assert not {voice for _, voice in trained} & {voice for _, voice in other}
    for name in PRODUCT_NAMES:
        for each in said.values():
            assert any(name in text for text, _ in each)
