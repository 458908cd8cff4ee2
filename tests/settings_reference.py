"""The reference of all settings: ``python -m tests.settings_reference > docs/settings.md``."""

from __future__ import annotations

import json
from typing import get_args

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from serve_app.settings import GIB, Settings

_HEAD = """# Settings

Environment variables, read once where the service starts; on a cluster also `args` of the
application in `serve_config.yaml`, by their names in lower case without `VAS_`. Made from
`serve_app/settings.py` by `python -m tests.settings_reference`.

| variable | default | bounds | meaning |
|---|---|---|---|
"""


def reference() -> str:
    """The page in Markdown, a row a setting in the order of the class."""
    rows = "".join(_row(name, field) for name, field in Settings.model_fields.items())
    return f"{_HEAD}{rows}"


def _row(name: str, field: FieldInfo) -> str:
    description = (field.description or "").replace("|", "\\|")
    return f"| `VAS_{name.upper()}` | {_default(field)} | {_bounds(field)} | {description} |\n"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None or value in ((), {}) or isinstance(value, SecretStr):
        return ""
    if isinstance(value, dict):
        return f"`{json.dumps(value)}`"
    if isinstance(value, tuple):
        return f"`{', '.join(str(each) for each in value)}`"
    if isinstance(value, int) and value >= GIB and value % GIB == 0:
        return f"`{value}` ({value // GIB} GiB)"
    return f"`{value}`"


def _bounds(field: FieldInfo) -> str:
    limits = {
        name: getattr(rule, name)
        for rule in field.metadata
        for name in ("gt", "ge", "lt", "le")
        if hasattr(rule, name)
    }
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    bounds = ", ".join(f"{signs[name]} {limit}" for name, limit in limits.items())
    choices = [each for each in get_args(field.annotation) if isinstance(each, str)]
    return bounds or ", ".join(f"`{choice}`" for choice in choices)


if __name__ == "__main__":
    print(reference(), end="")
