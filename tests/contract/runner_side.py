"""What a runner and the reaper do to a job, step by step, on the real database."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import httpx

from models.contracts import CameraMotion, ShotAngle, ShotType
from pipelines.codec import encode, to_json
from pipelines.media_types import Orientation
from pipelines.types import (
    AudioStream,
    IngestResult,
    MediaInfo,
    PipelineWarning,
    Scene,
    Speaker,
    SpeakerVoice,
    StageCode,
    StageError,
    TimedSentence,
    TranscriptResult,
    TranscriptSegment,
    TranscriptWord,
    VideoStream,
)
from serve_app.jobs.answers import warning_document
from serve_app.work import publishing
from serve_app.work.publishing import Lease
from serve_app.work.reaper import Reaper
from storage import jobs
from storage.database import Connection
from storage.results import TrackTranscript
from storage.types import StageName, StageStatus
from tests.contract.calling import Caller, ContractApi

LONG = timedelta(hours=1)
OVER = timedelta(seconds=-1)

VIDEO = VideoStream(0, "h264", 1920, 1080, Orientation(), 1.0, 25.0, 1638)
SOUND = AudioStream(1, "aac", 48_000, 2, "en", None)
FOOTAGE = MediaInfo("mov,mp4", 1_000_000, 65.5, VIDEO, (SOUND,))
SILENT = replace(FOOTAGE, audio=())
AUDIO_ONLY = replace(FOOTAGE, container="wav", video=None)
TWO_TRACKS = replace(FOOTAGE, audio=(SOUND, replace(SOUND, index=2)))


@dataclass(frozen=True, slots=True)
class RunnerSide:
    """A runner in slow motion."""

    api: ContractApi

    def upload(self, job: dict[str, Any]) -> str:
        """Send the media of a job that was just created; return its id."""
        answer = httpx.put(
            job["uploadUrl"], content=b"footage", headers=job["uploadHeaders"], trust_env=False
        )
        assert answer.status_code == 200, answer.text
        return str(job["jobId"])

    def queued(self, caller: Caller, **body: Any) -> str:
        """A job whose media has arrived."""
        return self.upload(caller.create(**body))

    def lease(self, job_id: str, duration: timedelta = LONG) -> Lease:
        """Lease waiting jobs, oldest first, until this one comes."""
        wanted = uuid.UUID(job_id)
        while True:
            found = self.api.transact(lambda c: jobs.lease_next(c, lease=LONG))
            assert found is not None, "the job does not wait"
            if found[0] == wanted:
                lease = Lease(*found)
                self._extend(lease, duration)
                return lease

    def _extend(self, lease: Lease, duration: timedelta) -> None:
        self.api.transact(
            lambda c: jobs.extend_lease(c, lease.job_id, lease.token, lease=duration, progress={})
        )

    def start(self, lease: Lease, stage: str) -> None:
        self.api.transact(lambda c: publishing.start_stage(c, lease, StageName(stage)))

    def ingest(
        self, lease: Lease, media: MediaInfo = FOOTAGE, warnings: Sequence[PipelineWarning] = ()
    ) -> None:
        """The ingest stage from its start to its published end."""
        self.start(lease, "ingest")
        self.price(lease, media)

        async def publish(connection: Connection) -> None:
            await publishing.publish_ingest(
                connection,
                lease,
                media=media,
                result=to_json(IngestResult(media, None, ())),
                track_names=[f"Track {number}" for number in range(1, len(media.audio) + 1)],
                warnings=[warning_document(each, StageName.INGEST) for each in warnings],
                timings={},
            )

        self.api.transact(publish)

    def price(self, lease: Lease, media: MediaInfo) -> None:
        """Hold the whole price; raises StageError INSUFFICIENT_CREDITS."""
        prices = self.api.context.prices
        self.api.transact(lambda c: publishing.raise_hold(c, lease, media, prices))

    def publish_scenes(self, lease: Lease, count: int = 2) -> None:
        documents = [to_json(_scene(lease, index)) for index in range(count)]
        overview = to_json(_scene(lease, count))
        self.api.transact(
            lambda c: publishing.publish_scenes(c, lease, documents, {}, overview=overview)
        )

    def publish_transcripts(
        self,
        lease: Lease,
        tracks: int = 1,
        broken: int | None = None,
        warnings: Sequence[PipelineWarning] = (),
    ) -> None:
        """``broken`` is the index of a track that could not be transcribed."""
        found = [_track(index, failed=index == broken) for index in range(tracks)]
        self.api.transact(
            lambda c: publishing.publish_transcripts(
                c, lease, found, {}, warnings=warnings, summary=SUMMARY, voices=VOICES
            )
        )

    def fail(self, lease: Lease, stage: str, code: str) -> None:
        error = StageError(StageCode(code), "It broke.")
        self.api.transact(lambda c: publishing.fail_stage(c, lease, StageName(stage), error))

    def fail_unpayable(self, lease: Lease) -> None:
        """Find the media too long for the account's credits, and fail ingest for it."""
        try:
            self.price(lease, replace(FOOTAGE, duration_seconds=3600.0))
        except StageError as error:
            self.fail(lease, "ingest", error.code)
        else:
            raise AssertionError("the credits were enough")

    def complete(self, caller: Caller, media: MediaInfo = FOOTAGE, **body: Any) -> str:
        """A job that ran to its end with everything it asked for."""
        job_id = self.queued(caller, **body)
        lease = self.lease(job_id)
        self.ingest(lease, media)
        stages = caller.job(job_id)["stages"]
        if stages["vision"]["status"] == "pending":
            self.start(lease, "vision")
            self.publish_scenes(lease)
        if stages["transcript"]["status"] == "pending":
            self.start(lease, "transcript")
            self.publish_transcripts(lease, len(media.audio))
        assert caller.job(job_id)["state"] == "completed"
        return job_id

    @contextmanager
    def completing(self) -> Iterator[None]:
        """Complete every job whose media arrives, in a thread; those named ``bad…`` fail at ingest.

        Forgets the rates of requests too: who creates dozens of jobs would wait for minutes.
        """
        stop = threading.Event()

        def drive() -> None:
            while not stop.wait(0.02):
                self.api.sql("DELETE FROM rate_limits")
                while found := self.api.transact(lambda c: jobs.lease_next(c, lease=LONG)):
                    self._finish(Lease(*found))

        thread = threading.Thread(target=drive, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(120)

    def _finish(self, lease: Lease) -> None:
        [(name,)] = self.api.sql("SELECT file_name FROM jobs WHERE id = :id", id=lease.job_id)
        if name.startswith("bad"):
            self.start(lease, "ingest")
            self.fail(lease, "ingest", "INGEST_FAILED")
            return
        self.ingest(lease)
        wanted = "SELECT stage FROM stages WHERE job_id = :id AND status = 'pending'"
        pending = {stage for (stage,) in self.api.sql(wanted, id=lease.job_id)}
        if "vision" in pending:
            self.start(lease, "vision")
            self.publish_scenes(lease)
        if "transcript" in pending:
            self.start(lease, "transcript")
            self.publish_transcripts(lease)

    def sweep(self) -> None:
        """One round of the reaper."""
        reaper = Reaper(replace(self.api.context, database=self.api.database))
        self.api.run(reaper.sweep())

    def lose(self, job_id: str) -> None:
        """Lease the job to a runner that is never heard of again."""
        self.lease(job_id, OVER)
        self.sweep()

    def expire(self, job_id: str) -> None:
        """Let the time for the job's upload pass."""
        self.api.sql(
            "UPDATE jobs SET upload_expires_at = now() - interval '1 second' WHERE id = :id",
            id=uuid.UUID(job_id),
        )
        self.sweep()


VOICES = publishing.KeptVoices("a model", {0: (SpeakerVoice("speaker_0", (1.0, 0.0)),)})
"""Of every job: as if all had asked for it."""
SUMMARY = [TimedSentence("Somebody counts tracks.", 1000, 1900)]


def _scene(lease: Lease, index: int) -> Scene:
    return Scene(
        index=index,
        start_ms=index * 30_000,
        end_ms=(index + 1) * 30_000,
        description="A person speaks to the camera.",
        objects=("face", "text"),
        color_palette=("#202020", "#d0c0b0"),
        shot_type=ShotType.MEDIUM,
        shot_angle=ShotAngle.EYE_LEVEL,
        camera_motion=CameraMotion.STATIC,
        confidence=1.0,
        thumbnail_key=f"jobs/{lease.job_id}/work/vision/{index}.jpg",
    )


def _track(index: int, *, failed: bool) -> TrackTranscript:
    return TrackTranscript(
        track_index=index,
        track_name=f"Track {index + 1}",
        status=StageStatus.FAILED if failed else StageStatus.COMPLETED,
        error_code="TRANSCRIPT_FAILED" if failed else None,
        language=None if failed else "en",
        document=None if failed else encode(_spoken(f"track {index + 1}")).decode(),
    )


def _spoken(text: str) -> TranscriptResult:
    words = tuple(
        TranscriptWord(word, 1000 + 500 * number, 1400 + 500 * number, 0.9, "speaker_0")
        for number, word in enumerate(text.split())
    )
    segment = TranscriptSegment(0, 1000, words[-1].end_ms, text, "speaker_0", 0.9, words)
    return TranscriptResult("en", (Speaker("speaker_0", "Speaker 1", 0.9),), (segment,), 1, 0)
