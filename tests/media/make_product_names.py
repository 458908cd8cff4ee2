"""Makes ``product_names/*.ogg`` and its ``truth.json``: made-up names that Whisper base misspells.

What ``notebooks/04_fine_tune_whisper.ipynb`` trains on and holds back. Run from the project root,
on a machine whose ``ffmpeg`` has the ``flite`` filter:

    .venv/bin/python -m tests.media.make_product_names

The results are committed: nobody needs to run this to use or test the project.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np

from tests.media.studio.voice import (
    FEMALE_VOICE,
    MALE_VOICE,
    SAMPLE_RATE_HZ,
    Sentence,
    Sound,
    conversation,
)

FOLDER = Path(__file__).parent / "product_names"
OTHER_VOICE = "awb"
"""A Scottish speaker, of whom nothing is trained on."""
NAMES = (
    "Zorvane",
    "Quillbrix",
    "Nevastra",
    "Plumeris",
    "Tarkwell",
    "Vexalith",
    "Brimora",
    "Dulvane",
)
TRAINED = (
    "Please send the new {} to the office.",
    "{} was ready on Monday morning.",
    "We have sold more of the {} this year.",
    "My sister works for {} in the city.",
    "Open {} and press the green button.",
    "The price of {} went up again.",
)
HELD_BACK = (
    "How do I install {} on my computer?",
    "I bought {} last week and it is very good.",
    "Nobody at the meeting had heard of {} before.",
    "The team behind {} is coming to the show.",
)


def sentences(templates: tuple[str, ...], each: int, *voices: str) -> Iterator[Sentence]:
    """Every name by every voice in ``each`` sentences, so that all templates come equally often."""
    for place, name in enumerate(NAMES):
        for number, voice in enumerate(voices):
            for turn in range(each):
                chosen = templates[(place + number * each + turn) % len(templates)]
                yield Sentence(voice, chosen.format(name))


FILES = {
    "trained.ogg": tuple(sentences(TRAINED, 3, MALE_VOICE, FEMALE_VOICE)),
    "held_back.ogg": tuple(sentences(HELD_BACK, 1, MALE_VOICE, FEMALE_VOICE)),
    "other_voice.ogg": tuple(sentences(HELD_BACK, 1, OTHER_VOICE)),
}


def write_opus(path: Path, samples: Sound) -> None:
    """Write mono samples as Opus of 24 kbit/s."""
    with av.open(str(path), "w", format="ogg") as container:
        stream = container.add_stream("libopus", rate=SAMPLE_RATE_HZ, layout="mono")
        stream.bit_rate = 24_000
        pcm = (samples.clip(-1, 1) * 32767).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(pcm[np.newaxis], format="s16", layout="mono")
        frame.sample_rate = SAMPLE_RATE_HZ
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def main() -> None:
    """Write the files and their truth."""
    FOLDER.mkdir(exist_ok=True)
    truth = {}
    for seed, (name, spoken) in enumerate(FILES.items()):
        samples, found = conversation(spoken, pause_ms=600, lead_ms=500, seed=seed)
        write_opus(FOLDER / name, samples)
        truth[name] = {"sentences": found}
    (FOLDER / "truth.json").write_text(json.dumps(truth, indent=2) + "\n")


if __name__ == "__main__":
    main()
