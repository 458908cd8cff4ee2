"""How long the analyses of a job will take, by its footage and by how the jobs before it went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipelines.processor_time import transcript_work, vision_work
from pipelines.types import IngestResult
from serve_app.jobs.eta import gain_alone
from storage.types import StageName

_START_SECONDS = 1.0
"""Of an analysis of next to nothing: its chains are begun and gathered all the same."""
_TELLING_SECONDS = 5.0
"""An analysis with less to do tells nothing of the pace."""
_NEWEST_SHARE = 0.5
"""Weight of the latest job among all that were seen."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the analyses share."""

    cpus: float
    transcribers: float

    def alone_seconds(self, result: IngestResult) -> dict[StageName, float]:
        """What each analysis takes by itself, with the embedded models on a core as measured."""
        cpus = max(1.0, self.cpus)
        seconds = {}
        if result.video is not None:
            seconds[StageName.VISION] = vision_work(result.video).whole / cpus
        if result.tracks:
            transcribers = max(1.0, min(cpus, self.transcribers))
            seconds[StageName.TRANSCRIPT] = transcript_work(result.tracks) / transcribers
        return seconds


@dataclass(slots=True)
class Calibration:
    """How many times as long as that they take here; learned by a runner while it lives.

    Apart for analyses by themselves and side by side: how two share the processors is known only
    roughly (``gain_alone``).
    What nothing is known of is not guessed: neural models are slower or faster than the embedded
    ones by a factor that only their first job tells.
    """

    profile: str
    _factors: dict[bool, dict[StageName, float]] = field(default_factory=dict)

    def expected_seconds(self, alone: Mapping[StageName, float]) -> dict[StageName, float]:
        """Seconds that analyses will take by themselves; without those that nobody can tell of."""
        start = {} if self.profile != "packaged" else dict.fromkeys(alone, 1.0)
        factors = start | self._known(len(alone) > 1)
        return {
            stage: _START_SECONDS + factors[stage] * seconds
            for stage, seconds in alone.items()
            if stage in factors
        }

    def learn(
        self,
        alone: Mapping[StageName, float],
        took: Mapping[StageName, float],
        machine: Machine,
    ) -> None:
        """Of a job whose analyses ``took`` so many seconds side by side, from their beginning.

        Nothing where one of them failed: the other had the processors to itself.
        """
        if took.keys() != alone.keys():
            return
        factors = self._known(len(took) > 1)
        shared = min(took.values()) if len(took) > 1 else 0.0
        gain = gain_alone(machine.cpus, machine.transcribers)
        for stage, seconds in took.items():
            if alone.get(stage, 0.0) < _TELLING_SECONDS:
                continue
            by_itself = shared / gain + seconds - shared
            factor = max(0.0, by_itself - _START_SECONDS) / alone[stage]
            known = factors.get(stage, factor)
            factors[stage] = known + _NEWEST_SHARE * (factor - known)

    def _known(self, side_by_side: bool) -> dict[StageName, float]:
        return self._factors.setdefault(side_by_side, {})
