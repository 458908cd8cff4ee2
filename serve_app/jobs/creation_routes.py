"""Endpoints that create jobs. Validate, then create once: see http/idempotency.py."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from serve_app.api.authentication import KeyedRoute, account_of
from serve_app.api.bodies import parse_body, read_json_object
from serve_app.api.context import API_PREFIX, base_url, context_of
from serve_app.api.envelope import public_url, success
from serve_app.api.idempotency import create_once
from serve_app.api.upload_urls import direct_urls, upload_fields
from serve_app.jobs.plans import Planner, plan_batch, plan_from_url, plan_upload
from serve_app.jobs.rendering import render_job
from serve_app.jobs.schemas import CreateBatchBody, CreateJobBody, CreateJobFromUrlBody
from serve_app.jobs.service import create_jobs
from storage.database import Connection

router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute)


async def _body(request: Request) -> dict[str, Any]:
    return await read_json_object(request, max_bytes=context_of(request).settings.max_body_bytes)


def _planner(request: Request) -> Planner:
    context = context_of(request)
    return Planner(context.settings, context.sealer, account_of(request), base_url(request))


@router.post("/jobs", operation_id="createJob")
async def create_job(request: Request) -> Response:
    """Create a job whose media is uploaded next."""
    raw = await _body(request)
    body = parse_body(CreateJobBody, raw)
    plan = plan_upload(_planner(request), body)
    context = context_of(request)
    direct = await direct_urls(context.objects, plan.uploads, context.settings)

    async def create(connection: Connection) -> Response:
        account_id = account_of(request)
        [job] = await create_jobs(connection, account_id, [plan], context)
        data = render_job(job, base_url(request)) | upload_fields(
            job,
            plan.uploads,
            signer=context.signer,
            settings=context.settings,
            public=public_url(request),
            direct=direct,
        )
        return _created(request, data)

    return await create_once(request, "createJob", raw, create)


@router.post("/jobs/from-url", operation_id="createJobFromUrl")
async def create_job_from_url(request: Request) -> Response:
    """Create a job whose media the service fetches."""
    raw = await _body(request)
    plan = plan_from_url(_planner(request), parse_body(CreateJobFromUrlBody, raw))

    async def create(connection: Connection) -> Response:
        context = context_of(request)
        [job] = await create_jobs(connection, account_of(request), [plan], context)
        return _created(request, render_job(job, base_url(request)))

    return await create_once(request, "createJobFromUrl", raw, create)


@router.post("/jobs/batch", operation_id="createBatch")
async def create_batch(request: Request) -> Response:
    """Create a job a clip, or one job for a programme of several clips."""
    raw = await _body(request)
    body = parse_body(CreateBatchBody, raw)
    plans = plan_batch(_planner(request), body)

    async def create(connection: Connection) -> Response:
        jobs = await create_jobs(connection, account_of(request), plans, context_of(request))
        data = {
            "batchId": str(plans[0].job.batch_id),
            "mode": body.mode,
            "jobs": [render_job(job, base_url(request)) for job in jobs],
        }
        return success(request, data, status=201)

    return await create_once(request, "createBatch", raw, create)


def _created(request: Request, data: dict[str, Any]) -> Response:
    return success(request, data, status=201, headers={"Location": data["links"]["self"]})
