"""Outcomes as items have them, made up; and places for outputs."""

from __future__ import annotations

from dataclasses import replace

from models.contracts import Box, CameraMotion, ShotAngle, ShotType
from pipelines.backfill.manifest import Item
from pipelines.backfill.output import ItemOutcome
from pipelines.types import (
    PipelineWarning,
    Scene,
    ScreenText,
    Speaker,
    SpeakerTurn,
    StageCode,
    StageOutcome,
    StillFrame,
    TrackOutcome,
    TranscriptResult,
    TranscriptSegment,
    TranscriptWord,
    WarningCode,
)
from storage.types import ProcessingMode, SkipReason, StageName, StageStatus


def an_item(
    item_id: str, row: int = 1, mode: ProcessingMode = ProcessingMode.ALL, metadata: str = "{}"
) -> Item:
    return Item(
        id=item_id,
        row=row,
        source=f"/media/{item_id}.mp4",
        name=f"{item_id}.mp4",
        mode=mode,
        keyterms=("sea",),
        metadata=metadata,
    )


def completed(item_id: str, *, metadata: str = "{}") -> ItemOutcome:
    """Two scenes, and two tracks of which one could not be transcribed."""
    return ItemOutcome(
        item=an_item(item_id, metadata=metadata),
        stages=tuple(StageOutcome(stage, StageStatus.COMPLETED) for stage in _STAGES),
        duration_ms=4000,
        width=640,
        height=360,
        scenes=(_scene(item_id, 0), _scene(item_id, 1)),
        overview=replace(_scene(item_id, 0), thumbnail_key=f"stills/{item_id}/overview.jpg"),
        tracks=(_track(), TrackOutcome(1, "boom", code=StageCode.TRANSCRIPT_FAILED)),
        warnings=(
            PipelineWarning(
                WarningCode.AUDIO_DAMAGED,
                "3 packets were damaged.",
                StageName.INGEST,
                track_index=0,
                start_ms=1_200,
                end_ms=1_900,
            ),
            PipelineWarning(WarningCode.TIMELINE_REPAIRED, "The clock leaps."),
        ),
        seconds=1.25,
    )


def sound_only(item_id: str) -> ItemOutcome:
    """Without a picture; nothing is said in it."""
    return ItemOutcome(
        item=an_item(item_id),
        stages=(
            StageOutcome(StageName.INGEST, StageStatus.COMPLETED),
            StageOutcome(StageName.VISION, StageStatus.SKIPPED, SkipReason.AUDIO_ONLY_INPUT),
            StageOutcome(StageName.TRANSCRIPT, StageStatus.COMPLETED),
        ),
        duration_ms=1000,
        tracks=(TrackOutcome(0, "Track 1", TranscriptResult(None, (), ())),),
    )


def failed(item_id: str) -> ItemOutcome:
    """Half of it: scenes are there, the transcript is not."""
    return ItemOutcome(
        item=an_item(item_id),
        stages=(
            StageOutcome(StageName.INGEST, StageStatus.COMPLETED),
            StageOutcome(StageName.VISION, StageStatus.COMPLETED),
            StageOutcome(
                StageName.TRANSCRIPT,
                StageStatus.FAILED,
                None,
                StageCode.TRANSCRIPT_FAILED,
                "Nothing was heard.",
            ),
        ),
        duration_ms=2000,
        scenes=(_scene(item_id, 0),),
    )


_STAGES = (StageName.INGEST, StageName.VISION, StageName.TRANSCRIPT)


def _scene(item_id: str, index: int) -> Scene:
    return Scene(
        index=index,
        start_ms=2000 * index,
        end_ms=2000 * index + 2000,
        description="A street.",
        objects=("car", "person"),
        color_palette=("#101010", "#ffffff"),
        shot_type=ShotType.WIDE,
        shot_angle=ShotAngle.EYE_LEVEL,
        camera_motion=CameraMotion.STATIC,
        confidence=0.9,
        thumbnail_key=f"stills/{item_id}/{index:05d}.jpg",
        stills=(
            StillFrame(2000 * index + 400, f"stills/{item_id}/{index:05d}.jpg"),
            StillFrame(2000 * index + 1_600, f"stills/{item_id}/{index:05d}-2.jpg"),
        ),
        on_screen_text=(ScreenText("HIGH STREET", 0.97, Box(0.1, 0.2, 0.3, 0.05), 0, 1_500),),
    )


def _track() -> TrackOutcome:
    words = (
        TranscriptWord("good", 100, 300, 0.9, "speaker_0"),
        TranscriptWord("morning", 320, 700, 0.8, "speaker_0"),
    )
    other = (TranscriptWord("hello", 900, 1200, 0.7, None),)
    transcript = TranscriptResult(
        language="en",
        speakers=(Speaker("speaker_0", "Speaker 1", 0.58),),
        turns=(SpeakerTurn("speaker_0", 300, 880),),
        segments=(
            TranscriptSegment(0, 100, 700, "good morning", "speaker_0", 0.85, words),
            TranscriptSegment(1, 900, 1200, "hello", None, 0.7, other),
        ),
    )
    return TrackOutcome(0, "camera", transcript)
