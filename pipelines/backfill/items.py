"""One item: its source, its stages, what comes of it.

The stages are the functions that jobs run, over an object store inside the output; there is found
what an earlier, interrupted run had ready. ``operators`` has how they are divided among processes.
An outcome is stored as a whole before anyone knows of it, and counts once it is committed to a
part (see ``output``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from models.profiles import digest_of
from models.provider import ModelProvider, ObserveBatch, unobserved
from models.tasks import TRANSCRIBE, Purpose, tasks_for
from pipelines import types
from pipelines.backfill.manifest import Item
from pipelines.backfill.output import ItemOutcome
from pipelines.codec import decode
from pipelines.collection import BucketAccess, Place, PlaceError, file_at, pause_seconds
from pipelines.execution.chain import Control, FreeRun, Mapper, Workspace
from pipelines.ingest.headers import raw_family
from pipelines.ingest.pipeline import IngestConfig
from pipelines.ingest.source import ClipFile, RawConfig, SourceMedia, decoded_source
from pipelines.net.addresses import AddressPolicy
from pipelines.net.fetch import FetchLimits, fetch
from pipelines.speech.languages import LanguageChoice
from pipelines.speech.pipeline import TranscriptConfig
from pipelines.speech.speakers import SpeakerRules
from pipelines.stages import MediaStages, StageRunner, skip_reason
from pipelines.vision.pipeline import VisionConfig
from storage.objects import ObjectNotFoundError, ObjectStore, ObjectStoreUnavailableError
from storage.types import SkipReason, StageName, StageStatus

OUTCOME_NAME = "outcome.json"
STILLS_FOLDER = "stills"
STORE_PAUSES_SECONDS = tuple(map(pause_seconds, range(1, 6)))
"""How long an item waits, time after time, for an output that is away, before the run ends."""


@dataclass(frozen=True, slots=True)
class SourceRules:
    """How sources may be reached. Picklable."""

    access: BucketAccess = field(default_factory=BucketAccess)
    addresses: AddressPolicy = field(default_factory=AddressPolicy)
    limits: FetchLimits = field(default_factory=FetchLimits)
    raw: RawConfig = field(default_factory=RawConfig)


@dataclass(frozen=True, slots=True)
class FinishedItem:
    """How an item ended: its outcome is stored, or ``failure`` is why it is not."""

    folder: str
    failed: bool = False
    media_seconds: float = 0.0
    source_bytes: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class ItemWork:
    """What is done with every item. Picklable."""

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
    observe: ObserveBatch = unobserved
    """Receives also each row of an operator, as a batch of one; picklable."""

    def start(self, item: Item, mapper: Mapper, models: ModelProvider) -> ItemRun:
        return ItemRun(self, item, mapper, models)


def outcome_of(store: ObjectStore, folder: str) -> ItemOutcome:
    """Return the stored outcome of an item. Raises ObjectNotFoundError, CodecError."""
    return decode(ItemOutcome, store.read_bytes(f"{folder}/{OUTCOME_NAME}"))


INGEST, VISION = StageName.INGEST.value, StageName.VISION.value
"""Programs of an item; each track has one of its own, called ``track_program``."""


def track_program(position: int) -> str:
    """Return what the transcription of a track is called, by its position among all."""
    return f"{StageName.TRANSCRIPT}-{position}"


def stage_of(program: str) -> StageName:
    """Return the stage that a program is of."""
    return StageName(program.partition("-")[0])


def programs_of(item: Item, ingested: types.IngestResult) -> list[str]:
    """Return what is done with an item once it is ingested, all of it side by side."""
    programs = []
    if skip_reason(StageName.VISION, item.mode, ingested.media) is None:
        programs.append(VISION)
    if skip_reason(StageName.TRANSCRIPT, item.mode, ingested.media) is None:
        programs += [track_program(position) for position in range(len(ingested.tracks))]
    return programs


@dataclass(frozen=True, slots=True)
class ItemRun:
    """One item on its way through the stages. Methods raise StageError, and what ``mapper``
    raises."""

    work: ItemWork
    item: Item
    mapper: Mapper
    models: ModelProvider
    control: FreeRun = field(default_factory=FreeRun)

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.work.out.work, self.item.folder)

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
            models=self.models,
            mode=self.item.mode,
            ingest_config=replace(self.work.ingest, channels=self.item.channels),
            vision_config=self.work.vision,
            transcript_config=TranscriptConfig(
                choice=LanguageChoice(language=self.item.language),
                keyterms=self.item.keyterms,
                models=digest_of(
                    self.work.profile, tasks_for(Purpose.TRANSCRIPT), self.work.own_whisper
                ),
                transcriber=digest_of(self.work.profile, (TRANSCRIBE,), self.work.own_whisper),
                speakers=SpeakerRules(expected=self.item.speakers_expected),
            ),
            mapper=self.mapper,
        )

    def ingest(self) -> types.IngestResult:
        workspace = self.workspace
        key = fetch_source(
            self.item, workspace.key("source"), workspace.store, self.work.rules, self.control
        )
        media = SourceMedia((ClipFile(key, self.item.name),))
        return self.stages.ingest(self.stages.probe(media, self.control), self.control)

    def carry_out(self, program: str, ingested: types.IngestResult) -> ItemOutcome:
        """Return the program's share of the outcome."""
        if program == VISION:
            return self._vision(ingested)
        track = ingested.tracks[int(program.rpartition("-")[2])]
        # Without its fingerprints: outcomes are JSON, and nothing looks for duplicates in them.
        found = replace(self.stages.transcribe(track, ingested, self.control), sound_print=None)
        outcome = types.TrackOutcome(track.index, track.name, found)
        return ItemOutcome(self.item, (), tracks=(outcome,))

    def _vision(self, ingested: types.IngestResult) -> ItemOutcome:
        """Return scenes and overview with their stills in the output."""
        found = self.stages.vision(ingested, self.control)
        return ItemOutcome(
            self.item,
            (types.StageOutcome(StageName.VISION, StageStatus.COMPLETED),),
            scenes=tuple(self._with_stills(each, f"{each.index:05d}") for each in found.scenes),
            overview=self._with_stills(found.overview, "overview"),
            warnings=found.warnings,
        )

    def _with_stills(self, scene: types.Scene, name: str) -> types.Scene:
        names = scene.still_names(f"{STILLS_FOLDER}/{self.item.folder}/{name}")
        for key, out in names.items():
            self.work.out.files.write_bytes(out, self.workspace.store.read_bytes(key))
        return scene.at_keys(names)

    def failed(self, program: str, error: types.StageError) -> ItemOutcome:
        """Return the share of a program that failed; of all of them where it was to ingest."""
        stage = stage_of(program)
        outcome = types.StageOutcome(stage, StageStatus.FAILED, None, error.code, error.message)
        if stage is not StageName.INGEST:
            return ItemOutcome(self.item, (outcome,))
        skipped = (
            types.StageOutcome(each, StageStatus.SKIPPED, SkipReason.JOB_FAILED)
            for each in (StageName.VISION, StageName.TRANSCRIPT)
        )
        return ItemOutcome(self.item, (outcome, *skipped))

    async def joined(
        self, ingested: types.IngestResult, shares: Mapping[str, ItemOutcome]
    ) -> ItemOutcome:
        """Return the outcome of the item, of whose programs these are the shares."""
        picture, seen = ingested.media.video, shares.get(VISION)
        reason = skip_reason(StageName.VISION, self.item.mode, ingested.media)
        skipped = types.StageOutcome(StageName.VISION, StageStatus.SKIPPED, reason)
        spoken, tracks = await self._transcript(ingested, shares)
        return ItemOutcome(
            item=self.item,
            stages=(
                types.StageOutcome(StageName.INGEST, StageStatus.COMPLETED),
                skipped if seen is None else seen.stages[0],
                spoken,
            ),
            duration_ms=round(ingested.media.duration_seconds * 1000),
            width=None if picture is None else picture.width,
            height=None if picture is None else picture.height,
            scenes=() if seen is None else seen.scenes,
            overview=None if seen is None else seen.overview,
            tracks=tracks,
            warnings=(
                *ingested.warnings,
                *(() if seen is None else seen.warnings),
                *types.transcript_warnings(tracks),
            ),
        )

    async def _transcript(
        self, ingested: types.IngestResult, shares: Mapping[str, ItemOutcome]
    ) -> tuple[types.StageOutcome, tuple[types.TrackOutcome, ...]]:
        stage = StageName.TRANSCRIPT
        if reason := skip_reason(stage, self.item.mode, ingested.media):
            return types.StageOutcome(stage, StageStatus.SKIPPED, reason), ()

        async def transcript(track: types.AudioTrack, _: Control) -> types.TranscriptResult:
            share = shares[track_program(ingested.tracks.index(track))]
            for each in share.tracks:
                if each.transcript is not None:
                    return each.transcript
            [failed] = share.failures
            raise types.StageError(types.StageCode(failed.code or stage), failed.message or "")

        try:
            tracks = await self.runner.run_tracks(ingested, self.control, transcript)
        except types.StageError as error:
            return self.failed(stage, error).stages[0], ()
        return types.StageOutcome(stage, StageStatus.COMPLETED), tracks


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
        key, named_family=raw_family(item.name), store=store, config=rules.raw, control=control
    )


def _copy(source: str, key: str, store: ObjectStore, access: BucketAccess) -> None:
    """Raises StageError FETCH_FAILED."""
    try:
        place, name = file_at(source, access)
        with store.writer(key) as sink:
            place.files.copy_to(name, sink)
    except (ObjectNotFoundError, PlaceError):
        raise types.StageError(types.StageCode.FETCH_FAILED, "There is no such file.") from None
    except (ObjectStoreUnavailableError, OSError) as error:
        # An OSError says which machine's path it was: only the reason is for the table.
        reason = error.strerror if isinstance(error, OSError) else error
        message = f"The source cannot be read: {reason}."
        raise types.StageError(types.StageCode.FETCH_FAILED, message) from error
