"""Makes ``speech/*.flac`` and ``speech/truth.json``: 16 kHz mono, synthesised voices.

Run from the project root, on a machine whose ``ffmpeg`` has the ``flite`` filter:

    .venv/bin/python -m tests.media.make_speech

The results are committed: nobody needs to run this to use or test the project.
"""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np

from tests.media.studio.voice import (
    FEMALE_VOICE,
    MALE_VOICE,
    SAMPLE_RATE_HZ,
    Sentence,
    SentenceTruth,
    Sound,
    conversation,
)

FOLDER = Path(__file__).parent / "speech"
ONE_VOICE = (
    Sentence(MALE_VOICE, "this is a short film about the sea and the city"),
    Sentence(MALE_VOICE, "the market is open in the morning"),
    Sentence(MALE_VOICE, "you can see the mountains from here"),
)
TWO_VOICES = (
    Sentence(MALE_VOICE, "good morning and welcome to the show"),
    Sentence(FEMALE_VOICE, "it is almost ten in the morning"),
    Sentence(MALE_VOICE, "i have been working here for ten years"),
    Sentence(FEMALE_VOICE, "there are many people in the street"),
    Sentence(MALE_VOICE, "people are going home for the night"),
    Sentence(FEMALE_VOICE, "we are going to the city tonight"),
)
REPLIES = (
    Sentence(MALE_VOICE, "yes"),
    Sentence(FEMALE_VOICE, "thank you"),
    Sentence(MALE_VOICE, "stop"),
    Sentence(FEMALE_VOICE, "never"),
    Sentence(MALE_VOICE, "no"),
    Sentence(FEMALE_VOICE, "goodbye"),
)


def write_flac(path: Path, samples: Sound) -> None:
    """Write mono samples as 16-bit FLAC."""
    pcm = (samples.clip(-1, 1) * 32767).astype(np.int16)
    with av.open(str(path), "w", format="flac") as container:
        stream = container.add_stream("flac", rate=SAMPLE_RATE_HZ, layout="mono")
        frame = av.AudioFrame.from_ndarray(pcm[np.newaxis], format="s16", layout="mono")
        frame.sample_rate = SAMPLE_RATE_HZ
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def write_conversation(
    name: str, sentences: tuple[Sentence, ...], seed: int, pause_ms: int = 700
) -> list[SentenceTruth]:
    """Write ``<name>.flac``; return what is said in it and when."""
    samples, truths = conversation(sentences, pause_ms=pause_ms, lead_ms=500, seed=seed)
    write_flac(FOLDER / f"{name}.flac", samples)
    return truths


def main() -> None:
    """Write the files and their truth."""
    FOLDER.mkdir(exist_ok=True)
    truth = {
        "one_voice.flac": {"sentences": write_conversation("one_voice", ONE_VOICE, seed=1)},
        "two_voices.flac": {"sentences": write_conversation("two_voices", TWO_VOICES, seed=2)},
        "replies.flac": {"sentences": write_conversation("replies", REPLIES, 3, pause_ms=1500)},
    }
    (FOLDER / "truth.json").write_text(json.dumps(truth, indent=2) + "\n")


if __name__ == "__main__":
    main()
