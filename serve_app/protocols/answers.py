"""Transcripts in the forms of other services, and the bodies of their callbacks.

The runner writes callbacks too, so that nothing here imports requests or routes.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

from pipelines.types import TranscriptResult, TranscriptSegment, TranscriptWord
from serve_app import __version__
from serve_app.api.schemas import timestamp
from serve_app.jobs.service import EVENT_FORMS
from serve_app.results.transcripts import default_track, read_tracks, transcript_of
from serve_app.results.translations import in_language
from storage.database import Connection, Database
from storage.job_records import JobRecord
from storage.types import JobState, StageName, StageStatus

PARAGRAPH_PAUSE_MS = 2000
PARAGRAPH_SENTENCES = 5
"""A paragraph ends at a longer pause, after so many sentences, and where the speaker changes."""
UTTERANCE_SECONDS = 0.8
"""Pause that ends an utterance, unless a request has another: Deepgram's ``utt_split``."""
NO_TRANSCRIPT = "The media has no sound, or the job did not complete."
_PUNCTUATION = re.compile(r"^[^\w]+|[^\w]+$")


@dataclass(frozen=True, slots=True)
class Spoken:
    """What the answers are rendered from: the words of a job's default track."""

    duration_seconds: float
    language: str | None
    found: TranscriptResult

    @property
    def text(self) -> str:
        return " ".join(each.text for each in self.found.segments)

    @property
    def speakers(self) -> dict[str, int]:
        """Return the number of each speaker's id, in order of first appearance."""
        return {each.id: number for number, each in enumerate(self.found.speakers)}


async def read_spoken(database: Database, job: JobRecord, language: str | None = None) -> Spoken:
    """Return what is spoken, translated into the ``language`` if one is given."""
    return await database.read(_spoken, job, language)


async def _spoken(connection: Connection, job: JobRecord, language: str | None = None) -> Spoken:
    track = default_track(await read_tracks(connection, job))
    if language is not None:
        track = await in_language(connection, job, track, language)
    found = await asyncio.to_thread(transcript_of, track)
    return Spoken((job.duration_ms or 0) / 1000, track.language, found)


def turns(found: TranscriptResult) -> Iterator[list[TranscriptSegment]]:
    """Yield what each speaker says without another between."""
    for _, said in groupby(found.segments, key=lambda each: each.speaker):
        yield [*said]


def paragraphs(segments: Iterable[TranscriptSegment]) -> list[list[TranscriptSegment]]:
    """Return the sentences of each paragraph."""
    found: list[list[TranscriptSegment]] = []
    for each in segments:
        last = found[-1] if found else []
        if (
            not last
            or len(last) >= PARAGRAPH_SENTENCES
            or each.speaker != last[-1].speaker
            or each.start_ms - last[-1].end_ms > PARAGRAPH_PAUSE_MS
        ):
            found.append([each])
        else:
            last.append(each)
    return found


def _confidence(words: Sequence[TranscriptWord]) -> float:
    return round(fmean(word.confidence for word in words), 4) if words else 0.0


def mean_confidence(segments: Iterable[TranscriptSegment]) -> float:
    """Return the mean of the words' confidences; 0 without words."""
    return _confidence([word for each in segments for word in each.words])


@dataclass(frozen=True, slots=True)
class _Deepgram:
    """A rendering of one request."""

    spoken: Spoken
    asked: Mapping[str, Any]
    speakers: Mapping[str, int]
    """Number of each speaker's id; empty where none were asked for."""

    @property
    def _is_punctuated(self) -> bool:
        return any(self.asked.get(each) for each in ("smart_format", "punctuate", "paragraphs"))

    def document(self, job: JobRecord) -> dict[str, Any]:
        found = self.spoken.found
        if self.asked.get("multichannel"):
            ids = [each.id for each in found.speakers]
            parts = [[each for each in found.segments if each.speaker == of] for of in ids] or [[]]
        else:
            parts = [[*found.segments]]
        metadata = {
            "transaction_key": "deprecated",
            "request_id": str(job.id),
            "sha256": "",
            "created": timestamp(job.created_at),
            "duration": self.spoken.duration_seconds,
            "channels": len(parts),
            **_MODELS,
            **{name: self.asked[name] for name in ("tags", "extra") if self.asked.get(name)},
            "warnings": self.asked.get("warnings", []),
        }
        results: dict[str, Any] = {"channels": [self._channel(part) for part in parts]}
        if self.asked.get("utterances"):
            said = [
                self._utterance(words, channel, f"{job.id}-{channel}-{number}")
                for channel, part in enumerate(parts)
                for number, words in enumerate(self._utterances(part))
            ]
            results["utterances"] = sorted(said, key=lambda each: each["start"])
        return {"metadata": metadata, "results": results}

    def _channel(self, segments: Sequence[TranscriptSegment]) -> dict[str, Any]:
        words = [word for each in segments for word in each.words]
        alternative: dict[str, Any] = {
            "transcript": self._text(words),
            "confidence": _confidence(words),
            "words": [self._word(word) for word in words],
        }
        if self.asked.get("paragraphs"):
            made = [self._paragraph(each) for each in paragraphs(segments)]
            text = "\n\n".join(" ".join(s["text"] for s in each["sentences"]) for each in made)
            alternative["paragraphs"] = {"transcript": f"\n{text}", "paragraphs": made}
        language = self.spoken.language
        if self.asked.get("language") == "multi" and language:
            others = {word.language for word in words if word.language}
            alternative["languages"] = [language, *sorted(others - {language})]
        channel: dict[str, Any] = {"alternatives": [alternative]}
        if self.asked.get("detect_language"):
            channel["detected_language"] = language
        return channel

    def _text(self, words: Sequence[TranscriptWord]) -> str:
        if self._is_punctuated:
            return " ".join(word.text for word in words)
        return " ".join(filter(None, (_bare(word.text) for word in words)))

    def _word(self, word: TranscriptWord) -> dict[str, Any]:
        document: dict[str, Any] = {
            "word": _bare(word.text) or word.text,
            "start": word.start_ms / 1000,
            "end": word.end_ms / 1000,
            "confidence": round(word.confidence, 4),
        }
        document |= self._by(word.speaker)
        if self._is_punctuated:
            document["punctuated_word"] = word.text
        if self.asked.get("language") == "multi":
            document["language"] = word.language or self.spoken.language
        return document

    def _by(self, speaker: str | None) -> dict[str, int]:
        number = self.speakers.get(speaker or "")
        return {} if number is None else {"speaker": number}

    def _paragraph(self, sentences: Sequence[TranscriptSegment]) -> dict[str, Any]:
        first, last = sentences[0], sentences[-1]
        document: dict[str, Any] = {
            "sentences": [
                {"text": each.text, "start": each.start_ms / 1000, "end": each.end_ms / 1000}
                for each in sentences
            ],
            "num_words": sum(len(each.words) for each in sentences),
            "start": first.start_ms / 1000,
            "end": last.end_ms / 1000,
        }
        document |= self._by(first.speaker)
        return document

    def _utterances(self, segments: Sequence[TranscriptSegment]) -> Iterator[list[TranscriptWord]]:
        pause = float(self.asked.get("utt_split") or UTTERANCE_SECONDS)
        said: list[TranscriptWord] = []
        for word in (word for each in segments for word in each.words):
            if said and (
                (word.start_ms - said[-1].end_ms) / 1000 > pause
                or (self.asked.get("diarize") and word.speaker != said[-1].speaker)
            ):
                yield said
                said = []
            said.append(word)
        if said:
            yield said

    def _utterance(
        self, words: Sequence[TranscriptWord], channel: int, name: str
    ) -> dict[str, Any]:
        document = {
            "start": words[0].start_ms / 1000,
            "end": words[-1].end_ms / 1000,
            "confidence": _confidence(words),
            "channel": channel,
            "transcript": self._text(words),
            "words": [self._word(word) for word in words],
            "id": name,
        }
        document |= self._by(words[0].speaker)
        return document


_MODELS = {
    "models": ["vas"],
    "model_info": {"vas": {"name": "vas", "version": __version__, "arch": "vas"}},
}


def _bare(text: str) -> str:
    return _PUNCTUATION.sub("", text).lower()


def deepgram(job: JobRecord, spoken: Spoken) -> dict[str, Any]:
    """Return Deepgram's answer to the request that made the job."""
    asked = job.source.protocol
    speakers = spoken.speakers if asked.get("diarize") else {}
    return _Deepgram(spoken, asked, speakers).document(job)


def assemblyai_word(word: TranscriptWord, letters: Mapping[str, str]) -> dict[str, Any]:
    """Return a word as AssemblyAI writes it, in milliseconds."""
    return {
        "text": word.text,
        "start": word.start_ms,
        "end": word.end_ms,
        "confidence": round(word.confidence, 4),
        "speaker": letters.get(word.speaker or ""),
    }


def assemblyai_run(
    segments: Sequence[TranscriptSegment], letters: Mapping[str, str]
) -> dict[str, Any]:
    """Return a sentence, a paragraph or an utterance."""
    words = [word for each in segments for word in each.words]
    return {
        "text": " ".join(each.text for each in segments),
        "start": segments[0].start_ms,
        "end": segments[-1].end_ms,
        "confidence": _confidence(words),
        "speaker": letters.get(segments[0].speaker or ""),
        "words": [assemblyai_word(word, letters) for word in words],
    }


def letters_of(job: JobRecord, spoken: Spoken) -> dict[str, str]:
    """Return the letter of each speaker's id, A for the first; none where none were asked for."""
    asked = job.source.protocol
    if not any(asked.get(each) for each in ("speaker_labels", "multichannel", "dual_channel")):
        return {}
    return {each: _letter(number) for each, number in spoken.speakers.items()}


def _letter(number: int) -> str:
    return (_letter(number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)


def has_transcript(job: JobRecord) -> bool:
    """Return whether the job's transcript stage has a result: it has none without sound."""
    return job.stages[StageName.TRANSCRIPT].status is StageStatus.COMPLETED


ASSEMBLYAI_STATUS = {
    JobState.AWAITING_UPLOAD: "queued",
    JobState.QUEUED: "queued",
    JobState.PROCESSING: "processing",
    JobState.COMPLETED: "completed",
}
"""Of a job; of all others ``error``."""


def assemblyai_status(job: JobRecord) -> str:
    """Return the status of a transcript: not completed while it shows what it is to hide, nor
    without sound."""
    if job.state is JobState.COMPLETED and job.shows_personal_data:
        return "error" if job.redact_error else "processing"
    if job.state is JobState.COMPLETED and not has_transcript(job):
        return "error"
    return ASSEMBLYAI_STATUS.get(job.state, "error")


async def _assemblyai_event(_: Connection, job: JobRecord) -> bytes:
    is_completed = job.state is JobState.COMPLETED and has_transcript(job)
    status = "completed" if is_completed else "error"
    return json.dumps({"transcript_id": str(job.id), "status": status}).encode()


async def _deepgram_event(connection: Connection, job: JobRecord) -> bytes:
    if job.state is not JobState.COMPLETED or not has_transcript(job):
        state = "NO_AUDIO" if job.state is JobState.COMPLETED else job.state.upper()
        message = job.error_message or NO_TRANSCRIPT
        failure = {"err_code": job.error_code or state, "err_msg": message}
        return json.dumps(failure | {"request_id": str(job.id)}).encode()
    spoken = await _spoken(connection, job)
    made = await asyncio.to_thread(deepgram, job, spoken)
    return json.dumps(made, ensure_ascii=False).encode()


EVENT_FORMS |= {"assemblyai": _assemblyai_event, "deepgram": _deepgram_event}
