"""Words, speakers and speed of the embedded transcription against the same engine fed naively.

    .venv/bin/python -m tests.benchmarks.transcript [--only jfk.wav …]

Ours: the pipeline's own steps (speech detection, chunks, transcriber, voices, segments) in one
process. The peer: pocketsphinx with its defaults on the whole file, one speaker. Both in this run,
on one core. Word error rates by jiwer, over the words in lower case without punctuation;
diarisation error rates by pyannote.metrics without a collar, overlaps counted, over what both were
given. Seconds are processor seconds, per second of audio. The last line is JSON.

Needs the real media beside the project.
"""

from __future__ import annotations

import argparse
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
import pocketsphinx

from models.contracts import SAMPLE_RATE_HZ, Samples
from models.provider import LocalModels
from pipelines.speech.pipeline import TranscriptConfig
from pipelines.types import TranscriptWord
from tests.benchmarks.speech.material import (
    CONVERSATIONS,
    RECORDINGS,
    Recording,
    Turn,
    load,
    spoken_words,
    truth_of,
    turns_of,
)
from tests.benchmarks.speech.plain_loop import transcribe_samples
from tests.places import SHARED_MEDIA

TURN_GAP_SECONDS = 0.5
"""Words of one speaker closer than this are one stretch of speech."""
CONFIDENCE_CLASSES = (0.0, 0.3, 0.5, 0.7, 0.9, 1.01)

Hear = Callable[[Samples], list[TranscriptWord]]


@dataclass(frozen=True, slots=True)
class Heard:
    """What one side made of one recording."""

    words: list[TranscriptWord]
    processor_seconds: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names of recordings")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sides: dict[str, Hear] = {"ours": ours, "naive": naive}
    for hear in sides.values():  # models are loaded once, outside the figures
        hear(np.zeros(SAMPLE_RATE_HZ, np.float32))
    print(json.dumps(words_table(sides, options.only) | speakers_table(sides, options.only)))


def words_table(sides: dict[str, Hear], only: Sequence[str] | None) -> dict[str, Any]:
    """Word errors of every recording and overall, and how honest our confidences are."""
    rows = []
    judged: list[tuple[float, bool]] = []
    for recording in RECORDINGS:
        if only and recording.name not in only:
            continue
        samples = load(SHARED_MEDIA / recording.path, recording.channel)
        heard = {name: timed(hear, samples) for name, hear in sides.items()}
        rows.append(_word_row(recording, samples, heard))
        judged += judged_words(truth_of(recording), heard["ours"].words)
        print(json.dumps(rows[-1]), flush=True)
    return {"words": _word_totals(rows, sides), "reliability": reliability(judged), "files": rows}


def _word_row(recording: Recording, samples: Samples, heard: dict[str, Heard]) -> dict[str, Any]:
    truth = truth_of(recording)
    row: dict[str, Any] = {
        "file": recording.name,
        "tuned_on": recording.tuned_on,
        "words": len(truth),
        "seconds": round(len(samples) / SAMPLE_RATE_HZ, 2),
    }
    for name, each in heard.items():
        said = spoken_words(" ".join(word.text for word in each.words))
        found = jiwer.process_words(" ".join(truth), " ".join(said))
        errors = found.substitutions + found.deletions + found.insertions
        row[name] = {
            "errors": errors,
            "wer": round(errors / len(truth), 3),
            "processor_seconds": round(each.processor_seconds, 2),
        }
    return row


def _word_totals(rows: Sequence[dict[str, Any]], sides: dict[str, Hear]) -> dict[str, Any]:
    groups = {
        "all": rows,
        "tuned_on": [row for row in rows if row["tuned_on"]],
        "unseen": [row for row in rows if not row["tuned_on"]],
    }
    return {
        group: {name: _total(members, name) for name in sides}
        for group, members in groups.items()
        if members
    }


def _total(rows: Sequence[dict[str, Any]], side: str) -> dict[str, float]:
    words = sum(row["words"] for row in rows)
    seconds = sum(row["seconds"] for row in rows)
    return {
        "wer": round(sum(row[side]["errors"] for row in rows) / words, 3),
        "mean_wer_per_file": round(sum(row[side]["wer"] for row in rows) / len(rows), 3),
        "real_time_factor": round(sum(row[side]["processor_seconds"] for row in rows) / seconds, 3),
    }


def judged_words(truth: Sequence[str], words: Sequence[TranscriptWord]) -> list[tuple[float, bool]]:
    """Each word's confidence, and whether it is right where the alignment puts it."""
    tokens = [(token, word.confidence) for word in words for token in spoken_words(word.text)]
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


def speakers_table(sides: dict[str, Hear], only: Sequence[str] | None) -> dict[str, Any]:
    """Diarisation errors of the conversations."""
    rows = []
    for path in CONVERSATIONS:
        if only and Path(path).name not in only:
            continue
        samples = load(SHARED_MEDIA / path)
        seconds = len(samples) / SAMPLE_RATE_HZ
        row: dict[str, Any] = {"file": Path(path).name}
        for name, hear in sides.items():
            said = turns_from(hear(samples))
            row[name] = diarisation_error(turns_of(path), said, seconds)
            row[name]["speakers"] = len({speaker for _, _, speaker in said})
        rows.append(row)
        print(json.dumps(row), flush=True)
    means = {
        name: round(sum(row[name]["der"] for row in rows) / max(1, len(rows)), 3) for name in sides
    }
    return {"mean_der": means, "conversations": rows}


def diarisation_error(
    truth: Sequence[Turn], said: Sequence[Turn], seconds: float
) -> dict[str, float]:
    """DER and its parts, as shares of the time that is spoken (twice where two speak)."""
    from pyannote.core import Segment, Timeline
    from pyannote.metrics.diarization import DiarizationErrorRate

    found = DiarizationErrorRate()(
        _annotation(truth), _annotation(said), detailed=True, uem=Timeline([Segment(0, seconds)])
    )
    parts = {
        "missed": "missed detection",
        "false_alarm": "false alarm",
        "confusion": "confusion",
    }
    shares = {name: round(found[key] / found["total"], 3) for name, key in parts.items()}
    return {"der": round(found["diarization error rate"], 3)} | shares


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


def timed(hear: Hear, samples: Samples) -> Heard:
    """What a side hears, and its processor seconds."""
    started = time.process_time()
    words = hear(samples)
    return Heard(words, time.process_time() - started)


def ours(samples: Samples) -> list[TranscriptWord]:
    """The whole pipeline, with the defaults that the service has."""
    with tempfile.TemporaryDirectory() as folder:
        result = transcribe_samples(samples, Path(folder), LocalModels(), TranscriptConfig())
    return [word for segment in result.segments for word in segment.words]


def naive(samples: Samples) -> list[TranscriptWord]:
    """The engine as its documentation feeds it: defaults, the whole file as one utterance."""
    decoder = pocketsphinx.Decoder(loglevel="FATAL")
    decoder.start_utt()
    pcm = (samples.clip(-1, 1) * 32767).astype("<i2").tobytes()
    decoder.process_raw(pcm, no_search=False, full_utt=False)
    decoder.end_utt()
    return [
        TranscriptWord(
            entry.word.split("(")[0], entry.start_frame * 10, entry.end_frame * 10 + 10, 1.0, "one"
        )
        for entry in decoder.seg() or ()
        if not entry.word.startswith(("<", "["))
    ]


if __name__ == "__main__":
    main()
