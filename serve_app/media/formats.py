"""File types by extension: price tier, and what is refused before it is uploaded."""

from __future__ import annotations

from collections.abc import Collection

from pipelines.ingest.headers import extension, raw_family
from serve_app.errors import ApiError, ErrorCode
from storage.types import Tier


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MAX_DURATION_SECONDS = 86_400
"""Of media, as the formats list publishes it; ingest holds it."""

STANDARD = _words(
    "mp4 m4v mov mkv webm avi mxf ts mts m2ts mpg mpeg m2v vob wmv asf flv f4v 3gp 3g2 ogv dv gif"
)
AUDIO_ONLY = _words("wav bwf mp3 m4a aac flac ogg oga opus wma aif aiff caf ac3 eac3 amr mka")
BLOCKED = _words(
    "exe dll msi com bat cmd ps1 vbs js mjs jar sh bash py pl rb php apk app dmg deb rpm scr lnk"
    " iso bin so dylib"
)
_OF_ADDRESSES = frozenset(_words("com php pl py rb"))
"""At the end of an address they belong to a host or to a program of the server, not to the file."""
UNKNOWN_EXTENSIONS = "accepted"


def in_address(file_name: str) -> str:
    """Return the name at the end of an address, without an extension that belongs to a host or
    program."""
    suffix = extension(file_name)
    return file_name[: -len(suffix) - 1] if suffix in _OF_ADDRESSES else file_name


def tier_of(file_name: str, *, enabled_raw: Collection[str], param: str) -> Tier:
    """Price tier of a file; raises UNSUPPORTED_FORMAT, blaming ``param``, for what is not taken."""
    if extension(file_name) in BLOCKED:
        message = "Executables, installers and scripts are not accepted."
        raise ApiError(ErrorCode.UNSUPPORTED_FORMAT, message, param=param)
    family = raw_family(file_name)
    if family is None:
        return Tier.STANDARD
    if family not in enabled_raw:
        message = f"The camera RAW format {family} is not enabled on this service."
        raise ApiError(ErrorCode.UNSUPPORTED_FORMAT, message, param=param)
    return Tier.RAW
