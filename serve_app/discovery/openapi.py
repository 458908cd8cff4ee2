"""The OpenAPI document."""

from __future__ import annotations

import json
from functools import lru_cache


@lru_cache(maxsize=1)
def openapi_bytes() -> bytes:
    """The document as served."""
    from fastapi import FastAPI

    from serve_app.app import ROUTERS

    app = FastAPI(title="Video Analysis Service", version="1")
    for router in ROUTERS:
        app.include_router(router)
    return json.dumps(app.openapi()).encode()
