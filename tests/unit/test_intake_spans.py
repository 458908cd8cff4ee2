"""The intake's progress: fetching, probing and cutting are each a part of it."""

from __future__ import annotations

import pytest

from pipelines.execution.chain import ControlSpan, FreeRun, parts_of
from serve_app.worker.stage_work import intake_spans


def ends(*, fetches: bool) -> list[tuple[float, float]]:
    spans = intake_spans(FreeRun(), fetches=fetches)
    return [(span.start, span.end) for span in (spans.fetch, spans.probe, spans.cut)]


@pytest.mark.parametrize("fetches", [False, True])
def test_the_parts_follow_on_each_other_and_end_at_one(fetches: bool) -> None:
    fetch, probe, cut = ends(fetches=fetches)
    assert fetch[0] == 0
    assert fetch[1] == probe[0] < probe[1] == cut[0] < cut[1] == 1


def test_what_was_uploaded_takes_no_part_for_fetching() -> None:
    assert ends(fetches=False)[0] == (0, 0)
    assert ends(fetches=True)[0][1] > 0


def test_a_span_moves_the_whole_from_its_start_to_its_end() -> None:
    whole = FreeRun()
    span = ControlSpan(whole, 0.2, 0.6)
    for piece in parts_of(span, (1.0, 1.0)):
        for fraction in (0.0, 0.5, 1.0):
            piece.progress(fraction)
    assert whole.fractions == pytest.approx([0.2, 0.3, 0.4, 0.4, 0.5, 0.6])
