"""Words of chunks on the track, each part of a chunk in its own language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from benchmarks.speech.material import load
from benchmarks.speech.plain_loop import transcribe_samples
from models.contracts import SAMPLE_RATE_HZ, AudioChunk, ChunkTranscript, Samples, Word
from models.profiles import digest_of
from models.provider import LocalModels
from models.tasks import TRANSCRIBE
from pipelines.codec import encode
from pipelines.speech.languages import (
    LanguageChoice,
    Ranked,
    SpokenPart,
    changes_in,
    elected,
    next_windows,
    rivals,
)
from pipelines.speech.pipeline import (
    TranscriptConfig,
    WordCalibration,
    calibrated,
    word_calibrations,
)
from pipelines.speech.regions import SHARDS, Chunk, Shard
from pipelines.speech.transcribe import (
    MOST_UNCOVERED,
    WORDS,
    ChunkDecoder,
    ChunkWords,
    filled,
    founded,
    is_invented,
    uncovered,
    without_overlaps,
)
from pipelines.speech.words import TrackWord
from pipelines.types import TranscriptResult
from storage.objects.folder import FolderStore
from tests.pipelines.speech.test_edits import segment
from tests.places import PROJECT
from tests.tables import every

CHUNK = Chunk(500, 1000, speech=((500, 600), (700, 1000)))
"""10 to 20 s of the track; speech from 10 to 12 s and from 14 to 20 s."""


class Scripted:
    """A transcriber of a word a second; a sample's value says its language."""

    VALUES = ((0.1, "en"), (0.2, "fr"), (0.3, "cy"))

    def __init__(self, fits: dict[str, float] | None = None, words: Sequence[Word] = ()) -> None:
        self.fits = {"en": -0.2, "fr": -0.2, "cy": -0.9} | (fits or {})
        self.words = words
        self.calls = 0

    def transcribe(self, chunks: Sequence[AudioChunk]) -> list[ChunkTranscript]:
        self.calls += sum(chunk.has_words for chunk in chunks)
        return [self.answer(chunk) for chunk in chunks]

    def answer(self, chunk: AudioChunk) -> ChunkTranscript:
        spoken = chunk.samples[chunk.samples > 0]
        shares = {name: float(np.mean(np.isclose(spoken, at))) for at, name in self.VALUES}
        ranked = tuple(sorted(shares.items(), key=lambda pair: -pair[1]))
        if not chunk.has_words:
            return ChunkTranscript((), None, languages=ranked)
        seconds = len(chunk.samples) / SAMPLE_RATE_HZ
        language, probability = ranked[0]
        words = self.words or [
            Word(language, at, at + 0.9, 0.9) for at in np.arange(0.0, max(0.1, seconds - 0.9))
        ]
        # A language that is written in another one fits worse.
        fit = self.fits[language] - 2 * (1 - probability)
        return ChunkTranscript(tuple(words), language, probability, fit, ranked)


def spoken(*parts: tuple[str, float], pause_seconds: float = 0.3) -> Samples:
    """So many seconds of each language, with pauses between."""
    values = {name: value for value, name in Scripted.VALUES}
    pause = np.zeros(round(pause_seconds * SAMPLE_RATE_HZ), np.float32)
    pieces = [
        piece
        for name, seconds in parts
        for piece in (np.full(round(seconds * SAMPLE_RATE_HZ), values[name], np.float32), pause)
    ]
    return np.concatenate(pieces[:-1])


def decoded(samples: Samples, transcriber: Scripted) -> tuple[SpokenPart, ...]:
    chunk = Chunk(0, -(-len(samples) // 320))
    [parts] = ChunkDecoder(transcriber).decode([chunk], [samples])
    return parts


@pytest.mark.parametrize(
    ("start", "end", "kept"),
    [
        pytest.param(0.5, 1.0, (10.56, 11.06), id="inside"),
        pytest.param(1.5, 2.5, (11.56, 12.0), id="runs into a pause"),
        pytest.param(1.9, 4.6, (14.0, 14.66), id="across a pause: where it has most"),
        pytest.param(2.5, 3.5, None, id="in a pause"),
        pytest.param(9.5, 11.0, (19.56, 20.0), id="beyond the chunk"),
    ],
)
def test_words_are_cut_to_the_regions_of_speech(
    start: float, end: float, kept: tuple[float, float] | None
) -> None:
    transcriber = Scripted(words=[Word("incomprehensibilities", start, end, 0.9)])
    [[part]] = ChunkDecoder(transcriber).decode([CHUNK], [spoken(("en", 10.0))])
    times = [(word.start_seconds, word.end_seconds) for word in part.words]
    assert times == ([] if kept is None else [pytest.approx(kept)])
    assert (part.language, part.language_probability) == ("en", 1.0)


@pytest.mark.parametrize("pause_seconds", [0.1, 0.3, 1.0])
def test_each_language_of_a_chunk_is_decoded_apart(pause_seconds: float) -> None:
    samples = spoken(("fr", 5.0), ("en", 6.0), ("fr", 4.0), pause_seconds=pause_seconds)
    parts = decoded(samples, Scripted())
    assert [part.language for part in parts] == ["fr", "en", "fr"]
    assert [{word.text for word in part.words} for part in parts] == [{"fr"}, {"en"}, {"fr"}]
    ends = [5.0 + pause_seconds / 2, 11.0 + 1.5 * pause_seconds]
    assert [part.end_frame * 0.02 for part in parts[:-1]] == pytest.approx(ends, abs=0.7)
    assert (parts[0].start_frame, parts[-1].end_frame) == (0, -(-len(samples) // 320))


def test_what_fits_better_as_one_language_is_decoded_as_one() -> None:
    """A stretch that sounds like a third language is no change of language."""
    samples = spoken(("fr", 5.0), ("cy", 2.5), ("fr", 5.0), pause_seconds=0.1)
    transcriber = Scripted({"cy": -1.41})
    assert {part.language for part in decoded(samples, transcriber)} == {"fr"}
    assert transcriber.calls <= 3 + 2 * 3


def test_two_languages_that_fit_as_well_as_one_that_is_improbable_are_decoded_apart() -> None:
    """Hebrew letters spell English no worse than Hebrew, but the whole is in no language."""
    samples = spoken(("fr", 5.0), ("en", 5.0), pause_seconds=0.1)

    class Transliterates(Scripted):
        def answer(self, chunk: AudioChunk) -> ChunkTranscript:
            found = super().answer(chunk)
            return replace(found, log_probability=-0.4) if chunk.has_words else found

    assert [part.language for part in decoded(samples, Transliterates())] == ["fr", "en"]


class Rivals(Scripted):
    """Hears Nepali or so, and writes it as Urdu unless it is prompted with Hindi."""

    TEXTS: ClassVar = {"hi": "वूना", "ne": "لُنہ", "mr": "लूना", "en": "looney"}
    RANKED: Ranked = (("ne", 0.3), ("mr", 0.2), ("hi", 0.15), ("en", 0.01))

    def answer(self, chunk: AudioChunk) -> ChunkTranscript:
        language = chunk.language or "ne"
        ranked = ((language, 1.0),) if chunk.language else self.RANKED
        words = (Word(self.TEXTS[language], 0.1, 0.9, 0.9),)
        return ChunkTranscript(words, language, ranked[0][1], self.fits[language], ranked)


@pytest.mark.parametrize(
    ("fits", "language"),
    [
        pytest.param({"hi": -0.5, "ne": -0.2, "mr": -0.6}, "hi", id="that whose text fits best"),
        pytest.param({"hi": -0.51, "ne": -0.2, "mr": -0.5}, "mr", id="the more probable of equals"),
        pytest.param({"hi": -0.3, "ne": -0.78, "mr": -0.5}, "ne", id="noise is in none"),
        pytest.param({"ne": -1.3, "en": -0.87}, "en", id="the usual, where nothing fits"),
        pytest.param({"hi": -0.6, "ne": -0.4, "mr": -0.6, "en": -0.1}, "en", id="or fits better"),
    ],
)
def test_an_improbable_language_is_compared_with_those_near_to_it(
    fits: dict[str, float], language: str
) -> None:
    [part] = decoded(spoken(("en", 3.0)), Rivals({"en": -0.9} | fits))
    assert part.language == language
    assert elected([part])[0] == language
    assert [word.text for word in part.words] == [Rivals.TEXTS[language]]
    assert sum(p for _, p in part.languages) == pytest.approx(0.66)
    allowed = LanguageChoice(languages=("ne", "hi"))
    assert not {"en"} & {
        name
        for name, _ in rivals(
            Rivals({"ne": -0.2}).answer(AudioChunk(np.zeros(1, np.float32))), allowed
        )
    }


def test_one_language_is_decoded_once() -> None:
    transcriber = Scripted()
    [part] = decoded(spoken(("en", 15.0)), transcriber)
    assert (part.language, transcriber.calls) == ("en", 1)


def test_one_window_alone_changes_no_language() -> None:
    windows = [(float(at), at + 3.0) for at in range(5)]
    found: list[Ranked] = [(("fr", 0.9), ("he", 0.05))] * 5
    found[2] = (("he", 0.8), ("fr", 0.1))
    assert changes_in(windows, found) == []
    found[3:] = [(("en", 0.9),)] * 2
    assert [change[1:] for change in changes_in(windows, found)] == [("fr", "en")]


@pytest.mark.parametrize(
    ("spoken", "changes"),
    [
        pytest.param("fr fr fr en en fr fr fr", ["en", "fr"], id="two between others"),
        pytest.param("fr fr fr en fr fr fr fr", [], id="one between others"),
        pytest.param("fr fr fr fr fr fr fr en", [], id="the last"),
        pytest.param("en fr fr fr fr fr fr fr", [], id="the first"),
    ],
)
def test_a_language_between_others_has_two_windows_to_itself(
    spoken: str, changes: list[str]
) -> None:
    found: list[Ranked] = [((language, 0.97),) for language in spoken.split()]
    windows = [(1.5 * at, 1.5 * at + 3.0) for at in range(len(found))]
    assert [after for _, _, after in changes_in(windows, found)] == changes


def looked_at(ranked: Sequence[Ranked]) -> list[Ranked | None]:
    """What is known of windows in the end, of which these rankings would be found."""
    found: list[Ranked | None] = [None] * len(ranked)
    while places := next_windows(found):
        for at in places:
            found[at] = ranked[at]
    return found


@every(
    ("ranked", "looked"),
    [
        pytest.param([[0.95]] * 13, 7, id="one language"),
        pytest.param([[0.95]] * 12, 7, id="the last is looked at"),
        pytest.param([[0.95]] * 6 + [[0.3, 0.6]] + [[0.95]] * 6, 13, id="a doubt in the middle"),
        pytest.param([[0.95]] * 12 + [[0.02, 0.9]], 13, id="another one at the end"),
        pytest.param([[0.6, 0.3]] * 13, 13, id="nowhere certain"),
        pytest.param([[0.95]], 1, id="a single window"),
        pytest.param([], 0, id="no window"),
        pytest.param([[]] * 5, 3, id="what detects no languages"),
    ],
)
def test_windows_are_looked_at_where_another_language_may_be(
    ranked: list[list[float]], looked: int
) -> None:
    found = looked_at([tuple(zip(("en", "fr"), each, strict=False)) for each in ranked])
    assert sum(each is not None for each in found) == looked


def test_windows_that_are_not_looked_at_change_nothing() -> None:
    """Also where they are certain of languages of which no other window shows anything."""
    generator = np.random.default_rng(50)
    skipped = 0
    for _ in range(4000):
        count = int(generator.integers(2, 14))
        weights = 10 ** generator.uniform(-2, 0.5, (count, 3))
        weights[:, 0] += generator.choice([3, 30, 300], count)
        weights[generator.random(count) < 0.1] = weights[0, ::-1]
        shares = weights / weights.sum(axis=1, keepdims=True)
        hidden = np.arange(count) % 2 * generator.random(count) > 0.4
        shares[hidden] = np.eye(3)[generator.integers(0, 3, int(hidden.sum()))]
        ranked: list[Ranked] = [
            tuple(sorted(zip("abc", row, strict=True), key=lambda pair: -pair[1]))
            for row in shares.tolist()
        ]
        windows = [(1.5 * at, 1.5 * at + 3.0) for at in range(count)]
        found = looked_at(ranked)
        assert changes_in(windows, found) == changes_in(windows, ranked)
        skipped += None in found
    assert 500 < skipped < 3500


def part(
    language: str | None, probability: float | None, fit: float | None, *ranked: tuple[str, float]
) -> SpokenPart:
    words = tuple(TrackWord("word", at, at + 1, 0.9) for at in range(5))
    return SpokenPart(0, 250, words, language, probability, fit, ranked)


@pytest.mark.parametrize(
    ("parts", "language", "probability"),
    [
        pytest.param([], None, None, id="nothing said"),
        pytest.param([part(None, None, None)], None, None, id="no language found"),
        pytest.param([part("de", None, None)], "de", None, id="not estimated"),
        pytest.param(
            [part("cy", 0.73, -1.41), part("en", 0.7, -0.3)], "en", 0.7, id="text that does not fit"
        ),
        pytest.param(
            [
                part("sr", 0.4, -0.5, ("sr", 0.4), ("hr", 0.38), ("bs", 0.2)),
                part("hr", 0.4, -0.5, ("hr", 0.4), ("bs", 0.38), ("sr", 0.1)),
                part("bs", 0.4, -0.5, ("bs", 0.4), ("hr", 0.38), ("sr", 0.1)),
            ],
            "hr",
            0.4,
            id="what neighbours share",
        ),
        pytest.param(
            [
                part("en", 0.41, -0.5, ("en", 0.41), ("cy", 0.38)),
                part("de", 0.4, -0.5, ("de", 0.4), ("cy", 0.39)),
            ],
            "en",
            0.41,
            id="one that nothing is written in",
        ),
    ],
)
def test_a_tracks_language_is_that_of_most_evidence(
    parts: list[SpokenPart], language: str | None, probability: float | None
) -> None:
    assert elected(parts) == (language, probability)


@pytest.mark.parametrize(
    ("found", "uncertain"),
    [
        pytest.param(part("de", 0.3, -0.2), True, id="improbable"),
        pytest.param(part("cy", 0.9, -1.41), True, id="text that does not fit"),
        pytest.param(part("de", 0.9, -0.3), False, id="certain"),
        pytest.param(part("de", None, None), False, id="not estimated"),
        pytest.param(part("en", 0.3, -1.41), False, id="the track's own"),
    ],
)
def test_an_uncertain_part_may_be_in_its_tracks_language(
    found: SpokenPart, uncertain: bool
) -> None:
    assert found.may_be_in("en") is uncertain


SEAM = [Chunk(0, 500, after_frames=50), Chunk(500, 1000, before_frames=50)]
"""Two chunks with their seam at 10 s, of which a second on both sides is in both."""


@every(
    ("one", "other", "found"),
    [
        pytest.param([("a", 8)], [("b", 11)], "a b", id="nothing at the seam"),
        pytest.param(
            [("a", 8), ("seam", 9.8), ("c", 10.5)], [("seam.", 9.9), ("C", 10.5)], "a seam C",
            id="a word across it",
        ),
        pytest.param(
            [("a", 8), ("the", 9.95), ("c", 10.5)], [("the", 10.05), ("c", 10.5)], "a the c",
            id="one that begins before it in one, after it in the other",
        ),
        pytest.param(
            [("a", 9.2), ("seam", 10.05)], [("seam", 9.95), ("c", 10.5)], "a seam c",
            id="and the other way round",
        ),
        pytest.param(
            [("a", 9.2), ("see", 9.7)], [("am", 9.9), ("c", 10.5)], "a see c", id="no word in both"
        ),
        pytest.param(
            [("no", 9.2), ("no", 9.7), ("no", 10.2)], [("no", 9.2), ("no", 9.7), ("no", 10.2)],
            "no no no", id="repeated",
        ),
        pytest.param(
            [("a", 8), ("end.", 9.4)], [("From", 9.2), ("the", 10.3)], "a end. From the",
            id="a sentence begins after it, its first word's time before",
        ),
        pytest.param(
            [("a", 8), ("end.", 9.4)], [("And.", 9.2), ("The", 10.3)], "a end. The",
            id="what is left of a word, and a sentence",
        ),
    ],
)  # fmt: skip
def test_words_at_a_seam_are_written_once(
    one: list[tuple[str, float]], other: list[tuple[str, float]], found: str
) -> None:
    words = [
        ChunkWords((SpokenPart(0, 1, tuple(TrackWord(t, s, s + 0.2, 0.9) for t, s in each), "en"),))
        for each in (one, other)
    ]
    joined = without_overlaps(SEAM, words)
    assert " ".join(word.text for each in joined for word in each.words) == found
    apart = without_overlaps([Chunk(0, 500), Chunk(500, 1000)], words)
    assert apart == words


class Gappy(Scripted):
    """Finds nothing in the long chunk after its first second, and words in short ones."""

    def __init__(self, shortest_seconds: float = 0.0, fit: float = -0.2) -> None:
        super().__init__({"en": fit})
        self.shortest_seconds = shortest_seconds
        self.seconds: list[float] = []

    def answer(self, chunk: AudioChunk) -> ChunkTranscript:
        found = super().answer(chunk)
        seconds = len(chunk.samples) / SAMPLE_RATE_HZ
        if chunk.has_words:
            self.seconds.append(seconds)
        if seconds > 6.0:
            return replace(found, words=found.words[:1], log_probability=-0.2)
        return found if seconds >= self.shortest_seconds else replace(found, words=())


GAPPY = Chunk(0, 500, detected=((0, 100), (200, 300), (460, 475)))
"""Ten seconds, speech from 0 to 2, 4 to 6 and 9.2 to 9.5 s."""


@pytest.mark.parametrize(
    ("shortest_seconds", "fit", "attempts"),
    [
        pytest.param(0.0, -0.2, [10.0, 1.5, 2.6], id="found at once"),
        pytest.param(2.7, -0.2, [10.0, 1.5, 2.6, 5.0], id="found with more around it"),
        pytest.param(99.0, -0.2, [10.0, 1.5, 2.6, 5.0], id="never found"),
        pytest.param(
            0.0, -1.5, [10.0, 1.5, 2.6, 1.5, 2.6, 5.0, 5.0], id="what does not fit, detected too"
        ),
    ],
)
def test_speech_without_words_is_decoded_again_twice_at_most(
    shortest_seconds: float, fit: float, attempts: list[float]
) -> None:
    transcriber = Gappy(shortest_seconds, fit)
    [[part]] = ChunkDecoder(transcriber).decode([GAPPY], [spoken(("en", 10.0))])
    assert transcriber.seconds == pytest.approx(attempts, abs=0.3)
    left = uncovered(GAPPY, part.words)
    assert [span for span in left if span == (200, 300)] == (
        [] if fit > -1 and shortest_seconds < 9 else [(200, 300)]
    )
    assert all(0 <= word.start_seconds <= word.end_seconds <= 6.2 for word in part.words)
    assert [word.start_seconds for word in part.words] == sorted(
        word.start_seconds for word in part.words
    )


@every(
    ("words", "invented"),
    [
        # Seconds and confidences of words that were decoded in gaps of real recordings.
        pytest.param([(0.2, 0.05), (0.0, 0.96), (0.0, 0.16), (0.56, 0.99)], True, id="breath"),
        pytest.param([(0.42, 0.08)], True, id="a laugh"),
        pytest.param([(0.0, 0.06), (0.0, 0.98)], True, id="a pause"),
        pytest.param([(0.06, 0.08), (0.62, 0.56), (0.1, 0.67), (0.22, 0.32)], False, id="mumbled"),
        pytest.param([(0.28, 0.39)], False, id="a reply"),
        pytest.param([(0.48, 0.67), (2.22, 0.96), (0.42, 1.0)], False, id="a hesitation"),
        pytest.param([], True, id="nothing"),
    ],
)
def test_words_that_cannot_be_spoken_are_taken_for_invented(
    words: list[tuple[float, float]], invented: bool
) -> None:
    assert is_invented([Word("a", 1.0, 1.0 + length, sure) for length, sure in words]) == invented


@every(
    ("confidences", "fit", "kept"),
    [
        # Of clips of one to three seconds, of noise and of short replies.
        pytest.param([0.03, 0.97], -0.92, False, id="thank you, of breath"),
        pytest.param([0.07, 0.51], -0.79, False, id="here, okay, of steps"),
        pytest.param([0.49, 0.12], -1.12, False, id="text that does not fit"),
        pytest.param([0.13], -0.94, True, id="a word cut off"),
        pytest.param([0.26, 0.7], -0.48, True, id="thank you, spoken"),
        pytest.param([0.48], -0.6, True, id="okay, spoken"),
        pytest.param([0.09, 0.82, 0.98, 0.87], -0.5, True, id="a soft beginning"),
        pytest.param([0.05, *[0.6] * 5], -1.1, True, id="six words"),
        pytest.param([0.03], None, True, id="no estimate"),
    ],
)
def test_few_words_that_rest_on_no_sound_are_left_out(
    confidences: list[float], fit: float | None, kept: bool
) -> None:
    words = tuple(TrackWord("a", at, at + 0.5, each) for at, each in enumerate(confidences))
    part = SpokenPart(0, 100, words, "en", 0.6, fit)
    assert founded(part) == (part if kept else replace(part, words=()))


def test_invented_words_fill_no_gap() -> None:
    class Inventive(Gappy):
        def answer(self, chunk: AudioChunk) -> ChunkTranscript:
            found = super().answer(chunk)
            if len(chunk.samples) > 6 * SAMPLE_RATE_HZ:
                return found
            words = tuple(Word("thanks", 1.0, 1.0, 0.1) for _ in range(4))
            return replace(found, words=words)

    [[part]] = ChunkDecoder(Inventive()).decode([GAPPY], [spoken(("en", 10.0))])
    assert "thanks" not in [word.text for word in part.words]
    assert (200, 300) in uncovered(GAPPY, part.words)


class Between(Scripted):
    """Hears French with a gap; in it English, which it writes in French where it is told to."""

    def __init__(self, probability: float, fit: float) -> None:
        super().__init__()
        self.answers = {"fr": (1.0, -0.8), None: (probability, fit)}

    def answer(self, chunk: AudioChunk) -> ChunkTranscript:
        if not chunk.has_words:
            return ChunkTranscript((), None, languages=(("fr", 0.9),))
        if len(chunk.samples) > 6 * SAMPLE_RATE_HZ:
            words = tuple(Word("oui", at, at + 0.9, 0.9) for at in (0.1, 1.0, 9.1))
            return ChunkTranscript(words, "fr", 0.9, -0.2)
        name = chunk.language or "en"
        words = tuple(Word(name, at, at + 0.8, 0.9) for at in (0.5, 1.4))
        return ChunkTranscript(words, name, *self.answers[chunk.language])


@every(
    ("probability", "fit", "languages"),
    [
        pytest.param(0.95, -0.3, ["fr", "en", "fr"], id="certain, and fits better"),
        pytest.param(0.7, -0.3, ["fr"], id="uncertain"),
        pytest.param(0.95, -0.7, ["fr"], id="fits no better"),
    ],
)
def test_a_sentence_between_two_of_another_language_is_in_its_own(
    probability: float, fit: float, languages: list[str]
) -> None:
    samples = [spoken(("fr", 10.0))]
    [parts] = ChunkDecoder(Between(probability, fit)).decode([GAPPY], samples)
    assert [part.language for part in parts] == languages
    said = [word.text for part in parts for word in part.words]
    assert said == ["oui", "oui", *["en" if len(parts) > 1 else "fr"] * 2, "oui"]
    ends = [(part.start_frame, part.end_frame) for part in parts]
    assert (ends[0][0], ends[-1][1]) == (0, 500)
    given = ChunkDecoder(Between(probability, fit), LanguageChoice(language="fr")).decode(
        [GAPPY], samples
    )
    assert {part.language for part in given[0]} == {"fr"}


def test_no_more_than_the_longest_stretches_are_decoded_again() -> None:
    speech = tuple((at, at + 30) for at in range(0, 1000, 60))
    transcriber = Gappy(shortest_seconds=99.0)
    ChunkDecoder(transcriber).decode([Chunk(0, 1000, detected=speech)], [spoken(("en", 20.0))])
    assert len(transcriber.seconds) == 1 + MOST_UNCOVERED


@pytest.mark.parametrize(
    ("words", "left"),
    [
        pytest.param([], [(0, 100), (200, 300)], id="no words"),
        pytest.param([(0.1, 1.9), (4.0, 5.9)], [], id="all covered"),
        pytest.param([(0.0, 0.6), (1.2, 2.0)], [(200, 300)], id="a pause of 0.6 s less the reach"),
        pytest.param([(0.0, 2.0), (5.0, 6.0)], [(200, 242)], id="the beginning"),
        pytest.param([(0.0, 6.0)], [], id="one word over all"),
    ],
)
def test_speech_without_words_is_half_a_second_at_least(
    words: list[tuple[float, float]], left: list[tuple[int, int]]
) -> None:
    spans = [TrackWord("word", start, end, 0.9) for start, end in words]
    assert uncovered(GAPPY, spans) == left


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        pytest.param([("Country.", 0.4)], [], id="its end once more"),
        pytest.param([("Country.", 0.9)], [], id="again without a pause"),
        pytest.param([("and", 0.9), ("country.", 0.9)], ["and", "country."], id="spoken again"),
        pytest.param([("county", 0.4)], ["county"], id="another word"),
        pytest.param([("and", 0.4), ("country", 0.4)], ["and", "country"], id="not beside it"),
        pytest.param([("and", 0.4), ("we", 0.3)], ["and"], id="the next word once more"),
    ],
)
def test_a_word_at_the_edge_of_speech_without_words_is_found_once(
    found: list[tuple[str, float]], kept: list[str]
) -> None:
    known = (TrackWord("country,", 1.0, 2.0, 0.99), TrackWord("We", 4.0, 4.4, 0.99))
    words = tuple(
        TrackWord(text, 2.3 + index, 3.2 + index, confidence)
        for index, (text, confidence) in enumerate(found)
    )
    part = SpokenPart(0, 500, known, "en", 1.0)
    again = SpokenPart(0, 500, words, "en", 1.0)
    texts = [word.text for word in filled(part, again, (110, 195)).words]
    assert texts == ["country,", *kept, "We"]


@every(
    ("start", "end", "kept"),
    [(2.2, 2.5, True), (2.5, 2.59, False), (2.56, 2.72, False), (1.0, 4.0, False)],
)
def test_what_the_cut_leaves_of_a_word_is_judged(start: float, end: float, kept: bool) -> None:
    """The gap is from 1.95 s to 2.65 s with what words reach."""
    again = SpokenPart(0, 500, (TrackWord("and", start, end, 0.9),), "en", 1.0)
    part = SpokenPart(0, 500, (TrackWord("One", 0.5, 1.0, 0.9),), "en", 1.0)
    assert (len(filled(part, again, (105, 125)).words) == 2) is kept


class RollCall(Scripted):
    """Says a phrase a second; of more than four seconds it makes a loop that is cut short."""

    def __init__(self, longest_seconds: float = 4.0, fit: float = -0.2) -> None:
        super().__init__({"en": fit})
        self.longest_seconds = longest_seconds
        self.keyterms: list[tuple[str, ...]] = []

    def answer(self, chunk: AudioChunk) -> ChunkTranscript:
        found = super().answer(chunk)
        if not chunk.has_words:
            return found
        self.keyterms.append(chunk.keyterms)
        seconds = len(chunk.samples) / SAMPLE_RATE_HZ
        words = [Word("present", at, at + 0.95, 0.9) for at in range(round(seconds))]
        if seconds <= self.longest_seconds:
            return replace(found, words=tuple(words))
        repeated = "present", round(seconds)
        return replace(found, words=tuple(words[:6]), log_probability=-0.2, repeated=repeated)


@pytest.mark.parametrize(
    ("longest_seconds", "fit", "count"),
    [
        pytest.param(4.0, -0.2, 12, id="spoken so often"),
        pytest.param(0.5, -0.2, 6, id="a loop in each stretch too"),
        pytest.param(4.0, -0.9, 6, id="text that does not fit"),
    ],
)
def test_what_is_repeated_is_written_as_often_as_it_is_spoken(
    longest_seconds: float, fit: float, count: int
) -> None:
    transcriber = RollCall(longest_seconds, fit)
    samples = spoken(*[("en", 0.8)] * 12, pause_seconds=0.2)
    [[part]] = ChunkDecoder(transcriber, keyterms=("roll",)).decode([Chunk(0, 600)], [samples])
    assert [word.text for word in part.words] == ["present"] * count
    assert transcriber.keyterms[0] == ("roll",)
    assert set(transcriber.keyterms[1:]) == {("roll", "present")}
    assert len(transcriber.keyterms) == 1 + 6


def test_long_speech_without_words_is_decoded_again_in_stretches() -> None:
    transcriber = Gappy(shortest_seconds=99.0)
    chunk = Chunk(0, 1000, detected=((0, 1000),))
    ChunkDecoder(transcriber).decode([chunk], [spoken(*[("en", 1.8)] * 10, pause_seconds=0.2)])
    assert max(transcriber.seconds[1:]) < 6.5 + 2 * 1.5
    assert len(transcriber.seconds) <= 1 + 2 * 4


def test_shards_and_words_survive_their_storage(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    shards = (Shard("shard.flac", (CHUNK, Chunk(2000, 2100))),)
    SHARDS.save(store, "shards", shards)
    assert SHARDS.load(store, "shards") == shards
    words = (ChunkWords((part("hr", 0.4, -0.5, ("hr", 0.4), ("sr", 0.3)),)),)
    WORDS.save(store, "words", words)
    assert WORDS.load(store, "words") == words


PACKAGED = digest_of("packaged", (TRANSCRIBE,))


def bare(found: TranscriptResult) -> bytes:
    """All but confidences, as it is stored."""
    segments = tuple(
        replace(it, confidence=0.0, words=tuple(replace(word, confidence=0.0) for word in it.words))
        for it in found.segments
    )
    return encode(replace(found, segments=segments, calibrated=False, voices=()))


def test_words_and_times_stay_to_the_byte_where_confidences_are_calibrated(tmp_path: Path) -> None:
    samples = load(PROJECT / "tests/media/speech/one_voice.flac")
    raw, true, unknown = (
        transcribe_samples(samples, tmp_path, LocalModels(), TranscriptConfig(transcriber=name))
        for name in ("", PACKAGED, "another")
    )
    assert raw.segments
    assert (raw.calibrated, true.calibrated, unknown.calibrated) == (False, True, False)
    assert bare(true) == bare(raw)
    assert encode(unknown) == encode(raw)
    assert true == calibrated(raw, word_calibrations()[PACKAGED])
    assert encode(true) != encode(raw)


def test_the_table_is_of_a_transcriber_that_there_is() -> None:
    assert set(word_calibrations()) == {PACKAGED}


@pytest.mark.parametrize("name", [*word_calibrations()])
def test_a_more_probable_word_has_no_lower_confidence(name: str) -> None:
    found = [word_calibrations()[name].confidence(n / 100) for n in range(101)]
    assert found == sorted(found)
    assert 0 < found[0] < found[-1] < 1


def test_a_segment_has_the_share_of_its_words_that_is_right() -> None:
    said = segment(0, "I like tea.", 1000)
    words = tuple(
        replace(word, confidence=sure)
        for word, sure in zip(said.words, (0.9, 0.5, 0.1), strict=True)
    )
    found = TranscriptResult("en", (), (replace(said, words=words),))
    [made] = calibrated(found, WordCalibration(bias=0.0, slope=1.0)).segments
    assert made.confidence == pytest.approx(0.5)
    assert [word.confidence for word in made.words] == pytest.approx([0.9, 0.5, 0.1])
