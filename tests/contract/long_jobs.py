"""A job of three hours, with 2,000 scenes and 12,000 words."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.contract.calling import Caller, ContractApi
from tests.contract.runner_side import FOOTAGE, RunnerSide

SECONDS = 3 * 3600
WORDS = 12_000
SCENES = 2_000
WORDS_A_LINE = 10


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
