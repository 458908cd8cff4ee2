"""Voices that were named in one recording and recognised in others: precision and recall.

    .venv/bin/python -m benchmarks.voices [--verbose]

Conversations and readers of the media beside the project, each cut into two jobs of half its length
(shorter than 8 s: one job). From every job each of its speakers is named in turn, in a library with
all others that are named in the same job, and all jobs that are not of the same half are looked
through. Recognised rightly: the same person; to be recognised: every speaker of another job who is.
Who a found speaker is follows from the truth's turns: who speaks most while it does. The halves are
those of the benchmark ``speakers``, of readers every second; bounds were chosen on ``tuned_on``.
The peer is the nearest voice of the library, however far. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.speakers import READERS, TUNED, conversations, truth_of
from benchmarks.speech.material import Turn, load
from benchmarks.speech.plain_loop import put_track
from models.contracts import SAMPLE_RATE_HZ, Samples
from models.provider import LocalModels
from pipelines.across.voices import recognise
from pipelines.execution.chain import Workspace
from pipelines.speech.speakers import (
    VOICES,
    EmbedVoices,
    SpeakerRules,
    find_turns,
    find_voices,
    join_voices,
    plan_voice_shards,
)
from pipelines.types import SpeakerVoice
from storage.objects.folder import FolderStore
from tests.places import SHARED_MEDIA

SHORTEST_SECONDS = 8.0
SAME_PEOPLE = {
    "cards-": "cards",
    "librivox-austen": "austen",
    "spk1": "spk1",
    "jfk": "jfk",
    "librivox-p001": "sonnets",
    "sonnet-I": "sonnets",
}
"""Beginnings of names of recordings of one reader."""
SAME_IN = {
    ("watson-ja-call-b", "caller"): ("watson-ja-call-a", "operator"),
    ("watson-ja-call-b", "operator"): ("watson-ja-call-a", "caller"),
    ("ami-dev01", "MEE009"): ("ami-dev00", "MEE009"),
}
"""By ear and by the corpus's names: the labels of the second part of the call are exchanged."""


@dataclass(frozen=True, slots=True)
class Found:
    """A speaker that is found in a job."""

    recording: str
    job: int
    person: str
    vector: tuple[float, ...]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    halves: dict[str, list[Found]] = defaultdict(list)
    for number, name in enumerate(READERS):
        path = SHARED_MEDIA / name
        person = next(
            (it for begin, it in SAME_PEOPLE.items() if path.name.startswith(begin)), name
        )
        halves["tuned_on" if number % 2 else "reported"] += speakers_of(path, name, person)
    for path in conversations():
        halves["tuned_on" if path.stem in TUNED else "reported"] += speakers_of(path, path.stem)
    halves["all"] = halves["tuned_on"] + halves["reported"]
    rows = {half: score(found, verbose=options.verbose) for half, found in halves.items()}
    print(json.dumps(rows))


def speakers_of(path: Path, recording: str, reader: str | None = None) -> Iterator[Found]:
    """Of each job of the recording the speakers that are found in it."""
    samples = load(path)
    is_short = len(samples) < SHORTEST_SECONDS * SAMPLE_RATE_HZ
    for job, part in enumerate([samples] if is_short else np.array_split(samples, 2)):
        start = 0.0 if job == 0 else (len(samples) - len(part)) / SAMPLE_RATE_HZ
        turns, vectors = found_in(part)
        for number, vector in enumerate(vectors):
            spans = [(low + start, high + start) for low, high, voice in turns if voice == number]
            person = reader or person_of(recording, spans, truth_of(path))
            if person is not None:
                yield Found(recording, job, person, vector)


def found_in(
    samples: Samples,
) -> tuple[list[tuple[float, float, int]], list[tuple[float, ...]]]:
    """Turns in seconds with the number of their voice, and the vector of each."""
    with TemporaryDirectory() as folder:
        store = FolderStore(Path(folder))
        track, workspace = put_track(store, samples), Workspace(store, "work")
        embed = EmbedVoices(workspace, LocalModels())
        parts = [embed.process(each) for each in plan_voice_shards(track, workspace, "")]
        voices = join_voices([VOICES.load(store, part.voices_key) for part in parts])
    centroids = find_voices(voices, SpeakerRules())
    turns = find_turns(voices, centroids)
    return (
        [(turn.start_seconds, turn.end_seconds, turn.voice) for turn in turns],
        [tuple(each.tolist()) for each in centroids],
    )


def person_of(
    recording: str, spans: Sequence[tuple[float, float]], truth: Sequence[Turn]
) -> str | None:
    """Who speaks most in the spans; None where nobody does by the truth."""
    seconds: dict[str, float] = defaultdict(float)
    for low, high in spans:
        for start, end, name in truth:
            seconds[name] += max(0.0, min(high, end) - max(low, start))
    if not sum(seconds.values()):
        return None
    name = max(seconds, key=lambda each: seconds[each])
    return ":".join(SAME_IN.get((recording, name), (recording, name)))


def score(found: Sequence[Found], *, verbose: bool) -> dict[str, float | int]:
    """Precision and recall of ours and of the nearest voice."""
    jobs: dict[tuple[str, int], list[Found]] = defaultdict(list)
    for each in found:
        jobs[each.recording, each.job].append(each)
    counts = Counter[str]()
    for own, library in jobs.items():
        known = [(str(n), np.array(it.vector, np.float32)) for n, it in enumerate(library)]
        people = {str(n): it.person for n, it in enumerate(library)}
        for other, heard in jobs.items():
            if other == own:
                continue
            voices = [SpeakerVoice(str(n), it.vector) for n, it in enumerate(heard)]
            recognised = recognise(voices, known)
            for number, it in enumerate(heard):
                is_known = it.person in people.values()
                taken = recognised.get(str(number))
                is_right = taken is not None and people[taken] == it.person
                nearest = max(known, key=lambda voice: float(voice[1] @ np.array(it.vector)))[0]
                counts["to recognise"] += is_known
                counts["recognised"] += taken is not None
                counts["right"] += is_right
                counts["nearest"] += 1
                counts["nearest right"] += people[nearest] == it.person
                if verbose and (is_known or taken is not None) and not is_right:
                    print(own, other, it.person, taken and people[taken], flush=True)
    return {
        "people": len({each.person for each in found}),
        "pairs of jobs": len(jobs) * (len(jobs) - 1),
        "to recognise": counts["to recognise"],
        "precision": round(counts["right"] / max(1, counts["recognised"]), 3),
        "recall": round(counts["right"] / max(1, counts["to recognise"]), 3),
        "nearest: precision": round(counts["nearest right"] / max(1, counts["nearest"]), 3),
        "nearest: recall": round(counts["nearest right"] / max(1, counts["to recognise"]), 3),
    }


if __name__ == "__main__":
    main()
