"""Seeks the near duplicates of jobs that have ended, among the jobs of their account."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

import numpy as np
from threadpoolctl import threadpool_limits

from pipelines.across.duplicates import Duplicate, MediaPrint, duplicates, shot_keys, sound_probes
from pipelines.media.audio import SoundPrint
from pipelines.types import StageStoppedError
from pipelines.vision.fingerprints import Fingerprints
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode
from serve_app.exports.comparisons import compared, read_cuts
from serve_app.observability.logs import log_context
from storage import comparisons
from storage import duplicates as stored
from storage.database import UNAVAILABLE, Connection
from storage.duplicates import Keys, LeasedComparison, StoredDuplicate, StoredPrints
from storage.job_records import JobRecord
from storage.redactions import Span

log = logging.getLogger("vas.duplicates")

COMPARE_SECONDS = 2.0
_LEASE = timedelta(seconds=30)
_RENEWED_SECONDS = _LEASE.total_seconds() / 3
_LOOK_SECONDS = 1.0
"""Between looks whether somebody waits for a comparison still."""
_MARKS_A_PART = 128


def parts_of_shots(data: bytes | None) -> list[Keys]:
    """Keys of each shot of stored fingerprints."""
    if data is None:
        return []
    prints = Fingerprints.from_bytes(data)
    keys, samples = shot_keys(prints)
    shots = prints.shots[samples]
    return [keys[shots == shot].ravel() for shot in range(len(prints.counts))]


@dataclass(frozen=True, slots=True)
class KeptSounds:
    """What is stored of the sound of a job's tracks."""

    prints: Mapping[int, bytes]
    """By track."""
    parts: Sequence[Keys]

    @classmethod
    def of(cls, prints: Mapping[int, bytes], muted: Iterable[Span]) -> KeptSounds:
        """Without what is silent in a redacted job."""
        spans = [*muted]
        found = {at: SoundPrint.from_bytes(data).muted(spans) for at, data in prints.items()}
        parts = [part for each in found.values() for part in _parts_of_sound(each)]
        return cls({at: each.to_bytes() for at, each in found.items()}, parts)

    async def store(self, connection: Connection, job: JobRecord) -> None:
        await stored.store_sounds(connection, job.id, self.prints)
        await stored.store_keys(connection, job.id, job.account_id, "sound", self.parts)


def _parts_of_sound(found: SoundPrint) -> Iterator[Keys]:
    """Keys of stretches of a track."""
    keys = found.keys()
    yield from (keys[at : at + _MARKS_A_PART] for at in range(0, len(keys), _MARKS_A_PART))


async def mute_sounds(connection: Connection, job: JobRecord, muted: Iterable[Span]) -> None:
    """Forget what is silent now of a job whose sound was stored."""
    prints = await stored.find_prints(connection, job.id)
    if prints is not None and prints.sounds:
        await KeptSounds.of(prints.sounds, muted).store(connection, job)
        await stored.forget(connection, job.id)


def media_print(found: StoredPrints) -> MediaPrint:
    """As it is compared."""
    shots = None if found.shots is None else Fingerprints.from_bytes(found.shots)
    sounds = {track: SoundPrint.from_bytes(data) for track, data in found.sounds.items()}
    return MediaPrint(found.duration_ms, shots, sounds)


class Comparer:
    """Any number may be at work, each on another job."""

    def __init__(self, context: AppContext) -> None:
        self._database = context.database

    async def step(self) -> float | None:
        """Compare the job that is due for longest; None where none is."""
        held = await stored.lease_comparison(self._database, lease=_LEASE)
        if held is None:
            return None
        with log_context(jobId=held.job_id):
            versions, found = dict[uuid.UUID, str](), list[StoredDuplicate]()
            comparing = asyncio.create_task(self._compare(held, versions, found))
            try:
                while not (await asyncio.wait([comparing], timeout=_RENEWED_SECONDS))[0]:
                    renewed = await stored.renew_comparison(self._database, held, lease=_LEASE)
                    if renewed is None:
                        return 0.0
                    held = renewed
                comparing.result()
            except UNAVAILABLE:
                raise  # Once the lease ends it is tried again.
            except Exception:
                log.exception("it could not be compared")
            finally:
                comparing.cancel()
            async with self._database.transaction() as connection:
                await stored.replace_duplicates(connection, held, found, versions)
        return 0.0

    async def _compare(
        self, held: LeasedComparison, versions: dict[uuid.UUID, str], found: list[StoredDuplicate]
    ) -> None:
        async for other_id, version, same in self.compared(held):
            versions[other_id] = version
            found += same

    async def compared(
        self, held: LeasedComparison
    ) -> AsyncIterator[tuple[uuid.UUID, str, list[StoredDuplicate]]]:
        """Versions of its own results, then of each other job's and what they have in common."""
        async with self._database.statement() as connection:
            prints = await stored.find_prints(connection, held.job_id)
        if prints is None:
            return
        yield held.job_id, prints.version, []
        mine = await asyncio.to_thread(media_print, prints)
        probes = await asyncio.to_thread(_probes, mine)
        async with self._database.statement() as connection:
            candidates = await stored.find_candidates(connection, held, probes)
        for other_id in candidates:
            async with self._database.statement() as connection:
                others = await stored.find_prints(connection, other_id)
            if others is not None:
                same = await asyncio.to_thread(_same, mine, others)
                numbered = [
                    StoredDuplicate(other_id, number, **asdict(each))
                    for number, each in enumerate(same)
                ]
                yield other_id, others.version, numbered


class CutComparer:
    """Makes the comparisons of two cuts that somebody waits for, one at a time; any number may be
    at work."""

    def __init__(self, context: AppContext) -> None:
        self._context = context

    async def step(self) -> float | None:
        """Make the one whose turn it is; None where there is none."""
        held = await comparisons.lease_next(self._context.database, lease=_LEASE)
        if held is None:
            return None
        unwanted = threading.Event()
        making = asyncio.create_task(self._make(held, unwanted))
        document, error = None, None
        try:
            while not (await asyncio.wait([making], timeout=_LOOK_SECONDS))[0]:
                if not await comparisons.extend(self._context.database, held, lease=_LEASE):
                    return 0.0
            document = making.result()
        except ApiError as refused:
            about = {} if refused.param is None else {"param": refused.param}
            error = {"code": refused.code, "message": refused.message, **about, **refused.extra}
        except BaseException as broken:
            counts = isinstance(broken, Exception) and not isinstance(broken, UNAVAILABLE)
            if not counts or held.attempts < comparisons.MAX_ATTEMPTS:
                async with self._context.database.transaction() as connection:
                    await comparisons.give_back(connection, held, counts=counts)
                raise
            log.exception("the cuts could not be compared")
            message = f"Comparing broke ({type(broken).__name__})."
            error = {"code": ErrorCode.INTERNAL_ERROR, "message": message}
        finally:
            unwanted.set()
            making.cancel()
        async with self._context.database.transaction() as connection:
            await comparisons.end(connection, held, document, error)
        return 0.0

    async def _make(
        self, held: comparisons.LeasedCuts, unwanted: threading.Event
    ) -> dict[str, object]:
        if held.attempts > comparisons.MAX_ATTEMPTS:
            raise ApiError(
                ErrorCode.INTERNAL_ERROR,
                "Who compared was lost, or a job changed, again and again.",
            )
        cuts = await read_cuts(self._context, held.account_id, held.before_id, held.after_id)

        def check() -> None:
            if unwanted.is_set():
                raise StageStoppedError("Nobody waits for the comparison any more.")

        def make() -> dict[str, object]:
            # Minutes of one processor, and not of all: the others are for requests and jobs.
            with threadpool_limits(limits=1, user_api="blas"):
                return compared(*cuts, check)

        return await asyncio.to_thread(make)


def _same(mine: MediaPrint, others: StoredPrints) -> list[Duplicate]:
    return duplicates(mine, media_print(others))


def _probes(mine: MediaPrint) -> dict[str, Keys]:
    found = dict[str, Keys]()
    if mine.shots is not None:
        found["shot"] = shot_keys(mine.shots, probes=True)[0].ravel()
    if mine.sounds:
        each = [sound_probes(sound).ravel() for sound in mine.sounds.values()]
        found["sound"] = np.concatenate(each)
    return found
