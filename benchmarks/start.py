"""What ``vas serve`` takes to be ready, idle, and to stop, this checkout beside another.

    python -m benchmarks.start --old CHECKOUT PYTHON [--idle SECONDS]

Each round starts both services twice in a folder of their own, the first time without a database;
which side comes first changes from round to round. A start is timed to the line with the base URL
and the key, a stop from SIGTERM to the end of the process; the processor seconds of a start are
those that all processes of the service have taken by that line. With ``--idle`` each second start
is left alone for so long before it is stopped: cores in use, memory (PSS) of its processes, both
without PostgreSQL, and transactions a second, after SETTLING_SECONDS. One JSON line last.
"""

from __future__ import annotations

import argparse
import contextlib
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

import psutil
import psycopg

from serve_app.deployment.local import free_port
from tests.places import PROJECT

STOP_SECONDS = 120
SETTLING_SECONDS = 15


def measured(checkout: Path, python: str, data: Path, idle_seconds: float) -> dict[str, float]:
    """A start, where ``idle_seconds`` is not 0 what it takes idle, and its stop."""
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
        found = {"start": time.perf_counter() - begun, "start_processor": processor(service.pid)}
        # Checkouts of before took signals only a moment after the line.
        time.sleep(1)
        if idle_seconds:
            found |= idle(service.pid, data, idle_seconds)
        stopping = time.perf_counter()
        service.send_signal(signal.SIGTERM)
        service.wait(STOP_SECONDS)
        return found | {"stop": time.perf_counter() - stopping}


def processes(pid: int) -> list[psutil.Process]:
    service = psutil.Process(pid)
    return [service, *service.children(recursive=True)]


def processor(pid: int) -> float:
    """Processor seconds of the processes of a service so far."""
    total = 0.0
    for process in processes(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def idle(pid: int, data: Path, seconds: float) -> dict[str, float]:
    """Cores, MiB and transactions a second of a service that nobody uses."""
    time.sleep(SETTLING_SECONDS)
    address = f"postgresql://postgres@/postgres?host={data / 'postgres'}"
    with psycopg.connect(address, autocommit=True) as database:
        committed, used, began = transactions(database), processor(pid), time.perf_counter()
        time.sleep(seconds)
        lasted = time.perf_counter() - began
        used = processor(pid) - used
        committed = transactions(database) - committed - 1  # the first count is in the second
    memory = sum(process.memory_full_info().pss for process in processes(pid))
    return {
        "idle_cores": used / lasted,
        "idle_mib": memory / 2**20,
        "idle_transactions": committed / lasted,
    }


def transactions(database: psycopg.Connection) -> int:
    """Committed and rolled back so far, in the service's database."""
    query = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'postgres'"
    [(count,)] = database.execute(query).fetchall()
    return int(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", nargs=2, metavar=("CHECKOUT", "PYTHON"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--idle", type=float, default=0, metavar="SECONDS")
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
                    waits = options.idle if start == "next" else 0
                    found = measured(*sides[side], Path(folder) / side, waits)
                    for name, value in found.items():
                        label = f"{start}_{name}" if name.startswith("start") else name
                        times[f"{side}_{label}"].append(value)
                    shown = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
                    print(f"{side}: {start} {shown}", flush=True)
    result = {name: round(median(values), 2) for name, values in sorted(times.items())}
    print(json.dumps(result | {"rounds": options.rounds}))


if __name__ == "__main__":
    main()
