"""What a person reads in the terminal is what the API said."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, RenderableType

from serve_app.client.rendering import (
    clock,
    one_line,
    palette_of,
    palette_swatches,
    scenes_table,
    shot_words,
    transcript_text,
    warning_text,
)
from tests.tables import every

SPEAKERS = [
    {"id": "speaker_0", "label": "Speaker 1", "speakingSeconds": 4.0},
    {"id": "speaker_1", "label": "Speaker 2", "speakingSeconds": 2.5},
]


def scene(index: int, **more: Any) -> dict[str, Any]:
    return {
        "index": index,
        "startTime": index * 2.0,
        "endTime": index * 2.0 + 2.0,
        "description": f"Description {index}.",
        "objects": ["face", "text"],
        "colorPalette": ["#102030", "#a0b0c0"],
        "shotType": "medium_close_up",
        "shotAngle": "eye_level",
        "confidence": 0.9,
        "thumbnailUrl": "http://localhost/0.jpg",
    } | more


def segment(start: float, text: str, speaker: str | None) -> dict[str, Any]:
    return {"index": 0, "startTime": start, "endTime": start + 1, "text": text, "speaker": speaker}


def transcript(*segments: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"language": "en-US", "speakers": SPEAKERS, "segments": list(segments)} | more


def shown(renderable: RenderableType, width: int = 120, *, colors: bool = False) -> str:
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colors,
        color_system="truecolor" if colors else None,
        legacy_windows=False,
    )
    console.print(renderable)
    written = console.file
    assert isinstance(written, io.StringIO)
    return written.getvalue()


@every(
    ("seconds", "expected"),
    [
        pytest.param(0, "0:00.0", id="start"),
        pytest.param(7.4, "0:07.4", id="tenths"),
        pytest.param(0.3, "0:00.3", id="a tenth that binary fractions cannot hold"),
        pytest.param(29.79, "0:29.7", id="rounded down, not past the end"),
        pytest.param(59.96, "0:59.9", id="never sixty seconds"),
        pytest.param(60, "1:00.0", id="a minute"),
        pytest.param(3599.99, "59:59.9", id="just below an hour"),
        pytest.param(3723.5, "1:02:03.5", id="hours"),
        pytest.param(86_400, "24:00:00.0", id="the longest video"),
    ],
)
def test_times_read_like_a_player_shows_them(seconds: float, expected: str) -> None:
    assert clock(seconds) == expected


@every(
    ("shot", "angle", "expected"),
    [
        pytest.param("medium_close_up", "eye_level", ["medium close-up", "eye level"], id="both"),
        pytest.param("extreme_close_up", "unknown", ["extreme close-up"], id="no angle"),
        pytest.param("unknown", "low", ["low angle"], id="no shot type"),
        pytest.param("wide", "dutch", ["wide", "dutch angle"], id="dutch"),
        pytest.param("unknown", "unknown", [], id="neither"),
        pytest.param(None, None, [], id="null"),
    ],
)
def test_shots_are_named_in_words_and_unknown_is_left_out(
    shot: str | None, angle: str | None, expected: list[str]
) -> None:
    assert shot_words({"shotType": shot, "shotAngle": angle}) == expected


def test_the_table_has_a_row_a_scene_with_all_that_is_known() -> None:
    text = shown(scenes_table([scene(0), scene(1)]))
    for expected in ("0:00.0 – 0:02.0", "0:02.0 – 0:04.0", "Description 0.", "Description 1."):
        assert expected in text
    assert text.count("medium close-up") == 2
    assert text.count("face, text") == 2


def test_palette_swatches_have_the_colours_of_the_scene() -> None:
    text = shown(scenes_table([scene(0, colorPalette=["#102030", "#a0b0c0"])]), colors=True)
    assert "\x1b[38;2;16;32;48m██" in text
    assert "\x1b[38;2;160;176;192m██" in text


def test_what_is_not_a_colour_is_no_swatch() -> None:
    colors = palette_of({"colorPalette": ["red", "#12345", "#12345g", "[bold]", "#ABCDEF"]})
    assert colors == ["#ABCDEF"]
    assert palette_swatches(colors).plain == "██"


@every("width", [40, 80, 200])
def test_the_table_fits_the_terminal(width: int) -> None:
    text = shown(scenes_table([scene(0, description="many words " * 30)]), width=width)
    assert max(len(line) for line in text.splitlines()) <= width


def test_a_video_without_cuts_is_said_to_be_one_shot() -> None:
    assert shown(scenes_table([])).strip() == "One shot: the video has no cuts."


def test_a_video_without_cuts_has_the_row_of_its_overview() -> None:
    seen = {name: value for name, value in scene(0).items() if name != "index"}
    lines = shown(scenes_table([], seen)).splitlines()
    assert lines[0].strip() == "One shot: the video has no cuts."
    assert any("Description 0." in line for line in lines)


@every(
    ("about", "expected"),
    [
        ({}, "AUDIO_DAMAGED 3 packets."),
        ({"startTime": 1.2, "endTime": 61.9}, "AUDIO_DAMAGED 3 packets. (0:01.2 – 1:01.9)"),
        ({"trackIndex": 0, "startTime": 2}, "AUDIO_DAMAGED 3 packets. (track 1, 0:02.0)"),
        ({"trackIndex": 1}, "AUDIO_DAMAGED 3 packets. (track 2)"),
    ],
)
def test_a_warning_says_what_it_is_about(about: dict[str, Any], expected: str) -> None:
    warning = {"code": "AUDIO_DAMAGED", "message": "3\x1b packets."} | about
    assert warning_text(warning).plain == expected


def test_a_scene_with_nothing_known_still_has_its_row() -> None:
    bare = {"index": 0, "startTime": 0.0, "endTime": 1.0}
    assert "0:00.0 – 0:01.0" in shown(scenes_table([bare]))


def test_descriptions_cannot_style_or_steer_the_terminal() -> None:
    text = shown(scenes_table([scene(0, description="[red]x[/red] \x1b[2Jy\x07")]))
    assert "[red]x[/red]" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_control_characters_and_line_breaks_become_single_spaces() -> None:
    assert one_line("a\r\n\tb\x00\u200bc") == "a b c"


def test_segments_of_one_speaker_in_a_row_are_one_turn() -> None:
    text = shown(
        transcript_text(
            transcript(
                segment(0.5, "good morning", "speaker_0"),
                segment(2.0, "how are you", "speaker_0"),
                segment(3.5, "fine", "speaker_1"),
                segment(5.0, "good", "speaker_0"),
            )
        )
    )
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert rows == [
        "en-US · 2 speakers · Speaker 1 0:04.0, Speaker 2 0:02.5",
        "0:00.5 Speaker 1 good morning how are you",
        "0:03.5 Speaker 2 fine",
        "0:05.0 Speaker 1 good",
    ]


def test_each_track_is_named_with_its_first_words() -> None:
    said = transcript(segment(1.0, "Good morning.", "speaker_0"))
    entries = [{"StartTime": 1.0, "EndTime": 2.0, "Text": "Good morning. " * 9, "Speaker": "S"}]
    tracks = [
        {"trackIndex": 0, "trackName": "Desktop", "transcript": []},
        {"trackIndex": 1, "trackName": "Mic", "transcript": entries},
        {"trackIndex": 2, "trackName": "Track 3", "transcript": [], "errorCode": "NO_AUDIO"},
    ]
    text = shown(transcript_text(said | {"tracks": tracks, "trackIndex": 1}))
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert rows[:3] == [
        "Track 1: Desktop No speech was found.",
        "Track 2: Mic shown below Good morning. Good morning. Good morning. Good morning. …",
        "Track 3 NO_AUDIO",
    ]
    assert rows[-1] == "0:01.0 Speaker 1 Good morning."


def test_speech_of_nobody_known_has_no_name() -> None:
    text = shown(transcript_text(transcript(segment(1.0, "hello", None), speakers=[])))
    assert [line.split() for line in text.splitlines()] == [["en-US"], ["0:01.0", "hello"]]


def test_speakers_have_colours_of_their_own() -> None:
    turns = transcript(segment(0, "a", "speaker_0"), segment(1, "b", "speaker_1"))
    text = shown(transcript_text(turns), colors=True)
    assert "\x1b[36mSpeaker 1" in text
    assert "\x1b[35mSpeaker 2" in text


@every(
    "empty",
    [
        pytest.param(transcript(speakers=[]), id="no segments"),
        pytest.param({"jobId": "x", "language": None, "text": ""}, id="no fields"),
    ],
)
def test_a_transcript_without_speech_says_so(empty: dict[str, Any]) -> None:
    assert shown(transcript_text(empty)).strip() == "No speech was found."
