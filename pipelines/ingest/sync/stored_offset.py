"""Listening to two tracks: where one belongs beside the other, found once and stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.codec import CodecError, from_json, to_json
from pipelines.execution.chain import Control, Workspace
from pipelines.ingest.sync.align import Alignment, align
from pipelines.ingest.sync.onsets import Pcm
from pipelines.media.audio import read_blocks
from pipelines.types import AudioTrack
from storage.objects.local_files import temporary_folder

_VERSION = 1
"""Raise it whenever the same sounds would be placed otherwise."""

_CHECK_EVERY_BLOCKS = 2_000


@dataclass(frozen=True, slots=True)
class Heard:
    """The outcome as it is stored: no alignment where nothing is alike."""

    alignment: Alignment | None


def hear(
    reference: AudioTrack,
    target: AudioTrack,
    *,
    workspace: Workspace,
    control: Control,
    parent: Path | None = None,
) -> Alignment | None:
    """Where ``target``'s first sample lies from ``reference``'s; None where nothing is alike.

    Both are tracks that ingest took out (16 kHz mono FLAC). What an earlier run
    found is used again.
    """
    key = workspace.key(f"sync/{_name(reference, target, workspace)}.json")
    found = _find(workspace, key)
    if found is None:
        control.check()
        found = Heard(_aligned(reference, target, workspace, control, parent))
        workspace.store.write_bytes(key, json.dumps(to_json(found)).encode())
    return found.alignment


def _name(reference: AudioTrack, target: AudioTrack, workspace: Workspace) -> str:
    sizes = [workspace.store.size_bytes(track.key) for track in (reference, target)]
    facts = [_VERSION, reference.key, target.key, sizes]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def _find(workspace: Workspace, key: str) -> Heard | None:
    if not workspace.store.exists(key):
        return None
    try:
        return from_json(Heard, json.loads(workspace.store.read_bytes(key)))
    except (CodecError, ValueError):
        return None  # written by another version: found again


def _aligned(
    reference: AudioTrack,
    target: AudioTrack,
    workspace: Workspace,
    control: Control,
    parent: Path | None,
) -> Alignment | None:
    with (
        temporary_folder("sync-", parent) as folder,
        _samples(reference, workspace, control, folder / "reference") as one,
        _samples(target, workspace, control, folder / "target") as other,
    ):
        return align(one, other, check=control.check)


@contextmanager
def _samples(
    track: AudioTrack, workspace: Workspace, control: Control, path: Path
) -> Iterator[Pcm]:
    """The track's samples as a memory map of a file: a day of them need not fit into memory."""
    with workspace.store.local_copy(track.key) as source, path.open("wb") as file:
        for count, block in enumerate(read_blocks(source)):
            if count % _CHECK_EVERY_BLOCKS == 0:
                control.check()
            file.write(np.round(block * 32_767).astype("<i2").tobytes())
    if path.stat().st_size == 0:
        yield np.empty(0, np.int16)
    else:
        yield np.memmap(path, np.int16, "r")
    path.unlink()
