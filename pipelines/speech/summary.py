"""A summary of what was spoken, every sentence with the time that it rests on.

    segments of all tracks -> windows -> sentences (1:1)      the model's time
    sentences, while there are too many -> windows -> sentences

Windows are bounded in size and number, so that the work is: of a longer transcript evenly spaced
ones are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from models.contracts import Excerpt, SummarySentence
from models.provider import ModelProvider
from models.tasks import SUMMARIZE
from pipelines.artifacts import Artifact, Made
from pipelines.execution.chain import Control, Mapper, Resources, Step, Workspace
from pipelines.types import StageCode, TimedSentence


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
    """At most ``max_sentences`` sentences on these lines, by time; none on nothing.

    What an earlier run stored is used again. Raises StageError (TRANSCRIPT_FAILED) and
    StageStoppedError.
    """
    waits = Resources(config.num_cpus, why="It waits for a model in another process.")
    step = SumUp(workspace, models, config.models, resources=waits)
    lines = [sentence for sentence in said if sentence.text.strip()]
    while lines:
        windows = list(_windows(lines, config))
        is_last = len(windows) == 1
        most = config.max_sentences if is_last else config.window_sentences
        excerpts = [
            Excerpt(
                # Each on one line, cut between characters.
                tuple(
                    " ".join(line.text.split())
                    .encode()[: config.line_bytes]
                    .decode(errors="ignore")
                    for line in window
                ),
                max_sentences=min(most, len(window)),
            )
            for window in windows
        ]
        made = mapper(excerpts, step, control)
        lines = [
            TimedSentence(each.text, window[each.line].start_ms, window[each.line].end_ms)
            for window, output in zip(windows, made, strict=True)
            for each in SENTENCES.load(workspace.store, output.key)
        ]
        if is_last:
            break
    return tuple(lines)


@dataclass(frozen=True)
class SumUp(Step[Excerpt, Made]):
    """An excerpt to the stored sentences that sum it up (SENTENCES)."""

    name = "Summary"
    code = StageCode.TRANSCRIPT_FAILED
    version = 1
    workspace: Workspace
    models: ModelProvider
    models_digest: str

    def process(self, excerpt: Excerpt) -> Made:
        key = SENTENCES.key(self.workspace.prefix, self.models_digest, excerpt)
        return SENTENCES.make(self.workspace.store, key, lambda: self._sentences(excerpt))

    def _sentences(self, excerpt: Excerpt) -> tuple[SummarySentence, ...]:
        self.workspace.check()
        summarizer = self.models.find(SUMMARIZE)
        if summarizer is None:
            raise ValueError("The profile has no model for summaries.")
        [sentences] = summarizer.summarize([excerpt])
        return sentences


SENTENCES = Artifact.of(tuple[SummarySentence, ...], "transcript/summary", version=SumUp.version)


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
