"""Choosing the cuts of long footage: among neighbours, and by comparing all with all.

    .venv/bin/python -m benchmarks.cut_choice [--minutes 60]

The best of the gradual transitions found, by the project and by the plain definition (the peer),
over the same made-up findings; both must choose the same. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time

from pipelines.vision.cuts.gradual import best_graduals
from tests.pipelines.vision.test_cut_selection import best_of_all, busy_minute, repeated


def main() -> None:
    """Both over the same findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=60)
    minutes = parser.parse_args().minutes
    found = list(repeated(busy_minute(), minutes).graduals)
    started = time.perf_counter()
    ours = best_graduals(found)
    between = time.perf_counter()
    peers = best_of_all(found)
    ended = time.perf_counter()
    if ours != peers:
        raise SystemExit("The two chose differently.")
    ours_seconds, peer_seconds = between - started, ended - between
    print(
        json.dumps(
            {
                "minutes": minutes,
                "found": len(found),
                "chosen": len(ours),
                "all_with_all_seconds": round(peer_seconds, 3),
                "neighbours_seconds": round(ours_seconds, 3),
                "ratio": round(peer_seconds / ours_seconds, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
