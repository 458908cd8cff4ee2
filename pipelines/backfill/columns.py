"""The columns of a manifest, each with what it may hold. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pipelines.backfill.outcome import Item
from pipelines.backfill.places import S3_SCHEME, PlaceError, split_s3
from pipelines.net.addresses import Provider
from storage.types import ProcessingMode

MAX_ID_CHARACTERS = 200
MAX_NAME_CHARACTERS = 255
MAX_KEYTERMS = 100
MAX_KEYTERM_CHARACTERS = 100
MAX_SPEAKERS = 20

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""And halves of surrogate pairs, which JSON can hold and UTF-8 cannot."""
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_WEB = ("http", "https")


class ColumnError(ValueError):
    """A row is no item; ``column`` is at fault, or None where the row is none at all."""

    def __init__(self, column: str | None, message: str) -> None:
        super().__init__(column, message)
        self.column = column
        self.message = message


def item_of(row: Any, number: int, base: str, *, surplus: str) -> Item:
    """The row's item; its id is empty where the row has none. Raises ColumnError.

    ``base`` is the address that relative sources count from, with a slash at its end;
    ``surplus`` names the column that holds what has no column.
    """
    if not isinstance(row, dict):
        raise ColumnError(None, "The row is no JSON object.")
    if row.get(surplus):
        raise ColumnError(None, "The row has more fields than the header.")
    values: dict[str, Any] = {}
    for column, read in _COLUMNS.items():
        value = row.get(column)
        if value is None or value == "":
            continue
        try:
            values[column] = read(value)
        except (ValueError, RecursionError) as error:
            raise ColumnError(column, f"{column}: {error}") from None
    if "source" not in values:
        raise ColumnError("source", "source: it is empty.")
    source = _resolved(values.pop("source"), base)
    if "provider" in values and not source.startswith(("http://", "https://")):
        raise ColumnError("provider", "provider: only http(s) sources have one.")
    name = values.pop("name", None) or _name_in(source)
    return Item(id=values.pop("id", ""), row=number, source=source, name=name, **values)


def _line(value: Any, most: int) -> str:
    if not isinstance(value, str):
        raise ValueError("it must be text")  # noqa: TRY004  (one kind of error for one cause)
    if not 1 <= len(value) <= most or _CONTROL_CHARACTERS.search(value):
        raise ValueError(f"it must be 1 to {most} characters, none of them a control character")
    return value


def _id(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return _line(value, MAX_ID_CHARACTERS)


def _source(value: Any) -> str:
    text = _line(value, 4096)
    scheme = _SCHEME.match(text)
    kind = scheme.group(1).lower() if scheme else "file"
    if kind == "s3":
        try:
            _, key = split_s3(text)
        except PlaceError as error:
            raise ValueError(str(error)) from None
        if not key:
            raise ValueError("the URL names a bucket and no object in it")
    elif kind not in (*_WEB, "file"):
        raise ValueError(f"{kind}:// is neither a path nor s3:// nor http(s)://")
    elif kind in _WEB and not urlsplit(text).hostname:
        raise ValueError("the URL names no host")
    elif kind == "file" and scheme:
        _line(unquote(urlsplit(text).path), 4096)
    elif kind == "file":
        try:
            Path(text).expanduser()
        except RuntimeError as error:
            raise ValueError(f"{text!r} is in the home of nobody on this machine") from error
    return text


def _name(value: Any) -> str:
    name = re.split(r"[/\\]", _line(value, MAX_NAME_CHARACTERS))[-1]
    if name in {"", ".", ".."}:
        raise ValueError("it names no file")
    return name


def _mode(value: Any) -> ProcessingMode:
    if value not in list(ProcessingMode):
        raise ValueError(f"{value!r} is none of {', '.join(ProcessingMode)}")
    return ProcessingMode(value)


def _language(value: Any) -> str:
    if not isinstance(value, str) or not _LANGUAGE.fullmatch(value):
        raise ValueError(f"{value!r} is no language tag such as en or pt-BR")
    return value


def _keyterms(value: Any) -> tuple[str, ...]:
    """A list, a JSON list, or text with semicolons between."""
    if isinstance(value, str):
        text = value.strip()
        value = json.loads(text) if text.startswith("[") else text.split(";")
    if not isinstance(value, list):
        raise ValueError("it must be a list, or text with semicolons between")  # noqa: TRY004
    terms = tuple(_line(term, MAX_KEYTERM_CHARACTERS).strip() for term in value)
    if len(terms) > MAX_KEYTERMS:
        raise ValueError(f"there are more than {MAX_KEYTERMS}")
    return tuple(filter(None, terms))


def _speakers(value: Any) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or not 1 <= int(text) <= MAX_SPEAKERS:
        raise ValueError(f"{value!r} is no whole number from 1 to {MAX_SPEAKERS}")
    return int(text)


def _provider(value: Any) -> str:
    if value not in list(Provider):
        raise ValueError(f"{value!r} is none of {', '.join(Provider)}")
    return str(value)


def _metadata(value: Any) -> str:
    """An object of scalars, or such JSON; kept as JSON."""
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, dict):
        raise ValueError("it must be a JSON object")  # noqa: TRY004
    for key, entry in value.items():
        plain = entry is None or isinstance(entry, (str, int, float, bool))
        if not plain or (isinstance(entry, float) and not math.isfinite(entry)):
            raise ValueError(f"{key} must be a string, a number, a boolean or null")
    written = json.dumps(value, ensure_ascii=False)
    written.encode()
    return written


_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "id": _id,
    "source": _source,
    "name": _name,
    "mode": _mode,
    "language": _language,
    "keyterms": _keyterms,
    "speakers_expected": _speakers,
    "provider": _provider,
    "metadata": _metadata,
}
"""Column -> what reads it, raising ValueError with the end of a sentence. Others are ignored."""


def _resolved(source: str, base: str) -> str:
    """An absolute path or a URL."""
    scheme = _SCHEME.match(source)
    if scheme is None:
        if base.startswith(S3_SCHEME) and not source.startswith("/"):
            return base + source
        return str(Path(base) / Path(source).expanduser())
    if scheme.group(1).lower() == "file":
        return unquote(urlsplit(source).path)
    return scheme.group(1).lower() + source[scheme.end(1) :]


def _name_in(source: str) -> str:
    """What the source's path ends with, or a plain default."""
    path = unquote(urlsplit(source).path) if source.startswith(("http://", "https://")) else source
    last = _CONTROL_CHARACTERS.sub("", path.rstrip("/").rsplit("/", 1)[-1])
    return "video" if last in {"", ".", ".."} else last[-MAX_NAME_CHARACTERS:]
