"""How long the analyses of a job will take, by its media and by how the jobs before it went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipelines.execution.chain import transcript_work, vision_work
from pipelines.types import IngestResult
from serve_app.jobs.answers import alone_seconds, gain_alone
from storage.types import StageName

_START_SECONDS = 1.0
"""Of an analysis of next to nothing: its chains are begun and gathered all the same."""
_LEAST_WORK_SECONDS = 5.0
"""An analysis with less to do shows nothing of the pace."""
_NEWEST_SHARE = 0.5
"""Weight of the latest job among all that were seen."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the analyses share."""

    cpus: float
    transcribers: float

    @property
    def gain(self) -> float:
        """As ``gain_alone``."""
        return gain_alone(self.cpus, self.transcribers)

    def work_seconds(self, result: IngestResult) -> dict[StageName, float]:
        """What each analysis takes by itself, with the embedded models on a core as measured."""
        cpus = max(1.0, self.cpus)
        work = {}
        if result.video is not None:
            work[StageName.VISION] = sum(vision_work(result.video)) / cpus
        if result.tracks:
            transcribers = max(1.0, min(cpus, self.transcribers))
            work[StageName.TRANSCRIPT] = transcript_work(result.tracks) / transcribers
        return work


@dataclass(slots=True)
class Calibration:
    """How many times as long as that they take here; learned by a runner while it lives.

    Apart for analyses by themselves and side by side: how two share the processors is known only
    roughly. What nothing is known of is not guessed: neural models are slower or faster than the
    embedded ones by a factor that only their first job shows.
    """

    profile: str
    _factors: dict[tuple[StageName, int], float] = field(default_factory=dict)
    """By the analysis and how many ran."""

    def expected_seconds(self, work: Mapping[StageName, float]) -> dict[StageName, float]:
        """What analyses will take by themselves; without those of which nothing is known."""
        unseen = 1.0 if self.profile == "packaged" else None
        found = {stage: self._factors.get((stage, len(work)), unseen) for stage in work}
        return {
            stage: _START_SECONDS + factor * work[stage]
            for stage, factor in found.items()
            if factor is not None
        }

    def learn(
        self, work: Mapping[StageName, float], took: Mapping[StageName, float], machine: Machine
    ) -> None:
        """Of a job whose analyses ``took`` so many seconds side by side, from their beginning.

        Nothing where one of them failed: the other had the processors to itself.
        """
        if took.keys() != work.keys():
            return
        shared = min(took.values(), default=0.0) if len(took) > 1 else 0.0
        for stage, seconds in took.items():
            if work[stage] >= _LEAST_WORK_SECONDS:
                alone = alone_seconds(seconds, shared, machine.gain)
                factor = max(0.0, alone - _START_SECONDS) / work[stage]
                known = self._factors.get((stage, len(work)), factor)
                self._factors[stage, len(work)] = known + _NEWEST_SHARE * (factor - known)
