"""Sentences of two languages one after the other: is each written in its own?

    .venv/bin/python -m benchmarks.code_switching

Twenty files made of real recordings, without the silence around them, with pauses of 0.1 to 1 s
between. A word belongs to the sentence that it lies in by its middle; it is in its language where
its segment is. Error rates by jiwer over the words of each sentence in its time, beside plain
faster-whisper with the same weights on the same files. The last line is JSON.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import jiwer
import numpy as np

from benchmarks.speech.material import (
    MIXED_RECORDINGS,
    RECORDINGS,
    Recording,
    load,
    scored_tokens,
    truth_of,
)
from benchmarks.transcript import Answer, ours_of, plain
from models.contracts import SAMPLE_RATE_HZ, Samples
from pipelines.media.audio import FRAME_SAMPLES, frame_levels
from pipelines.types import TranscriptWord
from tests.places import SHARED_MEDIA

SENTENCES = (
    "leopard-test.wav",
    "leopard-test_de.wav",
    "leopard-test_es.wav",
    "leopard-test_fr.wav",
    "jfk.wav",
    "fleurs-de.wav",
)
PAUSES_SECONDS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
FILES = 20
_QUIET_DB = 30.0
"""So far below the loudest frame nobody speaks at the ends of a recording."""


def main() -> None:
    """Measure and print."""
    rows = []
    for first, second, pause_seconds in pairs():
        parts = [trimmed(load(SHARED_MEDIA / each.path)) for each in (first, second)]
        pause = np.zeros(round(pause_seconds * SAMPLE_RATE_HZ), np.float32)
        samples = np.concatenate([parts[0], pause, parts[1]])
        seam_ms = (len(parts[0]) + len(pause) / 2) * 1000 / SAMPLE_RATE_HZ
        row: dict[str, Any] = {"files": [first.name, second.name], "pause": pause_seconds}
        for name, side in (("ours", ours_of), ("plain", plain)):
            row[name] = scores(side(samples), (first, second), seam_ms)
        rows.append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
    totals = {
        side: {
            "in_language": round(
                sum(row[side]["in_language"] for row in rows)
                / max(1, sum(row[side]["words"] for row in rows)),
                3,
            ),
            "error_rate": round(
                sum(row[side]["errors"] for row in rows) / sum(row[side]["tokens"] for row in rows),
                3,
            ),
        }
        for side in ("ours", "plain")
    }
    print(json.dumps({"files": len(rows), **totals}))


def pairs() -> Iterator[tuple[Recording, Recording, float]]:
    """Two recordings of different languages, and the seconds between."""
    by_name = {each.name: each for each in (*RECORDINGS, *MIXED_RECORDINGS)}
    chosen = [by_name[name] for name in SENTENCES]
    ordered = [
        pair for pair in itertools.permutations(chosen, 2) if pair[0].language != pair[1].language
    ]
    for pair, pause in zip(ordered[:FILES], itertools.cycle(PAUSES_SECONDS), strict=False):
        yield *pair, pause


def trimmed(samples: Samples) -> Samples:
    """Without the silence before and after what is spoken."""
    levels = frame_levels(samples)
    loud = np.flatnonzero(levels > levels.max() - _QUIET_DB)
    return samples[max(0, loud[0] - 2) * FRAME_SAMPLES : (loud[-1] + 3) * FRAME_SAMPLES]


def scores(answer: Answer, sentences: Sequence[Recording], seam_ms: float) -> dict[str, Any]:
    """Words, those of them in their sentence's language, and errors of the truth's tokens."""
    found: list[list[TranscriptWord]] = [[], []]
    for word in answer.words:
        found[(word.start_ms + word.end_ms) / 2 > seam_ms].append(word)
    row: dict[str, Any] = {"words": 0, "in_language": 0, "errors": 0, "tokens": 0, "text": []}
    for words, sentence in zip(found, sentences, strict=True):
        text = " ".join(word.text for word in words)
        truth = scored_tokens(truth_of(sentence), sentence.language)
        result = jiwer.process_words(
            " ".join(truth), " ".join(scored_tokens(text, sentence.language))
        )
        row["words"] += len(words)
        row["in_language"] += sum(
            (word.language or answer.language) == sentence.language for word in words
        )
        row["errors"] += result.substitutions + result.deletions + result.insertions
        row["tokens"] += len(truth)
        row["text"].append(text)
    return row


if __name__ == "__main__":
    main()
