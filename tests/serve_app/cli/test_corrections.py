"""What people corrected comes back as pairs of sound and text, and as key terms."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.speech.material import load
from serve_app.cli.corrections import new_words
from serve_app.cli.output import UsageError
from tests.places import DEMO
from tests.serve_app.cli.test_job_commands import vas
from tests.serve_app.published_jobs import complete, created
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_transcript_edits import edit, said


def test_corrected_sentences_are_exported_with_their_sound(
    api: RunningApi, customer: Customer, tmp_path: Path
) -> None:
    job = created(api, customer)
    complete(api, job, [said()], [])
    with api.context.objects.writer(f"jobs/{job}/source/clip-000") as stream:
        stream.write(DEMO.read_bytes())
    nothing = vas(api, customer, "corrections", "export", job, "--out", str(tmp_path / "none"))
    assert isinstance(nothing.exception, UsageError), nothing.output
    assert not (tmp_path / "none").exists()
    lines = ["Good morning to Zorvane.", "Today it snows."]
    edit(api, customer, job, segments=[{"index": n, "text": it} for n, it in enumerate(lines)])
    out = tmp_path / "pairs"
    done = vas(api, customer, "corrections", "export", job, "--out", str(out))
    assert done.exit_code == 0, done.output
    truth = json.loads((out / "truth.json").read_text())
    assert [each["text"] for each in truth["trained.ogg"]["sentences"]] == lines
    assert truth["held_back.ogg"]["sentences"] == truth["other_voice.ogg"]["sentences"] == []
    assert (out / "keyterms.txt").read_text() == "Zorvane\n"
    samples, source = load(out / "trained.ogg"), load(DEMO)
    for segment, sentence in zip(said_spans(), truth["trained.ogg"]["sentences"], strict=True):
        start, end = round(16_000 * (segment[0] - 0.2)), sentence["end_ms"] - sentence["start_ms"]
        found = samples[16 * sentence["start_ms"] : 16 * sentence["end_ms"]]
        there = source[start : start + 16 * end]
        assert abs(len(found) - len(there)) < 32
        assert abs(float((found**2).sum()) - float((there**2).sum())) < 0.05 * float(
            (there**2).sum()
        )
    held = {name for name in truth if (out / name).is_file()}
    assert held == {"trained.ogg", "held_back.ogg", "other_voice.ogg"}


def test_a_redacted_job_is_left_out(api: RunningApi, customer: Customer, tmp_path: Path) -> None:
    job = created(api, customer, redact=["name"])
    complete(api, job, [said()], [])
    done = vas(api, customer, "corrections", "export", job, "--out", str(tmp_path / "none"))
    assert isinstance(done.exception, UsageError), done.output
    assert f"{job} is left out: its personal data is hidden." in done.output
    assert not (tmp_path / "none").exists()


def said_spans() -> list[tuple[float, float]]:
    """Of the first two lines, in seconds."""
    return [(1.0, 3.4), (6.0, 7.4)]


def test_key_terms_are_names_and_what_comes_again() -> None:
    machine, present = {"text": "we sell soar vein"}, {"text": "We sell Zorvane, and kefir; kefir!"}
    assert new_words(machine, present) == ["Zorvane", "kefir", "kefir"]
