"""Names of stored outputs, derived from what the outputs are computed from."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def derived_name(index: int, inputs: dict[str, Any]) -> str:
    """``00012-`` and 20 hex digits of a hash over ``inputs`` (JSON values)."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return f"{index:05d}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
