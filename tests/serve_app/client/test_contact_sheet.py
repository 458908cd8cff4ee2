"""The contact sheet shows every scene, whatever the stills are, and stays of bounded size."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from serve_app.client import letters
from serve_app.client.export import (
    MAX_SCENES,
    chosen_scenes,
    contact_sheet,
    shortened,
    wrapped,
)
from serve_app.client.letters import Typeface
from tests.tables import every

PALETTE = ["#c81e1e", "#1ec81e", "#1e1ec8"]


def scene(index: int, **more: Any) -> dict[str, Any]:
    return {
        "index": index,
        "startTime": index * 3.0,
        "endTime": index * 3.0 + 3.0,
        "description": "A static shot. " * 12,
        "objects": ["text"],
        "colorPalette": PALETTE,
        "shotType": "wide",
        "shotAngle": "unknown",
    } | more


def still(width: int, height: int, color: tuple[int, int, int] = (240, 200, 10)) -> bytes:
    encoded = io.BytesIO()
    Image.new("RGB", (width, height), color).save(encoded, "PNG")
    return encoded.getvalue()


def pixels_of(sheet: Image.Image, color: tuple[int, int, int]) -> tuple[int, int, int]:
    """How many pixels have exactly the colour, and the width and height of where they are."""
    rows, columns = np.nonzero((np.asarray(sheet) == color).all(axis=-1))
    if len(rows) == 0:
        return 0, 0, 0
    width, height = columns.max() - columns.min() + 1, rows.max() - rows.min() + 1
    return len(rows), int(width), int(height)


@every("count", [0, 1, 2, 4, 5, 7, 24, 25, 60, 61, 500])
def test_any_number_of_scenes_makes_a_sheet_of_bounded_size(count: int) -> None:
    sheet = contact_sheet([scene(i) for i in range(count)], [still(64, 36)] * count, title="a.mp4")
    assert sheet.mode == "RGB"
    assert 1500 <= sheet.width <= 1920
    assert 200 <= sheet.height <= 6500


@every(
    ("width", "height"),
    [
        pytest.param(640, 360, id="landscape"),
        pytest.param(360, 640, id="portrait"),
        pytest.param(500, 500, id="square"),
        pytest.param(1280, 300, id="very wide"),
        pytest.param(40, 1000, id="very tall"),
        pytest.param(1, 1, id="one pixel"),
    ],
)
def test_a_still_is_shown_whole_and_undistorted(width: int, height: int) -> None:
    color = (240, 200, 10)
    sheet = contact_sheet([scene(0)], [still(width, height, color)], title="a.mp4")
    count, shown_width, shown_height = pixels_of(sheet, color)
    assert count > 0
    assert shown_width / shown_height == pytest.approx(width / height, rel=0.15)


def test_stills_of_different_shapes_share_a_sheet() -> None:
    stills = [still(640, 360, (250, 0, 250)), still(360, 640, (0, 250, 250)), None]
    sheet = contact_sheet([scene(i) for i in range(3)], stills, title="a.mp4")
    assert pixels_of(sheet, (250, 0, 250))[0] > 1000
    assert pixels_of(sheet, (0, 250, 250))[0] > 1000


@every(
    "missing",
    [
        pytest.param(None, id="none"),
        pytest.param(b"", id="empty"),
        pytest.param(b"not a picture", id="other bytes"),
        pytest.param(still(64, 36)[:60], id="cut off"),
    ],
)
def test_a_missing_or_broken_still_leaves_the_rest_of_the_card(missing: bytes | None) -> None:
    sheet = contact_sheet([scene(0)], [missing], title="a.mp4")
    assert pixels_of(sheet, (200, 30, 30))[0] > 1000  # the palette's first colour


def test_the_palette_lies_under_the_still_first_colour_widest() -> None:
    sheet = contact_sheet([scene(0)], [still(640, 360)], title="a.mp4")
    counts = [pixels_of(sheet, color)[0] for color in ((200, 30, 30), (30, 200, 30), (30, 30, 200))]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] > 1000


def test_a_title_heads_its_scene_where_no_shot_type_is_known() -> None:
    box = {"left": 0.1, "top": 0.4, "width": 0.8, "height": 0.1}
    small = {"text": "a film", "confidence": 0.95, "box": box | {"height": 0.04}}
    title = {"text": "THE SEA", "confidence": 0.98, "box": box}

    def sheet(**more: Any) -> Image.Image:
        return contact_sheet([scene(0, **more)], [None], title="a.mp4")

    titled = sheet(shotType="unknown", onScreenText=[small, title])
    assert titled == sheet(shotType="unknown", onScreenText=[title])
    assert titled != sheet(shotType="unknown", onScreenText=[small])
    assert titled != sheet(shotType="unknown")
    assert sheet(onScreenText=[title]) == sheet()


def test_scenes_take_room_on_the_time_line_as_they_take_time() -> None:
    first = scene(0, endTime=30.0, colorPalette=["#fa0000"])
    second = scene(1, startTime=30.0, endTime=40.0, colorPalette=["#00fa00"])
    pixels = np.asarray(contact_sheet([first, second], [None, None], title="a.mp4"))
    band = pixels[137]  # a row in the middle of the time line
    long, short = ((band == color).all(axis=-1).sum() for color in ((250, 0, 0), (0, 250, 0)))
    assert long / short == pytest.approx(3, rel=0.02)


def test_a_video_without_scenes_says_that_it_is_one_shot() -> None:
    named = np.asarray(contact_sheet([], [], title="a.mp4"))
    bright_rows = np.flatnonzero((named > 120).any(axis=(1, 2)))
    assert bright_rows.max() > 200  # there is writing below the title


def test_only_a_sampled_sheet_has_the_note_about_it() -> None:
    def foot_is_written(count: int) -> bool:
        scenes = [scene(i) for i in range(count)]
        sheet = np.asarray(contact_sheet(scenes, [None] * count, title="a.mp4"))
        return bool((sheet[-40:] > 80).any())

    assert foot_is_written(MAX_SCENES + 1)
    assert not foot_is_written(MAX_SCENES)


def test_scenes_and_stills_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="2 scenes, 1 thumbnails"):
        contact_sheet([scene(0), scene(1)], [None], title="a.mp4")


@every(
    "odd",
    [
        pytest.param({"index": 0, "startTime": 0.0, "endTime": 0.0}, id="nothing but a time"),
        pytest.param(scene(0, colorPalette=["nonsense"]), id="no colour"),
        pytest.param(scene(0, description="日本語の説明 ñandú"), id="letters the font lacks"),
        pytest.param(scene(0, description="x" * 5000), id="a word without end"),
        pytest.param(scene(0, objects=["thing"] * 500), id="very many objects"),
    ],
)
def test_odd_scenes_are_drawn_too(odd: dict[str, Any]) -> None:
    assert contact_sheet([odd], [None], title="t" * 900).width > 0


@given(count=st.integers(0, 5000), limit=st.integers(2, 100))
def test_chosen_scenes_are_evenly_spread_from_the_first_to_the_last(count: int, limit: int) -> None:
    chosen = chosen_scenes(count, limit)
    assert len(chosen) == min(count, limit)
    assert chosen == sorted(set(chosen))
    if count:
        assert (chosen[0], chosen[-1]) == (0, count - 1)
    steps = [after - before for before, after in pairwise(chosen)]
    assert max(steps, default=0) - min(steps, default=0) <= 1


@given(text=st.text(max_size=300), width=st.integers(40, 400), lines=st.integers(1, 5))
def test_wrapped_lines_are_few_and_fit(text: str, width: int, lines: int) -> None:
    broken = wrapped(text, Typeface(16), width, lines)
    assert len(broken) <= lines
    assert all(Typeface(16).getlength(line) <= width for line in broken)


def test_wrapping_loses_no_word_where_there_is_room() -> None:
    text = "the quick brown fox jumps over the lazy dog"
    assert " ".join(wrapped(text, Typeface(16), 120, 9)) == text


def test_text_that_is_cut_ends_with_an_ellipsis() -> None:
    assert shortened("one two three four five", Typeface(16), 90).endswith("…")
    assert shortened("one", Typeface(16), 90) == "one"


def drawn(text: str) -> np.ndarray[Any, Any]:
    image = Image.new("L", (400, 60))
    Typeface(32).draw(ImageDraw.Draw(image), (4, 4), text, "white")
    return np.asarray(image)


@every(
    "text",
    [
        pytest.param("東京の夜", id="Japanese"),
        pytest.param("测试完成", id="Chinese"),
        pytest.param("서울의 밤", id="Korean"),
        pytest.param("مرحبا بالعالم", id="Arabic"),
        pytest.param("שלום עולם", id="Hebrew"),
        pytest.param("नमस्ते", id="Hindi"),
        pytest.param("สวัสดี", id="Thai"),
        pytest.param("Привет", id="Russian"),
        pytest.param("Γειά σου", id="Greek"),
        pytest.param("வணக்கம்", id="Tamil"),
        pytest.param("Größe – naïve ×", id="accents and signs"),
    ],
)
def test_letters_of_each_script_are_drawn_as_no_box(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    box = drawn("\uffff")
    letters._boxes.cache_clear()
    caplog.clear()
    assert drawn(text).any()
    assert all((drawn(letter) != box).any() for letter in text)
    assert not caplog.records


def test_letters_that_no_font_has_are_boxes_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    letters._boxes.cache_clear()
    drawn("བོད")
    drawn("སྐད")
    assert [record.getMessage() for record in caplog.records] == [
        "No font has some letters: they are drawn as boxes."
    ]


@every(
    ("text", "runs"),
    [
        pytest.param("a שלום, עולם b", ["a ", "עולם", ", ", "שלום", " b"], id="Hebrew in English"),
        pytest.param("סרט 12.mp4", ["mp4", " 12.", "סרט"], id="a file's name"),
        pytest.param("中文 film", ["中文", " film"], id="one direction"),
    ],
)
def test_runs_are_in_the_order_in_which_they_stand(text: str, runs: list[str]) -> None:
    assert [run for run, _, _ in letters._runs(text)] == runs


def test_one_code_has_the_shape_of_the_language_of_its_line() -> None:
    chinese, japanese = drawn("直"), drawn("直の")
    assert (japanese[:, :36] != chinese[:, :36]).any()
