"""When things are in the picture: detections in sampled frames merged into tracks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from pipelines.types import ObjectTrack

MISSED_SAMPLES = 1
"""So many samples in a row may lack a thing without ending its track: detectors lose things for
a frame (SORT, Bewley et al. 2016, takes the same maximum age of a track)."""

Detections = Mapping[int, Mapping[str, float]]
"""Time of a sampled frame in ms -> label -> confidence of the best detection in it."""


def object_tracks(found: Detections, start_ms: int, end_ms: int) -> tuple[ObjectTrack, ...]:
    """Tracks of a scene by start and label; several things of one label are one track.

    A sample counts for the moments that are nearer to it than to the scene's other samples, so
    a thing in all of them is there from the scene's start to its end. Confidence is the mean of
    the samples that show the thing.
    """
    samples = sorted(time_ms for time_ms in found if start_ms <= time_ms < end_ms)
    middles = [(one + two) // 2 for one, two in pairwise(samples)]
    starts, ends = [start_ms, *middles], [*middles, end_ms]
    tracks = []
    for label in sorted({label for time_ms in samples for label in found[time_ms]}):
        shown = [index for index, time_ms in enumerate(samples) if label in found[time_ms]]
        for run in _runs(shown):
            confidences = [found[samples[index]][label] for index in run]
            mean = sum(confidences) / len(confidences)
            tracks.append(ObjectTrack(label, starts[run[0]], ends[run[-1]], mean))
    return tuple(sorted(tracks, key=lambda track: (track.start_ms, track.label)))


def _runs(shown: list[int]) -> list[list[int]]:
    """Rising indices parted where more than MISSED_SAMPLES are left out."""
    runs = [[shown[0]]]
    for before, index in pairwise(shown):
        if index - before > MISSED_SAMPLES + 1:
            runs.append([])
        runs[-1].append(index)
    return runs
