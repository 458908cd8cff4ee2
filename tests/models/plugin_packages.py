"""Packages of plug-ins in a folder, as pip lays them out."""

from __future__ import annotations

from pathlib import Path

from tests.places import PROJECT

EXAMPLES = PROJECT / "docs" / "plugins"

TROUBLE = '''
import math, os, pathlib, sys, time
import numpy as np
from models.backends import Backend
from models.contracts import SPEECH_FRAME_SAMPLES, ChunkTranscript, Word
from models.tasks import DETECT_SPEECH, TRANSCRIBE

class Model:
    """Does what a file says: how it misbehaves, and for which task."""
    def __init__(self, row, models_dir):
        self.act("open")

    def act(self, task):
        wanted, _, what = pathlib.Path(os.environ["TROUBLE"]).read_text().partition(" ")
        if wanted != task:
            return ""
        if what == "raises":
            raise ValueError("no such luck\\nand more")
        if what == "hangs":
            time.sleep(600)
        if what == "holds":
            math.factorial(10**7)  # in C, which lets no other thread run
        if what == "exits":
            sys.exit(3)
        if what == "dies":
            os._exit(7)
        return what

    def find_speech(self, samples):
        what = self.act("detect_speech")
        frames = -(-len(samples) // SPEECH_FRAME_SAMPLES)
        if what == "strays":
            return np.full(frames, np.nan, np.float32)
        return np.full(frames + (what == "miscounts"), 0.9, np.float32)

    def transcribe(self, chunks):
        what = self.act("transcribe")
        if what == "miscounts":
            return []
        if what == "types":
            return [None for chunk in chunks]
        at = 1e4 if what == "strays" else 0.0
        words = (Word("hello", at, at + 0.1, 0.5),)
        return [ChunkTranscript(words if len(c.samples) > 1600 else (), "en") for c in chunks]

ROWS = {task: Backend("trouble:Model", {}, call_seconds=CALL_SECONDS)
        for task in (DETECT_SPEECH, TRANSCRIBE)}
def make(): return {task.name: row for task, row in ROWS.items()}
'''


def trouble(call_seconds: float) -> str:
    return TROUBLE.replace("CALL_SECONDS", str(call_seconds))


def write_plugin(folder: Path, name: str, source: str, place: str = "ROWS", of: str = "") -> None:
    """A distribution of one module, ``name``, with an entry point; ``of`` another's module."""
    info = folder / f"{name}_dist-1.2.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}-dist\nVersion: 1.2\n"
    )
    info.joinpath("entry_points.txt").write_text(f"[vas.models]\n{of or name} = {name}:{place}\n")
    (folder / f"{name}.py").write_text(source)
