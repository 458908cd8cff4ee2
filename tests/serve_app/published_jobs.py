"""Jobs as runners leave them, without a runner: what it would publish, published."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from models.contracts import SoundKind
from pipelines.codec import encode, to_json
from pipelines.media_types import Orientation
from pipelines.types import (
    AudioStream,
    IngestResult,
    MediaInfo,
    PipelineWarning,
    Speaker,
    SpeakerTurn,
    StageCode,
    StageError,
    TimedSentence,
    TimedSound,
    TranscriptResult,
    TranscriptSegment,
    TranscriptWord,
    VideoStream,
)
from serve_app.results.receipts import StageReceipt
from serve_app.results.transcripts import SummarySentenceJson
from serve_app.work import publishing
from serve_app.work.comparing import KeptSounds, parts_of_shots
from serve_app.work.publishing import Lease
from storage import jobs, keys
from storage.history import Change, Span
from storage.results import TrackTranscript
from storage.types import StageName, StageStatus
from tests.serve_app.running_api import Customer, RunningApi

SCENES: list[dict[str, Any]] = [
    {
        "index": 0,
        "startTime": 0.0,
        "endTime": 12.48,
        "description": "A woman speaks to the camera in a bright kitchen.",
        "objects": ["kettle", "woman"],
        "colorPalette": ["#e8e2d6", "#6b4f3a", "#2f3a40"],
        "shotType": "medium",
        "shotAngle": "eye_level",
        "cameraMotion": "static",
        "confidence": 0.97,
        "thumbnailKey": "jobs/x/0.jpg",
        "objectTracks": [{"label": "woman", "start": 0.0, "end": 12.48, "confidence": 0.91}],
        "onScreenText": [
            {
                "text": "Anna Weber, baker",
                "confidence": 0.98,
                "box": {"left": 0.08, "top": 0.82, "width": 0.31, "height": 0.06},
            }
        ],
        "tags": [{"label": "cooking", "score": 0.42}],
    }
]
SPOKEN = TranscriptSegment(
    index=0,
    start_ms=1200,
    end_ms=2060,
    text="Good morning.",
    speaker="speaker_0",
    confidence=0.96,
    words=(
        TranscriptWord("Good", 1200, 1500, 0.98, "speaker_0"),
        TranscriptWord("morning.", 1500, 2060, 0.95, "speaker_0"),
    ),
)
SPEAKER = Speaker("speaker_0", "Speaker 1", 0.86)
TRANSCRIPT = encode(
    TranscriptResult(
        "en",
        (SPEAKER,),
        (SPOKEN,),
        turns=(SpeakerTurn("speaker_0", 1180, 2080),),
        sounds=(TimedSound(SoundKind.MUSIC, 2000, 9000, 0.75),),
    )
).decode()
SENTENCES = [TimedSentence("Somebody says good morning.", 1200, 2060)]
SUMMARY: list[SummarySentenceJson] = [
    {"text": "Somebody says good morning.", "startTime": 1.2, "endTime": 2.06}
]


def media(streams: int) -> MediaInfo:
    video = VideoStream(0, "h264", 640, 360, Orientation(), 1.0, 25.0, 2380)
    audio = tuple(AudioStream(n + 1, "aac", 48_000, 2, "en", None) for n in range(streams))
    return MediaInfo("mp4", 1000, 95.2, video, audio)


def created(api: RunningApi, customer: Customer, **body: Any) -> str:
    body |= {"url": "https://media.example.com/clip.mp4"}
    answer = api.client.post("/jobs/from-url", json=body, headers=customer.headers)
    assert answer.status_code == 201, answer.text
    job_id: str = answer.json()["data"]["jobId"]
    return job_id


async def lease_of(connection: AsyncConnection, job_id: str) -> Lease:
    """The job must be the only one that waits."""
    taken = await jobs.lease_next(connection, lease=timedelta(seconds=60))
    assert taken is not None
    assert str(taken[0]) == job_id
    return Lease(*taken)


def track(index: int, error: str | None = None) -> TrackTranscript:
    status = StageStatus.COMPLETED if error is None else StageStatus.FAILED
    document = TRANSCRIPT if error is None else None
    language = "en" if error is None else None
    return TrackTranscript(index, f"Mic {index}", status, error, language, document)


_TIMES = {"startTime": "start_ms", "endTime": "end_ms", "start": "start_ms", "end": "end_ms"}


def stored(shown: Any) -> Any:
    """Scenes, or an overview, as they are stored; ``shown`` is as the API shows them."""
    if isinstance(shown, list):
        return [stored(each) for each in shown]
    if not isinstance(shown, dict):
        return shown
    return {
        _TIMES.get(name) or re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): (
            round(value * 1000) if name in _TIMES else stored(value)
        )
        for name, value in shown.items()
    }


def complete(
    api: RunningApi,
    job_id: str,
    tracks: list[TrackTranscript],
    warnings: Sequence[Mapping[str, Any]],
    summary: Sequence[TimedSentence] | PipelineWarning | None = None,
    scenes: list[dict[str, Any]] = SCENES,
    overview: dict[str, Any] | None = None,
    people: Sequence[Mapping[str, Any]] | None = None,
    voices: publishing.KeptVoices | None = None,
    before: Mapping[int, Change] | None = None,
    muted: Sequence[Span] = (),
    receipts: Mapping[StageName, StageReceipt] | None = None,
    fingerprints: bytes | None = None,
    sounds: KeptSounds | None = None,
) -> None:
    kept = receipts or {}

    async def publish(connection: AsyncConnection) -> None:
        lease = await lease_of(connection, job_id)
        found = media(len(tracks))
        await publishing.start_stage(connection, lease, StageName.INGEST)
        await publishing.raise_hold(connection, lease, found, api.context.prices)
        await publishing.publish_ingest(
            connection,
            lease,
            media=found,
            result=to_json(IngestResult(found, None, ())),
            track_names=[item.track_name for item in tracks],
            warnings=warnings,
            timings={},
            receipt=kept.get(StageName.INGEST),
        )
        await publishing.publish_scenes(
            connection,
            lease,
            stored(scenes),
            {},
            overview=overview and stored(overview),
            people=people,
            receipt=kept.get(StageName.VISION),
            fingerprints=fingerprints,
            shot_keys=parts_of_shots(fingerprints),
        )
        redacted: dict[str, Any] = {"before": before, "muted": muted}
        redacted |= {"receipt": kept.get(StageName.TRANSCRIPT), "sounds": sounds}
        await publishing.publish_transcripts(
            connection, lease, tracks, {}, summary=summary, voices=voices, **redacted
        )

    api.transact(publish)


def fail(api: RunningApi, job_id: str) -> None:
    async def publish(connection: AsyncConnection) -> None:
        lease = await lease_of(connection, job_id)
        error = StageError(StageCode.FETCH_FAILED, "The source answered 404.")
        await publishing.fail_stage(connection, lease, StageName.INGEST, error)

    api.transact(publish)


def signed_in(api: RunningApi, customer: Customer) -> tuple[dict[str, str], str]:
    async def work(connection: AsyncConnection) -> tuple[str, str]:
        link = await keys.create_sign_in_link(connection, customer.account_id)
        session = await keys.exchange_sign_in_link(connection, link)
        spare = await keys.create_key(connection, customer.account_id)
        assert session is not None
        return session, str(spare.id)

    session, key_id = api.transact(work)
    return {"Authorization": f"Bearer {session}"}, key_id
