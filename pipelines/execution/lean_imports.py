"""Importing this module makes what Ray imports later cheaper; each Ray worker does so as it starts.

The processes of Serve import 80 MiB of pandas for one entry in a table of JSON encoders, and
without it leave the entry out; collections of garbage found nothing in an eighth of that time.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_IMPORTER = "ray.serve._private.utils"
_LOOKED_AFTER = 50_000
"""New objects; Python's own 700 is less than many a module makes."""


class _WithoutPandas(MetaPathFinder):
    """Finds no pandas for Serve; Ray Data, and whatever else needs it, finds it as ever."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raises ModuleNotFoundError while ``_IMPORTER`` tries to import pandas."""
        importer = sys.modules.get(_IMPORTER)
        if fullname == "pandas" and importer is not None and not hasattr(importer, "pd"):
            raise ModuleNotFoundError(f"{_IMPORTER} does without pandas", name=fullname)
        return None


gc.set_threshold(_LOOKED_AFTER)
sys.meta_path.insert(0, _WithoutPandas())
