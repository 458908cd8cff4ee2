"""``vas backfill import``: results of a backfill into an account."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pipelines.backfill.output import ItemOutcome, Output, open_output
from pipelines.codec import to_json
from pipelines.collection import BucketAccess, place_at
from pipelines.types import Scene
from serve_app.deployment.data import prepared
from serve_app.jobs.answers import Metadata, warning_document
from serve_app.results.transcripts import track_transcript
from serve_app.settings import Settings
from storage import keys
from storage.database import Database
from storage.job_records import JobSource
from storage.jobs import ImportedJob, import_job, known_jobs
from storage.objects import ObjectStore
from storage.types import StageName, StageStatus
from storage.uploads import JOBS_PREFIX

ITEM_ENTRY = "backfillItem"
"""Metadata entry that holds the item's id, unless the manifest gave one of that name."""

_METADATA: TypeAdapter[dict[str, Any]] = TypeAdapter(Metadata)


_ENDS = ("imported", "thereBefore", "failedItems", "refusedItems")
"""What becomes of an item; of those that failed the output's error table has the reasons, and of
the refused ones the metadata is not what a job may have."""


def import_backfill(settings: Settings, address: str, account_name: str) -> dict[str, Any]:
    """Import the results at ``address`` into the account; returns counts.

    Raises OutputError, PlaceError and keys.AccountNotFoundError.
    """
    output = open_output(
        place_at(
            address,
            BucketAccess(
                endpoint=settings.s3_endpoint_url,
                region=settings.s3_region,
                access_key_id=settings.s3_access_key_id,
                secret_access_key=settings.s3_secret_access_key.get_secret_value() or None,
            ),
        )
    )
    with prepared(settings, existing=True) as complete:
        counts = asyncio.run(_import(complete, output, account_name))
    return {"account": account_name} | {end: counts[end] for end in _ENDS}


async def _import(settings: Settings, output: Output, account_name: str) -> Counter[str]:
    database, counts = Database(settings.database_url or "", pool_size=2), Counter[str]()
    try:
        account = await database.write(keys.get_account, account_name)
        importer = _Importer(database, settings.object_store, output, account.id, counts)
        for outcomes in output.outcomes():
            await importer.take(outcomes)
    finally:
        await database.close()
    return counts


@dataclass(frozen=True, slots=True)
class _Importer:
    """Imports parts of an output into one account."""

    database: Database
    objects: ObjectStore
    output: Output
    account_id: uuid.UUID
    counts: Counter[str]

    async def take(self, outcomes: Iterable[ItemOutcome]) -> None:
        """Import one part: stills first, which are not visible before their job is."""
        jobs = list(self._jobs(outcomes))
        known = await self.database.read(known_jobs, [job.id for job, _ in jobs])
        for job, outcome in jobs:
            if job.id in known:
                self.counts["thereBefore"] += 1
                continue
            copied = await asyncio.to_thread(self._with_stills, job, outcome)
            new = await self.database.write(import_job, copied)
            self.counts["imported"] += new
            self.counts["thereBefore"] += not new

    def _jobs(self, outcomes: Iterable[ItemOutcome]) -> Iterator[tuple[ImportedJob, ItemOutcome]]:
        for outcome in outcomes:
            if outcome.status is StageStatus.FAILED:
                self.counts["failedItems"] += 1
                continue
            try:
                yield self._job(outcome), outcome
            except ValidationError:
                self.counts["refusedItems"] += 1

    def _job(self, outcome: ItemOutcome) -> ImportedJob:
        """Raises ValidationError for metadata that no job may have."""
        item = outcome.item
        return ImportedJob(
            id=uuid.uuid5(self.output.id, f"{self.account_id}/{item.id}"),
            account_id=self.account_id,
            processing_mode=item.mode,
            file_name=item.name,
            metadata=_METADATA.validate_python({ITEM_ENTRY: item.id} | json.loads(item.metadata)),
            source=JobSource(
                kind="backfill",
                base_url="",
                clips=(),
                audio=(),
                keyterms=item.keyterms,
                speakers_expected=item.speakers_expected,
                channels=item.channels.value,
            ),
            duration_ms=outcome.duration_ms,
            warnings=[warning_document(warning, StageName.INGEST) for warning in outcome.warnings],
            skipped={
                stage.stage: stage.reason
                for stage in outcome.stages
                if stage.status is StageStatus.SKIPPED and stage.reason is not None
            },
            scenes=None,
            overview=None,
            tracks=[track_transcript(track) for track in outcome.tracks],
        )

    def _with_stills(self, job: ImportedJob, outcome: ItemOutcome) -> ImportedJob:
        """Return the job with its scenes, their stills in the object store."""
        if StageName.VISION in job.skipped:
            return job
        scenes = [
            to_json(self._moved(job, scene, f"{scene.index:05d}")) for scene in outcome.scenes
        ]
        overview = None  # items of an earlier version have none
        if outcome.overview is not None:
            overview = to_json(self._moved(job, outcome.overview, "overview"))
        return replace(job, scenes=scenes, overview=overview)

    def _moved(self, job: ImportedJob, scene: Scene, name: str) -> Scene:
        keys = scene.still_names(f"{JOBS_PREFIX}/{job.id}/stills/{name}")
        for own, key in keys.items():
            self.objects.write_bytes(key, self.output.place.files.read_bytes(own))
        return scene.at_keys(keys)
