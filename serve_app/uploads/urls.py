"""Upload URLs of a job: signed, expiring, no API key needed."""

from __future__ import annotations

from typing import Any

from serve_app.http.signing import Signer
from serve_app.jobs.service import max_upload_bytes
from serve_app.settings import Settings
from storage.jobs import JobRecord
from storage.uploads import MEDIA_SLOT, Upload

UPLOAD_PURPOSE = "upload"
UPLOADS_PATH = "/v1/api/uploads"


def upload_path(upload: Upload) -> str:
    """The path, unsigned, that one file of a job is PUT to."""
    return f"{UPLOADS_PATH}/{upload.job_id}/{upload.slot}"


def upload_fields(
    job: JobRecord, uploads: list[Upload], *, signer: Signer, settings: Settings, public: str
) -> dict[str, Any]:
    """What ``POST /jobs`` adds to the Job object."""
    if job.upload_expires_at is None:
        raise ValueError("The job takes no uploads.")
    expires_at = int(job.upload_expires_at.timestamp())
    urls = {
        upload.slot: public
        + signer.sign_path(UPLOAD_PURPOSE, upload_path(upload), expires_at=expires_at)
        for upload in uploads
    }
    return {
        "uploadUrl": urls[MEDIA_SLOT],
        "uploadMethod": "PUT",
        "uploadHeaders": {"Content-Type": "application/octet-stream"},
        "expiresInSeconds": settings.upload_lifetime_seconds,
        "maxUploadBytes": max_upload_bytes(settings, job.tier),
    }
