"""Keeps the search index: merges what was published, indexes what was published without, and makes
vectors where the server and the models can."""

from __future__ import annotations

import asyncio
import time

from serve_app.context import AppContext
from serve_app.encoder import TextEncoder
from storage import search_vectors
from storage.database import Connection
from storage.search_index import BEGINNING, index_older_results, merge_pending_rows

_PAUSE_SECONDS = 2.0
_STEP_SECONDS = 0.1
_LOOK_AT = 2000
"""Stages looked at in a transaction; a primary key's order makes that some milliseconds."""
_AT_ONCE = 5
"""Results indexed in a transaction: about a second at most, in which no other work waits."""
_NEXT_PASS_SECONDS = 3600.0
"""While replicas of the version before are at work, results without an index appear."""
_VECTORS_AT_ONCE = 64
"""Some 0.3 s of a processor with the packaged model."""
_LOOK_AGAIN_SECONDS = 30.0
_LOOK_BACK_ROWS = 5_000
"""A transaction that ends late has rows with ids before those that others have published."""


class SearchIndexer:
    """Works in small steps beside the runner; any number may, one at a time does the backfill."""

    def __init__(self, context: AppContext) -> None:
        self._database = context.database
        self._position = BEGINNING
        self._next_pass_at = 0.0
        self._encoder = context.encoder
        self._keeps_vectors = False
        self._embedded_to, self._looked_at = 0, -1
        self._next_vectors_at = self._look_again_at = 0.0

    async def index_and_wait(self) -> None:
        """One step, and a pause after it that is at least as long while older results are left."""
        began = time.monotonic()
        under_way = await self.index()
        under_way = await self.embed() or under_way
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

    async def embed(self) -> bool:
        """Make some vectors, oldest rows first; False where none are missing, or none can be made.

        All rows are looked at every hour, else those that were published lately. The model works
        outside any transaction; one runner at a time makes vectors.
        """
        if self._encoder is None:
            return False
        if time.monotonic() >= self._next_vectors_at:
            async with self._database.transaction() as connection:
                self._keeps_vectors = await search_vectors.make_table(connection)
            self._next_vectors_at = time.monotonic() + _NEXT_PASS_SECONDS
            self._embedded_to, self._looked_at = 0, -1
        if not self._keeps_vectors:
            return False
        async with self._database.statement() as connection:
            newest = await search_vectors.newest_row(connection)
            idle = newest == self._looked_at and time.monotonic() < self._look_again_at
            if idle or not await search_vectors.try_lock(connection):
                return False
            try:
                count = await self._embed_some(connection, self._encoder)
            finally:
                await search_vectors.unlock(connection)
        if count < _VECTORS_AT_ONCE:
            self._embedded_to, self._looked_at = max(0, newest - _LOOK_BACK_ROWS), newest
            self._look_again_at = time.monotonic() + _LOOK_AGAIN_SECONDS
        return count == _VECTORS_AT_ONCE

    async def _embed_some(self, connection: Connection, encoder: TextEncoder) -> int:
        passages = await search_vectors.rows_without(
            connection,
            encoder.model,
            self._embedded_to,
            _VECTORS_AT_ONCE,
            only_english=encoder.only_english,
        )
        if passages:
            vectors = await encoder.encode([each.text for each in passages])
            await search_vectors.store_vectors(connection, encoder.model, passages, vectors)
            self._embedded_to = passages[-1].row_id
        return len(passages)
