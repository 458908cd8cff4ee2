"""``vas node-environment``: what a node of a cluster needs before its Ray starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from serve_app.cli.output import JsonOption, settings_with, show
from serve_app.deployment.node_environment import HaproxyFolderError, export_lines, node_environment

CLUSTER_ERRORS = (HaproxyFolderError,)
"""What a user can mend; each says in a sentence what it is."""

FolderOption = Annotated[
    Path, typer.Option("--folder", help="Where HAProxy's script, configuration and sockets lie.")
]


def add_cluster_commands(app: typer.Typer) -> None:
    """Register the command with ``app``."""
    app.command("node-environment")(print_node_environment)


def print_node_environment(
    folder: FolderOption = Path("~/.vas/haproxy"), as_json: JsonOption = False
) -> None:
    """Print what Ray must find in a node's environment, as lines for a shell to eval.

    eval "$(vas node-environment)" && ray start …
    """
    environment = node_environment(settings_with(), folder.expanduser().resolve())
    if as_json:
        show(dict(environment), as_json=True)
    else:
        sys.stdout.write(f"{export_lines(environment)}\n")
