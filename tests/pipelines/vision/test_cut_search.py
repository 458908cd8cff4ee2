"""Cuts are looked for in tasks of some blocks each; the result is that of one look at all."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from models.provider import LocalModels
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.types import CutsBy
from pipelines.vision.bars import WHOLE as NO_BARS
from pipelines.vision.cuts.measures import Blank
from pipelines.vision.cuts.selection import (
    BlankRun,
    Candidates,
    CutConfig,
    FeaturesPart,
    Found,
    SearchCuts,
    block_runs,
    detect_cuts,
    together,
)
from pipelines.vision.features import FrameFeatures, to_bytes
from storage.objects.folder import FolderStore
from tests.pipelines.vision.test_cuts import FRAME_MS, PROGRAMME, WHOLE_CUTS, features
from tests.tables import every

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
        parts.append(FeaturesPart(f"job/{index}", 0, len(part)))
    return parts


@every("blocks", [1, 2, 3, 100])
@every("borders", [[], [1, 500, 500, 1001]])
def test_tasks_find_what_one_look_finds(
    workspace: Workspace, blocks: int, borders: list[int]
) -> None:
    parts = stored(workspace, borders, shift_ms=7_000)
    runs = block_runs(parts, NO_BARS, 7_000, DURATION_MS, blocks)
    assert len(runs) == -(-len(WHOLE) // (256 * blocks))
    config = CutConfig(by=CutsBy.MEASURED)
    found = together(map_here(runs, SearchCuts(workspace, LocalModels(), config), FreeRun()))
    assert Candidates.among(found, DURATION_MS).select(CutConfig()) == WHOLE_CUTS


def test_a_task_reads_no_more_than_its_surroundings(workspace: Workspace) -> None:
    parts = stored(workspace, [500])
    first, *_, last = block_runs(parts, NO_BARS, 0, DURATION_MS, 1)
    assert [part.key for part in first.features] == ["job/0", "job/1"]
    assert [part.key for part in last.features] == ["job/1"]


def test_no_frames_make_no_work() -> None:
    assert block_runs([], NO_BARS, 0, 1_000, 4) == []
    assert detect_cuts([], 1_000) == ()


def test_blank_runs_that_touch_are_one() -> None:
    black, white = Blank.BLACK, Blank.WHITE
    one = Found(blanks=(BlankRun(0, 40, black), BlankRun(80, 120, white)))
    two = Found(blanks=(BlankRun(120, 200, white), BlankRun(200, 240, black)))
    assert together([one, two]).blanks == (
        BlankRun(0, 40, black),
        BlankRun(80, 200, white),
        BlankRun(200, 240, black),
    )
