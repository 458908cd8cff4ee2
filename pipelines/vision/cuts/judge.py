"""What the measures propose, judged by a network that has learned from films.

The measures find nearly every cut and are in doubt about few; a network (task
``detect_boundaries``) is right about most of these but costs more than all else, so that it gets
little but them. The evidence of both about one frame is summed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from models.contracts import BOUNDARY_HEIGHT, BOUNDARY_WIDTH, BoundaryPictures, Probabilities
from models.tasks import BoundaryDetector
from pipelines.vision.cuts.gradual import Gradual
from pipelines.vision.cuts.hard import SLOW_MS, HardCandidate
from pipelines.vision.cuts.measures import blanks, mean_difference
from pipelines.vision.features import FrameFeatures

_MARGIN = 16
"""Frames on both sides that the network gets beside those in question. Its authors have 25; 12 find
the same hard cuts, 16 the same gradual transitions too, in seven films."""
_NEAR = 2
"""Frames within which a step is the one that the network finds."""
_MIDDLE = 12
"""Frames on both sides of a gradual transition's middle that are: the network finds its middle."""
_SUDDEN_FRAMES = 2
"""A run of probable frames no longer than this is a hard cut."""


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    """What is judged, and how. Tuned on ``google-paris``, ``advert-joyrides``, ``nasa_13013``,
    ``chrome-imaginary-forces`` and the programmes of seed 11 (``benchmarks/scenes.py``)."""

    sure: float = 0.99
    """Confidence of a step that stands as it is."""
    min_step: float = 0.3
    min_lasting: float = 0.6
    most_alike: float = 0.8
    min_gone: float = 0.15
    """What is judged (see ``HardEvidence``): the least step, and the least share of it that lasts.
    Flashes, lamps and what passes close by look like cuts to the network; the old view returns, or
    is seen in another light."""
    min_still_step: float = 0.2
    still_ratio: float = 50.0
    """The least step between stills: those around it are so many times smaller. Bars, a title over
    the picture or its lost colour make the step between two stills less, and no less sudden."""
    min_measured: float = 0.001
    min_ratio: float = 4.0
    """And the least confidence, or else how many times a step is those around it: a cut between
    two views of one place is alone, as one step of a hand that shakes is not."""
    measured_weight: float = 0.25
    most_measured: float = 4.0
    """Of the measured log odds, as which their sum is taken: what the measures refuse the network
    may still find."""
    bias: float = 1.7
    """Added to the log odds: of a frame that the measures propose, a third is enough."""
    sweeping: float = 0.5
    """Share of a step that another beside it has from which a camera may sweep through both."""
    sweep_bias: float = -1.2
    """Added to the log odds of such a one: of a whip pan the network is never quite sure."""
    sure_dissolve: float = 0.9
    sure_wipe: float = 0.9
    """Confidence of gradual transitions that stand: the network does not see many a true wipe."""
    min_gradual: float = 0.08
    """Probability without which nothing near the middle of another is one."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of a block's candidates: the steps, with the confidence of both, and what is refused."""

    hard: list[tuple[int, float]]
    """(time of the new scene, confidence)."""
    refused: set[Gradual]
    unproposed: list[Gradual]
    """What the network alone finds."""


def judged(
    frames: FrameFeatures,
    block: tuple[int, int],
    hard: Sequence[HardCandidate],
    graduals: Iterable[Gradual],
    detector: BoundaryDetector,
    config: JudgeConfig,
    *,
    thorough: bool,
) -> Judgement:
    """Of the candidates of the frames ``block`` = (start, end).

    A ``thorough`` one is of every frame, and finds what is not proposed.
    """
    times = frames.times_ms
    asked = [each for each in hard if _is_doubtful(each, config)]
    places = np.searchsorted(times, [each.time_ms for each in asked]).tolist()
    doubtful = {
        at: each
        for at, each in zip(places, asked, strict=True)
        # Fades in and out of black are for the measures.
        if times[at] - times[at - 1] < SLOW_MS and not any(blanks(frames.luma[at - 1 : at + 1]))
    }
    spans = {each: _span(frames, each) for each in graduals}
    questions = [(at - 1, at) for at in doubtful] + list(spans.values())
    found = probabilities(frames, [block, *questions] if thorough else questions, detector)
    answers = {each: _both(each, float(found[at - 1]), config) for at, each in doubtful.items()}
    kept = [(each.time_ms, answers.get(each, each.confidence)) for each in hard]
    least = config.min_gradual
    refused = {each for each, span in spans.items() if found[slice(*span)].max() < least}
    decided = [each for each in hard if each in answers or each.confidence >= config.sure]
    sudden, slow = _unproposed(frames, block, found, decided) if thorough else ([], [])
    return Judgement([*kept, *sudden], refused, slow)


def _is_doubtful(step: HardCandidate, config: JudgeConfig) -> bool:
    seen = step.evidence
    is_between_stills = seen.step >= config.still_ratio * seen.around
    is_alone = seen.step >= config.min_ratio * seen.around
    return (
        step.confidence < config.sure
        and seen.step >= (config.min_still_step if is_between_stills else config.min_step)
        and seen.lasting >= config.min_lasting * seen.step
        and seen.alike < config.most_alike
        and seen.gone >= config.min_gone
        and (step.confidence >= config.min_measured or is_alone)
    )


def _span(frames: FrameFeatures, gradual: Gradual) -> tuple[int, int]:
    """Return the frames about the middle of a transition: the first, and the one after the last."""
    own_ms = gradual.start_ms, gradual.middle_ms, gradual.end_ms
    first, middle, last = np.searchsorted(frames.times_ms, own_ms).tolist()
    return max(first - 1, middle - _MIDDLE, 0), min(last, middle + _MIDDLE) + 1


def _both(step: HardCandidate, learned: float, config: JudgeConfig) -> float:
    """Return the confidence of a step by its measures and by the network."""
    most, seen = config.most_measured, step.evidence
    odds = config.measured_weight * min(most, max(-most, _log_odds(step.confidence)))
    sweeps = seen.beside >= config.sweeping * seen.step
    bias = config.sweep_bias if sweeps else config.bias
    return 1 / (1 + math.exp(-(odds + _log_odds(learned) + bias)))


def _log_odds(probability: float) -> float:
    inner = min(1 - 1e-6, max(1e-6, probability))
    return math.log(inner / (1 - inner))


def probabilities(
    frames: FrameFeatures, questions: Iterable[tuple[int, int]], detector: BoundaryDetector
) -> Probabilities:
    """Of each frame that a shot ends with it, 0 outside the ``questions`` (start, end).

    What is near together is seen in one go, so that nothing is seen more often than all of it.
    Before the first frame and after the last these are repeated, as the network's authors do.
    """
    is_due = np.zeros(len(frames) + 2, bool)
    for start, end in questions:
        is_due[max(0, start) + 1 : end + 1] = True
    is_due[-1] = False
    edges = np.flatnonzero(np.diff(is_due.astype(np.int8)))
    runs: list[list[int]] = []
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if runs and start - runs[-1][1] < 2 * _MARGIN:
            runs[-1][1] = end
        else:
            runs.append([start, end])
    found = np.zeros(len(frames), np.float32)
    for start, end in runs:
        shown = np.clip(np.arange(start - _MARGIN, end + _MARGIN), 0, len(frames) - 1)
        answers = detector.detect_boundaries(boundary_pictures(frames.rows(shown.tolist())))
        found[start:end] = answers[_MARGIN : _MARGIN + end - start]
    return found


def boundary_pictures(frames: FrameFeatures) -> BoundaryPictures:
    """Return the frames as the network gets them.

    Their colours are coarser than those it was trained on; of 45 cuts of real films with 0.5 and
    more none loses more than 0.05 by it.
    """
    size = BOUNDARY_WIDTH, BOUNDARY_HEIGHT
    pictures = np.empty((len(frames), BOUNDARY_HEIGHT, BOUNDARY_WIDTH, 3), np.uint8)
    for luma, chroma, picture in zip(frames.luma, frames.chroma, pictures, strict=True):
        grey = cv2.resize(luma, size, interpolation=cv2.INTER_AREA)
        blue, red = (cv2.resize(each, size, interpolation=cv2.INTER_LINEAR) for each in chroma)
        cv2.cvtColor(cv2.merge([grey, red, blue]), cv2.COLOR_YCrCb2RGB, picture)
    return pictures


def _unproposed(
    frames: FrameFeatures,
    block: tuple[int, int],
    found: Probabilities,
    decided: Sequence[HardCandidate],
) -> tuple[list[tuple[int, float]], list[Gradual]]:
    """Return steps and gradual transitions that the network alone finds in a block."""
    start, end = block
    known = np.searchsorted(frames.times_ms, [each.time_ms for each in decided])
    near = {at + by for at in known.tolist() for by in range(-_NEAR, _NEAR + 1)}
    probable = np.concatenate([[False], found[start:end] > 0.5, [False]])
    edges = start + np.flatnonzero(np.diff(probable.astype(np.int8)))
    hard, slow = [], []
    for first, after in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if after >= len(frames) or after in near:
            continue
        confidence = float(found[first:after].max())
        new_ms = int(frames.times_ms[after])
        if after - first <= _SUDDEN_FRAMES:
            hard.append((new_ms, confidence))
            continue
        middle_ms = int(frames.times_ms[(first + after) // 2])
        ends = frames.luma[first : first + 1], frames.luma[after : after + 1]
        strength = float(mean_difference(*ends)[0])
        start_ms = int(frames.times_ms[first])
        slow.append(Gradual(start_ms, middle_ms, new_ms, confidence, strength, None))
    return hard, slow
