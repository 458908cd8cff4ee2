"""Stored outputs: each is named by all that it depends on, so that a retry skips what is done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Generic, TypeVar

from pipelines.codec import decode, encode
from storage.objects import ObjectStore

Value = TypeVar("Value")
_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Artifact(Generic[Value]):
    """A kind of output: where it is stored, and how.

    ::

        WORDS = Artifact.of(Words, "transcript/words", version=Transcribe.version)
        key = WORDS.key(workspace.prefix, audio_key, language, position=3)
    """

    folder: str
    version: int
    """Raised whenever the same inputs would be stored differently."""
    to_bytes: Callable[[Value], bytes]
    from_bytes: Callable[[bytes], Value]
    """Raises ValueError, or its kind, on other bytes."""
    ending: str = ".json"

    @staticmethod
    def of(kind: type[Value], folder: str, *, version: int) -> Artifact[Value]:
        """Values of a type that the codec knows."""
        return Artifact(folder, version, encode, lambda data: decode(kind, data))

    def key(self, prefix: str, *inputs: object, position: int | None = None) -> str:
        """Where the output of ``inputs`` (dataclasses, JSON values, bytes) is stored.

        ``position`` is for people who look into the store; the digest alone names the output.
        """
        number = "" if position is None else f"{position:05d}-"
        return f"{prefix}/{self.folder}/{number}{digest(self.version, inputs)}{self.ending}"

    def load(self, store: ObjectStore, key: str) -> Value:
        return self.from_bytes(store.read_bytes(key))

    def save(self, store: ObjectStore, key: str, value: Value) -> None:
        store.write_bytes(key, self.to_bytes(value))

    def make(self, store: ObjectStore, key: str, compute: Callable[[], Value]) -> Made:
        """The output, computed unless it is there."""
        if store.exists(key):
            return Made(key, computed=False)
        self.save(store, key, compute())
        return Made(key, computed=True)


@dataclass(frozen=True, slots=True)
class Made:
    """An output in the store, and whether it was ``computed`` now or had been there."""

    key: str
    computed: bool


def digest(*inputs: object) -> str:
    """A name for exactly these inputs: dataclasses, JSON values, bytes."""
    text = json.dumps(
        inputs,
        sort_keys=True,
        default=lambda value: value.hex() if isinstance(value, bytes) else asdict(value),
        allow_nan=False,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
