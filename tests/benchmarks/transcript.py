"""Words, languages, speakers and speed of the packaged transcription, in one run with its peers.

    .venv/bin/python -m tests.benchmarks.transcript [--only jfk.wav …] [--old CHECKOUT PYTHON]

Ours: the pipeline's own steps (speech detection, chunks, transcriber, voices, segments) in one
process. Plain: faster-whisper's WhisperModel.transcribe with its defaults on the whole file, the
same weights and compute type. Both in this run, on one core. Error rates by jiwer, over words
(characters of Japanese) as normalised by Whisper's own evaluation. Seconds are processor seconds,
per second of audio, with the loading of the models left out and all else included.

Diarisation error rates by pyannote.metrics with a collar of 0.25 s, overlaps counted, over whole
recordings, beside plain (one speaker); ``--old`` names a checkout and its interpreter, which
transcribes the same recordings with the defaults of then. Half of them (TUNED_CONVERSATIONS) had a
part in tuning; the others are reported apart. The last line is JSON. Needs the real media beside
the project.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jiwer
import numpy as np

from models.contracts import SAMPLE_RATE_HZ, Samples
from models.provider import LocalModels
from models.registry.packaged import WHISPER_BASE
from pipelines.speech.pipeline import TranscriptConfig
from pipelines.types import TranscriptWord
from tests.benchmarks.speech.material import (
    CONVERSATIONS,
    RECORDINGS,
    TUNED_CONVERSATIONS,
    Recording,
    Turn,
    load,
    scored_tokens,
    truth_of,
    turns_of,
)
from tests.benchmarks.speech.plain_loop import transcribe_samples
from tests.places import SHARED_MEDIA

TURN_GAP_SECONDS = 0.5
"""Words of one speaker closer than this are one stretch of speech."""
COLLAR_SECONDS = 0.25
LANGUAGE_SECONDS = 5.0
"""The language is judged on recordings of at least this length."""
CONFIDENCE_CLASSES = (0.0, 0.3, 0.5, 0.7, 0.9, 1.01)

_OLD_PROGRAM = """
import json, sys
from pathlib import Path
from tests.benchmarks.speech.material import load
from tests.benchmarks.transcript import ours, turns_from
for path in sys.argv[1:]:
    print(json.dumps(turns_from(ours(load(Path(path))))), flush=True)
"""


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
    parser.add_argument("--old", nargs=2, metavar=("CHECKOUT", "PYTHON"))
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sides: dict[str, Side] = {"ours": ours_of, "plain": plain}
    for side in sides.values():  # models are loaded once, outside the figures
        side(np.zeros(SAMPLE_RATE_HZ, np.float32))
    words = words_table(sides, options.only)
    speakers = speakers_table(sides, options.only, options.old)
    print(json.dumps(words | speakers))


def words_table(sides: dict[str, Side], only: Sequence[str] | None) -> dict[str, Any]:
    """Errors of every recording and overall, and how honest our confidences are."""
    rows = []
    judged: list[tuple[float, bool]] = []
    for recording in RECORDINGS:
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
            "text": text,
        }
    return row


def _group(recording: Recording) -> str:
    if not recording.path.startswith("speech/"):
        return "English, elsewhere"
    return "English" if recording.language == "en" else "other languages"


def _word_totals(rows: Sequence[dict[str, Any]], sides: dict[str, Side]) -> dict[str, Any]:
    totals = {
        group: {
            name: _total([row for row in rows if group in ("all", row["group"])], name)
            for name in sides
        }
        for group in ("all", *sorted({row["group"] for row in rows}))
        if rows
    }
    long = [row for row in rows if row["seconds"] >= LANGUAGE_SECONDS]
    right = {name: sum(row[name]["language"] == row["language"] for row in long) for name in sides}
    return totals | {"language_right": right | {"files": len(long)}}


def _total(rows: Sequence[dict[str, Any]], side: str) -> dict[str, float]:
    tokens = sum(row["tokens"] for row in rows)
    seconds = sum(row["seconds"] for row in rows)
    spent = sum(row[side]["processor_seconds"] for row in rows)
    return {
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


def speakers_table(
    sides: dict[str, Side], only: Sequence[str] | None, old: tuple[str, str] | None
) -> dict[str, Any]:
    """Diarisation errors of the conversations, and their means over each half."""
    paths = [path for path in CONVERSATIONS if not only or Path(path).name in only]
    before = _old_turns(paths, *old) if old else {}
    rows = []
    for path in paths:
        samples = load(SHARED_MEDIA / path)
        turns = {name: turns_from(side(samples).words) for name, side in sides.items()}
        if path in before:
            turns["old"] = before[path]
        row: dict[str, Any] = {"file": Path(path).name, "tuned_on": path in TUNED_CONVERSATIONS}
        for name, found in turns.items():
            row[name] = diarisation_error(turns_of(path), found, len(samples) / SAMPLE_RATE_HZ)
            row[name]["speakers"] = len({speaker for _, _, speaker in found})
        rows.append(row)
        print(json.dumps(row), flush=True)
    halves = {
        "all": rows,
        "tuned_on": [row for row in rows if row["tuned_on"]],
        "reported": [row for row in rows if not row["tuned_on"]],
    }
    names = (*sides, *(["old"] if before else []))
    totals = {
        half: {name: _total_der(members, name) for name in names}
        for half, members in halves.items()
        if members
    }
    return {"der": totals, "conversations": rows}


def _total_der(rows: Sequence[dict[str, Any]], name: str) -> dict[str, float]:
    """Over all spoken time together, as pyannote.metrics accumulates it, and a file's mean."""
    spoken = sum(row[name]["spoken_seconds"] for row in rows)
    errors = sum(row[name]["der"] * row[name]["spoken_seconds"] for row in rows)
    return {
        "together": round(errors / spoken, 3),
        "mean_per_file": round(sum(row[name]["der"] for row in rows) / len(rows), 3),
    }


def _old_turns(paths: Sequence[str], checkout: str, python: str) -> dict[str, list[Turn]]:
    """The turns that another checkout finds in the recordings."""
    files = [str((SHARED_MEDIA / path).resolve()) for path in paths]
    done = subprocess.run(
        [python, "-c", _OLD_PROGRAM, *files],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": checkout, "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {
        path: [(start, end, name) for start, end, name in turns]
        for path, turns in zip(paths, found, strict=True)
    }


def diarisation_error(
    truth: Sequence[Turn], found: Sequence[Turn], seconds: float
) -> dict[str, float]:
    """DER and its parts, as shares of the time that is spoken (twice where two speak)."""
    from pyannote.core import Segment, Timeline
    from pyannote.metrics.diarization import DiarizationErrorRate

    scores = DiarizationErrorRate(collar=COLLAR_SECONDS)(
        _annotation(truth), _annotation(found), detailed=True, uem=Timeline([Segment(0, seconds)])
    )
    parts = {
        "missed": "missed detection",
        "false_alarm": "false alarm",
        "confusion": "confusion",
    }
    shares = {name: round(scores[key] / scores["total"], 3) for name, key in parts.items()}
    return {
        "der": round(scores["diarization error rate"], 3),
        "spoken_seconds": round(scores["total"], 2),
    } | shares


def _annotation(turns: Sequence[Turn]) -> Any:
    from pyannote.core import Annotation, Segment

    annotation = Annotation()
    for number, (start, end, speaker) in enumerate(turns):
        annotation[Segment(start, end), number] = speaker
    return annotation


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


def ours_of(samples: Samples) -> Answer:
    """The whole pipeline, with the defaults that the service has."""
    with tempfile.TemporaryDirectory() as folder:
        result = transcribe_samples(samples, Path(folder), LocalModels(), TranscriptConfig())
    words = [word for segment in result.segments for word in segment.words]
    return Answer(words, result.language)


def plain(samples: Samples) -> Answer:
    """faster-whisper as its documentation uses it, with the times of words."""
    segments, info = _plain_model().transcribe(samples, word_timestamps=True)
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
def _plain_model() -> Any:
    from faster_whisper import WhisperModel

    files = WHISPER_BASE.read(None)
    return WhisperModel("whisper", device="cpu", compute_type="int8", cpu_threads=1, files=files)


if __name__ == "__main__":
    main()
