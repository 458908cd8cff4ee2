"""Conversations made of readers who speak alone: readers in turn, quick duos, tables of four.

Who speaks when is exact by construction. The readers of the two halves are different people. Levels
are made equal, so that no speaker can be found by loudness, and a faint noise is added to all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.speech.material import Turn, load
from models.contracts import SAMPLE_RATE_HZ, Samples
from pipelines.media.audio import LEVEL_FRAME_SECONDS, frame_levels
from tests.places import SHARED_MEDIA

TUNED, REPORTED = "tuned_on", "reported"
_ENGLISH = {
    TUNED: (
        ("speech/jfk.wav",),
        ("speech/azure-en.wav",),
        ("speech/leopard-test.wav",),
        ("speech/spk1_snt1.wav", "speech/spk1_snt2.wav", "speech/spk1_snt5.wav"),
        ("mixed-speech/english-chinese-accent.wav",),
        ("cuts/nasa_13013.mp4",),
    ),
    REPORTED: (
        tuple(f"speech/librivox-austen-08{number}.wav" for number in (70, 80, 90)),
        ("speech/sonnet-I-p001.mp3",),
        ("speakers2/watson-en-US-interview.wav#michael",),
        *((f"speakers2/synthetic-podcast-0.mp3#spk{number}",) for number in (0, 1, 2)),
    ),
}
_OTHERS = {
    TUNED: ("speech/azure-de.wav", "mixed-speech/fleurs-de.wav", "speech/leopard-test_es.wav"),
    REPORTED: ("speech/leopard-test_de.wav", "speech/leopard-test_fr.wav", "speech/azure-ja.wav"),
}
_LEVEL, _NOISE_LEVEL = 0.05, 0.0003
"""Roots of mean squares."""
_SPOKEN_DB = 30.0
"""So far below its loud parts a reader pauses."""
_WHOLE_TURN_SECONDS, _EDGE_SECONDS = 2.0, 0.3
"""Of a conversation's turns so long ones are read, without their edges, which are good to 0.3 s."""
_PAUSE_SECONDS = 0.4
"""A longer pause ends a turn of the truth."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Samples, and who speaks when in them."""

    name: str
    half: str
    samples: Samples
    turns: tuple[Turn, ...]

    @property
    def kind(self) -> str:
        return self.name.split("-")[0]


def conversations() -> Iterator[Conversation]:
    """Those of both halves: four of six in turn, five quick duos, three tables of four."""
    for half in (TUNED, REPORTED):
        english = [_spoken(names) for names in _ENGLISH[half]]
        everybody = [*english, *(_spoken((name,)) for name in _OTHERS[half])]
        for number, (rounds, seconds) in enumerate([(1, 6.0), (2, 3.0), (3, 1.8), (4, 1.2)]):
            order = np.random.default_rng(number).permutation(len(english))
            readers = [english[at] for at in order]
            turns = [(at, seconds, 0.2) for _ in range(rounds) for at in range(len(readers))]
            yield replace(_laid_out(readers, turns, number), name=f"six-{number}", half=half)
        for number, pair in enumerate([(0, 1), (2, 3), (1, 4), (5, 6), (0, 7)]):
            turns = [*_changing(2, 30, (0.8, 1.4), (0.0, 0.2), number)]
            made = _laid_out([everybody[at] for at in pair], turns, number)
            yield replace(made, name=f"duo-{number}", half=half)
        for number, table in enumerate([(0, 1, 2, 5), (1, 3, 4, 6), (0, 5, 7, 8)]):
            turns = [*_changing(4, 18, (0.8, 4.0), (-0.4, 0.4), number)]
            made = _laid_out([everybody[at] for at in table], turns, number)
            yield replace(made, name=f"table-{number}", half=half)


def _changing(
    readers: int, turns: int, lengths: tuple[float, float], gaps: tuple[float, float], seed: int
) -> Iterator[tuple[int, float, float]]:
    """Yield whose turn it is, how long, and the pause before it in seconds; less than 0 where two
    speak at once."""
    random = np.random.default_rng(1000 + seed)
    last = -1
    for _ in range(turns):
        last = int(random.choice([each for each in range(readers) if each != last]))
        yield last, float(random.uniform(*lengths)), float(random.uniform(*gaps))


def _spoken(names: Sequence[str]) -> Samples:
    """Return what a reader says in these files, without silence at the ends; that
    of one speaker of a conversation where a name follows."""
    parts = []
    for name in names:
        path, _, speaker = name.partition("#")
        samples = load(SHARED_MEDIA / path)
        if speaker:
            rows = (SHARED_MEDIA / path).with_suffix(".rttm").read_text().splitlines()
            spans = [
                (float(start), float(seconds))
                for *_, start, seconds, _, _, name, _, _ in map(str.split, rows)
                if name == speaker and float(seconds) >= _WHOLE_TURN_SECONDS
            ]
            samples = np.concatenate(
                [
                    samples[round((start + _EDGE_SECONDS) * SAMPLE_RATE_HZ) :][
                        : round((seconds - 2 * _EDGE_SECONDS) * SAMPLE_RATE_HZ)
                    ]
                    for start, seconds in spans
                ]
            )
        active = np.flatnonzero(_active(samples))
        frame = round(LEVEL_FRAME_SECONDS * SAMPLE_RATE_HZ)
        parts.append(samples[active[0] * frame : (active[-1] + 1) * frame])
    whole = np.concatenate(parts)
    levelled: Samples = (whole * (_LEVEL / np.sqrt(np.mean(whole**2)))).astype(np.float32)
    return levelled


def _active(samples: Samples) -> np.ndarray:
    levels = frame_levels(samples)
    loud = np.percentile(levels, 95) - _SPOKEN_DB
    return np.asarray(levels > loud)


def _laid_out(
    readers: Sequence[Samples], turns: Sequence[tuple[int, float, float]], seed: int
) -> Conversation:
    """Return the readers' speech in these turns, each read on from where it was left, from its
    start again at its end."""
    random = np.random.default_rng(seed)
    frame = round(LEVEL_FRAME_SECONDS * SAMPLE_RATE_HZ)
    at = [0] * len(readers)
    placed: list[tuple[int, Samples]] = []
    truth: list[Turn] = []
    end = round(0.5 * SAMPLE_RATE_HZ)
    for reader, seconds, gap in turns:
        samples, length = readers[reader], round(seconds * SAMPLE_RATE_HZ)
        if at[reader] + length // 2 > len(samples):
            at[reader] = 0
        piece = samples[at[reader] : at[reader] + length]
        at[reader] += len(piece)
        active = np.flatnonzero(_active(piece))
        piece = piece[active[0] * frame : (active[-1] + 1) * frame]
        start = max(0, end + round(gap * SAMPLE_RATE_HZ))
        placed.append((start, piece))
        truth += [
            (start / SAMPLE_RATE_HZ + first, start / SAMPLE_RATE_HZ + last, f"reader {reader}")
            for first, last in _turns(_active(piece))
        ]
        end = start + len(piece)
    whole = random.normal(0.0, _NOISE_LEVEL, end + SAMPLE_RATE_HZ // 2).astype(np.float32)
    for start, piece in placed:
        whole[start : start + len(piece)] += piece
    return Conversation("", "", whole, tuple(truth))


def _turns(active: np.ndarray) -> Iterator[tuple[float, float]]:
    """Yield intervals in seconds without a long pause."""
    places = np.flatnonzero(active)
    breaks = np.flatnonzero(np.diff(places) * LEVEL_FRAME_SECONDS > _PAUSE_SECONDS)
    starts = [places[0], *places[breaks + 1]]
    ends = [*places[breaks], places[-1]]
    for start, end in zip(starts, ends, strict=True):
        yield start * LEVEL_FRAME_SECONDS, (end + 1) * LEVEL_FRAME_SECONDS
