"""One item from its source to its outcome: the stages of a job, in one task, without a database.

The stages are the functions that jobs run, over an object store inside the output; there is
found what an earlier, interrupted run had ready. An outcome is stored as a whole before anyone
knows of it, and counts once it is committed to a part (see ``output``).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from models.profiles import digest_of
from models.provider import ModelProvider
from models.tasks import TRANSCRIBE, Purpose, tasks_for
from pipelines.backfill.manifest import Item
from pipelines.backfill.output import ItemOutcome
from pipelines.backfill.places import Place, S3Access, file_at
from pipelines.codec import CodecError, decode, encode
from pipelines.execution.chain import Control, FreeRun, Workspace, map_here
from pipelines.ingest.pipeline import IngestConfig
from pipelines.ingest.source import ClipFile, RawConfig, SourceMedia, decoded_source
from pipelines.net.addresses import AddressPolicy
from pipelines.net.fetch import FetchLimits, fetch
from pipelines.speech.languages import LanguageChoice
from pipelines.speech.pipeline import TranscriptConfig
from pipelines.speech.speakers import SpeakerRules
from pipelines.stages import MediaStages, StageRunner, skip_reason
from pipelines.types import (
    AudioTrack,
    IngestResult,
    Scene,
    StageCode,
    StageError,
    StageOutcome,
    TrackOutcome,
    TranscriptResult,
    VisionResult,
    transcript_warnings,
)
from pipelines.vision.pipeline import VisionConfig
from storage.objects import ObjectNotFoundError, ObjectStore, ObjectStoreUnavailableError
from storage.types import SkipReason, StageName, StageStatus

OUTCOME_NAME = "outcome.json"
STILLS_FOLDER = "stills"
WORKERS_LOST = 2
"""An item whose worker died so often in one run is probably what kills them: it fails."""
STORE_PAUSES_SECONDS = (2, 5, 15, 30)
"""How long an item waits, time after time, for an output that is away, before the run ends."""

_RAW_SUFFIXES = {".r3d": "r3d", ".braw": "braw", ".ari": "arri", ".arx": "arri"}
"""File suffix -> camera RAW family."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SourceRules:
    """How sources may be reached. Picklable."""

    access: S3Access = field(default_factory=S3Access)
    addresses: AddressPolicy = field(default_factory=AddressPolicy)
    limits: FetchLimits = field(default_factory=FetchLimits)
    raw: RawConfig = field(default_factory=RawConfig)


@dataclass(frozen=True, slots=True)
class FinishedItem:
    """How an item ended: its outcome is stored, or ``failure`` is why it is not."""

    folder: str
    failed: bool = False
    media_seconds: float = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class ItemWork:
    """What every task is given. Picklable."""

    out: Place
    models: ModelProvider
    profile: str
    run: str
    """Names this run of the backfill."""
    rules: SourceRules = field(default_factory=SourceRules)
    ingest: IngestConfig = field(default_factory=IngestConfig)
    vision: VisionConfig = field(default_factory=VisionConfig)
    own_whisper: Path | None = None
    """The folder of weights that ``models`` transcribe with in place of the profile's."""

    def __call__(self, item: Item) -> FinishedItem:
        """1:1."""
        try:
            outcome = self.carry_out(item)
        except ObjectStoreUnavailableError as error:
            return FinishedItem(item.folder, failure=str(error))
        failed = outcome.status is StageStatus.FAILED
        return FinishedItem(item.folder, failed, (outcome.duration_ms or 0) / 1000)

    def carry_out(self, item: Item) -> ItemOutcome:
        """The item's outcome, worked out and stored unless it is stored already.

        What it was made from stays until the driver has its row (``keep_outcome_only``): tasks of
        a run whose driver was killed go on for a moment, and the next run may be at the same item.
        Raises ObjectStoreUnavailableError where the output is away for longer than the pauses.
        """
        return asyncio.run(_ItemRun(self, item).outcome())


def keep_outcome_only(store: ObjectStore, folder: str) -> None:
    """Delete what an outcome was made from; to be called once no task of this run needs it."""
    outcome_key = f"{folder}/{OUTCOME_NAME}"
    store.delete_keys(key for key in [*store.list_keys(folder)] if key != outcome_key)


def outcome_of(store: ObjectStore, folder: str) -> ItemOutcome:
    """Return the stored outcome of an item. Raises ObjectNotFoundError, CodecError."""
    return decode(ItemOutcome, store.read_bytes(f"{folder}/{OUTCOME_NAME}"))


@dataclass(frozen=True, slots=True)
class _ItemRun:
    """One item on its way through the stages."""

    work: ItemWork
    item: Item
    control: FreeRun = field(default_factory=FreeRun)

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.work.out.work_store(), self.item.folder)

    @property
    def runner(self) -> StageRunner:
        return StageRunner(
            name=f"item {self.item.id}",
            not_repeated=(ObjectStoreUnavailableError,),
            pauses_seconds=STORE_PAUSES_SECONDS,
        )

    @property
    def stages(self) -> MediaStages:
        return MediaStages(
            workspace=self.workspace,
            models=self.work.models,
            mode=self.item.mode,
            ingest_config=self.work.ingest,
            vision_config=self.work.vision,
            transcript_config=TranscriptConfig(
                choice=LanguageChoice(self.item.language),
                keyterms=self.item.keyterms,
                models=digest_of(
                    self.work.profile, tasks_for(Purpose.TRANSCRIPT), self.work.own_whisper
                ),
                transcriber=digest_of(self.work.profile, (TRANSCRIBE,), self.work.own_whisper),
                speakers=SpeakerRules(expected=self.item.speakers_expected),
            ),
            mapper=map_here,
        )

    async def outcome(self) -> ItemOutcome:
        started = time.monotonic()
        found = await self._stored(self._find_outcome)
        if found is not None:
            return found
        outcome = await self._run_stages()
        outcome = replace(outcome, seconds=round(time.monotonic() - started, 3))
        key = self.workspace.key(OUTCOME_NAME)
        await self._stored(lambda: self.workspace.store.write_bytes(key, encode(outcome)))
        return outcome

    async def _stored(self, call: Callable[[], Result]) -> Result:
        return await self.runner.retry_on_outage("the output", lambda: _call(call))

    def _find_outcome(self) -> ItemOutcome | None:
        try:
            return outcome_of(self.workspace.store, self.item.folder)
        except (ObjectNotFoundError, CodecError):
            return None  # what another version of this program stored is worked out again

    def _note_worker(self) -> None:
        """Raises StageError if tasks of this run began with the item and never ended it."""
        folder = self.workspace.key(f"begun/{self.work.run}")
        lost = sum(1 for _ in self.workspace.store.list_keys(folder))
        self.workspace.store.write_bytes(f"{folder}/{uuid.uuid4().hex}", b"")
        if lost >= WORKERS_LOST:
            message = f"The worker was lost {WORKERS_LOST} times over this item."
            raise StageError(StageCode.PROCESSING_FAILED, message)

    async def _run_stages(self) -> ItemOutcome:
        try:
            await self._stored(self._note_worker)
            ingested = await self._run(StageName.INGEST, self._ingest)
        except StageError as error:
            skipped = (
                StageOutcome(stage, StageStatus.SKIPPED, SkipReason.JOB_FAILED)
                for stage in (StageName.VISION, StageName.TRANSCRIPT)
            )
            return ItemOutcome(self.item, (_failed(StageName.INGEST, error), *skipped))
        vision, seen = await self._vision(ingested)
        transcript, tracks = await self._transcript(ingested)
        picture = ingested.media.video
        return ItemOutcome(
            item=self.item,
            stages=(StageOutcome(StageName.INGEST, StageStatus.COMPLETED), vision, transcript),
            duration_ms=round(ingested.media.duration_seconds * 1000),
            width=None if picture is None else picture.width,
            height=None if picture is None else picture.height,
            scenes=() if seen is None else seen.scenes,
            overview=None if seen is None else seen.overview,
            tracks=tracks,
            warnings=(
                *ingested.warnings,
                *(() if seen is None else seen.warnings),
                *transcript_warnings(tracks),
            ),
        )

    async def _run(self, stage: StageName, call: Callable[[], Result]) -> Result:
        return await self.runner.run(stage, lambda: _call(call))

    def _ingest(self) -> IngestResult:
        work, workspace = self.work, self.workspace
        key = fetch_source(
            self.item, workspace.key("source"), workspace.store, work.rules, self.control
        )
        media = SourceMedia((ClipFile(key, self.item.name),))
        return self.stages.ingest(self.stages.probe(media, self.control), self.control)

    async def _vision(self, ingested: IngestResult) -> tuple[StageOutcome, VisionResult | None]:
        stage = StageName.VISION
        if reason := skip_reason(stage, self.item.mode, ingested.media):
            return StageOutcome(stage, StageStatus.SKIPPED, reason), None
        try:
            seen = await self._run(stage, lambda: self._seen(ingested))
        except StageError as error:
            return _failed(stage, error), None
        return StageOutcome(stage, StageStatus.COMPLETED), seen

    def _seen(self, ingested: IngestResult) -> VisionResult:
        """Return scenes and overview with their stills in the output."""
        found = self.stages.vision(ingested, self.control)
        scenes = tuple(self._with_stills(each, f"{each.index:05d}") for each in found.scenes)
        overview = self._with_stills(found.overview, "overview")
        return replace(found, scenes=scenes, overview=overview)

    def _with_stills(self, scene: Scene, name: str) -> Scene:
        names = scene.still_names(f"{STILLS_FOLDER}/{self.item.folder}/{name}")
        for key, out in names.items():
            self.work.out.write_bytes(out, self.workspace.store.read_bytes(key))
        return scene.at_keys(names)

    def _spoken(
        self, track: AudioTrack, ingested: IngestResult, control: Control
    ) -> TranscriptResult:
        """Without its fingerprints: outcomes are JSON, and nothing looks for duplicates in them."""
        return replace(self.stages.transcribe(track, ingested, control), sound_print=None)

    async def _transcript(
        self, ingested: IngestResult
    ) -> tuple[StageOutcome, tuple[TrackOutcome, ...]]:
        stage = StageName.TRANSCRIPT
        if reason := skip_reason(stage, self.item.mode, ingested.media):
            return StageOutcome(stage, StageStatus.SKIPPED, reason), ()
        try:
            tracks = await self.runner.run_tracks(
                ingested,
                self.control,
                lambda track, share: _call(lambda: self._spoken(track, ingested, share)),
            )
        except StageError as error:
            return _failed(stage, error), ()
        return StageOutcome(stage, StageStatus.COMPLETED), tracks


async def _call(call: Callable[[], Result]) -> Result:
    """``call``'s result. In this thread, the task's main one: signals unwind no other.

    Ray ends the task of a killed driver by SIGTERM; what is then in a temporary folder, or running
    as a child process, goes with the stack.
    """
    return call()


def _failed(stage: StageName, error: StageError) -> StageOutcome:
    return StageOutcome(stage, StageStatus.FAILED, None, error.code, error.message)


def fetch_source(
    item: Item, key: str, store: ObjectStore, rules: SourceRules, control: Control
) -> str:
    """Put the item's source under ``key``, unless it is there; the key of what to analyse.

    That is another one for camera RAW, which is decoded. Raises StageError (FETCH_FAILED,
    VALIDATION_FAILED, INGEST_FAILED).
    """
    if not store.exists(key):
        if item.source.startswith(("http://", "https://")):
            fetch(
                item.source,
                store=store,
                key=key,
                limits=rules.limits,
                policy=rules.addresses,
                provider=item.provider,
                control=control,
            )
        else:
            _copy(item.source, key, store, rules.access)
    return decoded_source(
        key,
        named_family=_RAW_SUFFIXES.get(Path(item.name).suffix.lower()),
        store=store,
        config=rules.raw,
        control=control,
    )


def _copy(source: str, key: str, store: ObjectStore, access: S3Access) -> None:
    """Raises StageError FETCH_FAILED."""
    place, name = file_at(source, access)
    try:
        with store.writer(key) as sink:
            place.copy_to(name, sink)
    except ObjectNotFoundError:
        raise StageError(StageCode.FETCH_FAILED, "There is no such file.") from None
    except (ObjectStoreUnavailableError, OSError) as error:
        # An OSError says which machine's path it was: only the reason is for the table.
        reason = error.strerror if isinstance(error, OSError) else error
        message = f"The source cannot be read: {reason}."
        raise StageError(StageCode.FETCH_FAILED, message) from error
