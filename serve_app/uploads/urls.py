"""Upload URLs of a job: signed, expiring, no API key needed."""

from __future__ import annotations

from typing import Any

from serve_app.http.context import API_PREFIX
from serve_app.http.signing import Signer
from serve_app.jobs.plans import AUDIO_SLOT, max_upload_bytes
from serve_app.settings import Settings
from storage.job_records import JobRecord
from storage.uploads import MEDIA_SLOT, Upload

UPLOAD_PURPOSE = "upload"
UPLOADS_PATH = f"{API_PREFIX}/uploads"
UPLOAD_HEADERS = {"Content-Type": "application/octet-stream"}


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

    def address(upload: Upload) -> str:
        path = upload_path(upload)
        return public + signer.sign_path(UPLOAD_PURPOSE, path, expires_at=expires_at)

    urls = {upload.slot: address(upload) for upload in uploads}
    fields: dict[str, Any] = {
        "uploadUrl": urls.pop(MEDIA_SLOT),
        "uploadMethod": "PUT",
        "uploadHeaders": UPLOAD_HEADERS,
        "expiresInSeconds": settings.upload_lifetime_seconds,
        "maxUploadBytes": max_upload_bytes(settings, job.tier),
    }
    if AUDIO_SLOT in urls:
        fields |= {"audioUploadUrl": urls[AUDIO_SLOT], "audioUploadHeaders": UPLOAD_HEADERS}
    elif urls:
        fields["audioTrackUploadUrls"] = [
            {"trackIndex": index, "url": url, "headers": UPLOAD_HEADERS}
            for index, url in enumerate(urls.values())
        ]
        fields["audioUploadHeaders"] = UPLOAD_HEADERS
    return fields
