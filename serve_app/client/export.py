"""A job's results in a folder, with a picture of all scenes: stills, palettes and what was found,
on one dark sheet.
"""

from __future__ import annotations

import io
import json
import math
import statistics
import uuid
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from icu4py.breakers import LineBreaker
from PIL import Image, ImageDraw, ImageOps, UnidentifiedImageError

from serve_app.client.api import ApiClient, JsonObject, RequestFailedError
from serve_app.client.letters import Typeface
from serve_app.client.rendering import (
    NO_CUTS,
    clock,
    labels_of,
    one_line,
    palette_of,
    shot_words,
    time_range,
)

Scene = Mapping[str, Any]

RESULT_NAMES = r"scenes\.json|contact-sheet\.png|transcript(\.track\d+)?\.(json|srt|vtt)"
"""A regular expression of all names that ``export_results`` gives."""
PARTIAL_NAMES = r"\.({names})-[0-9a-f]{{32}}"
"""A regular expression of what a killed ``write_atomically`` leaves of files of these ``names``."""

_CAPTIONS: tuple[Literal["srt", "vtt"], ...] = ("srt", "vtt")


def export_results(client: ApiClient, job_id: str, folder: Path) -> list[Path]:
    """Write what the job has: ``scenes.json`` and ``contact-sheet.png`` once vision is
    completed; ``transcript.json``, ``.srt`` and ``.vtt`` once the transcript is.

    On a job with several audio tracks each completed one gets ``transcript.track<N>.*``
    beside the ``transcript.json`` of all. A file is there completely or not at all.
    Returns the files in the order in which they were written; raises what ApiClient
    raises, and OSError.
    """
    job = client.get_job(job_id)
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    if _is_completed(job, "vision"):
        written += _export_vision(client, job, folder)
    if _is_completed(job, "transcript"):
        written += _export_transcript(client, job_id, folder)
    return written


def _is_completed(job: JsonObject, stage: str) -> bool:
    return bool(job["stages"][stage]["status"] == "completed")


def _export_vision(client: ApiClient, job: JsonObject, folder: Path) -> list[Path]:
    seen = client.call("getScenes", jobId=job["jobId"])
    overview = seen.get("overview")
    scenes = seen["scenes"] or ([] if overview is None else [{"index": 0, **overview}])
    title = str(job.get("fileName") or job["jobId"])
    shown = set(chosen_scenes(len(scenes)))
    seconds = {
        place: _thumbnail(client, scene["stills"][1]["url"])
        for place, scene in enumerate(scenes)
        if place in shown and len(scene.get("stills", ())) > 1
    }
    sheet = contact_sheet(
        scenes,
        [
            _thumbnail(client, scene.get("thumbnailUrl")) if place in shown else None
            for place, scene in enumerate(scenes)
        ],
        title=title,
        seconds=seconds,
    )
    picture = io.BytesIO()
    sheet.save(picture, "PNG", optimize=True)
    return [
        _write_json(folder / "scenes.json", {"jobId": job["jobId"], **seen}),
        write_atomically(folder / "contact-sheet.png", picture.getvalue()),
    ]


def _thumbnail(client: ApiClient, address: str | None) -> bytes | None:
    if not address:
        return None
    try:
        return client.get_thumbnail(address)
    except RequestFailedError as error:
        if error.status == 404:  # The still was deleted: the sheet shows that.
            return None
        raise


def _export_transcript(client: ApiClient, job_id: str, folder: Path) -> list[Path]:
    transcript = client.get_transcript(job_id)
    written = [_write_json(folder / "transcript.json", transcript)]
    if "tracks" not in transcript:
        return written + _write_captions(client, job_id, folder / "transcript", track=None)
    for track in transcript["tracks"]:
        if track["status"] == "completed":
            index = track["trackIndex"]
            stem = folder / f"transcript.track{index}"
            own = client.get_transcript(job_id, "json", index)
            written.append(_write_json(_with_ending(stem, "json"), own))
            written += _write_captions(client, job_id, stem, track=index)
    return written


def _write_captions(client: ApiClient, job_id: str, stem: Path, *, track: int | None) -> list[Path]:
    return [
        write_atomically(
            _with_ending(stem, ending), client.get_transcript(job_id, ending, track).encode()
        )
        for ending in _CAPTIONS
    ]


def _with_ending(stem: Path, ending: str) -> Path:
    return stem.with_name(f"{stem.name}.{ending}")


def _write_json(path: Path, value: JsonObject) -> Path:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return write_atomically(path, f"{text}\n".encode())


def write_atomically(path: Path, data: bytes) -> Path:
    """Put ``data`` at ``path``, all of it or, after any failure, what was there before."""
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def shortened(text: str, typeface: Typeface, width: float) -> str:
    """The text, cut short with an ellipsis where it is wider than ``width`` pixels."""
    if typeface.getlength(text) <= width:
        return text

    def cut(length: int) -> str:
        return text[:length].rstrip(" ,.;:") + "…"

    # By bisection: descriptions may be long.
    lengths = range(1, len(text))
    return cut(bisect_right(lengths, width, key=lambda length: typeface.getlength(cut(length))))


def wrapped(text: str, typeface: Typeface, width: float, max_lines: int) -> list[str]:
    """Return the text in at most ``max_lines`` lines, broken where its script allows; the rest is
    cut off."""
    lines: list[str] = []
    parts = list(LineBreaker(" ".join(text.split()), "en"))
    while parts and len(lines) < max_lines - 1:
        # How many parts the line holds; at least one, however long.
        taken = 1
        while taken < len(parts) and typeface.getlength("".join(parts[: taken + 1])) <= width:
            taken += 1
        lines.append(shortened("".join(parts[:taken]).rstrip(), typeface, width))
        parts = parts[taken:]
    if parts:
        lines.append(shortened("".join(parts).rstrip(), typeface, width))
    return lines


MAX_SCENES = 60
"""More scenes than this are sampled evenly; the sheet stays below about 12 megapixels."""

_PAPER, _CARD, _WELL = "#101318", "#1a1f27", "#0a0c10"
_BRIGHT, _TEXT, _FAINT, _ACCENT = "#f4f6f8", "#b6bec9", "#7a8491", "#f2b84b"
_MARGIN, _GAP, _PADDING, _RADIUS = 48, 24, 16, 14
_HEADER, _FOOTER, _EMPTY = 172, 56, 120
_PALETTE, _BODY, _DESCRIPTION_LINES = 14, 158, 3
_NO_COLOR = "#2a313c"
_SECOND = 0.36
"""Width and height of a second still, over those of the first, in whose corner it is."""


@dataclass(frozen=True, slots=True)
class _Grid:
    """Where the cards go. All lengths in pixels."""

    columns: int
    rows: int
    card_width: int
    still_height: int
    footer: int

    @property
    def card_height(self) -> int:
        return self.still_height + _PALETTE + _BODY

    @property
    def width(self) -> int:
        return 2 * _MARGIN + self.columns * self.card_width + (self.columns - 1) * _GAP

    @property
    def height(self) -> int:
        cards = self.rows * (self.card_height + _GAP) if self.rows else _EMPTY
        return _HEADER + cards + self.footer

    def corner(self, place: int) -> tuple[int, int]:
        """Upper left corner of the card at a place, counted row by row."""
        row, column = divmod(place, self.columns)
        left = _MARGIN + column * (self.card_width + _GAP)
        return left, _HEADER + row * (self.card_height + _GAP)


def chosen_scenes(count: int, limit: int = MAX_SCENES) -> list[int]:
    """Return places of the scenes that a sheet shows: all, or ``limit`` evenly spread ones."""
    if count <= limit:
        return list(range(count))
    return [round(place * (count - 1) / (limit - 1)) for place in range(limit)]


def contact_sheet(
    scenes: Sequence[Scene],
    thumbnails: Sequence[bytes | None],
    *,
    title: str,
    seconds: Mapping[int, bytes | None] | None = None,
) -> Image.Image:
    """Draw the sheet; ``thumbnails[i]`` is the encoded still of ``scenes[i]``, if there is one,
    ``seconds[i]`` a second one.

    A still that cannot be decoded counts as missing. Raises ValueError where the two
    sequences differ in length.
    """
    if len(scenes) != len(thumbnails):
        raise ValueError(f"{len(scenes)} scenes, {len(thumbnails)} thumbnails")
    chosen = chosen_scenes(len(scenes))
    stills = [_opened(thumbnails[index]) for index in chosen]
    grid = _grid_for(stills, footer=_MARGIN - _GAP if len(chosen) == len(scenes) else _FOOTER)
    sheet = Image.new("RGB", (grid.width, grid.height), _PAPER)
    _draw_header(sheet, scenes, title)
    if not scenes:
        left = (sheet.width - Typeface(24).getlength(NO_CUTS)) / 2
        at = (left, _HEADER + _EMPTY / 2 - 15)
        Typeface(24).draw(ImageDraw.Draw(sheet), at, NO_CUTS, _TEXT)
    for place, (index, still) in enumerate(zip(chosen, stills, strict=True)):
        other = _opened((seconds or {}).get(index))
        sheet.paste(_card(scenes[index], still, other, grid), grid.corner(place))
    if len(chosen) < len(scenes):
        note = f"{len(chosen)} of {len(scenes)} scenes are shown, evenly chosen."
        at = (_MARGIN, sheet.height - _FOOTER + 6)
        Typeface(17).draw(ImageDraw.Draw(sheet), at, note, _FAINT)
    return sheet


def _opened(data: bytes | None) -> Image.Image | None:
    if data is None:
        return None
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.convert("RGB")
    except (UnidentifiedImageError, OSError):
        return None


def _grid_for(stills: Sequence[Image.Image | None], footer: int) -> _Grid:
    """Four columns, or five for long lists; the still's box has the usual aspect ratio."""
    count = len(stills)
    columns = 5 if count > 24 else 3 if count in {1, 2, 3, 5, 6, 9} else 4
    ratios = [still.width / still.height for still in stills if still is not None]
    ratio = min(2.0, max(0.9, statistics.median(ratios))) if ratios else 16 / 9
    card_width = {3: 504, 4: 372, 5: 340}[columns]
    rows = math.ceil(count / columns)
    return _Grid(columns, rows, card_width, round(card_width / ratio), footer)


def _draw_header(sheet: Image.Image, scenes: Sequence[Scene], title: str) -> None:
    pen, room = ImageDraw.Draw(sheet), sheet.width - 2 * _MARGIN
    Typeface(40).draw(pen, (_MARGIN, 36), shortened(title, Typeface(40), room), _BRIGHT)
    if not scenes:
        return
    facts = [f"{len(scenes)} scene{'s' if len(scenes) != 1 else ''}"]
    # The most frequent shot types: ``["3 wide", "2 medium close-up"]``.
    names = [words[0] for scene in scenes if scene.get("shotType") and (words := shot_words(scene))]
    counted = sorted({name: names.count(name) for name in names}.items(), key=lambda item: -item[1])
    facts += [clock(scenes[-1]["endTime"]), *[f"{count} {name}" for name, count in counted[:3]]]
    line = shortened(" · ".join(facts), Typeface(21), room)
    Typeface(21).draw(pen, (_MARGIN, 90), line, _TEXT)
    _draw_timeline(sheet, scenes)


def _draw_timeline(sheet: Image.Image, scenes: Sequence[Scene]) -> None:
    """The whole video as a band: each scene as wide as it is long, in its own colours."""
    pen, room = ImageDraw.Draw(sheet), sheet.width - 2 * _MARGIN
    start, end = scenes[0]["startTime"], scenes[-1]["endTime"]
    scale = room / max(end - start, 0.001)
    top, bottom = 128, 146
    for scene in scenes:
        left = _MARGIN + (scene["startTime"] - start) * scale
        right = _MARGIN + (scene["endTime"] - start) * scale
        pieces = palette_of(scene) or [_NO_COLOR]
        gap = 3 if right - left > 12 else 0
        _draw_strip(pen, (left, top, max(left + 1, right - gap), bottom), pieces)


def _draw_strip(
    pen: ImageDraw.ImageDraw, box: tuple[float, float, float, float], colors: Sequence[str]
) -> None:
    """Colours side by side; the first, which fills most of the picture, takes most room."""
    left, top, right, bottom = box
    weights = [1 / (place + 1.5) for place in range(len(colors))]
    x = left
    for color, weight in zip(colors, weights, strict=True):
        width = (right - left) * weight / sum(weights)
        if round(x + width) > round(x):
            pen.rectangle((round(x), top, round(x + width) - 1, bottom), fill=color)
        x += width


def _card(
    scene: Scene, still: Image.Image | None, second: Image.Image | None, grid: _Grid
) -> Image.Image:
    size = (grid.card_width, grid.card_height)
    card = Image.new("RGB", size, _CARD)
    card.paste(_framed(still, grid), (0, 0))
    if second is not None:
        second.thumbnail((round(_SECOND * grid.card_width), round(_SECOND * grid.still_height)))
        inset = ImageOps.expand(second, 2, _CARD)
        card.paste(inset, (10, grid.still_height - 10 - inset.height))
    pen = ImageDraw.Draw(card)
    strip_top = grid.still_height
    colors = palette_of(scene) or [_NO_COLOR]
    _draw_strip(pen, (0, strip_top, grid.card_width, strip_top + _PALETTE - 1), colors)
    # The scene's number and its time on the still, on dark glass so that they are legible.
    number, times = str(scene["index"] + 1), time_range(scene, dash="-")
    _draw_badge(card, (10, 10), number, _ACCENT, anchor_right=False)
    at = (grid.card_width - 10, grid.still_height - 40)
    _draw_badge(card, at, times, _BRIGHT, anchor_right=True)
    _draw_words(pen, scene, grid)
    # Round the corners off, against the colour of the sheet.
    mask = Image.new("L", (card.width * 2, card.height * 2))
    box = (0, 0, mask.width - 1, mask.height - 1)
    ImageDraw.Draw(mask).rounded_rectangle(box, radius=2 * _RADIUS, fill=255)
    paper = Image.new("RGB", card.size, _PAPER)
    return Image.composite(card, paper, mask.resize(card.size, Image.Resampling.BOX))


def _framed(still: Image.Image | None, grid: _Grid) -> Image.Image:
    """Return the still, whole and undistorted, in the middle of its box."""
    box = (grid.card_width, grid.still_height)
    well = Image.new("RGB", box, _WELL)
    if still is None:
        at = ((box[0] - Typeface(18).getlength("no still")) / 2, box[1] / 2 - 12)
        Typeface(18).draw(ImageDraw.Draw(well), at, "no still", _FAINT)
        return well
    scale = min(box[0] / still.width, box[1] / still.height)
    size = (max(1, round(still.width * scale)), max(1, round(still.height * scale)))
    fitted = still.resize(size, Image.Resampling.LANCZOS)
    well.paste(fitted, ((box[0] - size[0]) // 2, (box[1] - size[1]) // 2))
    return well


def _draw_badge(
    card: Image.Image, at: tuple[int, int], text: str, color: str, *, anchor_right: bool
) -> None:
    width = round(Typeface(17).getlength(text)) + 20
    left = at[0] - width if anchor_right else at[0]
    glass = Image.new("RGBA", (width, 30), (0, 0, 0, 0))
    pen = ImageDraw.Draw(glass)
    pen.rounded_rectangle((0, 0, width - 1, 29), radius=8, fill=(10, 12, 16, 205))
    Typeface(17).draw(pen, (10, 4), text, color)
    card.paste(glass, (left, at[1]), glass)


def _draw_words(pen: ImageDraw.ImageDraw, scene: Scene, grid: _Grid) -> None:
    """Shot type (else the title, else the number), objects, a few lines of description."""
    top, room = grid.still_height + _PALETTE + 14, grid.card_width - 2 * _PADDING
    words = shot_words(scene)
    title = _largest_line(scene)
    heading = " · ".join(words) or title or f"scene {scene['index'] + 1}"
    heading = shortened(heading[0].upper() + heading[1:], Typeface(19), room)
    Typeface(19).draw(pen, (_PADDING, top), heading, _BRIGHT if words or title else _FAINT)
    objects = ", ".join(map(one_line, labels_of(scene)))
    if objects:
        line = shortened(objects, Typeface(16), room)
        Typeface(16).draw(pen, (_PADDING, top + 28), line, _ACCENT)
    text_top = top + (54 if objects else 32)
    description = one_line(str(scene.get("description") or ""))
    lines = wrapped(description, Typeface(16), room, _DESCRIPTION_LINES)
    for number, line in enumerate(lines):
        Typeface(16).draw(pen, (_PADDING, text_top + 24 * number), line, _TEXT)


def _largest_line(scene: Scene) -> str:
    """Return the largest writing on the screen, in quotes; empty where there is none."""
    lines = scene.get("onScreenText") or []
    if not lines:
        return ""
    largest = max(lines, key=lambda line: float(line["box"]["height"]))
    return f"“{one_line(str(largest['text']))}”"
