"""Keeps the search index: merges what was published, and indexes what was published without it."""

from __future__ import annotations

import asyncio
import time

from serve_app.context import AppContext
from storage.search_index import BEGINNING, index_older_results, merge_pending_rows

_PAUSE_SECONDS = 2.0
_STEP_SECONDS = 0.1
_LOOK_AT = 2000
"""Stages looked at in a transaction; a primary key's order makes that some milliseconds."""
_AT_ONCE = 5
"""Results indexed in a transaction: about a second at most, in which no other work waits."""
_NEXT_PASS_SECONDS = 3600.0
"""While replicas of the version before are at work, results without an index appear."""


class SearchIndexer:
    """Works in small steps beside the runner; any number may, one at a time does the backfill."""

    def __init__(self, context: AppContext) -> None:
        self._database = context.database
        self._position = BEGINNING
        self._next_pass_at = 0.0

    async def index_and_wait(self) -> None:
        """One step, and a pause after it that is at least as long while older results are left."""
        began = time.monotonic()
        under_way = await self.index()
        took_seconds = time.monotonic() - began
        await asyncio.sleep(max(took_seconds, _STEP_SECONDS) if under_way else _PAUSE_SECONDS)

    async def index(self) -> bool:
        """Merge, and index some older results where a pass is due; False after its end."""
        async with self._database.statement() as connection:
            await merge_pending_rows(connection)
        if time.monotonic() < self._next_pass_at:
            return False
        async with self._database.transaction() as connection:
            reached = await index_older_results(
                connection, self._position, look_at=_LOOK_AT, index=_AT_ONCE
            )
        self._position = reached or BEGINNING
        if reached is None:
            self._next_pass_at = time.monotonic() + _NEXT_PASS_SECONDS
        return reached is not None
