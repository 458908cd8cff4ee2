"""Camera RAW for services of the tests: files, and a command that stands for a decoder."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from tests.pipelines.ingest.format_samples import STANDARD, write_sample

DECODED_SECONDS = 2.0
_DECODER = """
import shutil, sys
source, target, film = sys.argv[1:]
if b"broken" in open(source, "rb").read():
    sys.exit(3)
shutil.copyfile(film, target)
"""
RAW = {
    "clip.r3d": (b"\0\0\0\x40RED2" + bytes(5000), None),
    "broken.R3D": (b"broken", "INGEST_FAILED"),
}
"""Files, and the code with which their jobs fail; None completes."""


def decoders(folder: Path) -> str:
    """The setting VAS_RAW_DECODERS: a program in ``folder`` that makes a film of any RED file."""
    film = write_sample(folder, STANDARD[0])
    (folder / "decoder.py").write_text(_DECODER)
    words = [sys.executable, str(folder / "decoder.py"), "{input}", "{output}", str(film)]
    return json.dumps({"r3d": shlex.join(words)})
