"""Upload URLs of a job: signed, expiring, no API key needed."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from typing import Any

from serve_app.api.context import API_PREFIX
from serve_app.crypto import Signer
from serve_app.settings import Settings
from storage.job_records import JobRecord
from storage.objects import DirectUploadStore, ObjectStore
from storage.uploads import AUDIO_SLOT, MEDIA_SLOT, TRACK_SLOT, Upload, source_prefix

UPLOAD_PURPOSE = "upload"
UPLOADS_PATH = f"{API_PREFIX}/uploads"
UPLOAD_HEADERS = {"Content-Type": "application/octet-stream"}


def upload_path(upload: Upload) -> str:
    """The path, unsigned, that one file of a job is PUT to."""
    return f"{UPLOADS_PATH}/{upload.job_id}/{upload.slot}"


def resumable_path(upload: Upload) -> str:
    """The path, unsigned, at which the same file is taken over tus."""
    return f"{upload_path(upload)}/resumable"


def resumable_key(job_id: uuid.UUID, slot: str) -> str:
    """Where in the object store a resumable upload grows, and lies once it is complete."""
    return f"{source_prefix(job_id)}/{slot}"


def direct_key(job_id: uuid.UUID, slot: str) -> str:
    """Where a client puts a file past the service; it is moved once it is there."""
    return f"{source_prefix(job_id)}/direct/{slot}"


def arrived_key(job_id: uuid.UUID, slot: str, version: str) -> str:
    """Where such a file is moved to; each version of it elsewhere."""
    mark = hashlib.sha256(version.encode()).hexdigest()[:16]
    return f"{source_prefix(job_id)}/arrived/{slot}-{mark}"


async def direct_urls(
    store: ObjectStore, uploads: list[Upload], settings: Settings
) -> dict[str, str]:
    """Addresses in the store itself, by slot, for the files that it takes with one PUT.

    None with a store that clients cannot reach. Signing may have to fetch the
    machine's credentials, so it is done outside any transaction.
    """
    if not isinstance(store, DirectUploadStore):
        return {}
    takes = store
    lifetime = settings.upload_lifetime_seconds
    return {
        item.slot: await asyncio.to_thread(
            takes.presigned_put_url, direct_key(item.job_id, item.slot), expires_seconds=lifetime
        )
        for item in uploads
        if (item.declared_bytes or 0) <= takes.largest_put_bytes
    }


def upload_fields(
    job: JobRecord,
    uploads: list[Upload],
    *,
    signer: Signer,
    settings: Settings,
    public: str,
    direct: dict[str, str],
) -> dict[str, Any]:
    """What ``POST /jobs`` adds to the Job object; ``direct`` is what ``direct_urls`` made."""
    if job.upload_expires_at is None:
        raise ValueError("The job takes no uploads.")
    expires_at = int(job.upload_expires_at.timestamp())

    def address(path: str) -> str:
        return public + signer.sign_path(UPLOAD_PURPOSE, path, expires_at=expires_at)

    urls = {item.slot: address(upload_path(item)) for item in uploads} | direct
    resumable = {item.slot: address(resumable_path(item)) for item in uploads}
    fields: dict[str, Any] = {
        "uploadUrl": urls.pop(MEDIA_SLOT),
        "resumableUploadUrl": resumable.pop(MEDIA_SLOT),
        "uploadMethod": "PUT",
        "uploadHeaders": UPLOAD_HEADERS,
        "expiresInSeconds": settings.upload_lifetime_seconds,
        "maxUploadBytes": settings.max_upload_bytes(job.tier),
    }
    if AUDIO_SLOT in urls:
        fields |= {
            "audioUploadUrl": urls[AUDIO_SLOT],
            "audioResumableUploadUrl": resumable[AUDIO_SLOT],
            "audioUploadHeaders": UPLOAD_HEADERS,
        }
    elif urls:
        fields["audioTrackUploadUrls"] = [
            {
                "trackIndex": int(slot.removeprefix(TRACK_SLOT)),
                "url": urls[slot],
                "resumableUrl": resumable[slot],
                "headers": UPLOAD_HEADERS,
            }
            for slot in urls
        ]
        fields["audioUploadHeaders"] = UPLOAD_HEADERS
    return fields
