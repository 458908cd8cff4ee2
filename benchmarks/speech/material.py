"""Recordings of real speech with what is said in them, and by whom; read where they lie."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np

from models.contracts import SAMPLE_RATE_HZ, Samples
from tests.places import SHARED_MEDIA

Turn = tuple[float, float, str]
"""Start and end in seconds, and who speaks."""

_CUE_TIMES = re.compile(r"-->")


@dataclass(frozen=True, slots=True)
class Recording:
    """A file of speech. ``text`` is what is said; a name ending in .txt or .vtt says where."""

    path: str
    text: str
    language: str = "en"
    channel: int | None = None
    """Of several channels, the one to listen to; None: all mixed."""

    @property
    def name(self) -> str:
        channel = "" if self.channel is None else f" ch{self.channel}"
        return Path(self.path).name + channel


RECORDINGS = (
    Recording("speech/jfk.wav", "speech/jfk.txt"),
    Recording("speech/librivox-austen-0870.wav", "speech/librivox-austen-0870.txt"),
    Recording("speech/librivox-austen-0880.wav", "speech/librivox-austen-0880.txt"),
    Recording("speech/librivox-austen-0890.wav", "speech/librivox-austen-0890.txt"),
    Recording("speech/azure-en.wav", "speech/azure-en.txt"),
    Recording(
        "speech/leopard-test.wav",
        "Mr. Quilter is the apostle of the middle classes and we are glad to welcome his gospel.",
    ),
    Recording("speech/spk1_snt1.wav", "the child almost hurt the small dog"),
    Recording("speech/spk1_snt2.wav", "drop the two when you add the figures"),
    Recording("speech/spk1_snt5.wav", "Sunday is the best part of the week"),
    Recording("speech/cards-001.wav", "ten of clubs"),
    Recording("speech/cards-002.wav", "four queen of clubs"),
    Recording("speech/cards-005.wav", "eight of spades four of clubs seven of hearts"),
    Recording("speech/ps-goforward.wav", "go forward ten metrics"),
    Recording("speech/whatstheweatherlike.wav", "What's the weather like?"),
    Recording("speech/sonnet-I-p001.mp3", "speech/sonnet-I.txt"),
    Recording(
        "speech/leopard-test_es.wav",
        "Las arenas son blanquecinas de grano medio y tiene muy poca asistencia.",
        "es",
    ),
    Recording(
        "speech/leopard-test_de.wav",
        "Der hinter diesem Portal liegenden Raum wurde als Leichenhalle genutzt.",
        "de",
    ),
    Recording(
        "speech/leopard-test_fr.wav",
        "Sous le consulat il devient conservateur des eaux et forêts et conseiller général.",
        "fr",
    ),
    Recording("speech/azure-de.wav", "speech/azure-de.txt", "de"),
    Recording("speech/azure-ja.wav", "speech/azure-ja.txt", "ja"),
    Recording("cuts/friday.mp4", "cuts/friday.vtt"),
    Recording(
        "speakers/stereo-two-channels.wav",
        "He began a confused complaint against the wizard,"
        " who had vanished behind the curtain on the left.",
        channel=0,
    ),
    Recording(
        "speakers/stereo-two-channels.wav", "The horizon seems extremely distant.", channel=1
    ),
)

MIXED_RECORDINGS = (
    Recording(
        "mixed-speech/english-chinese-accent.wav", "Have you ever been in a dangerous situation?"
    ),
    Recording("mixed-speech/mfa-whispered.flac", "this is all very whispered"),
    Recording("mixed-speech/mfa-laughter.flac", "montreal forced aligner"),
    Recording("mixed-speech/fleurs-de.wav", "mixed-speech/fleurs-de.txt", "de"),
    Recording("mixed-speech/zh-meeting-farfield.wav", "mixed-speech/zh-meeting-farfield.txt", "zh"),
)
"""Accents, whispering, laughter, far microphones: no threshold was chosen on their words."""

CONVERSATIONS = {
    "speakers/sample.wav": ("speakers/sample.rttm", "sample"),
    "speakers/ami-dev00.wav": ("speakers/ami-dev.rttm", "dev00"),
    "speakers/ami-dev01.wav": ("speakers/ami-dev.rttm", "dev01"),
    "speakers/ami-trn01.wav": ("speakers/ami-train.rttm", "trn01"),
    "speakers/ami-trn02.wav": ("speakers/ami-train.rttm", "trn02"),
    "speakers/ami-trn05.wav": ("speakers/ami-train.rttm", "trn05"),
    "speakers/ami-trn06.wav": ("speakers/ami-train.rttm", "trn06"),
}
"""Recording of several speakers: the file of its turns, and its name in there."""


def scored_tokens(text: str, language: str) -> list[str]:
    """What an error rate counts: normalised words, characters where words are not spaced.

    The normalisers of Whisper's own evaluation, so that "10" and "ten" are the same word.
    """
    from transformers.models.whisper.english_normalizer import (
        BasicTextNormalizer,
        EnglishTextNormalizer,
    )

    if language == "en":
        words: list[str] = EnglishTextNormalizer({})(text).split()
        return words
    plain = BasicTextNormalizer()(text)
    return [*"".join(plain.split())] if language in {"ja", "zh"} else plain.split()


def truth_of(recording: Recording) -> str:
    """What is said in a recording."""
    if not recording.text.endswith((".txt", ".vtt")):
        return recording.text
    text = (SHARED_MEDIA / recording.text).read_text(encoding="utf-8-sig")
    if recording.text.endswith(".vtt"):
        text = "\n".join(_cue_lines(text))
    # The reader says the numeral that heads the sonnet.
    return re.sub(r"\AI\n", "one\n", text)


def _cue_lines(text: str) -> list[str]:
    lines = text.splitlines()[1:]
    return [line for line in lines if line.strip() and not _CUE_TIMES.search(line)]


def turns_of(path: str) -> list[Turn]:
    """Who speaks when in a recording of CONVERSATIONS, from its RTTM file."""
    file, name = CONVERSATIONS[path]
    rows = [line.split() for line in (SHARED_MEDIA / file).read_text().splitlines()]
    return [
        (float(row[3]), float(row[3]) + float(row[4]), row[7])
        for row in rows
        if row and row[1] == name
    ]


def load(path: Path, channel: int | None = None) -> Samples:
    """The first audio stream as mono samples at SAMPLE_RATE_HZ."""
    layout = "mono" if channel is None else "stereo"
    resampler = av.AudioResampler(format="fltp", layout=layout, rate=SAMPLE_RATE_HZ)
    with av.open(str(path)) as container:
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
    frames += resampler.resample(None)
    samples: Samples = np.concatenate([frame.to_ndarray()[channel or 0] for frame in frames])
    return samples
