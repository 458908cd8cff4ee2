"""Chapters of programmes joined from different subjects: boundaries within five seconds.

    .venv/bin/python -m benchmarks.chapters [--programmes 40] [--tuned] [--semantic]

Talks of ``speech/subjects.py`` with times as a transcript has them (words, pauses, segments by the
pipeline's own rules), in orders and from sentences that the seed gives: joined from recordings of
different people, an interview, a lecture. And recordings of different speakers and subjects, joined
and put through the packaged models. The target is 0.8 for what is joined. Beside it: as many
boundaries at equal distances. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np

from benchmarks.speech.material import load
from benchmarks.speech.subjects import REPORTED, TUNED
from benchmarks.transcript import ours_of
from models.contracts import SAMPLE_RATE_HZ
from models.provider import LocalModels
from models.tasks import EMBED_TEXT, TextEmbedder
from pipelines.across.chapters import find_chapters
from pipelines.speech.words import SegmentLimits, build_segments
from pipelines.types import TranscriptSegment, TranscriptWord
from tests.places import SHARED_MEDIA

TOLERANCE_MS = 5_000
WRONG_VOICES = 0.1
JOINED = 5
REPORTED_SEED = 2026
RECORDINGS = ("speech/azure-en.wav", "speech/sonnet-I-p001.mp3", "speakers/sample.wav",
              "speech/azure-de.wav", "speakers/ami-trn05.wav")  # fmt: skip
Programme = tuple[Sequence[TranscriptSegment], list[int], int]
"""Segments, true boundaries and duration, both in ms."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programmes", type=int, default=40)
    parser.add_argument("--seed", type=int, default=REPORTED_SEED)
    parser.add_argument("--tuned", action="store_true", help="only the talks that may be tuned on")
    parser.add_argument("--semantic", action="store_true", help="with vectors of the segments")
    options = parser.parse_args()
    embedder = LocalModels().find(EMBED_TEXT) if options.semantic else None
    talks = TUNED if options.tuned else REPORTED
    rng = random.Random(options.seed)
    summary: dict[str, Any] = {"seed": options.seed}
    for kind in ("joined", "interview", "lecture"):
        made = [programme_of(talks, rng, kind) for _ in range(options.programmes)]
        summary[kind] = scored(made, embedder)
    if not options.tuned:
        summary["recordings"] = scored(recorded(rng), embedder)
    print(json.dumps(summary))


def programme_of(talks: dict[str, str], rng: random.Random, kind: str) -> Programme:
    """Three to all of the talks in some order, each from some sentence on.

    Of kind ``joined`` each talk has one or two voices of its own, and some sentences go to a wrong
    one, as speakers are told apart. In an ``interview`` the same two take turns of some sentences
    throughout; in a ``lecture`` one voice says everything.
    """
    names = rng.sample(sorted(talks), rng.randint(3, len(talks)))
    words: list[TranscriptWord] = []
    boundaries: list[int] = []
    time_ms = voices = 0
    for name in names:
        boundaries.append(time_ms)
        own = [f"speaker_{voices + n}" for n in range(rng.randint(1, 2))]
        voices += len(own)
        for count, sentence in enumerate(
            talks[name].replace("\n", " ").split(". ")[rng.randint(0, 3) :]
        ):
            voice = rng.choice(own)
            if rng.random() < WRONG_VOICES:
                voice = f"speaker_{rng.randint(0, 9)}"
            if kind != "joined":
                voice = f"speaker_{count // 4 % 2 if kind == 'interview' else 0}"
            for text in [*sentence.removesuffix(".").split(" ")[:-1],
                         f"{sentence.removesuffix('.').split(' ')[-1]}."]:  # fmt: skip
                length_ms = 80 + 55 * len(text) + rng.randint(0, 60)
                words.append(TranscriptWord(text, time_ms, time_ms + length_ms, 0.9, voice))
                time_ms += length_ms + rng.randint(10, 60)
            # Pauses between subjects are as those between sentences: they give nothing away.
            time_ms += rng.randint(200, 900)
    return build_segments(words, SegmentLimits()), boundaries[1:], time_ms


def recorded(rng: random.Random) -> list[Programme]:
    """Recordings joined in several orders, each programme through the whole pipeline."""
    sounds = [load(SHARED_MEDIA / name) for name in RECORDINGS]
    programmes: list[Programme] = []
    for order in rng.sample(list(permutations(sounds, 4)), JOINED):
        segments = build_segments(ours_of(np.concatenate(order)).words, SegmentLimits())
        ends = np.cumsum([round(1000 * len(sound) / SAMPLE_RATE_HZ) for sound in order])
        programmes.append((segments, [int(end) for end in ends[:-1]], int(ends[-1])))
    return programmes


def scored(programmes: Sequence[Programme], embedder: TextEmbedder | None = None) -> dict[str, Any]:
    """F1 of the boundaries over all programmes, of ours and of equal distances; seconds taken."""
    ours, equal, spent = np.zeros(3), np.zeros(3), 0.0
    for segments, truth, duration_ms in programmes:
        texts = list({segment.text for segment in segments})
        vectors = dict(zip(texts, embedder.embed_texts(texts), strict=True)) if embedder else None
        began = time.perf_counter()
        chapters = find_chapters(segments, duration_ms=duration_ms, vectors=vectors)
        spent += time.perf_counter() - began
        ours += hits([chapter.start_ms for chapter in chapters[1:]], truth)
        step = duration_ms / (len(truth) + 1)
        equal += hits([round(step * (n + 1)) for n in range(len(truth))], truth)
    return {
        "programmes": len(programmes),
        "f1": f1(ours),
        "found": int(ours[1]),
        "true": int(ours[2]),
        "equal_distances_f1": f1(equal),
        "seconds_each": round(spent / len(programmes), 3),
    }


def hits(found: Sequence[int], truth: Sequence[int]) -> tuple[int, int, int]:
    """Matches one to one within the tolerance, boundaries found, true boundaries."""
    free = list(truth)
    matched = 0
    for boundary in found:
        near = [each for each in free if abs(each - boundary) <= TOLERANCE_MS]
        if near:
            free.remove(min(near, key=lambda each: abs(each - boundary)))
            matched += 1
    return matched, len(found), len(truth)


def f1(counts: Any) -> float:
    """Of matches, found and true."""
    return round(float(2 * counts[0] / max(1, counts[1] + counts[2])), 3)


if __name__ == "__main__":
    main()
