"""The agent: at random moments it breaks something, of every kind as often as of the others.

Which, when, where and for how long follows from a seed; what was running just then does not.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from models.tasks import TASKS
from tests.acceptance.chaos.object_store import FAILS, FULL
from tests.acceptance.chaos.stage import Stage

PAUSE_SECONDS = (3.0, 15.0)
"""Between one fault and the next: some meet a service that is still busy with the last."""
SHORT_PAUSE_SECONDS = (1.0, 5.0)
"""The same in a run so short that not every kind of fault would come otherwise."""
OUTAGE_SECONDS = (3.0, 20.0)
DOWN_SECONDS = (0.5, 6.0)
NODE_AWAY_SECONDS = (2.0, 20.0)
FIND_SECONDS = 15.0
"""How long the agent waits for a victim that is there only now and then."""

Strike = Callable[[Stage, random.Random], str | None]
"""Breaks something and, where it must, mends it; says what it was, None if nothing was there."""


def killing(*titles: str) -> Strike:
    """SIGKILL for one of the processes with such a title."""

    def strike(stage: Stage, chance: random.Random) -> str | None:
        deadline = time.monotonic() + FIND_SECONDS
        while time.monotonic() < deadline:
            victims = stage.titled(*titles)
            if victims:
                victim = chance.choice(sorted(victims, key=lambda process: process.pid))
                with contextlib.suppress(psutil.NoSuchProcess):
                    named = f"{victim.pid} {' '.join(victim.cmdline())[:80]}"
                    victim.kill()
                    return named
            time.sleep(0.1)
        return None

    return strike


def lose_node(stage: Stage, chance: random.Random) -> str | None:
    """The second node is gone at once with all that runs on it; later a new one comes."""
    if stage.worker is None:
        return None
    stage.worker.node.kill()
    away = chance.uniform(*NODE_AWAY_SECONDS)
    time.sleep(away)
    stage.worker.start()
    return f"for {away:.1f} s"


def replace_all_replicas(stage: Stage, chance: random.Random) -> str:
    """A rolling restart: ``serve deploy`` with another setting, so that every replica is new."""
    poll = round(chance.uniform(1.5, 2.5), 3)
    stage.head.serve_deploy(stage.service.port, stage.deployed | {"poll_seconds": poll})
    return f"poll_seconds: {poll}"


def restart_database(stage: Stage, _chance: random.Random) -> str:
    stage.database.restart()
    return "fast"


def crash_database(stage: Stage, chance: random.Random) -> str:
    down = chance.uniform(*DOWN_SECONDS)
    stage.database.crash(down)
    return f"for {down:.1f} s"


def refusing_store(mode: str) -> Strike:
    def strike(stage: Stage, chance: random.Random) -> str:
        seconds = chance.uniform(*OUTAGE_SECONDS)
        with stage.store.mode(mode):
            time.sleep(seconds)
        return f"for {seconds:.1f} s"

    return strike


def freeze_store(stage: Stage, chance: random.Random) -> str:
    seconds = chance.uniform(*OUTAGE_SECONDS)
    with stage.store.frozen():
        time.sleep(seconds)
    return f"for {seconds:.1f} s"


_MODELS = tuple(f"ServeReplica:vas:{task.contract_name}" for task in TASKS)

FAULTS: dict[str, Strike] = {
    "api replica": killing("ServeReplica:vas:Api"),
    "one process": killing("ServeReplica:vas:Api"),
    "runner": killing("ServeReplica:vas:Runner"),
    "sender": killing("ServeReplica:vas:WebhookSender"),
    "model replica": killing(*_MODELS),
    "model actor": killing("ray::ModelReplica"),
    "data worker": killing("ray::Map("),
    "serve controller": killing("ServeController"),
    "second node": lose_node,
    "rolling restart": replace_all_replicas,
    "haproxy": killing("haproxy -", "haproxy.cfg"),
    "database restart": restart_database,
    "database crash": crash_database,
    "disk full": refusing_store(FULL),
    "store fails": refusing_store(FAILS),
    "store silent": freeze_store,
}

OF_ONE_PROCESS = ("one process", "model actor")
"""What there is only where API, runner and sender are one."""
OF_SEVERAL = ("api replica", "runner", "sender", "model replica", "second node")
"""What there is only where they are not."""

TAKES_LEASES = frozenset(
    {
        "runner",
        "one process",
        "rolling restart",
        "second node",
        "serve controller",
        "database restart",
        "database crash",
    }
)
"""Faults after which a job may have lost its runner."""


@dataclass(frozen=True, slots=True)
class Struck:
    """One fault, in seconds of the journal."""

    kind: str
    from_seconds: float
    to_seconds: float
    what: str


@dataclass(slots=True)
class Agent:
    """Strikes until it is told to stop; every kind once before any comes again."""

    stage: Stage
    seed: int
    kinds: tuple[str, ...]
    clock: Callable[[], float]
    pause_seconds: tuple[float, float] = PAUSE_SECONDS
    struck: list[Struck] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Faults that the agent could not bring about or mend: they make the run worthless."""
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        chance = random.Random(f"{self.seed} faults")
        while not self.stopping.is_set():
            for kind in chance.sample(self.kinds, len(self.kinds)):
                if self.stopping.wait(chance.uniform(*self.pause_seconds)):
                    return
                self._strike(kind, random.Random(chance.getrandbits(64)))

    def _strike(self, kind: str, chance: random.Random) -> None:
        began = self.clock()
        try:
            what = FAULTS[kind](self.stage, chance)
        except Exception as error:
            self.failures.append(f"{kind}: {type(error).__name__}: {error}")
            return
        if what is not None:
            self.struck.append(Struck(kind, began, self.clock(), what))
            print(f"{began:6.0f} s  {kind}: {what}", flush=True)

    def counts(self) -> dict[str, int]:
        """Kind to how often it struck."""
        counted = Counter(fault.kind for fault in self.struck)
        return {kind: counted[kind] for kind in self.kinds}
