"""Captions of a made transcript of 20,000 segments: processor seconds of each format.

    .venv/bin/python -m benchmarks.captions [--segments 20000] [--old CHECKOUT PYTHON]

English of common words, 4 to 22 a segment, a comma after every tenth; Japanese from the text of
azure-ja as a recogniser's tokens. ``--old`` names a checkout and its interpreter, which does the
same in this run. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import time
from collections.abc import Callable

from pipelines.speech.captions import to_markdown, to_srt, to_ttml, to_txt, to_vtt
from pipelines.speech.words import SegmentLimits, build_segments
from pipelines.types import Speaker, TranscriptSegment, TranscriptWord

ENGLISH = (
    "the of and to in that is was he for it with as his on be at by I this had not are but from or"
    " have an they which one you were her all she there would their we him been has when who will"
    " more no if out so said what up its about into than them can only other new some could time"
)
JAPANESE = "カ ス タ ム ス ピ ーチ には オ ーデ ィ オ を 認 識 結果 と 比較 する こと に よ って、"
SPEAKERS = [Speaker(f"speaker_{number}", f"Speaker {number + 1}", 1.0) for number in range(3)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=20_000)
    parser.add_argument("--old", nargs=2, metavar=("CHECKOUT", "PYTHON"))
    options = parser.parse_args()
    found = {"new": measured(options.segments)}
    if options.old:
        checkout, python = options.old
        program = __file__, "--segments", str(options.segments)
        done = subprocess.run(
            [python, *program], cwd=checkout, env={"PYTHONPATH": checkout}, check=True,
            capture_output=True, text=True,
        )  # fmt: skip
        found["old"] = json.loads(done.stdout.splitlines()[-1])["new"]
    print(json.dumps(found))


def measured(count: int) -> dict[str, dict[str, float]]:
    """Language -> format -> processor seconds."""
    return {
        "English": seconds_of(transcript(count, ENGLISH)),
        "Japanese": seconds_of(transcript(count, JAPANESE)),
    }


def transcript(count: int, text: str) -> tuple[TranscriptSegment, ...]:
    """About ``count`` segments, each said by the next of three people."""
    rng, words, now_ms = random.Random(1), list[TranscriptWord](), 0
    vocabulary = text.split()
    for number in range(count):
        length = rng.randint(4, 22)
        for position in range(length):
            word = rng.choice(vocabulary)
            word += "." if position == length - 1 else "," if rng.random() < 0.1 else ""
            end_ms = now_ms + rng.randint(150, 450)
            words.append(TranscriptWord(word, now_ms, end_ms, 0.9, SPEAKERS[number % 3].id))
            now_ms = end_ms + (rng.randint(0, 200) if rng.random() < 0.2 else 0)
    return build_segments(words, SegmentLimits())


def seconds_of(segments: tuple[TranscriptSegment, ...]) -> dict[str, float]:
    """Processor seconds of each format."""
    formats: dict[str, Callable[[], str]] = {
        "srt": lambda: to_srt(segments),
        "vtt": lambda: to_vtt(segments, SPEAKERS),
        "ttml": lambda: to_ttml(segments, SPEAKERS, "en"),
        "txt": lambda: to_txt(segments, SPEAKERS),
        "md": lambda: to_markdown(segments, SPEAKERS),
    }
    found = {}
    for name, write in formats.items():
        started = time.process_time()
        write()
        found[name] = round(time.process_time() - started, 3)
    return found


if __name__ == "__main__":
    main()
