"""``vas``: run the service, analyse footage, look after accounts."""

from __future__ import annotations

import errno
import signal
import sys
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from serve_app import __version__
from serve_app.cli.output import errors


class Listed(NamedTuple):
    """How a command is found, and its line in the list of commands."""

    panel: str
    place: str
    """``module:attribute`` in this package, a function or a typer application."""
    help: str


_COMMANDS = {
    "For everyone": {
        "serve": ("service:serve", "Run the service until it is interrupted."),
        "analyze": (
            "analyze:analyze",
            "Analyse a file: with a running service (--url, --key), else with one started for it.",
        ),
        "watch": (
            "analyze:watch",
            "Analyse every file that comes into a folder, once; results in FILE.vas beside it.",
        ),
        "ask": (
            "remote:ask",
            "Ask about the recordings; each sentence of the answer quotes what was said.",
        ),
        "search": ("remote:search", "Search everything that the account has analysed."),
        "export": (
            "remote:export_job",
            "Write a job's scenes, chapters or transcript for an editing program or a player.",
        ),
        "verify": (
            "receipts:verify",
            "Check a receipt: its signature, then the media and the results that are given.",
        ),
        "compare": (
            "remote:compare",
            "Compare two cuts: shots removed, added, moved, retimed; words and titles changed.",
        ),
        "review": (
            "remote:review",
            "List what of a job is most worth checking, and the errors expected before and after.",
        ),
        "jobs": ("remote:jobs_app", "The jobs of an account."),
        "archives": ("remote:archives_app", "Buckets that are analysed object by object."),
        "mcp": (
            "remote:serve_agents",
            "Offer the service to agents over the Model Context Protocol (stdio, or --http PORT).",
        ),
    },
    "For operators": {
        "rerun": (
            "data:rerun",
            "Make results again where models, versions or settings changed since.",
        ),
        "doctor": (
            "service:doctor",
            "Check ports, disk, GPU, codecs, database, and each model with one real inference.",
        ),
        "accounts": ("accounts:accounts_app", "Accounts."),
        "legal-hold": (
            "accounts:legal_hold",
            "Keep a job, or all that an account has, from being deleted by anybody, or lift that.",
        ),
        "keys": ("accounts:keys_app", "API keys."),
        "users": ("accounts:users_app", "People in an account."),
        "sessions": ("accounts:sessions_app", "Dashboard sessions."),
        "audit": ("accounts:audit_app", "Audit logs of accounts."),
        "credits": ("money:credits_app", "Prepaid credits."),
        "usage": (
            "money:print_usage",
            "What an account used and was charged in a month, job by job.",
        ),
        "payments": ("money:payments_app", "The payment provider."),
        "webhooks": ("service:webhooks_app", "Webhooks."),
        "models": ("service:models_app", "Model weights."),
        "policy": ("service:policy_app", "Content policy."),
        "backup": (
            "data:back_up",
            "Copy database, objects and secret key to a folder, also while the service runs.",
        ),
        "restore": (
            "data:restore",
            "Fill an empty database and object store from a backup; then start the service.",
        ),
        "backfill": (
            "data:backfill_app",
            "Results of python -m pipelines.backfill (no service needed).",
        ),
        "node-environment": (
            "service:print_node_environment",
            "Print what Ray must find in a node's environment, as lines for a shell.",
        ),
    },
}
"""By panel, in the order in which a newcomer meets them."""

COMMANDS = {
    name: Listed(panel, *row) for panel, rows in _COMMANDS.items() for name, row in rows.items()
}

USER_ERRORS = {
    "httpx": ("TransportError",),
    "models.backends.plugins": ("PluginError",),
    "models.weights": (
        "GatedCheckpointError",
        "HubError",
        "MissingCheckpointError",
        "WeightsError",
    ),
    "pipelines.backfill.output": ("OutputError",),
    "pipelines.collection": ("PlaceError",),
    "pipelines.execution.ray_start": ("RayStartError",),
    "pipelines.vision.tags": ("TagBankError",),
    "serve_app.cli.money": ("AlreadyRecordedError", "LedgerBrokenError"),
    "serve_app.cli.output": ("UsageError",),
    "serve_app.client.api": ("RequestFailedError",),
    "serve_app.context": ("ContentPolicyError",),
    "serve_app.deployment.data": ("DatabaseUnreachableError", "DataFolderError", "OtherDataError"),
    "serve_app.deployment.local": ("PortInUseError", "ServiceStartError"),
    "serve_app.deployment.model_choice": ("ModelProfileError",),
    "serve_app.deployment.proxy": ("HaproxyFolderError",),
    "serve_app.jobs.service": ("ReplayError",),
    "serve_app.observability.logs": ("TracingNotInstalledError",),
    "pipelines.speech.caption_rules": ("CaptionRulesError",),
    "serve_app.pricing": ("PriceFileError",),
    "serve_app.settings": ("InvalidSettingsError", "ProviderNotInstalledError"),
    "serve_app.webhooks.signing": ("InvalidSecretError",),
    "storage.backup": ("BackupError",),
    "storage.keys": ("AccountExistsError", "AccountNotFoundError", "LimitTooLowError"),
    "storage.ledger": ("InsufficientCreditsError",),
}
"""Module -> its errors that a user can put right; by name, so that no command loads them all."""

NAMED_ERRORS = frozenset({"storage.keys", "storage.ledger"})
"""Modules whose errors carry a name only; their docstring is the message."""


class LazyGroup(TyperGroup):
    """Lists all commands from the table, and imports the module of the one that is run."""

    def __init__(self, **attributes: Any) -> None:
        listed = {
            name: TyperCommand(name, help=each.help, rich_help_panel=each.panel)
            for name, each in COMMANDS.items()
        }
        super().__init__(**attributes | {"commands": listed})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Raises UsageError of typer for a name that is not in the table."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, load(str(name)), rest


def load(name: str) -> TyperCommand | TyperGroup:
    """Return the command of this name, or the group."""
    module, _, attribute = COMMANDS[name].place.partition(":")
    found = getattr(import_module(f"serve_app.cli.{module}"), attribute)
    if isinstance(found, typer.Typer):
        group = get_group(found)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False)
    alone.command(name)(found)
    return get_command(alone)  # type: ignore[return-value]


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Run the service, analyse footage, look after accounts.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vas {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it and end."),
    ] = False,
) -> None:
    """Options that stand before a command."""


def main() -> None:
    """Entry point: errors that a user can fix are printed as a sentence, with exit status 2.

    So are those of typer. 1 is for what was looked at and found wanting: a failed job, a finding.
    SIGINT and SIGTERM raise KeyboardInterrupt, whatever they did before: shells start a script's
    background with SIGINT ignored.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        app()
    except Exception as error:
        if (sentence := user_sentence(error)) is None:
            raise
        errors.print(sentence, style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def user_sentence(error: Exception) -> str | None:
    """Return an error as a sentence for users; None if it is not one that a user can put right."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        return f"No more can be written ({what}): make room, then repeat the command."
    for kind in type(error).__mro__:
        if kind.__name__ in USER_ERRORS.get(kind.__module__, ()):
            if kind.__module__ in NAMED_ERRORS:
                return f"{error.__doc__} ({error})"
            if kind.__module__ == "httpx":
                reached = f"The service cannot be reached ({error})"
                return f"{reached}: does it run, and is --url its address?"
            return str(error)
    return None
