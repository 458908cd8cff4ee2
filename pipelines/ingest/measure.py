"""What a file holds, measured from its packets. Runs in the confined child process.

Headers lie about durations and frame rates, so every packet is looked at once; only enough is
decoded to know that each stream can be, and when it starts. Clocks lie too: ``timeline`` finds
where packets belong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.error
from av.container import InputContainer
from av.video.frame import VideoFrame

from pipelines.ingest import headers
from pipelines.ingest.streams import ProbeLimits, Tally, candidates, chosen
from pipelines.media import files
from pipelines.media.timeline import LONGEST_STILL_US, MOST_RUNS, Layout, NoClockError, lay_out
from pipelines.media_types import (
    AudioStream,
    MediaInfo,
    PipelineWarning,
    Timeline,
    VideoStream,
    WarningCode,
)
from pipelines.sandbox.child import MediaRefusedError, MediaUnreadableError

_TRANSFER_PQ = 16
_TRANSFER_HLG = 18
_TEXT_LENGTH = 200
_NO_CLOCK = "Nearly all times in the file are far off each other; no timeline can be made of them."
_ANIMATIONS = ("gif", "apng")
"""What holds still pictures as well."""

_UNNAMED_RAW = (
    "This is camera RAW footage ({family}): create the job with a file name that says so."
)

_MISSING_SHARE = 0.01
_MISSING_SECONDS = 0.25
"""Less than either gives no warning: the last packets, a rounded length."""
_LEFT_OVER_SHARE = 0.05
"""Indexes and tags may follow the last packet."""
_RATE_TOLERANCE = Fraction(1, 500)
"""Of a rate that the container names, against the measured one."""
_HARDLY_SHARE = 0.05
_HARDLY_SECONDS = 5.0
"""With less than both of these left, results would not be those of what was sent."""
_LONGEST_STILL = Fraction(LONGEST_STILL_US, 1_000_000)
_MOST_MISSING = 20
"""Warnings of lost packets, a stream."""
_LATE_MS = 1_000
"""A picture that begins so much after the sound is worth a word."""


def probe(order: tuple[Path, ProbeLimits], emit: Callable[[object], None]) -> MediaInfo:
    """Return what the file holds. Emits ``{"fraction": …}``, the share of it that was read. Raises
    MediaRefusedError where nothing is usable or a limit is exceeded, MediaUnreadableError where
    next to nothing is there."""
    path, limits = order
    family = headers.family_of(path)
    if family is not None:
        raise MediaRefusedError(_UNNAMED_RAW.format(family=family))
    refusal = headers.refusal_of(path)
    if refusal is not None:
        raise MediaRefusedError(refusal)
    try:
        return _probed(files.Source(path, joined_at=headers.joined_at(path)), limits, emit)
    except files.NotMediaError:
        begins_at = headers.find_beginning(path) if headers.declared_bytes(path) is None else None
        if not begins_at:
            raise
        return _probed(files.Source(path, begins_at=begins_at), limits, emit)


def _probed(source: files.Source, limits: ProbeLimits, emit: Callable[[object], None]) -> MediaInfo:
    path, reading = source.path, files.Reading()
    with source.open() as container:
        tallies, warnings = candidates(container, limits)
        _read_through(source, container, tallies, limits.max_duration_seconds, reading, emit)
        video, audio = chosen(tallies, warnings, path)
        if video is None and not audio:
            raise _nothing_usable(path)
        if container.format.name in _ANIMATIONS and video is not None and video.packets == 1:
            raise MediaRefusedError(headers.STILL)
        try:
            layout = lay_out([tally.lane for tally in (video, *audio) if tally is not None])
        except NoClockError:
            raise MediaRefusedError(_NO_CLOCK) from None
        report = _report(container, path, video, audio)
        missing = _missing([] if video is None else [video, *audio], report.origin_ms)
        repaired = layout.pieces or source.joined_at
        claimed_seconds = 0.0 if repaired else (container.duration or 0) / av.time_base
    seconds = report.duration_seconds
    _check_length(seconds, limits.max_duration_seconds)
    if source.begins_at:
        message = f"The first {source.begins_at} bytes of the file are no media."
        code = WarningCode.AUDIO_DAMAGED if video is None else WarningCode.PICTURE_DAMAGED
        warnings.append(PipelineWarning(code, message))
    warnings += _repairs(layout, source, report.origin_ms)
    warnings += missing
    start_ms = 0 if report.video is None else report.video.start_ms
    if start_ms >= _LATE_MS:
        lead = f"The first {start_ms / 1000:.1f} seconds"
        message = f"{lead} have sound but no picture that can be decoded."
        code = WarningCode.PICTURE_STARTS_LATE
        warnings.append(PipelineWarning(code, message, start_ms=0, end_ms=start_ms))
    if report.video is not None and report.video.transparent:
        message = "The picture is transparent in places; it was laid on white."
        warnings.append(PipelineWarning(WarningCode.PICTURE_TRANSPARENT, message))
    warnings += _loss(path, source, reading, claimed_seconds, seconds)
    timeline = Timeline(layout.pieces, tuple(source.joined_at), source.begins_at)
    return replace(report, warnings=tuple(warnings), timeline=timeline)


def _check_length(seconds: float, longest: int) -> None:
    if seconds > longest:
        raise MediaRefusedError(f"The file is longer than {longest} seconds, the limit.")
    if round(seconds * 1000) < 1:
        raise MediaRefusedError("The media has no length: it ends where it begins.")


def _read_through(
    source: files.Source,
    container: InputContainer,
    tallies: list[Tally],
    longest: int,
    reading: files.Reading,
    emit: Callable[[object], None],
) -> None:
    by_index = {tally.stream.index: tally for tally in tallies}
    size_bytes = max(1, source.path.stat().st_size)
    packets = files.packets_of(source, container, [tally.stream for tally in tallies], reading)
    for order, (index, packet) in enumerate(packets, start=1):
        tally = by_index[index]
        tally.add(packet, reading.file, order)
        if order % files.PACKETS_PER_REPORT == 0:
            emit({"fraction": min(1.0, reading.reached_bytes / size_bytes)})
            if sum(len(each.lane.runs) for each in tallies) > MOST_RUNS:
                raise MediaRefusedError(_NO_CLOCK)
            for each in tallies:
                _check_length(max(1.0, each.lane.length_us / 1_000_000), longest)


def _nothing_usable(path: Path) -> Exception:
    declared = headers.declared_bytes(path)
    if declared is not None and declared * (1 - _MISSING_SHARE) > path.stat().st_size:
        return MediaUnreadableError(_breaks_off("nothing"))
    return files.NotMediaError("The file has neither pictures nor sound that can be decoded.")


def _breaks_off(what: str) -> str:
    return f"The file breaks off; {what} of it could be read."


def _loss(
    path: Path,
    source: files.Source,
    reading: files.Reading,
    claimed_seconds: float,
    read_seconds: float,
) -> list[PipelineWarning]:
    """Return a warning if much could not be read; raises MediaUnreadableError if nearly all.

    That a header claims more seconds proves nothing unless bytes are missing at the end, or
    were left over. Where the claim is missing, or FFmpeg made it fit the file (RIFF), the
    length in seconds follows from that in bytes.
    """
    if source.joined_at:
        message = f"{reading.unreadable_files} of {source.files} files joined in it are unreadable."
        truncated = PipelineWarning(WarningCode.MEDIA_TRUNCATED, message)
        return [truncated] if reading.unreadable_files else []
    size, declared = path.stat().st_size, headers.declared_bytes(path) or 0
    is_cut_off = size < declared * (1 - _MISSING_SHARE)
    if is_cut_off and (not claimed_seconds or _claims_fit_file(path)):
        claimed_seconds = read_seconds * declared / size
    elif not is_cut_off and headers.is_cut_in_a_box(path):
        message = _breaks_off(f"{read_seconds:.1f} seconds")
        return [PipelineWarning(WarningCode.MEDIA_TRUNCATED, message)]
    elif not is_cut_off and reading.reached_bytes > size * (1 - _LEFT_OVER_SHARE):
        return []
    if claimed_seconds - read_seconds <= _MISSING_SECONDS:
        return []
    if read_seconds < min(_HARDLY_SECONDS, _HARDLY_SHARE * claimed_seconds):
        raise MediaUnreadableError(_breaks_off("next to nothing"))
    message = _breaks_off(f"{read_seconds:.1f} of about {claimed_seconds:.1f} seconds")
    return [PipelineWarning(WarningCode.MEDIA_TRUNCATED, message)]


def _claims_fit_file(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) in (b"RIFF", b"RF64")


def _repairs(layout: Layout, source: files.Source, origin_ms: int) -> list[PipelineWarning]:
    """Return a warning of what was done to make one timeline of the file."""
    done = [f"{source.files} files are joined in it"] if source.joined_at else []
    done += [f"its clock was set anew {_times(layout.leaps)}"] if layout.leaps else []
    done += [f"{_times(layout.strays)} a time was far off"] if layout.strays else []
    if not done:
        return []
    message = f"The file was laid out on one continuous timeline: {', '.join(done)}."
    warning = PipelineWarning(WarningCode.TIMELINE_REPAIRED, message)
    if layout.span is None:
        return [warning]
    start_ms, end_ms = (max(0, files.seconds_ms(seconds) - origin_ms) for seconds in layout.span)
    return [replace(warning, start_ms=start_ms, end_ms=end_ms)]


def _missing(tallies: list[Tally], origin_ms: int) -> list[PipelineWarning]:
    """Return a warning for each interval of lost packets of a stream; the last for all the rest.
    The first is the picture: sound is known to be lost, and not to pause, where it is."""
    warnings: list[PipelineWarning] = []
    for tally in tallies:
        pictures = tallies[0].losses
        spans = [
            (files.seconds_ms(start) - origin_ms, files.seconds_ms(end) - origin_ms)
            for start, end in tally.losses
            if any(start <= until + 1 and since - 1 <= end for since, until in pictures)
        ]
        code = WarningCode.PICTURE_DAMAGED if tally.is_picture else WarningCode.AUDIO_DAMAGED
        what = "picture" if tally.is_picture else f"audio stream {tally.stream.index}"
        for number, (start_ms, end_ms) in enumerate(spans[:_MOST_MISSING], start=1):
            rest = spans[number - 1 :] if number == _MOST_MISSING else [(start_ms, end_ms)]
            seconds = sum(end - start for start, end in rest) / 1000
            message = f"{seconds:.2f} seconds of the {what} are missing."
            warnings.append(PipelineWarning(code, message, start_ms=start_ms, end_ms=rest[-1][1]))
    return warnings


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _report(
    container: InputContainer, path: Path, video: Tally | None, audio: list[Tally]
) -> MediaInfo:
    origin_ms = min(files.seconds_ms(tally.start) for tally in (video, *audio) if tally is not None)
    end = max((tally.stop for tally in audio), default=Fraction(0))
    if video is not None:
        # A last picture that stands for hours after all else: the clock leapt at the end.
        stop = min(video.stop, max(end, video.last + _LONGEST_STILL))
        end = stop if not audio else max(end, stop)
    tags = [container.metadata, *(stream.metadata for stream in container.streams)]
    named = (tag["timecode"] for tag in tags if tag.get("timecode"))
    return MediaInfo(
        container=container.format.name,
        size_bytes=path.stat().st_size,
        duration_seconds=max(0.0, float(end - Fraction(origin_ms, 1000))),
        origin_ms=origin_ms,
        video=None if video is None else _video(video, stop, origin_ms),
        audio=tuple(_audio(tally) for tally in audio),
        timecode=next(named, "")[:_TEXT_LENGTH] or None,
        timecode_rate=headers.timecode_rate(path),
    )


def _video(tally: Tally, stop: Fraction, origin_ms: int) -> VideoStream:
    frame: VideoFrame = tally.frame
    orientation = files.orientation_of(frame)
    stream: Any = tally.stream
    aspect = float(stream.sample_aspect_ratio or 1)
    width, height = max(1, round(frame.width * aspect)), frame.height
    if orientation.swaps_sides:
        width, height = height, width
    interval = tally.interval
    # The rate that the container names, where the packets bear it out: a few frames with times in
    # whole milliseconds do not distinguish 24 from 23.976 by themselves.
    named = (stream.guessed_rate, stream.base_rate, stream.average_rate) if interval else ()
    borne_out = (it for it in named if it and abs(it - 1 / interval) <= _RATE_TOLERANCE / interval)
    return VideoStream(
        index=tally.stream.index,
        codec=files.codec_name(tally.stream),
        width=width,
        height=height,
        orientation=orientation,
        sample_aspect=aspect,
        decoder_aspect=tally.frame_aspect,
        frame_rate=float(1 / interval) if interval else 0.0,
        exact_rate=next((str(Fraction(it)) for it in borne_out), None),
        frame_count=tally.packets,
        interlaced=bool(frame.interlaced_frame),
        pixel_format=frame.format.name,
        transparent=files.is_transparent(frame),
        hdr=frame.color_trc in (_TRANSFER_PQ, _TRANSFER_HLG),
        keyframe_count=tally.keyframes,
        start_ms=files.seconds_ms(tally.start) - origin_ms,
        end_ms=max(files.seconds_ms(stop), files.seconds_ms(tally.last) + 1) - origin_ms,
    )


def _audio(tally: Tally) -> AudioStream:
    stream, frame = tally.stream, tally.frame
    language = stream.metadata.get("language", "")[:_TEXT_LENGTH]
    return AudioStream(
        index=stream.index,
        codec=files.codec_name(stream),
        sample_rate_hz=frame.sample_rate,
        channels=frame.layout.nb_channels,
        language=None if language in ("", "und") else language,
        title=stream.metadata.get("title", "")[:_TEXT_LENGTH] or None,
    )
