"""Plug-ins: models of installed packages outside the tree, by the entry-point group ``vas.models``.

An entry point is a table of rows, ``{task: Backend}``, or a function that returns one. That it is
installed changes nothing: a setting names those in use, and the profile's name has them
(``registry.with_others``).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from models import tasks
from models.backends import Backend

GROUP = "vas.models"


class PluginError(RuntimeError):
    """A plug-in cannot be used, or failed; the message names it."""


def installed() -> dict[str, EntryPoint]:
    """All plug-ins by name. Raises PluginError where two distributions have the same name."""
    found: dict[str, EntryPoint] = {}
    for each in sorted(entry_points(group=GROUP)):
        if found.setdefault(each.name, each).value != each.value:
            raise PluginError(
                f"two plug-ins are called {each.name}: {found[each.name].value}, {each.value}"
            )
    return found


def version_of(point: EntryPoint) -> str:
    """``name==version``, by which rows and results name a plug-in."""
    return f"{point.name}=={point.dist.version if point.dist else '0'}"


@functools.cache
def rows_of(name: str) -> Mapping[tasks.Task[Any], Backend]:
    """The rows of a plug-in by its name, or by name and version. Raises PluginError."""
    bare, _, version = name.partition("==")
    found = installed()
    if bare not in found:
        known = ", ".join(sorted(found)) or "none"
        raise PluginError(f"no plug-in {bare!r} is installed (installed: {known})")
    named = version_of(found[bare])
    if version and named != name:
        raise PluginError(f"{named} is installed here in place of {name}")
    try:
        table = found[bare].load()
        table = table() if callable(table) else table
        rows = {_task(key): replace(row, plugin=named) for key, row in table.items()}
    except Exception as error:
        raise PluginError(f"{named} cannot be loaded: {type(error).__name__}: {error}") from error
    lacking = {row.shares.name for row in rows.values() if row.shares and row.shares not in rows}
    if lacking or not rows:
        raise PluginError(
            f"{named} shares a model of {', '.join(lacking) or 'no task'}, for which it has no row"
        )
    return rows


def _task(key: Any) -> tasks.Task[Any]:
    return tasks.get_task(key if isinstance(key, str) else key.name)


def chosen(names: Iterable[str], elsewhere: Iterable[str] = ()) -> dict[str, str]:
    """Task name -> plug-in with its version, for those ``names``. Raises PluginError, also where a
    task has two plug-ins or is one of those done ``elsewhere``."""
    done = dict.fromkeys(elsewhere, "VAS_REMOTE_MODELS")
    found: dict[str, str] = {}
    for name in dict.fromkeys(names):
        for task, row in rows_of(name).items():
            other = found.get(task.name) or done.get(task.name)
            if other is not None:
                raise PluginError(f"both {row.plugin} and {other} do {task.name}")
            found[task.name] = row.plugin
    return found
