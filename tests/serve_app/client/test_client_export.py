"""Exported files are what the API gave, complete or not there at all."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from serve_app.client.api import ApiClient, RequestFailedError
from serve_app.client.export import (
    MAX_SCENES,
    PARTIAL_NAMES,
    RESULT_NAMES,
    export_results,
    write_atomically,
)
from tests.serve_app.client.scripted_api import Answer, ScriptedApi, data, error

JOB_ID = "7f1d9c1e-52a3-4d52-9a3c-0f6b0d1c2e3f"
JOB = f"/jobs/{JOB_ID}"
TRANSCRIPT = {
    "jobId": JOB_ID,
    "language": "en-US",
    "speakers": [{"id": "speaker_0", "label": "Speaker 1", "speakingSeconds": 1.0}],
    "text": "grüß dich",
    "segments": [],
}


def script_job(api: ScriptedApi, vision: str, transcript: str) -> None:
    stages = {"ingest": "completed", "vision": vision, "transcript": transcript}
    job = {
        "jobId": JOB_ID,
        "state": "completed",
        "fileName": "holiday.mp4",
        "stages": {name: {"status": status} for name, status in stages.items()},
    }
    api.script("GET", JOB, data(job))


def script_scenes(api: ScriptedApi, count: int, thumbnail: Answer) -> list[dict[str, Any]]:
    scenes = [
        {
            "index": index,
            "startTime": float(index),
            "endTime": index + 1.0,
            "description": "Eine schöne Szene.",
            "objects": [],
            "colorPalette": ["#102030"],
            "shotType": "wide",
            "shotAngle": "unknown",
            "thumbnailUrl": f"{api.base_url}/thumbnails/{index}.jpg",
        }
        for index in range(count)
    ]
    api.script("GET", f"{JOB}/scenes", data({"jobId": JOB_ID, "scenes": scenes}))
    for index in range(count):
        api.script("GET", f"/thumbnails/{index}.jpg", thumbnail)
    return scenes


def script_captions(api: ScriptedApi, query: str, text: str) -> None:
    api.script("GET", f"{JOB}/transcript?{query}", Answer(200, text.encode()))


def picture() -> Answer:
    encoded = io.BytesIO()
    Image.new("RGB", (64, 36), (250, 10, 250)).save(encoded, "PNG")
    return Answer(200, encoded.getvalue(), {"Content-Type": "image/png"})


def names(paths: list[Path]) -> list[str]:
    """Their names, each of which a watched folder knows as this program's."""
    assert all(re.fullmatch(RESULT_NAMES, path.name) for path in paths)
    return [path.name for path in paths]


def test_the_sheet_shows_the_second_still_of_a_long_scene_too(
    api: ScriptedApi, client: ApiClient, tmp_path: Path
) -> None:
    sheets = []
    for second in ((), ({"time": 40.0, "url": f"{api.base_url}/thumbnails/0-2.jpg"},)):
        script_job(api, "completed", "skipped")
        [scene] = script_scenes(api, 1, picture())
        scene["stills"] = [{"time": 4.0, "url": scene["thumbnailUrl"]}, *second]
        api.script("GET", f"{JOB}/scenes", data({"jobId": JOB_ID, "scenes": [scene]}))
        api.script("GET", "/thumbnails/0-2.jpg", picture())
        export_results(client, JOB_ID, tmp_path)
        sheets.append((tmp_path / "contact-sheet.png").read_bytes())
    assert sheets[0] != sheets[1]


def test_a_whole_job_gives_five_files(api: ScriptedApi, client: ApiClient, tmp_path: Path) -> None:
    script_job(api, "completed", "completed")
    scenes = script_scenes(api, 3, picture())
    api.script("GET", f"{JOB}/transcript", data(TRANSCRIPT))
    script_captions(api, "format=srt", "1\n00:00:00,000 --> 00:00:01,000\ngrüß dich\n")
    script_captions(api, "format=vtt", "WEBVTT\n")
    folder = tmp_path / "new" / "out"
    written = export_results(client, JOB_ID, folder)
    expected = ["scenes.json", "contact-sheet.png", "transcript.json"]
    assert names(written) == [*expected, "transcript.srt", "transcript.vtt"]
    assert sorted(folder.iterdir()) == sorted(written)
    assert json.loads((folder / "scenes.json").read_text("utf-8"))["scenes"] == scenes
    assert json.loads((folder / "transcript.json").read_text("utf-8")) == TRANSCRIPT
    assert "grüß dich" in (folder / "transcript.srt").read_text("utf-8")
    assert (folder / "transcript.vtt").read_bytes() == b"WEBVTT\n"
    with Image.open(folder / "contact-sheet.png") as sheet:
        colors = sheet.convert("RGB").getcolors(1 << 24) or []
    assert (250, 10, 250) in [color for _, color in colors]


@pytest.mark.parametrize(
    ("vision", "transcript", "expected"),
    [
        pytest.param(
            "completed", "skipped", ["scenes.json", "contact-sheet.png"], id="silent video"
        ),
        pytest.param(
            "skipped",
            "completed",
            ["transcript.json", "transcript.srt", "transcript.vtt"],
            id="audio only",
        ),
        pytest.param("failed", "skipped", [], id="nothing"),
        pytest.param("completed", "running", ["scenes.json", "contact-sheet.png"], id="not yet"),
    ],
)
def test_only_results_of_completed_stages_are_written(
    api: ScriptedApi,
    client: ApiClient,
    tmp_path: Path,
    vision: str,
    transcript: str,
    expected: list[str],
) -> None:
    script_job(api, vision, transcript)
    script_scenes(api, 1, picture())
    api.script("GET", f"{JOB}/transcript", data(TRANSCRIPT))
    written = export_results(client, JOB_ID, tmp_path)
    assert names(written) == expected
    assert len(list(tmp_path.iterdir())) == len(expected)


def test_a_job_with_several_tracks_has_files_for_each_completed_one(
    api: ScriptedApi, client: ApiClient, tmp_path: Path
) -> None:
    script_job(api, "skipped", "completed")
    statuses = enumerate(["completed", "failed", "completed"])
    tracks = [{"trackIndex": index, "status": status} for index, status in statuses]
    api.script("GET", f"{JOB}/transcript", data(TRANSCRIPT | {"tracks": tracks}))
    for index in (0, 2):
        track = TRANSCRIPT | {"trackIndex": index}
        api.script("GET", f"{JOB}/transcript?track={index}", data(track))
        for ending in ("srt", "vtt"):
            script_captions(api, f"track={index}&format={ending}", f"{ending} of {index}")
    written = export_results(client, JOB_ID, tmp_path)
    endings = ("json", "srt", "vtt")
    of_tracks = [f"transcript.track{index}.{ending}" for index in (0, 2) for ending in endings]
    assert names(written) == ["transcript.json", *of_tracks]
    assert json.loads((tmp_path / "transcript.track2.json").read_text())["trackIndex"] == 2
    assert (tmp_path / "transcript.track0.vtt").read_text() == "vtt of 0"


def test_a_video_without_cuts_has_an_empty_list_and_a_sheet(
    api: ScriptedApi, client: ApiClient, tmp_path: Path
) -> None:
    script_job(api, "completed", "skipped")
    script_scenes(api, 0, picture())
    export_results(client, JOB_ID, tmp_path)
    assert json.loads((tmp_path / "scenes.json").read_text())["scenes"] == []
    assert (tmp_path / "contact-sheet.png").stat().st_size > 0


def test_a_still_that_is_gone_does_not_cost_the_sheet(
    api: ScriptedApi, client: ApiClient, tmp_path: Path
) -> None:
    script_job(api, "completed", "skipped")
    script_scenes(api, 2, error(404, "NOT_FOUND"))
    assert "contact-sheet.png" in names(export_results(client, JOB_ID, tmp_path))


def test_only_the_stills_that_the_sheet_shows_are_fetched(
    api: ScriptedApi, client: ApiClient, tmp_path: Path
) -> None:
    script_job(api, "completed", "skipped")
    script_scenes(api, 2 * MAX_SCENES, picture())
    export_results(client, JOB_ID, tmp_path)
    assert len([seen for seen in api.seen if "/thumbnails/" in seen.path]) == MAX_SCENES


def test_an_unknown_job_is_an_error_and_leaves_no_file(
    api: ScriptedApi, client: ApiClient, tmp_path: Path
) -> None:
    api.script("GET", JOB, error(404, "NOT_FOUND"))
    with pytest.raises(RequestFailedError, match="NOT_FOUND"):
        export_results(client, JOB_ID, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_second_export_replaces_the_files_of_the_first(
    api: ScriptedApi, client: ApiClient, tmp_path: Path
) -> None:
    script_job(api, "completed", "skipped")
    for count in (3, 1):
        script_scenes(api, count, picture())
        export_results(client, JOB_ID, tmp_path)
    assert len(json.loads((tmp_path / "scenes.json").read_text())["scenes"]) == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_a_failed_write_leaves_what_was_there_and_no_debris(tmp_path: Path) -> None:
    target = tmp_path / "scenes.json"
    target.mkdir()  # A folder in the way: the last step, the renaming, fails.
    (target / "kept").touch()
    with pytest.raises(OSError, match=r"scenes\.json"):
        write_atomically(target, b"new")
    assert list(tmp_path.iterdir()) == [target]
    assert (target / "kept").exists()


def test_what_a_killed_write_leaves_has_a_partial_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[str] = []
    monkeypatch.setattr(Path, "replace", lambda self, target: left.append(self.name))
    write_atomically(tmp_path / "scenes.json", b"new")
    assert re.fullmatch(PARTIAL_NAMES.format(names=RESULT_NAMES), left[0])
