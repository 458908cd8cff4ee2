"""The judge of a chaos run: reads the public API, the customers' endpoints and the ledger.

It knows what the clients were promised (the journal) and nothing of how the service works.
Each check gives a sentence a violation.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg

from pipelines.execution.chain import is_stop_marker
from serve_app.client.api import TERMINAL_STATES
from storage.types import TERMINAL_EVENTS, EventType, JobState
from storage.uploads import ERASED_PREFIX
from tests.acceptance.chaos.archived import (
    ARCHIVE,
    ENDS_TO_RECORD,
    TRIED_AGAIN,
    adopt_jobs,
    each_object_has_one_job,
)
from tests.acceptance.chaos.audited import (
    audit_logs_are_whole,
    keys_keep_to_their_caps,
    what_is_so_was_recorded,
    what_was_done_is_recorded,
)
from tests.acceptance.chaos.caller import PATIENCE_SECONDS, Caller
from tests.acceptance.chaos.clips import BETWEEN
from tests.acceptance.chaos.faults import TAKES_LEASES, Struck
from tests.acceptance.chaos.journal import Accepted, Journal
from tests.acceptance.chaos.stage import CREDITS_CENTS, Stage
from tests.storage.s3_server import everything_in
from tests.webhooks.receivers import Receiver

MOST_LEASES = 3
"""So many lost runners fail a job: the one way in which chaos may end it."""
SETTLE_SECONDS = 200.0
"""For webhooks that wait for another attempt, and for objects that come late."""
LATE_SECONDS = 2 * PATIENCE_SECONDS
"""Of a job: a dozen at once take their turns on two processors, and faults undo work."""
LATE_LIST_SECONDS = PATIENCE_SECONDS / 2
"""Of an archive: its bucket fails for seconds, and it waits for nothing else."""

SWEPT = re.compile(r"vas-objects-\d+")
"""The folder whose users remove what others left."""
KEPT = re.compile(r"vas-node-cache-\d+")
"""The folder that holds what a node has read and written."""
STILLS = "/vision/thumbnails/"

Results = dict[str, dict[str, Any]]
"""Clips to the scenes, the transcript and the files of an undisturbed run."""

SCENE_FILES = [f"export?format={name}" for name in ("edl", "otio", "fcpxml", "csv")]
SPEECH_FILES = [f"transcript?format={name}" for name in ("srt", "vtt", "ttml", "txt", "md", "csv")]
CHAPTER_EDL = "export?format=edl&content=chapters"
NAMED_FILES = [CHAPTER_EDL, *(f"export?format={name}" for name in ("edl", "otio", "fcpxml"))]
"""With the file's name in them, which in a bucket is another one."""
CHAPTER_FILES = [
    "chapters",
    CHAPTER_EDL,
    *(f"export?format={name}" for name in ("webvtt-chapters", "ffmetadata")),
]
"""Chapters begin at cuts where there are any, so they differ from mode to mode."""


@dataclass(slots=True)
class Checker:
    """What is known after the run."""

    stage: Stage
    journal: Journal
    results: Results
    struck: list[Struck]
    callers: dict[str, Caller]
    """Account to a caller with its key."""
    waits_for_all: bool = True
    """Whether what goes by itself after minutes must be gone too: objects that tell tasks to stop,
    and temporary files of killed processes, which the next user of the folder removes."""
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    given_up: list[str] = field(default_factory=list)
    of_objects: defaultdict[tuple[str, str], list[Accepted]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Archive and key to the jobs of the object, the first one first."""

    def violations(self) -> list[str]:
        """All there are; reads the final state of every job first."""
        found = list(self.journal.violations)
        wait_until_settled(lambda: not self.ledger(ENDS_TO_RECORD))
        adopt_jobs(self)
        self.jobs = {job_id: self._final(job) for job_id, job in self.journal.jobs.items()}
        for check in CHECKS:
            try:
                found += check(self)
            except Exception as error:  # the others are worth knowing
                found.append(f"{check.__name__}: {type(error).__name__}: {error}")
        return found

    def _final(self, job: Accepted) -> dict[str, Any]:
        found: dict[str, Any] = self.callers[job.account].data(
            "GET", f"/jobs/{job.job_id}?include=none"
        )
        return found

    def ledger(self, statement: str) -> list[tuple[Any, ...]]:
        """Ask the books, which it may only read."""
        names = [customer.account for customer in self.stage.customers]
        with psycopg.connect(self.stage.database.url, autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = on")
            return connection.execute(statement, {"accounts": names}).fetchall()

    def lost_runners(self, job: Accepted) -> int:
        """Faults during the job's life after which it may have lost its runner."""
        return sum(
            fault.kind in TAKES_LEASES
            and fault.to_seconds >= job.at_seconds
            and fault.from_seconds <= (job.ended_seconds or fault.from_seconds)
            for fault in self.struck
        )


def every_job_ends(checker: Checker) -> Iterator[str]:
    for job_id, final in checker.jobs.items():
        if final["state"] not in TERMINAL_STATES:
            yield f"job {job_id} is {final['state']} for ever"


def an_end_is_final(checker: Checker) -> Iterator[str]:
    for job in checker.journal.jobs.values():
        final = checker.jobs[job.job_id]
        for name in ("state", "chargedCents"):
            if job.ended is not None and job.ended[name] != final[name]:
                yield f"job {job.job_id}: {name} was {job.ended[name]} and is {final[name]}"


def jobs_end_as_undisturbed(checker: Checker) -> Iterator[str]:
    """Completed, or cancelled by their customer; or given up after three lost runners."""
    for job in checker.journal.jobs.values():
        final = checker.jobs[job.job_id]
        state = final["state"]
        if state == "completed" and not job.cancelled:
            continue
        if state == "cancelled" and job.cancel_asked:
            continue
        code = (final.get("error") or {}).get("code")
        if code == "PROCESSING_FAILED" and checker.lost_runners(job) >= MOST_LEASES:
            checker.given_up.append(job.job_id)
            continue
        if job.way == ARCHIVE and code in TRIED_AGAIN:
            continue
        errors = {
            name: stage.get("error") for name, stage in final["stages"].items() if "error" in stage
        }
        yield f"job {job.job_id} ({job.way}, {job.clip}) is {state}: {code} {errors}"


def waits_for_jobs(journal: Journal) -> list[tuple[str, float]]:
    """Jobs with how many seconds their clients waited for their ends; those of archives wait for
    all others of their account."""
    jobs = [job for job in journal.jobs.values() if job.way != ARCHIVE and job.ended is not None]
    return [(job.job_id, job.ended_seconds - job.at_seconds) for job in jobs]


def waits_for_lists(journal: Journal) -> list[tuple[str, float]]:
    """Archives with how many seconds passed until objects of them were known."""
    now = journal.seconds()
    return [
        (each.archive_id, (each.listed_seconds or now) - each.at_seconds)
        for each in journal.archives
    ]


def nobody_waits_for_the_hostile_account(checker: Checker) -> Iterator[str]:
    for what, waits, most in (
        ("job", waits_for_jobs(checker.journal), LATE_SECONDS),
        ("list of the archive", waits_for_lists(checker.journal), LATE_LIST_SECONDS),
    ):
        late = [(name, waited) for name, waited in waits if waited > most]
        yield from (f"the {what} {name} took {waited:.0f} s" for name, waited in late)


def results_are_those_of_an_undisturbed_run(checker: Checker) -> Iterator[str]:
    for job in checker.journal.jobs.values():
        if checker.jobs[job.job_id]["state"] != "completed" or job.is_changed:
            continue
        found = read_results(checker.callers[job.account], job.job_id, job.mode)
        for part, value in found.items():
            if job.way == ARCHIVE and part in NAMED_FILES:
                continue
            if value != (expected := checker.results[job.clip][part]):
                where = first_difference(expected, value)
                yield f"job {job.job_id} ({job.clip}): other {part} than undisturbed: {where}"


def first_difference(expected: Any, found: Any, path: str = "") -> str:
    """Return where two documents differ first, and what is there in each."""
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        pairs = [(f"{path}.{name}", value, found[name]) for name, value in expected.items()]
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = [
            (f"{path}[{at}]", *both) for at, both in enumerate(zip(expected, found, strict=True))
        ]
    else:
        return f"{path} {str(expected)[:200]!r} is {str(found)[:200]!r}"
    return next(first_difference(one, other, at) for at, one, other in pairs if one != other)


def files_stay_as_they_were(checker: Checker) -> Iterator[str]:
    """A file that was taken under way is the same when it is taken again."""
    for job in checker.journal.jobs.values():
        for path, text in () if job.is_changed else job.files.items():
            if read_file(checker.callers[job.account], job.job_id, path) != text:
                yield f"job {job.job_id} ({job.clip}): other {path} than before"


def files_of(mode: str, clip: str) -> list[str]:
    """The exports of a completed job of this mode and clip, as paths below it."""
    seen = SCENE_FILES if mode != "transcript" else []
    files = [*seen, *(SPEECH_FILES + CHAPTER_FILES if mode != "vision" else [])]
    if mode == "transcript" and BETWEEN in clip:  # whose frames nobody has counted
        files.remove(CHAPTER_EDL)
    return files


def read_file(caller: Caller, job_id: str, path: str) -> str:
    """The text of an export, without the job's id."""
    url = f"{caller.base_url}/jobs/{job_id}/{path}"
    answer = caller.final("GET", url)
    text = json.dumps(answer.json()["data"]) if path == "chapters" else answer.text
    return text.replace(job_id, "")


def read_results(caller: Caller, job_id: str, mode: str) -> dict[str, Any]:
    """What a completed job shows, without what differs from job to job."""
    found: dict[str, Any] = {}
    if mode != "transcript":
        scenes = caller.data("GET", f"/jobs/{job_id}/scenes")["scenes"]
        found["scenes"] = [
            scene
            | {"thumbnailUrl": None}
            | {"stills": [still | {"url": None} for still in scene.get("stills", ())]}
            for scene in scenes
        ]
    if mode != "vision":
        found["transcript"] = caller.data("GET", f"/jobs/{job_id}/transcript") | {"jobId": None}
    same = [path for path in files_of(mode, "") if mode == "all" or path not in CHAPTER_FILES]
    return found | {path: read_file(caller, job_id, path) for path in same}


def jobs_exist_once(checker: Checker) -> Iterator[str]:
    """No creation that was repeated made a second job, and none was forgotten."""
    for customer in checker.stage.customers:
        listed = Counter(_listed(checker.callers[customer.account]))
        accepted = {
            job.job_id for job in checker.journal.jobs.values() if job.account == customer.account
        }
        yield from (f"job {job_id} is listed {n} times" for job_id, n in listed.items() if n > 1)
        yield from (f"job {job_id} was never given out" for job_id in listed.keys() - accepted)
        yield from (f"job {job_id} is not listed" for job_id in accepted - listed.keys())


def _listed(caller: Caller) -> Iterator[str]:
    cursor = ""
    while True:
        page = caller.final("GET", f"{caller.base_url}/jobs?limit=100{cursor}").json()
        yield from (job["jobId"] for job in page["data"])
        if not page["hasMore"]:
            return
        cursor = f"&cursor={page['nextCursor']}"


def every_edit_is_there(checker: Checker) -> Iterator[str]:
    """Of two editors at once too; what redaction hides of it aside."""
    for job in checker.journal.jobs.values():
        if not job.edits or job.erase_asked:
            continue
        shown = checker.callers[job.account].data("GET", f"/jobs/{job.job_id}/transcript")
        if shown["revision"] < len(job.edits):
            yield f"job {job.job_id}: revision {shown['revision']} after {len(job.edits)} edits"
        for index, text in job.edits.items():
            hidden = text.replace(f"{job.marker}@example.com", "[email]")
            if (found := shown["segments"][index]["text"]) != (hidden if job.redacted else text):
                yield f"job {job.job_id}: the correction of {index} is lost: {found}"


def what_is_redacted_is_shown_nowhere(checker: Checker) -> Iterator[str]:
    for job in checker.journal.jobs.values():
        if not job.redacted:
            continue
        caller = checker.callers[job.account]
        status = caller.data("GET", f"/jobs/{job.job_id}")["redaction"]["status"]
        if status != "completed":
            yield f"job {job.job_id}: its redaction is {status}"
        for path in ("transcript", "transcript/revisions", *files_of(job.mode, job.clip)):
            url = f"{caller.base_url}/jobs/{job.job_id}/{path}"
            if job.marker in caller.final("GET", url).text:
                yield f"job {job.job_id}: {path} shows what is redacted"


def what_is_erased_is_nowhere(checker: Checker) -> Iterator[str]:
    """In no answer, no table and no object."""
    erased = [job for job in checker.journal.jobs.values() if job.erase_asked]
    tables = checker.ledger("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    for job in erased:
        caller = checker.callers[job.account]
        if "erasedAt" not in checker.jobs[job.job_id]:
            yield f"job {job.job_id} is not erased"
        answer = caller.final("GET", f"{caller.base_url}/jobs/{job.job_id}/transcript", 404)
        if answer.status_code != 404:
            yield f"job {job.job_id}: its transcript is there after its erasing"
        for (table,) in tables if job.marker else ():
            having = f"position('{job.marker}' in r::text) > 0"
            if checker.ledger(f'SELECT 1 FROM "{table}" AS r WHERE {having}'):  # noqa: S608
                yield f"job {job.job_id}: {table} has what was erased"
    prefixes = [f"jobs/{job.job_id}/" for job in erased]

    def left() -> list[str]:
        found = (key for key in _in_bucket(checker) if not is_stop_marker(key))
        return [key for key in found if any(prefix in key for prefix in prefixes)]

    wait_until_settled(lambda: not left())
    yield from (f"object {key} of an erased job is left over" for key in left())


def every_end_is_told(checker: Checker) -> Iterator[str]:
    """At least once, under one id, always the same body; every delivery verified."""
    return _told_rightly(checker, checker.stage.receiver, lambda job: "", reruns=False)


def endpoints_are_told_too(checker: Checker) -> Iterator[str]:
    """As callback URLs are, by an id and a secret of their own; of erasing too."""
    stage = checker.stage
    return _told_rightly(
        checker, stage.subscriber, lambda job: f":{stage.endpoints[job.account]}", erased=True
    )


def _told_rightly(
    checker: Checker,
    receiver: Receiver,
    whose: Callable[[Accepted], str],
    *,
    erased: bool = False,
    reruns: bool = True,
) -> Iterator[str]:
    due, possible = dict[str, dict[str, Any]](), set[str]()
    for job_id, final in checker.jobs.items():
        job, ended = checker.journal.jobs[job_id], final["state"] in TERMINAL_STATES
        if job.rerun_of is not None and not reruns:
            continue
        end = f"{job_id}:{TERMINAL_EVENTS[JobState(final['state'])]}" if ended else ""
        if job.erase_asked:
            possible.add(f"{end}{whose(job)}")  # Erasing forgets what was not delivered.
            if erased:
                due[f"{job_id}:{EventType.JOB_ERASED}{whose(job)}"] = final
        elif ended:
            due[f"{end}{whose(job)}"] = final
    wait_until_settled(lambda: due.keys() <= _told(receiver).keys())
    told = _told(receiver)
    yield from (f"event {event} never came" for event in due.keys() - told.keys())
    others = told.keys() - due.keys() - possible
    yield from (f"event {event} came though it is none" for event in others)
    for event, bodies in told.items():
        if len(bodies) > 1:
            yield f"event {event} came with {len(bodies)} different bodies"
        said = json.loads(next(iter(bodies)))["data"]
        if event in due and said["state"] != due[event]["state"]:
            yield f"event {event} says {said['state']}"
    refused, receiver.refused = receiver.refused, []
    yield from (f"a delivery did not verify: {error}" for error in refused)


def _told(receiver: Receiver) -> dict[str, set[bytes]]:
    told: dict[str, set[bytes]] = defaultdict(set)
    for delivered in list(receiver.received):
        told[delivered.webhook_id].add(delivered.body)
    return told


def balances_are_exact(checker: Checker) -> Iterator[str]:
    for customer in checker.stage.customers:
        api = checker.callers[customer.account].data("GET", "/quota")["api"]
        charged = sum(
            checker.jobs[job.job_id]["chargedCents"]
            for job in checker.journal.jobs.values()
            if job.account == customer.account
        )
        if api["heldCents"] != 0:
            yield f"{customer.account}: {api['heldCents']} cents are held by nothing"
        if api["balanceCents"] != CREDITS_CENTS - charged:
            yield f"{customer.account}: {api['balanceCents']} left after charges of {charged}"
    yield from (f"the books of {name} do not add up: {rest}" for name, *rest in _books(checker))


def _books(checker: Checker) -> list[tuple[Any, ...]]:
    """Accounts whose totals are not the sums of their entries."""
    return checker.ledger(
        """
        SELECT a.name, a.balance_cents, a.held_cents,
               sum(e.balance_delta_cents), sum(e.hold_delta_cents)
          FROM accounts a JOIN ledger_entries e ON e.account_id = a.id
         WHERE a.name = ANY(%(accounts)s)
         GROUP BY a.id
        HAVING sum(e.balance_delta_cents) <> a.balance_cents OR sum(e.hold_delta_cents) <> 0
               OR a.held_cents <> 0
        """
    )


def stages_are_charged_once(checker: Checker) -> Iterator[str]:
    """Each completed analysis its price less what is waived, exactly once; no other at all."""
    wrong = checker.ledger(
        """
        SELECT j.id, s.stage, s.status, count(e.id),
               coalesce(-sum(e.balance_delta_cents), 0),
               (j.quote_cents ->> s.stage)::bigint - s.waived_cents
          FROM accounts a JOIN jobs j ON j.account_id = a.id JOIN stages s ON s.job_id = j.id
          LEFT JOIN ledger_entries e
                 ON e.job_id = j.id AND e.stage = s.stage AND e.kind = 'charge'
         WHERE a.name = ANY(%(accounts)s) AND s.stage <> 'ingest'
         GROUP BY j.id, s.stage, s.status, j.quote_cents, s.waived_cents
        HAVING coalesce(-sum(e.balance_delta_cents), 0) <> CASE WHEN s.status = 'completed'
               THEN (j.quote_cents ->> s.stage)::bigint - s.waived_cents ELSE 0 END
            OR count(e.id) > 1
        """
    )
    return (f"stage charged wrongly: {row}" for row in wrong)


def nothing_is_leased(checker: Checker) -> Iterator[str]:
    """No job, no upload and no event belongs to somebody who is not there any more."""
    statement = """
        SELECT 'job', id::text FROM jobs WHERE lease_token IS NOT NULL OR held_cents <> 0
        UNION ALL SELECT 'upload', job_id::text FROM uploads WHERE writer_token IS NOT NULL
        UNION ALL SELECT 'event', id FROM webhook_events WHERE lease_token IS NOT NULL
    """
    wait_until_settled(lambda: not checker.ledger(statement))
    return (f"still leased or held: {row}" for row in checker.ledger(statement))


def nothing_lies_about(checker: Checker) -> Iterator[str]:
    """The stills that scenes show stay in the bucket, nothing else; temporary folders are bare."""
    wait_until_settled(lambda: not _objects(checker) and not _temporary_files(checker))
    yield from (f"object {key} is left over" for key in _objects(checker))
    yield from (f"temporary file {path} is left over" for path in _temporary_files(checker))
    stills = Counter(key.split("/jobs/")[1][:36] for key in _in_bucket(checker) if STILLS in key)
    for job in checker.journal.jobs.values():
        due = len(_stills_shown(checker, job))
        if job.rerun_of is not None:  # Its stills lie with those of the first job.
            due = 0
        if stills[job.job_id] != due:
            yield f"job {job.job_id} ({job.way}): {stills[job.job_id]} stills, and shows {due}"


def _objects(checker: Checker) -> list[str]:
    return [
        key
        for key in _in_bucket(checker)
        if STILLS not in key
        and f"{ERASED_PREFIX}/" not in key
        and (checker.waits_for_all or not is_stop_marker(key))
    ]


def _in_bucket(checker: Checker) -> list[str]:
    return everything_in(checker.stage.head.store)


def _stills_shown(checker: Checker, job: Accepted) -> set[bytes]:
    """The pictures themselves: scenes that look the same share one."""
    vision = checker.jobs[job.job_id]["stages"]["vision"]["status"]
    if job.erase_asked or vision != "completed":
        return set()
    caller = checker.callers[job.account]
    scenes = caller.data("GET", f"/jobs/{job.job_id}/scenes")["scenes"]
    return {caller.final("GET", scene["thumbnailUrl"]).content for scene in scenes}


def _temporary_files(checker: Checker) -> list[str]:
    folders = checker.stage.temporary_folders()
    return [
        str(path.relative_to(folder.parent.parent))
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
        and not KEPT.match(top := path.parts[len(folder.parts)])
        and (checker.waits_for_all or not SWEPT.match(top))
    ]


def no_process_is_left_over(checker: Checker) -> Iterator[str]:
    """One proxy a head; of each deployment what was asked for; nothing works on media any more."""
    wait_until_settled(lambda: not _surplus(checker.stage))
    return iter(_surplus(checker.stage))


MOST_PROCESSES = {"ServeController": 1, "ServeReplica:vas:Api": 2, "ServeReplica:vas:Runner": 2}
NONE_WHEN_IDLE = ("pipelines.sandbox.child", "confinement import main", "ray::Map(")


def _surplus(stage: Stage) -> list[str]:
    surplus = [
        f"{len(found)} processes {title}"
        for title, most in MOST_PROCESSES.items()
        if len(found := stage.titled(title)) > most
    ]
    surplus += [f"{process} still works" for process in stage.titled(*NONE_WHEN_IDLE)]
    proxies = [process for process in stage.processes() if process.name() == "haproxy"]
    if len(proxies) > 1:
        surplus.append(f"{len(proxies)} proxies: {proxies}")
    return surplus


def wait_until_settled(condition: Callable[[], object]) -> None:
    """Return when it holds, or when it had time enough to."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline and not condition():
        time.sleep(1)


CHECKS: tuple[Callable[[Checker], Iterable[str]], ...] = (
    every_job_ends,
    an_end_is_final,
    jobs_end_as_undisturbed,
    nobody_waits_for_the_hostile_account,
    results_are_those_of_an_undisturbed_run,
    files_stay_as_they_were,
    every_edit_is_there,
    what_is_redacted_is_shown_nowhere,
    what_is_erased_is_nowhere,
    jobs_exist_once,
    every_end_is_told,
    endpoints_are_told_too,
    balances_are_exact,
    stages_are_charged_once,
    each_object_has_one_job,
    what_was_done_is_recorded,
    what_is_so_was_recorded,
    audit_logs_are_whole,
    keys_keep_to_their_caps,
    nothing_is_leased,
    nothing_lies_about,
    no_process_is_left_over,
)
