"""The HTTP application. Independent of Ray: runs under Serve and under plain uvicorn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from serve_app import __version__
from serve_app.api.authentication import OperationRoute
from serve_app.api.downloads import PacingMiddleware, new_downloads
from serve_app.api.envelope import (
    API_PREFIX,
    RequestIdMiddleware,
    install_error_handlers,
    install_methods,
)
from serve_app.api.health import ReadinessProbe
from serve_app.api.health import router as health_routes
from serve_app.api.openapi import finish
from serve_app.archives.routes import router as archive_routes
from serve_app.context import AppContext
from serve_app.credits.payments import router as payment_routes
from serve_app.credits.routes import router as credit_routes
from serve_app.dashboard.account import portal_router as portal_routes
from serve_app.dashboard.routes import ROUTERS as DASHBOARD_ROUTERS
from serve_app.dashboard.routes import session_api
from serve_app.discovery.pages import router as page_routes
from serve_app.discovery.routes import router as discovery_routes
from serve_app.exports.captions import router as transcript_routes
from serve_app.exports.clips import router as clip_routes
from serve_app.exports.routes import comparison_router as comparison_routes
from serve_app.exports.routes import router as export_routes
from serve_app.jobs.events import JobChanges
from serve_app.jobs.events import router as job_event_routes
from serve_app.jobs.reruns import router as rerun_routes
from serve_app.jobs.routes import creation_router as creation_routes
from serve_app.jobs.routes import router as job_routes
from serve_app.jobs.vocabulary import router as vocabulary_routes
from serve_app.keys.routes import open_router as sign_in_routes
from serve_app.keys.routes import router as key_routes
from serve_app.media.source import router as media_routes
from serve_app.observability.metrics import LEVEL_SECONDS
from serve_app.periodic import Periodic, repeated
from serve_app.protocols import assemblyai, deepgram, google, openai
from serve_app.results.comments import router as comment_routes
from serve_app.results.duplicates import router as duplicate_routes
from serve_app.results.edits import router as edit_routes
from serve_app.results.people import router as people_routes
from serve_app.results.people import voice_router as voice_routes
from serve_app.results.review import router as review_routes
from serve_app.results.routes import receipt_key_router as receipt_key_routes
from serve_app.results.routes import receipt_router as receipt_routes
from serve_app.results.routes import redaction_router as redaction_routes
from serve_app.results.routes import router as result_routes
from serve_app.results.routes import translation_router as translation_routes
from serve_app.search.ask import router as ask_routes
from serve_app.search.routes import router as search_routes
from serve_app.settings import require_provider
from serve_app.uploads.receiving import UploadLimiter
from serve_app.uploads.tus import router as upload_routes
from serve_app.webhooks.routes import router as webhook_routes
from serve_app.webhooks.routes import secret_router as webhook_secret_routes
from serve_app.webhooks.routes import test_router as webhook_test_routes

_OPERATIONS = (
    job_routes,
    job_event_routes,
    transcript_routes,
    result_routes,
    edit_routes,
    translation_routes,
    redaction_routes,
    people_routes,
    duplicate_routes,
    receipt_routes,
    review_routes,
    voice_routes,
    comment_routes,
    vocabulary_routes,
    export_routes,
    comparison_routes,
    search_routes,
    ask_routes,
    clip_routes,
    creation_routes,
    archive_routes,
    rerun_routes,
    media_routes,
    upload_routes,
    credit_routes,
    webhook_routes,
    webhook_test_routes,
    webhook_secret_routes,
    discovery_routes,
    page_routes,
    key_routes,
    sign_in_routes,
    payment_routes,
    portal_routes,
    health_routes,
    receipt_key_routes,
)
_PROTOCOLS = (openai.router, deepgram.router, assemblyai.router, google.router)
# Routes are tried in this order, so what clients poll comes first.
ROUTERS = (*_OPERATIONS, session_api(_OPERATIONS), *_PROTOCOLS, *DASHBOARD_ROUTERS)

TAGS = {
    "Jobs": "Create jobs, follow them, cancel them.",
    "Results": "Scenes, transcripts and audio tracks, once their stages are completed; search.",
    "Archives": "Buckets that are analysed object by object, once or watched.",
    "Account": "Credits and usage.",
    "Webhooks": "Endpoints, the delivery log, and test events.",
    "Discovery": "Open to everybody; 120 requests a minute for each client address.",
    "Dashboard": "For the dashboard's signed-in sessions; API keys do not open these.",
}
_DESCRIPTION = """\
Footage in, scenes and transcripts out, as asynchronous jobs.

Create a job, upload its media (or name a URL), then poll the job or wait for its webhook, and \
read the results. A success is `{ data, requestId }`. Every answer carries `X-Request-Id`; every \
error has the same envelope, with a stable `code` and a `docUrl` that explains it.

`429` and `503`, and `409` where it may pass, say in `Retry-After` how many seconds to wait. \
Repeat creations with the same `Idempotency-Key`.\
"""


class Api(FastAPI):
    """The application; its interface document is FastAPI's, finished by ``api.openapi``."""

    _finished: dict[str, Any] | None = None

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI 3.1 document, made once; that takes up to a second."""
        if self._finished is None:
            # Routes that serve the document alone; a tenth of what importing this module took.
            from serve_app.discovery.events import events

            self.webhooks = events
            self._finished = finish(super().openapi(), operation_routes())
        return self._finished


def operation_routes() -> list[OperationRoute]:
    """Return the routes of the interface document."""
    routes = [route for router in ROUTERS for route in router.routes]
    return [r for r in routes if isinstance(r, OperationRoute) and r.include_in_schema]


def routed_api(**options: Any) -> Api:
    """Return the application with its routes, as yet without a context."""
    app = Api(
        title="Video Analysis Service",
        summary="Footage in, scenes and transcripts out.",
        version=__version__,
        description=_DESCRIPTION,
        contact={"name": "The operator of this service"},
        license_info={"name": "Apache 2.0", "identifier": "Apache-2.0"},
        openapi_url=None,
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        servers=[{"url": API_PREFIX, "description": "This service."}],
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        **options,
    )
    install_methods(app, ROUTERS)
    for router in ROUTERS:
        # include_router would match each request twice, once for the router and once for its route.
        app.router.routes.extend(router.routes)
    return app


def build_api(context: AppContext) -> FastAPI:
    """Return the API over ``context``; closes the context's database when it shuts down."""
    limiter = UploadLimiter(context.settings.upload_concurrency, context.metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with repeated([Periodic("counting uploads", LEVEL_SECONDS, limiter.report)]):
            yield
        await context.database.close()
        if context.tracing is not None:
            await asyncio.to_thread(context.tracing.close)

    app = routed_api(lifespan=lifespan)
    app.state.context = context
    require_provider(context.settings)
    app.state.upload_limiter = limiter
    app.state.downloads = new_downloads()
    app.state.job_changes = JobChanges(context.database)
    app.state.readiness = ReadinessProbe(context)
    app.add_middleware(PacingMiddleware)
    app.add_middleware(RequestIdMiddleware, metrics=context.metrics, tracing=context.tracing)
    install_error_handlers(app)
    return app
