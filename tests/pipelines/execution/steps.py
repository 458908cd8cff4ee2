"""A step that calls a function of the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipelines.execution.chain import In, Out, Step
from pipelines.types import StageCode


@dataclass(frozen=True)
class Calls(Step[In, Out]):
    """``function``'s result."""

    name = "Calling"
    code = StageCode.VISION_FAILED
    function: Callable[[In], Out]

    def process(self, item: In) -> Out:
        return self.function(item)
