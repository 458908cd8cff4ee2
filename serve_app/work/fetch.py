"""A job's media in the object store: uploads lie there, URLs are fetched."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipelines.execution.chain import Control, parts_of
from pipelines.ingest.external_audio import ExternalFile
from pipelines.ingest.headers import raw_family
from pipelines.ingest.source import ClipFile, RawConfig, SourceMedia, decoded_source, naming_clip
from pipelines.ingest.timecode import SyncMode
from pipelines.net.fetch import FetchLimits, fetch
from pipelines.types import StageCode, StageError
from serve_app.api.urls import address_policy
from serve_app.context import AppContext
from serve_app.jobs.plans import unseal_access
from storage.job_records import JobRecord, SourceAudio, SourceClip, SourceFile
from storage.types import ProcessingMode
from storage.uploads import MEDIA_SLOT, Upload, source_prefix


@dataclass(frozen=True, slots=True)
class SourceFetcher:
    """Fetches the media of one job. Synchronous: run it off the event loop."""

    context: AppContext
    job: JobRecord
    control: Control
    archive_access: str | None = None
    """The encrypted credentials of the archive that the job belongs to."""

    def fetch_all(self, uploads: Sequence[Upload]) -> SourceMedia:
        """Return the job's files in the object store; what an earlier runner fetched is used again.

        Raises StageError (FETCH_FAILED, VALIDATION_FAILED), naming the clip where there
        are several. An external audio file that cannot be fetched has its ``problem``.
        """
        require_allowed_sizes(uploads, self._limit_bytes)
        keys = {item.slot: item.object_key for item in uploads}
        # A continuous batch: its clips are laid end to end.
        is_timeline = self.job.source.continuous or len(self.job.source.clips) > 1
        clips: Iterable[ClipFile] = [ClipFile(keys.get(MEDIA_SLOT, ""), self.job.file_name)]
        if self.job.source.kind == "url":
            clips = self._clips(self.job.source.clips, is_timeline)
        fetched = tuple(clips)
        external = tuple(
            self._external(index, item, keys) for index, item in enumerate(_audio_files(self.job))
        )
        return SourceMedia(fetched, external, is_timeline)

    def decoded(self, media: SourceMedia) -> SourceMedia:
        """Return the media with camera RAW decoded. Raises as ``decoded_source``."""
        return media.with_clip_keys(self._decoded)

    def _decoded(self, clip: ClipFile) -> str:
        settings, family = self.context.settings, raw_family(clip.name)
        config = RawConfig(
            decoders=settings.raw_decoders,
            seconds=settings.raw_decoder_seconds,
            memory_bytes=settings.raw_decoder_memory_bytes,
            output_bytes=settings.raw_decoded_max_bytes,
        )
        store, control = self.context.objects, self.control
        return decoded_source(
            clip.key, named_family=family, store=store, config=config, control=control
        )

    @property
    def _limit_bytes(self) -> int:
        return self.context.settings.max_upload_bytes(self.job.tier)

    def _clips(self, clips: Sequence[SourceClip], is_timeline: bool) -> Iterator[ClipFile]:
        for index, clip in enumerate(clips):
            key = f"{source_prefix(self.job.id)}/clip-{index:03d}"
            name = clip.name or self.job.file_name
            if is_timeline:
                with naming_clip(index, name):
                    self._fetch(clip, key, index)
            else:
                self._fetch(clip, key, index)
            yield ClipFile(key, name)

    def _external(self, index: int, item: SourceAudio, uploaded: dict[str, str]) -> ExternalFile:
        """Return an external audio file, fetched; where that fails only its tracks fail."""
        problem = None
        if item.slot is not None:
            key = uploaded[item.slot]
        else:
            key = f"{source_prefix(self.job.id)}/audio-{index:02d}"
            try:
                self._fetch(item, key, len(_clips_to_fetch(self.job)) + index)
            except StageError as error:
                problem = error.message
        return ExternalFile(
            key=key,
            name=item.name,
            label=item.label,
            sync_mode=SyncMode(item.sync_mode),
            offset_ms=item.offset_ms,
            per_channel=bool(item.per_channel),
            channels=item.channels,
            problem=problem,
        )

    def _fetch(self, item: SourceFile, key: str, position: int) -> None:
        """Download a file, unless it is there already; ``position`` among all that are wanted."""
        self.control.check()
        if self.context.objects.exists(key):
            return
        wanted = len(_clips_to_fetch(self.job)) + len(_audio_files(self.job))
        encrypted, token = item.sealed_token, None
        if encrypted is not None:
            token = self.context.encrypter.decrypt(base64.b64decode(encrypted))
        fetch(
            item.url or "",
            store=self.context.objects,
            key=key,
            limits=FetchLimits(max_bytes=self._limit_bytes),
            policy=address_policy(self.context.settings),
            token=token,
            provider=item.provider,
            access=unseal_access(self.context.encrypter, item.sealed_access or self.archive_access),
            control=parts_of(self.control, [1.0] * wanted)[position],
        )


def has_files_to_fetch(job: JobRecord) -> bool:
    """Return whether any of the job's files comes from an address."""
    return any(item.slot is None for item in _audio_files(job)) or bool(_clips_to_fetch(job))


def _clips_to_fetch(job: JobRecord) -> Sequence[SourceClip]:
    return job.source.clips if job.source.kind == "url" else ()


def _audio_files(job: JobRecord) -> Sequence[SourceAudio]:
    """External audio files that the job's mode needs."""
    return () if job.processing_mode is ProcessingMode.VISION else job.source.audio


def require_allowed_sizes(uploads: Sequence[Upload], limit_bytes: int) -> None:
    """Raises StageError for a file that came past the service, where nobody could refuse it."""
    for upload in uploads:
        if (upload.received_bytes or 0) > limit_bytes:
            raise StageError(
                StageCode.VALIDATION_FAILED,
                f"The file {upload.file_name!r} is larger than {limit_bytes} bytes.",
            )
