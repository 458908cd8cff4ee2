"""A three-hour job in the dashboard: how long frames take while it is scrolled and sought.

``python -m benchmarks.dashboard`` needs Chromium. Prints one JSON line: milliseconds between
frames (the longest, and the 99th percentile) while the transcript and the page are scrolled from
end to end and 40 places are jumped to.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from tests.browser.visits import DESK, Visits, launched
from tests.contract.calling import Caller, ContractApi, fresh_settings
from tests.contract.runner_side import FOOTAGE, RunnerSide
from tests.databases import server_with_template

SECONDS = 3 * 3600
WORDS = 12_000
SCENES = 2_000
WORDS_A_LINE = 10

WATCH = """() => {
  window.frameTimes = [];
  let last = performance.now();
  const note = (now) => {
    window.frameTimes.push(now - last);
    last = now;
    requestAnimationFrame(note);
  };
  requestAnimationFrame(note);
}"""
SCROLL = """async (selector) => {
  const box = selector ? document.querySelector(selector) : document.scrollingElement;
  for (let top = 0; top < box.scrollHeight; top += box.scrollHeight / 150) {
    box.scrollTop = top;
    await new Promise(requestAnimationFrame);
  }
}"""
SEEK = """async (times) => {
  const link = document.createElement('a');
  document.body.append(link);
  for (const time of times) {
    link.href = `#t=${time}`;
    link.click();
    for (let n = 0; n < 10; n += 1) await new Promise(requestAnimationFrame);
  }
}"""


def long_transcript(word_count: int = WORDS) -> dict[str, Any]:
    """Two people who take turns for three hours."""
    each = SECONDS / word_count
    segments = []
    for first in range(0, word_count, WORDS_A_LINE):
        words = [
            {"text": f"word{n}", "start_ms": round(n * each * 1000), "confidence": 0.9,
             "end_ms": round((n + 0.8) * each * 1000), "speaker": f"speaker_{first // 50 % 2}"}
            for n in range(first, first + WORDS_A_LINE)
        ]  # fmt: skip
        segments.append(
            {"index": first // WORDS_A_LINE, "start_ms": words[0]["start_ms"],
             "end_ms": words[-1]["end_ms"], "text": " ".join(str(w["text"]) for w in words),
             "speaker": words[0]["speaker"], "confidence": 0.9, "words": words}
        )  # fmt: skip
    speakers = [
        {"id": f"speaker_{n}", "label": f"Speaker {n + 1}", "speaking_seconds": 5400}
        for n in range(2)
    ]
    return {"language": "en", "speakers": speakers, "segments": segments}


def long_scenes(count: int, job_id: str) -> list[dict[str, Any]]:
    each = SECONDS / count
    return [
        {"index": n, "start_ms": round(n * each * 1000), "end_ms": round((n + 1) * each * 1000),
         "description": f"A person speaks to the camera in scene {n}.", "objects": ["face", "text"],
         "color_palette": [f"#{random.Random(n + k).randrange(1 << 24):06x}" for k in range(4)],
         "shot_type": "medium", "shot_angle": "eye_level", "camera_motion": "static",
         "confidence": 0.9, "thumbnail_key": f"jobs/{job_id}/work/vision/0.jpg"}
        for n in range(count)
    ]  # fmt: skip


def long_job(api: ContractApi, runner: RunnerSide, caller: Caller) -> str:
    """A completed job of three hours."""
    job_id = runner.complete(caller, FOOTAGE)
    for table, column, value in (
        ("scene_lists", "scenes", long_scenes(SCENES, job_id)),
        ("transcripts", "document", long_transcript()),
    ):
        api.sql(
            f"UPDATE {table} SET {column} = CAST(:value AS json) WHERE job_id = CAST(:id AS uuid)",  # noqa: S608
            value=json.dumps(value), id=job_id,
        )  # fmt: skip
    api.sql("UPDATE jobs SET duration_ms = :ms WHERE id = CAST(:id AS uuid)", ms=SECONDS * 1000,
            id=job_id)  # fmt: skip
    return job_id


def measured(visits: Visits, caller: Caller, job_id: str) -> dict[str, float]:
    page = visits.open(caller, viewport=DESK)
    page.goto(f"/dashboard/jobs/{job_id}")
    page.wait_for_selector("#watch[data-ready]")
    result = {}
    times = [random.Random(7).uniform(0, SECONDS) for _ in range(40)]
    for name, script, argument in (
        ("transcript", SCROLL, "#lines"), ("page", SCROLL, ""), ("seek", SEEK, times),
    ):  # fmt: skip
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(1000)
        page.evaluate(WATCH)
        page.evaluate(script, argument)
        frames = sorted(page.evaluate("window.frameTimes"))
        result[f"{name}LongestMs"] = round(frames[-1], 1)
        result[f"{name}P99Ms"] = round(frames[int(len(frames) * 0.99) - 1], 1)
    return result


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        server_with_template(Path(folder) / "pg") as url,
        fresh_settings(url, Path(folder)) as settings,
        ContractApi(settings) as api,
        launched() as browser,
    ):
        caller = api.caller()
        job_id = long_job(api, RunnerSide(api), caller)
        visits = Visits(api, browser)
        figures = measured(visits, caller, job_id)
        visits.close()
    print(json.dumps({"words": WORDS, "scenes": SCENES} | figures))


if __name__ == "__main__":
    main()
