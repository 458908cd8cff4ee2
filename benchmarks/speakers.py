"""Who speaks when: diarisation errors, numbers of speakers, and what must not change them.

    .venv/bin/python -m benchmarks.speakers [--only sample …] [--changes] [--words]

The pipeline's own steps (segmentation, voices, clustering) in one process, without transcription.
Diarisation error rates and their parts by pyannote.metrics over whole recordings, overlap scored;
a collar of 0.5 s is a quarter of a second on both sides of each edge of the truth. Beside them what
one speaker throughout would get, where speech is found. The halves are reported apart.
Conversations made of readers (six in turn, quick duos, tables of four) are exact; their halves have
other readers. Readers alone should be one speaker each, the demo film twelve
times over should stay two. ``--changes`` also lists the number of speakers of six recordings after
changes that should not matter, and the share of their words that change; ``--words`` gives the
cpWER of the one recording whose words are known by speaker, transcribed (Watanabe et al. 2020: each
speaker's words end to end, speakers assigned so that errors are fewest). Seconds are processor
seconds a second of sound. The last line is JSON. Needs the real media beside the project.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import jiwer
import numpy as np
from scipy.optimize import linear_sum_assignment

from benchmarks.speech import made_conversations
from benchmarks.speech.material import Turn, load, scored_tokens
from benchmarks.speech.plain_loop import put_track
from benchmarks.transcript import ours_of
from models.contracts import SAMPLE_RATE_HZ, Samples
from models.provider import LocalModels
from pipelines.execution.chain import Workspace
from pipelines.speech.pipeline import TranscriptConfig
from pipelines.speech.regions import Sharding
from pipelines.speech.speakers import (
    VOICES,
    EmbedVoices,
    SpeakerRules,
    VoiceTurn,
    find_turns,
    find_voices,
    join_voices,
    plan_voice_shards,
)
from storage.objects.folder import FolderStore
from tests.places import DEMO, SHARED_MEDIA

COLLARS_SECONDS = {"speakers": (0.0, 0.25, 0.5), "speakers2": (0.5,)}
"""Of each folder; the edges of the second are good to 0.3 s."""
MADE = ("six", "duo", "table")
MADE_COLLARS = (0.0, 0.5)
TUNED = frozenset(
    {"sample", "ami-dev00", "ami-trn01", "ami-trn05"}
    | {"riva-interview-with-bill", "watson-dutch-duo", "watson-ja-call-a", "watson-twospeakers-en"}
)
"""One half: of the meetings that which earlier thresholds were chosen on, of the calls every second
by name. All were looked at when the distance was chosen; neither half is unseen."""
RTTM = {"ami-dev": "ami-dev.rttm", "ami-trn": "ami-train.rttm"}
"""Beginnings of the names of recordings whose turns are not in a file of their own."""
READERS = (
    *(f"speech/{name}" for name in ("azure-de.wav", "azure-en.wav", "azure-ja.wav", "jfk.wav")),
    *(f"speech/cards-00{number}.wav" for number in (1, 2, 5)),
    *(f"speech/leopard-test{language}.wav" for language in ("", "_de", "_es", "_fr")),
    *(f"speech/librivox-austen-08{number}.wav" for number in (70, 80, 90)),
    *(f"speech/spk1_snt{number}.wav" for number in (1, 2, 5)),
    "speech/ps-goforward.wav",
    "speech/sonnet-I-p001.mp3",
    "speech/whatstheweatherlike.wav",
    "mixed-speech/english-chinese-accent.wav",
    "mixed-speech/fleurs-de.wav",
    "mixed-speech/fleurs-hi.wav",
    "mixed-speech/mfa-laughter.flac",
    "mixed-speech/mfa-whispered.flac",
    "mixed-speech/watson-ko.wav",
    "formats/librivox-p001.wav",
    "formats/librivox-p001.mp3",
    "speech/jfk.flac",
    "speech/jfk.mp3",
)
CHANGED = (
    "speakers/sample.wav",
    "speakers2/watson-twospeakers-en.wav",
    "speakers2/watson-dutch-duo.wav",
    "speakers2/podcast-three.opus",
    "speech/leopard-test_fr.wav",
    "speech/librivox-austen-0870.wav",
)
OVER = 12
OVER_SECONDS = 15
"""Of a recording that is heard so often."""
SPOKEN_BY = "speakers2/synthetic-podcast-0.json"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names of conversations")
    parser.add_argument("--changes", action="store_true")
    parser.add_argument("--words", action="store_true")
    options = parser.parse_args()
    rows = [row for path in conversations() if (row := conversation(path, options.only))]
    for each in made_conversations.conversations():
        if not options.only or each.name in options.only:
            is_tuned = each.half == made_conversations.TUNED
            given = each.samples, list(each.turns), MADE_COLLARS
            rows.append(scored(each.name, each.kind, is_tuned, *given))
    counts: dict[str, Any] = {}
    if not options.only:
        readers = {name: len(voices(load(SHARED_MEDIA / name))) for name in READERS}
        counts["readers"] = len(readers)
        counts["readers_heard_as_one"] = sum(count == 1 for count in readers.values())
        counts["not_one"] = {name: count for name, count in readers.items() if count != 1}
        counts["demo_over"] = len(voices(np.tile(load(DEMO), OVER)))
    if options.changes:
        counts["changes"] = {name: changes(name) for name in CHANGED}
    if options.words:
        counts["words"] = speakers_words(SHARED_MEDIA / SPOKEN_BY)
    print(json.dumps({"der": list(totals(rows)), **counts}))


def conversations() -> Iterator[Path]:
    """The recordings of several speakers with known turns."""
    for folder in COLLARS_SECONDS:
        for path in sorted((SHARED_MEDIA / folder).iterdir()):
            if path.suffix in {".wav", ".opus", ".mp3"} and truth_of(path):
                yield path


def truth_of(path: Path) -> list[Turn]:
    """Who speaks when, from the recording's RTTM file; nothing where it has none."""
    file = next((file for start, file in RTTM.items() if path.stem.startswith(start)), None)
    rttm = path.with_name(file) if file else path.with_suffix(".rttm")
    lines = rttm.read_text().splitlines() if rttm.is_file() else []
    rows = [line.split() for line in lines if line]
    return [
        (float(row[3]), float(row[3]) + float(row[4]), row[7])
        for row in rows
        if file is None or row[1] == path.stem.removeprefix("ami-")
    ]


def turns(samples: Samples, rules: SpeakerRules | None = None) -> list[VoiceTurn]:
    """What the pipeline finds."""
    with TemporaryDirectory() as folder:
        store = FolderStore(Path(folder))
        track, workspace = put_track(store, samples), Workspace(store, "work")
        embed = EmbedVoices(workspace, LocalModels())
        parts = [embed.process(each) for each in plan_voice_shards(track, workspace, "")]
        found = join_voices([VOICES.load(store, part.voices_key) for part in parts])
    return find_turns(found, find_voices(found, rules or SpeakerRules()))


def voices(samples: Samples) -> set[int]:
    """The speakers that are found."""
    return {turn.voice for turn in turns(samples)}


def conversation(path: Path, only: Sequence[str] | None) -> dict[str, Any] | None:
    """Errors and numbers of one recording."""
    if only and path.stem not in only:
        return None
    given = load(path), truth_of(path), COLLARS_SECONDS[path.parent.name]
    return scored(path.stem, path.parent.name, path.stem in TUNED, *given)


def scored(
    name: str,
    folder: str,
    is_tuned: bool,
    samples: Samples,
    truth: Sequence[Turn],
    collars: Sequence[float],
) -> dict[str, Any]:
    """Errors and numbers of a recording whose turns are known."""
    started = time.process_time()
    found = turns(samples)
    seconds = len(samples) / SAMPLE_RATE_HZ
    row: dict[str, Any] = {
        "file": name,
        "folder": folder,
        "tuned_on": is_tuned,
        "speakers": len({name for *_, name in truth}),
        "found": len({turn.voice for turn in found}),
        "processor_seconds_a_second": round((time.process_time() - started) / seconds, 3),
    }
    spans = [(turn.start_seconds, turn.end_seconds, str(turn.voice)) for turn in found]
    for collar in collars:
        ours = diarisation_error(truth, spans, seconds, collar)
        alone = diarisation_error(truth, one_speaker(spans), seconds, collar)
        row[f"collar_{collar}"] = {**ours, "one_speaker": alone["der"]}
    print(json.dumps(row), flush=True)
    return row


def one_speaker(spans: Sequence[Turn]) -> list[Turn]:
    """The same speech, all of one speaker."""
    merged: list[Turn] = []
    for start, end, _ in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]), "one")
        else:
            merged.append((start, end, "one"))
    return merged


def diarisation_error(
    truth: Sequence[Turn], found: Sequence[Turn], seconds: float, collar_seconds: float
) -> dict[str, float]:
    """DER and its parts, as shares of the time that is spoken (twice where two speak)."""
    from pyannote.core import Annotation, Segment, Timeline
    from pyannote.metrics.diarization import DiarizationErrorRate

    def annotation(turns: Sequence[Turn]) -> Any:
        made = Annotation()
        for number, (start, end, speaker) in enumerate(turns):
            made[Segment(start, end), number] = speaker
        return made

    rate = DiarizationErrorRate(collar=collar_seconds)
    whole = Timeline([Segment(0, seconds)])
    scores = rate(annotation(truth), annotation(found), detailed=True, uem=whole)
    parts = {"missed": "missed detection", "false": "false alarm", "confusion": "confusion"}
    shares = {name: round(scores[key] / scores["total"], 3) for name, key in parts.items()}
    return {
        "der": round(scores["diarization error rate"], 3),
        "spoken_seconds": round(scores["total"], 2),
    } | shares


def totals(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Of each folder, half and collar: over all spoken time together."""
    for folder, collars in (COLLARS_SECONDS | dict.fromkeys(MADE, MADE_COLLARS)).items():
        for half, tuned in (("all", None), ("tuned_on", True), ("reported", False)):
            members = [
                row for row in rows if row["folder"] == folder and tuned in (None, row["tuned_on"])
            ]
            for collar in collars if members else ():
                found = [row[f"collar_{collar}"] for row in members]
                spoken = sum(each["spoken_seconds"] for each in found)
                names = ("der", "missed", "false", "confusion", "one_speaker")
                yield {
                    "folder": folder,
                    "half": half,
                    "collar": collar,
                    **{
                        name: round(sum(e[name] * e["spoken_seconds"] for e in found) / spoken, 3)
                        for name in names
                    },
                    "number_within_one": sum(
                        abs(row["speakers"] - row["found"]) <= 1 for row in members
                    ),
                    "worse_than_one_speaker": [
                        row["file"]
                        for row, each in zip(members, found, strict=True)
                        if each["der"] > each["one_speaker"]
                    ],
                    "files": len(members),
                }


def speakers_words(path: Path) -> dict[str, float]:
    """cpWER, and the WER of all words in order, of a recording beside its file of segments."""
    said: defaultdict[str, list[str]] = defaultdict(list)
    found: defaultdict[str, list[str]] = defaultdict(list)
    segments = json.loads(path.read_text())["segments"]
    for segment in segments:
        said[str(segment["speaker"])] += scored_tokens(segment["text"], "en")
    words = ours_of(load(path.with_suffix(".mp3"))).words
    for word in words:
        found[word.speaker or ""] += scored_tokens(word.text, "en")
    whole = scored_tokens(" ".join(word.text for word in words), "en")
    truth = scored_tokens(" ".join(segment["text"] for segment in segments), "en")
    return {
        "cp_word_error_rate": round(cp_word_error_rate([*said.values()], [*found.values()]), 3),
        "word_error_rate": round(word_errors(truth, whole) / len(truth), 3),
        "speakers": len(said),
        "found": len(found),
    }


def cp_word_error_rate(said: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> float:
    """Errors by what is said; who is assigned to nobody is all deletions, or all insertions."""
    size = max(len(said), len(found))
    truth, ours = ([*each, *[[] for _ in range(size - len(each))]] for each in (said, found))
    errors = np.array([[word_errors(one, other) for other in ours] for one in truth])
    return float(errors[linear_sum_assignment(errors)].sum() / sum(map(len, said)))


def word_errors(truth: Sequence[str], found: Sequence[str]) -> int:
    """Substitutions, deletions and insertions."""
    if not truth:
        return len(found)
    result = jiwer.process_words(" ".join(truth), " ".join(found))
    return result.substitutions + result.deletions + result.insertions


def changes(name: str) -> dict[str, dict[str, float]]:
    """Of a recording as it is, and changed: number of speakers, and words of one that are not in
    the other, as a share."""
    samples = load(SHARED_MEDIA / name)
    start = samples[: OVER_SECONDS * SAMPLE_RATE_HZ]
    changed: dict[str, Callable[[], Samples]] = {
        "as it is": lambda: samples,
        "in other shards": lambda: samples,
        "its start": lambda: start,
        "twelve times over": lambda: np.tile(start, OVER),
        "after 10 s of silence": lambda: np.pad(samples, (10 * SAMPLE_RATE_HZ, 0)),
        "20 dB quieter": lambda: (samples / 10).astype(np.float32),
        "mp3 at 64 kbit/s": lambda: coded(samples),
        "at 8 kHz": lambda: resampled(samples, 8_000),
        "at 48 kHz": lambda: resampled(samples, 48_000),
    }
    found: dict[str, dict[str, float]] = {}
    said: dict[str, list[str]] = {}
    language: str | None = None
    for change, samples_of in changed.items():
        sharding = Sharding(None) if change == "in other shards" else Sharding()
        answer = ours_of(samples_of(), TranscriptConfig(sharding=sharding))
        language = language or answer.language
        text = " ".join(word.text for word in answer.words)
        said[change] = scored_tokens(text, language or "en")
        is_over = change == "twelve times over"
        before = said["its start"] * OVER if is_over else said["as it is"]
        errors = 0 if change == "its start" else word_errors(before, said[change])
        found[change] = {
            "speakers": len(voices(samples_of())),
            "words_changed": round(errors / max(1, len(before)), 3),
        }
        print(json.dumps({"file": name, "change": change, **found[change]}), flush=True)
    return found


def resampled(samples: Samples, rate_hz: int) -> Samples:
    """At another rate and back."""
    for before, after in ((SAMPLE_RATE_HZ, rate_hz), (rate_hz, SAMPLE_RATE_HZ)):
        resampler = av.AudioResampler(format="flt", layout="mono", rate=after)
        frame = av.AudioFrame.from_ndarray(samples[None], "flt", "mono")
        frame.sample_rate = before
        frames = [*resampler.resample(frame), *resampler.resample(None)]
        samples = np.concatenate([each.to_ndarray()[0] for each in frames])
    return samples


def coded(samples: Samples) -> Samples:
    """Through MP3."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp3") as container:
        stream = container.add_stream("mp3", rate=SAMPLE_RATE_HZ, layout="mono")
        stream.bit_rate = 64_000
        frame = av.AudioFrame.from_ndarray(samples[None], "fltp", "mono")
        frame.sample_rate = SAMPLE_RATE_HZ
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    file.seek(0)
    with av.open(file) as container:
        resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE_HZ)
        frames = [out for each in container.decode(audio=0) for out in resampler.resample(each)]
        return np.concatenate([each.to_ndarray()[0] for each in frames])


if __name__ == "__main__":
    main()
