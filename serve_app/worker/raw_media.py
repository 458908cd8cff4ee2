"""Camera RAW between being brought and being probed: the service's side of its decoders."""

from __future__ import annotations

from pipelines.execution.chain import Control
from pipelines.ingest.raw import RawConfig, decoded_source
from serve_app.formats import raw_family
from serve_app.settings import Settings
from storage.objects import ObjectStore


def decode_footage(
    source_key: str, file_name: str, *, store: ObjectStore, settings: Settings, control: Control
) -> str:
    """The object to analyse of a clip called ``file_name``: decoded where it is camera RAW.

    Raises as ``pipelines.ingest.raw.decoded_source``.
    """
    return decoded_source(
        source_key,
        named_family=raw_family(file_name),
        store=store,
        config=raw_config(settings),
        control=control,
    )


def raw_config(settings: Settings) -> RawConfig:
    """What the operator's settings say of RAW decoders."""
    return RawConfig(
        decoders=settings.raw_decoders,
        seconds=settings.raw_decoder_seconds,
        memory_bytes=settings.raw_decoder_memory_bytes,
        output_bytes=settings.raw_decoded_max_bytes,
    )
