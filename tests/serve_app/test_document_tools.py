"""The interface document as tools from npm read it: two linters, and TypeScript's compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.serve_app.interface_contract import DOCUMENT

REDOCLY = "@redocly/cli@2.77.0"
SPECTRAL = "@stoplight/spectral-cli@6.16.3"
TYPES = "openapi-typescript@7.13.0"
TYPESCRIPT = "typescript@5.9.3"

UNUSED = {
    "schemas/Error": "any of the errors, for clients that read all of them by one type",
    "schemas/InsufficientScopeError": "reserved: its code is in the catalogue, not yet returned",
    "examples/INSUFFICIENT_SCOPE": "reserved, as its schema",
    "schemas/OidcSignInFailedError": "an answer of the dashboard's pages",
    "examples/OIDC_SIGN_IN_FAILED": "as its schema",
    "schemas/LastOwnerError": "an answer of the dashboard's pages",
    "examples/LAST_OWNER": "as its schema",
    "schemas/InvitationNotValidError": "an answer of the dashboard's pages",
    "examples/INVITATION_NOT_VALID": "as its schema",
}
"""Components that no operation refers to, and why they are there."""

PROGRAM = """
import type { components, paths } from "./api";
type Answers = paths["/jobs"]["post"]["responses"];
const least: components["schemas"]["CreateJobBody"] = { fileName: "a.mp4" };
const code = (e: Answers["402"]["content"]["application/json"]): "INSUFFICIENT_CREDITS" => e.code;
const url = (a: Answers["201"]["content"]["application/json"]): string => a.data.uploadUrl;
console.log(least, code, url);
"""
REFUSED = """
import type { components } from "./api";
const none: components["schemas"]["CreateJobBody"] = {};
console.log(none);
"""

pytestmark = pytest.mark.long


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(DOCUMENT))
    return path


def install(folder: Path, *packages: str) -> None:
    """Put ``packages`` into ``folder``; skips where that cannot be."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"{', '.join(packages)}: npm is not installed")
    options = ["--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
    done = subprocess.run(
        [npm, "install", *options, *packages],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        pytest.skip(f"{', '.join(packages)}: npm cannot install: {done.stderr[-200:]}")


def run(folder: Path, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(folder / "node_modules" / ".bin" / tool), *arguments],
        check=False,
        cwd=folder,
        env=os.environ | {"REDOCLY_TELEMETRY": "off", "NO_UPDATE_NOTIFIER": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_redocly_remarks_only_on_what_is_unused_on_purpose(tmp_path: Path, document: Path) -> None:
    install(tmp_path, REDOCLY)
    done = run(tmp_path, "redocly", "lint", document.name, "--format=json")
    problems = json.loads(done.stdout)["problems"]
    found = [
        (problem["ruleId"], location["pointer"].removeprefix("#/components/"))
        for problem in problems
        for location in problem["location"]
    ]
    assert sorted(found) == sorted(("no-unused-components", name) for name in UNUSED), done.stderr


def test_spectral_remarks_only_on_what_is_unused_on_purpose(tmp_path: Path, document: Path) -> None:
    install(tmp_path, SPECTRAL)
    (tmp_path / "ruleset.yaml").write_text('extends: "spectral:oas"\n')
    done = run(
        tmp_path, "spectral", "lint", document.name, "--ruleset=ruleset.yaml", "--format=json"
    )
    problems: list[dict[str, Any]] = json.loads(done.stdout)
    found = [(problem["code"], "/".join(problem["path"][1:])) for problem in problems]
    assert sorted(found) == sorted(("oas3-unused-component", name) for name in UNUSED), done.stderr


def test_strict_typescript_takes_the_least_body_and_knows_errors(
    tmp_path: Path, document: Path
) -> None:
    install(tmp_path, TYPES, TYPESCRIPT)
    made = run(tmp_path, "openapi-typescript", document.name, "--output=api.d.ts")
    assert made.returncode == 0, made.stderr
    assert compiled(tmp_path, PROGRAM) == []
    [error] = compiled(tmp_path, REFUSED)
    assert "'fileName' is missing" in error


def compiled(folder: Path, program: str) -> list[str]:
    """What the compiler has against ``program``."""
    (folder / "program.ts").write_text(program)
    done = run(folder, "tsc", "--strict", "--noEmit", "program.ts")
    return [line for line in done.stdout.splitlines() if "error TS" in line]
