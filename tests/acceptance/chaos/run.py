"""Chaos: a service under load while everything around and inside it is broken.

    python -m tests.acceptance.chaos [--seconds 3600] [--seed N] [--clients 6] [--kinds a,b]
        [--one-process]

``--one-process`` is the service of a machine of its own: API, runner and sender are one replica.

The last line is JSON: jobs, faults by kind, violations.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.acceptance.chaos.archivist import Archivist
from tests.acceptance.chaos.caller import PATIENCE_SECONDS, Caller
from tests.acceptance.chaos.checker import (
    Checker,
    Results,
    read_results,
    waits_for_jobs,
    waits_for_lists,
)
from tests.acceptance.chaos.clips import BETWEEN, TIMELINES, Clip, make_clips
from tests.acceptance.chaos.faults import (
    FAULTS,
    OF_ONE_PROCESS,
    OF_SEVERAL,
    PAUSE_SECONDS,
    SHORT_PAUSE_SECONDS,
    Agent,
)
from tests.acceptance.chaos.hostile import Hostile
from tests.acceptance.chaos.journal import Journal
from tests.acceptance.chaos.load import WAYS, Client
from tests.acceptance.chaos.stage import Stage, chaos_stage
from tests.acceptance.chaos.team import Team

_NAMES = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}|[0-9]+")
"""What differs between sentences that say the same."""
TEAMS = 2
"""Accounts whose people and keys change under way; the archive is of another one."""
LONG_SECONDS = 600
SHORT_SECONDS = 300
EVERY_KIND_SECONDS = 120
"""So much longer at most a short run on a slow machine may take until each kind has struck."""
ABANDONED_SECONDS = 61.0
"""So old must a temporary file be that nobody uses before somebody else removes it."""
END_SECONDS = 2 * PATIENCE_SECONDS
"""From the last fault until every client has seen its jobs end."""


@dataclass(frozen=True)
class Plan:
    """What a run consists of."""

    seconds: float = 3600
    seed: int = 8
    clients: int = 6
    one_process: bool = False
    named: tuple[str, ...] = ()
    """Kinds of faults; none: all that there are on the stage."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is broken."""
        others = OF_SEVERAL if self.one_process else OF_ONE_PROCESS
        return self.named or tuple(kind for kind in FAULTS if kind not in others)

    @property
    def is_long(self) -> bool:
        """Whether there is time to wait for all that goes away by itself."""
        return self.seconds >= LONG_SECONDS

    @property
    def pause_seconds(self) -> tuple[float, float]:
        """Least and most between faults."""
        return SHORT_PAUSE_SECONDS if self.seconds < SHORT_SECONDS else PAUSE_SECONDS


def chaos(plan: Plan, folder: Path) -> dict[str, Any]:
    """One whole run; what it found, as it is printed."""
    clips = make_clips(folder / "clips")
    chance = random.Random(f"{plan.seed} receiver")
    with chaos_stage(folder, folder / "clips", chance, one_process=plan.one_process) as stage:
        results = undisturbed(stage, clips)
        print(f"undisturbed results of {len(results)} clips and timelines are known", flush=True)
        stage.receiver.received.clear()
        journal = Journal()
        agent = Agent(stage, plan.seed, plan.kinds, journal.seconds, plan.pause_seconds)
        under_way(plan, stage, clips, results, journal, agent)
        print(f"{journal.seconds():6.0f} s  all clients have ended", flush=True)
        if plan.is_long:
            journal.violations += changed(stage, clips, results)
        checker = Checker(
            stage,
            journal,
            results,
            agent.struck,
            callers(stage, journal),
            waits_for_all=plan.is_long,
        )
        violations = agent.failures + checker.violations()
        print(*violations, sep="\n", flush=True)
    return summary(plan, journal, agent, checker) | {
        "violations": len(violations),
        "violated": shapes(violations)[:50],
    }


def shapes(sentences: Sequence[str]) -> list[str]:
    """One sentence of each shape, the most frequent first, with how many there are."""
    counts = Counter(_NAMES.sub("*", sentence) for sentence in sentences)
    first = {_NAMES.sub("*", sentence): sentence for sentence in reversed(sentences)}
    return [f"{count} like: {first[shape]}" for shape, count in counts.most_common()]


def under_way(
    plan: Plan,
    stage: Stage,
    clips: dict[str, Clip],
    results: Results,
    journal: Journal,
    agent: Agent,
) -> None:
    """Load and faults for as long as planned, then load alone until it has ended."""
    threads, stopping = start_load(plan, stage, clips, results, journal)
    breaking = threading.Thread(target=agent.run, name="faults", daemon=True)
    breaking.start()
    stopping.wait(plan.seconds)
    wait_for_every_kind(agent, max(plan.seconds / 2, EVERY_KIND_SECONDS))
    agent.stopping.set()
    breaking.join(PATIENCE_SECONDS)
    ended = journal.seconds()
    stopping.set()
    for thread in threads:
        thread.join(max(0.0, ended + END_SECONDS - journal.seconds()))
        if thread.is_alive():
            journal.violated(f"{thread.name} waits for ever")


def start_load(
    plan: Plan, stage: Stage, clips: dict[str, Clip], results: Results, journal: Journal
) -> tuple[list[threading.Thread], threading.Event]:
    """Clients, people, an archive and a hostile account, each in a thread with its own chance; set
    the event to end them."""
    stopping, threads = threading.Event(), []

    def start(name: str, number: int, running: Callable[[Client], Callable[[], None]]) -> None:
        customer = stage.customers[number % len(stage.customers)]
        chance = random.Random(f"{plan.seed} {name}")
        first = list(WAYS)[-1 - number % len(WAYS)]
        client = Client(stage, customer, clips, results, journal, chance, stopping, first)
        threads.append(threading.Thread(target=running(client), name=name, daemon=True))

    for number in range(plan.clients):
        start(f"client-{number}", number, lambda client: client.run)
    for number in range(TEAMS):
        start(f"team-{number}", number, lambda client: Team(client).run)
    start("archivist", TEAMS, lambda client: Archivist(client).run)
    hostile = Hostile(stage, journal, random.Random(f"{plan.seed} hostile"), stopping)
    threads.append(threading.Thread(target=hostile.run, name="hostile", daemon=True))
    for thread in threads:
        thread.start()
    return threads, stopping


def wait_for_every_kind(agent: Agent, seconds: float) -> None:
    """Return when each kind of fault has struck, or after ``seconds``: on a slow machine a short
    run would leave some out."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(agent.counts().values()):
        time.sleep(1)


def undisturbed(stage: Stage, clips: dict[str, Clip]) -> Results:
    """Results of every clip and timeline, before anything is broken."""
    customer = stage.reference
    chance, quiet = random.Random(0), Journal()
    caller = Caller(
        stage.service.base_url, {"Authorization": f"Bearer {customer.key}"}, quiet, chance
    )
    sets = [(name,) for name in clips] + list(TIMELINES)
    created = {}
    for names in sets:
        urls = [{"sourceUrl": stage.files.url(f"/{clips[name].path.name}")} for name in names]
        body = {"mode": "continuous" if len(names) > 1 else "independent", "clips": urls}
        answer = caller.data("POST", "/jobs/batch", json=body)
        created[BETWEEN.join(names)] = answer["jobs"][0]["jobId"]
    return {names: _result(caller, job_id) for names, job_id in created.items()}


def changed(stage: Stage, clips: dict[str, Clip], before: Results) -> list[str]:
    """Afterwards the service must do as before. What killed processes left goes on the way."""
    threading.Event().wait(ABANDONED_SECONDS)
    after = undisturbed(stage, clips)
    return [
        f"{name}: other results after than before" for name in before if after[name] != before[name]
    ]


def _result(caller: Caller, job_id: str) -> dict[str, Any]:
    ended = _ended(caller, job_id)
    if ended["state"] != "completed":
        raise RuntimeError(f"an undisturbed job failed: {ended}")
    return read_results(caller, job_id, "all")


def _ended(caller: Caller, job_id: str) -> dict[str, Any]:
    pause = threading.Event()
    while True:
        job: dict[str, Any] = caller.data("GET", f"/jobs/{job_id}?include=none")
        if job["completedAt"] is not None:
            return job
        pause.wait(0.5)


def callers(stage: Stage, journal: Journal) -> dict[str, Caller]:
    """Account to connections with its key."""
    base, chance = stage.service.base_url, random.Random(0)
    return {
        customer.account: Caller(base, {"Authorization": f"Bearer {customer.key}"}, journal, chance)
        for customer in stage.customers
    }


def summary(plan: Plan, journal: Journal, agent: Agent, checker: Checker) -> dict[str, Any]:
    """The figures."""
    jobs = list(journal.jobs.values())
    return {
        "seconds": plan.seconds,
        "seed": plan.seed,
        "jobs": len(jobs),
        "ways": dict(Counter(job.way for job in jobs)),
        "ends": dict(Counter(job["state"] for job in checker.jobs.values())),
        "slowest_job_and_list_seconds": [
            round(max((waited for _, waited in each), default=0))
            for each in (waits_for_jobs(journal), waits_for_lists(journal))
        ],
        "given_up_after_three_lost_runners": len(checker.given_up),
        "people_keys_archives": dict(journal.team),
        "changes": len(journal.changes),
        "events": len({got.webhook_id for got in checker.stage.receiver.received}),
        "deliveries": len(checker.stage.receiver.received),
        "edits": sum(len(job.edits) for job in jobs),
        "redacted": sum(job.redacted for job in jobs),
        "erased": sum(job.erase_asked for job in jobs),
        "events_of_endpoints": len({got.webhook_id for got in checker.stage.subscriber.received}),
        "faults": len(agent.struck),
        "faults_by_kind": agent.counts(),
        "answers": dict(journal.answers),
        "broken_connections": dict(journal.broken),
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=Plan.seconds)
    parser.add_argument("--seed", type=int, default=Plan.seed)
    parser.add_argument("--clients", type=int, default=Plan.clients)
    parser.add_argument("--kinds", default="", help="of faults, by commas; else all")
    parser.add_argument("--one-process", action="store_true")
    options = parser.parse_args()
    named = tuple(filter(None, options.kinds.split(",")))
    plan = Plan(options.seconds, options.seed, options.clients, options.one_process, named)
    with tempfile.TemporaryDirectory(prefix="vas-chaos-") as folder:
        found = chaos(plan, Path(folder))
    print(json.dumps(found))
    raise SystemExit(bool(found["violations"]))
