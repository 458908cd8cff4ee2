"""One item from its source to its outcome: the stages of a job, in one task, without a database.

The stages are the functions that jobs run, over an object store inside the output; there is
found what an earlier, interrupted run had ready. An outcome is stored as a whole before anyone
hears of it, and counts once it is committed to a part (see ``output``).
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from models.provider import ModelProvider
from models.registry import SPEECH_TASKS, digest_of
from pipelines.backfill.fetch import SourceRules, bring
from pipelines.backfill.outcome import Item, ItemOutcome
from pipelines.backfill.places import Place
from pipelines.codec import CodecError, decode, encode
from pipelines.execution.chain import ControlSpan, FreeRun, Row, Workspace, map_here
from pipelines.ingest.job_media import ClipFile, JobMedia, ingest_media, probe_media
from pipelines.ingest.pipeline import IngestConfig, IngestContext
from pipelines.speech.pipeline import TranscriptConfig, transcribe_track
from pipelines.speech.speakers import SpeakerRules
from pipelines.types import (
    AudioTrack,
    IngestResult,
    Scene,
    StageCode,
    StageError,
    StageOutcome,
    TrackOutcome,
)
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from storage.objects import ObjectNotFoundError, ObjectStore, ObjectStoreUnavailableError
from storage.types import ProcessingMode, SkipReason, StageName, StageStatus

log = logging.getLogger("vas.backfill")

OUTCOME_NAME = "outcome.json"
STILLS_FOLDER = "stills"
STAGE_ATTEMPTS = 2
"""A stage that breaks for a reason of the machine's, not the media's, is run once more."""
WORKERS_LOST = 2
"""An item whose worker died so often in one run is probably what kills them: it fails."""
STORE_PAUSES_SECONDS = (2, 5, 15, 30)
"""How long an item waits, time after time, for an output that is away, before the run ends."""

FAILURE_CODES = {
    StageName.INGEST: StageCode.INGEST_FAILED,
    StageName.VISION: StageCode.VISION_FAILED,
    StageName.TRANSCRIPT: StageCode.TRANSCRIPT_FAILED,
}
"""The code of a stage that fails in a way that names none of its own."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ItemWork:
    """What every task is given. Picklable; called with a row ``{"item": JSON}``."""

    out: Place
    models: ModelProvider
    profile: str
    run: str
    """Names this run of the backfill."""
    rules: SourceRules = field(default_factory=SourceRules)
    ingest: IngestConfig = field(default_factory=IngestConfig)
    vision: VisionConfig = field(default_factory=VisionConfig)

    def __call__(self, row: Row) -> Row:
        """1:1. Says how the item went once its outcome is stored, or ``failure``: why it is not."""
        item = decode(Item, row["item"].encode())
        try:
            outcome = _retry_on_outage(lambda: self.carry_out(item))
        except ObjectStoreUnavailableError as error:
            return {"failure": str(error)}
        return {
            "failure": "",
            "folder": item.folder,
            "failed": outcome.status is StageStatus.FAILED,
            "footage_seconds": (outcome.duration_ms or 0) / 1000,
        }

    def carry_out(self, item: Item) -> ItemOutcome:
        """The item's outcome, worked out and stored unless it is stored already.

        What it was made from stays until the driver has heard (``keep_outcome_only``): tasks of a
        run whose driver was killed go on for a moment, and the next run may be at the same item.
        """
        store = self.out.work_store()
        outcome_key = f"{item.folder}/{OUTCOME_NAME}"
        # What another version of this program stored is worked out again.
        with contextlib.suppress(ObjectNotFoundError, CodecError):
            return outcome_of(store, item.folder)
        outcome = self._outcome(item, Workspace(store, item.folder))
        store.write_bytes(outcome_key, encode(outcome))
        return outcome

    def _outcome(self, item: Item, workspace: Workspace) -> ItemOutcome:
        started = time.monotonic()
        if self._workers_lost(workspace) >= WORKERS_LOST:
            message = f"The worker was lost {WORKERS_LOST} times over this item."
            failure = StageError(StageCode.PROCESSING_FAILED, message)
            return ItemOutcome(item, _all_failed(failure))
        outcome = _Analysis(self, item, workspace).outcome()
        return replace(outcome, seconds=round(time.monotonic() - started, 3))

    def _workers_lost(self, workspace: Workspace) -> int:
        """How many tasks of this run began with the item and never came to an end of it."""
        folder = workspace.key(f"begun/{self.run}")
        lost = sum(1 for _ in workspace.store.list_keys(folder))
        workspace.store.write_bytes(f"{folder}/{uuid.uuid4().hex}", b"")
        return lost


def keep_outcome_only(store: ObjectStore, folder: str) -> None:
    """Delete what an outcome was made from; to be called once no task of this run needs it."""
    outcome_key = f"{folder}/{OUTCOME_NAME}"
    store.delete_keys(key for key in [*store.list_keys(folder)] if key != outcome_key)


def outcome_of(store: ObjectStore, folder: str) -> ItemOutcome:
    """The stored outcome of an item. Raises ObjectNotFoundError, CodecError."""
    return decode(ItemOutcome, store.read_bytes(f"{folder}/{OUTCOME_NAME}"))


def _retry_on_outage(call: Callable[[], Result]) -> Result:
    for pause_seconds in STORE_PAUSES_SECONDS:
        try:
            return call()
        except ObjectStoreUnavailableError as error:
            log.warning("the output is away: %s", error)
            time.sleep(pause_seconds)
    return call()


def _all_failed(error: StageError) -> tuple[StageOutcome, ...]:
    """Without ingest nothing else can run."""
    return (
        _failed(StageName.INGEST, error),
        StageOutcome(StageName.VISION, StageStatus.SKIPPED, SkipReason.JOB_FAILED),
        StageOutcome(StageName.TRANSCRIPT, StageStatus.SKIPPED, SkipReason.JOB_FAILED),
    )


def _failed(stage: StageName, error: StageError) -> StageOutcome:
    return StageOutcome(stage, StageStatus.FAILED, None, error.code, error.message)


@dataclass(slots=True)
class _Analysis:
    """The stages of one item."""

    work: ItemWork
    item: Item
    workspace: Workspace
    control: FreeRun = field(default_factory=FreeRun)

    def outcome(self) -> ItemOutcome:
        try:
            ingested = _attempted(StageName.INGEST, self._ingest)
        except StageError as error:
            return ItemOutcome(self.item, _all_failed(error))
        vision, scenes = self._vision(ingested)
        transcript, tracks = self._transcript(ingested)
        picture = ingested.media.video
        return ItemOutcome(
            item=self.item,
            stages=(StageOutcome(StageName.INGEST, StageStatus.COMPLETED), vision, transcript),
            duration_ms=round(ingested.media.duration_seconds * 1000),
            width=None if picture is None else picture.width,
            height=None if picture is None else picture.height,
            scenes=scenes,
            tracks=tracks,
            warnings=ingested.warnings,
        )

    def _ingest(self) -> IngestResult:
        work, workspace = self.work, self.workspace
        key = bring(self.item, workspace.key("source"), workspace.store, work.rules, self.control)
        context = IngestContext(workspace, self.control, work.ingest)
        return ingest_media(
            probe_media(JobMedia((ClipFile(key, self.item.name),)), context),
            context,
            video=self.item.mode is not ProcessingMode.TRANSCRIPT,
            audio=self.item.mode is not ProcessingMode.VISION,
        )

    def _vision(self, ingested: IngestResult) -> tuple[StageOutcome, tuple[Scene, ...]]:
        reason = None
        if self.item.mode is ProcessingMode.TRANSCRIPT:
            reason = SkipReason.PROCESSING_MODE
        elif ingested.media.video is None:
            reason = SkipReason.AUDIO_ONLY_INPUT
        if reason is not None:
            return StageOutcome(StageName.VISION, StageStatus.SKIPPED, reason), ()
        try:
            scenes = _attempted(StageName.VISION, lambda: self._scenes(ingested))
        except StageError as error:
            return _failed(StageName.VISION, error), ()
        return StageOutcome(StageName.VISION, StageStatus.COMPLETED), scenes

    def _scenes(self, ingested: IngestResult) -> tuple[Scene, ...]:
        if ingested.video is None:
            raise StageError(StageCode.VISION_FAILED, "The picture could not be read.")
        found = analyse_vision(
            ingested.video,
            workspace=self.workspace,
            models=self.work.models,
            control=self.control,
            config=self.work.vision,
            mapper=map_here,
        )
        return tuple(map(self._with_still, found.scenes))

    def _with_still(self, scene: Scene) -> Scene:
        name = f"{STILLS_FOLDER}/{self.item.folder}/{scene.index:05d}.jpg"
        self.work.out.write_bytes(name, self.workspace.store.read_bytes(scene.thumbnail_key))
        return replace(scene, thumbnail_key=name)

    def _transcript(self, ingested: IngestResult) -> tuple[StageOutcome, tuple[TrackOutcome, ...]]:
        reason = None
        if self.item.mode is ProcessingMode.VISION:
            reason = SkipReason.PROCESSING_MODE
        elif not ingested.media.audio:
            reason = SkipReason.NO_AUDIO
        if reason is not None:
            return StageOutcome(StageName.TRANSCRIPT, StageStatus.SKIPPED, reason), ()
        tracks: list[TrackOutcome] = []
        last = StageError(StageCode.TRANSCRIPT_FAILED, "The sound could not be read.")
        for position, track in enumerate(ingested.tracks):
            share = ControlSpan.of_piece(self.control, position, len(ingested.tracks))
            call = partial(self._track, ingested, track, share)
            try:
                tracks.append(_attempted(StageName.TRANSCRIPT, call))
            except StageError as error:
                last = error
                tracks.append(TrackOutcome(track.index, track.name, code=error.code))
        if all(track.code is not None for track in tracks):
            return _failed(StageName.TRANSCRIPT, last), ()
        return StageOutcome(StageName.TRANSCRIPT, StageStatus.COMPLETED), tuple(tracks)

    def _track(self, ingested: IngestResult, track: AudioTrack, share: ControlSpan) -> TrackOutcome:
        config = TranscriptConfig(
            language=self.item.language,
            keyterms=self.item.keyterms,
            models=digest_of(self.work.profile, SPEECH_TASKS),
            speakers=SpeakerRules(expected=self.item.speakers_expected),
        )
        found = transcribe_track(
            track,
            workspace=self.workspace,
            models=self.work.models,
            control=share,
            config=config,
            media_duration_ms=round(ingested.media.duration_seconds * 1000),
            mapper=map_here,
        )
        return TrackOutcome(track.index, track.name, found)


def _attempted(stage: StageName, call: Callable[[], Result]) -> Result:
    """``call``'s result; what breaks for no reason of the media's is tried again. StageError."""
    for attempt in range(1, STAGE_ATTEMPTS + 1):
        try:
            return call()
        except (StageError, ObjectStoreUnavailableError):
            raise
        except Exception as error:
            log.exception("%s broke", stage)
            if attempt == STAGE_ATTEMPTS:
                message = f"The {stage} stage broke ({type(error).__name__}: {error})."
                raise StageError(FAILURE_CODES[stage], message) from error
    raise AssertionError("unreachable")
