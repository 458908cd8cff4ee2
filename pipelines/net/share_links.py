"""Share links of Google Drive and Dropbox, turned into links to the bytes. Pure.

A share link shows a page; the file itself lies at an address that follows from
it. The forms are those that the providers' own "copy link" and "download"
buttons make.
"""

from __future__ import annotations

import re
from enum import StrEnum
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from pipelines.net.addresses import InvalidUrlError


class Provider(StrEnum):
    """Whose share link a URL is."""

    GDRIVE = "gdrive"
    DROPBOX = "dropbox"


_GOOGLE_HOSTS = frozenset({"drive.google.com", "docs.google.com", "drive.usercontent.google.com"})
_GOOGLE_API_HOSTS = frozenset({"www.googleapis.com", "content.googleapis.com"})
_GOOGLE_ID = r"(?P<id>[A-Za-z0-9_-]{10,128})"
_GOOGLE_FILE_PATH = re.compile(rf"(?:/a/[^/]+)?/file(?:/u/\d+)?/d/{_GOOGLE_ID}(?:/.*)?")
_GOOGLE_QUERY_PATH = re.compile(r"(?:/a/[^/]+)?(?:/u/\d+)?/(?:open|uc|download)/?")
_GOOGLE_API_PATH = re.compile(rf"/drive/v[23]/files/{_GOOGLE_ID}")

_DROPBOX_HOSTS = frozenset({"dropbox.com", "www.dropbox.com", "m.dropbox.com"})
_DROPBOX_CONTENT_HOST = re.compile(r"dl\.dropbox\.com|(?:[a-z0-9-]+\.)?dl\.dropboxusercontent\.com")
_DROPBOX_FILE_PATH = re.compile(r"/(?:s|scl/fi)/[A-Za-z0-9_-]+/.+|/s/[A-Za-z0-9_-]+")


def direct_download_url(url: str, provider: Provider, *, has_token: bool = False) -> str:
    """The address of the bytes behind a share link of ``provider``.

    ``url`` is a text that ``addresses.check_url_text`` accepts. With a token the address is one
    of Google Drive's API, which accepts tokens. Raises InvalidUrlError where it is no link to one
    file of that provider (folders and documents made in the browser are not).
    """
    if provider is Provider.GDRIVE:
        return _google_drive(url, has_token=has_token)
    return _dropbox(url)


def _google_drive(url: str, *, has_token: bool) -> str:
    file_id, resource_key = _google_file(url)
    if has_token:
        # Without supportsAllDrives a file on a shared drive is answered as missing.
        query = urlencode({"alt": "media", "supportsAllDrives": "true"})
        return f"https://www.googleapis.com/drive/v3/files/{file_id}?{query}"
    # "confirm" answers the page of confirmation before a file too large for the virus scan.
    fields = {"id": file_id, "export": "download", "confirm": "t"}
    if resource_key:
        fields["resourcekey"] = resource_key
    return f"https://drive.usercontent.google.com/download?{urlencode(fields)}"


def _google_file(url: str) -> tuple[str, str | None]:
    """File id and resource key (links from before 2021 have one) of a Google Drive link."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    host = (parts.hostname or "").removesuffix(".")
    pattern = _GOOGLE_API_PATH if host in _GOOGLE_API_HOSTS else _GOOGLE_FILE_PATH
    if host not in _GOOGLE_HOSTS | _GOOGLE_API_HOSTS:
        raise InvalidUrlError("it is not a Google Drive link")
    found = pattern.fullmatch(parts.path)
    if found is None and host in _GOOGLE_HOSTS and _GOOGLE_QUERY_PATH.fullmatch(parts.path):
        found = re.fullmatch(_GOOGLE_ID, query.get("id", ""))
    if found is None:
        raise InvalidUrlError("it is not a Google Drive link to a file")
    return found["id"], query.get("resourcekey")


def _dropbox(url: str) -> str:
    parts = urlsplit(url)
    host = (parts.hostname or "").removesuffix(".")
    if _DROPBOX_CONTENT_HOST.fullmatch(host):
        return url
    if host not in _DROPBOX_HOSTS:
        raise InvalidUrlError("it is not a Dropbox link")
    if not _DROPBOX_FILE_PATH.fullmatch(parts.path):
        raise InvalidUrlError("it is not a Dropbox link to a file")
    kept = [
        (name, value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
        if name not in {"dl", "raw"}
    ]
    query = urlencode([*kept, ("dl", "1")])
    return urlunsplit(("https", "www.dropbox.com", parts.path, query, ""))
