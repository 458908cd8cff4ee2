"""A signal in the middle of a commit is heard after it: no part is written twice."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipelines.backfilling.driving import uninterrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_inside_is_heard_at_the_end(number: signal.Signals) -> None:
    before, done = signal.getsignal(number), []

    def commit() -> None:
        with uninterrupted():
            signal.raise_signal(number)
            done.append("the rest of the block")

    with pytest.raises(KeyboardInterrupt):
        commit()
    assert done == ["the rest of the block"]
    assert signal.getsignal(number) is before


def test_without_a_signal_nothing_is_raised() -> None:
    with uninterrupted():
        done = True
    assert done


def test_an_error_inside_goes_first_and_the_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def commit() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        commit()
    assert signal.getsignal(signal.SIGTERM) is before


def test_in_another_thread_it_changes_nothing() -> None:
    def run() -> bool:
        with uninterrupted():
            return True

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(run).result()
