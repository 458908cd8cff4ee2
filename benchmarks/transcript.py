"""Words, languages and speed of the packaged transcription, in one run with its peers.

    .venv/bin/python -m benchmarks.transcript [--only jfk.wav …]

Ours: the pipeline's own steps (speech detection, chunks, transcriber, voices, segments) in one
process. Plain: faster-whisper's WhisperModel.transcribe with its defaults on the whole file, the
same weights and compute type. Both in this run, on one core. Error rates by jiwer, over words
(characters of Japanese) as normalised by Whisper's own evaluation. Seconds are processor seconds,
per second of audio, with the loading of the models left out and all else included.

Times of words against forced alignments and another engine's (approximate), where a recording has
them: the starts of words that both have. The last line is JSON. Needs the real media beside the
project; speakers: benchmarks/speakers.py.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jiwer
import numpy as np

from benchmarks.speech.material import (
    MIXED_RECORDINGS,
    RECORDINGS,
    Recording,
    Turn,
    load,
    scored_tokens,
    truth_of,
)
from benchmarks.speech.plain_loop import transcribe_samples
from models.contracts import SAMPLE_RATE_HZ, Samples
from models.provider import LocalModels
from models.registry import WHISPER_BASE
from pipelines.speech.pipeline import TranscriptConfig
from pipelines.types import TranscriptWord
from tests.places import SHARED_MEDIA

TURN_GAP_SECONDS = 0.5
"""Words of one speaker closer than this are one stretch of speech."""
LANGUAGE_SECONDS = 5.0
"""The language is judged on recordings of at least this length."""
CONFIDENCE_CLASSES = (0.0, 0.3, 0.5, 0.7, 0.9, 1.01)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one side makes of one recording."""

    words: list[TranscriptWord]
    language: str | None
    processor_seconds: float = 0.0


Side = Callable[[Samples], Answer]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names of recordings")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sides: dict[str, Side] = {"ours": ours_of, "plain": plain}
    for side in sides.values():  # models are loaded once, outside the figures
        side(np.zeros(SAMPLE_RATE_HZ, np.float32))
    print(json.dumps(words_table(sides, options.only)))


def words_table(sides: dict[str, Side], only: Sequence[str] | None) -> dict[str, Any]:
    """Errors of every recording and overall, and how honest our confidences are."""
    rows = []
    judged: list[tuple[float, bool]] = []
    for recording in (*RECORDINGS, *MIXED_RECORDINGS):
        if only and recording.name not in only:
            continue
        samples = load(SHARED_MEDIA / recording.path, recording.channel)
        answers = {name: timed(side, samples) for name, side in sides.items()}
        rows.append(_word_row(recording, samples, answers))
        judged += judged_words(recording, answers["ours"].words)
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    return {"words": _word_totals(rows, sides), "reliability": reliability(judged), "files": rows}


def _word_row(recording: Recording, samples: Samples, answers: dict[str, Answer]) -> dict[str, Any]:
    truth = scored_tokens(truth_of(recording), recording.language)
    row: dict[str, Any] = {
        "file": recording.name,
        "group": _group(recording),
        "language": recording.language,
        "tokens": len(truth),
        "seconds": round(len(samples) / SAMPLE_RATE_HZ, 2),
    }
    for name, each in answers.items():
        text = " ".join(word.text for word in each.words)
        found = jiwer.process_words(
            " ".join(truth), " ".join(scored_tokens(text, recording.language))
        )
        errors = found.substitutions + found.deletions + found.insertions
        row[name] = {
            "errors": errors,
            "error_rate": round(errors / len(truth), 3),
            "language": each.language,
            "processor_seconds": round(each.processor_seconds, 2),
            "start_errors_ms": start_errors_ms(recording, each.words),
            "text": text,
        }
    return row


def start_errors_ms(recording: Recording, words: Sequence[TranscriptWord]) -> list[int]:
    """Of each word that the aligned truth has too, how far its start is from there."""
    name = Path(recording.path).stem.replace("leopard-test_", "leopard-")
    file = SHARED_MEDIA / "speech" / f"{name.replace('leopard-test', 'leopard-en')}.words.json"
    if not file.is_file():
        return []
    aligned = json.loads(file.read_text())
    truth = [(each["word"], each["start_sec"]) for each in aligned.get("words", ())] or [
        (each["t"].split("(")[0], each["b"]) for each in aligned["w"] if each["t"] != "<sil>"
    ]
    true_starts, starts = (
        [(token, at) for text, at in timed for token in scored_tokens(text, recording.language)]
        for timed in (truth, [(word.text, word.start_ms / 1000) for word in words])
    )
    spoken, written = (" ".join(token for token, _ in tokens) for tokens in (true_starts, starts))
    places = [
        (chunk.ref_start_idx + at, chunk.hyp_start_idx + at)
        for chunk in jiwer.process_words(spoken, written).alignments[0]
        if chunk.type == "equal"
        for at in range(chunk.ref_end_idx - chunk.ref_start_idx)
    ]
    return [round(1000 * abs(starts[at][1] - true_starts[true][1])) for true, at in places]


def _group(recording: Recording) -> str:
    folder = "" if recording.path.startswith("speech/") else f", {recording.path.split('/')[0]}"
    return recording.language + folder


def _word_totals(rows: Sequence[dict[str, Any]], sides: dict[str, Side]) -> dict[str, Any]:
    names = sorted({row["group"] for row in rows})
    others = tuple(name for name in names if not name.startswith("en"))
    groups = {"all": "", "other than English": others, **{name: name for name in names}}
    totals = {
        group: {
            name: _total([row for row in rows if row["group"].startswith(beginnings)], name)
            for name in sides
        }
        for group, beginnings in groups.items()
        if any(row["group"].startswith(beginnings) for row in rows)
    }
    long = [row for row in rows if row["seconds"] >= LANGUAGE_SECONDS]
    right = {name: sum(row[name]["language"] == row["language"] for row in long) for name in sides}
    return totals | {"language_right": right | {"files": len(long)}}


def _total(rows: Sequence[dict[str, Any]], side: str) -> dict[str, float]:
    tokens = sum(row["tokens"] for row in rows)
    seconds = sum(row["seconds"] for row in rows)
    spent = sum(row[side]["processor_seconds"] for row in rows)
    off_ms = [ms for row in rows for ms in row[side]["start_errors_ms"]]
    times = {
        f"start_error_ms_{share}": round(float(np.percentile(off_ms, share)))
        for share in (50, 95)
        if off_ms
    }
    return times | {
        "error_rate": round(sum(row[side]["errors"] for row in rows) / tokens, 3),
        "mean_error_rate_per_file": round(
            sum(row[side]["error_rate"] for row in rows) / len(rows), 3
        ),
        "processor_seconds_per_second": round(spent / seconds, 3),
    }


def judged_words(recording: Recording, words: Sequence[TranscriptWord]) -> list[tuple[float, bool]]:
    """Each token's confidence, and whether it is right where the alignment puts it."""
    truth = scored_tokens(truth_of(recording), recording.language)
    tokens = [
        (token, word.confidence)
        for word in words
        for token in scored_tokens(word.text, recording.language)
    ]
    if not tokens:
        return []
    found = jiwer.process_words(" ".join(truth), " ".join(token for token, _ in tokens))
    right = {
        index
        for chunk in found.alignments[0]
        if chunk.type == "equal"
        for index in range(chunk.hyp_start_idx, chunk.hyp_end_idx)
    }
    return [(confidence, index in right) for index, (_, confidence) in enumerate(tokens)]


def reliability(judged: Sequence[tuple[float, bool]]) -> list[dict[str, float]]:
    """Words by confidence: how many, how sure on average, how many of them right."""
    table = []
    for low, high in itertools.pairwise(CONFIDENCE_CLASSES):
        inside = [(sure, right) for sure, right in judged if low <= sure < high]
        if inside:
            table.append(
                {
                    "from": low,
                    "words": len(inside),
                    "mean_confidence": round(sum(sure for sure, _ in inside) / len(inside), 3),
                    "right": round(sum(right for _, right in inside) / len(inside), 3),
                }
            )
    return table


def turns_from(words: Sequence[TranscriptWord]) -> list[Turn]:
    """The stretches in which one speaker speaks."""
    turns: list[Turn] = []
    for word in words:
        start, end, speaker = word.start_ms / 1000, word.end_ms / 1000, word.speaker or "nobody"
        if turns and turns[-1][2] == speaker and start - turns[-1][1] <= TURN_GAP_SECONDS:
            turns[-1] = (turns[-1][0], end, speaker)
        else:
            turns.append((start, end, speaker))
    return turns


def timed(side: Side, samples: Samples) -> Answer:
    """A side's answer, with its processor seconds."""
    started = time.process_time()
    answer = side(samples)
    return Answer(answer.words, answer.language, time.process_time() - started)


def ours_of(samples: Samples, config: TranscriptConfig | None = None) -> Answer:
    """The whole pipeline, with the defaults that the service has."""
    config = config or TranscriptConfig()
    with tempfile.TemporaryDirectory() as folder:
        result = transcribe_samples(samples, Path(folder), LocalModels(), config)
    words = [word for segment in result.segments for word in segment.words]
    return Answer(words, result.language)


def plain(samples: Samples) -> Answer:
    """faster-whisper as its documentation uses it, with the times of words."""
    segments, info = plain_model().transcribe(samples, word_timestamps=True)
    words = [
        TranscriptWord(
            word.word.strip(),
            round(word.start * 1000),
            round(word.end * 1000),
            word.probability,
            "one",
        )
        for segment in segments
        for word in segment.words
    ]
    return Answer(words, info.language if words else None)


@functools.cache
def plain_model() -> Any:
    from faster_whisper import WhisperModel

    files = WHISPER_BASE.read(None)
    return WhisperModel("whisper", device="cpu", compute_type="int8", cpu_threads=1, files=files)


if __name__ == "__main__":
    main()
