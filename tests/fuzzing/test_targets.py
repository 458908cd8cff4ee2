"""What the fuzzers found stays mended, and a short look for more of it.

``VAS_FUZZING_ROUNDS`` (1) multiplies the looks. ``python -m tests.fuzzing`` looks for longer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.fuzzing.mutating import INTERESTING, Mutator
from tests.fuzzing.targets import CORPUS, TARGETS, regressions
from tests.places import PROJECT
from tests.tables import every

ROUNDS = int(os.environ.get("VAS_FUZZING_ROUNDS", "1"))
KEPT = [
    pytest.param(name, path, id=f"{name}-{path.name}")
    for name in TARGETS
    for path in regressions(name)
]


@every(("name", "path"), KEPT)
def test_what_broke_an_invariant_once_does_so_no_more(name: str, path: Path) -> None:
    TARGETS[name].check(path.read_bytes())


def test_every_kept_input_belongs_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)


@every("name", TARGETS)
def test_seeds_and_what_is_near_them_keep_the_invariants(name: str) -> None:
    target = TARGETS[name]
    for known in (*target.seeds, b""):
        target.check(known)
    mutator = Mutator(1, target.seeds, 2000)
    for _ in range(150 * ROUNDS):
        target.check(mutator.next())


PIECES = st.one_of(st.binary(max_size=40), st.sampled_from(INTERESTING))


@every("name", TARGETS)
def test_anything_keeps_the_invariants(name: str) -> None:
    target = TARGETS[name]
    known = st.sampled_from(target.seeds)

    @seed(1)
    @settings(
        max_examples=60 * ROUNDS, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(st.one_of(PIECES, known), max_size=6), st.integers(0, 200))
    def look(pieces: list[bytes], cut: int) -> None:
        target.check(b"".join(pieces)[cut // 4 :])

    look()


def test_the_command_runs_a_target_and_finds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzzing", "forwarded-for", "--seconds", "1"]
    done = subprocess.run(
        [*command, "--findings", str(tmp_path / "findings")],
        cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "findings").iterdir()) == []
