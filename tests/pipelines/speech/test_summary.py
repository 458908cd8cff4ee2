"""Summaries of transcripts: windows, bounds, times, what is kept, what its failure means."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from models.contracts import Excerpt, SummarySentence
from models.provider import LocalModels
from models.tasks import SUMMARIZE, Contract, Task
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.speech.texts import SummaryConfig, summarize
from pipelines.stages import StageRunner
from pipelines.types import (
    PipelineWarning,
    StageCode,
    StageError,
    StageStoppedError,
    TimedSentence,
    WarningCode,
)
from serve_app.work.stage_work import StageWork
from storage.objects import ObjectStoreUnavailableError
from storage.objects.folder import FolderStore
from tests.tables import every

SMALL = SummaryConfig(models="first", window_bytes=100, line_bytes=50, max_sentences=3,
                      window_sentences=2, max_windows=20)  # fmt: skip


@dataclass
class FirstLines:
    """Sums up by repeating the first lines; counts what it is asked."""

    asked: list[Excerpt] = field(default_factory=list)
    error: Exception | None = None

    def find(self, task: Task[Contract]) -> Contract | None:
        assert task is SUMMARIZE
        return cast("Contract", self)

    def summarize(self, excerpts: Sequence[Excerpt]) -> list[tuple[SummarySentence, ...]]:
        self.asked += excerpts
        if self.error is not None:
            raise self.error
        firsts = [enumerate(each.lines[: each.max_sentences]) for each in excerpts]
        return [tuple(SummarySentence(*numbered) for numbered in first) for first in firsts]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(FolderStore(tmp_path), "jobs/x/work")


def said(count: int, text: str = "This is sentence number {}.") -> list[TimedSentence]:
    return [TimedSentence(text.format(n), 1000 * n, 1000 * n + 900) for n in range(count)]


def made(
    lines: Sequence[TimedSentence], workspace: Workspace, models: Any, config: SummaryConfig = SMALL
) -> tuple[TimedSentence, ...]:
    return summarize(lines, workspace=workspace, models=models, control=FreeRun(), config=config,
                     mapper=map_here)  # fmt: skip


@every("count", [0, 1, 2, 10, 200, 2000])
def test_a_summary_of_any_length_is_short_and_rests_on_what_was_said(
    workspace: Workspace, count: int
) -> None:
    models = FirstLines()
    lines = said(count)
    found = made(lines, workspace, models)
    assert len(found) == min(count, SMALL.max_sentences)
    assert set(found) <= set(lines)
    for excerpt in models.asked:
        assert sum(len(line.encode()) for line in excerpt.lines) <= SMALL.window_bytes
        assert 1 <= excerpt.max_sentences <= min(SMALL.max_sentences, len(excerpt.lines))
    assert len(models.asked) <= 4 * SMALL.max_windows


def test_windows_of_a_long_transcript_are_spread_over_it(workspace: Workspace) -> None:
    models = FirstLines()
    made(said(2000), workspace, models)
    numbers = [int(each.lines[0].split()[-1].rstrip(".")) for each in models.asked[:20]]
    assert numbers[0] == 0
    assert numbers[-1] >= 1850
    assert {after - before for before, after in pairwise(numbers)} == {
        99,
        102,
    }


def test_long_lines_are_cut_between_characters_and_empty_ones_left_out(
    workspace: Workspace,
) -> None:
    models = FirstLines()
    made([TimedSentence("  ", 0, 1), TimedSentence("音" * 90 + "\n楽", 1, 2)], workspace, models)
    assert [each.lines for each in models.asked] == [("音" * 16,)]


def test_what_was_made_is_used_again_by_the_same_model_only(workspace: Workspace) -> None:
    models = FirstLines()
    first = made(said(10), workspace, models)
    asked = len(models.asked)
    assert made(said(10), workspace, models) == first
    assert len(models.asked) == asked
    made(said(10), workspace, models, SummaryConfig(models="second"))
    assert len(models.asked) == asked + 1


def test_a_stop_is_obeyed_and_a_failure_named(workspace: Workspace) -> None:
    with pytest.raises(StageError, match="Summary failed: RuntimeError: no"):
        made(said(3), workspace, FirstLines(error=RuntimeError("no")))
    workspace.request_stop()
    with pytest.raises(StageStoppedError):
        made(said(3), workspace, FirstLines())


def test_the_packaged_profile_has_none() -> None:
    assert LocalModels().find(SUMMARIZE) is None


@dataclass
class Broken:
    """Stages whose summaries fail in turn as listed."""

    errors: list[Exception]

    def summarize(self, *_: object) -> tuple[TimedSentence, ...]:
        if self.errors:
            raise self.errors.pop(0)
        return (TimedSentence("All is well.", 1000, 2500),)


AWAY = ObjectStoreUnavailableError("away")


@pytest.mark.parametrize(
    ("errors", "made_in_the_end"),
    [([AWAY, AWAY], True), ([RuntimeError()], True), ([RuntimeError()] * 2, False),
     ([StageError(StageCode.TRANSCRIPT_FAILED, "no")], False)],
)  # fmt: skip
async def test_outages_are_waited_for_and_a_failure_is_a_warning(
    errors: list[Exception], made_in_the_end: bool
) -> None:
    runner = StageRunner("job", pauses_seconds=(0, 0))
    with ThreadPoolExecutor(1) as threads:
        nothing: Any = None
        work = StageWork(nothing, nothing, nothing, nothing, threads, FreeRun(), runner, nothing)
        stages: Any = Broken(list(errors))
        found = await work._summary(stages, [])
    if made_in_the_end:
        assert found == (TimedSentence("All is well.", 1000, 2500),)
    else:
        assert isinstance(found, PipelineWarning)
        assert found.code is WarningCode.SUMMARY_FAILED
