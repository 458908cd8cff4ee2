"""PocketSphinx, with the English models that its package carries, transcribes speech."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from models.backends import Backend
from models.contracts import SAMPLE_RATE_HZ, AudioChunk, ChunkTranscript, Word
from models.tasks import TRANSCRIBE
from models.weights import Carrier, PackagedWeights, WeightFile

_FILES = {
    "en-us/mdef": "2360f9a86889c1cfee8bd618a0269387911e5fb2920a594f506b18b8c79683b0",
    "en-us/means": "832019e32cac12eb318964f96f469034acb12d0348eeddc3831831a100cb4dd4",
    "en-us/sendump": "8c9564c0d5bef69ca9d9bf1014abe162f071644cf02cf1fa8a483c3dc165a7a8",
    "en-us/variances": "b00d696f85e96834fc10f8e5f06428d8c4db6bffdbe5845b6f69bf6efbc48fa5",
    "en-us.lm.bin": "db21d0642286677699e6dbc859d2e5395570222361999387ce60f6e1d01995d6",
    "cmudict-en-us.dict": "20b5c293e1f311fb375fe067e500ec5636f4fc7af5594967263696def9b23bfe",
}
_CARRIED = [
    WeightFile(name, digest, (Carrier("pocketsphinx", f"pocketsphinx/model/en-us/{name}"),))
    for name, digest in _FILES.items()
]
WEIGHTS = PackagedWeights("sphinx-en-us", "CMU Sphinx en-us 5.1", "BSD-2-Clause", tuple(_CARRIED))
ROWS = {TRANSCRIBE: Backend("vas_plugin_sphinx:Sphinx", {"model": WEIGHTS}, languages="English")}


class Sphinx:
    """A ``models.tasks.Transcriber``."""

    def __init__(self, row: Backend, models_dir: Path | None) -> None:
        # What takes long to import is imported here, in the process that works with it.
        from pocketsphinx import Decoder

        found = {name: str(path) for name, path in row.packaged().paths(models_dir).items()}
        files = {"lm": found["en-us.lm.bin"], "dict": found["cmudict-en-us.dict"]}
        files["hmm"] = str(Path(found["en-us/mdef"]).parent)
        self._decoder = Decoder(**files, samprate=SAMPLE_RATE_HZ, loglevel="FATAL")

    def transcribe(self, chunks: Sequence[AudioChunk]) -> list[ChunkTranscript]:
        """Return the transcript of each chunk."""
        return [self._one(chunk) for chunk in chunks]

    def _one(self, chunk: AudioChunk) -> ChunkTranscript:
        sound = (np.clip(chunk.samples, -1, 1) * 32767).astype(np.int16)
        words: list[Word] = []
        if chunk.has_words and len(sound) > SAMPLE_RATE_HZ // 10:
            self._decoder.start_utt()
            self._decoder.process_raw(sound.tobytes(), full_utt=True)
            self._decoder.end_utt()
            last = len(sound) / SAMPLE_RATE_HZ
            for each in self._decoder.seg():
                text = each.word.partition("(")[0]
                if text.replace("'", "").replace(".", "").isalpha():
                    begin, end = each.start_frame / 100, min(last, (each.end_frame + 1) / 100)
                    words.append(Word(text, begin, end, min(1.0, max(0.0, each.prob))))
        return ChunkTranscript(tuple(words), "en", languages=(("en", 1.0),))
