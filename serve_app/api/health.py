"""``/healthz`` and ``/readyz``: for load balancers and the operator, outside the API."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from serve_app.api.readiness import ReadinessProbe

router = APIRouter(include_in_schema=False)

_ALIVE = b'{"status":"alive"}'


@router.get("/healthz")
async def healthz() -> Response:
    """200 as long as this process answers; touches nothing else."""
    return Response(_ALIVE, media_type="application/json", headers={"Cache-Control": "no-store"})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """200 where everything is there that requests need, else 503 and what is missing."""
    probe: ReadinessProbe = request.app.state.readiness
    found = await probe.examine()
    return JSONResponse(
        found.document(),
        status_code=200 if found.ready else 503,
        headers={"Cache-Control": "no-store"} | ({} if found.ready else {"Retry-After": "2"}),
    )
