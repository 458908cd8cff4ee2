"""XML and web pages that strangers wrote, in bounded memory. Standard library only, no I/O.

A document type is refused where the parser meets it, in whatever encoding, so there are no entities
that could grow; ElementTree would expand them, and keep a tree of any size. A web page that comes
where media was expected is recognised, and named with what would lead to the media. Confined child
processes import this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NoReturn
from xml.parsers import expat

MOST_LEVELS = 64
"""Elements within each other."""
MOST_ELEMENTS = 100_000
"""A page of a bucket's list has some ten thousand."""
MOST_TEXT = 16 << 10
"""Characters of an element's text that are kept; those behind them are dropped."""
_PIECE_BYTES = 64 << 10
"""Parsed at once; no tag may be longer, which bounds its attributes too."""


class MarkupError(ValueError):
    """It is no XML in UTF-8, has a document type, is nested too deep or has too many elements."""


def elements(data: bytes) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of each element, names without their namespaces, and its text, at its end.

    The text of an element with others in it is what follows the last of them. Raises MarkupError.
    """
    try:
        is_text = "\0" not in data.decode()
    except UnicodeDecodeError:
        is_text = False
    # The parser would read UTF-16 as such, whatever encoding it is given.
    if not is_text:
        raise MarkupError("it is not UTF-8")
    path: list[str] = []
    texts: list[str] = []
    ended: list[tuple[tuple[str, ...], str]] = []
    left = MOST_ELEMENTS

    def start(name: str, _: dict[str, str]) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise MarkupError("it has too many elements")
        if len(path) == MOST_LEVELS:
            raise MarkupError("it is nested too deep")
        # Some writers have another namespace, or none.
        path.append(name.rpartition(" ")[2])
        texts.clear()

    def end(_: str) -> None:
        ended.append((tuple(path), "".join(texts)))
        path.pop()
        texts.clear()

    def add_text(text: str) -> None:
        texts.append(text[: MOST_TEXT - sum(map(len, texts))])

    def refuse(*_: object) -> NoReturn:
        raise MarkupError("it has a document type")

    parser = expat.ParserCreate("utf-8", " ")
    parser.buffer_text = True
    parser.buffer_size = MOST_TEXT
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = add_text
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    # In pieces: what a handler raises ends the parsing only after the piece.
    for at in range(0, len(data) + 1, _PIECE_BYTES):
        piece = data[at : at + _PIECE_BYTES]
        try:
            parser.Parse(piece, len(piece) < _PIECE_BYTES)
        except expat.ExpatError as error:
            raise MarkupError(str(error)) from error
        if at + len(piece) - parser.CurrentByteIndex > _PIECE_BYTES:
            raise MarkupError("it has a tag without end")
        yield from ended
        ended.clear()


_PAGE = re.compile(
    rb"\s*+(?:\xef\xbb\xbf)?+\s*+(?:<\?xml[^>]*+>\s*+|<!--.*?-->\s*+)*+"
    rb"<(?:!doctype\s+html|html|head|body)\b",
    re.IGNORECASE | re.DOTALL,
)
"""Possessive: a comment that could be divided in two ways would be tried in both, and so on."""

A_PAGE = "It is a web page, not media"
_ELSEWHERE = "give the address of the file itself, which a browser downloads instead of showing it"
_SHARED = "share the file with everyone who has the link"
NEEDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("drive.google.com", "docs.google.com", "drive.usercontent.google.com"),
        f"create the job with `provider` `gdrive`, and {_SHARED}",
    ),
    (
        ("dropbox.com", "dropboxusercontent.com"),
        f"create the job with `provider` `dropbox`, and {_SHARED}",
    ),
    (("photos.google.com", "photos.app.goo.gl"), "download the video there, and upload it"),
    (("icloud.com", "wetransfer.com", "we.tl"), "download the file there, and upload it"),
    (
        ("onedrive.live.com", "1drv.ms", "sharepoint.com"),
        "add `download=1` to the query of a link that everyone may open",
    ),
    (("box.com",), "give the file's direct link (`/shared/static/`)"),
    (("frame.io", "f.io", "vimeo.com"), "give the link of its download button"),
    (
        (
            "youtube.com", "youtu.be", "tiktok.com", "instagram.com", "facebook.com", "fb.watch",
            "x.com", "twitter.com", "twitch.tv", "dailymotion.com", "bilibili.com", "loom.com",
        ),
        "it shows a player, not a file: upload the file, if you have a right to it",
    ),
)  # fmt: skip
"""What a link to a page of such a host, or of one below it, needs."""


def is_web_page(head: bytes) -> bool:
    """Return whether a file that begins so, with a few hundred bytes, is HTML."""
    return _PAGE.match(head) is not None


def page_refusal(host: str | None = None) -> str:
    """Return the sentence for whoever sent a page, or a link to one on ``host``."""
    names = (host or "").lower().removesuffix(".")
    for hosts, needed in NEEDS:
        if any(names == each or names.endswith(f".{each}") for each in hosts):
            return f"{A_PAGE}; {needed}."
    return f"{A_PAGE}; {_ELSEWHERE}."
