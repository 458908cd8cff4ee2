"""Plug-ins: rows of installed packages, by the entry-point group ``vas.models``. An entry point is
a table ``{task: Backend}``, or a function that returns one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from models.backends import Backend
from models.tasks import Task, get_task


class PluginError(RuntimeError):
    """A plug-in cannot be used, or failed; the message names it."""


def installed() -> list[tuple[str, EntryPoint]]:
    """``name==version`` of each plug-in, and its entry point."""
    points = sorted(entry_points(group="vas.models"))
    return [(f"{each.name}=={each.dist.version if each.dist else ''}", each) for each in points]


@functools.cache
def rows_of(name: str) -> Mapping[Task[Any], Backend]:
    """The rows of a plug-in by its name, with or without its version. Raises PluginError."""
    here = installed()
    found = [each for each in here if name in {each[0], each[1].name}]
    if len(found) != 1:
        how_often = "more than once" if found else "not"
        known = ", ".join(named for named, _ in here) or "none"
        raise PluginError(f"{name} is {how_often} installed here (there are: {known})")
    [(named, point)] = found
    try:
        table = point.load()
        table = table() if callable(table) else table
        rows = {
            get_task(key if isinstance(key, str) else key.name): replace(row, plugin=named)
            for key, row in table.items()
        }
    except Exception as error:
        raise PluginError(f"{named} cannot be loaded: {type(error).__name__}: {error}") from error
    if not rows or any(row.shares not in {None, *rows} for row in rows.values()):
        raise PluginError(f"{named} has no row, or none for a task whose model it shares")
    return rows
