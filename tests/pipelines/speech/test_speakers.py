"""Speakers of a track: how many there are, who speaks when, whose a word is; and other sounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.speech.noises import made
from models.contracts import (
    ACTIVITY_FRAMES,
    LOCAL_SPEAKERS,
    SAMPLE_RATE_HZ,
    Probabilities,
    Samples,
    SoundKind,
    SpeakerActivity,
)
from models.provider import LocalModels, ModelProvider
from pipelines.across.voices import recognise
from pipelines.execution.chain import Workspace
from pipelines.speech.languages import SpokenPart
from pipelines.speech.regions import CELL_SECONDS, find_sounds, without_sung
from pipelines.speech.speakers import (
    FRAME_SECONDS,
    STEP_FRAMES,
    LocalVoices,
    SpeakerRules,
    VoiceTurn,
    attribute,
    embedded,
    find_turns,
    find_voices,
    join_voices,
    place_turns,
    plan_voice_shards,
)
from pipelines.speech.words import TrackWord
from pipelines.types import AudioTrack, SpeakerTurn, SpeakerVoice, TranscriptWord
from storage.objects.folder import FolderStore
from tests.tables import every

Span = tuple[int, float, float]
"""A voice speaks from one second to another."""
DIMENSIONS = 32


def turns_of(voices: LocalVoices, rules: SpeakerRules) -> list[VoiceTurn]:
    return find_turns(voices, find_voices(voices, rules))


def local_voices(spans: list[Span], seconds: float, *, spread: float = 0.1) -> LocalVoices:
    """What segmentation and embedding find of the spans, with the windows' own numbers mixed up."""
    random = np.random.default_rng(7)
    centres = np.linalg.qr(random.normal(size=(DIMENSIONS, 16)))[0].T
    count = 1 + max(0, int(np.ceil((seconds - 10) / (STEP_FRAMES * FRAME_SECONDS))))
    speaking = np.zeros((count, ACTIVITY_FRAMES, LOCAL_SPEAKERS), bool)
    vectors = np.zeros((count, LOCAL_SPEAKERS, DIMENSIONS), np.float16)
    for window in range(count):
        times = (window * STEP_FRAMES + np.arange(ACTIVITY_FRAMES) + 0.5) * FRAME_SECONDS
        frames = {
            voice: np.any(
                [(times >= a) & (times < b) for other, a, b in spans if other == voice], axis=0
            )
            for voice in sorted({voice for voice, _, _ in spans})
        }
        present = [voice for voice in frames if frames[voice].any()][:LOCAL_SPEAKERS]
        for local, voice in enumerate(present if window % 2 else present[::-1]):
            speaking[window, :, local] = frames[voice]
            vector = centres[voice] + spread * random.normal(size=DIMENSIONS)
            vectors[window, local] = vector / np.linalg.norm(vector)
    sounds = np.zeros((count, 73, 3), np.uint8)
    return LocalVoices(
        speaking, vectors, sounds, np.where(speaking.any(axis=2), 255, 0).astype(np.uint8)
    )


def in_turn(*voices: int, each_seconds: float = 4.0) -> list[Span]:
    return [(v, i * each_seconds, (i + 1) * each_seconds) for i, v in enumerate(voices)]


@every(
    ("spans", "seconds", "count"),
    [
        pytest.param(in_turn(0), 4, 1, id="one voice in one window"),
        pytest.param(in_turn(0, 0, 0, 0), 16, 1, id="one voice in many windows"),
        pytest.param(in_turn(0, 1, 0, 1), 16, 2, id="two in turn"),
        pytest.param(in_turn(0, 1, 2, 0, 3, 2, 1), 28, 4, id="four in turn"),
        pytest.param([(0, 0, 30), (1, 29, 33), (0, 33, 60)], 60, 2, id="one says little"),
        pytest.param([(0, 0, 60), (1, 30, 33)], 60, 1, id="one never speaks alone"),
        pytest.param([(0, 0, 30), (1, 30, 31), (0, 31, 60)], 60, 1, id="too little to believe in"),
        pytest.param([(0, 0, 30), (1, 30, 31.4), (0, 31.4, 60)], 60, 2, id="one only replies"),
        pytest.param([], 20, 0, id="nobody"),
        pytest.param([(0, 3, 3.3)], 20, 1, id="a short reply is all"),
    ],
)
def test_there_are_as_many_voices_as_there_is_evidence_of(
    spans: list[Span], seconds: float, count: int
) -> None:
    turns = turns_of(local_voices(spans, seconds), SpeakerRules())
    assert len({turn.voice for turn in turns}) == count
    assert turns == sorted(turns, key=lambda turn: turn.start_seconds)


def test_a_short_reply_of_a_voice_that_is_not_far_from_another_is_that_others() -> None:
    voices = local_voices([(0, 0, 30), (1, 30, 31.4), (0, 31.4, 60)], 60)
    assert len(find_voices(voices, SpeakerRules(far_distance=1.2))) == 1


def test_turns_are_when_voices_speak_overlap_included() -> None:
    spans: list[Span] = [(0, 1, 9), (1, 8, 14), (0, 15, 25), (1, 17, 19), (1, 26, 30)]
    turns = turns_of(local_voices(spans, 30.0), SpeakerRules())
    found = sorted((turn.start_seconds, turn.end_seconds) for turn in turns)
    # Frames stand for what is 0.0225 s later than their number says.
    expected = [(start + 0.0225, end + 0.0225) for _, start, end in spans]
    assert np.array(found) == pytest.approx(np.array(expected), abs=0.02)
    by_voice = {turn.voice: turn for turn in turns}
    assert len(by_voice) == 2


def test_vectors_without_structure_are_one_voice() -> None:
    voices = local_voices(in_turn(0, 0, 0, 0, 0, 0), 24, spread=0.15)
    assert len(find_voices(voices, SpeakerRules())) == 1


def test_speech_of_more_than_there_are_voices_is_still_somebodys() -> None:
    spans: list[Span] = [(0, 0, 60), (1, 29, 30)]
    [turn] = turns_of(local_voices(spans, 60.0), SpeakerRules(expected=1))
    assert (turn.start_seconds, turn.end_seconds) == pytest.approx((0, 60), abs=0.1)


@every(
    ("rules", "count"),
    [
        pytest.param(SpeakerRules(), 3, id="as many as there seem to be"),
        pytest.param(SpeakerRules(expected=3), 3, id="as many as expected"),
        pytest.param(SpeakerRules(expected=2), 2, id="fewer than there seem to be"),
        pytest.param(SpeakerRules(expected=1), 1, id="one alone"),
        pytest.param(SpeakerRules(expected=5), 5, id="more than there seem to be"),
        pytest.param(SpeakerRules(at_most=2), 2, id="at most two"),
        pytest.param(SpeakerRules(at_most=1), 1, id="at most one"),
        pytest.param(SpeakerRules(at_most=5), 3, id="at most more than there are"),
    ],
)
def test_a_request_may_state_how_many_speakers_there_are(rules: SpeakerRules, count: int) -> None:
    voices = local_voices(in_turn(0, 1, 2, 0, 1, 2, 0), 28)
    assert len(find_voices(voices, rules)) == count


def test_more_are_expected_than_there_are_local_speakers() -> None:
    assert len(find_voices(local_voices(in_turn(0), 4), SpeakerRules(expected=4))) == 1


def test_a_cough_does_not_take_the_place_of_an_expected_voice() -> None:
    spans: list[Span] = [*in_turn(0, 1, 0, 1, 0, 1), (5, 24, 25)]
    voices = local_voices(spans, 25)
    turns = turns_of(voices, SpeakerRules(expected=2))
    assert {turn.voice for turn in turns if turn.start_seconds < 23} == {0, 1}


def test_a_long_track_is_clustered_on_a_bounded_number_of_exemplars() -> None:
    voices = local_voices(in_turn(*[0, 1] * 100), 800)
    few = turns_of(voices, SpeakerRules(max_exemplars=20))
    assert few == turns_of(voices, SpeakerRules())
    assert {turn.voice for turn in few} == {0, 1}


class OneLocalSpeaker:
    """Segments all sound as one local speaker's, and embeds it by its values."""

    def segment(self, windows: Sequence[Samples]) -> list[SpeakerActivity]:
        found = np.zeros((ACTIVITY_FRAMES, LOCAL_SPEAKERS), bool)
        found[:, 0] = True
        return [SpeakerActivity(found[:, 0].astype(np.float32), found) for _ in windows]

    def embed(self, utterances: Sequence[Samples]) -> npt.NDArray[np.float32]:
        shares = [np.bincount(each.astype(int), minlength=9)[1:9] for each in utterances]
        lengths = np.linalg.norm(shares, axis=1, keepdims=True)
        vectors: npt.NDArray[np.float32] = (shares / lengths).astype(np.float32)
        return vectors

    def find_sounds(self, samples: Samples) -> Probabilities:
        return np.zeros((1, len(SoundKind)), np.float32)

    def get(self, task: object) -> Any:
        return self


@every(
    ("said", "parts"),
    [
        pytest.param([(1, 10)], 1, id="one voice"),
        pytest.param([(1, 5), (2, 5)], 2, id="one after the other"),
        pytest.param([(1, 1), (2, 1)] * 5, 2, id="turns of a second"),
        pytest.param([(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)] * 2, 5, id="five in turn"),
        pytest.param([(each, 1.25) for each in range(1, 9)], 6, id="more than there is room for"),
        pytest.param([(1, 4.7), (2, 0.4), (1, 4.9)], 1, id="a short noise in a sentence"),
    ],
)
def test_a_local_speaker_whose_pieces_are_far_apart_is_parted(
    said: list[tuple[int, float]], parts: int
) -> None:
    samples = np.repeat(
        [value for value, _ in said],
        [round(seconds * SAMPLE_RATE_HZ) for _, seconds in said],
    ).astype(np.float32)
    found = embedded([samples], cast("ModelProvider", OneLocalSpeaker()))
    assert int(found.speaking[0].any(axis=0).sum()) == parts
    assert (found.speaking[0].sum(axis=1) == 1).all()
    turns = turns_of(found, SpeakerRules(min_voice_seconds=1.0))
    changes = len(list(groupby(turns, key=lambda turn: turn.voice)))
    assert changes == (len(said) if 1 < parts < 6 else min(parts, changes))


def test_the_end_of_a_track_is_not_embedded_beyond_its_samples() -> None:
    samples = np.ones(round(1.5 * SAMPLE_RATE_HZ), np.float32)
    found = embedded([samples], cast("ModelProvider", OneLocalSpeaker()))
    assert np.isfinite(found.vectors).all()


def test_parts_of_a_track_give_what_the_whole_gives() -> None:
    whole = local_voices(in_turn(0, 1, 2, 0, 1), 20)
    parts = [
        LocalVoices(*(getattr(whole, each.name)[i : i + 1] for each in fields(whole)))
        for i in range(len(whole.vectors))
    ]
    joined = join_voices([LocalVoices.from_npz(part.to_npz()) for part in parts])
    assert turns_of(joined, SpeakerRules()) == turns_of(whole, SpeakerRules())


@pytest.mark.parametrize(
    ("seconds", "windows", "stretches"),
    [(0.2, 1, 1), (10.0, 1, 1), (10.1, 2, 1), (60.0, 12, 1), (600.0, 120, 5), (86_400, 17297, 32)],
)
def test_stretches_cover_a_track_of_any_length_and_are_few(
    tmp_path: Path, seconds: float, windows: int, stretches: int
) -> None:
    store = FolderStore(tmp_path)
    store.write_bytes("track", b"x")
    track = AudioTrack(0, "camera", "track", seconds)
    planned = plan_voice_shards(track, Workspace(store, "work"), "models")
    assert len(planned) == stretches
    assert len({each.voices_key for each in planned}) == stretches
    edges = [(each.first_window, each.first_window + each.windows) for each in planned]
    assert [first for first, _ in edges] == [0, *(end for _, end in edges[:-1])]
    assert edges[-1][1] == windows


def test_turns_lie_inside_the_media_where_their_track_does() -> None:
    voices = local_voices([(0, 1, 9), (1, 12, 20)], 20.0)
    turns = turns_of(voices, SpeakerRules())
    track = AudioTrack(0, "camera", "track", 18.0, offset_seconds=-3.0)
    placed = place_turns(turns, track, media_duration_ms=14_000)
    assert [(turn.start_ms, turn.end_ms) for turn in placed] == [
        (0, pytest.approx(6_022, abs=20)),
        (pytest.approx(9_022, abs=20), 14_000),
    ]


def word(start_ms: int, end_ms: int) -> TranscriptWord:
    return TranscriptWord("a", start_ms, end_ms, 1.0, None)


def turn(speaker: str, start_ms: int, end_ms: int) -> SpeakerTurn:
    return SpeakerTurn(speaker, start_ms, end_ms)


@pytest.mark.parametrize(
    ("turns", "words", "owners"),
    [
        pytest.param(
            [turn("1", 0, 1000), turn("0", 1000, 2000)],
            [word(100, 400), word(800, 1100), word(950, 1400)],
            [0, 0, 1],
            id="of whom it shares most time with",
        ),
        pytest.param(
            [turn("1", 0, 5000), turn("0", 2000, 2600)],
            [word(1500, 1900), word(2100, 2500), word(3000, 3200)],
            [0, 0, 0],
            id="of who goes on where two speak at once",
        ),
        pytest.param(
            [turn("1", 0, 1000), turn("0", 5000, 6000)],
            [word(1200, 1500), word(4500, 4800), word(9000, 9100)],
            [0, 1, 1],
            id="of the nearest turn where nobody speaks",
        ),
        pytest.param([], [word(0, 100), word(5000, 5100)], [0, 0], id="of one without turns"),
    ],
)
def test_a_word_is(
    turns: list[SpeakerTurn], words: list[TranscriptWord], owners: list[int]
) -> None:
    found = attribute(words, turns)
    assert [each.speaker for each in found.words] == [f"speaker_{owner}" for owner in owners]


def test_speakers_are_numbered_by_their_first_words_with_the_time_of_their_turns() -> None:
    turns = [turn("7", 0, 400), turn("2", 300, 1000), turn("7", 1000, 1250), turn("4", 1300, 1700)]
    found = attribute([word(600, 700), word(1400, 1500)], turns)
    listed = [(each.id, each.label, each.speaking_seconds) for each in found.speakers]
    assert listed == [
        ("speaker_0", "Speaker 1", 0.7),
        ("speaker_1", "Speaker 2", 0.4),
        ("speaker_2", "Speaker 3", 0.65),  # who has no words
    ]
    owners = [each.speaker for each in found.turns]
    assert owners == ["speaker_2", "speaker_0", "speaker_2", "speaker_1"]
    assert [each.speaker for each in found.words] == ["speaker_0", "speaker_1"]


def test_nothing_said_has_no_speakers() -> None:
    found = attribute([], [])
    assert (found.words, found.turns, found.speakers) == ([], (), ())


spans = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 900), st.integers(1, 400)), max_size=9)


@given(spans, spans)
def test_every_word_has_a_listed_speaker(
    turns: list[tuple[int, int, int]], words: list[tuple[int, int, int]]
) -> None:
    made = sorted(
        (turn(str(name), at, at + length) for name, at, length in turns),
        key=lambda each: (each.start_ms, each.end_ms),
    )
    said = sorted(
        (word(at, at + length) for _, at, length in words), key=lambda each: each.start_ms
    )
    found = attribute(said, made)
    named = {each.speaker for each in found.words} | {each.speaker for each in found.turns}
    assert named <= {speaker.id for speaker in found.speakers}
    for each in found.words:
        own = [t for t in found.turns if t.speaker == each.speaker]
        if any(t.start_ms < each.end_ms and each.start_ms < t.end_ms for t in found.turns):
            assert any(t.start_ms < each.end_ms and each.start_ms < t.end_ms for t in own)


def along(*shares: float) -> tuple[float, ...]:
    """A unit vector with such a share of each axis; the last one takes the rest."""
    rest = max(0.0, 1.0 - sum(share**2 for share in shares)) ** 0.5
    return (*shares, *[0.0] * (7 - len(shares)), rest)


ANNA, BERTA = (np.array(along(*axes), np.float32) for axes in ((1.0,), (0.0, 1.0)))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param([along(0.6)], {"0": "Anna"}, id="near"),
        pytest.param([along(0.5)], {}, id="not near enough"),
        pytest.param([along(0.66, 0.6)], {}, id="nearly as near to another"),
        pytest.param([along(0.7), along(0.9)], {"1": "Anna"}, id="a voice is one speaker"),
        pytest.param([along(0.2, 0.9), along(0.9, 0.2)], {"0": "Berta", "1": "Anna"}, id="both"),
    ],
)
def test_a_known_voice_is_near_and_nearer_than_others(
    found: list[tuple[float, ...]], expected: dict[str, str]
) -> None:
    voices = [SpeakerVoice(str(number), vector) for number, vector in enumerate(found)]
    known = [("Anna", ANNA), ("Berta", -BERTA), ("Berta", BERTA)]
    assert recognise(voices, known) == expected
    assert recognise(voices, []) == recognise([], known) == {}


CELLS, STEP_CELLS, MARGIN_CELLS = 73, 37, 18
SoundSpan = tuple[SoundKind, float, float]
MUSIC, SINGING, SPEECH = SoundKind.MUSIC, SoundKind.SINGING, SoundKind.SPEECH


def voices(spans: list[SoundSpan], windows: int) -> LocalVoices:
    """Windows in which the spans sound, and at the edges, where they lack context, the opposite."""
    sounds = np.zeros((windows, CELLS, len(SoundKind)), np.uint8)
    for window in range(windows):
        times = (window * STEP_CELLS + np.arange(CELLS) + 0.5) * CELL_SECONDS + 0.0225
        for kind, start, end in spans:
            column = list(SoundKind).index(kind)
            sounds[window, (times >= start) & (times < end), column] = 204
        low = MARGIN_CELLS if window else 0
        high = MARGIN_CELLS + STEP_CELLS if window < windows - 1 else CELLS
        sounds[window, :low] = 255 - sounds[window, :low]
        sounds[window, high:] = 255 - sounds[window, high:]
    speaking = np.zeros((windows, ACTIVITY_FRAMES, LOCAL_SPEAKERS), bool)
    vectors = np.zeros((windows, LOCAL_SPEAKERS, 4), np.float16)
    return LocalVoices(speaking, vectors, sounds, np.zeros((windows, ACTIVITY_FRAMES), np.uint8))


@every(
    ("spans", "found"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([(MUSIC, 2, 12)], [(MUSIC, 2, 12)], id="over windows"),
        pytest.param(
            [(MUSIC, 0, 25), (SPEECH, 5, 9)], [(MUSIC, 0, 25), (SPEECH, 5, 9)], id="speech over it"
        ),
        pytest.param(
            [(SPEECH, 2, 4), (SPEECH, 4.3, 7)], [(SPEECH, 2, 7)], id="a pause between words"
        ),
        pytest.param([(MUSIC, 2, 4), (MUSIC, 6, 8)], [(MUSIC, 2, 4), (MUSIC, 6, 8)], id="a pause"),
        pytest.param([(SINGING, 2, 2.3)], [], id="too short"),
    ],
)
def test_sounds_are_when_they_are_probable(spans: list[SoundSpan], found: list[SoundSpan]) -> None:
    track = AudioTrack(0, "camera", "track", 25.0)
    sounds = find_sounds(voices(spans, 5), track, 60_000)
    assert [sound.kind for sound in sounds] == [kind for kind, _, _ in found]
    for sound, (_, start, end) in zip(sounds, found, strict=True):
        assert sound.start_ms / 1000 == pytest.approx(start, abs=0.15)
        assert sound.end_ms / 1000 == pytest.approx(end, abs=0.15)
        assert 0.7 < sound.confidence < 0.81


def test_sounds_lie_inside_the_media_where_their_track_does() -> None:
    track = AudioTrack(0, "camera", "track", 20.0, offset_seconds=-3.0)
    [sound] = find_sounds(voices([(MUSIC, 0, 30)], 5), track, media_duration_ms=14_000)
    assert (sound.start_ms, sound.end_ms) == (0, 14_000)


@every(
    ("spans", "confidences", "kept"),
    [
        pytest.param([(MUSIC, 0, 25)], [0.3, 0.6, 0.2], 0, id="made up of music"),
        pytest.param([(SINGING, 0, 25)], [0.3, 0.6, 0.2], 0, id="made up of singing"),
        pytest.param([(SINGING, 0, 25)], [0.9, 0.3, 0.8], 3, id="a song that it knows"),
        pytest.param([(MUSIC, 0, 25), (SPEECH, 0, 25)], [0.3, 0.2, 0.2], 3, id="speech over music"),
        pytest.param([(SPEECH, 0, 25)], [0.3, 0.2, 0.2], 3, id="speech"),
        pytest.param([], [0.3, 0.2, 0.2], 3, id="no sound that is known"),
        pytest.param([(MUSIC, 0, 7)], [0.1, 0.1, 0.2], 1, id="where the music is"),
    ],
)
def test_doubtful_words_of_music_are_dropped(
    spans: list[SoundSpan], confidences: list[float], kept: int
) -> None:
    words = [TrackWord("la", 2.0 + 3 * at, 2.4 + 3 * at, c) for at, c in enumerate(confidences)]
    part = SpokenPart(0, 1000, tuple(words), "en", 0.9, -0.3)
    [found] = without_sung([part], voices(spans, 5))
    assert found.words == tuple(words[len(words) - kept :])


def test_music_that_begins_in_the_middle_is_found_there() -> None:
    samples = np.concatenate([np.zeros(8 * SAMPLE_RATE_HZ, np.float32), made("band", 12.0, seed=3)])
    starts = [79_920 * number for number in range(3)]
    found = embedded([samples[at : at + 160_000] for at in starts], LocalModels())
    track = AudioTrack(0, "camera", "track", 20.0)
    [music] = [each for each in find_sounds(found, track, 20_000) if each.kind is MUSIC]
    assert music.start_ms == pytest.approx(8_000, abs=300)
    assert music.end_ms == pytest.approx(20_000, abs=300)
