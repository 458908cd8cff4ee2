"""Stills of a segment at exact frame times: by decord in a batch, or else by PyAV.

All ways give the same picture: full size RGB as stored, made upright with
square pixels by the same function afterwards.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import av
import av.error
import cv2
import numpy as np
from av.container import InputContainer
from av.video.stream import VideoStream as AvVideoStream

from models.contracts import Picture
from pipelines.codec import from_json
from pipelines.execution.chain import Workspace
from pipelines.media import files
from pipelines.media.decoding import decode_segment, rgb, seek, upright
from pipelines.media.sampling import PicturesOrder, PicturesRead, SharedPicture, read_pictures
from pipelines.media_types import Orientation
from pipelines.sandbox.confinement import Allowance
from pipelines.sandbox.parent import ConfinedTask, TaskCrashedError, TaskRefusedError, run_confined
from pipelines.types import Segment, VideoPart, VideoSource, VideoStream
from pipelines.vision import features
from pipelines.vision.kept import keeps_pictures, kept_pictures

_DECORD_LACKS = frozenset({"av1", "vvc"})
"""Codecs that the FFmpeg inside decord 0.6 has no decoder for."""
_DECORD_FILE_LIMIT_BYTES = 256 * 1024 * 1024
"""decord reads a whole file to index it, so longer ones are left to PyAV's seeking."""
_MOST_PACKETS = 1_500
"""From one key frame to the next; where there are more, or the container seeks too loosely, the
stream is decoded as from the start."""
_WORTH_A_CHILD, _WORTH_A_CHILD_INTERLACED = 8, 2
"""From so many stills of a segment on that are no key frames, decord reads them, all in one batch
of one child. Its start takes 0.25 processor seconds, each still of 1080p 0.02; seeking takes 0.01
for a key frame, 0.06 for another, and leads to none that is interlaced: see
``benchmarks/README.md``."""
_DECORD_MEMORY_BYTES = 6 << 30
_LARGEST_PICTURE_BYTES = 8_192 * 8_192 * 3
_DECORD_SECONDS = 600.0
"""For a segment of a minute; decord decodes every frame between those requested."""
_SAME_PICTURE_LEVELS = 6.0
_SAME_PICTURE_CORRELATION = 0.9


class DecordUnsuitableError(Exception):
    """decord cannot give the stills of this file; the message is the reason."""


def fetch_stills(
    path: Path,
    segment: Segment,
    stream: VideoStream,
    origin_ms: int,
    wanted: Mapping[int, features.FrameLook],
    long_side_px: int,
    check: Callable[[], None] = lambda: None,
) -> dict[int, Picture]:
    """Return stills at the times ``wanted`` (with what is known of those frames), upright.

    ``long_side_px`` bounds their width and height. Times at which nothing can be decoded are left
    out. ``path`` is the segment's object on this machine. One picture of full size is in memory at
    a time. Whatever ``check`` raises ends the reading.
    """

    def finish(time_ms: int, picture: Picture) -> Picture:
        shape = wanted[time_ms].aspect, wanted[time_ms].orientation
        return upright(picture, *shape, long_side_px, interlaced=stream.interlaced)

    stills: dict[int, Picture] = {}
    others = {at: look for at, look in wanted.items() if stream.interlaced or not look.is_key}
    if len(others) >= (_WORTH_A_CHILD_INTERLACED if stream.interlaced else _WORTH_A_CHILD):
        with contextlib.suppress(DecordUnsuitableError):
            stills |= by_decord(path, stream, origin_ms, others, finish, check)
    missing = [time_ms for time_ms in wanted if time_ms not in stills]
    stills |= by_seeking(path, stream, origin_ms, missing, finish, check)
    missing = [time_ms for time_ms in wanted if time_ms not in stills]
    stills |= by_pyav(path, segment, stream, origin_ms, missing, finish, check)
    return dict(sorted(stills.items()))


@dataclass(frozen=True, slots=True)
class FrameTimes:
    """Frame times of a video, rising, to look at in one task.

    ``position`` is for the names of what is stored of them.
    """

    position: int
    times_ms: tuple[int, ...]

    def in_runs(self, most: int) -> Iterator[tuple[int, ...]]:
        """At most so many times after the other."""
        for first in range(0, len(self.times_ms), most):
            yield self.times_ms[first : first + most]

    def sources(self, video: VideoSource, workspace: Workspace) -> list[tuple[str, VideoPart]]:
        """Return what their pictures depend on, for the names of outputs."""
        return [
            (features.features_key(video, segment, workspace), video.part_of(segment))
            for segment, _ in groupby(self.times_ms, key=lambda at: segment_at(video, at))
        ]


def stills_at(
    video: VideoSource, times_ms: Collection[int], workspace: Workspace, long_side_px: int
) -> dict[int, Picture]:
    """Return stills at these frame times, rising, of segments whose features are stored.

    Pictures that were kept when a segment was read are taken from there; only for others its
    file is needed. Times at which nothing can be decoded are left out.
    """
    stills: dict[int, Picture] = {}
    store = workspace.store
    for segment, own in groupby(sorted(times_ms), key=lambda at: segment_at(video, at)):
        missing, key = [*own], features.features_key(video, segment, workspace)
        workspace.check()
        if keeps_pictures(video.part_of(segment).stream):
            with store.local_copy(features.kept_key(key)) as path:
                stills |= kept_pictures(path, missing, long_side_px)
            missing = [time_ms for time_ms in missing if time_ms not in stills]
        if missing:
            looks = features.FEATURES.load(store, key).looks()
            wanted = {time_ms: looks[time_ms] for time_ms in missing if time_ms in looks}
            part, check = video.part_of(segment), workspace.check
            source = segment, part.stream, part.origin_ms
            with store.local_copy(segment.key) as path:
                stills |= fetch_stills(path, *source, wanted, long_side_px, check)
    return dict(sorted(stills.items()))


def segment_at(video: VideoSource, time_ms: int) -> Segment:
    """Return the segment that a frame at ``time_ms`` belongs to."""
    for segment in video.segments:
        if segment.start_ms <= time_ms < segment.end_ms:
            return segment
    return video.segments[-1]


Finish = Callable[[int, Picture], Picture]
"""What is made of the stored picture at a time in ms."""


def _as_it_is(_: int, picture: Picture) -> Picture:
    return picture


def by_seeking(
    path: Path,
    stream: VideoStream,
    origin_ms: int,
    times_ms: Collection[int],
    finish: Finish = _as_it_is,
    check: Callable[[], None] = lambda: None,
) -> dict[int, Picture]:
    """Return pictures as stored for those of ``times_ms`` that seeking leads to.

    Of key frames one packet is decoded, of others all that they refer to. None of
    interlaced streams: a packet may hold a single field. None where the times of packets are not
    those of pictures.
    """
    found: dict[int, Picture] = {}
    if stream.interlaced:
        return found
    with av.open(str(path), options=files.OPEN_OPTIONS) as container:
        source = files.chosen_stream(container, stream.index)
        source.codec_context.thread_count = 1
        if files.has_guessed_times(source):
            return found
        decoder = files.Decoders()[source]
        for time_ms in sorted(times_ms):
            check()
            frame = _sought_frame(container, source, decoder, time_ms, origin_ms)
            if frame is not None:
                found[time_ms] = finish(time_ms, rgb(frame))
    return found


def _sought_frame(
    container: InputContainer, stream: AvVideoStream, decoder: Any, time_ms: int, origin_ms: int
) -> av.VideoFrame | None:
    """Return the frame at ``time_ms``, or None where seeking and decoding don't lead to it."""
    decoder.flush_buffers()
    try:
        seek(container, stream, time_ms + origin_ms)
        for packet in islice(container.demux(stream), _MOST_PACKETS):
            is_wanted = files.packet_time_ms(packet, origin_ms) == time_ms
            decoder.skip_frame = "DEFAULT" if is_wanted else "NONREF"
            frames = decoder.decode(packet)
            if is_wanted:
                frames += decoder.decode(None)
                return next((frame for frame in frames if frame.pts == packet.pts), None)
    except av.error.FFmpegError:
        return None
    return None


def by_decord(
    path: Path,
    stream: VideoStream,
    origin_ms: int,
    wanted: Mapping[int, features.FrameLook],
    finish: Finish = _as_it_is,
    check: Callable[[], None] = lambda: None,
) -> dict[int, Picture]:
    """Return pictures as stored, for those of ``wanted`` that decord reproduces; each ``finish``ed.
    Raises DecordUnsuitableError if it cannot read the file as PyAV does."""
    if stream.hdr or stream.transparent or stream.codec in _DECORD_LACKS:
        raise DecordUnsuitableError(stream.codec)
    if path.stat().st_size > _DECORD_FILE_LIMIT_BYTES:
        raise DecordUnsuitableError("long file")
    if len({look.aspect for look in wanted.values()}) > 1:  # decord scales all to one size
        raise DecordUnsuitableError("pictures of several shapes")
    found: dict[int, Picture] = {}

    def take(time_ms: int, picture: Picture) -> None:
        # The picture as it lies in the file, or None if it is not the frame with this luma. decord
        # turns pictures upright where its FFmpeg finds a rotation in the container; the frame's
        # features show whether it did.
        candidates = [picture]
        degrees = wanted[time_ms].orientation.degrees
        if degrees:
            candidates.append(Orientation(-degrees % 360).upright(picture))
        fits = [_fit(candidate, wanted[time_ms].luma) for candidate in candidates]
        best = int(np.argmax(fits))
        stored = np.ascontiguousarray(candidates[best]) if fits[best] > 0 else None
        if stored is not None:
            found[time_ms] = finish(time_ms, stored)

    pictures_by_decord(path, stream, origin_ms, times_ms=sorted(wanted), take=take, check=check)
    return found


def pictures_by_decord(
    path: Path,
    stream: VideoStream,
    origin_ms: int,
    *,
    times_ms: Sequence[int],
    take: Callable[[int, Picture], None],
    check: Callable[[], None],
) -> None:
    """Read the pictures at ``times_ms`` in a confined child and pass each to ``take``, in order.

    The pictures come through memory shared with the child. Times at which the file has no frame are
    passed over. ``check`` is called several times a second, and whatever it raises ends the
    reading. Raises DecordUnsuitableError if decord cannot read the file as PyAV does, or at all.
    """
    memory = os.memfd_create("picture")

    def on_event(event: object) -> None:
        shared = from_json(SharedPicture, event)
        # The picture that lies in the shared memory; raises TaskCrashedError if it does not fit.
        size = shared.height * shared.width * 3
        data = bytearray(size if 0 < size <= _LARGEST_PICTURE_BYTES else 0)
        if not data or os.preadv(memory, [data], 0) != size:
            raise TaskCrashedError("The process that reads the pictures answered nonsense.")
        take(shared.time_ms, np.frombuffer(data, np.uint8).reshape(shared.height, shared.width, 3))

    path, which = path.resolve(), (stream.index, stream.interlaced)
    task = ConfinedTask(
        program=read_pictures,
        order=PicturesOrder(path, *which, origin_ms, tuple(times_ms), memory),
        allowance=Allowance(
            _DECORD_MEMORY_BYTES, math.ceil(_DECORD_SECONDS), _LARGEST_PICTURE_BYTES
        ),
        wall_seconds=_DECORD_SECONDS,
        readable=(path,),
        descriptors=(memory,),
        imports=("decord",),
    )
    try:
        read = run_confined(task, PicturesRead, on_event=on_event, check=check)
    except (TaskRefusedError, TaskCrashedError) as error:
        raise DecordUnsuitableError(str(error)) from error
    finally:
        os.close(memory)
    if read.unsuitable is not None:
        raise DecordUnsuitableError(read.unsuitable)


def _fit(picture: Picture, luma: features.Bytes) -> float:
    """Return how well the picture matches a frame's luma features; 0 if it is another picture."""
    small = cv2.resize(
        picture, (features.LUMA_WIDTH, features.LUMA_HEIGHT), interpolation=cv2.INTER_AREA
    )
    grey = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).astype(np.float64)
    reference = luma.astype(np.float64)
    if float(np.abs(grey - reference).mean()) <= _SAME_PICTURE_LEVELS:
        return 2.0 - float(np.abs(grey - reference).mean()) / _SAME_PICTURE_LEVELS
    spread = float(grey.std() * reference.std())
    if spread == 0:
        return 0.0
    product = float(((grey - grey.mean()) * (reference - reference.mean())).mean())
    return product / spread if product / spread >= _SAME_PICTURE_CORRELATION else 0.0


def by_pyav(
    path: Path,
    segment: Segment,
    stream: VideoStream,
    origin_ms: int,
    times_ms: Sequence[int],
    finish: Finish = _as_it_is,
    check: Callable[[], None] = lambda: None,
) -> dict[int, Picture]:
    """Return pictures as stored at ``times_ms``, each by seeking to it; HDR tone mapped to SDR."""
    found: dict[int, Picture] = {}
    for time_ms in times_ms:
        check()
        single = Segment(segment.index, segment.key, time_ms, time_ms + 1)
        frames = decode_segment(path, single, stream_index=stream.index, origin_ms=origin_ms)
        timed = next(iter(frames), None)
        if timed is not None:
            found[time_ms] = finish(time_ms, rgb(timed.frame))
    return found
