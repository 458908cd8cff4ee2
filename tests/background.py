"""Commands as a script's background has them."""

from __future__ import annotations

from collections.abc import Sequence


def in_background(command: Sequence[str]) -> list[str]:
    """``command`` as ``sh`` starts it with ``&`` in a script: SIGINT is ignored at its start."""
    return ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *command]
