"""``vas corrections export``: what people corrected, as pairs of sound and text to train on."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from serve_app.cli.library import KeyOption, UrlOption
from serve_app.cli.output import UsageError, base_address, console, usable_key
from serve_app.client.api import ApiClient, JsonObject

corrections_app = typer.Typer(no_args_is_help=True, help="What people corrected.")

_AROUND_SECONDS = 0.2
_LONGEST_SECONDS = 29.0
"""Whisper's window, less what is around a sentence."""
_RATE_HZ = 16_000
_HELD_BACK = 5
"""Every so many-th sentence is kept out of the training, to measure it on."""
_MOST_TERMS = 100
"""Of a job."""
_WORD = re.compile(r"\w[\w'’-]*\w|\w")

Samples = Any
Sentence = tuple[Samples, str]


@corrections_app.callback()
def _group() -> None:
    """What people corrected."""


@corrections_app.command("export")
def corrections_export(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB...", help="The jobs' ids.")],
    url: UrlOption,
    key: KeyOption,
    out: Annotated[Path, typer.Option(help="The folder to write; made if it is missing.")],
    track: Annotated[int | None, typer.Option(help="Of multi-track jobs.")] = None,
) -> None:
    """Write corrected sentences with their sound, and key terms that the machine never wrote.

    OUT gets truth.json, trained.ogg, held_back.ogg (every fifth sentence) and an empty
    other_voice.ogg, as notebooks/04_fine_tune_whisper.ipynb reads them, and keyterms.txt. Jobs that
    are redacted are left out.
    """
    sentences, terms = list[Sentence](), Counter[str]()
    with ApiClient(base_address(url), usable_key(key)) as client:
        for job_id in job_ids:
            if "redaction" in client.get_job(job_id):
                console.print(f"{job_id} is left out: its personal data is hidden.")
                continue
            machine = client.get_transcript_at(job_id, 0, track)
            present = client.get_transcript(job_id, track=track)
            terms.update(new_words(machine, present))
            for segment in corrected(machine, present):
                sentences.append((_sound(client, job_id, segment, track or 0), segment["text"]))
    if not sentences:
        raise UsageError("Nothing was corrected in these transcripts.")
    out.mkdir(parents=True, exist_ok=True)
    sets = {
        "trained.ogg": [it for at, it in enumerate(sentences) if (at + 1) % _HELD_BACK],
        "held_back.ogg": sentences[_HELD_BACK - 1 :: _HELD_BACK],
        "other_voice.ogg": [],
    }
    truth = {name: {"sentences": _write(out / name, pairs)} for name, pairs in sets.items()}
    (out / "truth.json").write_text(json.dumps(truth, ensure_ascii=False, indent=1) + "\n")
    listed = [term for term, _ in terms.most_common(_MOST_TERMS)]
    (out / "keyterms.txt").write_text("".join(f"{term}\n" for term in listed))
    console.print(f"{len(sentences)} sentences and {len(listed)} key terms in {out}")


def corrected(machine: JsonObject, present: JsonObject) -> list[JsonObject]:
    """Segments whose text the machine did not write, short enough to train on."""
    written = {segment["text"] for segment in machine["segments"]}
    return [
        segment
        for segment in present["segments"]
        if segment["text"] not in written
        and segment["endTime"] - segment["startTime"] <= _LONGEST_SECONDS
    ]


def new_words(machine: JsonObject, present: JsonObject) -> list[str]:
    """Words, each time that they are spoken, that the machine never wrote; names and terms mostly,
    as those that stand in small letters and once only are left out."""
    known = {word.casefold() for word in _WORD.findall(machine["text"])}
    found = [word for word in _WORD.findall(present["text"]) if word.casefold() not in known]
    times = Counter(found)
    return [word for word in found if word != word.lower() or times[word] > 1]


def _sound(client: ApiClient, job_id: str, segment: JsonObject, track: int) -> Samples:
    """A segment's samples with a little around them. Raises RequestFailedError where the media is
    not kept."""
    import av
    import numpy as np

    start = max(0.0, segment["startTime"] - _AROUND_SECONDS)
    end = segment["endTime"] + _AROUND_SECONDS
    content, began = client.get_clip(job_id, start, segment["endTime"])
    resampler = av.AudioResampler(format="flt", layout="mono", rate=_RATE_HZ)
    with av.open(io.BytesIO(content)) as container:
        stream = container.streams.audio[min(track, len(container.streams.audio) - 1)]
        frames = list(container.decode(stream))
        first = frames[0].time or 0.0
        blocks = [
            out.to_ndarray()[0] for each in (*frames, None) for out in resampler.resample(each)
        ]
    samples = np.concatenate(blocks)
    at = round((start - began - first) * _RATE_HZ)
    return samples[max(0, at) : max(0, at) + round((end - start) * _RATE_HZ)].astype(np.float32)


def _write(path: Path, pairs: list[Sentence]) -> list[JsonObject]:
    """The sentences end to end in a file; when each is spoken, and its text."""
    import numpy as np

    from pipelines.media.audio import write_flac

    places, at = list[JsonObject](), 0
    for samples, text in pairs:
        places.append({"start_ms": at // 16, "end_ms": (at + len(samples)) // 16, "text": text})
        at += len(samples)
    with path.open("wb") as stream:
        write_flac(stream, [it for it, _ in pairs] or [np.zeros(_RATE_HZ, np.float32)], "ogg")
    return places
