"""Broken downloads: taken up where they ended if the file is surely the same, else begun anew."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.execution.chain import FreeRun
from pipelines.net.fetch import fetch
from pipelines.types import StageError
from storage.objects.folder import FolderStore
from tests.pipelines.net.fetch_servers import (
    BODY,
    KEY,
    LOOPBACK,
    QUICK,
    Asked,
    Script,
    ScriptedServer,
    answer,
    nothing_stored,
    send_head,
)
from tests.tables import every

OLD = bytes(itertools.islice(itertools.cycle(range(13)), len(BODY)))
BREAK = 100_000


def break_off(to: socket.socket, body: bytes, /, **headers: object) -> None:
    """The beginning of ``body`` alone, although all of it is announced."""
    send_head(to, content_length=len(body), **headers)
    to.sendall(body[:BREAK])


def rest(asked: Asked, to: socket.socket, body: bytes = BODY, /, **headers: object) -> None:
    """The part of ``body`` that was asked for, as it should be answered."""
    first = asked.first_byte
    span = f"bytes {first}-{len(body) - 1}/{len(body)}"
    answer(to, 206, body[first:], **{"content_range": span, **headers})


class Outcome:
    """What came of a fetch from a server that plays ``scripts`` one after the other."""

    def __init__(self, folder: Path, *scripts: Script, limits: Any = QUICK) -> None:
        self.store = FolderStore(folder / "objects")
        self.limits = limits
        remaining = list(scripts)

        def play(asked: Asked, to: socket.socket) -> None:
            (remaining.pop(0) if len(remaining) > 1 else remaining[0])(asked, to)

        self.server = ScriptedServer(play)

    def run(self) -> Outcome:
        with ExitStack() as stack:
            server = stack.enter_context(self.server.running())
            fetch(
                server.url(),
                store=self.store,
                key=KEY,
                limits=self.limits,
                policy=LOOPBACK,
                control=FreeRun(),
            )
        return self

    @property
    def ranges(self) -> list[tuple[str | None, str | None]]:
        return [
            (asked.headers.get("range"), asked.headers.get("if-range"))
            for asked in self.server.asked
        ]


@pytest.mark.parametrize(
    ("headers", "validator"),
    [
        ({"etag": '"v1"'}, '"v1"'),
        (
            {"last_modified": "Tue, 01 Jul 2025 10:00:00 GMT"},
            "Tue, 01 Jul 2025 10:00:00 GMT",
        ),
        ({"etag": '"v1"', "last_modified": "Tue, 01 Jul 2025 10:00:00 GMT"}, '"v1"'),
    ],
    ids=["tag", "time", "both"],
)
def test_a_broken_download_is_taken_up_where_it_ended(
    tmp_path: Path, headers: dict[str, str], validator: str
) -> None:
    done = Outcome(
        tmp_path,
        lambda _asked, to: break_off(to, BODY, **headers),
        lambda asked, to: rest(asked, to, **headers),
    ).run()
    assert done.store.read_bytes(KEY) == BODY
    assert done.ranges == [(None, None), (f"bytes={BREAK}-", validator)]


def test_a_download_survives_many_breaks(tmp_path: Path) -> None:
    """Twelve breaks with three attempts: every MiB of progress earns new ones."""
    size = 12 << 20
    body = (BODY * 42)[:size]

    def a_bit_more(asked: Asked, to: socket.socket) -> None:
        first = asked.first_byte
        status = 206 if first else 200
        span = f"bytes {first}-{size - 1}/{size}" if first else None
        send_head(to, status, content_length=size - first, content_range=span, etag='"v"')
        to.sendall(body[first : first + (1 << 20)])

    limits = replace(QUICK, max_bytes=size)
    done = Outcome(tmp_path, a_bit_more, limits=limits).run()
    assert done.store.read_bytes(KEY) == body
    assert len(done.ranges) == 12


def test_a_part_shorter_than_asked_for_is_asked_on(tmp_path: Path) -> None:
    def short_part(asked: Asked, to: socket.socket) -> None:
        first = asked.first_byte
        last = min(first + BREAK, len(BODY)) - 1
        span = f"bytes {first}-{last}/{len(BODY)}"
        answer(to, 206, BODY[first : last + 1], content_range=span, etag='"v"')

    done = Outcome(tmp_path, lambda _asked, to: break_off(to, BODY, etag='"v"'), short_part).run()
    assert done.store.read_bytes(KEY) == BODY


NEW = {"etag": '"v2"'}
SECOND: dict[str, Callable[[Asked, socket.socket], None]] = {
    "ignores the range": lambda _asked, to: answer(to, 200, BODY, **NEW),
    "range not satisfiable": lambda _asked, to: answer(to, 416),
    "resumes elsewhere": lambda asked, to: rest(
        asked, to, OLD, content_range=f"bytes 0-{len(BODY) - BREAK - 1}/{len(BODY)}", etag='"v1"'
    ),
    "names no place": lambda asked, to: rest(asked, to, OLD, content_range=None, etag='"v1"'),
    "names an impossible place": lambda asked, to: rest(
        asked, to, OLD, content_range=f"bytes {BREAK}-{BREAK - 1}/{len(BODY)}", etag='"v1"'
    ),
    "another size": lambda asked, to: rest(
        asked, to, OLD, content_range=f"bytes {BREAK}-{len(BODY)}/{len(BODY) + 1}", etag='"v1"'
    ),
    "another file, ignoring If-Range": lambda asked, to: rest(asked, to, OLD, **NEW),
}


@every("second", SECOND.values(), ids=SECOND.keys())
def test_what_does_not_fit_is_begun_anew(tmp_path: Path, second: Script) -> None:
    """Never two files joined: the first 100 kB of OLD must not be in what is stored."""
    done = Outcome(
        tmp_path,
        lambda _asked, to: break_off(to, OLD, etag='"v1"'),
        second,
        lambda _asked, to: answer(to, 200, BODY, **NEW),
    ).run()
    assert done.store.read_bytes(KEY) == BODY
    assert done.ranges == [(None, None), (f"bytes={BREAK}-", '"v1"'), (None, None)]


@pytest.mark.parametrize("headers", [{}, {"etag": 'W/"weak"'}, {"etag": "unquoted"}])
def test_without_proof_of_sameness_it_is_begun_anew(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    done = Outcome(
        tmp_path,
        lambda _asked, to: break_off(to, OLD, **headers),
        lambda _asked, to: answer(to, 200, BODY),
    ).run()
    assert done.store.read_bytes(KEY) == BODY
    assert done.ranges == [(None, None)] * 2


def test_a_file_that_keeps_changing_ends_the_fetch(tmp_path: Path) -> None:
    versions = itertools.count()
    outcome = Outcome(tmp_path, lambda _asked, to: break_off(to, BODY, etag=f'"v{next(versions)}"'))
    with pytest.raises(StageError, match="FETCH_FAILED"):
        outcome.run()
    assert nothing_stored(outcome.store)
    assert len(outcome.ranges) == QUICK.attempts


def test_a_size_over_the_limit_that_shows_only_later_is_refused(tmp_path: Path) -> None:
    def unknown_length(_asked: Asked, to: socket.socket) -> None:
        send_head(to, transfer_encoding="chunked", etag='"v"')
        to.sendall(f"{BREAK:x}\r\n".encode() + BODY[:BREAK] + b"\r\n")

    def huge(asked: Asked, to: socket.socket) -> None:
        total = 1 << 40
        send_head(to, 206, content_range=f"bytes {asked.first_byte}-{total - 1}/{total}")

    outcome = Outcome(tmp_path, unknown_length, huge)
    with pytest.raises(StageError, match="VALIDATION_FAILED"):
        outcome.run()
    assert nothing_stored(outcome.store)
