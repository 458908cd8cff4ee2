"""Where corrected words are said to be spoken, against forced alignments.

    .venv/bin/python -m benchmarks.corrections [--profile packaged]

Each word of seven recordings (English, Spanish, German, French) is made a wrong one and corrected
again, in a segment of all words of its recording, aligned both times. Other words must stay as they
are. The last line is JSON. Needs the real media beside the project.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.speech.material import load
from models.provider import LocalModels
from models.tasks import ALIGN, WordAligner
from pipelines.media.audio import write_flac
from pipelines.speech.alignment import align_segment
from pipelines.speech.edits import Edit, SegmentChange, splices_of
from pipelines.types import AudioTrack, TranscriptSegment, TranscriptWord
from storage.objects.folder import FolderStore
from tests.places import SHARED_MEDIA

RECORDINGS = {
    **{f"librivox-austen-{n}": (f"librivox-austen-{n}", "en") for n in ("0870", "0880", "0890")},
    "leopard-test": ("leopard-en", "en"),
    **{f"leopard-test_{name}": (f"leopard-{name}", name) for name in ("es", "de", "fr")},
}
"""Recording -> its word times (those of Leopard are an engine's, and approximate), its language."""


def truth_of(name: str) -> list[TranscriptWord]:
    found = json.loads((SHARED_MEDIA / "speech" / f"{name}.words.json").read_text())
    timed = [
        (each["t"].split("(")[0], each["b"], each["b"] + each["d"]) for each in found.get("w", ())
    ] or [(each["word"], each["start_sec"], each["end_sec"]) for each in found["words"]]
    return [
        TranscriptWord(text, round(1000 * start), round(1000 * end), 0.9, None)
        for text, start, end in timed
        if text != "<sil>"
    ]


def errors_ms(
    recording: str, truth: str, language: str, model: WordAligner, store: FolderStore
) -> Iterator[tuple[int, int]]:
    """How far the start and the end of each corrected word are from the truth."""
    samples, words = load(SHARED_MEDIA / "speech" / f"{recording}.wav"), truth_of(truth)
    with store.writer(recording) as stream:
        write_flac(stream, [samples])
    track = AudioTrack(0, recording, recording, len(samples) / 16_000)
    texts, media_ms = [word.text for word in words], round(len(samples) / 16)

    def aligned(segment: TranscriptSegment) -> TranscriptSegment:
        return align_segment(segment, (0, media_ms), language, track, model, store)

    def edited(segment: TranscriptSegment, texts: list[str]) -> TranscriptSegment:
        change = Edit((SegmentChange(0, " ".join(texts)),))
        [splice] = splices_of(change, [segment], [], media_ms)
        return aligned(splice.segments[0])

    # Other words have the times that a machine gives them, not true ones: those would be a help.
    whole = TranscriptSegment(0, 0, media_ms, " ".join(texts), None, 0.9, tuple(words))
    whole = aligned(replace(whole, estimated_words=tuple(range(len(words)))))
    for at, word in enumerate(words):
        wrong = edited(whole, [*texts[:at], "banana", *texts[at + 1 :]])
        right = edited(wrong, texts)
        others = [[*it.words[:at], *it.words[at + 1 :]] for it in (whole, right)]
        if right.estimated_words or others[0] != others[1]:
            raise AssertionError(f"{recording}: other words than {word.text} changed")
        found = right.words[at]
        yield found.start_ms - word.start_ms, found.end_ms - word.end_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="packaged")
    profile = parser.parse_args().profile
    model, began, off = LocalModels(profile).get(ALIGN), time.process_time(), dict[str, list[int]]()
    with tempfile.TemporaryDirectory() as folder:
        store = FolderStore(Path(folder))
        for recording, (truth, language) in RECORDINGS.items():
            for edges in errors_ms(recording, truth, language, model, store):
                for edge, error in zip(("start", "end"), edges, strict=True):
                    off.setdefault(edge, []).append(abs(error))
    figures: dict[str, float] = {"edited": len(off["start"])}
    for edge, errors in off.items():
        figures[f"{edge}_error_ms_50"] = float(np.median(errors))
        figures[f"{edge}_error_ms_90"] = float(np.percentile(errors, 90))
    figures["processor_seconds"] = round(time.process_time() - began, 1)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
