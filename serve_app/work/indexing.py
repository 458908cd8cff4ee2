"""Keeps the search index: merges what was published, indexes what was published without, and makes
vectors of texts and of scenes' stills where the server and the models can."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod

import cv2
import numpy as np

from models.contracts import PICTURE_DIMENSIONS, Picture
from serve_app.context import AppContext, PictureEncoder, TextEncoder
from storage import search_vectors
from storage.database import Connection, Database
from storage.objects import InvalidKeyError, ObjectNotFoundError, ObjectStore
from storage.search_index import BEGINNING, index_older_results, merge_pending_rows

log = logging.getLogger("vas.indexing")

INDEX_SECONDS = 20.0
"""Until it is looked again for rows that were published: what has words is found at once."""
_STEP_SECONDS = 0.1
_LOOK_AT = 2000
"""Stages looked at in a transaction; a primary key's order makes that some milliseconds."""
_AT_ONCE = 5
"""Results indexed in a transaction: about a second at most, in which no other work waits."""
_NEXT_PASS_SECONDS = 3600.0
"""While replicas of the version before are at work, results without an index appear."""
_TEXTS_AT_ONCE = 64
"""Some 0.3 s of a processor with the packaged model."""
_STILLS_AT_ONCE = 16
_LOOK_AGAIN_SECONDS = 120.0
"""Of rows without vectors, though none is newer than those that were looked at."""
_LOOK_BACK_ROWS = 5_000
"""A transaction that ends late has rows with ids before those that others have published."""


class SearchIndexer:
    """Works in small steps beside the runner; any number may, one at a time does the backfill."""

    def __init__(self, context: AppContext) -> None:
        self._database = context.database
        self._position = BEGINNING
        self._next_pass_at = 0.0
        self._makers: list[_Maker] = []
        if context.encoder is not None:
            self._makers.append(_TextMaker(context.database, context.encoder))
        if context.pictures is not None:
            maker = _StillMaker(context.database, context.pictures, context.objects)
            self._makers.append(maker)

    async def step(self) -> float | None:
        """Index and embed some; while more is left, the seconds that it took, at least 0.1."""
        began = time.monotonic()
        under_way = await self.index()
        under_way = await self.embed() or under_way
        return max(time.monotonic() - began, _STEP_SECONDS) if under_way else None

    async def index(self) -> bool:
        """Merge, and index some older results where a pass is due; False after its end."""
        await self._database.read(merge_pending_rows)
        if time.monotonic() < self._next_pass_at:
            return False
        reached = await self._database.write(
            index_older_results, self._position, look_at=_LOOK_AT, index=_AT_ONCE
        )
        self._position = reached or BEGINNING
        if reached is None:
            self._next_pass_at = time.monotonic() + _NEXT_PASS_SECONDS
        return reached is not None

    async def embed(self) -> bool:
        """Make some vectors; False where none are missing, or none can be made."""
        under_way = [await maker.make() for maker in self._makers]
        return any(under_way)


class _Maker(ABC):
    """Makes vectors of one kind, of the oldest rows first.

    All rows are looked at every hour, else those that were published lately. The model works
    outside any transaction; one runner at a time makes vectors.
    """

    at_once: int

    def __init__(self, database: Database) -> None:
        self._database = database
        self._has_tables = False
        self._reached, self._looked_at = 0, -1
        self._next_pass_at = self._look_again_at = 0.0

    @abstractmethod
    async def make_after(self, connection: Connection, row_id: int) -> list[int]:
        """Make vectors of at most ``at_once`` rows after one; those that were looked at."""

    async def make(self) -> bool:
        """Return one step; False after the last."""
        if time.monotonic() >= self._next_pass_at:
            self._has_tables = await self._database.write(search_vectors.make_tables)
            self._next_pass_at = time.monotonic() + _NEXT_PASS_SECONDS
            self._reached, self._looked_at = 0, -1
        if not self._has_tables:
            return False
        async with self._database.statement() as connection:
            newest = await search_vectors.newest_row(connection)
            idle = newest == self._looked_at and time.monotonic() < self._look_again_at
            if idle or not await search_vectors.try_lock(connection):
                return False
            try:
                row_ids = await self.make_after(connection, self._reached)
            finally:
                await search_vectors.unlock(connection)
        if len(row_ids) == self.at_once:
            self._reached = row_ids[-1]
            return True
        self._reached, self._looked_at = max(0, newest - _LOOK_BACK_ROWS), newest
        self._look_again_at = time.monotonic() + _LOOK_AGAIN_SECONDS
        return False


class _TextMaker(_Maker):
    """Of what is spoken and described."""

    at_once = _TEXTS_AT_ONCE

    def __init__(self, database: Database, encoder: TextEncoder) -> None:
        super().__init__(database)
        self._encoder = encoder

    async def make_after(self, connection: Connection, row_id: int) -> list[int]:
        model = self._encoder.model
        passages = await search_vectors.rows_without(connection, model, row_id, self.at_once)
        row_ids = [each.row_id for each in passages]
        if passages:
            vectors = await self._encoder.encode([each.text for each in passages])
            await search_vectors.store_vectors(connection, model, row_ids, vectors)
        return row_ids


class _StillMaker(_Maker):
    """Of the stills of scenes."""

    at_once = _STILLS_AT_ONCE

    def __init__(self, database: Database, encoder: PictureEncoder, objects: ObjectStore) -> None:
        super().__init__(database)
        self._encoder, self._objects = encoder, objects

    async def make_after(self, connection: Connection, row_id: int) -> list[int]:
        model = self._encoder.model
        stills = await search_vectors.stills_without(connection, model, row_id, self.at_once)
        pictures = {
            number: picture
            for number, each in enumerate(stills)
            if (picture := await asyncio.to_thread(self._read, each.key)) is not None
        }
        # 0 is for those that never get a vector: they are not read again every hour.
        vectors = np.zeros((len(stills), PICTURE_DIMENSIONS), np.float32)
        if pictures:
            vectors[list(pictures)] = await self._encoder.encode(list(pictures.values()))
        row_ids = [each.row_id for each in stills]
        if stills:
            await search_vectors.store_vectors(
                connection, model, row_ids, vectors, table=search_vectors.STILLS
            )
        return row_ids

    def _read(self, key: str | None) -> Picture | None:
        """Return the still; None where it is gone, as with its job, or no picture."""
        if key is None:
            return None
        try:
            content = np.frombuffer(self._objects.read_bytes(key), np.uint8)
            still = cv2.cvtColor(cv2.imdecode(content, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        except (ObjectNotFoundError, InvalidKeyError, cv2.error) as error:
            log.info("the still %s has no vector: %s", key, error)
            return None
        return np.asarray(still, np.uint8)
