"""``vas rerun``: results made again where models, versions or settings changed since."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from serve_app.cli.output import DataOption, JsonOption, UsageError, settings_with, show_list
from storage.types import ANALYSES, StageName

if TYPE_CHECKING:
    from serve_app.context import AppContext
    from serve_app.settings import Settings

_KEYS = ("account", "job", "created-after", "created-before")


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a rerun of a job does, or the code of the error that refused it."""

    job_id: UUID
    stages: tuple[StageName, ...] = ()
    cents: int = 0
    rerun_id: str | None = None
    error: str | None = None

    @property
    def is_to_make(self) -> bool:
        """Of a dry run: whether a job would be queued, not refused nor under way already."""
        return bool(self.stages) and self.rerun_id is None

    def row(self) -> dict[str, object]:
        return {
            "jobId": str(self.job_id),
            "stages": " ".join(self.stages),
            "cents": self.cents,
            "rerunJobId": self.rerun_id,
            "error": self.error,
        }


def rerun(
    where: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE",
            help=f"Which jobs, all conditions together: {', '.join(_KEYS)} (as 2026-01-31).",
        ),
    ],
    stage: Annotated[
        list[str] | None, typer.Option(help="vision or transcript: this one, changed or not.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be made again, and its price.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make results again where models, versions or settings changed since.

    Of each job that matches the stages that changed; the price is estimated first, and unchanged
    jobs cost nothing."""
    conditions = _conditions(where)
    if not {*(stage or ())} <= {*ANALYSES}:
        raise UsageError("--stage is vision or transcript.")
    stages = frozenset(map(StageName, stage)) if stage else None
    settings = settings_with(data)
    planned = _rerun_all(settings, conditions, stages, dry_run=True)
    outcomes = [each for each in planned if each.is_to_make]
    if not dry_run:
        cents = sum(each.cents for each in outcomes)
        if outcomes and not yes:
            question = f"Run {len(outcomes)} of {len(planned)} jobs again for {cents} cents?"
            typer.confirm(question, abort=True, err=True)
        outcomes = _rerun_all(settings, conditions, stages, dry_run=False)
    show_list([each.row() for each in outcomes], "jobs", as_json)


def _conditions(where: list[str]) -> dict[str, str]:
    """Raises UsageError."""
    conditions: dict[str, str] = {}
    for each in where:
        key, _, value = each.partition("=")
        if key not in _KEYS or not value or key in conditions:
            known = ", ".join(_KEYS)
            raise UsageError(f"--where {each}: write KEY=VALUE, each key once, of {known}.")
        if key.startswith("created"):
            try:
                datetime.fromisoformat(value)
            except ValueError as error:
                raise UsageError(f"--where {each}: {value} is no time.") from error
        conditions[key] = value
    return conditions


def _rerun_all(
    settings: Settings,
    conditions: dict[str, str],
    stages: frozenset[StageName] | None,
    *,
    dry_run: bool,
) -> list[_Outcome]:
    """Each job in a transaction of its own, so that what fails stops no other."""
    from serve_app.context import build_context
    from serve_app.deployment.data import prepared
    from serve_app.errors import ApiError
    from serve_app.jobs import reruns

    async def one(context: AppContext, job_id: UUID) -> _Outcome:
        try:
            async with context.database.transaction() as connection:
                made = await reruns.rerun(
                    connection, job_id, context, wanted=stages, dry_run=dry_run
                )
        except ApiError as error:
            return _Outcome(job_id, error=str(error.code))
        again = tuple(
            stage
            for stage, each in zip(
                ANALYSES,
                (made["stages"].get("vision"), made["stages"].get("transcript")),
                strict=True,
            )
            if each is not None and each["rerun"]
        )
        return _Outcome(job_id, again, made["estimatedCents"], made["rerunJobId"])

    async def run(complete: Settings) -> list[_Outcome]:
        context = build_context(complete)
        try:
            return [await one(context, each) for each in await _matching(context, conditions)]
        finally:
            await context.database.close()

    with prepared(settings, existing=True) as complete:
        return asyncio.run(run(complete))


async def _matching(context: AppContext, conditions: dict[str, str]) -> list[UUID]:
    from storage import keys
    from storage.reruns import list_candidates

    account = conditions.get("account")
    after, before = (
        None if given is None else datetime.fromisoformat(given).astimezone()
        for given in (conditions.get("created-after"), conditions.get("created-before"))
    )
    async with context.database.transaction() as connection:
        return await list_candidates(
            connection,
            account_id=None
            if account is None
            else (await keys.get_account(connection, account)).id,
            job_id=conditions.get("job"),
            after=after,
            before=before,
        )
