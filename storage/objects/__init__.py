"""Object store: bytes under keys, written atomically; see ``contract`` for what it promises."""

from __future__ import annotations

from storage.objects.contract import (
    Arrival,
    InvalidKeyError,
    ObjectNotFoundError,
    ObjectStore,
    ObjectStoreUnavailableError,
    PartialBusyError,
    PartialOffsetError,
    TakesDirectUploads,
    check_key,
    is_outage,
)
from storage.objects.folder import FolderStore

__all__ = [
    "Arrival",
    "FolderStore",
    "InvalidKeyError",
    "ObjectNotFoundError",
    "ObjectStore",
    "ObjectStoreUnavailableError",
    "PartialBusyError",
    "PartialOffsetError",
    "TakesDirectUploads",
    "check_key",
    "is_outage",
]
