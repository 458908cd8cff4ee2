"""Web pages that come where media was expected, and what would lead to the media. No I/O.

Confined child processes import this: standard library only.
"""

from __future__ import annotations

import re

_PAGE = re.compile(
    rb"\s*+(?:\xef\xbb\xbf)?+\s*+(?:<\?xml[^>]*+>\s*+|<!--.*?-->\s*+)*+"
    rb"<(?:!doctype\s+html|html|head|body)\b",
    re.IGNORECASE | re.DOTALL,
)
"""Possessive: a comment that could be divided in two ways would be tried in both, and so on."""

A_PAGE = "It is a web page, not media"
_ELSEWHERE = "give the address of the file itself, which a browser downloads instead of showing it"
_SHARED = "share the file with everyone who has the link"
_PLAYER = "it shows a player, not a file: upload the file, if you have a right to it"
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
        _PLAYER,
    ),
)  # fmt: skip
"""What a link to a page of such a host, or of one below it, needs."""


def is_web_page(head: bytes) -> bool:
    """Whether a file that begins so, with a few hundred bytes, is HTML."""
    return _PAGE.match(head) is not None


def page_refusal(host: str | None = None) -> str:
    """The sentence for whoever sent a page, or a link to one on ``host``."""
    names = (host or "").lower().removesuffix(".")
    for hosts, needed in NEEDS:
        if any(names == each or names.endswith(f".{each}") for each in hosts):
            return f"{A_PAGE}; {needed}."
    return f"{A_PAGE}; {_ELSEWHERE}."
