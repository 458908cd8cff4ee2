"""Periodic work goes on after failures, pauses as its steps return, and ends with its block."""

from __future__ import annotations

import asyncio

import pytest

from serve_app import periodic
from serve_app.periodic import Periodic, repeated


async def test_a_step_is_repeated_during_the_block_and_no_longer() -> None:
    steps: list[int] = []
    thrice = asyncio.Event()

    async def step() -> None:
        steps.append(len(steps))
        if len(steps) == 3:
            thrice.set()

    async with repeated([Periodic("counting", 0.001, step)]), asyncio.timeout(60):
        await thrice.wait()
    ended_at = len(steps)
    await asyncio.sleep(0.05)
    assert len(steps) == ended_at > 2


async def test_a_step_that_fails_is_logged_by_name_and_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(periodic, "RETRY_SECONDS", 0.001)
    stop, tries = asyncio.Event(), []

    async def step() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("the server is away")
        stop.set()

    await Periodic("sweeping", 0.0, step).run(until=stop)
    assert len(tries) == 3
    assert [record.message for record in caplog.records] == ["sweeping failed"] * 2


async def test_a_step_may_return_the_seconds_until_the_next() -> None:
    stop, pauses = asyncio.Event(), iter([0.0, 0.0, 0.0])

    async def step() -> float | None:
        found = next(pauses, None)
        if found is None:
            stop.set()
            return 0.0
        return found

    async with asyncio.timeout(60):
        await Periodic("indexing", 60.0, step).run(until=stop)
