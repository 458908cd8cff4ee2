"""Compares what has ended: jobs with the others of their account, and two cuts with each other."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

import numpy as np
from threadpoolctl import threadpool_limits

from pipelines.across.duplicates import Duplicate, MediaPrint, duplicates, shot_keys, sound_probes
from pipelines.media.audio import SoundPrint
from pipelines.types import PipelineWarning, WarningCode
from pipelines.vision.fingerprints import Fingerprints
from serve_app.errors import ApiError, ErrorCode
from serve_app.exports.comparisons import JobCut, compared, read_cuts
from serve_app.work.queue import Work, work
from storage import comparisons
from storage import duplicates as stored
from storage.database import Connection, Database
from storage.duplicates import Keys, StoredDuplicate, StoredPrints
from storage.history import Span
from storage.job_records import JobRecord
from storage.objects import Check
from storage.work import Held

log = logging.getLogger("vas.duplicates")

_LEASE = timedelta(seconds=30)
_MARKS_A_PART = 128


def parts_of_shots(data: bytes | None) -> list[Keys]:
    """Return keys of each shot of stored fingerprints."""
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


def repeated_tracks(prints: Mapping[int, bytes]) -> list[PipelineWarning]:
    """Return a warning for each track that sounds the same as one before it."""
    found, warnings = dict[int, SoundPrint](), list[PipelineWarning]()
    for index, data in sorted(prints.items()):
        own = SoundPrint.from_bytes(data)
        first = next((at for at, each in found.items() if each.is_same(own)), None)
        if first is None:
            found[index] = own
            continue
        message = f"Track {index + 1} sounds the same as track {first + 1}."
        warnings.append(PipelineWarning(WarningCode.AUDIO_REPEATED, message, track_index=index))
    return warnings


def _parts_of_sound(found: SoundPrint) -> Iterator[Keys]:
    """Yield keys of intervals of a track."""
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


async def _give_up_seeking(work: Work, error: BaseException | None) -> None:
    """A job that cannot be compared has nothing in common with others."""
    log.warning("it could not be compared: %s", error or "whoever compared was lost")
    await work.context.database.write(stored.replace_duplicates, work.held, [], {})


@work(stored.KIND, lease=_LEASE, attempts=3, give_up=_give_up_seeking)
async def seek_duplicates(work: Work) -> None:
    """Find what a job has in common with others of its account."""
    versions, found = dict[uuid.UUID, str](), list[StoredDuplicate]()
    async for other_id, version, same in seek(work.context.database, work.held):
        versions[other_id] = version
        found += same
    await work.context.database.write(stored.replace_duplicates, work.held, found, versions)


async def seek(
    database: Database, held: Held
) -> AsyncIterator[tuple[uuid.UUID, str, list[StoredDuplicate]]]:
    """Versions of its own results, then of each other job's and what they have in common."""
    prints = await database.read(stored.find_prints, held.subject_id)
    if prints is None:
        return
    yield held.subject_id, prints.version, []
    mine = await asyncio.to_thread(media_print, prints)
    probes = await asyncio.to_thread(_probes, mine)
    candidates = await database.read(stored.find_candidates, held, probes)
    for other_id in candidates:
        others = await database.read(stored.find_prints, other_id)
        if others is not None:
            same = await asyncio.to_thread(_same, mine, others)
            numbered = [
                StoredDuplicate(other_id, number, **asdict(each))
                for number, each in enumerate(same)
            ]
            yield other_id, others.version, numbered


async def _give_up_comparing(work: Work, error: BaseException | None) -> None:
    message = "Who compared was lost, or a job changed, again and again."
    if error is not None:
        message = f"Comparing broke ({type(error).__name__})."
    refusal = {"code": ErrorCode.INTERNAL_ERROR, "message": message}
    await work.context.database.write(comparisons.end, work.held, None, None, refusal)


@work(
    comparisons.KIND,
    lease=_LEASE,
    attempts=3,
    subject="comparisonId",
    looked_after=timedelta(seconds=1),
    is_wanted=comparisons.is_wanted,
    give_up=_give_up_comparing,
)
async def compare_cuts(work: Work) -> None:
    """Make a comparison of two cuts that somebody waits for."""
    work.check()
    pair = await work.context.database.write(comparisons.begin, work.held)
    if pair is None:
        return
    document, error = None, None
    try:
        cuts = await read_cuts(work.context, pair.account_id, pair.before_id, pair.after_id)
        document = await asyncio.to_thread(_compared, cuts, work.check)
    except ApiError as refused:
        about = {} if refused.param is None else {"param": refused.param}
        error = {"code": refused.code, "message": refused.message, **about, **refused.extra}
    await work.context.database.write(comparisons.end, work.held, pair, document, error)


def _compared(cuts: tuple[JobCut, JobCut], check: Check) -> dict[str, object]:
    # Minutes of one processor, and not of all: the others are for requests and jobs.
    with threadpool_limits(limits=1, user_api="blas"):
        return compared(*cuts, check)


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
