"""The transformers backend with real weights: the packaged Whisper base converted, on real speech.

Beside it the same weights on CTranslate2, whose words and times are the reference.
"""

from __future__ import annotations

import json
import statistics
import string
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

import av
import jiwer
import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration

from models.backends.packaged.transcriber import CTranslate2Transcriber
from models.backends.transformers import pick_hardware
from models.backends.transformers.whisper import WhisperTranscriber
from models.contracts import SAMPLE_RATE_HZ, AudioChunk, Samples, Word
from models.registry import WHISPER_BASE
from models.tasks import Transcriber
from tests.models.tiny_models import TINY_CTRANSLATE2, save_tiny_ctranslate2_whisper, save_whisper
from tests.models.whisper_conversion import convert_whisper, read_variables, state_of
from tests.places import PROJECT
from tests.tables import every

OWN = PROJECT / "tests/media/speech"
SHARED = PROJECT / "../shared/media/speech"


@dataclass(frozen=True, slots=True)
class Backends:
    transformers: Transcriber
    ctranslate2: Transcriber


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Backends:
    files = WHISPER_BASE.read(None)
    folder = convert_whisper(files, tmp_path_factory.mktemp("whisper-base"))
    return Backends(
        WhisperTranscriber(str(folder), None, pick_hardware("cpu"), max_batch=1),
        CTranslate2Transcriber(files),
    )


def samples_of(path: Path) -> Samples:
    """Mono at SAMPLE_RATE_HZ, 30 seconds at most."""
    resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE_HZ)
    with av.open(str(path)) as container:
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
    frames += resampler.resample(None)
    pieces = [frame.to_ndarray()[0] for frame in frames]
    return np.concatenate(pieces)[: 30 * SAMPLE_RATE_HZ].astype(np.float32)


def plain(text: str) -> str:
    lowered = text.lower().replace("-", " ")
    return " ".join(lowered.translate(str.maketrans("", "", string.punctuation)).split())


def words_of(transcriber: Transcriber, samples: Samples) -> list[Word]:
    [transcript] = transcriber.transcribe([AudioChunk(samples)])
    assert transcript.language == "en"
    return list(transcript.words)


def error_rate(truth: str, words: Sequence[Word]) -> float:
    found: float = jiwer.wer(plain(truth), plain(" ".join(word.text for word in words)))
    return found


def differences_ms(one: Sequence[Word], other: Sequence[Word]) -> list[float]:
    """Between starts and between ends of the words that both have."""
    texts, others = ([plain(word.text) for word in words] for words in (one, other))
    blocks = SequenceMatcher(a=texts, b=others, autojunk=False).get_matching_blocks()
    pairs = [(one[b.a + n], other[b.b + n]) for b in blocks for n in range(b.size)]
    starts = [abs(a.start_seconds - b.start_seconds) * 1000 for a, b in pairs]
    return starts + [abs(a.end_seconds - b.end_seconds) * 1000 for a, b in pairs]


def compared(backends: Backends, path: Path, truth: str) -> None:
    samples = samples_of(path)
    ours, theirs = words_of(backends.transformers, samples), words_of(backends.ctranslate2, samples)
    rates = error_rate(truth, ours), error_rate(truth, theirs)
    print(f"{path.name}: WER {rates[0]:.3f}, CTranslate2 {rates[1]:.3f}")
    assert rates[0] <= rates[1] + 0.02
    apart = differences_ms(ours, theirs)
    print(f"times {statistics.median(apart):.0f} ms apart at the median, {max(apart):.0f} at most")
    assert len(apart) >= len(theirs)
    assert statistics.median(apart) <= 100


@pytest.mark.parametrize(
    "name", ["one_voice.flac", pytest.param("two_voices.flac", marks=pytest.mark.long)]
)
def test_real_speech_is_transcribed_as_by_ctranslate2_and_words_lie_where_its_do(
    backends: Backends, name: str
) -> None:
    sentences = json.loads((OWN / "truth.json").read_text())[name]["sentences"]
    compared(backends, OWN / name, " ".join(each["text"] for each in sentences))


@pytest.mark.shared_media
@pytest.mark.parametrize(
    "name",
    [
        "jfk.wav",
        pytest.param("librivox-austen-0870.wav", marks=pytest.mark.long),
        pytest.param("librivox-austen-0890.wav", marks=pytest.mark.long),
    ],
)
def test_recorded_speech_too(backends: Backends, name: str) -> None:
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"{name} is not beside the project")
    compared(backends, path, path.with_suffix(".txt").read_text())


def test_the_conversion_is_the_way_back_from_ctranslate2s_own(tmp_path: Path) -> None:
    there = save_whisper(tmp_path / "transformers", TINY_CTRANSLATE2)
    back = save_tiny_ctranslate2_whisper(tmp_path / "ctranslate2") / "model.bin"
    expected = WhisperForConditionalGeneration.from_pretrained(there).state_dict()
    found = state_of(read_variables(back.read_bytes()))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@every("version", [5, 7])
def test_another_binary_version_is_refused(version: int) -> None:
    content = version.to_bytes(4, "little") + b"\x0c\x00WhisperSpec\x00" + bytes(12)
    with pytest.raises(ValueError, match=f"version {version}"):
        read_variables(content)
