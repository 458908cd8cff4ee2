"""The addresses of uploads: a plain PUT, and tus beside it."""

from __future__ import annotations

from fastapi import APIRouter

from serve_app.uploads.access import put_options
from serve_app.uploads.receiving import put_upload
from serve_app.uploads.tus import resumable
from serve_app.uploads.urls import UPLOADS_PATH

_OVERRIDABLE = ["HEAD", "PATCH", "DELETE", "OPTIONS", "POST", "GET", "PUT"]
"""Any method may carry X-HTTP-Method-Override; those of their own are the first four."""

router = APIRouter(prefix=UPLOADS_PATH, include_in_schema=False)
router.add_api_route("/{job_id}/{slot}", put_upload, methods=["PUT"])
router.add_api_route("/{job_id}/{slot}", put_options, methods=["OPTIONS"])
router.add_api_route("/{job_id}/{slot}/resumable", resumable, methods=_OVERRIDABLE)
