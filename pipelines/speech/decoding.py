"""Chunks to words: where their language changes, each part decoded apart, by a transcriber."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from models.contracts import AudioChunk, ChunkTranscript, Samples, Word, is_in_another_script
from models.tasks import Transcriber
from pipelines.media.audio import FRAME_SAMPLES, LEVEL_FRAME_SECONDS
from pipelines.speech.coverage import filled, is_invented, longest_gaps
from pipelines.speech.languages import (
    CERTAIN,
    DB_PER_NAT,
    FITTING,
    PROBABLE,
    WELL_FITTING,
    WINDOW_SECONDS,
    Change,
    LanguageChoice,
    Ranked,
    SpokenPart,
    changes_in,
    is_below,
    language_windows,
    log_odds,
    quiet_places,
    rivals,
)
from pipelines.speech.regions import Chunk
from pipelines.speech.word_times import settled
from pipelines.speech.words import TrackWord

_JOINING_ROUNDS = 3
"""Most times that parts of a chunk are joined, and so decoded again."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of one of the chunks: its place among them, and frames from its start."""

    chunk: int
    start: int
    end: int


_ATTEMPTS = ((0.5, 0.3), (1.0, 1.5))
"""The least seconds without words, and what is decoded with them on both sides, one attempt after
the other: other boundaries, and no condition on what failed."""
_TOKENS = 20
"""So many tokens count as evidence of a language, as a few seconds of speech have; a text's
log-probability is a mean over tokens, of which it has more in some scripts than in others."""
_LEAST_REPEATED_SECONDS = 1.0
"""No stretch of a repetition is shorter."""


@dataclass(frozen=True, slots=True)
class ChunkDecoder:
    """Decodes chunks in the languages that a client allows."""

    transcriber: Transcriber
    choice: LanguageChoice = field(default_factory=LanguageChoice)
    keyterms: tuple[str, ...] = ()

    def decode(
        self, chunks: Sequence[Chunk], samples: Sequence[Samples]
    ) -> list[tuple[SpokenPart, ...]]:
        """The parts of each chunk, in order; they cover it."""
        if self.choice.language is None and len(self.choice.languages) != 1:
            pieces = self._pieces(samples)
        else:
            pieces = [_whole(index, each) for index, each in enumerate(samples)]
        found = dict(zip(pieces, self._transcribed(pieces, samples), strict=True))
        apart: set[tuple[_Piece, _Piece]] = set()
        for _ in range(_JOINING_ROUNDS):
            pairs = [pair for pair in _uncertain_pairs(pieces, found) if pair not in apart]
            if not pairs:
                break
            joined = [_Piece(a.chunk, a.start, b.end) for a, b in pairs]
            for piece, pair, answer in zip(
                joined, pairs, self._transcribed(joined, samples), strict=True
            ):
                if _is_one(answer, found[pair[0]], found[pair[1]]):
                    found[piece] = answer
                    at = pieces.index(pair[0])
                    pieces[at : at + 2] = [piece]
                else:
                    apart.add(pair)
        self._try_rivals(pieces, found, samples)
        for piece in pieces:
            found[piece] = self._repeated(piece, found[piece], samples)
        parts: list[list[SpokenPart]] = [[] for _ in chunks]
        for piece in pieces:
            cut = _cut(piece, samples[piece.chunk])
            parts[piece.chunk].append(_part(chunks[piece.chunk], piece, found[piece], cut))
        for least_seconds, around_seconds in _ATTEMPTS:
            self._cover(parts, chunks, samples, least_seconds, around_seconds)
        return [tuple(each) for each in parts]

    def _try_rivals(
        self,
        pieces: Sequence[_Piece],
        found: dict[_Piece, ChunkTranscript],
        samples: Sequence[Samples],
    ) -> None:
        """Decode pieces of improbable language also in those that are about as probable.

        Not those whose text fits badly: noise is in no language, and in some language its text fits
        (rain in Russian, -0.39).
        """
        fitting = [piece for piece in pieces if not is_below(found[piece], 0.0, WELL_FITTING)]
        tried = [(piece, *rival) for piece in fitting for rival in rivals(found[piece].languages)]
        names = [name for _, name, _ in tried]
        answers = self._transcribed([piece for piece, *_ in tried], samples, names)
        others: defaultdict[_Piece, list[ChunkTranscript]] = defaultdict(list)
        for (piece, name, probability), answer in zip(tried, answers, strict=True):
            others[piece].append(replace(answer, language=name, language_probability=probability))
        for piece, members in others.items():
            found[piece] = _likeliest(found[piece], members)

    def _repeated(
        self, piece: _Piece, found: ChunkTranscript, samples: Sequence[Samples]
    ) -> ChunkTranscript:
        """What the piece has where a phrase is repeated in it often: a decoder loops there.

        Decoded in stretches that hold two repetitions or so, each prompted with the phrase so that
        it is spelt alike. Where one of them does not fit, or loops too, ``found`` stays.
        """
        if found.repeated is None:
            return found
        phrase, times = found.repeated
        whole = _cut(piece, samples[piece.chunk])
        seconds = len(whole) * _SECONDS_A_SAMPLE
        count = min(math.ceil(times / 2), int(seconds / _LEAST_REPEATED_SECONDS))
        nears = [seconds * number / max(1, count) for number in range(1, count)]
        places = {
            place
            for near in nears
            for place, _ in quiet_places(whole, near, seconds / times / 2)[:1]
        }
        ends = [piece.start, *(piece.start + place for place in sorted(places)), piece.end]
        inside = [_Piece(piece.chunk, start, end) for start, end in itertools.pairwise(ends)]
        answers = self._transcribed(inside, samples, [found.language] * len(inside), (phrase,))
        if any(each.repeated or not _is_certain(each) for each in answers):
            return found
        words = tuple(
            Word(word.text, word.start_seconds + at, word.end_seconds + at, word.confidence)
            for each, answer in zip(inside, answers, strict=True)
            for at in ((each.start - piece.start) * LEVEL_FRAME_SECONDS,)
            for word in answer.words
        )
        fits = [each.log_probability for each in answers if each.log_probability is not None]
        fit = sum(fits) / len(fits) if fits else None
        best = answers[0]
        return ChunkTranscript(
            words, best.language, best.language_probability, fit, found.languages or best.languages
        )

    def _cover(
        self,
        parts: list[list[SpokenPart]],
        chunks: Sequence[Chunk],
        samples: Sequence[Samples],
        least_seconds: float,
        around_seconds: float,
    ) -> None:
        """Decode what has no words again, and put the words that fit where there were none."""
        gaps = [
            (index, place, gap)
            for index, chunk in enumerate(chunks)
            for place, gap in longest_gaps(chunk, parts[index], samples[index], least_seconds)
        ]
        around = round(around_seconds / LEVEL_FRAME_SECONDS)
        pieces = [
            _Piece(
                index,
                max(part.start_frame, gap[0] - around) - chunks[index].first_frame,
                min(part.end_frame, gap[1] + around) - chunks[index].first_frame,
            )
            for index, place, gap in gaps
            for part in (parts[index][place],)
        ]
        languages = [parts[index][place].language for index, place, _ in gaps]
        found = self._transcribed(pieces, samples, languages)
        for (index, place, gap), piece, answer in zip(gaps, pieces, found, strict=True):
            if not is_below(answer, PROBABLE, FITTING) and not is_invented(answer.words):
                part = parts[index][place]
                cut = _cut(piece, samples[index])
                again = _part(chunks[index], piece, answer, cut)
                parts[index][place] = filled(part, again, gap)

    def decode_part(self, part: SpokenPart, chunk: Chunk, samples: Samples) -> SpokenPart:
        """``part`` of ``chunk`` again, in this decoder's language."""
        start = part.start_frame - chunk.first_frame
        piece = _Piece(0, start, start + part.end_frame - part.start_frame)
        [found] = self._transcribed([piece], [samples])
        return _part(chunk, piece, found, _cut(piece, samples))

    def _transcribed(
        self,
        pieces: Sequence[_Piece],
        samples: Sequence[Samples],
        languages: Sequence[str | None] = (),
        expected: tuple[str, ...] = (),
    ) -> list[ChunkTranscript]:
        """Each in its language, where it has one, with phrases that are ``expected`` in all."""
        hints = languages or [None] * len(pieces)
        return self.transcriber.transcribe(
            [
                AudioChunk(
                    _cut(piece, samples[piece.chunk]),
                    hint or self.choice.language,
                    (*self.keyterms, *expected),
                    self.choice.languages,
                )
                for piece, hint in zip(pieces, hints, strict=True)
            ]
        )

    def _pieces(self, samples: Sequence[Samples]) -> list[_Piece]:
        """The chunks, cut where another language seems to begin."""
        windows = [language_windows(len(each) * _SECONDS_A_SAMPLE) for each in samples]
        spans = [(i, *window) for i, members in enumerate(windows) for window in members]
        ranked = self._detected(spans, samples)
        answers = iter(ranked)
        pieces = []
        for index, (each, members) in enumerate(zip(samples, windows, strict=True)):
            changes = changes_in(members, list(itertools.islice(answers, len(members))))
            whole = _whole(index, each)
            places = sorted({self._place(change, index, samples) for change in changes})
            ends = [place for place in places if whole.start < place < whole.end]
            pieces += [
                _Piece(index, start, end)
                for start, end in itertools.pairwise([whole.start, *ends, whole.end])
            ]
        return pieces

    def _place(self, change: Change, index: int, samples: Sequence[Samples]) -> int:
        """The quiet place that best parts the languages of a change; 0 where there is none."""
        near, before, after = change
        places = quiet_places(samples[index], near)
        if len(places) < 2:
            return places[0][0] if places else 0
        spans = [
            (index, *span)
            for frame, _ in places
            for at in (frame * LEVEL_FRAME_SECONDS,)
            for span in ((max(0.0, at - WINDOW_SECONDS), at), (at, at + WINDOW_SECONDS))
        ]
        ranked = self._detected(spans, samples)
        odds = [
            log_odds(left, before, after) + log_odds(right, after, before) - level / DB_PER_NAT
            for left, right, (_, level) in zip(ranked[::2], ranked[1::2], places, strict=True)
        ]
        return places[odds.index(max(odds))][0]

    def _detected(
        self, spans: Sequence[tuple[int, float, float]], samples: Sequence[Samples]
    ) -> list[Ranked]:
        cut = [
            samples[index][round(start / _SECONDS_A_SAMPLE) : round(end / _SECONDS_A_SAMPLE)]
            for index, start, end in spans
        ]
        found = self.transcriber.transcribe(
            [AudioChunk(each, languages=self.choice.languages, has_words=False) for each in cut]
        )
        return [each.languages for each in found]


_SECONDS_A_SAMPLE = LEVEL_FRAME_SECONDS / FRAME_SAMPLES


def _whole(index: int, samples: Samples) -> _Piece:
    return _Piece(index, 0, -(-len(samples) // FRAME_SAMPLES))


def _uncertain_pairs(
    pieces: Sequence[_Piece], found: dict[_Piece, ChunkTranscript]
) -> list[tuple[_Piece, _Piece]]:
    """Neighbours that may be one after all, none in two pairs."""
    pairs: list[tuple[_Piece, _Piece]] = []
    for before, after in itertools.pairwise(pieces):
        if before.chunk != after.chunk or (pairs and pairs[-1][1] == before):
            continue
        one, other = found[before], found[after]
        if one.language == other.language or not (_is_certain(one) and _is_certain(other)):
            pairs.append((before, after))
    return pairs


def _is_certain(found: ChunkTranscript) -> bool:
    return bool(found.words) and not is_below(found, CERTAIN, WELL_FITTING)


def _is_one(whole: ChunkTranscript, *parts: ChunkTranscript) -> bool:
    """Whether two neighbours decoded in one go are at least as good as apart.

    One language that is written for two fits worse, or leaves words out.
    """
    if len({part.language for part in parts}) == 1:
        return True
    if any(not part.words or is_below(part, PROBABLE, FITTING) for part in parts):
        return True
    counts = [len(part.words) for part in parts]
    apart = sum(count * _evidence(part) for count, part in zip(counts, parts, strict=True))
    spoken = [sum(w.end_seconds - w.start_seconds for w in part.words) for part in parts]
    of_whole = sum(w.end_seconds - w.start_seconds for w in whole.words)
    return _evidence(whole) >= apart / sum(counts) and of_whole >= 0.8 * sum(spoken)


def _evidence(found: ChunkTranscript) -> float:
    """Logarithm of how probable a text is and its language: what is written in a neighbour's
    language may fit no worse, but is in no probable one."""
    return (found.log_probability or 0.0) + math.log(found.language_probability or 1.0)


def _likeliest(first: ChunkTranscript, others: Sequence[ChunkTranscript]) -> ChunkTranscript:
    """The answer whose language is most probable by the sound and by how its text fits.

    All languages that were tried share the probability that they had together anew.
    """
    ranked = dict(first.languages)
    by_language = {each.language: each for each in (first, *others) if each.language in ranked}
    texts = {name: "".join(word.text for word in each.words) for name, each in by_language.items()}
    weights = {
        name: ranked[name] * math.exp(_TOKENS * (each.log_probability or 0.0))
        if texts[name] and not is_in_another_script(texts[name], name)
        else 0.0
        for name, each in by_language.items()
    }
    together = sum(ranked[name] for name in weights)
    total = sum(weights.values())
    if total == 0.0:
        return first
    ranked |= {name: together * weight / total for name, weight in weights.items()}
    best = max(weights, key=weights.__getitem__)
    falling = tuple(sorted(ranked.items(), key=lambda pair: -pair[1]))
    return replace(by_language[best], language_probability=ranked[best], languages=falling)


def _cut(piece: _Piece, samples: Samples) -> Samples:
    return samples[piece.start * FRAME_SAMPLES : piece.end * FRAME_SAMPLES]


def _part(chunk: Chunk, piece: _Piece, found: ChunkTranscript, samples: Samples) -> SpokenPart:
    """The words in seconds of the track, each cut down to the chunk's regions of speech."""
    start, end = (
        chunk.first_frame + piece.start,
        min(chunk.end_frame + chunk.after_frames, chunk.first_frame + piece.end),
    )
    detected = [
        ((low - start) * LEVEL_FRAME_SECONDS, (high - start) * LEVEL_FRAME_SECONDS)
        for low, high in chunk.detected
    ]
    spans = [
        (max(low, start) * LEVEL_FRAME_SECONDS, min(high, end) * LEVEL_FRAME_SECONDS)
        for low, high in chunk.speech or ((start, end),)
        if low < end and high > start
    ]
    words = tuple(
        TrackWord(word.text, *inside, word.confidence)
        for word in settled(found.words, samples, detected)
        if (inside := _within_speech(start * LEVEL_FRAME_SECONDS, word, spans)) is not None
    )
    return SpokenPart(
        start,
        end,
        words,
        found.language,
        found.language_probability,
        found.log_probability,
        found.languages,
    )


def _within_speech(
    shift: float, word: Word, spans: Sequence[tuple[float, float]]
) -> tuple[float, float] | None:
    """The part of the word in the span that it shares most with; None for a word outside all."""
    start, end = shift + word.start_seconds, shift + word.end_seconds
    low, high = max(spans, key=lambda span: min(end, span[1]) - max(start, span[0]))
    inside = max(start, low), min(end, high)
    return inside if inside[0] <= inside[1] else None
