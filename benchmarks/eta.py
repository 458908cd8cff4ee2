"""The end that a job tells while it runs, beside the one it came to.

    .venv/bin/python -m benchmarks.eta [--minutes 10] [--modes all vision] [--jobs 2]
        [--trace FILE]

The demo video over and over, one job after the other in one warm service, asked every second. The
peer is the plain rule of three of the job's own ``progress``. An error is the difference of the
told and the real seconds that are left, as a share of the whole time; after the first tenth of the
time the worst and the median of a job are reported, when the worst was told, the share of answers
that were wrong by more than a quarter, and how long nothing was told. ``--trace`` keeps every
answer. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.capacity import repeated
from serve_app.client.api import TERMINAL_STATES, ApiClient
from tests.acceptance.service import running
from tests.places import DEMO

POLL_SECONDS = 1.0
SKIPPED_SHARE = 0.1
BAR = 0.25
DEMO_SECONDS = 29.76


@dataclass(frozen=True, slots=True)
class Told:
    """One answer: when, how far, and how long it says that the rest takes."""

    seconds: float
    progress: float
    left_seconds: float | None
    stages: dict[str, float]
    """Progress of each stage."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--modes", nargs="*", default=["all", "vision"])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--trace", type=Path, help="keeps every answer there, a line each")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="vas-told-") as name:
        folder = Path(name)
        times = round(options.minutes * 60 / DEMO_SECONDS)
        footage = repeated(DEMO, folder / "footage.mp4", max(1, times))
        with running(folder / "data", folder / "service.log") as service:
            for mode in options.modes:
                for number in range(options.jobs):
                    with ApiClient(service.base_url, service.api_key) as client:
                        told, whole = watched(client, footage, mode)
                    which = {"mode": mode, "job": number + 1}
                    if options.trace:
                        keep(options.trace, which | {"whole_seconds": whole}, told)
                    rows.append(which | judged(told, whole))
                    print(json.dumps(rows[-1]), flush=True)
    print(json.dumps({"minutes": options.minutes, "jobs": rows}))


def watched(client: ApiClient, footage: Path, mode: str) -> tuple[list[Told], float]:
    """What a job told from its upload's end to its own, and how long that took."""
    job = client.create_job(footage.name, footage.stat().st_size, mode)  # type: ignore[arg-type]
    client.upload(footage, job["uploadUrl"], job["uploadHeaders"])
    began = time.monotonic()
    told: list[Told] = []
    while True:
        shown = client.get_job(job["jobId"])
        now = time.monotonic() - began
        if shown["state"] in TERMINAL_STATES:
            if shown["state"] != "completed":
                raise RuntimeError(str(shown))
            return told, now
        stages = {name: stage["progress"] for name, stage in shown["stages"].items()}
        left = shown["estimatedCompletionTimeSeconds"]
        told.append(Told(now, shown["progress"], left, stages))
        time.sleep(POLL_SECONDS)


def judged(told: Sequence[Told], whole: float) -> dict[str, Any]:
    """Errors after the first tenth, ours and the rule of three's, and pauses of the progress."""
    later = [each for each in told if each.seconds > SKIPPED_SHARE * whole]
    said = [each for each in later if each.left_seconds is not None]
    ours = [
        (each.seconds, abs((each.left_seconds or 0.0) - (whole - each.seconds)) / whole)
        for each in said
    ]
    plain = [
        (each.seconds, abs(each.seconds / each.progress - whole) / whole)
        for each in later
        if each.progress > 0
    ]
    return {
        "seconds": round(whole, 1),
        "untold_seconds": round(told_from(told), 1),
        "ours": errors(ours),
        "rule_of_three": errors(plain),
        "stood_still_seconds": round(longest_pause(told), 1),
    }


def told_from(told: Sequence[Told]) -> float:
    """When an end was told first."""
    return next((each.seconds for each in told if each.left_seconds is not None), float("nan"))


def errors(found: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Of (when it was told, error)."""
    if not found:
        return {}
    when, worst = max(found, key=lambda each: each[1])
    values = [error for _, error in found]
    return {
        "worst": round(worst, 3),
        "worst_told_at": round(when, 1),
        "beyond_bar": round(sum(error > BAR for error in values) / len(values), 3),
        "median": round(statistics.median(values), 3),
    }


def keep(path: Path, which: dict[str, Any], told: Sequence[Told]) -> None:
    """Every answer of a job, appended to ``path``."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(which | asdict(each)) + "\n" for each in told)


def longest_pause(told: Sequence[Told]) -> float:
    """Seconds for which the progress stayed as it was."""
    longest, since = 0.0, told[0]
    for each in told:
        if each.progress > since.progress:
            since = each
        longest = max(longest, each.seconds - since.seconds)
    return longest


if __name__ == "__main__":
    main()
