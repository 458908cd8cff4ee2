"""From a request body to the jobs it describes: pure validation, nothing stored yet."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from difflib import get_close_matches
from itertools import islice
from typing import Any, Literal

from pydantic_core import PydanticCustomError

from pipelines.collection import DEFAULT_FILE_NAME, BucketAccess, name_in
from pipelines.net.buckets import PUBLIC_ACCESS, is_bucket_address
from pipelines.types import WarningCode
from serve_app.api.urls import require_bucket_access, require_callback_url, require_media_url
from serve_app.crypto import Encrypter
from serve_app.errors import file_too_large, invalid
from serve_app.jobs import schemas
from serve_app.jobs.answers import check_metadata
from serve_app.media.formats import in_address, tier_of
from serve_app.observability.logs import current_traceparent
from serve_app.settings import Settings
from storage.job_records import JobSource, NewJob, SourceAudio, SourceClip
from storage.types import JobState, Priority, ProcessingMode, Tier
from storage.uploads import AUDIO_SLOT, MEDIA_SLOT, TRACK_SLOT, Upload, source_prefix

MAX_UNKNOWN_FIELDS = 20
"""Of a request that are warned of."""


@dataclass(frozen=True, slots=True)
class Planner:
    """What plans need to know of the service and the caller."""

    settings: Settings
    encrypter: Encrypter
    account_id: uuid.UUID
    base_url: str
    access: BucketAccess = PUBLIC_ACCESS
    """Of the request's addresses in buckets."""
    archive_id: uuid.UUID | None = None
    """Whose credentials read them, as they are then."""

    def reading(self, body: schemas.JobOptions) -> Planner:
        """Return the planner of a request that may have credentials of its own; checks these, and
        where its webhook goes."""
        access = self.access if body.bucketAccess is None else body.bucketAccess.access()
        if body.bucketAccess is not None:
            require_bucket_access(access, self.settings)
        if body.callbackUrl is not None:
            require_callback_url(body.callbackUrl, "callbackUrl", self.settings)
        return replace(self, access=access)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job to create, with the files it waits for."""

    job: NewJob
    uploads: list[Upload] = field(default_factory=list)


def plan_upload(planner: Planner, body: schemas.CreateJobBody) -> JobPlan:
    """Plan of ``POST /jobs``."""
    planner = planner.reading(body)
    tier = _tier(planner, body.fileName, "fileName")
    limit = planner.settings.max_upload_bytes(tier)
    if body.fileSizeBytes is not None and body.fileSizeBytes > limit:
        raise file_too_large(limit, tier, "fileSizeBytes")
    audio: list[SourceAudio] = []
    slots = [(MEDIA_SLOT, body.fileName, body.fileSizeBytes)]
    if body.audioFileName is not None:
        _tier(planner, body.audioFileName, "audioFileName")
        slots.append((AUDIO_SLOT, body.audioFileName, None))
        audio.append(SourceAudio(slot=AUDIO_SLOT, name=body.audioFileName, **_single_audio(body)))
    for index, track in enumerate(body.audioTracks or []):
        if track.fileName is None:
            audio.append(_fetched_track(planner, track, f"audioTracks[{index}].url"))
            continue
        _tier(planner, track.fileName, f"audioTracks[{index}].fileName")
        slot = f"{TRACK_SLOT}{index}"
        slots.append((slot, track.fileName, None))
        audio.append(SourceAudio(slot=slot, name=track.fileName, **_track_options(track)))
    job = replace(
        _job(planner, body, body.fileName, tier, _source(planner, "upload", body, audio=audio)),
        state=JobState.AWAITING_UPLOAD,
        upload_lifetime=timedelta(seconds=planner.settings.upload_lifetime_seconds),
    )
    files = [
        Upload(job.id, slot, name, f"{source_prefix(job.id)}/{slot}", declared, None, None)
        for slot, name, declared in slots
    ]
    return JobPlan(job, files)


def plan_from_url(planner: Planner, body: schemas.CreateJobFromUrlBody) -> JobPlan:
    """Plan of ``POST /jobs/from-url``."""
    planner = planner.reading(body)
    clip = SourceClip(**_address(planner, body.url, body.downloadToken, body.provider, "url"))
    name = body.fileName or name_in(body.url)
    tier = _tier_of_fetched(planner, body.url, body.fileName, "url", "fileName")
    audio: list[SourceAudio] = []
    if body.audioUrl is not None:
        _tier_of_fetched(planner, body.audioUrl, None, "audioUrl")
        audio.append(
            SourceAudio(
                name=name_in(body.audioUrl),
                **_address(planner, body.audioUrl, body.audioDownloadToken, None, "audioUrl"),
                **_single_audio(body),
            )
        )
    for index, track in enumerate(body.audioTracks or []):
        audio.append(_fetched_track(planner, track, f"audioTracks[{index}].url"))
    source = _source(planner, "url", body, clips=[clip], audio=audio)
    return JobPlan(_job(planner, body, name, tier, source))


def _job(
    planner: Planner, body: schemas.JobOptions, name: str, tier: Tier, source: JobSource
) -> NewJob:
    return NewJob(
        account_id=planner.account_id,
        state=JobState.QUEUED,
        processing_mode=ProcessingMode(body.processingMode),
        priority=Priority(body.priority),
        file_name=name,
        tier=tier,
        callback_url=body.callbackUrl,
        metadata=body.metadata or {},
        tags=body.tags or [],
        source=source,
        warnings=unknown_field_warnings(body),
    )


def plan_batch(planner: Planner, body: schemas.CreateBatchBody) -> list[JobPlan]:
    """Plans of ``POST /jobs/batch``: a job a clip, or one job for a timeline."""
    planner = planner.reading(body)
    batch_id = uuid.uuid4()
    clips = [_clip(planner, clip, index) for index, clip in enumerate(body.clips)]
    tiers = [
        _tier_of_fetched(
            planner, c.sourceUrl, c.fileName, f"clips[{i}].sourceUrl", f"clips[{i}].fileName"
        )
        for i, c in enumerate(body.clips)
    ]
    is_one = body.mode == "continuous"

    def concerns(param: str, index: int) -> bool:
        return is_one or param.startswith(f"clips[{index}].") or not param.startswith("clips[")

    common = _job(planner, body, DEFAULT_FILE_NAME, Tier.STANDARD, _source(planner, "url", body))

    def job(index: int, sources: list[SourceClip], tier: Tier, metadata: dict[str, Any]) -> JobPlan:
        changes = {"clips": tuple(sources), "continuous": is_one}
        return JobPlan(
            replace(
                common,
                id=uuid.uuid4(),
                file_name=clips[index].name or DEFAULT_FILE_NAME,
                tier=tier,
                metadata=metadata,
                source=common.source.model_copy(update=changes),
                batch_id=batch_id,
                batch_index=index,
                warnings=[each for each in common.warnings if concerns(each["param"], index)],
            )
        )

    shared = body.metadata or {}
    if is_one:
        tier = Tier.RAW if Tier.RAW in tiers else Tier.STANDARD
        with_metadata = [
            clip.model_copy(update={"metadata": given.metadata or {}})
            for clip, given in zip(clips, body.clips, strict=True)
        ]
        return [job(0, with_metadata, tier, shared)]
    return [
        job(index, [clip], tiers[index], _merged(shared, body.clips[index], index))
        for index, clip in enumerate(clips)
    ]


def _merged(shared: dict[str, Any], clip: schemas.Clip, index: int) -> dict[str, Any]:
    """Return the batch's metadata with the clip's over it; within the limits of a job's, like
    both."""
    try:
        return check_metadata(shared | (clip.metadata or {}))
    except PydanticCustomError as error:
        param = f"clips[{index}].metadata"
        raise invalid(f"{param}: with the batch's, it {error.message()}.", param) from error


def unknown_field_warnings(body: schemas.Body) -> list[dict[str, Any]]:
    """Return a warning for each field of the request that there is none of, and which may be
    meant."""
    return [
        {
            "code": WarningCode.UNKNOWN_FIELD,
            "message": f"There is no field {place}: it was ignored."
            + "".join(f" Is {name} meant?" for name in get_close_matches(place, known, 1)),
            "param": place,
        }
        for place, known in islice(body.unknown_fields(), MAX_UNKNOWN_FIELDS)
    ]


def _tier(planner: Planner, file_name: str, param: str) -> Tier:
    return tier_of(file_name, enabled_raw=planner.settings.raw_decoders, param=param)


def _tier_of_fetched(
    planner: Planner, url: str, file_name: str | None, url_param: str, name_param: str = ""
) -> Tier:
    """By the name that the client gives, else by the one in the address."""
    if file_name is not None:
        return _tier(planner, file_name, name_param)
    name = name_in(url)
    return _tier(planner, name if is_bucket_address(url) else in_address(name), url_param)


def _source(
    planner: Planner,
    kind: Literal["upload", "url"],
    body: schemas.JobOptions,
    *,
    clips: Sequence[SourceClip] = (),
    audio: Sequence[SourceAudio] = (),
) -> JobSource:
    if body.people and not planner.settings.people:
        raise invalid("This service does not put faces of people together.", "people")
    if body.voices and not planner.settings.voices:
        raise invalid("This service does not recognise voices.", "voices")
    chosen, allowed = body.retention or schemas.RetentionOptions(), planner.settings.retention
    most_seconds = allowed.most_source_seconds
    if most_seconds is not None and (chosen.sourceSeconds or 0) > most_seconds:
        message = f"At most {most_seconds} seconds are allowed."
        raise invalid(message, "retention.sourceSeconds")
    if allowed.most_result_days is not None and (chosen.resultDays or 0) > allowed.most_result_days:
        message = f"At most {allowed.most_result_days} days are allowed."
        raise invalid(message, "retention.resultDays")
    traceparent = current_traceparent()
    return JobSource(
        kind=kind,
        base_url=planner.base_url,
        clips=tuple(clips),
        audio=tuple(audio),
        keyterms=tuple(body.keyterms or ()),
        **body.model_dump(include={"people", "voices"}, exclude_unset=True),
        **({"redact": tuple(body.redact)} if body.redact else {}),
        language=body.language,
        languages=tuple(body.languages or ()),
        speakers_expected=body.speakersExpected,
        speakers_at_most=body.speakersAtMost,
        channels=body.channels,
        source_retention_seconds=chosen.sourceSeconds,
        result_retention_days=chosen.resultDays,
        **({"traceparent": traceparent} if traceparent else {}),
    )


def _clip(planner: Planner, clip: schemas.Clip, index: int) -> SourceClip:
    address = _address(
        planner, clip.sourceUrl, clip.downloadToken, clip.provider, f"clips[{index}].sourceUrl"
    )
    return SourceClip(name=clip.fileName or name_in(clip.sourceUrl), **address)


def _address(
    planner: Planner, url: str, token: str | None, provider: str | None, param: str
) -> dict[str, Any]:
    """Return fields of a SourceFile that is fetched."""
    require_media_url(url, param, planner.settings)
    encrypter = planner.encrypter
    encrypted = None if token is None else base64.b64encode(encrypter.encrypt(token)).decode()
    address: dict[str, Any] = {"url": url, "provider": provider, "sealed_token": encrypted}
    if planner.archive_id is not None:
        address["archive_id"] = planner.archive_id
    if is_bucket_address(url) and planner.access != PUBLIC_ACCESS:
        address["sealed_access"] = seal_access(encrypter, planner.access)
    return address


def seal_access(encrypter: Encrypter, access: BucketAccess) -> str:
    """Encrypted, in base64; ``unseal_access`` reads it."""
    return base64.b64encode(encrypter.encrypt(json.dumps(asdict(access)))).decode()


def unseal_access(encrypter: Encrypter, sealed: str | None) -> BucketAccess:
    """Return what ``seal_access`` was given. Raises DecryptionError."""
    if sealed is None:
        return PUBLIC_ACCESS
    return BucketAccess(**json.loads(encrypter.decrypt(base64.b64decode(sealed))))


def _single_audio(body: schemas.SeparateAudio) -> dict[str, Any]:
    return {"sync_mode": body.audioSyncMode, "offset_ms": body.audioOffsetMs}


def _track_options(track: schemas.AudioTrackOptions) -> dict[str, Any]:
    return {
        "sync_mode": track.syncMode,
        "offset_ms": track.offsetMs,
        "label": track.label,
        "per_channel": track.perChannelTranscription,
        "channels": track.channels,
    }


def _fetched_track(
    planner: Planner, track: schemas.FetchedTrack | schemas.UploadedTrack, param: str
) -> SourceAudio:
    url = track.url or ""
    address = _address(planner, url, track.downloadToken, None, param)
    _tier_of_fetched(planner, url, None, param)
    return SourceAudio(name=name_in(url), **address, **_track_options(track))
