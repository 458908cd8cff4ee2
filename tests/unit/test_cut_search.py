"""Cuts are looked for in tasks of some blocks each; the result is that of one look at all."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.execution.chain import Workspace
from pipelines.vision.cuts.measures import Blank
from pipelines.vision.cuts.search import (
    BlankRun,
    FeaturesPart,
    Found,
    found_in,
    make_search_step,
    packed,
    search_rows,
    together,
)
from pipelines.vision.cuts.selection import Candidates, CutConfig, detect_cuts
from pipelines.vision.features import FrameFeatures, to_bytes
from storage.objects.folder import FolderStore
from tests.unit.test_cuts import FRAME_MS, PROGRAMME, WHOLE_CUTS, features

WHOLE = features(PROGRAMME)
DURATION_MS = len(PROGRAMME) * FRAME_MS


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(FolderStore(tmp_path), "job")


def stored(workspace: Workspace, borders: list[int], shift_ms: int = 0) -> list[FeaturesPart]:
    edges = [0, *borders, len(WHOLE)]
    parts = []
    for index, (first, after) in enumerate(pairwise(edges)):
        part = WHOLE.part(first, after)
        moved = FrameFeatures(part.times_ms + shift_ms, part.luma, part.chroma)
        workspace.store.write_bytes(f"job/{index}", to_bytes(moved))
        parts.append(FeaturesPart(f"job/{index}", len(part)))
    return parts


@pytest.mark.parametrize("blocks", [1, 2, 3, 100])
@pytest.mark.parametrize("borders", [[], [1, 500, 500, 1001]])
def test_tasks_find_what_one_look_finds(
    workspace: Workspace, blocks: int, borders: list[int]
) -> None:
    parts = stored(workspace, borders, shift_ms=7_000)
    rows = search_rows(0, parts, 7_000, DURATION_MS, blocks)
    assert len(rows) == -(-len(WHOLE) // (256 * blocks))
    step = make_search_step(workspace, CutConfig())
    found = together(found_in(step(row)) for row in rows)
    assert Candidates.among(found, DURATION_MS).select(CutConfig()) == WHOLE_CUTS


def test_a_task_reads_no_more_than_its_surroundings(workspace: Workspace) -> None:
    parts = stored(workspace, [500])
    first, *_, last = search_rows(0, parts, 0, DURATION_MS, 1)
    assert "job/1" in first["slices"]
    assert "job/0" not in last["slices"]


def test_no_frames_make_no_rows() -> None:
    assert search_rows(0, [], 0, 1_000, 4) == []
    assert detect_cuts([], 1_000) == ()


@given(confidence=st.floats(0, 1), at=st.integers(0, 2**53))
def test_a_row_carries_what_was_found_to_the_last_bit(confidence: float, at: int) -> None:
    found = Found(hard=((at, confidence),), blanks=(BlankRun(at, at + 1, Blank.WHITE),))
    assert found_in({"found": packed(found)}) == found


def test_blank_runs_that_touch_are_one() -> None:
    black, white = Blank.BLACK, Blank.WHITE
    one = Found(blanks=(BlankRun(0, 40, black), BlankRun(80, 120, white)))
    two = Found(blanks=(BlankRun(120, 200, white), BlankRun(200, 240, black)))
    assert together([one, two]).blanks == (
        BlankRun(0, 40, black),
        BlankRun(80, 200, white),
        BlankRun(200, 240, black),
    )
