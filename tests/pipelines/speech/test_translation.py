"""Passages of a transcript, translated whole and laid over the times of their segments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.speech.plain_loop import put_track
from models.contracts import SAMPLE_RATE_HZ, AudioChunk, SourceText
from models.provider import ModelProvider
from models.tasks import TRANSLATE_SPEECH, TRANSLATE_TEXT, Task
from pipelines.speech.texts import TranslationError, passages_of, translate_passages
from pipelines.types import AudioTrack, TranscriptSegment
from storage.objects.folder import FolderStore
from tests.pipelines.speech.test_edits import segment

LINES = ("las arenas son blancas de", "grano medio", "y tienen poca asistencia.", "Otra frase.")


def spoken(*lines: str, every_ms: int = 2_000) -> list[TranscriptSegment]:
    made = (segment(at, line, every_ms * at, "speaker_0") for at, line in enumerate(lines))
    return [replace(each, language=None) for each in made]


class Dictionary(ModelProvider):
    """Translators of both kinds, each of which marks what it was given."""

    def __init__(self, *tasks: Task[Any], says: str = "") -> None:
        self._tasks, self._says = tasks, says
        self.texts: list[SourceText] = []
        self.chunks: list[AudioChunk] = []

    def find(self, task: Task[Any]) -> Any:
        return self if task in self._tasks else None

    def translate_texts(self, texts: Any) -> list[str]:
        self.texts += texts
        return [self._says or each.text.upper() for each in texts]

    def translate_speech(self, chunks: Any) -> list[str]:
        self.chunks += chunks
        return [self._says for _ in chunks]


def translated(
    segments: list[TranscriptSegment],
    models: Dictionary,
    target: str = "fr",
    track: AudioTrack | None = None,
    store: FolderStore | None = None,
) -> list[TranscriptSegment]:
    passages = [*passages_of(segments, "es")]
    return translate_passages(passages, target, track, models, store or FolderStore(Path()))


@pytest.mark.parametrize(
    ("change", "lengths"),
    [
        ({}, [3, 1]),
        ({"speaker": "speaker_1"}, [1, 1, 1, 1]),
        ({"language": "en"}, [1, 1, 1, 1]),
        ({"end_ms": 40_000}, [2, 1, 1]),
    ],
    ids=["a sentence", "another speaker", "another language", "too long"],
)
def test_a_passage_is_a_sentence_of_one_speaker_in_one_language(
    change: dict[str, Any], lengths: list[int]
) -> None:
    segments = spoken(*LINES)
    place = 2 if "end_ms" in change else 1
    segments[place] = replace(segments[place], **change)
    assert [len(each.segments) for each in passages_of(segments, "es")] == lengths


def test_a_long_pause_ends_a_passage() -> None:
    apart = spoken(*LINES, every_ms=9_000)
    assert [len(each.segments) for each in passages_of(apart, "es")] == [1, 1, 1, 1]


def test_a_translation_keeps_the_times_and_speakers_of_the_segments() -> None:
    before, models = spoken(*LINES), Dictionary(TRANSLATE_TEXT)
    after = translated(before, models)
    assert [each.text for each in models.texts] == [" ".join(LINES[:3]), LINES[3]]
    assert [each.text for each in after] == [line.upper() for line in LINES]
    for was, now in zip(before, after, strict=True):
        assert (now.start_ms, now.end_ms, now.speaker) == (was.start_ms, was.end_ms, was.speaker)
        assert all(was.start_ms <= word.start_ms < word.end_ms <= was.end_ms for word in now.words)
        assert now.estimated_words == (*range(len(now.words)),)


def test_few_words_leave_segments_out_and_none_leaves_the_passage_as_it_was() -> None:
    one = translated(spoken(*LINES[:3]), Dictionary(TRANSLATE_TEXT, says="Sable."))
    assert [(each.text, each.start_ms) for each in one] == [("Sable.", 2_000)]
    silent = Dictionary(TRANSLATE_SPEECH)
    assert translated(spoken(*LINES), silent, "es") == spoken(*LINES), "it is in the language"


def test_text_without_spaces_is_divided_too() -> None:
    after = translated(
        spoken(*LINES[:3]), Dictionary(TRANSLATE_TEXT, says="砂は白く粒は中くらいです。"), "ja"
    )
    assert "".join(each.text for each in after) == "砂は白く粒は中くらいです。"
    assert len(after) == 3


def test_english_is_made_of_the_sound_where_that_is_kept(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    track = put_track(store, np.zeros(20 * SAMPLE_RATE_HZ, np.float32))
    models = Dictionary(TRANSLATE_SPEECH, TRANSLATE_TEXT, says="The sands are white.")
    segments = spoken(*LINES)
    after = translated(segments, models, "en-GB", track, store)
    assert " ".join(each.text for each in after) == "The sands are white. The sands are white."
    whole = (segments[2].end_ms - segments[0].start_ms) / 1000
    seconds = len(models.chunks[0].samples) / SAMPLE_RATE_HZ
    assert seconds == pytest.approx(whole + 0.5, abs=0.01), "nothing before the start"
    assert {each.language for each in models.chunks} == {"es"}
    assert models.texts == []
    store.delete(track.key)
    translated(segments, models, "en", track, store)
    assert len(models.texts) == 2


@pytest.mark.parametrize(
    ("tasks", "target", "message"),
    [((TRANSLATE_SPEECH,), "fr", "no model"), ((TRANSLATE_SPEECH,), "en", "not kept")],
)
def test_what_cannot_be_translated_is_refused_in_a_sentence(
    tasks: tuple[Task[Any], ...], target: str, message: str
) -> None:
    with pytest.raises(TranslationError, match=message):
        translated(spoken(*LINES), Dictionary(*tasks), target)
