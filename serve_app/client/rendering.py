"""Results of the API as text and tables for a terminal."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, groupby
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

NO_CUTS = "One shot: the video has no cuts."
NO_SPEECH = "No speech was found."
_FIRST_WORDS = 60

_SPEAKER_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def clock(seconds: float) -> str:
    """``0:07.4``, ``12:30.0`` or ``1:02:03.5``: tenths of a second, rounded down.

    Rounding down keeps the end of a video from being shown as later than it is.
    """
    tenths = int(seconds * 10)
    minutes, rest = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    head = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
    return f"{head}:{rest // 10:02d}.{rest % 10}"


def time_range(item: Mapping[str, Any], dash: str = "–") -> str:
    """Return the start and end of a scene or segment."""
    return f"{clock(item['startTime'])} {dash} {clock(item['endTime'])}"


def shot_words(scene: Mapping[str, Any]) -> list[str]:
    """``["medium close-up", "low angle"]``; what is unknown is left out."""
    shot = str(scene.get("shotType") or "unknown").replace("_up", "-up").replace("_", " ")
    angle = str(scene.get("shotAngle") or "unknown")
    angles = {"eye_level": "eye level", "overhead": "overhead", "dutch": "dutch angle"}
    words = [] if shot == "unknown" else [shot]
    return words if angle == "unknown" else [*words, angles.get(angle, f"{angle} angle")]


def one_line(text: str) -> str:
    """Return text from the network without control characters: they could steer a terminal."""
    kept = ("".join(ch if unicodedata.category(ch)[0] != "C" else " ") for ch in text)
    return " ".join("".join(kept).split())


def palette_of(scene: Mapping[str, Any]) -> list[str]:
    """Return the well-formed ``#rrggbb`` colours of a scene, at most five."""
    colors = [str(color) for color in scene.get("colorPalette") or []]
    return [color for color in colors if re.fullmatch("#[0-9a-fA-F]{6}", color)][:5]


def warning_text(warning: Mapping[str, Any]) -> Text:
    """Return a job's warning: its code, its message, and the track and times that it is about."""
    times = [clock(warning[at]) for at in ("startTime", "endTime") if at in warning]
    track = [f"track {warning['trackIndex'] + 1}"] if "trackIndex" in warning else []
    place = ", ".join([*track, " – ".join(times)] if times else track)
    text = Text(warning["code"], style="yellow")
    return text.append(f" {one_line(warning['message'])}{place and f' ({place})'}", style="default")


def scenes_table(
    scenes: Sequence[Mapping[str, Any]], overview: Mapping[str, Any] | None = None
) -> Table:
    """Return a row a scene: time, shot, palette, objects and description.

    Of a video without cuts it is that of its overview.
    """
    if not scenes and overview is None:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_row(Text(NO_CUTS, style="italic"))
        return table
    title = None if scenes else NO_CUTS
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column("#", justify="right", style="dim", no_wrap=True)
    table.add_column("Time", no_wrap=True)
    table.add_column("Shot", style="bold", ratio=2)
    table.add_column("Palette", no_wrap=True)
    table.add_column("Objects", style="green", ratio=2)
    table.add_column("Description", ratio=5)
    for scene in scenes or [{"index": 0, **(overview or {})}]:
        table.add_row(*_scene_cells(scene))
    return table


def labels_of(scene: Mapping[str, Any]) -> list[str]:
    """Return what is named of a scene: objects, then tags, each once."""
    tags = [tag["label"] for tag in scene.get("tags") or []]
    return [*dict.fromkeys(map(str, [*(scene.get("objects") or []), *tags]))]


def _scene_cells(scene: Mapping[str, Any]) -> list[Text]:
    objects = ", ".join(map(one_line, labels_of(scene)))
    return [
        Text(str(scene["index"] + 1)),
        Text(time_range(scene)),
        Text("\n".join(shot_words(scene)) or "–"),
        palette_swatches(palette_of(scene)),
        Text(objects or "–"),
        Text(one_line(str(scene.get("description") or "")) or "–"),
    ]


def palette_swatches(colors: Sequence[str]) -> Text:
    """Return a coloured block for each ``#rrggbb``."""
    swatches = Text()
    for color in colors:
        swatches.append("██", style=color)
    return swatches


def transcript_text(transcript: Mapping[str, Any]) -> RenderableType:
    """Return the transcript by speaker turns, each with the time at which it starts; of several
    tracks that of one, below what each of them begins with."""
    segments = transcript.get("segments") or []
    tracks = _tracks_table(transcript) if len(transcript.get("tracks") or ()) > 1 else Group()
    if not segments:
        return Group(tracks, Text(NO_SPEECH, style="italic"))
    names = {speaker["id"]: one_line(speaker["label"]) for speaker in transcript["speakers"]}
    turns = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    turns.add_column(style="dim", justify="right", no_wrap=True)
    turns.add_column(no_wrap=True)
    turns.add_column(overflow="fold", ratio=1)
    styles = dict(zip(names, cycle(_SPEAKER_COLORS), strict=False))
    for speaker, start_seconds, text in _turns(segments):
        name = Text(names.get(speaker or "", ""), style=styles.get(speaker or "", ""))
        turns.add_row(Text(clock(start_seconds)), name, Text(text))
    return Group(tracks, _heading(transcript), turns)


def _tracks_table(transcript: Mapping[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for style, wraps in (("dim", False), ("", False), ("", True)):
        table.add_column(style=style, no_wrap=not wraps, overflow="fold" if wraps else "ellipsis")
    for track in transcript["tracks"]:
        words = " ".join(entry["Text"] for entry in track["transcript"])
        begins = textwrap.shorten(one_line(words), _FIRST_WORDS, placeholder=" …")
        shown = "shown below" if track["trackIndex"] == transcript.get("trackIndex") else ""
        said = begins or track.get("errorCode") or NO_SPEECH
        number, name = f"Track {track['trackIndex'] + 1}", one_line(track["trackName"])
        name = number if name == number else f"{number}: {name}"
        table.add_row(Text(name), Text(shown), Text(said))
    return table


def _heading(transcript: Mapping[str, Any]) -> Text:
    """``en-US · 2 speakers · Speaker 1 0:12.3, Speaker 2 0:07.9``."""
    speakers = transcript["speakers"]
    parts = [one_line(transcript.get("language") or "language unknown")]
    if speakers:
        parts.append(f"{len(speakers)} speaker{'s' if len(speakers) != 1 else ''}")
        spoken = [f"{one_line(s['label'])} {clock(s['speakingSeconds'])}" for s in speakers]
        parts.append(", ".join(spoken))
    return Text(" · ".join(parts), style="dim")


def _turns(segments: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str | None, float, str]]:
    """Runs of segments by one speaker: speaker, start in seconds, text."""
    for speaker, run in groupby(segments, key=lambda segment: segment["speaker"]):
        turn = list(run)
        yield speaker, turn[0]["startTime"], one_line(" ".join(part["text"] for part in turn))
