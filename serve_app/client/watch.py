"""A watched folder: every file that lies still becomes a job, with its results beside it.

``clip.mp4.vas/job.json`` records how far ``clip.mp4`` is. It is written before what must not happen
twice: the key that makes the creation repeatable before the job is created, the job's id before its
media is sent, the end once all results lie beside it. So a process that is killed at any moment
leaves nothing that the next one would do again.

The folder ``clip.mp4.vas`` lies in one that others may write to. So nothing is followed that is a
symbolic link, and nothing is removed but files of the names that are given here, in a folder that
has such a record.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import queue
import re
import stat
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from pipelines.collection import (
    held_alone,
    is_chosen,
    is_hidden,
    may_pass,
    member_at,
    pause_seconds,
    problem_of,
)
from serve_app.client import api
from serve_app.client.export import PARTIAL_NAMES, RESULT_NAMES, export_results, write_atomically

log = logging.getLogger("vas.watch")

FOLDER_ENDING = ".vas"
STATE_NAME = "job.json"
ERROR_NAME = "error.json"
"""Of the folder beside a file, and of what lies in it besides the results."""

_OWN_NAMES = rf"{re.escape(STATE_NAME)}|{re.escape(ERROR_NAME)}|{RESULT_NAMES}"
_OWN = re.compile(f"{_OWN_NAMES}|{PARTIAL_NAMES.format(names=_OWN_NAMES)}")
_PARTIAL_RECORD = re.compile(PARTIAL_NAMES.format(names=re.escape(STATE_NAME)))
_KEY_BEGINNING = "vas-watch-"

_OF_ANOTHER_KIND = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EINVAL})
"""Errors of opening a link, or a file for a folder, or what is no file."""

LOCK_NAME = ".vas-watch.lock"

MAX_ATTEMPTS = 3
"""Jobs of one file whose upload came too late."""
LEAVE_SECONDS = 5.0
"""What a stop waits for requests under way."""

OUTCOMES = ("completed", "failed", "waiting", "before", "skipped")
"""What can become of a file: its last event of these, or that it was done ``before``."""
OF_THE_ACCOUNT = frozenset({"UNAUTHORIZED", "ACCOUNT_SUSPENDED", "INSUFFICIENT_CREDITS"})
"""Codes of errors that concern every file: they end the watch."""

Version = tuple[int, str | datetime | None]
"""Of a member of the collection."""
Report = Callable[[api.JsonObject], None]
"""Called with ``event``, ``file`` and what belongs to it, from several threads."""


class StoppedError(Exception):
    """The watcher was stopped in the middle of a file."""


class ForeignResultsError(Exception):
    """What lies in the place of a file's results was not made by this program."""


@dataclass(frozen=True, slots=True)
class WatchRecord:
    """How far a file is: the content of its ``job.json``."""

    version: Version
    mode: api.ProcessingMode
    idempotency_key: str = field(default_factory=lambda: f"{_KEY_BEGINNING}{uuid.uuid4()}")
    attempt: int = 1
    job_id: str | None = None
    state: str | None = None
    """``completed`` or ``failed`` once all is done and written."""

    @classmethod
    def read(cls, folder: Path) -> WatchRecord | None:
        """Return None where there is none; raises ForeignResultsError for what is no record."""
        try:
            with opened(folder / STATE_NAME, os.O_RDONLY) as file:
                stored = json.loads(file.read_bytes())
            found = stored["version"]["size_bytes"], str(stored["version"]["modified_ns"])
            record = cls(**stored | {"version": found})
            own = record.idempotency_key.startswith(_KEY_BEGINNING)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ForeignResultsError(str(folder)) from error
        except OSError as error:
            if error.errno not in _OF_ANOTHER_KIND:
                raise
            raise ForeignResultsError(str(folder)) from error
        if not own:
            raise ForeignResultsError(str(folder))
        return record

    def write(self, folder: Path) -> WatchRecord:
        size_bytes, modified_ns = self.version
        version = {"size_bytes": size_bytes, "modified_ns": int(str(modified_ns))}
        text = json.dumps(asdict(self) | {"version": version}, indent=1)
        write_atomically(folder / STATE_NAME, f"{text}\n".encode())
        return self


def pausing(stop: threading.Event) -> Callable[[float], None]:
    """Return a sleep that raises StoppedError once ``stop`` is set; for the watcher's client."""

    def pause(seconds: float) -> None:
        if stop.wait(seconds):
            raise StoppedError

    return pause


@dataclass(slots=True)
class Watcher:
    """Watches one folder until ``stop`` is set; ``endings`` are those of files that are taken.

    The client's ``sleep`` must be ``pausing(stop)``.
    """

    folder: Path
    client: api.ApiClient
    report: Report
    stop: threading.Event
    endings: Collection[str]
    mode: api.ProcessingMode = "all"
    concurrency: int = 4
    settle_seconds: float = 5.0
    poll_seconds: float = 2.0
    outcomes: dict[str, str] = field(default_factory=dict)
    """File name -> ``completed``, ``failed``, ``waiting``, ``skipped``, or done ``before``."""
    _lying: dict[Path, tuple[Version, float]] = field(default_factory=dict)
    """Files with the version they have had since a moment of the monotonic clock."""
    _done: dict[Path, Version] = field(default_factory=dict)
    _at_work: set[Path] = field(default_factory=set)
    _later: dict[Path, float] = field(default_factory=dict)
    _failures: Counter[Path] = field(default_factory=Counter)
    """Of what may pass, one after the other."""
    _reasons: dict[Path, str] = field(default_factory=dict)
    """Why files are left out, or left for later: reported once."""
    _fatal: Exception | None = None
    _queue: queue.SimpleQueue[tuple[Path, Version]] = field(default_factory=queue.SimpleQueue)

    @property
    def undone(self) -> set[str]:
        """Names of files that failed, or that were left for later."""
        return {name for name, each in self.outcomes.items() if each in {"failed", "waiting"}}

    def run(self, *, once: bool = False) -> None:
        """Return after a stop, or where it is ``once``, after all that lay still was taken.

        Raises PlaceError where another process watches the folder, ApiError of the whole account,
        OSError of the folder.
        """
        refusal = f"Another vas watch is at work in {self.folder}."
        with held_alone(self.folder / LOCK_NAME, refusal):
            threads = [threading.Thread(target=self._serve, daemon=True)
                       for _ in range(self.concurrency)]  # fmt: skip
            for thread in threads:
                thread.start()
            began_at = time.monotonic()
            while not self.stop.is_set():
                self._look()
                lain = time.monotonic() - began_at >= self.settle_seconds + self.poll_seconds
                if once and lain and not self._at_work:
                    self.stop.set()
                self.stop.wait(self.poll_seconds)
            deadline = time.monotonic() + LEAVE_SECONDS
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._fatal is not None:
            raise self._fatal

    def _look(self) -> None:
        """Take up every file that lies still."""
        now, found = time.monotonic(), {}
        with os.scandir(self.folder) as entries:
            names = {entry.name: entry for entry in entries}
        for name, entry in names.items():
            path = self.folder / name
            if is_hidden(name) or not is_chosen(name, [f"*{ending}" for ending in self.endings]):
                continue
            if (version := self._version(path, entry)) is None:
                continue
            known, since = self._lying.get(path, (version, now))
            found[path] = (version, since if known == version else now)
            has_results = f"{name}{FOLDER_ENDING}" in names
            if self._done.get(path) == version and has_results:
                continue
            if path in self._at_work or self._later.get(path, 0.0) > now:
                continue
            if now - found[path][1] >= self.settle_seconds:
                self._at_work.add(path)
                self._queue.put((path, version))
        self._lying = found

    def _version(self, path: Path, entry: os.DirEntry[str]) -> Version | None:
        """Return None for what is no file with content."""
        try:
            member = member_at(path)
        except OSError as error:
            self._report_once("skipped", path, error.strerror or str(error))
            return None
        if entry.is_symlink():
            self._report_once("skipped", path, "a symbolic link")
        return None if problem_of(member) else member.version

    def _serve(self) -> None:
        while not self.stop.is_set():
            try:
                path, version = self._queue.get(timeout=0.2)
            except queue.Empty:
                continue
            try:
                self._take(path, version)
            except api.RequestFailedError as error:
                # Of the whole account: nothing goes on from there.
                self._fatal = error
                self.stop.set()
            except Exception as error:
                log.exception("%s is left for later", path.name)
                self._postpone(path, f"{type(error).__name__}: {error}")
            self._at_work.discard(path)

    def _take(self, path: Path, version: Version) -> None:
        """All of a file; what cannot be done now is left for later. Raises OF_THE_ACCOUNT."""
        self._later.pop(path, None)
        results = path.name + FOLDER_ENDING
        try:
            if _is_still(path, version):
                with own_folder(_results_of(path)) as folder:
                    self._analyse_into(folder, path, version)
        except (StoppedError, FileNotFoundError):
            return  # Removed by its owner before it was sent.
        except api.FileChangedError:
            self._report("waiting", path, reason="the file changes")
        except httpx.TransportError as error:
            self._postpone(path, str(error))
        except api.RequestFailedError as error:
            self._leave_refused(path, error)
        except ForeignResultsError:
            message = f"{results} was not made by vas watch: move it away."
            self._give_up(path, "FOREIGN_RESULTS", message)
        except OSError as error:
            if error.filename == str(path):
                self._give_up(path, "UNREADABLE_FILE", f"{error.strerror}.")
            else:
                self._postpone(path, f"{results}: {error.strerror or error}")

    def _leave_refused(self, path: Path, error: api.RequestFailedError) -> None:
        if error.code in OF_THE_ACCOUNT:
            raise error
        if may_pass(error.status):
            self._postpone(path, str(error))
        elif error.status == 404:
            message = f"The service does not know the job; remove {path.name}{FOLDER_ENDING}."
            self._give_up(path, error.code, message)
        else:
            self._keep_error(path, {"code": error.code, "message": error.message})

    def _postpone(self, path: Path, reason: str) -> None:
        self._failures[path] += 1
        self._later[path] = time.monotonic() + pause_seconds(self._failures[path])
        self._report_once("waiting", path, reason)

    def _analyse_into(self, folder: Path, path: Path, version: Version) -> None:
        record = WatchRecord.read(folder)
        if record is None or record.version != version:
            clear_results(folder)
            record = WatchRecord(version, self.mode)
        if record.state is not None:
            self.outcomes.setdefault(path.name, "before")
            self._done[path] = version
            return
        record.write(folder)
        job = self._ended_job(path, folder, record)
        if job["state"] == "completed":
            files = export_results(self.client, job["jobId"], folder)
            self._close(path, folder, "completed")
            listed = [str(_results_of(path) / file.name) for file in files]
            self._report("completed", path, jobId=job["jobId"], files=listed)
        else:
            error = job.get("error") or {"code": job["state"].upper(), "message": ""}
            self._keep_error(path, error, jobId=job["jobId"], stages=job["stages"])

    def _ended_job(self, path: Path, folder: Path, record: WatchRecord) -> api.JsonObject:
        """Return the file's job, created and sent as far as it was not, in its last state."""
        while True:
            job = self._job(path, folder, record)
            if job["state"] == "awaiting_upload":
                self._send(path, record, job)
                self._report("sent", path, jobId=job["jobId"])
            job = self.client.wait(job["jobId"])
            if job["state"] != "expired" or record.attempt == MAX_ATTEMPTS:
                return job
            # Nothing was analysed: the media did not arrive in time.
            record = WatchRecord(record.version, record.mode, attempt=record.attempt + 1).write(
                folder
            )

    def _job(self, path: Path, folder: Path, record: WatchRecord) -> api.JsonObject:
        if record.job_id is not None:
            return self.client.get_job(record.job_id)
        try:
            job = self._create(path, record)
        except api.RequestFailedError as error:
            if error.code == "INSUFFICIENT_CREDITS":  # Is remembered with the key.
                WatchRecord(record.version, record.mode, attempt=record.attempt).write(folder)
            raise
        replace(record, job_id=job["jobId"]).write(folder)
        self._report("created", path, jobId=job["jobId"])
        return job

    def _create(self, path: Path, record: WatchRecord) -> api.JsonObject:
        """Return a job for the file; again and again the same one."""
        return self.client.create_job(
            path.name,
            record.version[0],
            record.mode,
            idempotency_key=record.idempotency_key,
        )

    def _send(self, path: Path, record: WatchRecord, job: api.JsonObject) -> None:
        """Raises FileChangedError, the job cancelled, if it is another file by now, or none."""
        address = job.get("resumableUploadUrl") or self._create(path, record)["resumableUploadUrl"]
        try:
            with opened(path, os.O_RDONLY) as file:
                self.client.upload_resumable(file, address, self._go_on)
        except (api.RequestFailedError, api.FileChangedError, OSError) as error:
            late = isinstance(error, api.RequestFailedError) and error.status == 410
            if _is_still(path, record.version) and not late:
                raise
        if not _is_still(path, record.version):
            try:
                self.client.cancel(job["jobId"])
            except api.RequestFailedError as error:
                if error.code != "JOB_NOT_CANCELLABLE":
                    raise
            raise api.FileChangedError(path.name)

    def _go_on(self, sent_bytes: int, size_bytes: int) -> None:
        if self.stop.is_set():
            raise StoppedError

    def _keep_error(self, path: Path, error: api.JsonObject, **more: Any) -> None:
        text = json.dumps({"file": path.name, "error": error} | more, ensure_ascii=False, indent=2)
        with own_folder(_results_of(path)) as folder:
            write_atomically(folder / ERROR_NAME, f"{text}\n".encode())
            self._close(path, folder, "failed")
        self._give_up(path, error["code"], error["message"], **more)

    def _close(self, path: Path, folder: Path, state: str) -> None:
        record = WatchRecord.read(folder)
        if record is not None:
            replace(record, state=state).write(folder)
            self._done[path] = record.version
        del self._failures[path]

    def _give_up(self, path: Path, code: str, message: str, **more: Any) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._done[path] = member_at(path).version
        shown = {name: value for name, value in more.items() if name == "jobId"}
        self._report("failed", path, error={"code": code, "message": message}, **shown)

    def _report_once(self, event: str, path: Path, reason: str) -> None:
        if self._reasons.get(path) != reason:
            self._report(event, path, reason=reason)
        self._reasons[path] = reason

    def _report(self, event: str, path: Path, **more: Any) -> None:
        if event in OUTCOMES:
            self.outcomes[path.name] = event
            self._reasons.pop(path, None)
        self.report({"event": event, "file": path.name} | more)


def _is_still(path: Path, version: Version) -> bool:
    try:
        return member_at(path).version == version
    except FileNotFoundError:
        return False


def _results_of(path: Path) -> Path:
    return path.with_name(path.name + FOLDER_ENDING)


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[Path]:
    """A path to what lies at ``path`` now, whatever will be put there meanwhile.

    Raises OSError, also for a symbolic link and, unless a folder is expected, for what is no file.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        if not flags & os.O_DIRECTORY and not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Is no file", str(path))
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def own_folder(path: Path) -> Iterator[Path]:
    """The results at ``path``, made where there are none.

    Raises ForeignResultsError for what this program did not make: a folder without a record that
    has anything in it, a link, a file. Raises OSError too.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(opened(path, os.O_RDONLY | os.O_DIRECTORY))
        except OSError as error:
            if error.errno not in _OF_ANOTHER_KIND:
                raise
            raise ForeignResultsError(str(path)) from error
        names = [each.name for each in folder.iterdir()]
        if STATE_NAME not in names and not all(map(_PARTIAL_RECORD.fullmatch, names)):
            raise ForeignResultsError(str(path))
        yield folder


def clear_results(folder: Path) -> None:
    """Remove what an earlier version gave; its record is replaced, all else is not ours."""
    with os.scandir(folder) as entries:
        names = {each.name for each in entries if each.is_file(follow_symlinks=False)}
    for name in names - {STATE_NAME}:
        if _OWN.fullmatch(name):
            (folder / name).unlink()
