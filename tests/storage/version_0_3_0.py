"""A database of version 0.3.0 (commit c887741), with what its API answered: accounts with users,
keys and archives; jobs that were corrected, redacted, erased, cancelled or never uploaded."""

from __future__ import annotations

import base64
import functools
import gzip
import json
from pathlib import Path
from typing import Any

import psycopg

FILE = Path(__file__).with_name("version_0_3_0.json.gz")


@functools.cache
def stored() -> dict[str, Any]:
    """SQL of ``pg_dump`` by section, objects in base64, answers by path with their credentials."""
    found: dict[str, Any] = json.loads(gzip.decompress(FILE.read_bytes()))
    return found


def restore(url: str, *, with_rows: bool = True) -> None:
    """Fill an empty database; without rows it has the schema and its mark only."""
    mark = "INSERT INTO public.alembic_version VALUES ('0030')"
    parts = ("pre-data", "data", "post-data") if with_rows else ("pre-data", "post-data")
    with psycopg.connect(url, autocommit=True) as connection:
        for part in parts:
            connection.execute(stored()[part].encode())
    if not with_rows:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(mark)


def restore_objects(folder: Path) -> None:
    """Write the media that its jobs have into a data folder."""
    for key, content in stored()["objects"].items():
        path = folder / "objects" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content))
