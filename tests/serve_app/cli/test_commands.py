"""The command line's tables name what there is, and its help loads next to nothing."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import IO

import pytest
from typer.core import TyperGroup
from typer.testing import CliRunner

from models.registry import REGISTRY
from serve_app import __version__
from serve_app.cli import output
from serve_app.cli.main import COMMANDS, USER_ERRORS, app, load, user_sentence
from serve_app.cli.output import show, show_rows
from serve_app.cli.service import PROFILES
from storage.keys import AccountNotFoundError
from tests.background import in_background
from tests.places import PROJECT
from tests.tables import every

HEAVY = ("PIL", "av", "fastapi", "numpy", "pydantic_settings", "ray", "sqlalchemy", "torch")
HELP_OF_EVERY_COMMAND = """
import sys
from typer.testing import CliRunner
from serve_app.cli import output
from serve_app.cli.main import COMMANDS, app, load

def show(*words):
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, (words, result.output)
    assert "Usage: " in result.output, words
    assert "`" not in result.output, words

show()
for name in COMMANDS:
    show(name)
    for each in getattr(load(name), "commands", ()):
        show(name, each)
print(*sys.modules)
"""


def test_the_help_of_every_command_is_shown_without_the_libraries_of_its_work() -> None:
    command = [sys.executable, "-c", HELP_OF_EVERY_COMMAND]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert set(ended.stdout.split()) & set(HEAVY) == set()


@every("name", COMMANDS)
def test_the_list_of_commands_has_the_first_paragraph_of_each_ones_help(name: str) -> None:
    command = load(name)
    assert command.name == name
    assert COMMANDS[name].help == (command.help or "").partition("\n\n")[0].replace("\n", " ")


def test_commands_are_listed_in_the_order_in_which_a_newcomer_meets_them() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    order = ["serve", "analyze", "watch", "search", "export", "jobs", "mcp", "doctor", "accounts"]
    places = [shown.index(f"│ {name} ") for name in order if name in COMMANDS]
    assert places == sorted(places)


def test_an_unknown_command_is_answered_with_the_nearest_ones() -> None:
    result = CliRunner().invoke(app, ["watsh"])
    assert result.exit_code == 2
    assert "Did you mean 'watch'?" in result.output


def test_the_version_is_printed() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"vas {__version__}\n"


@every(
    ("module", "name"), [(module, name) for module, names in USER_ERRORS.items() for name in names]
)
def test_every_error_of_the_table_exists_under_the_name_it_has_there(
    module: str, name: str
) -> None:
    error = getattr(import_module(module), name)
    assert issubclass(error, Exception)
    assert (error.__module__, error.__name__) == (module, name)


def test_only_errors_of_the_table_are_sentences() -> None:
    sentence = "No account has that name or id. (studio)"
    assert user_sentence(AccountNotFoundError("studio")) == sentence
    assert user_sentence(FileNotFoundError(2, "No such file")) is None


def test_the_help_names_the_profiles_of_the_registry() -> None:
    assert tuple(REGISTRY) == PROFILES


def test_tables_hold_words_and_whole_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    record = {
        "name": "studio [red]\x1b[2J",
        "suspendedAt": None,
        "optional": True,
        "objects": {"count": 2, "bytes": 30},
        "jobs": ["a", "b"],
        "link": f"https://vas.example.com/{'x' * 400}",
    }
    for name in ("as a record", "as a row"):
        if name == "as a record":
            show(record, as_json=False)
        else:
            show_rows([record], "accounts")
        printed = capsys.readouterr().out
        for words in ("studio [red] [2J", "yes", "count 2, bytes 30", "a, b", record["link"]):
            assert str(words) in printed
        assert not {"None", "{", "True", "\x1b"} & set(printed.split())


ROWS = [{"id": f"{n}" * 36, "fileName": "an interview.mp4", "bytes": n * 1000} for n in (1, 2)]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_table_cuts_no_value_at_any_width(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output.console, "width", columns)
    show_rows(ROWS, "jobs")
    printed = capsys.readouterr().out
    assert all(str(value) in printed for row in ROWS for value in row.values())
    assert printed.count("fileName") == (1 if columns > 70 else 2)
    assert max(map(len, printed.splitlines())) <= max(columns, 10 + 36)


def test_completion_is_installed_for_a_shell(tmp_path: Path) -> None:
    vas = str(Path(sys.executable).with_name("vas"))
    environment = os.environ | {
        "HOME": str(tmp_path),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    installing = [vas, "--install-completion", "bash"]
    subprocess.run(installing, env=environment, capture_output=True, timeout=60, check=True)
    assert (tmp_path / ".bashrc").read_text()
    line = {"_VAS_COMPLETE": "complete_bash", "COMP_WORDS": "vas jobs er", "COMP_CWORD": "2"}
    offered = subprocess.run(
        [vas], env=environment | line, capture_output=True, text=True, timeout=60, check=False
    )
    assert offered.stdout.split() == ["erase"]


def test_groups_are_groups_although_they_have_one_command() -> None:
    assert isinstance(load("policy"), TyperGroup)


HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
LONG_COMMANDS = {
    "webhooks listen": ("webhooks listen --plain --port 0", "", "Listening on http://"),
    "mcp over HTTP": ("mcp --http 0", "", "Agents connect to http://"),
    "mcp over stdio": ("mcp", f"{json.dumps(HELLO)}\n", '"jsonrpc"'),
}


class _EmptyService(BaseHTTPRequestHandler):
    """Answers whatever is read with an empty list."""

    def do_GET(self) -> None:
        body = b'{"data": [], "nextCursor": null, "hasMore": false}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def a_service() -> Iterator[str]:
    """The address of a service without jobs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _EmptyService)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/api"
    server.shutdown()
    server.server_close()
    thread.join(10)


MCP_MISTAKES = {
    "no service, over stdio": ("mcp --url http://127.0.0.1:9", "cannot be reached"),
    "no service, over HTTP": ("mcp --http 0 --url http://127.0.0.1:9", "cannot be reached"),
    "a used port": ("mcp --http {used} --url {service}", "in use: name another with --http"),
}


@pytest.mark.parametrize("name", MCP_MISTAKES)
def test_what_keeps_the_tools_from_agents_is_named_in_a_sentence(name: str, a_service: str) -> None:
    words, sentence = MCP_MISTAKES[name]
    used = a_service.rpartition(":")[2].partition("/")[0]
    command = words.format(used=used, service=a_service).split()
    ended = CliRunner().invoke(app, command, env={"VAS_KEY": f"vas_live_{'x' * 43}"})
    assert isinstance(ended.exception, Exception)
    assert sentence in str(user_sentence(ended.exception))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("name", LONG_COMMANDS)
def test_a_long_command_ends_on_a_signal_also_where_it_was_started_to_ignore_it(
    name: str, number: signal.Signals, tmp_path: Path, a_service: str
) -> None:
    words, sent, started = LONG_COMMANDS[name]
    environment = os.environ | {
        "PYTHONPATH": str(PROJECT),
        "PYTHONUNBUFFERED": "1",
        "VAS_URL": a_service,
        "VAS_KEY": f"vas_live_{'x' * 43}",
    }
    process = subprocess.Popen(
        in_background([sys.executable, "-m", "serve_app.cli", *words.split()]),
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin, process.stdout:
            process.stdin.write(sent)
            process.stdin.flush()
            assert started in process.stdout.readline()
            process.send_signal(number)
            assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait(120)


def unread_bytes(pipe: IO[str]) -> int:
    """What was written to a pipe and its reader has not fetched yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_command_under_way_is_broken_off_by_a_signal() -> None:
    """Its own cleaning runs; 130 is the shell's word for it."""
    command = in_background([sys.executable, "-m", "serve_app.cli", "payments", "set-secret"])
    for number in (signal.SIGINT, signal.SIGTERM):
        with subprocess.Popen(
            command, cwd=PROJECT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write("s")
            process.stdin.flush()
            while unread_bytes(process.stdin) and process.poll() is None:
                time.sleep(0.05)
            process.send_signal(number)
            assert process.wait(120) == 130
            assert "Traceback" not in process.stderr.read()
