"""Clients under way all the time: each brings footage in, watches it, takes its results."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from serve_app.client.api import TERMINAL_STATES
from tests.acceptance.chaos.caller import PATIENCE_SECONDS, Caller, UncoveredError
from tests.acceptance.chaos.checker import Results, files_of, read_file, read_results
from tests.acceptance.chaos.clips import BETWEEN, TIMELINES, Clip
from tests.acceptance.chaos.exchange import ExchangeWatch
from tests.acceptance.chaos.journal import Accepted, Journal
from tests.acceptance.chaos.stage import Customer, Stage

MODES = ("all", "all", "all", "vision", "transcript")
POLL_SECONDS = 2.0
AFTER_FAILURE_SECONDS = 1.0
FILES_TAKEN = 3
"""Exports that the client of a completed job takes."""
TUS = {"Tus-Resumable": "1.0.0"}
TUS_PIECES = 3
CANCEL_WITHIN_SECONDS = 12.0
MOST_CONFLICTS = 20
RERUN_REFUSALS = ("SOURCE_GONE", "RESULTS_NOT_READY")
READS = (
    "/quota",
    "/archives",
    "/jobs?limit=20",
    "/jobs?state=completed&limit=5",
    "/webhooks/deliveries",
    "/search?q=morning+sea&limit=5",
    "/search?q=anna*+OR+person&kinds=scene,text,file",
    "/formats",
    "/pricing/estimate?durationSeconds=60",
)
JOB_READS = ("receipt", "review?budgetSeconds=60", "duplicates")
"""What is asked of a completed job beside its results."""


@dataclass(slots=True)
class Client:
    """One customer's program: one thing after the other until it is told to stop."""

    stage: Stage
    customer: Customer
    clips: dict[str, Clip]
    results: Results
    """Of every clip, undisturbed."""
    journal: Journal
    chance: random.Random
    stopping: threading.Event
    first: str = "rerun"
    """The way of its first job."""
    caller: Caller = field(init=False)
    latest: str | None = None
    """The last completed job with both results that is as it was."""

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.customer.key}"}
        base = self.stage.service.base_url
        self.caller = Caller(base, headers, self.journal, self.chance)

    def run(self) -> None:
        """Until stopped; what it has begun it brings to an end."""
        ways = list(WAYS)
        weights = [WAYS[way][1] for way in ways]
        way = self.first
        while not self.stopping.is_set():
            try:
                for job in WAYS[way][0](self, way):
                    self.follow(job)
                self.read()
            except UncoveredError:  # written in the journal, where the checker finds it
                self.stopping.wait(AFTER_FAILURE_SECONDS)
            except Exception as error:
                self.journal.violated(f"{way}: {type(error).__name__}: {error}")
            [way] = self.chance.choices(ways, weights)

    def upload(self, way: str) -> list[Accepted]:
        """Create, and PUT to the address that the answer names."""
        clip, created, job = self._created(way)
        self.caller.store(created["uploadUrl"], clip.data, created["uploadHeaders"])
        return [job]

    def resumable(self, way: str) -> list[Accepted]:
        """Create, and send the file in pieces by tus; asks where it stands after every failure."""
        clip, created, job = self._created(way)
        url, size = created["resumableUploadUrl"], len(clip.data)
        offset, attempt = 0, 0
        while offset < size:
            attempt += 1
            if attempt > 100:
                self.journal.violated(f"job {job.job_id}: its upload never ends")
                raise UncoveredError(job.job_id)
            end = min(size, offset + size // TUS_PIECES + 1)
            answer = self.caller.once(
                "PATCH",
                url,
                attempt,
                content=clip.data[offset:end],
                headers=TUS
                | {
                    "Upload-Offset": str(offset),
                    "Content-Type": "application/offset+octet-stream",
                },
            )
            if answer is not None and answer.status_code == 204:
                offset = int(answer.headers["upload-offset"])
                continue
            if answer is not None and answer.status_code not in {409, 423}:
                self.journal.violated(f"PATCH: {answer.status_code} {answer.text[:200]}")
                raise UncoveredError(job.job_id)
            standing = self.caller.final("HEAD", url, headers=TUS)
            offset = int(standing.headers["upload-offset"])
        return [job]

    def _created(self, way: str) -> tuple[Clip, Any, Accepted]:
        clip = self.chance.choice(list(self.clips.values()))
        body = self.body() | {"fileName": clip.path.name, "fileSizeBytes": len(clip.data)}
        created = self._create("/jobs", body)
        return clip, created, self.accept(created, way, clip.name, body["processingMode"])

    def from_url(self, way: str) -> list[Accepted]:
        """Let the service fetch it."""
        clip, body = self.fetched()
        created = self._create("/jobs/from-url", body)
        return [self.accept(created, way, clip.name, body["processingMode"])]

    def fetched(self) -> tuple[Clip, dict[str, Any]]:
        """A clip, and the body of the request that has the service fetch it."""
        clip = self.chance.choice(list(self.clips.values()))
        return clip, self.body() | {"url": self._url(clip)}

    def batch(self, way: str) -> list[Accepted]:
        """Two or three clips, a job each."""
        chosen = self.chance.sample(list(self.clips.values()), self.chance.choice([2, 3]))
        body = self.body() | {
            "mode": "independent",
            "clips": [{"sourceUrl": self._url(clip)} for clip in chosen],
        }
        created = self._create("/jobs/batch", body)
        return [
            self.accept(job, way, chosen[job["index"]].name, body["processingMode"])
            for job in created["jobs"]
        ]

    def timeline(self, way: str) -> list[Accepted]:
        """Two clips laid end to end: one job."""
        names = self.chance.choice(TIMELINES)
        body = self.body() | {
            "mode": "continuous",
            "clips": [{"sourceUrl": self._url(self.clips[name])} for name in names],
        }
        [job] = self._create("/jobs/batch", body)["jobs"]
        return [self.accept(job, way, BETWEEN.join(names), body["processingMode"])]

    def cancel(self, way: str) -> list[Accepted]:
        """A job that its customer gives up after a while."""
        [job] = self.from_url(way)
        self.stopping.wait(self.chance.uniform(0, CANCEL_WITHIN_SECONDS))
        job.cancel_asked = True
        answer = self.caller.data("POST", f"/jobs/{job.job_id}/cancel", 409)
        job.cancelled = answer["state"] == "cancelled"
        return [job]

    def spoken(self, way: str) -> list[Accepted]:
        """A job with a transcript to change."""
        clip, body = self.fetched()
        body["processingMode"] = "transcript"
        created = self._create("/jobs/from-url", body)
        return [self.accept(created, way, clip.name, body["processingMode"])]

    def edit(self, job: Accepted) -> None:
        """Two editors at once: one of them is refused, reads again and tries again."""
        token = uuid.UUID(int=self.chance.getrandbits(128)).hex
        job.marker = f"z{token}"
        count = len(self._transcript(job)["segments"])
        with ThreadPoolExecutor(2) as editors:
            texts = {n: f"Write to {job.marker}@example.com {n}." for n in range(min(2, count))}
            for each in [editors.submit(self._correct, job, *text) for text in texts.items()]:
                each.result()

    def redact(self, job: Accepted) -> None:
        """Correct it, have what the correction has hidden, and wait until it is."""
        self.edit(job)
        path, body = f"/jobs/{job.job_id}", {"kinds": ["email"]}
        self.caller.data("POST", f"{path}/redact", json=body)
        job.redacted = True
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            shown = self.caller.data("GET", f"{path}?include=none")["redaction"]
            if shown["status"] == "completed":
                return
            if shown["status"] == "failed":
                self.caller.data("POST", f"{path}/redact", json=body)
            time.sleep(POLL_SECONDS)
        self.journal.violated(f"job {job.job_id} is not redacted: {shown}")

    def erase(self, job: Accepted) -> None:
        """Correct it, and erase it."""
        self.edit(job)
        job.erase_asked = True
        self.caller.data("POST", f"/jobs/{job.job_id}/erase")

    def _transcript(self, job: Accepted) -> Any:
        return self.caller.data("GET", f"/jobs/{job.job_id}/transcript")

    def _correct(self, job: Accepted, index: int, text: str) -> None:
        """Until it is stored: whether an answer that was lost stored it, is read."""
        for _ in range(MOST_CONFLICTS):
            read = self._transcript(job)
            if read["segments"][index]["text"] == text:
                job.edits[index] = text
                return
            edit = {"revision": read["revision"], "segments": [{"index": index, "text": text}]}
            path = f"/jobs/{job.job_id}/transcript"
            answer = self.caller.data("PATCH", path, 409, json=edit)
            if answer.get("code", "REVISION_CONFLICT") != "REVISION_CONFLICT":
                self.journal.violated(f"PATCH {path}: {answer}")
        self.journal.violated(f"job {job.job_id}: segment {index} cannot be corrected")

    def follow(self, job: Accepted) -> None:
        """Poll until the job has ended, and read its results."""
        while True:
            found = self.caller.data("GET", f"/jobs/{job.job_id}?include=none")
            if found["state"] in TERMINAL_STATES:
                break
            time.sleep(POLL_SECONDS)
        job.ended, job.ended_seconds = found, self.journal.seconds()
        if found["state"] == "completed":
            if job.way == "rerun":  # while its media are kept
                self.rerun(job)
            self.caller.data("GET", f"/jobs/{job.job_id}")
            for path in self.chance.sample(files_of(job.mode, job.clip), FILES_TAKEN):
                job.files[path] = read_file(self.caller, job.job_id, path)
            self.read_of(job)
            if job.way in AFTERWARDS:
                AFTERWARDS[job.way](self, job)

    def read(self) -> None:
        """What dashboards and curious people ask."""
        for path in self.chance.sample(READS, 2):
            self.caller.final("GET", f"{self.stage.service.base_url}{path}")

    def read_of(self, job: Accepted) -> None:
        """What is made of results; and how the job differs from another one."""
        path = f"/jobs/{job.job_id}/{self.chance.choice(JOB_READS)}"
        if job.mode == "all":
            self.caller.final("GET", f"{self.caller.base_url}{path}")
            before, self.latest = self.latest, job.job_id
            if before is not None:
                self.caller.data("POST", "/comparisons", json={"from": before, "to": job.job_id})

    def rerun(self, job: Accepted) -> None:
        """Make some of its results again, and read them all the while: they are whole."""
        stages = [stage for stage in ("vision", "transcript") if job.mode in {"all", stage}]
        stages = stages[: self.chance.randint(1, len(stages))]
        watch = ExchangeWatch(self.stage.database.url, job.job_id, stages)
        path = f"/jobs/{job.job_id}/rerun"
        answer = self.caller.data("POST", path, *RERUN_REFUSALS, json={"stages": stages})
        if "rerunJobId" not in answer:
            self.journal.did(f"rerun refused: {answer['code']}")
            return
        mode = stages[0] if len(stages) == 1 else "all"
        made = self.accept({"jobId": answer["rerunJobId"]}, "made again", job.clip, mode)
        made.rerun_of = job.job_id
        while True:
            found = self.caller.data("GET", f"/jobs/{made.job_id}?include=none")
            for part, value in read_results(self.caller, job.job_id, job.mode).items():
                if value != self.results[job.clip][part]:
                    self.journal.violated(f"job {job.job_id}: other {part} while it is made again")
            for sentence in watch.violations(made.job_id):
                self.journal.violated(sentence)
            if found["state"] in TERMINAL_STATES:
                break
            time.sleep(POLL_SECONDS)
        made.ended, made.ended_seconds = found, self.journal.seconds()

    def body(self) -> dict[str, Any]:
        return {
            "processingMode": self.chance.choice(MODES),
            "callbackUrl": self.stage.receiver.url,
            "metadata": {"asset": str(uuid.UUID(int=self.chance.getrandbits(128)))},
        }

    def _create(self, path: str, body: dict[str, Any]) -> Any:
        key = str(uuid.uuid4())
        return self.caller.data("POST", path, json=body, headers={"Idempotency-Key": key})

    def _url(self, clip: Clip) -> str:
        return self.stage.files.url(f"/{clip.path.name}")

    def accept(self, created: Any, way: str, clip: str, mode: str) -> Accepted:
        """Write down a job that an answer named."""
        at = self.journal.seconds()
        job = Accepted(created["jobId"], self.customer.account, way, clip, mode, at)
        self.journal.accept(job)
        return job


WAYS: dict[str, tuple[Callable[[Client, str], list[Accepted]], float]] = {
    "upload": (Client.upload, 3),
    "resumable": (Client.resumable, 3),
    "url": (Client.from_url, 2),
    "batch": (Client.batch, 2),
    "timeline": (Client.timeline, 1),
    "cancel": (Client.cancel, 2),
    "edit": (Client.spoken, 2),
    "redact": (Client.spoken, 2),
    "erase": (Client.spoken, 2),
    "rerun": (Client.from_url, 3),
}
"""How jobs come in, and how often by comparison."""
AFTERWARDS: dict[str, Callable[[Client, Accepted], None]] = {
    "edit": Client.edit,
    "redact": Client.redact,
    "erase": Client.erase,
}
"""What their client does with completed ones."""
