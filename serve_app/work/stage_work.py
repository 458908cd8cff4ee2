"""What each stage does: plain steps from a leased job to a published outcome; how long that will
take by how the jobs before it went; and what is recorded of it for its receipt."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from models.profiles import concurrent_inputs, digest_of
from models.provider import ModelProvider
from models.registry import REGISTRY, own_profile
from models.tasks import EMBED_VOICE, SUMMARIZE, TRANSCRIBE, Purpose, tasks_for
from pipelines import types
from pipelines.across import redaction
from pipelines.codec import digest, to_json
from pipelines.execution import chain
from pipelines.ingest.pipeline import INGESTED, PROBE_SHARE, SHORTEST_SEGMENT_SECONDS, IngestConfig
from pipelines.ingest.preview import is_playable
from pipelines.ingest.source import ProbedMedia, SourceMedia
from pipelines.speech.languages import ENGLISH, LanguageChoice
from pipelines.speech.pipeline import TranscriptConfig
from pipelines.speech.regions import Sharding
from pipelines.speech.speakers import MAX_SPEAKERS, SpeakerRules
from pipelines.speech.texts import SummaryConfig
from pipelines.stages import MediaStages, StageRunner
from pipelines.vision.cuts.selection import CutConfig
from pipelines.vision.features import FeaturesConfig
from pipelines.vision.pipeline import VisionConfig
from pipelines.vision.scenes import DescribeConfig
from serve_app.context import AppContext
from serve_app.jobs.answers import alone_seconds, gain_alone, timings_of, warning_document
from serve_app.observability.metrics import record_media
from serve_app.results.receipts import (
    ReceiptResultJson,
    ReceiptSourceJson,
    Setting,
    StageReceipt,
    result_json,
    software,
)
from serve_app.results.redaction import redacted_kinds, want_preview
from serve_app.results.scenes import overview_json, scene_json
from serve_app.results.transcripts import track_transcript, transcript_json, transcript_of
from serve_app.settings import Settings
from serve_app.work import publishing
from serve_app.work.comparing import KeptSounds, parts_of_shots, repeated_tracks
from serve_app.work.fetch import SourceFetcher, has_files_to_fetch
from serve_app.work.publishing import KeptVoices, Lease
from serve_app.work.redacting import Findings, RedactedTracks, redact_tracks
from storage.archives import find_access
from storage.job_records import JobRecord
from storage.objects import ObjectStore
from storage.results import TrackTranscript, usual_languages
from storage.types import JobState, StageName, StageStatus
from storage.uploads import list_uploads

log = logging.getLogger("vas.runner")

Result = TypeVar("Result")
_Summary = tuple[types.TimedSentence, ...] | types.PipelineWarning | None

UNSHARDED_SECONDS = 86_400.0
"""A segment as long as the longest media that is taken: one piece."""

_SUMMARY_SHARE = 0.1
"""Of the transcript's progress, where there is a model for summaries."""

_FETCH_SHARE = 0.5
"""Of ingest's progress, where files are fetched; nobody knows before how fast they come."""


@dataclass(slots=True)
class Timings:
    """Seconds and counts of a stage, to show where the time went."""

    values: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the wall time of the block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, amount: float) -> None:
        self.values[name] = round(self.values.get(name, 0.0) + amount, 4)


@dataclass(frozen=True, slots=True)
class StageWork:
    """One stage of one job in the hands of one runner.

    ``threads`` runs the pipelines, which are plain synchronous code, off the
    event loop.
    """

    context: AppContext
    models: ModelProvider
    lease: Lease
    workspace: chain.Workspace
    threads: Executor
    control: chain.Control
    runner: StageRunner
    calibration: Calibration
    findings: Findings = field(default_factory=lambda: Findings(redaction.Known()))
    timings: Timings = field(default_factory=Timings)

    async def run_ingest(self, job: JobRecord) -> JobState | None:
        """Bring the source here, price the job, cut the media; publish what was found.

        Like the other stages, returns the job's end, if this was it.
        """
        fetching, probing, cutting = ingest_parts(self.control, fetches=has_files_to_fetch(job))
        uploads = await self.context.database.read(list_uploads, job.id)
        archive_id = next((clip.archive_id for clip in job.source.clips), None)
        access = None
        if archive_id is not None:
            access = await self.context.database.read(find_access, archive_id)
        sources = SourceFetcher(self.context, job, fetching, access)
        stages = self._stages(job)
        with self.timings.measure("fetch"):
            fetched = await self._in_thread(lambda: sources.fetch_all(uploads))
        fetching.progress(1.0)
        with self.timings.measure("decode"):
            media_files = await self._in_thread(lambda: sources.decoded(fetched))
        files = fetched, media_files
        with self.timings.measure("probe"):
            found = await self._in_thread(lambda: stages.probe(media_files, probing))
        probing.progress(1.0)
        media = found.media
        hold = self.lease, media, self.context.prices
        await self.context.database.write(publishing.raise_hold, *hold)
        with self.timings.measure("cut"):
            result = await self._in_thread(lambda: stages.ingest(found, cutting))
        with self.timings.measure("digest"):
            store, ingest_config = self.workspace.store, stages.ingest_config

            def record(control: chain.Control) -> StageReceipt:
                return ingest_receipt(*files, ingest_config, store, control)

            receipt = await self._in_thread(
                lambda: stages.on_a_worker(record, media.size_bytes, self.control)
            )
        machine = machine_of(self.context.settings)
        expected = self.calibration.expected_seconds(machine.work_seconds(result))
        for name, value in timings_of(machine.gain, expected).items():
            self.timings.add(name, value)
        return await self.context.database.write(
            publishing.publish_ingest,
            self.lease,
            media=media,
            result=to_json(result),
            track_names=track_names(result),
            warnings=[warning_document(warning, StageName.INGEST) for warning in result.warnings],
            timings=self.timings.values,
            preview_of=self._preview_of(job, found),
            receipt=receipt,
        )

    def _preview_of(self, job: JobRecord, found: ProbedMedia) -> str | None:
        """Return the file that browsers cannot play; a timeline of several clips has none."""
        main = found.main
        if job.source.redact:
            return None  # one is made once it is known what is to be silent
        if not self.context.settings.previews or main is None or is_playable(main.media):
            return None
        return main.key

    async def run_vision(self, job: JobRecord, ingested: types.IngestResult) -> JobState | None:
        """Find and describe the scenes; publish them."""
        with self.timings.measure("analyse"):
            found = await self._in_thread(lambda: self._stages(job).vision(ingested, self.control))
        self._count_shards(found)
        warnings = [warning_document(each, StageName.VISION) for each in found.warnings]
        seen: Sequence[types.Scene] = (*found.scenes, found.overview)
        known = redaction.Known()
        if kinds := redacted_kinds(job):
            recognizer, whole = redaction.remembered(self.context.recognizer), seen
            seen, known = await self._redacted(
                StageName.VISION,
                lambda known: redaction.redact_scenes(whole, kinds, recognizer, known),
            )
            places = redaction.hidden_places(seen[:-1], seen[-1])
            await self._in_thread(lambda: redaction.cover_pictures(self.workspace.store, places))
        receipt = await self._in_thread(lambda: Recorder(self.context.settings, job).vision(seen))
        shot_keys = await self._in_thread(lambda: parts_of_shots(found.fingerprints))
        end = await self.context.database.write(
            publishing.publish_scenes,
            self.lease,
            to_json(seen[:-1]),
            self.timings.values,
            made_with=made_with(self.context)[StageName.VISION],
            overview=to_json(seen[-1]),
            people=None if found.people is None else to_json(found.people),
            warnings=warnings,
            receipt=receipt,
            fingerprints=found.fingerprints,
            shot_keys=shot_keys,
            known=known,
        )
        record_media(self.context.metrics, StageName.VISION, ingested.media.duration_seconds)
        return end

    async def run_transcript(self, job: JobRecord, ingested: types.IngestResult) -> JobState | None:
        """Transcribe every track and sum them up; publish them unless all failed."""
        spoken = await self.context.database.read(usual_languages, job.account_id, job.created_at)
        stages = self._stages(job, spoken)
        summarizes = SUMMARIZE in REGISTRY[self.context.settings.model_profile]
        transcribed = 1.0 - _SUMMARY_SHARE if summarizes else 1.0

        async def transcribe(
            track: types.AudioTrack, control: chain.Control
        ) -> types.TranscriptResult:
            with self.timings.measure("analyse"):
                found = await self._in_thread(lambda: stages.transcribe(track, ingested, control))
            self._count_shards(found)
            return found

        span = chain.ControlSpan(self.control, 0.0, transcribed)
        tracks = await self.runner.run_tracks(ingested, span, transcribe)
        redacted, known, whole = None, redaction.Known(), tracks
        kinds, recognizer = redacted_kinds(job), redaction.remembered(self.context.recognizer)
        if kinds:  # a summary is made of what it may have
            before = self.findings.before()
            hidden = await self._in_thread(lambda: redact_tracks(whole, kinds, recognizer, before))
            tracks = tuple(hidden.tracks)
        summary = await self._summary(stages, tracks) if summarizes else None
        if kinds:
            told = summary

            def hide(known: redaction.Known) -> tuple[RedactedTracks, _Summary]:
                sentences = told
                if isinstance(told, tuple):
                    sentences = redaction.redact_sentences(told, kinds, recognizer, known)
                return redact_tracks(whole, kinds, recognizer, known), sentences

            made, known = await self._redacted(StageName.TRANSCRIPT, hide)
            redacted, summary = made
            tracks = tuple(redacted.tracks)
        stored = [*map(track_transcript, tracks)]
        receipt = await self._in_thread(
            lambda: Recorder(self.context.settings, job).transcript(stored)
        )
        muted = () if redacted is None else redacted.muted
        prints = {
            each.index: each.transcript.sound_print
            for each in tracks
            if each.transcript is not None and each.transcript.sound_print is not None
        }
        sounds = await self._in_thread(lambda: KeptSounds.of(prints, muted))
        repeated = await self._in_thread(lambda: repeated_tracks(prints))
        async with self.context.database.transaction() as connection:
            if redacted is not None:
                await want_preview(self.context, connection, job)
            end = await publishing.publish_transcripts(
                connection,
                self.lease,
                stored,
                self.timings.values,
                made_with=made_with(self.context)[StageName.TRANSCRIPT],
                warnings=[*types.transcript_warnings(tracks), *repeated],
                summary=summary,
                voices=self._voices(job, tracks),
                before={} if redacted is None else redacted.before,
                muted=muted,
                sounds=sounds,
                receipt=receipt,
                known=known,
            )
        record_media(self.context.metrics, StageName.TRANSCRIPT, ingested.media.duration_seconds)
        return end

    async def _redacted(
        self, stage: StageName, hide: Callable[[redaction.Known], Result]
    ) -> tuple[Result, redaction.Known]:
        """Return what ``hide`` makes once all analyses of the job have looked, and what they
        found."""
        known = self.findings.before()
        await self._in_thread(lambda: hide(known))
        found = await self.findings.shared(stage, known)
        return await self._in_thread(lambda: hide(found)), found

    async def _summary(self, stages: MediaStages, tracks: Sequence[types.TrackOutcome]) -> _Summary:
        """Return the summary. That there is none does not fail the stage."""
        span = chain.ControlSpan(self.control, 1.0 - _SUMMARY_SHARE, 1.0)
        try:
            with self.timings.measure("summarize"):
                found = await self.runner.run(
                    StageName.TRANSCRIPT,
                    lambda: self._in_thread(lambda: stages.summarize(tracks, span)),
                )
        except types.StageError as error:
            log.warning("no summary: %s", error)
            return types.PipelineWarning(
                types.WarningCode.SUMMARY_FAILED, "The transcript could not be summed up."
            )
        return found

    def _voices(self, job: JobRecord, tracks: Sequence[types.TrackOutcome]) -> KeptVoices | None:
        """Return what its speakers sound like, where the service and the job both have `voices`."""
        if not (job.source.voices and self.context.settings.voices):
            return None
        model = digest_of(self.context.settings.model_profile, (EMBED_VOICE,))
        found = {each.index: each.transcript for each in tracks}
        return KeptVoices(model, {at: each.voices for at, each in found.items() if each})

    def _stages(self, job: JobRecord, spoken: Sequence[str] = ()) -> MediaStages:
        """Return how this job's media is analysed, by the settings; ``spoken`` are the languages
        that its account's media are mostly in."""
        settings = self.context.settings
        segment_seconds = settings.segment_seconds
        return MediaStages(
            workspace=self.workspace,
            models=self.models,
            mode=job.processing_mode,
            ingest_config=IngestConfig(
                segment_seconds=segment_seconds or UNSHARDED_SECONDS,
                shortest_segment_seconds=SHORTEST_SEGMENT_SECONDS if segment_seconds else None,
                channels=types.ChannelUse(job.source.channels),
            ),
            vision_config=replace(
                vision_config(self.context), people=job.source.people and settings.people
            ),
            transcript_config=replace(
                transcript_config(settings),
                choice=LanguageChoice(
                    language=job.source.language,
                    languages=job.source.languages,
                    usual=tuple(dict.fromkeys((ENGLISH, *spoken))),
                ),
                keyterms=(*job.source.keyterms, *job.source.vocabulary),
                replacements=job.source.replacements,
                transcribe_concurrency=transcribe_concurrency(settings),
                speakers=SpeakerRules(
                    job.source.speakers_expected, job.source.speakers_at_most or MAX_SPEAKERS
                ),
            ),
            summary_config=summary_config(settings),
        )

    def _count_shards(self, found: types.VisionResult | types.TranscriptResult) -> None:
        self.timings.add("shards_computed", found.shards_computed)
        self.timings.add("shards_reused", found.shards_reused)

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        # A thread of the pool knows nothing of the task: log records need its context.
        inside = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(
            self.threads, lambda: inside.run(call)
        )


def vision_config(context: AppContext) -> VisionConfig:
    """Return how every video is analysed, whatever its job chose."""
    profile = context.settings.model_profile
    return VisionConfig(
        features=FeaturesConfig(gpus=context.settings.decoder_gpus),
        describe=DescribeConfig(models=digest_of(profile, tasks_for(Purpose.VISION))),
        tags=context.tags,
        policy=context.content_policy,
        cuts=CutConfig(by=context.settings.cuts),
    )


def transcript_config(settings: Settings) -> TranscriptConfig:
    """Return how every track is transcribed, whatever its job chose."""
    weights = settings.whisper_weights
    return TranscriptConfig(
        models=digest_of(settings.model_profile, tasks_for(Purpose.TRANSCRIPT), weights),
        transcriber=digest_of(settings.model_profile, (TRANSCRIBE,), weights),
        sharding=Sharding(shard_seconds=settings.transcript_shard_seconds),
    )


def summary_config(settings: Settings) -> SummaryConfig:
    """Return how every transcript is summed up."""
    return SummaryConfig(models=digest_of(settings.model_profile, (SUMMARIZE,)))


def made_with(context: AppContext) -> dict[StageName, str]:
    """For each analysis a digest of the models, settings and versions of steps that it uses."""
    transcript = transcript_config(context.settings), summary_config(context.settings)
    return {
        StageName.VISION: digest(vision_config(context), step_versions("pipelines.vision.")),
        StageName.TRANSCRIPT: digest(transcript, step_versions("pipelines.speech.")),
    }


def ingest_parts(control: chain.Control, *, fetches: bool) -> list[chain.ControlSpan]:
    """Of fetching, probing and cutting; without anything to fetch, the file is there at once."""
    fetching = _FETCH_SHARE / (1 - _FETCH_SHARE) if fetches else 0.0
    return chain.parts_of(control, (fetching, PROBE_SHARE, 1.0 - PROBE_SHARE))


def transcribe_concurrency(settings: Settings) -> int:
    """With so many callers no replica ever waits for an input: as many as all of them take."""
    remote = REGISTRY[settings.model_profile][TRANSCRIBE].remote
    if remote is not None:
        return remote.concurrency
    inputs = concurrent_inputs(settings.model_profile, TRANSCRIBE)
    return settings.most_replicas(TRANSCRIBE) * inputs


def machine_of(settings: Settings) -> Machine:
    """Return what analyses share by now: clusters grow."""
    import ray

    cpus = ray.cluster_resources().get("CPU", 1.0) if ray.is_initialized() else 1.0
    return Machine(float(cpus), settings.most_replicas(TRANSCRIBE))


def track_names(result: types.IngestResult) -> list[str]:
    """Return names of all tracks by index, of those too that nothing can be made of."""
    named = {track.index: track.name for track in result.tracks}
    named |= {track.index: track.name for track in result.failed_tracks}
    return [named[index] for index in sorted(named)]


_START_SECONDS = 1.0
"""Of an analysis of next to nothing: its chains are begun and gathered all the same."""
_LEAST_WORK_SECONDS = 5.0
"""An analysis with less to do shows nothing of the pace."""
_NEWEST_SHARE = 0.5
"""Weight of the latest job among all that were seen."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the analyses share."""

    cpus: float
    transcribers: float

    @property
    def gain(self) -> float:
        """As ``gain_alone``."""
        return gain_alone(self.cpus, self.transcribers)

    def work_seconds(self, result: types.IngestResult) -> dict[StageName, float]:
        """Return what each analysis takes by itself, with the embedded models on a core as
        measured."""
        cpus = max(1.0, self.cpus)
        work = {}
        if result.video is not None:
            work[StageName.VISION] = sum(chain.vision_work(result.video)) / cpus
        if result.tracks:
            transcribers = max(1.0, min(cpus, self.transcribers))
            work[StageName.TRANSCRIPT] = chain.transcript_work(result.tracks) / transcribers
        return work


@dataclass(slots=True)
class Calibration:
    """How many times as long as that they take here; learned by a runner while it lives.

    Apart for analyses by themselves and side by side: how two share the processors is known only
    roughly. What nothing is known of is not guessed: neural models are slower or faster than the
    embedded ones by a factor that only their first job shows.
    """

    profile: str
    _factors: dict[tuple[StageName, int], float] = field(default_factory=dict)
    """By the analysis and how many ran."""

    def expected_seconds(self, work: Mapping[StageName, float]) -> dict[StageName, float]:
        """Return what analyses will take by themselves; without those of which nothing is known."""
        unseen = 1.0 if self.profile == "packaged" else None
        found = {stage: self._factors.get((stage, len(work)), unseen) for stage in work}
        return {
            stage: _START_SECONDS + factor * work[stage]
            for stage, factor in found.items()
            if factor is not None
        }

    def learn(
        self, work: Mapping[StageName, float], took: Mapping[StageName, float], machine: Machine
    ) -> None:
        """Of a job whose analyses ``took`` so many seconds side by side, from their beginning.

        Nothing where one of them failed: the other had the processors to itself.
        """
        if took.keys() != work.keys():
            return
        shared = min(took.values(), default=0.0) if len(took) > 1 else 0.0
        for stage, seconds in took.items():
            if work[stage] >= _LEAST_WORK_SECONDS:
                alone = alone_seconds(seconds, shared, machine.gain)
                factor = max(0.0, alone - _START_SECONDS) / work[stage]
                known = self._factors.get((stage, len(work)), factor)
                self._factors[stage, len(work)] = known + _NEWEST_SHARE * (factor - known)


_BLOCK_BYTES = 8 << 20


def ingest_receipt(
    media: SourceMedia,
    decoded: SourceMedia,
    config: IngestConfig,
    store: ObjectStore,
    control: chain.Control,
) -> StageReceipt:
    """Of the files as they came, and how they were cut; reads them once more."""
    files = [(each.name, each.key) for each in media.clips]
    files += [(each.name, each.key) for each in media.external_audio if each.problem is None]
    return {
        "software": software(),
        "settings": {
            "segmentSeconds": config.segment_seconds,
            "shortestSegmentSeconds": config.shortest_segment_seconds,
            "decoded": media.clips != decoded.clips,
        },
        "models": {},
        "steps": {"Ingest": INGESTED.version},
        "source": [_source(name, key, store, control) for name, key in files],
    }


def _source(name: str, key: str, store: ObjectStore, control: chain.Control) -> ReceiptSourceJson:
    total, size = hashlib.sha256(), 0
    with store.local_copy(key, check=control.check) as path, path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            control.check()
            total.update(block)
            size += len(block)
    return {"fileName": name, "sizeBytes": size, "sha256": total.hexdigest()}


@dataclass(frozen=True, slots=True)
class Recorder:
    """Of one job's analyses."""

    settings: Settings
    job: JobRecord

    def vision(self, seen: Sequence[types.Scene]) -> StageReceipt:
        """``seen`` are the scenes as they are published, and last the overview."""
        *scenes, overview = seen
        result = {
            "scenes": [scene_json(each, lambda _: "") for each in scenes],
            "overview": overview_json(overview, lambda _: ""),
        }
        settings: dict[str, Setting] = {"cuts": str(self.settings.cuts)}
        return {
            **self._made(Purpose.VISION, "pipelines.vision.", settings),
            "results": [result_json("scenes", result)],
        }

    def transcript(self, stored: Sequence[TrackTranscript]) -> StageReceipt:
        """``stored`` are the tracks as they are published."""
        source, options = self.job.source, self.settings
        settings: dict[str, Setting] = {
            "shardSeconds": options.transcript_shard_seconds,
            "ownWeights": options.whisper_weights is not None,
            "language": source.language,
            "languages": list(source.languages),
            "keyterms": [*source.keyterms, *source.vocabulary],
            "replacements": len(source.replacements),
            "speakersExpected": source.speakers_expected,
            "speakersAtMost": source.speakers_at_most,
            "channels": source.channels,
        }
        made = self._made(Purpose.TRANSCRIPT, "pipelines.speech.", settings)
        return {**made, "results": [*self._transcripts(stored)]}

    def _transcripts(self, stored: Sequence[TrackTranscript]) -> Iterable[ReceiptResultJson]:
        for track in stored:
            if track.status is StageStatus.COMPLETED:
                found, multi = transcript_of(track), len(stored) > 1
                shown = transcript_json(self.job, track, found, multi=multi)
                yield result_json("transcript", shown, track.track_index)

    def _made(self, purpose: Purpose, steps: str, settings: dict[str, Setting]) -> StageReceipt:
        profile = self.settings.model_profile
        own = self.settings.whisper_weights if purpose is Purpose.TRANSCRIPT else None
        elsewhere: dict[str, Setting] = {
            f"{where}.{task.name}": name
            for task, row in REGISTRY[profile].items()
            for where, name in (("remote", row.remote and row.remote.model), ("plugin", row.plugin))
            if task.purpose is purpose and name
        }
        models = {
            task.name: digest_of(profile, (task,), own if task.own_weights else None)
            for task in tasks_for(purpose)
            if task in REGISTRY[profile]
        }
        return {
            "software": software(),
            "settings": {"profile": own_profile(profile), **elsewhere, **settings},
            "models": models,
            "steps": dict(step_versions(steps)),
        }


def step_versions(package: str) -> list[tuple[str, int]]:
    """Of all steps of a stage that this process has loaded."""
    steps = [each for each in chain.Step.__subclasses__() if each.__module__.startswith(package)]
    return sorted((each.__qualname__, each.version) for each in steps)
