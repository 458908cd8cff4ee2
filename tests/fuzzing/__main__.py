"""``python -m tests.fuzzing TARGET --seconds 600``: one target, guided by coverage where possible.

With atheris (not among the project's requirements: ``pip install atheris``) libFuzzer drives
the target and keeps inputs that reach new code; without it inputs are changed at random. The
first input that breaks an invariant is written to ``--findings``, and the run ends with 1
(atheris: with its own status). Move it to ``corpus/TARGET`` once it is mended.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fuzzing.targets import Target

LONGEST_BYTES = 4096
SLOWEST_SECONDS = 20
INSTRUMENTED = ("serve_app", "pipelines", "storage")
"""Packages whose branches count as coverage; with them a few small ones that parse for them."""
ALSO_INSTRUMENTED = ("email", "json", "urllib", "ipaddress", "csv")


def main(arguments: list[str]) -> int:
    """Run one target; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("target", help="a name of targets.TARGETS, or `list`")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inputs", type=Path, help="folder of inputs that are kept between runs")
    parser.add_argument("--findings", type=Path, default=Path("out/fuzzing"))
    options = parser.parse_args(arguments)
    atheris = _atheris()
    targets = _targets(atheris)
    if options.target == "list":
        print("\n".join(targets))
        return 0
    if options.target not in targets:
        parser.error(f"{options.target} is none of {', '.join(targets)}")
    options.findings.mkdir(parents=True, exist_ok=True)
    if atheris is not None:
        return _guided(atheris, targets[options.target], options)
    print("atheris is not installed: inputs are changed at random, coverage guides nobody.")
    return _random(targets[options.target], options)


def _atheris() -> Any:
    """The module, or None."""
    found = importlib.util.find_spec("atheris")
    return None if found is None else importlib.import_module("atheris")


def _targets(atheris: Any) -> dict[str, Target]:
    """The targets, imported so that the fuzzer sees which branches run."""
    if atheris is None:
        from tests.fuzzing.targets import TARGETS
    else:
        with atheris.instrument_imports(include=[*INSTRUMENTED, *ALSO_INSTRUMENTED]):
            from tests.fuzzing.targets import TARGETS
    return dict(TARGETS)


def _guided(atheris: Any, target: Target, options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        inputs = options.inputs or Path(folder) / "inputs"
        seeds = Path(folder) / "seeds"
        for place in (inputs, seeds):
            place.mkdir(parents=True, exist_ok=True)
        for content in _known(target, options.target):
            (seeds / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content)
        # libFuzzer ends the process itself.
        flags = {
            "max_total_time": options.seconds,
            "max_len": LONGEST_BYTES,
            "timeout": SLOWEST_SECONDS,
            "seed": options.seed,
            "artifact_prefix": f"{options.findings / options.target}-",
            "print_final_stats": 1,
        }
        words = [f"-{name}={value}" for name, value in flags.items()]
        atheris.Setup(["fuzzing", *words, str(inputs), str(seeds)], target.check)
        atheris.Fuzz()
    return 0


def _known(target: Target, name: str) -> list[bytes]:
    from tests.fuzzing.targets import regressions

    return [*target.seeds, *(path.read_bytes() for path in regressions(name))]


def _random(target: Target, options: argparse.Namespace) -> int:
    from tests.fuzzing.mutating import Mutator

    mutator = Mutator(options.seed, _known(target, options.target), LONGEST_BYTES)
    deadline, runs = time.monotonic() + options.seconds, 0
    while time.monotonic() < deadline:
        data = mutator.next()
        runs += 1
        try:
            target.check(data)
        except Exception:
            name = f"{options.target}-crash-{hashlib.sha256(data).hexdigest()[:16]}"
            (options.findings / name).write_bytes(data)
            traceback.print_exc()
            print(json.dumps({"target": options.target, "executions": runs, "finding": name}))
            return 1
    print(json.dumps({"target": options.target, "executions": runs, "finding": None}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
