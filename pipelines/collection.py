"""One collection: files of which each is to be analysed once, whichever door they come in by.

A folder, an operator's bucket (``Place``), a client's bucket (``net.buckets``), a manifest
(``backfill.manifest``) and the clips of a batch list its members. What holds for a member however
it was listed is decided here: whether it counts, whether it is another file than before, how long
to wait where it cannot be had, and how its end is named. ``vas watch``, archives and the backfill
keep only where they record that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pydantic_core import PydanticCustomError

from pipelines.media_types import Problem
from storage.objects import InvalidKeyError, ObjectStore, check_key
from storage.objects.folder import FolderStore
from storage.objects.node_cache import NodeCache
from storage.types import Member

S3_SCHEME = "s3://"
WORK_FOLDER = "_work"
"""Of an output: what is there of unfinished items. Readers of Parquet pass over the underscore."""
MOST_FAILURES = 10
"""One after the other, before whoever owns the collection has to look."""

DEFAULT_FILE_NAME = "video"
MAX_FILE_NAME = 255
"""Characters."""
MAX_KEYTERMS = 100
MAX_SPEAKERS = 20

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")
_NODE_CACHE_BYTES = 16 << 30
"""Most that a node keeps of what its tasks read and write."""
_LONGEST_PAUSE_SECONDS = 300.0
_HIDDEN = (".", "~")
_PARTIAL = (".part", ".partial", ".crdownload", ".download", ".filepart", ".tmp", "/")
"""Endings of files that are not whole yet, and of the marks that buckets have for folders."""


class MemberProblem(Problem):
    """Why a member is nothing to analyse."""

    EMPTY = "OBJECT_EMPTY", "The object is empty."
    FOLDER = "OBJECT_IS_FOLDER", "The object marks a folder and has no content."
    KEY = "OBJECT_KEY_UNUSABLE", "The object's key is no text."


@dataclass(frozen=True, slots=True)
class Page:
    """Some of a collection's members, in the order of their keys."""

    members: tuple[Member, ...]
    next_after: str | None
    """The key that the next page begins after; None: this was the last."""


def key_bytes(member: Member) -> bytes:
    """Return the key as the reader's server has it, which need not be UTF-8."""
    return member.key.encode(errors="surrogateescape")


def problem_of(member: Member) -> MemberProblem | None:
    """Return what a member can be refused for before it is fetched."""
    try:
        is_text = "\0" not in key_bytes(member).decode()
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        return MemberProblem.KEY
    if member.key.endswith(("/", "_$folder$")):
        return MemberProblem.FOLDER
    return None if member.size_bytes else MemberProblem.EMPTY


def is_chosen(key: str, patterns: Sequence[str]) -> bool:
    """Return whether the part of a key behind the prefix fits one of the patterns, of whatever
    case, or there are none. A pattern without a slash is one of the last component."""
    whole = key.lower()
    name = whole.rpartition("/")[2] or whole
    return not patterns or any(
        fnmatchcase(whole if "/" in each else name, each.lower()) for each in patterns
    )


def is_hidden(key: str) -> bool:
    """Return whether whoever put the file there has named it as none to look at, or not yet."""
    return key.lower().endswith(_PARTIAL) or any(
        part.startswith(_HIDDEN) for part in key.split("/")
    )


def plain_file_name(value: str) -> str:
    """Only the last path component counts, whichever way its slashes lean."""
    if _CONTROL_CHARACTERS.search(value):
        raise PydanticCustomError("file_name", "must not hold control characters")
    name = re.split(r"[/\\]", value)[-1]
    if name in {"", ".", ".."}:
        raise PydanticCustomError("file_name", "must name a file")
    return name


def name_in(address: str) -> str:
    """Return the file name that an address or a path ends with, or a plain default."""
    is_of_web = address.lower().startswith(("http://", "https://"))
    path = unquote(urlsplit(address).path) if is_of_web else address
    last = _CONTROL_CHARACTERS.sub("", path.rstrip("/").rpartition("/")[2])
    try:
        return plain_file_name(last[-MAX_FILE_NAME:])
    except PydanticCustomError:
        return DEFAULT_FILE_NAME


def member_at(path: Path) -> Member:
    """Return the file at ``path`` itself, of no size where it is none. Raises OSError."""
    status = path.lstat()
    size_bytes = status.st_size if stat.S_ISREG(status.st_mode) else 0
    return Member(path.name, size_bytes, str(status.st_mtime_ns))


def pause_seconds(failures: int) -> float:
    """Return how long to wait after so many failures, one after the other, that may pass."""
    return min(2.0 ** min(failures, 10), _LONGEST_PAUSE_SECONDS)


def may_pass(status: int) -> bool:
    """Return whether what the API refuses with ``status`` is to be tried again as it is."""
    return status == 429 or status >= 500


class PlaceError(ValueError):
    """A place cannot be used; the message has the reason."""


@contextlib.contextmanager
def held_alone(path: Path, refusal: str) -> Iterator[None]:
    """A file of the collection's folder that one process at a time has.

    Raises PlaceError with ``refusal`` where another has it, and OSError, also for a link.
    """
    if path.is_symlink():
        raise OSError(errno.ELOOP, "Is a symbolic link, remove it", str(path))
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PlaceError(refusal) from None
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class BucketAccess:
    """Where buckets are and how they are read. Picklable."""

    endpoint: str | None = None
    """None: Amazon's for ``s3``, Google's for ``gs``."""
    region: str | None = None
    """None: where the bucket is found to be, at Amazon; else any."""
    access_key_id: str | None = None
    """None: a client's are not signed, as public buckets take them; an operator's are signed by
    what boto3 finds by itself."""
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    """Of a client."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, on a cluster one that all its nodes share, or a prefix of a bucket. Picklable."""

    address: str
    """An absolute path or an s3:// URL, with a slash at its end: before a name it is the file's."""
    files: ObjectStore
    """The user's own: each lies where its name says, and is written whole or not at all."""
    work: ObjectStore
    """Inside the place, in WORK_FOLDER."""

    def names(self, folder: str = "") -> Iterator[str]:
        """Yield names of all files below ``folder``, sorted; hidden ones are passed over."""
        return (name for name in self.files.list_keys(folder) if not is_hidden(name))

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Held by one process at a time, or PlaceError. S3 has no lock; of two runs one finds the
        other's part (see ``Output.commit``)."""
        if not isinstance(self.files, FolderStore):
            return contextlib.nullcontext()
        self.files.root.mkdir(parents=True, exist_ok=True)
        refusal = f"Another backfill is writing to {self.files.root}."
        return held_alone(self.files.root / ".lock", refusal)


def place_at(address: str, access: BucketAccess) -> Place:
    """Return the folder or prefix called ``address``. Raises PlaceError."""
    if not address.startswith(S3_SCHEME):
        if "://" in address:
            raise PlaceError(f"{address} is neither a folder nor s3://bucket/prefix.")
        root = Path(address).expanduser().absolute()
        return Place(
            f"{root}/".replace("//", "/"), FolderStore(root), FolderStore(root / WORK_FOLDER)
        )
    # boto3 takes a while to load, and only S3 needs it.
    from storage.objects.s3 import S3Place, S3Store

    bucket, key = split_s3(address)
    prefix = f"{key.strip('/')}/".lstrip("/")

    def below(folder: str) -> S3Place:
        return S3Place(
            bucket=bucket,
            prefix=folder,
            endpoint_url=access.endpoint,
            region=access.region,
            access_key_id=access.access_key_id,
            secret_access_key=access.secret_access_key,
        )

    work = S3Store(below(f"{prefix}{WORK_FOLDER}/"), NodeCache(_NODE_CACHE_BYTES))
    return Place(f"{S3_SCHEME}{bucket}/{prefix}", S3Store(below(prefix), folder=""), work)


def file_at(address: str, access: BucketAccess) -> tuple[Place, str]:
    """Return the place that holds the file called ``address``, and its name there. Raises
    PlaceError."""
    head, _, name = address.rpartition("/")
    if address.startswith(S3_SCHEME):
        split_s3(address)
    else:
        path = Path(address).expanduser().absolute()
        head, name = str(path.parent), path.name
    with contextlib.suppress(InvalidKeyError):
        return place_at(head, access), check_key(name)
    raise PlaceError(f"{address} names no file.")


def split_s3(address: str) -> tuple[str, str]:
    """Bucket and key of an s3:// URL; the key may be empty. Raises PlaceError."""
    bucket, _, key = address.removeprefix(S3_SCHEME).partition("/")
    if not bucket:
        raise PlaceError(f"{address} names no bucket.")
    return bucket, key
