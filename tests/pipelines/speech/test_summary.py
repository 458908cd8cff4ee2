"""Texts made of transcripts: summaries, translations, chapters."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.speech.plain_loop import put_track
from models.contracts import SAMPLE_RATE_HZ, AudioChunk, Excerpt, SourceText, SummarySentence
from models.provider import LocalModels, ModelProvider
from models.tasks import SUMMARIZE, TRANSLATE_SPEECH, TRANSLATE_TEXT, Contract, Task
from pipelines.across.chapters import SHORTEST_MS, find_chapters
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.speech.texts import (
    SummaryConfig,
    TranslationError,
    passages_of,
    summarize,
    translate_passages,
)
from pipelines.stages import StageRunner
from pipelines.types import (
    AudioTrack,
    PipelineWarning,
    StageCode,
    StageError,
    StageStoppedError,
    TimedSentence,
    TranscriptSegment,
    WarningCode,
)
from serve_app.work.stage_work import StageWork
from storage.objects import ObjectStoreUnavailableError
from storage.objects.folder import FolderStore
from tests.examples import examples
from tests.pipelines.speech.talks import joined_talks
from tests.pipelines.speech.test_edits import segment as timed_segment
from tests.tables import every

SMALL = SummaryConfig(models="first", window_bytes=100, line_bytes=50, max_sentences=3,
                      window_sentences=2, max_windows=20)  # fmt: skip


@dataclass
class FirstLines:
    """Sums up by repeating the first lines; counts what it is asked."""

    asked: list[Excerpt] = field(default_factory=list)
    error: Exception | None = None

    def find(self, task: Task[Contract]) -> Contract | None:
        assert task is SUMMARIZE
        return cast("Contract", self)

    def summarize(self, excerpts: Sequence[Excerpt]) -> list[tuple[SummarySentence, ...]]:
        self.asked += excerpts
        if self.error is not None:
            raise self.error
        firsts = [enumerate(each.lines[: each.max_sentences]) for each in excerpts]
        return [tuple(SummarySentence(*numbered) for numbered in first) for first in firsts]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(FolderStore(tmp_path), "jobs/x/work")


def said(count: int, text: str = "This is sentence number {}.") -> list[TimedSentence]:
    return [TimedSentence(text.format(n), 1000 * n, 1000 * n + 900) for n in range(count)]


def made(
    lines: Sequence[TimedSentence], workspace: Workspace, models: Any, config: SummaryConfig = SMALL
) -> tuple[TimedSentence, ...]:
    return summarize(lines, workspace=workspace, models=models, control=FreeRun(), config=config,
                     mapper=map_here)  # fmt: skip


@every("count", [0, 1, 2, 10, 200, 2000])
def test_a_summary_of_any_length_is_short_and_rests_on_what_was_said(
    workspace: Workspace, count: int
) -> None:
    models = FirstLines()
    lines = said(count)
    found = made(lines, workspace, models)
    assert len(found) == min(count, SMALL.max_sentences)
    assert set(found) <= set(lines)
    for excerpt in models.asked:
        assert sum(len(line.encode()) for line in excerpt.lines) <= SMALL.window_bytes
        assert 1 <= excerpt.max_sentences <= min(SMALL.max_sentences, len(excerpt.lines))
    assert len(models.asked) <= 4 * SMALL.max_windows


def test_windows_of_a_long_transcript_are_spread_over_it(workspace: Workspace) -> None:
    models = FirstLines()
    made(said(2000), workspace, models)
    numbers = [int(each.lines[0].split()[-1].rstrip(".")) for each in models.asked[:20]]
    assert numbers[0] == 0
    assert numbers[-1] >= 1850
    assert {after - before for before, after in pairwise(numbers)} == {
        99,
        102,
    }


def test_long_lines_are_cut_between_characters_and_empty_ones_left_out(
    workspace: Workspace,
) -> None:
    models = FirstLines()
    made([TimedSentence("  ", 0, 1), TimedSentence("音" * 90 + "\n楽", 1, 2)], workspace, models)
    assert [each.lines for each in models.asked] == [("音" * 16,)]


def test_what_was_made_is_used_again_by_the_same_model_only(workspace: Workspace) -> None:
    models = FirstLines()
    first = made(said(10), workspace, models)
    asked = len(models.asked)
    assert made(said(10), workspace, models) == first
    assert len(models.asked) == asked
    made(said(10), workspace, models, SummaryConfig(models="second"))
    assert len(models.asked) == asked + 1


def test_a_stop_is_obeyed_and_a_failure_named(workspace: Workspace) -> None:
    with pytest.raises(StageError, match="Summary failed: RuntimeError: no"):
        made(said(3), workspace, FirstLines(error=RuntimeError("no")))
    workspace.request_stop()
    with pytest.raises(StageStoppedError):
        made(said(3), workspace, FirstLines())


def test_the_packaged_profile_has_none() -> None:
    assert LocalModels().find(SUMMARIZE) is None


@dataclass
class Broken:
    """Stages whose summaries fail in turn as listed."""

    errors: list[Exception]

    def summarize(self, *_: object) -> tuple[TimedSentence, ...]:
        if self.errors:
            raise self.errors.pop(0)
        return (TimedSentence("All is well.", 1000, 2500),)


AWAY = ObjectStoreUnavailableError("away")


@pytest.mark.parametrize(
    ("errors", "made_in_the_end"),
    [([AWAY, AWAY], True), ([RuntimeError()], True), ([RuntimeError()] * 2, False),
     ([StageError(StageCode.TRANSCRIPT_FAILED, "no")], False)],
)  # fmt: skip
async def test_outages_are_waited_for_and_a_failure_is_a_warning(
    errors: list[Exception], made_in_the_end: bool
) -> None:
    runner = StageRunner("job", pauses_seconds=(0, 0))
    with ThreadPoolExecutor(1) as threads:
        nothing: Any = None
        work = StageWork(nothing, nothing, nothing, nothing, threads, FreeRun(), runner, nothing)
        stages: Any = Broken(list(errors))
        found = await work._summary(stages, [])
    if made_in_the_end:
        assert found == (TimedSentence("All is well.", 1000, 2500),)
    else:
        assert isinstance(found, PipelineWarning)
        assert found.code is WarningCode.SUMMARY_FAILED


LINES = ("las arenas son blancas de", "grano medio", "y tienen poca asistencia.", "Otra frase.")


def spoken(*lines: str, every_ms: int = 2_000) -> list[TranscriptSegment]:
    made = (timed_segment(at, line, every_ms * at, "speaker_0") for at, line in enumerate(lines))
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


BREAD = "Knead the dough and let the dough rise in the warm oven until the bread is brown"
STARS = "The telescope shows Saturn with its rings and a moon beside the planet tonight"
JAPANESE = (
    "パンの生地をこねて生地を温かい場所で発酵させます",
    "望遠鏡で土星の輪を見ると衛星が土星の横に見えます",
)


def segment(index: int, start_ms: int, text: str, speaker: str | None = None) -> TranscriptSegment:
    return TranscriptSegment(index, start_ms, start_ms + 4_500, text, speaker, 0.9, ())


def talk(*texts: str, each: int = 8, speaker: str | None = None) -> list[TranscriptSegment]:
    said = [text for text in texts for _ in range(each)]
    return [segment(n, n * 5_000, text, speaker) for n, text in enumerate(said)]


@pytest.mark.parametrize("texts", [(BREAD, STARS), JAPANESE], ids=["English", "Japanese"])
def test_a_shift_of_subject_begins_a_chapter(texts: tuple[str, str]) -> None:
    chapters = find_chapters(talk(*texts), duration_ms=80_000)
    assert [(each.start_ms, each.end_ms) for each in chapters] == [
        (0, 39_750), (39_750, 80_000)
    ]  # fmt: skip


def test_titles_are_phrases_that_were_said_and_tell_the_chapters_apart() -> None:
    first, second = find_chapters(talk(BREAD, STARS), duration_ms=80_000)
    assert first.title.lower() in BREAD.lower()
    assert second.title.lower() in STARS.lower()


def test_one_subject_is_one_chapter() -> None:
    [only] = find_chapters(talk(BREAD, each=20), duration_ms=100_000)
    assert (only.index, only.start_ms, only.end_ms) == (0, 0, 100_000)


@pytest.mark.parametrize("segments", [[], [segment(0, 0, "  ")]], ids=["none", "white space"])
def test_nothing_said_has_no_chapters(segments: list[TranscriptSegment]) -> None:
    assert find_chapters(segments, duration_ms=5_000) == []


@pytest.mark.parametrize(
    ("cut_ms", "expected"), [(41_200, 41_200), (38_000, 38_000), (45_000, 39_750)]
)
def test_a_chapter_begins_at_the_cut_beside_it(cut_ms: int, expected: int) -> None:
    chapters = find_chapters(talk(BREAD, STARS), duration_ms=80_000, cuts_ms=[0, cut_ms])
    assert chapters[1].start_ms == expected


def test_two_who_take_turns_are_no_shift_of_subject() -> None:
    said = [segment(n, n * 5_000, BREAD, f"speaker_{n // 4 % 2}") for n in range(40)]
    assert len(find_chapters(said, duration_ms=200_000)) == 1


def test_chapters_of_joined_talks_are_found() -> None:
    """Most of the boundaries, within five seconds."""
    right = total = 0
    for seed in range(6):
        segments, truth, duration_ms = joined_talks(random.Random(seed))
        starts = [each.start_ms for each in find_chapters(segments, duration_ms=duration_ms)]
        right += sum(any(abs(at - start) <= 5_000 for start in starts) for at in truth)
        total += len(truth)
    assert right >= 0.8 * total


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=40), st.integers(0, 9_000), st.sampled_from("abc")),
             max_size=40),
    st.lists(st.integers(0, 400_000), max_size=10),
)  # fmt: skip
def test_chapters_cover_the_media_in_order_and_are_not_too_short(
    said: list[tuple[str, int, str]], cuts: list[int]
) -> None:
    segments, time_ms = [], 0
    for number, (text, pause_ms, speaker) in enumerate(said):
        segments.append(segment(number, time_ms, text, speaker))
        time_ms += 4_500 + pause_ms
    chapters = find_chapters(segments, duration_ms=time_ms + 10, cuts_ms=sorted(cuts))
    assert bool(chapters) == any(text.strip() for text, *_ in said)
    assert [each.index for each in chapters] == list(range(len(chapters)))
    for before, after in pairwise(chapters):
        assert before.end_ms == after.start_ms > before.start_ms
        assert before.end_ms - before.start_ms >= SHORTEST_MS - 10_000
    if chapters:
        assert (chapters[0].start_ms, chapters[-1].end_ms) == (0, time_ms + 10)
        assert all(each.title for each in chapters)


def test_vectors_tell_subjects_apart_where_words_do_not() -> None:
    """And are used only where every segment has one."""
    said = [segment(n, n * 5_000, f"unique{n} sentence{n} number{n}") for n in range(16)]
    axes = np.eye(2, dtype=np.float32)
    vectors = {each.text: axes[number // 8] for number, each in enumerate(said)}
    assert len(find_chapters(said, duration_ms=80_000)) == 1
    found = find_chapters(said, duration_ms=80_000, vectors=vectors)
    assert [each.start_ms for each in found] == [0, 39_750]
    del vectors[said[3].text]
    assert len(find_chapters(said, duration_ms=80_000, vectors=vectors)) == 1
