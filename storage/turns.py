"""Background work takes accounts in turns, so that what one has queued delays nobody else's."""

from __future__ import annotations

from sqlalchemy import TextClause, text


def in_turns(kind: str, *, due: str, lease: str) -> TextClause:
    """Return a statement that leases one row of what is due.

    ``due`` selects it, with its ``account_id``, from ``jobs`` and others; its ``{turn}`` orders by
    when each account was last served with work of this ``kind``. ``lease`` updates FROM due.
    """
    turn = f"""
        (SELECT served_at FROM background_turns
          WHERE kind = '{kind}' AND account_id = jobs.account_id) NULLS FIRST
        """  # noqa: S608
    served = f"""
        INSERT INTO background_turns (account_id, kind, served_at)
        SELECT account_id, '{kind}', clock_timestamp() FROM due
            ON CONFLICT (account_id, kind) DO UPDATE SET served_at = excluded.served_at
        """  # noqa: S608
    return text(f"WITH due AS ({due.format(turn=turn)}), served AS ({served}) {lease}")
