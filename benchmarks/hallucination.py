"""Words that are made up where nobody speaks: ten minutes each of silence, noises and music.

    .venv/bin/python -m benchmarks.hallucination [--seconds 600] [--seed 2026]

Ours: the pipeline's own steps in one process. Plain: faster-whisper's defaults, the same weights,
on the first ``--plain-seconds`` of each kind. The made kinds come from a seed that nothing was
tuned on (tuning looked at seed 1); recordings, marked as such, are played in a loop. The target is
at most 5 words in all. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.speech.material import load
from benchmarks.speech.noises import KINDS, made
from benchmarks.transcript import ours_of, plain
from models.contracts import SAMPLE_RATE_HZ, Samples
from models.provider import LocalModels
from models.tasks import TRANSCRIBE
from tests.places import SHARED_MEDIA

REPORTED_SEED = 2026
RECORDED = {
    "rain (recorded)": "speech/rain-nospeech.mp3",
    "room (recorded)": "speech/leopard-empty-nospeech.wav",
    "film music (recorded)": "cuts/big_buck_bunny_0_30.webm",
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--plain-seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=REPORTED_SEED)
    parser.add_argument("--only", nargs="*", help="names of kinds")
    options = parser.parse_args()
    LocalModels().get(TRANSCRIBE)
    rows = []
    for kind, samples in material(options.seconds, options.seed, options.only):
        rows.append(row(kind, samples, options.plain_seconds))
        print(json.dumps(rows[-1]), flush=True)
    minutes = sum(each["minutes"] for each in rows)
    print(
        json.dumps(
            {
                "seed": options.seed,
                "minutes": round(minutes, 1),
                "words": sum(each["words"] for each in rows),
                "kinds_without_words": sum(not each["words"] for each in rows),
                "plain_words_a_minute": round(
                    float(np.mean([each["plain_words_a_minute"] for each in rows])), 1
                ),
                "kinds": rows,
            }
        )
    )


def material(seconds: float, seed: int, only: list[str] | None) -> Iterator[tuple[str, Samples]]:
    """Each kind's name and its sound."""
    for kind in KINDS:
        if not only or kind in only:
            yield kind, made(kind, seconds, seed)
    for kind, path in RECORDED.items():
        if (not only or kind in only) and (SHARED_MEDIA / path).exists():
            yield kind, looped(load(SHARED_MEDIA / path), seconds)


def looped(samples: Samples, seconds: float) -> Samples:
    """The samples over and over again, ``seconds`` long."""
    return np.resize(samples, round(seconds * SAMPLE_RATE_HZ))


def row(kind: str, samples: Samples, plain_seconds: float) -> dict[str, Any]:
    """What both sides make of one kind."""
    started = time.process_time()
    words = ours_of(samples).words
    processor_seconds = time.process_time() - started
    part = samples[: round(plain_seconds * SAMPLE_RATE_HZ)]
    seconds = len(samples) / SAMPLE_RATE_HZ
    return {
        "kind": kind,
        "minutes": round(seconds / 60, 1),
        "words": len(words),
        "said": " ".join(word.text for word in words[:12]),
        "processor_seconds_per_second": round(processor_seconds / seconds, 4),
        "plain_words_a_minute": round(
            len(plain(part).words) / (len(part) / SAMPLE_RATE_HZ / 60), 1
        ),
    }


if __name__ == "__main__":
    main()
