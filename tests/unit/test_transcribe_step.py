"""Words of a chunk on the track: inside its regions of speech, nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.contracts import ChunkTranscript, Word
from pipelines.speech.regions import SHARDS, Chunk, Shard
from pipelines.speech.transcribe import (
    WORDS,
    ChunkWords,
    _on_track,
    is_doubtful,
)
from storage.objects.folder import FolderStore

CHUNK = Chunk(500, 1000, speech=((500, 600), (700, 1000)))
"""10 to 20 s of the track; speech from 10 to 12 s and from 14 to 20 s."""


@pytest.mark.parametrize(
    ("start", "end", "kept"),
    [
        pytest.param(0.5, 1.0, (10.5, 11.0), id="inside"),
        pytest.param(1.5, 2.5, (11.5, 12.0), id="runs into a pause"),
        pytest.param(1.9, 4.6, (14.0, 14.6), id="across a pause: where it has most"),
        pytest.param(2.5, 3.5, None, id="in a pause"),
        pytest.param(9.5, 11.0, (19.5, 20.0), id="beyond the chunk"),
    ],
)
def test_words_are_cut_to_the_regions_of_speech(
    start: float, end: float, kept: tuple[float, float] | None
) -> None:
    found = _on_track(CHUNK, ChunkTranscript((Word("word", start, end, 0.9),), "en", 0.8))
    times = [(word.start_seconds, word.end_seconds) for word in found.words]
    assert times == ([] if kept is None else [pytest.approx(kept)])
    assert (found.language, found.language_probability) == ("en", 0.8)


@pytest.mark.parametrize(
    ("language", "probability", "doubtful"),
    [
        ("de", 0.3, True),
        ("de", 0.5, False),
        ("de", None, False),
        ("en", 0.3, False),
    ],
)
def test_a_language_is_doubtful_if_improbable_and_not_that_of_the_track(
    language: str, probability: float | None, doubtful: bool
) -> None:
    assert is_doubtful(ChunkWords(language, (), probability), "en") is doubtful


def test_shards_and_words_survive_their_storage(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    shards = (Shard("shard.flac", (CHUNK, Chunk(2000, 2100))),)
    SHARDS.save(store, "shards", shards)
    assert SHARDS.load(store, "shards") == shards
    words = (_on_track(CHUNK, ChunkTranscript((Word("word", 0.5, 1.0, 0.9),), "en", 0.8)),)
    WORDS.save(store, "words", words)
    assert WORDS.load(store, "words") == words
