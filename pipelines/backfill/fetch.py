"""An item's source into the object store that its work is done in."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pipelines.backfill.outcome import Item
from pipelines.backfill.places import S3Access, file_at
from pipelines.execution.chain import Control
from pipelines.ingest.source import RawConfig, decoded_source
from pipelines.net.addresses import AddressPolicy
from pipelines.net.fetch import FetchLimits, fetch
from pipelines.types import StageCode, StageError
from storage.objects import ObjectNotFoundError, ObjectStore, ObjectStoreUnavailableError

_RAW_SUFFIXES = {".r3d": "r3d", ".braw": "braw", ".ari": "arri", ".arx": "arri"}
"""File suffix -> camera RAW family."""


@dataclass(frozen=True, slots=True)
class SourceRules:
    """How sources may be reached. Picklable."""

    access: S3Access = field(default_factory=S3Access)
    addresses: AddressPolicy = field(default_factory=AddressPolicy)
    limits: FetchLimits = field(default_factory=FetchLimits)
    raw: RawConfig = field(default_factory=RawConfig)


def fetch_source(
    item: Item, key: str, store: ObjectStore, rules: SourceRules, control: Control
) -> str:
    """Put the item's source under ``key``, unless it is there; the key of what to analyse.

    That is another one for camera RAW, which is decoded. Raises StageError (FETCH_FAILED,
    VALIDATION_FAILED, INGEST_FAILED).
    """
    if not store.exists(key):
        if item.source.startswith(("http://", "https://")):
            fetch(
                item.source,
                store=store,
                key=key,
                limits=rules.limits,
                policy=rules.addresses,
                provider=item.provider,
                control=control,
            )
        else:
            _copy(item.source, key, store, rules.access)
    return decoded_source(
        key,
        named_family=_RAW_SUFFIXES.get(Path(item.name).suffix.lower()),
        store=store,
        config=rules.raw,
        control=control,
    )


def _copy(source: str, key: str, store: ObjectStore, access: S3Access) -> None:
    place, name = file_at(source, access)
    try:
        with store.writer(key) as sink:
            place.copy_to(name, sink)
    except ObjectNotFoundError:
        raise _failed("There is no such file.") from None
    except ObjectStoreUnavailableError as error:
        raise _failed(f"The source cannot be read: {error}.") from error
    except OSError as error:
        # Says which machine's path it was: only the reason is for the table.
        raise _failed(f"The source cannot be read: {error.strerror}.") from error


def _failed(message: str) -> StageError:
    return StageError(StageCode.FETCH_FAILED, message)
