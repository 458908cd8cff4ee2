"""Results of the API as they are shown in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from serve_app.client.wording import (
    NO_CUTS,
    NO_SPEECH,
    clock,
    one_line,
    palette_of,
    shot_words,
    time_range,
)

_SPEAKER_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def scenes_table(scenes: Sequence[Mapping[str, Any]]) -> Table:
    """A row a scene: time, shot, palette, objects and description."""
    if not scenes:
        return _one_message_table(NO_CUTS)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True, title_justify="left")
    table.add_column("#", justify="right", style="dim", no_wrap=True)
    table.add_column("Time", no_wrap=True)
    table.add_column("Shot", style="bold", ratio=2)
    table.add_column("Palette", no_wrap=True)
    table.add_column("Objects", style="green", ratio=2)
    table.add_column("Description", ratio=5)
    for scene in scenes:
        table.add_row(*_scene_cells(scene))
    return table


def _one_message_table(message: str) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row(Text(message, style="italic"))
    return table


def _scene_cells(scene: Mapping[str, Any]) -> list[Text]:
    objects = ", ".join(one_line(str(name)) for name in scene.get("objects") or [])
    return [
        Text(str(scene["index"] + 1)),
        Text(time_range(scene)),
        Text("\n".join(shot_words(scene)) or "–"),
        palette_swatches(palette_of(scene)),
        Text(objects or "–"),
        Text(one_line(str(scene.get("description") or "")) or "–"),
    ]


def palette_swatches(colors: Sequence[str]) -> Text:
    """A coloured block for each ``#rrggbb``."""
    swatches = Text()
    for color in colors:
        swatches.append("██", style=color)
    return swatches


def transcript_text(transcript: Mapping[str, Any]) -> RenderableType:
    """The transcript by speaker turns, each with the time at which it starts."""
    segments = transcript.get("segments") or []
    if not segments:
        return Text(NO_SPEECH, style="italic")
    names = {speaker["id"]: one_line(speaker["label"]) for speaker in transcript["speakers"]}
    turns = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    turns.add_column(style="dim", justify="right", no_wrap=True)
    turns.add_column(no_wrap=True)
    turns.add_column(overflow="fold", ratio=1)
    styles = dict(zip(names, _cycle(len(names)), strict=True))
    for speaker, start_seconds, text in _turns(segments):
        name = Text(names.get(speaker or "", ""), style=styles.get(speaker or "", ""))
        turns.add_row(Text(clock(start_seconds)), name, Text(text))
    return Group(_heading(transcript), turns)


def _cycle(count: int) -> list[str]:
    return [_SPEAKER_COLORS[index % len(_SPEAKER_COLORS)] for index in range(count)]


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
