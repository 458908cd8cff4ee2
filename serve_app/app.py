"""The HTTP application. Knows no Ray: the same app runs under Serve and under plain uvicorn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from serve_app import __version__
from serve_app.http.envelope import RequestIdMiddleware, install_error_handlers
from serve_app.jobs.routes import API_PREFIX
from serve_app.jobs.routes import open_router as open_job_routes
from serve_app.jobs.routes import router as job_routes
from serve_app.uploads.routes import UploadGate
from serve_app.uploads.routes import router as upload_routes
from serve_app.world import World


def build_api(world: World) -> FastAPI:
    """The API over ``world``; closes the world's database when it shuts down."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await world.database.close()

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
    app.state.world = world
    app.state.upload_gate = UploadGate(world.settings.max_concurrent_uploads)
    app.add_middleware(RequestIdMiddleware)
    install_error_handlers(app)
    app.include_router(job_routes)
    app.include_router(open_job_routes)
    app.include_router(upload_routes)
    _add_open_routes(app)
    return app


def _add_open_routes(app: FastAPI) -> None:
    @app.get(f"{API_PREFIX}/openapi.json", operation_id="getOpenApi", tags=["Discovery"])
    async def get_openapi(request: Request) -> Response:
        """The OpenAPI document of this interface, unwrapped."""
        headers = {"Cache-Control": "public, max-age=300"}
        return JSONResponse(request.app.openapi(), headers=headers)

    @app.get("/health", include_in_schema=False)
    async def health(request: Request) -> Response:
        """200 as soon as the API answers and reaches its database."""
        world: World = request.app.state.world
        async with world.database.transaction() as connection:
            await connection.exec_driver_sql("SELECT 1")
        return JSONResponse({"status": "ok"})
