"""Carries a Dockerfile out where no container engine is: in Debian roots that debootstrap makes.

Needs root. Each step and each container has mounts and processes of its own, which end with it.
The network is the machine's. It knows as much of the language as ``deploy/Dockerfile`` uses, and
refuses the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.places import PROJECT

DOCKERFILE = PROJECT / "deploy" / "Dockerfile"
CERTIFICATES = "/run/certificates.crt"
"""Where a step finds the authorities that this machine trusts."""
_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT")
_OF_INSTALLERS = re.compile(r"(?i)(https?|no)_proxy|(PIP|UV)_(?!FIND_LINKS|CERT)\w+")
_KEPT = re.compile(r"Acquire::(Check-|https?::|Retries)")
_DESCRIBING = {"ENTRYPOINT", "CMD", "HEALTHCHECK", "STOPSIGNAL", "VOLUME", "EXPOSE"}
_START_SECONDS = 30
_MOUNTS = """
set -eu
mount --make-rprivate /
mount --rbind /dev "$ROOT/dev"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$ROOT/run"
mount -t proc proc "$ROOT/proc"
cp -L /etc/resolv.conf "$ROOT/run/resolv.conf"
touch "$ROOT/etc/resolv.conf"
mount --bind "$ROOT/run/resolv.conf" "$ROOT/etc/resolv.conf"
[ -z "$AUTHORITIES" ] || cp -L "$AUTHORITIES" "$ROOT$CERTIFICATES"
exec chroot --userspec="$AS" "$ROOT" /usr/bin/env -i --chdir="$FOLDER" "$@"
"""


@dataclass(frozen=True, slots=True)
class Instruction:
    """A line of a Dockerfile, continued lines joined."""

    name: str
    rest: str


def instructions(dockerfile: Path = DOCKERFILE) -> list[Instruction]:
    """All instructions in order."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    parts = (line.split(None, 1) for line in joined.splitlines() if line.strip())
    return [Instruction(name, rest.strip()) for name, rest in parts]


@dataclass(frozen=True, slots=True)
class Image:
    """A stage: its files, and what is set for processes in it."""

    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = "root"
    folder: str = "/"
    described: Mapping[str, str] = field(default_factory=dict)
    """ENTRYPOINT, CMD, HEALTHCHECK and the like, as they are written."""

    def command(self, *command: str, network: bool = False, **environment: str) -> list[str]:
        """What runs ``command`` in the image, as process 1 of its own. ``network``: with what
        installers of packages need to reach them from this machine."""
        passed = dict(self.environment)
        authorities = os.environ.get("SSL_CERT_FILE", "") if network else ""
        if network:
            passed |= {k: v for k, v in os.environ.items() if _OF_INSTALLERS.fullmatch(k)}
        if authorities:
            passed |= dict.fromkeys(_CERTIFICATE_VARIABLES, CERTIFICATES)
        variables = [f"{name}={value}" for name, value in (passed | environment).items()]
        outer = {"ROOT": self.root, "AS": self.user, "FOLDER": self.folder}
        outer |= {"AUTHORITIES": authorities, "CERTIFICATES": CERTIFICATES}
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        settings = ["env", *(f"{name}={value}" for name, value in outer.items())]
        return [*settings, *namespaces, "sh", "-c", _MOUNTS, "sh", *variables, *command]

    def run(self, *command: str, network: bool = False, **environment: str) -> str:
        """Run a command to its end and return what it printed."""
        whole = self.command(*command, network=network, **environment)
        ended = subprocess.run(whole, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
        return ended.stdout

    def exec_form(self, name: str) -> list[str]:
        """ENTRYPOINT or CMD as the list that it is, or the command of HEALTHCHECK."""
        found: list[str] = json.loads(self.described[name][self.described[name].index("[") :])
        return found

    @contextlib.contextmanager
    def container(
        self, *, entrypoint: Sequence[str] | None = None, **environment: str
    ) -> Iterator[subprocess.Popen[str]]:
        """Run ``entrypoint``, else ENTRYPOINT with CMD, beside the block; kills what is left."""
        words = entrypoint or [*self.exec_form("ENTRYPOINT"), *self.exec_form("CMD")]
        with subprocess.Popen(
            self.command(*words, network=False, **environment), stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                self._wait_until_inside(process)
                yield process
            finally:
                # Every other process ends with process 1, then unshare. Ending unshare would leave
                # them: process 1 has become another user.
                if process.poll() is None:
                    os.kill(process_one(process) or process.pid, signal.SIGKILL)
                    process.wait(_START_SECONDS)

    def _wait_until_inside(self, container: subprocess.Popen[str]) -> None:
        """Process 1 prepares its mounts before it goes into the root."""
        deadline = time.monotonic() + _START_SECONDS
        while (first := process_one(container)) is None or _root_of(first) != self.root.resolve():
            assert container.poll() is None, "the container has ended"
            assert time.monotonic() < deadline, "the container does not start"
            time.sleep(0.05)

    def inside(
        self, container: subprocess.Popen[str], *command: str, **environment: str
    ) -> tuple[int, str]:
        """Exit status and output of a command in a container, as HEALTHCHECK or ``docker exec``."""
        user = self.run("id", "-u").strip()
        entered = ["nsenter", "--target", str(process_one(container)), "--mount", "--pid"]
        entered += ["--root", "--wd", "--setuid", user, "--setgid", user, "/usr/bin/env", "-i"]
        variables = {**self.environment, **environment}
        entered += [f"{name}={value}" for name, value in variables.items()]
        ended = subprocess.run([*entered, *command], capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout + ended.stderr


def process_one(container: subprocess.Popen[str]) -> int | None:
    """Id, outside, of a container's process 1; None where it has not begun or has ended."""
    pid = container.pid
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None
    return None


def _root_of(process: int) -> Path | None:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{process}/root").readlink()
    return None


def base_image(suite: str, root: Path) -> Image:
    """The smallest Debian of a suite, from the mirror that this machine's apt uses."""
    sites = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    mirror = next(site for site in sites if site.rstrip("/").endswith("/debian"))
    subprocess.run(
        ["debootstrap", "--variant=minbase", suite, str(root), mirror],
        stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    kept = [line for line in dump.splitlines() if _KEPT.match(line)]
    (root / "etc/apt/apt.conf.d/99machine").write_text("\n".join(kept) + "\n")
    shutil.rmtree(root / "var/cache/apt", ignore_errors=True)
    return Image(root, {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})


def build(folder: Path, dockerfile: Path = DOCKERFILE, **arguments: str) -> Image:
    """Carry ``dockerfile`` out below ``folder`` with the build's ``arguments``; the last stage."""
    stages: dict[str, Image] = {}
    current: Image | None = None
    known: dict[str, str] = {}
    for number, line in enumerate(instructions(dockerfile)):
        rest = _filled(line.rest, known)
        if line.name == "ARG":
            name, _, default = rest.partition("=")
            known[name] = arguments.get(name, known.get(name, default))
        elif line.name == "FROM":
            source, *named = re.split(r"\s+AS\s+", rest)
            current = _from(source, stages, folder / str(number))
            stages[named[0] if named else ""] = current
        else:
            assert current is not None, line
            current = _carried_out(replace(line, rest=rest), current, stages, known)
            stages = {key: current if value.root == current.root else value
                      for key, value in stages.items()}  # fmt: skip
    assert current is not None
    return current


def _filled(text: str, known: Mapping[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda match: known[match[1]], text)


def _from(source: str, stages: Mapping[str, Image], root: Path) -> Image:
    if source in stages:
        earlier = stages[source]
        subprocess.run(["cp", "-a", str(earlier.root), str(root)], check=True)
        return replace(earlier, root=root)
    matched = re.fullmatch(r"debian:(\w+)-slim", source)
    assert matched, f"no image {source}"
    return base_image(matched[1], root)


def _carried_out(
    line: Instruction, image: Image, stages: Mapping[str, Image], known: Mapping[str, str]
) -> Image:
    if line.name == "RUN":
        image.run("sh", "-c", line.rest, network=True, **known)
    elif line.name == "COPY":
        _copy(line.rest, image, stages)
    elif line.name == "ENV":
        name, _, value = line.rest.partition("=")
        return replace(image, environment=dict(image.environment) | {name: value})
    elif line.name == "USER":
        return replace(image, user=f"{line.rest}:{line.rest}")
    elif line.name == "WORKDIR":
        return replace(image, folder=line.rest)
    elif line.name in _DESCRIBING:
        return replace(image, described=dict(image.described) | {line.name: line.rest})
    else:
        raise NotImplementedError(line.name)
    return image


def _copy(rest: str, image: Image, stages: Mapping[str, Image]) -> None:
    words = shlex.split(rest)
    source = PROJECT
    if words[0].startswith("--from="):
        source = stages[words.pop(0).removeprefix("--from=")].root
    *names, target = words
    place = image.root / target.lstrip("/")
    for name in names:
        found = source / name.lstrip("/")
        goal = place / found.name if target.endswith("/") else place
        goal.parent.mkdir(parents=True, exist_ok=True)
        if found.is_dir():
            ignored = shutil.ignore_patterns("__pycache__") if source == PROJECT else None
            shutil.copytree(found, goal, symlinks=True, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy2(found, goal)
