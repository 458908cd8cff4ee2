"""Frozen dataclasses as JSON and back, by their type hints; and stored outputs by their inputs.

Reading is strict: unknown or missing fields and wrong types are errors, so that a stored result of
another version is never misread. Fields with a default may be missing. An ``Artifact`` is named by
all that it depends on, so that a retry computes only what is missing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import types
from collections.abc import Callable, Hashable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from storage.objects import ObjectStore

_Value = TypeVar("_Value")

PART_CHARACTERS = 64 * 1024
"""Of a list that is decoded in parts; the last element of a part may begin before."""

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class CodecError(ValueError):
    """The JSON does not fit the type; the message names the place."""


def encode(value: object) -> bytes:
    """``value`` as JSON text. Raises CodecError for what JSON cannot hold."""
    try:
        return json.dumps(value, default=asdict, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise CodecError(f"{type(value).__name__} has no JSON form: {error}") from None


def decode(cls: type[_Value], text: bytes, *, ignore_unknown: bool = False) -> _Value:
    """Return the ``cls`` that ``encode`` turned into ``text``; raises CodecError if it is none.

    With ``ignore_unknown`` fields may be there that a later version added.
    """
    extra: Literal["ignore"] | None = "ignore" if ignore_unknown else None
    try:
        found = _adapter(cast("Hashable", cls)).validate_json(b"[%b]" % text, extra=extra)
    except ValidationError as error:
        problems = (_place(it["loc"][1:]) + ": " + it["msg"] for it in error.errors())
        raise CodecError("; ".join(cls.__name__ + problem for problem in problems)) from None
    value: _Value = found[0]
    return value


def list_parts(text: str, start: int = 0) -> Iterator[tuple[str, int]]:
    """Yield the JSON list at ``start`` as short ones, each with where it ends in ``text``.

    For threads: no other one runs while one value is decoded, and a long list takes a second.
    Raises ValueError where it is none.
    """
    scan = json.JSONDecoder().raw_decode
    first = at = end = _after_gap(text, start + 1)
    while text[at : at + 1] != "]":
        end = scan(text, at)[1]
        at = _after_gap(text, end)
        if end - first > PART_CHARACTERS:
            yield f"[{text[first:end]}]", at
            first = at
    yield f"[{text[first:end]}]", at + 1


def _after_gap(text: str, at: int) -> int:
    while text[at : at + 1] in {",", " ", "\n", "\t", "\r"}:
        at += 1
    return at


def to_json(value: object) -> Any:
    """``value`` as dicts, lists and scalars. Raises CodecError as ``encode``."""
    return json.loads(encode(value))


def from_json(cls: type[_Value], data: object) -> _Value:
    """Return the ``cls`` that ``to_json`` turned into ``data``; raises CodecError if it is none."""
    return decode(cls, encode(data))


@functools.cache
def _adapter(cls: Hashable) -> TypeAdapter[Any]:
    """Dataclasses take their configuration from what they are a field of: hence the tuple."""
    only: Any = types.GenericAlias(tuple, (cls,))
    return TypeAdapter(only, config=_STRICT)


def _place(path: tuple[int | str, ...]) -> str:
    return "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in path)


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
    is_large: bool = False
    """Whether it is read as a file, which a node may keep, rather than with one request."""

    @staticmethod
    def of(kind: type[Value], folder: str, *, version: int) -> Artifact[Value]:
        """Return values of a type that the codec knows."""
        return Artifact(folder, version, encode, lambda data: decode(kind, data))

    def key(self, prefix: str, *inputs: object, position: int | None = None) -> str:
        """Return where the output of ``inputs`` (dataclasses, JSON values, bytes) is stored.

        ``position`` is for people who look into the store; the digest alone names the output.
        """
        number = "" if position is None else f"{position:05d}-"
        return f"{prefix}/{self.folder}/{number}{digest(self.version, inputs)}{self.ending}"

    def load(self, store: ObjectStore, key: str) -> Value:
        return self.from_bytes(self.read(store, key))

    def read(self, store: ObjectStore, key: str) -> bytes:
        """Return the output as it is stored."""
        if not self.is_large:
            return store.read_bytes(key)
        with store.local_copy(key) as path:
            return path.read_bytes()

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
    """Return a name for exactly these inputs: dataclasses, JSON values, bytes."""
    text = json.dumps(
        inputs,
        sort_keys=True,
        default=lambda value: value.hex() if isinstance(value, bytes) else asdict(value),
        allow_nan=False,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
