"""File types by extension: price tier, and what is refused before it is uploaded."""

from __future__ import annotations

from serve_app.errors import ApiError, ErrorCode
from storage.types import Tier

STANDARD = [
    "mp4",
    "m4v",
    "mov",
    "mkv",
    "webm",
    "avi",
    "mxf",
    "ts",
    "mts",
    "m2ts",
    "mpg",
    "mpeg",
    "m2v",
    "vob",
    "wmv",
    "asf",
    "flv",
    "f4v",
    "3gp",
    "3g2",
    "ogv",
    "dv",
    "gif",
]
AUDIO_ONLY = [
    "wav",
    "bwf",
    "mp3",
    "m4a",
    "aac",
    "flac",
    "ogg",
    "oga",
    "opus",
    "wma",
    "aif",
    "aiff",
    "caf",
    "ac3",
    "eac3",
    "amr",
    "mka",
]
RAW_FAMILIES: dict[str, tuple[str, ...]] = {
    "r3d": ("r3d",),
    "braw": ("braw",),
    "arri": ("ari", "arx"),
}
BLOCKED = [
    "exe",
    "dll",
    "msi",
    "com",
    "bat",
    "cmd",
    "ps1",
    "vbs",
    "js",
    "mjs",
    "jar",
    "sh",
    "bash",
    "py",
    "pl",
    "rb",
    "php",
    "apk",
    "app",
    "dmg",
    "deb",
    "rpm",
    "scr",
    "lnk",
    "iso",
    "bin",
    "so",
    "dylib",
]
UNKNOWN_EXTENSIONS = "accepted"


def extension(file_name: str) -> str:
    """The lower-case extension without its dot; empty if there is none."""
    stem, dot, suffix = file_name.rpartition(".")
    return suffix.lower() if dot and stem else ""


def raw_family(file_name: str) -> str | None:
    """The camera RAW family of a file name, or None."""
    suffix = extension(file_name)
    return next((name for name, known in RAW_FAMILIES.items() if suffix in known), None)


def tier_of(file_name: str) -> Tier:
    """Price tier of a file; raises UNSUPPORTED_FORMAT for types that are not taken."""
    if extension(file_name) in BLOCKED:
        raise ApiError(
            ErrorCode.UNSUPPORTED_FORMAT,
            "Executables, installers and scripts are not accepted.",
            param="fileName",
        )
    family = raw_family(file_name)
    if family is not None:
        raise ApiError(
            ErrorCode.UNSUPPORTED_FORMAT,
            f"The camera RAW format {family} is not enabled on this service.",
            param="fileName",
        )
    return Tier.STANDARD
