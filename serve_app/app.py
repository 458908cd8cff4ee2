"""The HTTP application. Independent of Ray: runs under Serve and under plain uvicorn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from serve_app import __version__
from serve_app.api import envelope, health
from serve_app.api.authentication import OperationRoute
from serve_app.api.downloads import PacingMiddleware, new_downloads
from serve_app.api.openapi import finish
from serve_app.archives import routes as archives
from serve_app.context import AppContext
from serve_app.credits import payments
from serve_app.credits import routes as credit_routes
from serve_app.dashboard import account
from serve_app.dashboard.routes import ROUTERS as DASHBOARD_ROUTERS
from serve_app.dashboard.routes import session_api
from serve_app.discovery import pages
from serve_app.discovery import routes as discovery
from serve_app.exports import captions, clips
from serve_app.exports import routes as exports
from serve_app.jobs import events as job_events
from serve_app.jobs import reruns, vocabulary
from serve_app.jobs import routes as jobs
from serve_app.keys import routes as keys
from serve_app.media import source
from serve_app.observability.metrics import LEVEL_SECONDS
from serve_app.periodic import Periodic, repeated
from serve_app.protocols import assemblyai, deepgram, google, openai
from serve_app.results import comments, duplicates, edits, people, review
from serve_app.results import routes as results
from serve_app.search import ask
from serve_app.search import routes as search
from serve_app.settings import require_provider
from serve_app.uploads import tus
from serve_app.uploads.receiving import UploadLimiter
from serve_app.webhooks import routes as webhooks

_OPERATIONS = (
    jobs.router,
    job_events.router,
    captions.router,
    results.router,
    edits.router,
    results.translation_router,
    results.redaction_router,
    people.router,
    duplicates.router,
    results.receipt_router,
    review.router,
    people.voice_router,
    comments.router,
    vocabulary.router,
    exports.router,
    search.router,
    ask.router,
    clips.router,
    jobs.creation_router,
    archives.router,
    reruns.router,
    source.router,
    tus.router,
    credit_routes.router,
    webhooks.router,
    webhooks.test_router,
    webhooks.secret_router,
    discovery.router,
    pages.router,
    keys.router,
    keys.open_router,
    payments.router,
    account.portal_router,
    health.router,
    results.receipt_key_router,
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
        servers=[{"url": envelope.API_PREFIX, "description": "This service."}],
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        **options,
    )
    envelope.install_methods(app, ROUTERS)
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
    app.state.job_changes = job_events.JobChanges(context.database)
    app.state.readiness = health.ReadinessProbe(context)
    app.add_middleware(PacingMiddleware)
    app.add_middleware(
        envelope.RequestIdMiddleware, metrics=context.metrics, tracing=context.tracing
    )
    envelope.install_error_handlers(app)
    return app
