"""The codes of warnings: one table, with what each means."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class WarningCode(StrEnum):
    """What a client should know of although the work went on; ``meaning`` is for the reference."""

    meaning: str

    def __new__(cls, code: str, meaning: str) -> Self:
        member = str.__new__(cls, code)
        member._value_, member.meaning = code, meaning
        return member

    TIMELINE_REPAIRED = (
        "TIMELINE_REPAIRED",
        "The file's clock leaps, restarts or has strays; times are those of the content.",
    )
    TIMESTAMPS_NOT_IN_ORDER = (
        "TIMESTAMPS_NOT_IN_ORDER",
        "The picture's times go back where it should be cut; it was analysed in one piece.",
    )
    STREAM_IGNORED = ("STREAM_IGNORED", "A stream of the file was not analysed.")
    PROGRAM_CHOSEN = (
        "PROGRAM_CHOSEN",
        "The file holds several programs; picture and sound of one were analysed.",
    )
    PICTURE_STARTS_LATE = (
        "PICTURE_STARTS_LATE",
        "The picture begins after the sound: what comes before cannot be decoded, or is not there.",
    )
    PICTURE_DAMAGED = (
        "PICTURE_DAMAGED",
        "Pictures could not be decoded, or only with errors, within the times given.",
    )
    MEDIA_TRUNCATED = ("MEDIA_TRUNCATED", "The file is not all there, or not all of it was read.")
    AUDIO_DAMAGED = ("AUDIO_DAMAGED", "Parts of the sound could not be decoded.")
    AUDIO_UNREADABLE = ("AUDIO_UNREADABLE", "Nothing of a sound stream could be decoded.")
    AUDIO_SILENT = ("AUDIO_SILENT", "There is no sound in a sound stream.")
    AUDIO_QUIET = (
        "AUDIO_QUIET",
        "The sound is very low. It was raised, unless there is steady noise only.",
    )
    AUDIO_CHANNELS_CANCEL = (
        "AUDIO_CHANNELS_CANCEL",
        "The channels cancel each other when they are mixed; they were mixed in another way.",
    )
    AUDIO_CHANNEL_IGNORED = (
        "AUDIO_CHANNEL_IGNORED",
        "A channel of steady noise, which drowned the others, was left out of the mix.",
    )
    AUDIO_SYNC_UNCERTAIN = (
        "AUDIO_SYNC_UNCERTAIN",
        "Where external audio belongs was not certain; it was placed at the video's start.",
    )
    AUDIO_DRIFT = ("AUDIO_DRIFT", "The clock of external audio runs slower or faster.")
    AUDIO_OUTSIDE_VIDEO = ("AUDIO_OUTSIDE_VIDEO", "External audio does not touch the video.")
    EXTERNAL_AUDIO_FAILED = (
        "EXTERNAL_AUDIO_FAILED",
        "One of several external audio files could not be processed.",
    )
    LANGUAGE_UNCERTAIN = (
        "LANGUAGE_UNCERTAIN",
        "In which language something is said is uncertain; it is written in the most probable one.",
    )
    SPEECH_WITHOUT_WORDS = (
        "SPEECH_WITHOUT_WORDS",
        "Somebody seems to speak, but no words could be made out.",
    )
    SUMMARY_FAILED = ("SUMMARY_FAILED", "The transcript could not be summed up.")
    UPLOAD_LENGTH_MISSING = (
        "UPLOAD_LENGTH_MISSING",
        "Bytes of a resumable upload came, and nobody stated its length: it cannot be complete.",
    )
    UNKNOWN_FIELD = (
        "UNKNOWN_FIELD",
        "The request that created the job had a field that there is none of; it was ignored.",
    )
