"""A script's background: how ``sh`` starts what a line with ``&`` names."""

from __future__ import annotations

import signal
from collections.abc import Sequence


def in_background(command: Sequence[str]) -> list[str]:
    """``command`` as the background of a script has it: SIGINT is ignored at its start."""
    return ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *command]


def restore_signals() -> None:
    """Let SIGINT and SIGTERM end this process, and all that it starts from now on.

    Where they are ignored, Ray's workers ignore them too, which are interrupted so.
    """
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
