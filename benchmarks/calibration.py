"""How true confidences are, before and after calibration, and what a review promises and keeps.

    .venv/bin/python -m benchmarks.calibration [--folder DIR] [--fit]

Recordings with known text stand in two halves by speaker (``benchmarks/speech/judged.py``).
Numbers are fitted (``--fit`` prints them) on the tuning half only; figures to quote are the
reporting half's.

The expected calibration error is the mean distance of confidence and share of right ones over ten
bins of equal mass (Naeini 2015, with the adaptive bins of Nixon 2019). A review's promise: errors
expected to remain once the stretches of a budget are corrected, against those that do. The last
line is JSON. Needs the real media beside the project.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speech.judged import (
    REPORTING,
    TUNING,
    JudgedSegment,
    Spoken,
    judged,
    spoken,
    transcript_in,
)
from models.profiles import digest_of
from models.tasks import TRANSCRIBE
from pipelines.across.review import review_of
from pipelines.speech.pipeline import calibrated, log_odds, word_calibrations
from pipelines.types import TranscriptResult

BINS = 10
BUDGETS = (0.1, 0.2, 0.4)
"""Shares of the length."""
Pair = tuple[float, float]
"""A confidence, and 1 for right, 0 for wrong, or a share between."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="keeps transcripts from run to run")
    parser.add_argument("--fit", action="store_true", help="prints numbers for calibration.toml")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vas-calibration-") as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found = [(each, transcript_in(folder, each)) for each in spoken()]
    if options.fit:
        print(json.dumps(fitted([pair for pair in found if pair[0].half == TUNING])))
        return
    name = digest_of("packaged", (TRANSCRIBE,))
    known = word_calibrations()[name]
    report: dict[str, Any] = {"digest": name}
    for half in (TUNING, REPORTING):
        own = [pair for pair in found if pair[0].half == half]
        report[half] = {
            "before": reliability([(each, judged(each, it)) for each, it in own]),
            "after": reliability([(each, judged(each, calibrated(it, known))) for each, it in own]),
            "review": promises([(each, calibrated(it, known)) for each, it in own]),
        }
        print(json.dumps({half: report[half]}, indent=1), flush=True)
    print(json.dumps(report))


def reliability(found: Sequence[tuple[Spoken, Sequence[JudgedSegment]]]) -> dict[str, Any]:
    """Of words and segments: errors of calibration and curves."""
    words, segments = list[Pair](), list[Pair]()
    for _, rows in found:
        for row in rows:
            own = _pairs(row)
            words += own
            if own:
                share = sum(right for _, right in own) / len(own)
                segments.append((row.segment.confidence, share))
    return {"words": curve_of(words), "segments": curve_of(segments)}


def curve_of(pairs: Sequence[Pair]) -> dict[str, Any]:
    """The error of calibration, and each bin's size, mean confidence and share of right ones."""
    bins = [each for each in np.array_split(np.array(sorted(pairs)), BINS) if len(each)]
    means = [(len(each), *each.mean(axis=0).tolist()) for each in bins]
    error = sum(count * abs(sure - right) for count, sure, right in means) / len(pairs)
    return {
        "count": len(pairs),
        "right": round(sum(right for _, right in pairs) / len(pairs), 4),
        "error": round(error, 4),
        "curve": [(count, round(sure, 4), round(right, 4)) for count, sure, right in means],
    }


def promises(found: Sequence[tuple[Spoken, TranscriptResult]]) -> list[dict[str, float]]:
    """For each budget the errors promised to remain, and those that remain by the truth."""
    rows = []
    for share in BUDGETS:
        expected, left, before, expected_before = 0.0, 0, 0, 0.0
        for each, it in found:
            segments = judged(each, it)
            media_ms = round(len(each.samples()) / 16)
            made = review_of(
                it.segments,
                [],
                [],
                language=it.language,
                checked=frozenset(),
                budget_ms=round(share * media_ms),
                media_ms=media_ms,
            )
            checked = {index for each in made.intervals for index in each.segments}
            expected += made.after.word_errors
            expected_before += made.before.word_errors
            for row in segments:
                before += row.wrong + row.missing
                left += 0 if row.segment.index in checked else row.wrong + row.missing
        rows.append(
            {
                "budget": share,
                "errors_before": before,
                "promised_before": round(expected_before, 1),
                "errors_left": left,
                "promised_left": round(expected, 1),
            }
        )
    return rows


def fitted(found: Sequence[tuple[Spoken, TranscriptResult]]) -> dict[str, float]:
    """Bias and slope, and how many words are missing for each that is wrong."""
    rows = [row for each, it in found for row in judged(each, it)]
    pairs = [pair for row in rows for pair in _pairs(row)]
    bias, slope = logistic([log_odds(sure) for sure, _ in pairs], [right for _, right in pairs])
    missing = sum(row.missing for row in rows) / max(1, sum(row.wrong for row in rows))
    return {"words": len(pairs), "bias": bias, "slope": slope, "missing_a_wrong_word": missing}


def logistic(odds: Sequence[float], right: Sequence[float]) -> tuple[float, float]:
    """Bias and slope of the likeliest logistic curve, by Newton's steps."""
    columns = np.stack([np.ones(len(odds)), np.array(odds)], axis=1)
    made = np.zeros(2)
    for _ in range(50):
        sure = 1 / (1 + np.exp(-columns @ made))
        bend = columns.T @ (columns * (sure * (1 - sure))[:, None])
        made += np.linalg.solve(bend, columns.T @ (np.array(right) - sure))
    return round(float(made[0]), 4), round(float(made[1]), 4)


def _pairs(row: JudgedSegment) -> list[Pair]:
    """Each scored word's confidence, and whether it is right."""
    return [
        (word.confidence, float(right))
        for word, right in zip(row.segment.words, row.right, strict=True)
        if right is not None
    ]


if __name__ == "__main__":
    main()
