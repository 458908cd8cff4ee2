"""English of speech in other languages, beside plain faster-whisper's `translate` in one run.

    .venv/bin/python -m benchmarks.translation

Ours: the transcript's passages by their sound, as the service translates them, with the packaged
weights. Plain: WhisperModel.transcribe(task="translate") with its defaults on the whole file, the
same weights. chrF (Popović 2015) by sacrebleu against translations by hand, written before the
first run. Seconds are processor seconds of the translation alone. Each word of ours must lie in the
segment that it renders. The last line is JSON. Needs the real media beside the project.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import sacrebleu

from benchmarks.speech.material import load
from benchmarks.speech.plain_loop import put_track, transcribe_in_a_loop
from benchmarks.transcript import plain_model
from models.provider import LocalModels
from pipelines.execution.chain import Workspace
from pipelines.speech.pipeline import TranscriptConfig
from pipelines.speech.texts import passages_of, translate_passages
from storage.objects.folder import FolderStore
from tests.places import SHARED_MEDIA

REFERENCES = {
    "mixed-speech/fleurs-de.wav": "That did not make sense to me; it was certainly not fair.",
    "speech/azure-de.wav": "As soon as the test is completed, which is shown by the status changing"
    " to successful, you get a word error rate for both models in your test. Click on the name of"
    " the test to display the page with the test details. This detail page lists all utterances in"
    " your dataset and shows the recognition results of the two models beside the transcription"
    " from the submitted dataset. To make it easier to examine the comparison, you can switch"
    " various kinds of errors such as insertions, deletions and substitutions on or off.",
    "speech/leopard-test_es.wav": "The sands are whitish, of medium grain, and few go there.",
    "speech/leopard-test_fr.wav": "Under the Consulate he became conservator of waters and forests"
    " and general councillor.",
    "speech/leopard-test_de.wav": "The room behind this portal was used as a mortuary.",
    "speech/azure-ja.wav": "Custom Speech has a tool to inspect a model's recognition quality"
    " visually by comparing audio data with the corresponding recognition results. From the Custom"
    " Speech portal you can play uploaded audio and judge whether the provided recognition result"
    " is correct. With this tool you can quickly inspect the quality of Microsoft's baseline"
    " speech-to-text model or of a trained custom model without transcribing audio data.",
    "mixed-speech/zh-meeting-farfield.wav": "Good, first let us talk about the sales problem that"
    " the manager has just finished talking about, then we talk about the problem of our mall."
    " First, our mall's business in the first half of the year: each department reports first, on"
    " performance.",
}


def main() -> None:
    """Measure and print."""
    texts: dict[str, list[str]] = {"ours": [], "plain": []}
    spent = dict.fromkeys(texts, 0.0)
    models = LocalModels()
    for name, reference in REFERENCES.items():
        samples = load(SHARED_MEDIA / name, None)
        with tempfile.TemporaryDirectory() as folder:
            store = FolderStore(Path(folder))
            track = put_track(store, samples)
            workspace = Workspace(store, "work")
            found = transcribe_in_a_loop(track, workspace, models, TranscriptConfig())
            began = time.process_time()
            passages = [*passages_of(found.segments, found.language)]
            segments = translate_passages(passages, "en", track, models, store)
            spent["ours"] += time.process_time() - began
        for segment in segments:
            for word in segment.words:
                assert segment.start_ms <= word.start_ms <= word.end_ms <= segment.end_ms
        texts["ours"].append(" ".join(segment.text for segment in segments))
        began = time.process_time()
        answer, _ = plain_model().transcribe(samples, task="translate")
        texts["plain"].append(" ".join(segment.text.strip() for segment in answer))
        spent["plain"] += time.process_time() - began
        scores = {
            side: round(sacrebleu.sentence_chrf(found[-1], [reference]).score, 1)
            for side, found in texts.items()
        }
        row = {"file": name, "chrF": scores, **{side: found[-1] for side, found in texts.items()}}
        print(json.dumps(row, ensure_ascii=False), flush=True)
    totals = {
        side: {
            "chrF": round(sacrebleu.corpus_chrf(found, [[*REFERENCES.values()]]).score, 1),
            "processorSeconds": round(spent[side], 1),
        }
        for side, found in texts.items()
    }
    print(json.dumps(totals))


if __name__ == "__main__":
    main()
