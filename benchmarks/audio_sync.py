"""How well separate sound finds its place by ear: ``python -m benchmarks.audio_sync``.

Each case is a scene of speech (real recordings from ``../shared/media`` where they
are there, else generated) as a camera and a close microphone would have taken it
(``tests.media.two_recorders``), 30 to 90 s each, -30 to +30 s apart, with clocks up
to 40 ppm apart. The peer is the highest peak of the plain cross-correlation of the
samples. As many pairs of recordings that have nothing in common show how often an
alignment is claimed that cannot be right. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import av
import numpy as np
from scipy import signal

from pipelines.ingest.sync import CERTAIN, align
from tests.media.two_recorders import (
    RATE_HZ,
    Recorder,
    Sound,
    Take,
    babbled,
    camera,
    close_microphone,
    take,
)
from tests.places import SHARED_MEDIA

TOLERANCE_SECONDS = 0.040
MOST_OFFSET_SECONDS = 30.0
_SCENE_SECONDS = 150.0
_RECORDINGS = ("speech/*.wav", "speech/*.mp3", "speakers/*.wav")
_NO_SPEECH = ("rain", "nospeech")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case."""

    case: int
    noise_db: float
    overlap_seconds: float
    error_ms: float | None
    """Of ours; None where nothing was found."""
    confidence: float
    score: float
    peer_error_ms: float
    seconds: float

    @property
    def within(self) -> bool:
        return self.error_ms is not None and abs(self.error_ms) <= TOLERANCE_SECONDS * 1000

    @property
    def sure(self) -> bool:
        return self.confidence >= CERTAIN


def voices() -> list[Sound]:
    """Real speech at 16 kHz; empty without the collection of media."""
    paths = [path for pattern in _RECORDINGS for path in sorted(SHARED_MEDIA.glob(pattern))]
    # Some recordings are there in several formats.
    distinct = {path.stem: path for path in reversed(paths)}
    spoken = sorted(stem for stem in distinct if not any(word in stem for word in _NO_SPEECH))
    return [_decoded(distinct[stem]) for stem in spoken]


def _decoded(path: Path) -> Sound:
    resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE_HZ)
    with av.open(str(path)) as container:
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
    sound = np.concatenate([frame.to_ndarray()[0] for frame in frames]).astype(np.float64)
    return np.asarray(sound / (np.std(sound) + 1e-9))


def scene(recordings: list[Sound], seconds: float, random: np.random.Generator) -> Sound:
    """Stretches of the recordings one after another with pauses; generated without any."""
    if not recordings:
        return babbled(seconds, random)
    pieces: list[Sound] = []
    while sum(map(len, pieces)) < seconds * RATE_HZ:
        recording = recordings[random.integers(len(recordings))]
        length = min(len(recording), round(random.uniform(2, 12) * RATE_HZ))
        start = int(random.integers(len(recording) - length + 1))
        pieces += [recording[start : start + length], np.zeros(random.integers(RATE_HZ))]
    return np.concatenate(pieces)[: round(seconds * RATE_HZ)]


def drawn_take(case: int, recordings: list[Sound], hardest_db: float) -> tuple[Take, float]:
    """The case's recordings, and how far the camera's noise lies below its sound."""
    random = np.random.default_rng(case)
    # Every fifth scene is generated, so that all of it cannot be learnt from few voices.
    world = scene(recordings if case % 5 else [], _SCENE_SECONDS, random)
    noise_db = random.uniform(hardest_db, 20)
    far = replace(camera(random), signal_to_noise_db=noise_db)
    near = close_microphone(random, clock_ppm=random.uniform(-40, 40))
    made = take(
        world,
        random,
        offset_seconds=random.uniform(-MOST_OFFSET_SECONDS, MOST_OFFSET_SECONDS),
        reference_seconds=random.uniform(40, 90),
        target_seconds=random.uniform(40, 90),
        recorders=(far, near),
    )
    return made, noise_db


def plain_correlation(made: Take) -> float:
    """The peer: seconds at which the plain cross-correlation of the samples is highest."""
    reference, target = made.reference.astype(np.float64), made.target.astype(np.float64)
    alike = signal.correlate(reference, target, method="fft")
    return float(np.argmax(alike) - (len(target) - 1)) / RATE_HZ


def measured(case: int, recordings: list[Sound], hardest_db: float) -> Outcome:
    """Both sides on one case; offsets are compared in the middle of the overlap."""
    made, noise_db = drawn_take(case, recordings, hardest_db)
    started = time.perf_counter()
    found = align(made.reference, made.target)
    seconds = time.perf_counter() - started
    lengths = [len(each) / RATE_HZ for each in (made.reference, made.target)]
    overlap = min(lengths[0], made.offset_seconds + lengths[1]) - max(0, made.offset_seconds)
    return Outcome(
        case=case,
        noise_db=round(noise_db, 1),
        overlap_seconds=round(overlap, 1),
        error_ms=None if found is None else (found.offset_seconds - made.offset_seconds) * 1000,
        confidence=0.0 if found is None else found.confidence,
        score=0.0 if found is None else found.score,
        peer_error_ms=(plain_correlation(made) - made.offset_seconds) * 1000,
        seconds=seconds,
    )


def unrelated_confidences(cases: int, seed: int, recordings: list[Sound]) -> Iterator[float]:
    """What is claimed of recordings of two different scenes."""
    for case in range(cases):
        random = np.random.default_rng([seed, case])
        # No voice is in both: the same stretch of it would be a match.
        heard = [
            _heard(recordings[which::2] if case % 5 else [], random, how(random))
            for which, how in enumerate((camera, close_microphone))
        ]
        found = align(heard[0].reference, heard[1].reference)
        yield 0.0 if found is None else found.confidence


def _heard(recordings: list[Sound], random: np.random.Generator, how: Recorder) -> Take:
    world = scene(recordings, 60, random)
    return take(
        world,
        random,
        offset_seconds=0.0,
        reference_seconds=60,
        target_seconds=1,
        recorders=(how, how),
    )


def summary(outcomes: list[Outcome], unrelated: list[float]) -> dict[str, object]:
    """The figures, as the last line says them."""
    count = len(outcomes)
    peer = sum(abs(o.peer_error_ms) <= TOLERANCE_SECONDS * 1000 for o in outcomes)
    errors = [abs(o.error_ms) for o in outcomes if o.error_ms is not None and o.within]
    return {
        "cases": count,
        "within_40_ms": sum(o.within for o in outcomes) / count,
        "within_40_ms_and_sure": sum(o.within and o.sure for o in outcomes) / count,
        "wrong_and_flagged": sum(not o.within and not o.sure for o in outcomes),
        "wrong_but_sure": sum(not o.within and o.sure for o in outcomes),
        "right_but_flagged": sum(o.within and not o.sure for o in outcomes),
        "median_error_ms": round(float(np.median(errors)), 2) if errors else None,
        "peer_within_40_ms": peer / count,
        "unrelated_cases": len(unrelated),
        "unrelated_but_sure": sum(value >= CERTAIN for value in unrelated),
        "mean_seconds": round(float(np.mean([o.seconds for o in outcomes])), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=20_261_121)
    parser.add_argument("--hardest-db", type=float, default=-15.0, help="camera's worst noise")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    recordings = voices()
    outcomes = []
    for case in range(options.seed, options.seed + options.cases):
        outcomes.append(measured(case, recordings, options.hardest_db))
        if options.verbose:
            print(json.dumps(asdict(outcomes[-1])), flush=True)
    unrelated = list(unrelated_confidences(options.cases, options.seed, recordings))
    print(json.dumps({"real_recordings": len(recordings), **summary(outcomes, unrelated)}))


if __name__ == "__main__":
    main()
