"""Pages from Jinja2 templates. Text is escaped unless it is markup already."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

_CODE = re.compile(r"`([^`]+)`")


def templates(folder: Path) -> Environment:
    """The templates of ``folder``, with the filters ``prose`` and ``json``."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"prose": prose, "json": as_json}
    return environment


def prose(text: str) -> Markup:
    """Text with `code` in backticks."""
    parts = _CODE.split(text)
    marked = (
        Markup("<code>{}</code>").format(part) if n % 2 else escape(part)
        for n, part in enumerate(parts)
    )
    return Markup().join(marked)


def as_json(value: Any) -> str:
    """A value as examples show it."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
