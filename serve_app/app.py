"""The HTTP application. Knows no Ray: the same app runs under Serve and under plain uvicorn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from serve_app import __version__
from serve_app.api.envelope import RequestIdMiddleware, install_error_handlers
from serve_app.api.health import ReadinessProbe
from serve_app.api.health import router as observing_routes
from serve_app.api.methods import install_methods
from serve_app.context import AppContext
from serve_app.credits.routes import router as credit_routes
from serve_app.discovery.pages import router as page_routes
from serve_app.discovery.routes import router as discovery_routes
from serve_app.jobs.creation_routes import router as creation_routes
from serve_app.jobs.result_routes import router as result_routes
from serve_app.jobs.routes import router as job_routes
from serve_app.jobs.thumbnails import router as thumbnail_routes
from serve_app.keys.portal import router as portal_routes
from serve_app.keys.routes import open_router as sign_in_routes
from serve_app.keys.routes import router as key_routes
from serve_app.payments.providers import find_provider
from serve_app.payments.routes import router as payment_routes
from serve_app.uploads.routes import UploadGate
from serve_app.uploads.routes import router as upload_routes
from serve_app.webhooks.routes import router as webhook_routes
from serve_app.webhooks.routes import secret_router as webhook_secret_routes

# Routes are tried in this order, so what clients poll comes first.
ROUTERS = (
    job_routes,
    result_routes,
    creation_routes,
    thumbnail_routes,
    upload_routes,
    credit_routes,
    webhook_routes,
    webhook_secret_routes,
    discovery_routes,
    page_routes,
    key_routes,
    sign_in_routes,
    payment_routes,
    portal_routes,
    observing_routes,
)


def build_api(context: AppContext) -> FastAPI:
    """The API over ``context``; closes the context's database when it shuts down."""
    gate = UploadGate(context.settings.max_concurrent_uploads, context.metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        reporting = asyncio.create_task(gate.report_for_ever())
        yield
        reporting.cancel()
        await context.database.close()

    app = FastAPI(
        title="Video Analysis Service",
        version=__version__,
        description="Footage in, scenes and transcripts out.",
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    # Loaded here, not by the first notification: the library takes a while.
    app.state.payment_provider = find_provider(context.settings)
    app.state.upload_gate = gate
    app.state.readiness = ReadinessProbe(context)
    app.add_middleware(RequestIdMiddleware, metrics=context.metrics)
    install_error_handlers(app)
    install_methods(app, ROUTERS)
    for router in ROUTERS:
        app.include_router(router)
    _add_open_routes(app)
    return app


def _add_open_routes(app: FastAPI) -> None:
    @app.get("/health/live", include_in_schema=False)
    async def live() -> Response:
        """200 as soon as the API answers; touches nothing else."""
        return Response(b'{"status":"ok"}', media_type="application/json")

    @app.get("/health", include_in_schema=False)
    async def health(request: Request) -> Response:
        """200 as soon as the API answers and reaches its database."""
        context: AppContext = request.app.state.context
        async with context.database.transaction() as connection:
            await connection.exec_driver_sql("SELECT 1")
        return JSONResponse({"status": "ok"})
