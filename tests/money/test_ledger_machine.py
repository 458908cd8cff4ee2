"""Money holds in any order of events. VAS_LEDGER_EXAMPLES=100 for a long run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import run_state_machine_as_test

from serve_app.settings import Settings
from tests.examples import examples
from tests.money.in_process import InProcessService
from tests.money.ledger_machine import LedgerMachine

EXAMPLES = int(os.environ.get("VAS_LEDGER_EXAMPLES", examples(12)))
STEPS = 40


@pytest.fixture
def service(settings: Settings) -> Iterator[InProcessService]:
    running = InProcessService(settings)
    yield running
    running.close()


@pytest.mark.timeout(120 + 30 * EXAMPLES)
def test_in_any_order_of_events_the_books_are_right(service: InProcessService) -> None:
    class OfBench(LedgerMachine):
        def __init__(self) -> None:
            super().__init__(service)

    run_state_machine_as_test(
        OfBench,
        settings=hypothesis_settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(f"{service.steps} steps")
    assert service.steps >= EXAMPLES * STEPS // 4
