"""What a recorder wrote into its file about time and channels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SoundLabels:
    """Labels of a WAV file; all absent for any other."""

    time_reference: int | None = None
    """Samples from midnight to the first one, at ``sample_rate_hz``."""
    sample_rate_hz: int | None = None
    timecode_rate: str | None = None
    """Frames a second of the timecode that ran beside, as ``30000/1001`` or ``25``."""
    drop_frame: bool = False
    channel_names: tuple[tuple[int, str], ...] = ()
    """(channel of the file from 0, name)."""

    def name_of(self, channel: int) -> str | None:
        """The channel's name, if it was given one."""
        return dict(self.channel_names).get(channel)
