"""What upload tests share: looking behind the API, and speaking tus by hand."""

from __future__ import annotations

import uuid
from typing import Any

import httpx

from storage.uploads import Upload, find_upload
from tests.serve_app.running_api import RunningApi

TUS = {"Tus-Resumable": "1.0.0"}
OCTETS = {"Content-Type": "application/offset+octet-stream"}


def upload_of(api: RunningApi, job: dict[str, Any], slot: str = "media") -> Upload:
    """The row of one file of a job."""
    found = api.transact(lambda c: find_upload(c, uuid.UUID(job["jobId"]), slot))
    assert found is not None
    return found


def object_of(api: RunningApi, job: dict[str, Any], slot: str = "media") -> str:
    """The key under which one file of a job lies."""
    return upload_of(api, job, slot).object_key


def files_of(api: RunningApi, job: dict[str, Any]) -> list[str]:
    """Names of all files that the job has in the object store, temporary ones too."""
    folder = api.settings.data_dir / "objects" / "jobs" / job["jobId"]
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def head(url: str, **headers: str) -> httpx.Response:
    return httpx.head(url, headers=TUS | headers, trust_env=False, timeout=120)


def patch(url: str, offset: int, content: Any, **headers: str) -> httpx.Response:
    """A PATCH; ``headers`` with ``_`` for ``-``."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = TUS | OCTETS | {"Upload-Offset": str(offset)} | named
    return httpx.patch(url, content=content, headers=sent, trust_env=False, timeout=120)


def offset_of(url: str) -> int:
    answer = head(url)
    assert answer.status_code == 200, answer.headers
    return int(answer.headers["upload-offset"])
