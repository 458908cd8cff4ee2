"""A signal to a backfill is noted and raises nothing: a commit goes to its end."""

from __future__ import annotations

import signal

import pytest

from pipelines.backfill.__main__ import stop_signals

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_interrupts_nothing(number: signal.Signals) -> None:
    with stop_signals() as is_stopped:
        assert not is_stopped()
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert is_stopped()


@pytest.mark.parametrize("number", SIGNALS)
def test_afterwards_signals_are_as_before(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_signals():
        assert signal.getsignal(number) is not before
    assert signal.getsignal(number) is before
