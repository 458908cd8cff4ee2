"""Small clips for backfills, drawn and spoken, and what can be read out of an output."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pyarrow.parquet as pq

from models.contracts import SAMPLE_RATE_HZ, Samples
from pipelines.backfill import operators
from pipelines.backfill.items import FinishedItem, ItemWork, outcome_of
from pipelines.backfill.manifest import Item
from pipelines.backfill.output import ItemOutcome
from pipelines.media.audio import read_blocks
from storage.objects import ObjectStoreUnavailableError
from tests.pipelines.media_builders import texture

SPEECH = Path(__file__).resolve().parents[2] / "media" / "speech" / "two_voices.flac"
WIDTH, HEIGHT, RATE = 192, 108, 25
SHOT_FRAMES = 18
_SPOKEN_SECONDS = 1.4
TABLES = ("items", "scenes", "segments", "words", "errors")


def write_clips(
    folder: Path, count: int, *, shots: int = 2, seconds: float = _SPOKEN_SECONDS
) -> list[Path]:
    """Clips of 1.4 s: two shots each, all unlike one another, over a stretch of speech."""
    folder.mkdir(parents=True, exist_ok=True)
    speech = np.concatenate([*read_blocks(SPEECH)])
    return [
        write_clip(folder / f"clip-{number:04d}.mkv", number, _said(speech, number, seconds), shots)
        for number in range(count)
    ]


def _said(speech: Samples, number: int, seconds: float) -> Samples:
    """A stretch of the speech, another one for every clip; it begins anew at its end."""
    length = round(seconds * SAMPLE_RATE_HZ)
    start = (number * 7919 * 16) % max(1, len(speech) - length)
    return np.resize(speech[start:], length)


def write_clip(path: Path, seed: int, samples: Samples, shots: int = 2) -> Path:
    """One clip."""
    with av.open(str(path), "w") as container:
        picture = container.add_stream("libx264", rate=RATE, options={"preset": "ultrafast"})
        picture.width, picture.height, picture.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        picture.codec_context.thread_count = 1
        sound = container.add_stream("flac", rate=SAMPLE_RATE_HZ, layout="mono")
        for shot, index in itertools.product(range(shots), range(SHOT_FRAMES)):
            drawn = cv2.resize(texture(shots * seed + shot), (WIDTH, HEIGHT))
            frame = av.VideoFrame.from_ndarray(np.roll(drawn, index, axis=1), format="rgb24")
            frame.pts = shot * SHOT_FRAMES + index
            container.mux(picture.encode(frame))
        pcm = (samples.clip(-1, 1) * 32767).astype(np.int16)
        block = av.AudioFrame.from_ndarray(pcm[None], format="s16", layout="mono")
        block.sample_rate, block.time_base = SAMPLE_RATE_HZ, Fraction(1, SAMPLE_RATE_HZ)
        block.pts = 0
        container.mux(sound.encode(block))
        container.mux(picture.encode(None))
        container.mux(sound.encode(None))
    return path


def rows_in(out: Path, table: str) -> list[dict[str, Any]]:
    """All rows of a table, as any reader of Parquet sees them, in an order of their own."""
    folder = out / table
    if not folder.is_dir():
        return []
    rows = pq.read_table(folder).drop_columns(["part"]).to_pylist()
    timeless = [{name: value for name, value in row.items() if name != "seconds"} for row in rows]
    return sorted(timeless, key=repr)


def everything_in(out: Path) -> dict[str, Any]:
    """All tables and all stills, but for how long things took."""
    tables: dict[str, Any] = {table: rows_in(out, table) for table in TABLES}
    stills = sorted(path for path in (out / "stills").rglob("*.jpg"))
    named = {path.relative_to(out).as_posix(): path.read_bytes() for path in stills}
    return tables | {"stills": named}


def differences(one: Path, other: Path) -> list[str]:
    """What only one of two outputs holds, in words: a row, or a still by its name."""
    ours, theirs = everything_in(one), everything_in(other)
    stills = (ours.pop("stills"), theirs.pop("stills"))
    names = sorted(stills[0].keys() | stills[1].keys())
    unlike = [f"still {name}" for name in names if stills[0].get(name) != stills[1].get(name)]
    return unlike + [
        f"{table}, {whose.name} only: {row}"
        for table in TABLES
        for whose, rows, others in ((one, ours, theirs), (other, theirs, ours))
        for row in _more_of(rows[table], others[table])
    ]


def _more_of(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[str]:
    counted = Counter(map(repr, rows))
    counted.subtract(map(repr, others))
    return sorted(counted.elements())


def part_names(out: Path, table: str = "items") -> list[str]:
    """The parts that are there."""
    return sorted(path.parent.name for path in (out / table).glob("part=*/data.parquet"))


def carry_out(work: ItemWork, item: Item) -> ItemOutcome:
    """Return an item's outcome, all of it worked out in this thread and stored. Raises
    ObjectStoreUnavailableError where the output is away for longer than the pauses."""
    together = functools.reduce(operators._joined_with, operators.OPERATORS)
    operator = operators.ItemOperator(work, (together,), 0)
    rows: list[operators.Row] = [operators.Unit(item)]
    while not isinstance(row := rows.pop(), FinishedItem):
        rows += operator(row)
    if row.failure:
        raise ObjectStoreUnavailableError(row.failure)
    return outcome_of(work.out.work, item.folder)
