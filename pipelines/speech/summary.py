"""A summary of what was said, every sentence with the time that it rests on.

    segments of all tracks -> windows -> sentences (1:1)      the model's time
    sentences, while there are too many -> windows -> sentences

Windows are bounded in size and number, so that the work is: of a longer transcript evenly spaced
ones are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from models.contracts import Excerpt, SummarySentence
from models.provider import ModelProvider
from models.tasks import SUMMARIZE
from pipelines.execution.chain import Chain, Control, Mapper, Row, Step, Workspace
from pipelines.types import StageCode, TimedSentence

_FORMAT = 1
"""Raised when the same lines would be summed up in another way."""


@dataclass(frozen=True, slots=True)
class SummaryConfig:
    """Bounds of a summary and of the work for it."""

    models: str = ""
    """Names the backend in use: results of one are not reused for another."""
    max_sentences: int = 8
    window_sentences: int = 4
    """Most sentences of a window, where there are several."""
    window_bytes: int = 8_000
    """Of a window's lines in UTF-8: about 2,000 tokens in any script."""
    line_bytes: int = 1_000
    """A longer segment is cut. A window must hold more lines than it makes sentences."""
    max_windows: int = 48
    """About seven hours of steady speech; of more, evenly spaced windows are read."""
    num_cpus: float = 0.25
    """Logical CPUs of a task: it waits for a model in another process."""


def summarize(
    said: Sequence[TimedSentence],
    *,
    workspace: Workspace,
    models: ModelProvider,
    control: Control,
    config: SummaryConfig,
    mapper: Mapper,
) -> tuple[TimedSentence, ...]:
    """At most ``max_sentences`` sentences on what was ``said``, given by time; none on nothing.

    What an earlier run stored is used again. Raises StageError (TRANSCRIPT_FAILED) and
    StageStoppedError.
    """
    chain = Chain(StageCode.TRANSCRIPT_FAILED).map(
        "Summary", _make_step(workspace, models), num_cpus=config.num_cpus
    )
    lines = [sentence for sentence in said if sentence.text.strip()]
    while lines:
        windows = list(_windows(lines, config))
        is_last = len(windows) == 1
        most = config.max_sentences if is_last else config.window_sentences
        rows = [_row(window, most, workspace, config) for window in windows]
        chain.run(rows, control, on=mapper)
        lines = [
            TimedSentence(each["text"], rest.start_ms, rest.end_ms)
            for window, row in zip(windows, rows, strict=True)
            for each in json.loads(workspace.store.read_bytes(row["key"]))
            for rest in [window[each["line"]]]
        ]
        if is_last:
            break
    return tuple(lines)


def _windows(
    lines: Sequence[TimedSentence], config: SummaryConfig
) -> Iterator[list[TimedSentence]]:
    """Lines in runs of at most ``window_bytes``; at most ``max_windows`` of them."""
    runs: list[list[TimedSentence]] = []
    room = 0
    for line in lines:
        size = min(config.line_bytes, len(line.text.encode())) + 1
        if size > room:
            runs.append([])
            room = config.window_bytes
        runs[-1].append(line)
        room -= size
    count = min(len(runs), config.max_windows)
    for position in range(count):
        yield runs[position * len(runs) // count]


def _row(
    window: Sequence[TimedSentence], most: int, workspace: Workspace, config: SummaryConfig
) -> Row:
    """Input of the step; its output is named by all that it depends on."""
    lines = [_cut(line.text, config.line_bytes) for line in window]
    inputs = json.dumps([_FORMAT, config.models, most, lines])
    name = hashlib.sha256(inputs.encode()).hexdigest()[:20]
    return {
        "lines": json.dumps(lines),
        "max_sentences": min(most, len(lines)),
        "key": workspace.key(f"transcript/summary/{name}.json"),
    }


def _cut(text: str, most_bytes: int) -> str:
    """On one line, cut between characters."""
    return " ".join(text.split()).encode()[:most_bytes].decode(errors="ignore")


def _make_step(workspace: Workspace, models: ModelProvider) -> Step:
    """1:1. ``{lines, max_sentences, key}`` to itself; writes the sentences once."""

    def run(row: Row) -> Row:
        if not workspace.store.exists(row["key"]):
            workspace.check()
            excerpt = Excerpt(tuple(json.loads(row["lines"])), int(row["max_sentences"]))
            [sentences] = _summarized(models, excerpt)
            found = [{"line": each.line, "text": each.text} for each in sentences]
            workspace.store.write_bytes(row["key"], json.dumps(found).encode())
        return row

    return run


def _summarized(models: ModelProvider, excerpt: Excerpt) -> list[tuple[SummarySentence, ...]]:
    summarizer = models.find(SUMMARIZE)
    if summarizer is None:
        raise ValueError("The profile has no model for summaries.")
    return summarizer.summarize([excerpt])
