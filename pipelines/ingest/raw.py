"""Camera RAW: which family a file belongs to, and its picture decoded by the operator's command.

The content counts before the name. A command is a line like ``decode --in {input} --out {output}``:
it is split as a shell would, but no shell runs it; it reads ``{input}``, a file with the family's
own extension, and writes ``{output}``, a video file that is then ingested like any other.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.execution.chain import Control
from pipelines.ingest.headers import command_words, family_of
from pipelines.sandbox.programs import ProgramFailedError, Shares, run_program
from pipelines.types import StageCode, StageError
from storage.objects import ObjectStore
from storage.objects.local_files import temporary_folder

log = logging.getLogger("vas.raw")

GIB = 1024**3
OUTPUT_NAME = "decoded.mov"
_COPY_BYTES = 4 << 20
_EXTENSIONS = {"r3d": "R3D", "braw": "braw", "arri": "ari"}


@dataclass(frozen=True, slots=True)
class RawConfig:
    """Decoders by family (``r3d``, ``braw``, ``arri``), and what one run of them may use up."""

    decoders: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 21_600.0
    memory_bytes: int = 16 * GIB
    output_bytes: int = 200 * GIB
    temporary_folder: Path | None = None

    @property
    def shares(self) -> Shares:
        return Shares(self.seconds, self.memory_bytes, self.output_bytes)


def decoded_source(
    source_key: str,
    *,
    named_family: str | None,
    store: ObjectStore,
    config: RawConfig,
    control: Control,
) -> str:
    """The object to analyse: the source itself, or what its RAW decoder made of it.

    ``named_family`` is the family by the file's name; without one the source is returned as it is
    (probing refuses RAW files whose name does not show the family, as RAW has its own price and
    limits). Raises StageError, VALIDATION_FAILED where no decoder is configured and INGEST_FAILED
    where it fails, and whatever ``control`` raises; the decoder is then ended, its files removed.
    """
    if named_family is None:
        return source_key
    target_key = f"{source_key}-decoded"
    if not store.exists(target_key):
        with store.local_copy(source_key, check=control.check) as path:
            family = family_of(path) or named_family
            _decode(path.resolve(), family, target_key, store, config, control)
    return target_key


def _decode(
    path: Path,
    family: str,
    target_key: str,
    store: ObjectStore,
    config: RawConfig,
    control: Control,
) -> None:
    if family not in config.decoders:
        message = f"The camera RAW format {family} is not enabled on this service."
        raise StageError(StageCode.VALIDATION_FAILED, message)
    with temporary_folder("raw-", config.temporary_folder) as folder:
        source = folder / f"source.{_EXTENSIONS[family]}"
        source.symlink_to(path)
        output = folder / OUTPUT_NAME
        command = [
            word.replace("{input}", str(source)).replace("{output}", str(output))
            for word in command_words(config.decoders[family])
        ]
        try:
            run_program(command, folder, readable=[path], shares=config.shares, check=control.check)
        except ProgramFailedError as error:
            log.warning("decoder for %s %s: %s", family, error, error.errors)
            raise _failed(family, str(error)) from error
        _store(output, family, target_key, store, control)


def _store(
    output: Path, family: str, target_key: str, store: ObjectStore, control: Control
) -> None:
    """Put the decoder's file into the store; it may be anything, so only a plain file counts."""
    found = output.lstat() if output.is_symlink() or output.exists() else None
    if found is None or not stat.S_ISREG(found.st_mode) or found.st_size == 0:
        raise _failed(family, "wrote no video")
    with output.open("rb") as source, store.writer(target_key) as target:
        while data := source.read(_COPY_BYTES):
            control.check()
            target.write(data)


def _failed(family: str, reason: str) -> StageError:
    return StageError(StageCode.INGEST_FAILED, f"The decoder for {family} footage {reason}.")
