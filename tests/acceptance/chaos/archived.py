"""Whether archives had each object analysed once, and again where it had changed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.acceptance.chaos.journal import Accepted, Walked

if TYPE_CHECKING:
    from tests.acceptance.chaos.checker import Checker

ARCHIVE = "archive"
"""How jobs came in that an archive created."""
EMPTY = "empty.mp4"
"""The name of an object of which no job can be."""
TRIED_AGAIN = frozenset({"FETCH_FAILED", "CANCELLED"})
"""Ends of jobs after which their objects have another one, once the archive is resumed."""

ENDS_TO_RECORD = """
    SELECT 1 FROM archive_objects o JOIN jobs j ON j.id = o.job_id
     WHERE o.state = 'running' AND j.completed_at IS NOT NULL
"""
"""Objects whose archive's next step is due, or held by a runner that is lost."""


def adopt_jobs(checker: Checker) -> None:
    """Write down what no answer to a client named: an archive's jobs, reruns whose answer was lost,
    and jobs of a member who had lost the role when they asked again."""
    journal = checker.journal
    archives = {walked.archive_id: walked for walked in journal.archives}
    analysed = Counter[tuple[str, str]]()
    began = time.time() - journal.seconds()
    for job_id, account, mode, state, archive_id, url, rerun_of, created, ended in checker.ledger(
        """
        SELECT j.id::text, a.name, j.processing_mode, j.state,
               j.source #>> '{clips,0,archive_id}', j.source #>> '{clips,0,url}',
               j.rerun_of::text, extract(epoch FROM j.created_at)::float,
               extract(epoch FROM j.completed_at)::float
          FROM jobs j JOIN accounts a ON a.id = j.account_id
         WHERE a.name = ANY(%(accounts)s)
         ORDER BY j.created_at
        """
    ):
        if job_id in journal.jobs:
            continue
        if archive_id in archives:
            key = url.removeprefix(f"s3://{checker.stage.footage.bucket}/")
            clips = archives[archive_id].put[key]
            clip, way = clips[min(analysed[archive_id, key], len(clips) - 1)], ARCHIVE
            analysed[archive_id, key] += state == "completed"
        elif rerun_of in journal.jobs:
            clip, way = journal.jobs[rerun_of].clip, "made again"
        elif perhaps := [it for it in journal.perhaps if it[:3] == (account, url, mode)]:
            journal.perhaps.remove(perhaps[0])
            clip, way = perhaps[0][3], "member"
        else:  # which is found where the list is read
            continue
        job = Accepted(job_id, account, way, clip, mode, created - began)
        job.rerun_of, job.ended_seconds = rerun_of, (ended or time.time()) - began
        journal.accept(job)
        if way == ARCHIVE:
            checker.of_objects[archive_id, key].append(job)


def each_object_has_one_job(checker: Checker) -> Iterator[str]:
    """For each of its contents; jobs that could not fetch it were followed by another."""
    for walked in checker.journal.archives:
        shown = _shown(checker, walked)
        counts = Counter(each["state"] for each in shown.values())
        path = f"/archives/{walked.archive_id}"
        archive = checker.callers[walked.account].data("GET", path)
        if {state: n for state, n in archive["objects"].items() if n} != counts:
            yield f"archive {walked.archive_id} counts {archive['objects']}, and has {counts}"
        for key in shown.keys() - walked.put.keys():
            refusal = (shown[key]["state"], shown[key]["errorCode"], shown[key]["jobId"])
            if not key.endswith(f"/{EMPTY}") or refusal != ("refused", "OBJECT_EMPTY", None):
                yield f"archive {walked.archive_id} has {key}: {refusal}"
        for key, clips in walked.put.items():
            jobs = checker.of_objects[walked.archive_id, key]
            yield from _judged(checker, f"object {key}", clips, jobs, shown.get(key))


def _judged(
    checker: Checker, named: str, clips: list[str], jobs: list[Accepted], shown: Any
) -> Iterator[str]:
    states = [_end(checker, job) for job in jobs]
    analysed = [state for state in states if state not in TRIED_AGAIN]
    if len(analysed) != len(clips):
        yield f"{named} was {len(clips)} contents and has jobs {states}"
    if shown is None:
        yield f"{named} is not listed"
    elif not jobs or shown["jobId"] != jobs[-1].job_id:
        yield f"{named} names the job {shown['jobId']} of {[job.job_id for job in jobs]}"
    elif (shown["state"] == "completed") is not (states[-1] == "completed"):
        yield f"{named} is {shown['state']}, and its job {states[-1]}"


def _end(checker: Checker, job: Accepted) -> str:
    """Its state, or why it failed."""
    final = checker.jobs[job.job_id]
    return str((final.get("error") or {}).get("code") or final["state"])


def _shown(checker: Checker, walked: Walked) -> dict[str, Any]:
    """Key to the object, as the API lists them."""
    caller, cursor, found = checker.callers[walked.account], "", list[Any]()
    while True:
        url = f"{caller.base_url}/archives/{walked.archive_id}/objects?limit=2{cursor}"
        page = caller.final("GET", url).json()
        found += page["data"]
        if not page["hasMore"]:
            break
        cursor = f"&cursor={page['nextCursor']}"
    shown = {each["key"]: each for each in found}
    if len(shown) != len(found):
        raise AssertionError(f"an object is listed twice: {found}")
    return shown
