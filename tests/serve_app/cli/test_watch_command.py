"""``vas watch`` on the running API: each file is one job, whenever the watcher is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipelines.collection import held_alone, member_at
from serve_app.client.api import ApiClient, JsonObject, RequestFailedError
from serve_app.client.watch import StoppedError, Watcher, WatchRecord, pausing
from storage import ledger
from tests.background import in_background
from tests.contract.calling import Caller, ContractApi, fresh_api
from tests.contract.runner_side import RunnerSide

RESULTS = {"contact-sheet.png", "job.json", "scenes.json", "transcript.json", "transcript.srt",
           "transcript.vtt"}  # fmt: skip
ENDINGS = (".mp4", ".wav")


@pytest.fixture(scope="module")
def api(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContractApi]:
    with fresh_api(postgres_url, tmp_path_factory.mktemp("watched")) as running:
        yield running


@pytest.fixture(scope="module")
def runner(api: ContractApi) -> Iterator[RunnerSide]:
    """A runner that completes every job whose media has arrived, but those named ``bad…``."""
    side = RunnerSide(api)
    with side.completing():
        yield side


@pytest.fixture
def caller(api: ContractApi, runner: RunnerSide, monkeypatch: pytest.MonkeyPatch) -> Caller:
    monkeypatch.setattr("serve_app.client.api.FIRST_POLL_SECONDS", 0.03)
    return api.caller(credits_cents=10_000)


def jobs_of(caller: Caller) -> Counter[tuple[str, str]]:
    """The account's jobs by file name and state, from the database."""
    rows = caller.api.sql(
        "SELECT file_name, state FROM jobs WHERE account_id = :id", id=caller.customer.account_id
    )
    return Counter((str(name), str(state)) for name, state in rows)


def results_of(path: Path) -> set[str]:
    folder = path.with_name(f"{path.name}.vas")
    return {each.name for each in folder.iterdir()} if folder.is_dir() else set()


class Command:
    """``vas watch`` as a process; killed like by a power cut."""

    def __init__(self, caller: Caller, folder: Path, *words: str) -> None:
        environment = os.environ | {
            "VAS_URL": f"{caller.api.root}/v1/api",
            "VAS_KEY": caller.customer.key,
            "NO_PROXY": "*",
        }
        command = [sys.executable, "-m", "serve_app.cli", "watch", str(folder),
                   "--poll", "0.1", "--settle", "0.3", "--json", *words]  # fmt: skip
        self.process = subprocess.Popen(
            in_background(command),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=120)

    def end(self, number: int = 0) -> list[dict[str, Any]]:
        """The events that it printed, after it has ended by itself or by a signal."""
        if number:
            self.process.send_signal(number)
        out, error = self.process.communicate(timeout=60)
        assert self.process.returncode in {0, 1}, error
        return [json.loads(line) for line in out.splitlines()]


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.long)])
def test_each_of_many_files_becomes_one_job_although_the_watcher_is_killed(
    caller: Caller, tmp_path: Path, count: int
) -> None:
    names = [f"take {number:02}.mp4" for number in range(count)]
    chance = random.Random(28)
    command = Command(caller, tmp_path, "--jobs", "8")
    kills = 0
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(os.urandom(chance.randint(1, 200_000)))
        if number % 10 == 4:
            seen = sum(jobs_of(caller).values())
            until(lambda seen=seen: sum(jobs_of(caller).values()) > seen)  # type: ignore[misc]
            time.sleep(chance.uniform(0, 0.3))
            command.kill()
            kills += 1
            command = Command(caller, tmp_path, "--jobs", "8")
    until(lambda: all(results_of(tmp_path / name) >= RESULTS for name in names), 60 + 10 * count)
    command.end(signal.SIGINT)
    assert kills == count // 10
    assert jobs_of(caller) == Counter((name, "completed") for name in names)
    for name in names:
        job = WatchRecord.read(tmp_path / f"{name}.vas")
        assert job is not None
        assert caller.job(str(job.job_id))["fileName"] == name


class KilledError(BaseException):
    """The process ends here, as far as the watcher can tell."""


@contextmanager
def watcher(
    caller: Caller, folder: Path, steps: Iterator[int] | None = None, **options: Any
) -> Iterator[tuple[Watcher, list[JsonObject]]]:
    """A watcher in this process; where ``steps`` run out, its next request or write is the last."""
    stop = threading.Event()
    events: list[JsonObject] = []
    with ApiClient(f"{caller.api.root}/v1/api", caller.customer.key, sleep=pausing(stop)) as client:
        made = Watcher(folder, client, events.append, stop, ENDINGS, settle_seconds=0,
                       poll_seconds=0.02, **options)  # fmt: skip
        yield made, events


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.long)])
def test_a_file_is_analysed_once_whichever_request_or_write_was_the_last(
    caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Dies before, or after, the n-th request or replaced file; then goes on without dying."""
    deaths = 0
    for last in range(30):
        path = tmp_path / f"{last}.mp4"
        path.write_bytes(b"footage" * 1000)
        if not dies_at(caller, path, last, when, monkeypatch):
            break
        deaths += 1
        with watcher(caller, tmp_path) as (made, _):
            made._take(path, member_at(path).version)
        assert results_of(path) == RESULTS
    assert deaths >= 10
    assert set(jobs_of(caller).values()) == {1}
    assert {state for _, state in jobs_of(caller)} == {"completed"}


def dies_at(
    caller: Caller, path: Path, last: int, when: str, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Whether the watcher came to its ``last`` step and died there."""
    left = last

    def dying(do: Callable[..., Any]) -> Callable[..., Any]:
        def done(*args: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0 and when == "before":
                raise KilledError
            result = do(*args, **named)
            if left < 0:
                raise KilledError
            return result

        return done

    with watcher(caller, path.parent) as (made, _), monkeypatch.context() as patched:
        patched.setattr(made.client._http, "send", dying(made.client._http.send))
        patched.setattr(Path, "replace", dying(Path.replace))
        try:
            made._take(path, member_at(path).version)
        except KilledError:
            return True
    return False


def test_what_is_not_whole_or_not_media_or_its_own_is_left_alone(
    caller: Caller, tmp_path: Path
) -> None:
    for name in (".hidden.mp4", "a.mp4.part", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "folder.mp4").mkdir()
    good = tmp_path / "Good.MP4"
    good.write_bytes(b"footage")
    for _ in range(2):
        with watcher(caller, tmp_path) as (made, _):
            made.run(once=True)
    assert jobs_of(caller) == {("Good.MP4", "completed"): 1}
    assert results_of(good) == RESULTS


def test_a_file_that_grows_is_not_taken_before_it_lies_still(
    caller: Caller, tmp_path: Path
) -> None:
    path, growing = tmp_path / "long.mp4", threading.Event()

    def grow() -> None:
        with path.open("wb") as file:
            while not growing.wait(0.05):
                file.write(b"footage")
                file.flush()

    thread = threading.Thread(target=grow)
    with watcher(caller, tmp_path) as (made, events):
        made.settle_seconds = 3.0
        running = threading.Thread(target=made.run)
        thread.start()
        running.start()
        time.sleep(1)
        assert jobs_of(caller) == {}
        growing.set()
        until(lambda: results_of(path) == RESULTS)
        made.stop.set()
        running.join(120)
        thread.join(120)
    [size] = caller.api.sql(
        "SELECT received_bytes FROM uploads JOIN jobs ON id = job_id WHERE account_id = :id",
        id=caller.customer.account_id,
    )
    assert size == (path.stat().st_size,)
    assert [event["event"] for event in events] == ["created", "sent", "completed"]


def test_a_file_that_changes_while_it_is_sent_is_sent_again_as_it_is_then(
    caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "film.mp4"
    path.write_bytes(b"first")
    with watcher(caller, tmp_path) as (made, _), monkeypatch.context() as patched:
        upload = made.client.upload_resumable

        def changed(*args: Any) -> None:
            path.write_bytes(b"second version")
            patched.undo()
            upload(*args)

        patched.setattr(made.client, "upload_resumable", changed)
        made.run(once=True)
        made.stop.clear()
        made.run(once=True)
    assert sum(jobs_of(caller).values()) == 2
    assert jobs_of(caller)["film.mp4", "completed"] >= 1
    record = WatchRecord.read(tmp_path / "film.mp4.vas")
    assert record is not None
    assert record.version[0] == len(b"second version")


def test_what_failed_is_told_once_and_tried_again_where_its_folder_is_removed(
    caller: Caller, tmp_path: Path
) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"x")
    for _ in range(2):
        with watcher(caller, tmp_path) as (made, events):
            made.run(once=True)
    assert events == []
    assert jobs_of(caller) == {("bad.mp4", "failed"): 1}
    told = json.loads((tmp_path / "bad.mp4.vas" / "error.json").read_text())
    assert (told["file"], told["error"]["code"]) == ("bad.mp4", "INGEST_FAILED")
    for each in (tmp_path / "bad.mp4.vas").iterdir():
        each.unlink()
    (tmp_path / "bad.mp4.vas").rmdir()
    with watcher(caller, tmp_path) as (made, events):
        made.run(once=True)
        assert made.undone == {"bad.mp4"}
    assert [event["event"] for event in events] == ["created", "sent", "failed"]
    assert jobs_of(caller) == {("bad.mp4", "failed"): 2}


def test_a_file_that_cannot_be_read_keeps_no_other_one_waiting(
    caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, good = tmp_path / "locked.mp4", tmp_path / "good.mp4"
    for path in (locked, good):
        path.write_bytes(b"footage")
    with watcher(caller, tmp_path, concurrency=1) as (made, events):
        send = made.client.upload_resumable

        def refused(path: Path, *args: Any) -> None:
            if path.samefile(locked):
                raise PermissionError(13, "Permission denied", str(locked))
            send(path, *args)

        monkeypatch.setattr(made.client, "upload_resumable", refused)
        made.run(once=True)
    assert made.undone == {"locked.mp4"}
    assert results_of(good) == RESULTS
    [failure] = [event for event in events if event["event"] == "failed"]
    assert failure["error"] == {"code": "UNREADABLE_FILE", "message": "Permission denied."}


def test_a_file_that_is_refused_has_an_error_and_no_job(caller: Caller, tmp_path: Path) -> None:
    (tmp_path / "red.r3d").write_bytes(b"x")
    (tmp_path / "arri.ari").write_bytes(b"x")
    with watcher(caller, tmp_path) as (made, events):
        made.endings = (".ari",)
        made.run(once=True)
    assert [event["error"]["code"] for event in events] == ["UNSUPPORTED_FORMAT"]
    assert (tmp_path / "arri.ari.vas" / "error.json").exists()
    assert jobs_of(caller) == {}


def test_an_upload_that_came_too_late_is_made_again(
    caller: Caller, tmp_path: Path, runner: RunnerSide
) -> None:
    path = tmp_path / "late.mp4"
    path.write_bytes(b"footage")
    made = caller.create(fileName="late.mp4")
    (tmp_path / "late.mp4.vas").mkdir()
    WatchRecord(member_at(path).version, "all", job_id=made["jobId"]).write(
        tmp_path / "late.mp4.vas"
    )
    runner.expire(made["jobId"])
    with watcher(caller, tmp_path) as (watching, _):
        watching.run(once=True)
    assert jobs_of(caller) == {("late.mp4", "expired"): 1, ("late.mp4", "completed"): 1}


def test_without_credits_the_watcher_ends_and_goes_on_once_there_are_some(
    api: ContractApi, runner: RunnerSide, tmp_path: Path
) -> None:
    poor = api.caller(credits_cents=0)
    path = tmp_path / "film.mp4"
    path.write_bytes(b"footage")
    with watcher(poor, tmp_path) as (made, events):
        with pytest.raises(RequestFailedError, match="INSUFFICIENT_CREDITS"):
            made.run()
        assert events == []
    account = poor.customer.account_id
    api.transact(lambda c: ledger.grant(c, account, 1000, "test"))
    with watcher(poor, tmp_path) as (made, events):
        made.run(once=True)
    assert [event["event"] for event in events] == ["created", "sent", "completed"]
    assert jobs_of(poor) == {("film.mp4", "completed"): 1}


def link(place: Path, target: Path) -> None:
    place.symlink_to(target)


def keep(folder: Path) -> Path:
    """A folder of somebody else's, with files that must stay."""
    folder.mkdir()
    for name in ("notes.txt", "scenes.json", "transcript.srt"):
        (folder / name).write_text("mine")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in folder.iterdir()}


OTHERS = {"notes.txt": "mine", "scenes.json": "mine", "transcript.srt": "mine"}


@pytest.mark.parametrize("kind", ["folder", "folder with a record", "link", "dangling", "file"])
def test_what_this_command_did_not_make_is_left_alone_and_keeps_no_file_waiting(
    caller: Caller, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    outside, place = tmp_path_factory.mktemp("outside"), tmp_path / "film.mp4.vas"
    expected = OTHERS
    match kind:
        case "link":
            link(place, keep(outside / "own"))
        case "dangling":
            link(place, outside / "none")
        case "file":
            place.write_text("mine")
        case _:
            keep(place)
            if kind == "folder with a record":
                (place / "job.json").write_text(json.dumps({"version": 2, "state": "completed"}))
                expected = contents(place)
    for name in ("film.mp4", "good.mp4"):
        (tmp_path / name).write_bytes(b"footage")
    for _ in range(2):
        with watcher(caller, tmp_path) as (made, events):
            made.run(once=True)
            assert made.undone == {"film.mp4"}
        [failure] = [event for event in events if event["event"] == "failed"]
        assert failure["error"]["code"] == "FOREIGN_RESULTS"
        assert "film.mp4.vas was not made by vas watch" in failure["error"]["message"]
    assert jobs_of(caller) == {("good.mp4", "completed"): 1}
    match kind:
        case "dangling":
            assert not (outside / "none").exists()
        case "file":
            assert place.read_text() == "mine"
        case _:
            assert contents(place) == expected


def test_a_new_version_removes_what_the_command_made_of_the_last_one_and_nothing_else(
    caller: Caller, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, outside = tmp_path / "film.mp4", keep(tmp_path_factory.mktemp("outside") / "own")
    path.write_bytes(b"first")
    with watcher(caller, tmp_path) as (made, _):
        made.run(once=True)
    results = tmp_path / "film.mp4.vas"
    (results / "notes.txt").write_text("mine")
    (results / "more").mkdir()
    (results / "transcript.srt").unlink()
    link(results / "transcript.srt", outside / "transcript.srt")
    (results / "transcript.track3.vtt").write_text("of a track that the new version lacks")
    (results / f".scenes.json-{'0' * 32}").write_text("of a process that was killed")
    path.write_bytes(b"second version")
    with watcher(caller, tmp_path) as (made, _):
        made.run(once=True)
    assert results_of(path) == RESULTS | {"notes.txt", "more"}
    assert (results / "notes.txt").read_text() == "mine"
    assert contents(outside) == OTHERS
    assert jobs_of(caller) == {("film.mp4", "completed"): 2}


def test_links_are_left_out_with_a_line_and_end_nothing(
    caller: Caller, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("outside") / "secret.mp4"
    secret.write_bytes(b"not to be sent")
    link(tmp_path / "secret.mp4", secret)
    link(tmp_path / "loop.mp4", tmp_path / "loop.mp4")
    link(tmp_path / "notes.txt", secret)
    (tmp_path / "good.mp4").write_bytes(b"footage")
    os.mkfifo(tmp_path / "pipe.mp4")
    with watcher(caller, tmp_path) as (made, events):
        made.run(once=True)
        assert made.undone == set()
    skipped = [(each["file"], each["reason"]) for each in events if each["event"] == "skipped"]
    assert sorted(skipped) == [("loop.mp4", "a symbolic link"), ("secret.mp4", "a symbolic link")]
    assert jobs_of(caller) == {("good.mp4", "completed"): 1}


def test_a_file_that_becomes_a_link_after_it_was_seen_is_not_sent(
    caller: Caller, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("outside") / "secret.mp4"
    secret.write_bytes(b"secrets")
    path = tmp_path / "film.mp4"
    path.write_bytes(b"footage")
    with watcher(caller, tmp_path) as (made, _):
        create = made.client.create_job

        def swapped(*args: Any, **named: Any) -> JsonObject:
            path.unlink(missing_ok=True)
            link(path, secret)
            return create(*args, **named)

        made.client.create_job = swapped  # type: ignore[method-assign]
        made._take(path, member_at(path).version)
    sent = caller.api.sql(
        "SELECT received_bytes FROM uploads JOIN jobs ON id = job_id WHERE account_id = :id",
        id=caller.customer.account_id,
    )
    assert [size for (size,) in sent] == [None]


def test_a_lock_that_is_a_link_leads_nowhere(
    caller: Caller, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    target = tmp_path_factory.mktemp("outside") / "target"
    target.write_text("mine")
    link(tmp_path / ".vas-watch.lock", target)
    command = Command(caller, tmp_path, "--once")
    _, error = command.process.communicate(timeout=120)
    assert command.process.returncode == 2
    assert ".vas-watch.lock: Is a symbolic link, remove it." in error
    assert target.read_text() == "mine"


@pytest.mark.parametrize(
    "trouble", [OSError(28, "No space left on device"), KeyError("scenes")], ids=["disk", "mistake"]
)
def test_trouble_with_one_file_ends_nothing_and_is_tried_again(
    caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    monkeypatch.setattr("serve_app.client.watch.pause_seconds", lambda _: 0.1)
    for name in ("film.mp4", "good.mp4"):
        (tmp_path / name).write_bytes(b"footage")
    with watcher(caller, tmp_path) as (made, events), monkeypatch.context() as patched:
        left = 2

        call = made.client.call

        def troubled(operation: str, **arguments: object) -> Any:
            nonlocal left
            if operation == "getScenes":
                left -= 1
                if left >= 0:
                    raise trouble
                patched.undo()
            return call(operation, **arguments)

        patched.setattr(made.client, "call", troubled)
        running = threading.Thread(target=made.run)
        running.start()
        until(lambda: all(results_of(tmp_path / name) == RESULTS
                          for name in ("film.mp4", "good.mp4")))  # fmt: skip
        made.stop.set()
        running.join(120)
    assert 1 <= len([event for event in events if event["event"] == "waiting"]) <= 2
    assert jobs_of(caller) == {("film.mp4", "completed"): 1, ("good.mp4", "completed"): 1}


def test_once_ends_with_what_it_did(caller: Caller, tmp_path: Path) -> None:
    for name in ("a.mp4", "b.mp4", "bad.mp4"):
        (tmp_path / name).write_bytes(b"footage")
    link(tmp_path / "link.mp4", tmp_path / "a.mp4")
    last = [Command(caller, tmp_path, "--once").end()[-1] | {"event": "ended"} for _ in range(2)]
    assert last == [
        {"event": "ended", "completed": 2, "failed": 1, "waiting": 0, "before": 0, "skipped": 1},
        {"event": "ended", "completed": 0, "failed": 0, "waiting": 0, "before": 3, "skipped": 1},
    ]


def test_a_refused_key_is_a_sentence_and_exit_status_1_although_the_folder_is_empty(
    caller: Caller, tmp_path: Path
) -> None:
    command = Command(caller, tmp_path, "--once", "--key", f"vas_live_{'x' * 43}")
    _, error = command.process.communicate(timeout=120)
    assert (command.process.returncode, len(error.splitlines())) == (1, 1)
    assert error.startswith("UNAUTHORIZED: ")


def test_only_one_watches_a_folder(caller: Caller, tmp_path: Path) -> None:
    with held_alone(tmp_path / ".vas-watch.lock", "busy"):
        second = Command(caller, tmp_path, "--once")
        _, error = second.process.communicate(timeout=120)
    assert second.process.returncode == 2
    assert "Another vas watch is at work" in error


def test_a_service_that_is_away_is_waited_for(
    caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "film.mp4"
    path.write_bytes(b"footage")
    monkeypatch.setattr("serve_app.client.watch.pause_seconds", lambda _: 0.1)
    monkeypatch.setattr("serve_app.client.api.MAX_SERVER_FAILURES", 1)
    with watcher(caller, tmp_path) as (made, events):
        there = made.client._base_url
        made.client._base_url = "http://127.0.0.1:9/v1/api"
        running = threading.Thread(target=made.run)
        running.start()
        until(lambda: [event["event"] for event in events] == ["waiting"])
        made.client._base_url = there
        until(lambda: results_of(path) == RESULTS)
        made.stop.set()
        running.join(120)
    assert jobs_of(caller) == {("film.mp4", "completed"): 1}


def test_a_stop_ends_the_waiting() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        pausing(stop)(60)
