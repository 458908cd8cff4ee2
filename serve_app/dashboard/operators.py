"""Pages of the operator: the queue, accounts, throughput, failures, and the system's parts."""

# ruff: noqa: A002  (names of paths)
from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from models.profiles import has_task, how_to_add, listed_weights, replicas_of
from models.registry import REGISTRY, own_profile
from models.tasks import Purpose, Task
from serve_app.api.envelope import Context
from serve_app.api.health import ReadinessProbe
from serve_app.api.parameters import WHOLE_NUMBER
from serve_app.api.urls import parse_job_id
from serve_app.dashboard import OPERATOR_PATH, access
from serve_app.dashboard.pages import page
from serve_app.errors import ApiError, ErrorCode, existing, invalid
from serve_app.jobs import service
from serve_app.jobs.schemas import JobChangesBody
from serve_app.observability.metrics import record_job_end
from serve_app.settings import Settings
from storage import jobs, keys, metrics
from storage.database import database_revision
from storage.ledger import Month
from storage.types import Priority

log = logging.getLogger("vas.operator")

ACCOUNTS_PATH = f"{OPERATOR_PATH}/accounts"
ACCOUNTS_SHOWN = 50
WAITING_SHOWN = 20

router = APIRouter(route_class=access.OperatorRoute, include_in_schema=False)


async def _page(request: Request, settings: Settings, template: str, /, **values: Any) -> Response:
    places = {"Ray": settings.ray_dashboard_url, "Grafana": settings.grafana_url}
    links = {name: url for name, url in places.items() if url is not None}
    return await page(request, f"operator/{template}", links=links, now=datetime.now(UTC), **values)


@router.get(OPERATOR_PATH)
async def get_queue(request: Request, context: Context) -> Response:
    """What waits, what runs, and since when."""
    lease = timedelta(seconds=context.settings.lease_seconds)
    async with context.database.statement() as connection:
        states = await metrics.count_open_jobs(connection)
        leased = await metrics.list_leased_jobs(connection)
        waiting = await metrics.list_waiting_jobs(connection, limit=WAITING_SHOWN)
    return await _page(
        request, context.settings, "queue.html", states=states, lease=lease, leased=leased,
        waiting=waiting, most=metrics.MOST_ROWS)  # fmt: skip


@router.post(f"{OPERATOR_PATH}/jobs/{{id}}/cancel")
async def cancel_job(context: Context, id: str) -> Response:
    """Cancel a job of whatever account."""
    async with context.database.transaction() as connection:
        job = existing(await jobs.find_job(connection, parse_job_id(id)), "job")
        ended = await service.cancel_job(connection, job.account_id, id)
    record_job_end(context.metrics, ended.state)
    return RedirectResponse(OPERATOR_PATH, status_code=303)


@router.post(f"{OPERATOR_PATH}/jobs/{{id}}/priority")
async def change_priority(context: Context, form: access.SentForm, id: str) -> Response:
    """Give a queued job another priority, whatever its account may use."""
    given, settings = form.get("priority", ""), context.settings
    if given not in set(Priority):
        raise invalid("There is no such priority.", "priority")
    changes = JobChangesBody.model_validate({"priority": given})
    async with context.database.transaction() as connection:
        await service.change_job(connection, parse_job_id(id), changes, settings, by_operator=True)
    return RedirectResponse(OPERATOR_PATH, status_code=303)


@router.get(ACCOUNTS_PATH)
async def get_accounts(request: Request, context: Context, first: str = "") -> Response:
    """Accounts by name, from ``first`` on, with their jobs of this month."""
    month = Month.of(datetime.now(UTC))
    found = await context.database.read(
        metrics.list_accounts, first=first, since=month.start, limit=ACCOUNTS_SHOWN + 1
    )
    following = found[ACCOUNTS_SHOWN].name if len(found) > ACCOUNTS_SHOWN else None
    return await _page(
        request, context.settings, "accounts.html", accounts=found[:ACCOUNTS_SHOWN], first=first,
        month=month, following=following and urlencode({"first": following}),
        most=metrics.MOST_COUNTED)  # fmt: skip


@router.post(f"{ACCOUNTS_PATH}/{{id}}/{{action}}")
async def restrict_account(
    context: Context, form: access.SentForm, id: str, action: Literal["suspend", "resume"]
) -> Response:
    """Refuse every request of the account; or lift suspension and throttling."""
    suspended = action == "suspend"
    throttled = None if suspended else False
    async with context.database.transaction() as connection:
        try:
            account = await keys.get_account(connection, str(parse_job_id(id)))
        except keys.AccountNotFoundError:
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such account.") from None
        await keys.set_restrictions(
            connection, account.id, suspended=suspended, throttled=throttled
        )
    log.info("account %s: suspended=%s throttled=%s", account.id, suspended, throttled)
    first = urlencode({"first": form.get("first", "")})
    return RedirectResponse(f"{ACCOUNTS_PATH}?{first}", status_code=303)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """What does a task: its weights, and where it runs."""

    task: str
    use: Purpose
    weights: str
    place: str


def served_models(profile: str, models_dir: Path | None) -> Iterator[ModelRow]:
    """Yield the models of a profile; nothing for ``auto``, where it was not decided yet."""
    for task in {} if profile == "auto" else REGISTRY[profile]:
        weights = [each for each in listed_weights(profile) if each.task == task.name]
        names = ", ".join(dict.fromkeys(each.weights.origin for each in weights))
        if has_task(profile, task, models_dir):
            place = _place(profile, task)
        else:
            how = how_to_add(profile, task, models_dir)
            place = "not installed" if how is None else f"not installed: {how}"
        yield ModelRow(task.name, task.purpose, names, place)


def _place(profile: str, task: Task[Any]) -> str:
    if REGISTRY[profile][task].remote is not None:
        return "another server"
    if replicas_of(profile, task) is None:
        return "in the task"
    return "replica, GPU" if REGISTRY[profile][task].device == "cuda" else "replica, processor"


RANGES = {1: "Hour", 24: "Day", 168: "Week"}


@router.get(f"{OPERATOR_PATH}/throughput")
async def get_throughput(
    request: Request, context: Context, hours: Annotated[int, WHOLE_NUMBER] = 24
) -> Response:
    """What each stage got through in a day, curves of hours, and the models that do the work."""
    settings, hours = context.settings, hours if hours in RANGES else 24
    work = await context.database.read(metrics.list_stage_work)
    curves = await context.database.read(metrics.list_activity, hours)
    speed = [each * metrics.INTERVALS / hours / 3600 for each in curves.pop("media_seconds")]
    return await _page(
        request, context.settings, "throughput.html", work=work,
        hours=hours, ranges=RANGES, curves=curves | {"speed, × real time": speed},
        profile=own_profile(settings.model_profile),
        models=list(served_models(settings.model_profile, settings.models_dir)),
        most=metrics.MOST_COUNTED)  # fmt: skip


@router.get(f"{OPERATOR_PATH}/failures")
async def get_failures(request: Request, context: Context) -> Response:
    """Jobs that failed within a day, with what went wrong."""
    async with context.database.statement() as connection:
        codes = await metrics.count_failures(connection)
        failures = await metrics.list_failures(connection)
    found = {"codes": codes, "failures": failures, "most": metrics.MOST_ROWS}
    return await _page(request, context.settings, "failures.html", **found)


@router.get(f"{OPERATOR_PATH}/system")
async def get_system(request: Request, context: Context) -> Response:
    """The parts that this process needs, what is open in the database, and where nodes are seen."""
    probe: ReadinessProbe = request.app.state.readiness
    readiness = await probe.examine()
    counts = await metrics.count_now(context.database)
    revision = await context.database.read(database_revision)
    return await _page(
        request, context.settings, "system.html", checks=readiness.document()["checks"],
        counts=counts, revision=revision, settings=context.settings)  # fmt: skip


@router.post(f"{OPERATOR_PATH}/sign-out")
async def sign_out(context: Context, operator: access.CurrentOperator) -> Response:
    """End the operator's session, here and wherever else its token was copied to."""
    await context.database.write(keys.end_operator_session, operator.session)
    return access.forget_session(access.OPERATOR_COOKIE, path=OPERATOR_PATH, ended="operator-out")


@router.get(f"{OPERATOR_PATH}/{{rest:path}}")
async def get_nothing() -> Response:
    """Whatever else is below the operator's path."""
    raise ApiError(ErrorCode.NOT_FOUND, "There is no such page.")
