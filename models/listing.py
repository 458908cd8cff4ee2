"""All weights as rows: what ``vas models list`` shows, and the page ``docs/weights.md``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from models.checkpoints import Checkpoint
from models.registry import OPTIONAL_ROLES, REGISTRY
from models.weights import TRANSNETV2, PackagedWeights

BOUNDARIES = "boundaries"
"""What the optional detector of shot boundaries is listed as; it is no task of the registry."""


@dataclass(frozen=True, slots=True)
class ListedWeights:
    """Weights of one role in a task of a profile."""

    task: str
    role: str
    weights: Checkpoint | PackagedWeights
    optional: bool = False

    @property
    def origin(self) -> str:
        if isinstance(self.weights, PackagedWeights):
            return self.weights.origin
        return self.weights.repository

    @property
    def revision(self) -> str:
        """A commit, or the digest over all files."""
        if isinstance(self.weights, PackagedWeights):
            return self.weights.digest
        return self.weights.revision

    @property
    def carrier(self) -> str:
        """Installed distributions, or the hub."""
        if isinstance(self.weights, PackagedWeights):
            return ", ".join(self.weights.carriers)
        return "Hugging Face hub"


def listed_weights(profile: str) -> Iterator[ListedWeights]:
    """All weights of a profile, in the order of the tasks, packaged ones of a task first."""
    for task, entry in REGISTRY[profile].items():
        for role, weights in (entry.weights | entry.checkpoints).items():
            yield ListedWeights(task.name, role, weights, task.optional or role in OPTIONAL_ROLES)
    if profile != "packaged":
        yield ListedWeights(BOUNDARIES, "model", TRANSNETV2, optional=True)


_PAGE = """# Weights

Written from `models/registry.py` and `models/weights.py` by `models/listing.py`; a test holds this
page to them. Packages of the registry are carriers only: their files are read, none of their code
is imported, and a file is used only if its SHA-256 is the one below. Checkpoints are fetched at
their commit by `vas models pull`.

| task | profiles | origin | version | carrier | licence |
|---|---|---|---|---|---|
{rows}

`boundaries` is optional: `VAS_BOUNDARY_WEIGHTS=packaged`. Roles in brackets.

## Digests of packaged files

| weights | file | SHA-256 |
|---|---|---|
{files}
"""


def weights_page() -> str:
    """``docs/weights.md``."""
    profiles: dict[ListedWeights, list[str]] = {}
    for profile in REGISTRY:
        for each in listed_weights(profile):
            profiles.setdefault(each, []).append(profile)
    rows = [
        f"| {each.task}{'' if each.role == 'model' else f' ({each.role})'} "
        f"| {', '.join(names)} | {each.origin} | `{each.revision}` "
        f"| {each.carrier} | {each.weights.licence} |"
        for each, names in profiles.items()
    ]
    carried = dict.fromkeys(
        each.weights for each in profiles if isinstance(each.weights, PackagedWeights)
    )
    files = [
        f"| {weights.name} | {file.name} | `{file.sha256}` |"
        for weights in carried
        for file in weights.files
    ]
    return _PAGE.format(rows="\n".join(rows), files="\n".join(files))


if __name__ == "__main__":
    print(weights_page(), end="")  # noqa: T201
