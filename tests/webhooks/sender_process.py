"""A sender in a process of its own, for tests that kill it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from serve_app.context import build_context
from serve_app.settings import Settings
from serve_app.webhooks.sender import Sender, SenderClock


def send_until_killed(settings: Settings, ahead: timedelta) -> None:
    """Run a sender whose clock is so much ahead."""

    async def run() -> None:
        await Sender(build_context(settings), clock=SenderClock(ahead)).run()

    asyncio.run(run())
