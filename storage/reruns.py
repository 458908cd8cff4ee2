"""Jobs that renew the results of another: what changed since these were made, and the exchange.

A rerun is a job of its own, with the media of the first one. Once it is completed the two
exchange their results: the first one has the new, the rerun keeps what they replaced.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Text, TextClause, cast, select, text
from sqlalchemy.dialects.postgresql import insert

from storage.database import Connection, run
from storage.duplicates import queue_comparison
from storage.job_records import JobRecord
from storage.tables import jobs, stage_versions, stages
from storage.types import ANALYSES, JobState, StageName, StageStatus


@dataclass(frozen=True, slots=True)
class StageBasis:
    """What a completed stage's result was made with; None where it is not known."""

    made_with: str | None
    current: str | None
    """What it would be made with now; None before a runner has started."""

    @property
    def changed(self) -> bool:
        return self.made_with is None or self.made_with != self.current


@dataclass(frozen=True, slots=True)
class RerunBasis:
    """What a rerun of a job depends on."""

    stages: dict[StageName, StageBasis]
    """The analyses that completed."""
    media_kept: bool
    corrected: bool
    """Whether people corrected its transcript, had it redacted, or named a speaker."""
    tracks: int
    open_rerun: uuid.UUID | None


async def publish_versions(connection: Connection, made_with: Mapping[StageName, str]) -> None:
    """Record what the stages are made with from now on; done by each runner when it starts."""
    rows = [{"stage": str(stage), "made_with": made_with[stage]} for stage in sorted(made_with)]
    statement = insert(stage_versions)
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["stage"], set_={"made_with": statement.excluded.made_with}
        ),
        rows,
    )


_BASIS = text(
    """
    SELECT (SELECT json_object_agg(stage, json_build_array(s.made_with, v.made_with))
              FROM stages s LEFT JOIN stage_versions v USING (stage)
             WHERE s.job_id = job.id AND s.status = 'completed' AND stage <> 'ingest') AS stages,
           cleaned_at IS NULL AND cleaning_after IS NULL AND ingest_result IS NOT NULL
               AND rerun_of IS NULL AS media_kept,
           EXISTS (SELECT FROM transcripts t WHERE t.job_id = job.id
               AND (t.revision > 0 OR t.redacted_revision IS NOT NULL))
               OR EXISTS (SELECT FROM speaker_labels l
                           WHERE l.job_id = job.id AND l.voice_id IS NULL)
               OR EXISTS (SELECT FROM speaker_voices v
                           WHERE v.job_id = job.id AND v.voice_id IS NOT NULL) AS corrected,
           (SELECT count(*)::int FROM transcripts t WHERE t.job_id = job.id) AS tracks,
           (SELECT id FROM jobs r
             WHERE r.rerun_of = job.id AND r.completed_at IS NULL LIMIT 1) AS open_rerun
      FROM jobs AS job WHERE job.id = :job_id
    """
)


async def get_basis(connection: Connection, job_id: uuid.UUID) -> RerunBasis:
    """Of a job that there is."""
    [row] = await run(connection, _BASIS, job_id=job_id)
    found = {StageName(name): StageBasis(*each) for name, each in (row["stages"] or {}).items()}
    return RerunBasis(**row | {"stages": {at: found[at] for at in ANALYSES if at in found}})


async def find_receipts(connection: Connection, job_id: uuid.UUID) -> dict[StageName, Any]:
    """What receipts name of a job's completed stages; those of earlier versions are left out."""
    query = select(stages.c.stage, stages.c.receipt).where(
        stages.c.job_id == job_id,
        stages.c.status == StageStatus.COMPLETED,
        stages.c.receipt.is_not(None),
    )
    found = {row.stage: row.receipt for row in await connection.execute(query)}
    return {stage: found[stage] for stage in StageName if found.get(stage) is not None}


async def begin(connection: Connection, rerun_id: uuid.UUID) -> None:
    """Give a rerun what ingest found for the first job, in place of an ingest of its own."""
    for statement in (_COPY_INGEST, _SKIP_INGEST):
        await connection.execute(statement, {"rerun": rerun_id})


_COPY_INGEST = text(
    "UPDATE jobs AS rerun SET ingest_result = first.ingest_result,"
    " audio_track_names = first.audio_track_names FROM jobs AS first"
    " WHERE rerun.id = :rerun AND first.id = rerun.rerun_of"
)
_SKIP_INGEST = text(
    "UPDATE stages AS rerun SET status = 'completed', progress = 1, ended_at = now(),"
    " indexed = first.indexed, made_with = first.made_with, receipt = first.receipt"
    " FROM stages AS first, jobs WHERE jobs.id = :rerun AND first.job_id = jobs.rerun_of"
    " AND rerun.job_id = jobs.id AND rerun.stage = 'ingest' AND first.stage = 'ingest'"
)


async def list_reruns(connection: Connection, job_id: uuid.UUID) -> list[uuid.UUID]:
    """All reruns of a job, the newest first."""
    query = select(jobs.c.id).where(jobs.c.rerun_of == job_id).order_by(jobs.c.created_at.desc())
    return list((await connection.execute(query)).scalars())


async def exchange_results(connection: Connection, rerun: JobRecord) -> None:
    """Have the job and its rerun exchange the results of the stages that the rerun completed.

    In the transaction that ends the rerun. A transcript that was corrected meanwhile, and what
    was erased, stay as they are.
    """
    first = rerun.rerun_of
    await connection.execute(select(jobs.c.id).where(jobs.c.id == first).with_for_update())
    if first is None or await connection.scalar(_ERASED, {"first": first}):
        return
    done = {name for name in ANALYSES if rerun.stages[name].status is StageStatus.COMPLETED}
    if (await get_basis(connection, first)).corrected:
        done.discard(StageName.TRANSCRIPT)
    values = {"first": first, "rerun": rerun.id, "stages": [str(each) for each in done]}
    statements = [each for stage in done for each in _EXCHANGE[stage]]
    for statement in [*statements, *_EXCHANGE_ROWS] if done else ():
        used = {name: values[name] for name in statement.compile().params}
        await connection.execute(statement, used)
    if done:
        await queue_comparison(connection, first)


_ERASED = text("SELECT erased_at IS NOT NULL FROM jobs WHERE id = :first")


def _between(statement: str) -> TextClause:
    """A statement in which ``both_jobs`` holds for each of the two and the other one."""
    both = "(mine.job_id, theirs.job_id) IN ((:first, :rerun), (:rerun, :first))"
    return text(statement.replace("both_jobs", both))


def _moved_keys(kind: str) -> tuple[TextClause, TextClause]:
    """What is looked up of a kind is the newest only."""
    return (
        text(f"DELETE FROM fingerprint_keys WHERE job_id = :first AND kind = '{kind}'"),  # noqa: S608
        text(
            "UPDATE fingerprint_keys SET job_id = :first"  # noqa: S608 - two constants
            f" WHERE job_id = :rerun AND kind = '{kind}'"
        ),
    )


_EXCHANGE = {
    StageName.VISION: (
        _between(
            "UPDATE scene_lists AS mine SET scenes = theirs.scenes,"
            " scene_count = theirs.scene_count, overview = theirs.overview,"
            " people = theirs.people, fingerprints = theirs.fingerprints"
            " FROM scene_lists AS theirs WHERE both_jobs"
        ),
        text(
            "DELETE FROM search_rows WHERE job_id = :first AND kind IN ('scene', 'text', 'object')"
        ),
        *_moved_keys("shot"),
    ),
    StageName.TRANSCRIPT: (
        _between(
            "UPDATE transcripts AS mine SET status = theirs.status,"
            " error_code = theirs.error_code, language = theirs.language,"
            " document = theirs.document, sound_print = theirs.sound_print"
            " FROM transcripts AS theirs"
            " WHERE both_jobs AND mine.track_index = theirs.track_index"
        ),
        _between(
            "UPDATE summaries AS mine SET sentences = theirs.sentences"
            " FROM summaries AS theirs WHERE both_jobs"
        ),
        # Where one of them has none.
        text(
            "UPDATE summaries SET job_id ="
            " CASE WHEN job_id = :first THEN CAST(:rerun AS uuid) ELSE :first END"
            " WHERE job_id IN (:first, :rerun)"
            " AND 1 = (SELECT count(*) FROM summaries WHERE job_id IN (:first, :rerun))"
        ),
        text("DELETE FROM search_rows WHERE job_id = :first AND kind = 'transcript'"),
        *_moved_keys("sound"),
        # What the first job's speakers sounded like is not kept: nothing was learnt from it.
        *(
            text(statement)
            for table in ("speaker_labels", "speaker_voices")
            for statement in (
                f"DELETE FROM {table} WHERE job_id = :first",  # noqa: S608 - two constants
                f"UPDATE {table} SET job_id = :first WHERE job_id = :rerun",  # noqa: S608
            )
        ),
    ),
}
"""What a stage's result is made of. What is searched for is the newest only."""
_EXCHANGE_ROWS = (
    text("DELETE FROM duplicates WHERE job_id = :first OR other_id = :first"),
    text(
        "UPDATE search_rows SET job_id = :first,"
        " job_created_at = (SELECT created_at FROM jobs WHERE id = :first) WHERE job_id = :rerun"
    ),
    _between(
        "UPDATE stages AS mine SET made_with = theirs.made_with, timings = theirs.timings,"
        " indexed = theirs.indexed, receipt = theirs.receipt"
        " FROM stages AS theirs WHERE both_jobs"
        " AND mine.stage = theirs.stage AND mine.stage = ANY(:stages)"
    ),
    text(
        "UPDATE jobs AS mine SET warnings = ("
        " SELECT coalesce(jsonb_agg(each), '[]') FROM ("
        "  SELECT each FROM jsonb_array_elements(mine.warnings) AS each"
        "   WHERE coalesce(each ->> 'stage', '') <> ALL(:stages)"
        "  UNION ALL SELECT each FROM jsonb_array_elements(theirs.warnings) AS each"
        "   WHERE each ->> 'stage' = ANY(:stages)) AS together)"
        " FROM jobs AS theirs"
        " WHERE (mine.id, theirs.id) IN ((:first, :rerun), (:rerun, :first))"
    ),
)


async def list_candidates(
    connection: Connection,
    *,
    account_id: uuid.UUID | None = None,
    job_id: str | None = None,
    after: datetime | None = None,
    before: datetime | None = None,
) -> list[uuid.UUID]:
    """Completed jobs whose content is there and that are no reruns, the oldest first."""
    conditions = [
        jobs.c.state == JobState.COMPLETED,
        jobs.c.erased_at.is_(None),
        jobs.c.rerun_of.is_(None),
    ]
    if account_id is not None:
        conditions.append(jobs.c.account_id == account_id)
    if job_id is not None:
        conditions.append(cast(jobs.c.id, Text) == job_id)
    if after is not None:
        conditions.append(jobs.c.created_at >= after)
    if before is not None:
        conditions.append(jobs.c.created_at < before)
    query = select(jobs.c.id).where(*conditions).order_by(jobs.c.created_at)
    return list((await connection.execute(query)).scalars())
