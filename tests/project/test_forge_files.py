"""What a forge, an editor and a type checker read of the project, against what the project does."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import yaml

from tests.places import PROJECT
from tests.tables import every

MAKEFILE = (PROJECT / "Makefile").read_text()
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())


def workflow(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((PROJECT / ".github/workflows" / name).read_text())
    return loaded


def test_a_change_is_tried_by_the_projects_own_script_on_the_oldest_and_newest_python() -> None:
    suite = workflow("ci.yml")["jobs"]["suite"]
    assert suite["steps"][-1]["run"] == ".ci/run"
    versions = re.findall(r"Python :: (3\.\d+)", " ".join(PYPROJECT["project"]["classifiers"]))
    assert suite["strategy"]["matrix"]["python"] == [versions[0], versions[-1]]


@every("name", ["ci.yml", "nightly.yml"])
def test_a_workflow_may_change_nothing_and_ends(name: str) -> None:
    flow = workflow(name)
    assert flow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] for job in flow["jobs"].values())


def test_a_workflow_runs_no_action_that_somebody_can_exchange() -> None:
    """A tag can be moved; the digest of a commit cannot."""
    used = [
        step["uses"]
        for path in sorted((PROJECT / ".github/workflows").iterdir())
        for job in workflow(path.name)["jobs"].values()
        for step in job["steps"]
        if "uses" in step
    ]
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each)] == []


def test_every_night_runs_all_tests() -> None:
    [job] = workflow("nightly.yml")["jobs"].values()
    assert job["steps"][-1]["run"] == "make test-all"
    assert "\ntest-all:" in MAKEFILE


def test_hooks_before_a_commit_are_what_lint_runs() -> None:
    [ours] = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())["repos"]
    lint = MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0]
    program = r"/(\S+(?: (?:check|format))?)"
    hooks = " ".join(hook["entry"] for hook in ours["hooks"])
    assert re.findall(rf"\.venv/bin{program}", hooks) == re.findall(rf"\(BIN\){program}", lint)


def test_every_package_says_that_it_is_typed() -> None:
    for package in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert (PROJECT / package / "py.typed").is_file()
