"""Writing a job's results into a folder."""

from __future__ import annotations

import io
import json
import uuid
from pathlib import Path
from typing import Literal

from serve_app.client.api import ApiClient, JsonObject, RequestFailedError
from serve_app.client.contact_sheet import chosen_scenes, contact_sheet

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
    seen = client.get_seen(job["jobId"])
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
