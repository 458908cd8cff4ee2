"""What the client knows of the interface is the interface document, and its callers keep to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve_app.client.api import ApiClient, operations
from tests.operations_table import table
from tests.places import PROJECT

PLACE = PROJECT / "serve_app/client/operations.json"
CALLS = {"call", "request", "_call", "_gathered", "remote"}


def test_the_table_of_operations_is_what_the_document_makes() -> None:
    assert PLACE.read_text() == table(), f"python -m tests.operations_table > {PLACE}"


def calls(path: Path) -> Iterator[tuple[str, set[str]]]:
    """Operations that a module calls by name, with the names of the arguments."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            names = [each.value for each in node.args if isinstance(each, ast.Constant)]
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if function in CALLS and names and names[0] in operations():
                yield names[0], {each.arg for each in node.keywords if each.arg is not None}


def test_every_call_has_only_arguments_of_its_operation() -> None:
    made = [each for path in PROJECT.glob("serve_app/cl*/*.py") for each in calls(path)]
    assert len(made) > 20
    found = [
        (operation, each)
        for operation, given in made
        for each in given - {"idempotency_key", "question", "names", "fixed", "either"}
        if each not in operations()[operation]["body"]
        and each not in {known["name"] for known in operations()[operation]["parameters"]}
    ]
    assert found == []


def test_an_argument_that_an_operation_has_not_is_refused() -> None:
    with ApiClient("http://127.0.0.1:9", "key") as client:
        with pytest.raises(TypeError, match="getScenes has no argument track"):
            client.call("getScenes", jobId="a", track=0)
        with pytest.raises(KeyError, match="jobId"):
            client.call("getScenes")
