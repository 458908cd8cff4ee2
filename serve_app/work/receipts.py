"""What a runner records of each stage for its receipt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from models.profiles import digest_of
from models.registry import REGISTRY
from models.tasks import Purpose, tasks_for
from pipelines.execution.chain import Control, Step
from pipelines.ingest.pipeline import INGESTED, IngestConfig
from pipelines.ingest.source import SourceMedia
from pipelines.types import Scene
from serve_app.results.receipts import (
    ReceiptResultJson,
    ReceiptSourceJson,
    Setting,
    StageReceipt,
    result_json,
    software,
)
from serve_app.results.scenes import overview_json, scene_json
from serve_app.results.transcripts import transcript_json, transcript_of
from serve_app.settings import Settings
from storage.job_records import JobRecord
from storage.objects import ObjectStore
from storage.results import TrackTranscript
from storage.types import StageStatus

_BLOCK_BYTES = 8 << 20


def ingest_receipt(
    media: SourceMedia,
    decoded: SourceMedia,
    config: IngestConfig,
    store: ObjectStore,
    control: Control,
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


def _source(name: str, key: str, store: ObjectStore, control: Control) -> ReceiptSourceJson:
    total, size = hashlib.sha256(), store.size_bytes(key)
    for offset in range(0, size, _BLOCK_BYTES):
        control.check()
        total.update(store.read_range(key, offset, _BLOCK_BYTES))
    return {"fileName": name, "sizeBytes": size, "sha256": total.hexdigest()}


@dataclass(frozen=True, slots=True)
class Recorder:
    """Of one job's analyses."""

    settings: Settings
    job: JobRecord

    def vision(self, seen: Sequence[Scene]) -> StageReceipt:
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
            "keyterms": list(source.keyterms),
            "speakersExpected": source.speakers_expected,
            "speakersAtMost": source.speakers_at_most,
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
        models = {
            task.name: digest_of(profile, (task,), own if task.own_weights else None)
            for task in tasks_for(purpose)
            if task in REGISTRY[profile]
        }
        return {
            "software": software(),
            "settings": {"profile": profile, **settings},
            "models": models,
            "steps": dict(step_versions(steps)),
        }


def step_versions(package: str) -> list[tuple[str, int]]:
    """Of all steps of a stage that this process has loaded."""
    steps = [each for each in Step.__subclasses__() if each.__module__.startswith(package)]
    return sorted((each.__qualname__, each.version) for each in steps)
