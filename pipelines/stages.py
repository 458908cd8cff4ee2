"""The stages of an analysis: ingest, then vision and transcript.

``MediaStages`` runs them on one media; ``StageRunner`` repeats a stage that broke for a reason of
the machine's, waits for the end of outages and ends when it is stopped. What is stored and
published, and when, is for the caller.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from models.provider import ModelProvider
from models.tasks import DESCRIBE_SCENES, SUMMARIZE, TRANSCRIBE, Task
from pipelines import types
from pipelines.execution.chain import Control, Mapper, Workspace, parts_of
from pipelines.execution.ray_data import map_on_ray, on_a_worker
from pipelines.ingest.pipeline import IngestConfig, IngestContext
from pipelines.ingest.source import ProbedMedia, SourceMedia, ingest_media, probe_media
from pipelines.speech.pipeline import TranscriptConfig, transcribe_track
from pipelines.speech.texts import SummaryConfig, summarize
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from storage.objects import is_outage
from storage.types import MODE_STAGES, ProcessingMode, SkipReason, StageName

log = logging.getLogger("vas.stages")

FAILURE_CODES = {
    StageName.INGEST: types.StageCode.INGEST_FAILED,
    StageName.VISION: types.StageCode.VISION_FAILED,
    StageName.TRANSCRIPT: types.StageCode.TRANSCRIPT_FAILED,
}
"""The code of a stage that fails in a way that names none of its own."""

STAGE_ATTEMPTS = 2
OUTAGE_PAUSES_SECONDS = (2, 5, 15, 30, 60)
"""Waits between attempts while a database or an object store is away."""
_STOP_CHECK_SECONDS = 0.5
_MOST_WORKER_BYTES = 40 << 30
"""Of sources that a worker reads and cuts; the runner's node has a disk for larger ones, which are
camera RAW: 150 and 600 GB in ``cluster.yaml``."""

Result = TypeVar("Result")


def skip_reason(
    stage: StageName, mode: ProcessingMode, media: types.MediaInfo
) -> SkipReason | None:
    """Why a stage does not run; None if it runs."""
    if stage not in MODE_STAGES[mode]:
        return SkipReason.PROCESSING_MODE
    if stage is StageName.VISION and media.video is None:
        return SkipReason.AUDIO_ONLY_INPUT
    if stage is StageName.TRANSCRIPT and not media.audio:
        return SkipReason.NO_AUDIO
    return None


@dataclass(frozen=True, slots=True)
class MediaStages:
    """The stages of one media. Synchronous; each raises StageError and StageStoppedError.

    What an earlier run stored in ``workspace`` is used again.
    """

    workspace: Workspace
    models: ModelProvider
    mode: ProcessingMode
    ingest_config: IngestConfig
    vision_config: VisionConfig
    transcript_config: TranscriptConfig
    summary_config: SummaryConfig = field(default_factory=SummaryConfig)
    mapper: Mapper = map_on_ray

    def probe(self, media: SourceMedia, control: Control) -> ProbedMedia:
        """Return what the files hold, before any of it is decoded."""
        size_bytes = sum(self.workspace.store.size_bytes(clip.key) for clip in media.clips)
        return self.on_a_worker(functools.partial(self._probe, media), size_bytes, control)

    def _probe(self, media: SourceMedia, control: Control) -> ProbedMedia:
        return probe_media(media, IngestContext(self.workspace, control, self.ingest_config))

    def ingest(self, probed: ProbedMedia, control: Control) -> types.IngestResult:
        """Return segments and tracks, as far as the mode needs them."""
        act = functools.partial(self._ingest, probed)
        return self.on_a_worker(act, probed.media.size_bytes, control)

    def _ingest(self, probed: ProbedMedia, control: Control) -> types.IngestResult:
        return ingest_media(
            probed,
            IngestContext(self.workspace, control, self.ingest_config),
            video=StageName.VISION in MODE_STAGES[self.mode],
            audio=StageName.TRANSCRIPT in MODE_STAGES[self.mode],
        )

    def on_a_worker(
        self, act: Callable[[Control], Result], size_bytes: int, control: Control
    ) -> Result:
        """Return what ``act`` returns, a part of ingest; from another node where Ray has several.

        ``size_bytes`` are those of the files that it reads. Raises as ``act`` does.
        """
        is_task = self.mapper is not map_on_ray
        if is_task or size_bytes > _MOST_WORKER_BYTES:
            return act(control)
        return on_a_worker(act, types.StageCode.INGEST_FAILED, self.workspace, control)

    def vision(self, ingested: types.IngestResult, control: Control) -> types.VisionResult:
        """Return the scenes."""
        if ingested.video is None:
            raise types.StageError(types.StageCode.VISION_FAILED, "The picture could not be read.")
        self._require_budget(DESCRIBE_SCENES, ingested.media.duration_seconds)
        return analyse_vision(
            ingested.video,
            workspace=self.workspace,
            models=self.models,
            control=control,
            config=self.vision_config,
            mapper=self.mapper,
        )

    def transcribe(
        self, track: types.AudioTrack, ingested: types.IngestResult, control: Control
    ) -> types.TranscriptResult:
        """Return the transcript of one track, on the media's timeline."""
        self._require_budget(TRANSCRIBE, ingested.media.duration_seconds)
        return transcribe_track(
            track,
            workspace=self.workspace,
            models=self.models,
            control=control,
            config=self.transcript_config,
            media_duration_ms=round(ingested.media.duration_seconds * 1000),
            mapper=self.mapper,
        )

    def summarize(
        self, tracks: Sequence[types.TrackOutcome], control: Control
    ) -> tuple[types.TimedSentence, ...]:
        """Return a summary of all tracks; the profile must have a model for it."""
        said = [
            types.TimedSentence(segment.text, segment.start_ms, segment.end_ms)
            for track in tracks
            if track.transcript is not None
            for segment in track.transcript.segments
        ]
        self._require_budget(SUMMARIZE, max((each.end_ms for each in said), default=0) / 1000)
        return summarize(
            sorted(said, key=lambda each: each.start_ms),
            workspace=self.workspace,
            models=self.models,
            control=control,
            config=self.summary_config,
            mapper=self.mapper,
        )

    def _require_budget(self, task: Task[Any], seconds: float) -> None:
        """Raise StageError before anything is sent of media that the budget does not cover."""
        if seconds > (most := self.models.most_media_seconds(task)):
            message = f"The media is longer than the {most:g} s of the budget of {task.name}."
            raise types.StageError(types.StageCode.PROCESSING_FAILED, message)


@dataclass(frozen=True, slots=True)
class StageRunner:
    """Attempts, outages and stops, the same for all callers.

    All that stages do may be done again: what is stored is reused, what was published stays.
    """

    name: str
    """Of the analysis, for the log."""
    is_stopped: Callable[[], bool] = lambda: False
    is_outage: Callable[[BaseException], bool] = is_outage
    not_repeated: tuple[type[Exception], ...] = ()
    """Errors that end the work as they are, once they are no outage or it does not end."""
    pauses_seconds: Sequence[float] = OUTAGE_PAUSES_SECONDS

    async def run(self, stage: StageName, act: Callable[[], Awaitable[Result]]) -> Result:
        """``act``'s result. Raises StageError, StageStoppedError and ``not_repeated``.

        An error of another kind is tried once more; then it is a StageError.
        """
        final = types.StageError, types.StageStoppedError, *self.not_repeated
        for attempt in range(1, STAGE_ATTEMPTS + 1):
            try:
                return await self.retry_on_outage(stage, act)
            except Exception as error:
                if isinstance(error, final):
                    raise
                if self.is_stopped():
                    # What a stopped stage ran on is being taken away: that is no fault of it.
                    raise types.StageStoppedError(self.name) from error
                log.exception("%s: %s broke", self.name, stage)
                if attempt == STAGE_ATTEMPTS:
                    message = f"The {stage} stage broke ({type(error).__name__})."
                    raise types.StageError(FAILURE_CODES[stage], message) from error
        raise AssertionError("unreachable")

    async def run_tracks(
        self,
        ingested: types.IngestResult,
        control: Control,
        transcribe: Callable[[types.AudioTrack, Control], Awaitable[types.TranscriptResult]],
    ) -> tuple[types.TrackOutcome, ...]:
        """Return every track's transcript or failure. Raises StageError where all of them
        failed."""
        tracks: list[types.TrackOutcome] = []
        last_error = types.StageError(
            types.StageCode.TRANSCRIPT_FAILED, "The sound could not be read."
        )
        shares = parts_of(control, [1.0] * len(ingested.tracks))
        for track, share in zip(ingested.tracks, shares, strict=True):
            try:
                act = functools.partial(transcribe, track, share)
                found = await self.run(StageName.TRANSCRIPT, act)
            except types.StageError as error:
                last_error = error
                tracks.append(types.TrackOutcome(track.index, track.name, code=error.code))
            else:
                tracks.append(types.TrackOutcome(track.index, track.name, found))
        tracks += ingested.failed_tracks
        if all(track.transcript is None for track in tracks):
            raise last_error
        return tuple(tracks)

    async def retry_on_outage(self, what: str, act: Callable[[], Awaitable[Result]]) -> Result:
        """``act``'s result; while a database or store is away, or full, it is tried again.

        Raises the outage's error once the pauses are over, and StageStoppedError soon after a
        stop during a pause.
        """
        for pause_seconds in self.pauses_seconds:
            try:
                return await act()
            except Exception as error:
                if not self.is_outage(error):
                    raise
                log.warning("%s: %s waits: %s", self.name, what, error)
                end = time.monotonic() + pause_seconds
                while (left := end - time.monotonic()) > 0:
                    if self.is_stopped():
                        raise types.StageStoppedError(self.name) from error
                    await asyncio.sleep(min(left, _STOP_CHECK_SECONDS))
        return await act()
