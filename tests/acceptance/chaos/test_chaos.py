"""A chaos run with a fixed seed: VAS_CHAOS_SECONDS long, VAS_CHAOS_SEED for another one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.acceptance.chaos.run import Plan, chaos

SECONDS = float(os.environ.get("VAS_CHAOS_SECONDS", "0"))
SEED = int(os.environ.get("VAS_CHAOS_SEED", "8"))

pytestmark = [
    pytest.mark.service,
    pytest.mark.timeout(1.5 * SECONDS + 900),
    pytest.mark.skipif(SECONDS == 0, reason="VAS_CHAOS_SECONDS=300 runs it"),
]


@pytest.mark.parametrize("one_process", [False, True], ids=["two nodes", "one process"])
def test_whatever_breaks_nothing_is_lost_and_nothing_happens_twice(
    tmp_path: Path, one_process: bool
) -> None:
    found = chaos(Plan(seconds=SECONDS, seed=SEED, one_process=one_process), tmp_path)
    print(found)
    assert found["violated"] == []
    assert found["jobs"] > 0
    assert found["ends"].get("completed", 0) > 0
    missed = [kind for kind, times in found["faults_by_kind"].items() if times == 0]
    assert not missed, "the run was too short to break everything once"
