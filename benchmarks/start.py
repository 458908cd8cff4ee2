"""How long ``vas serve`` takes to be ready and to stop, this checkout beside another.

    python -m benchmarks.start --old CHECKOUT PYTHON

Each round starts both services twice in a folder of their own, the first time without a database;
which side comes first changes from round to round. A start is timed to the line with the base URL
and the key, a stop from SIGTERM to the end of the process. One JSON line last, in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from serve_app.deployment.local import free_port
from tests.places import PROJECT

STOP_SECONDS = 120


def measured(checkout: Path, python: str, data: Path) -> tuple[float, float]:
    """Seconds of a start and of the stop after it."""
    command = [python, "-m", "serve_app.cli", "serve", "--json"]
    command += ["--port", str(free_port()), "--data", str(data)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    begun = time.perf_counter()
    with subprocess.Popen(
        command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True
    ) as service:
        assert service.stdout is not None
        if "baseUrl" not in service.stdout.readline():
            raise SystemExit(f"The service of {checkout} does not start.")
        begun_seconds = time.perf_counter() - begun
        # Checkouts of before took signals only a moment after the line.
        time.sleep(1)
        stopping = time.perf_counter()
        service.send_signal(signal.SIGTERM)
        service.wait(STOP_SECONDS)
        return begun_seconds, time.perf_counter() - stopping


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", nargs=2, metavar=("CHECKOUT", "PYTHON"))
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    sides = {"new": (PROJECT, sys.executable)}
    if options.old:
        # Resolving the interpreter would lead out of its virtual environment.
        sides["old"] = (Path(options.old[0]).resolve(), os.path.abspath(options.old[1]))  # noqa: PTH100
    times: defaultdict[str, list[float]] = defaultdict(list)
    for round_number in range(options.rounds):
        order = sorted(sides, reverse=bool(round_number % 2))
        with tempfile.TemporaryDirectory(prefix="vas-bench-") as folder:
            for start in ("first", "next"):
                for side in order:
                    begun, stopped = measured(*sides[side], Path(folder) / side)
                    times[f"{side}_{start}_start"].append(begun)
                    times[f"{side}_stop"].append(stopped)
                    print(f"{side}: {start} start {begun:.1f} s, stop {stopped:.1f} s")
    result = {name: round(median(values), 2) for name, values in sorted(times.items())}
    print(json.dumps(result | {"rounds": options.rounds}))


if __name__ == "__main__":
    main()
