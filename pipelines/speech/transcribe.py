"""Step: a shard's chunks to words, through the transcriber.

Where the language of a chunk changes, each part is decoded apart. Detected speech that no word
covers is decoded once more, and the words of that attempt are taken in it.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from models.contracts import AudioChunk, ChunkTranscript, Samples, Word, is_in_another_script
from models.provider import ModelProvider
from models.tasks import TRANSCRIBE, Transcriber
from pipelines.codec import Artifact
from pipelines.execution.chain import Step, Workspace
from pipelines.media.audio import FRAME_SAMPLES, LEVEL_FRAME_SECONDS, SampleReader, read_blocks
from pipelines.speech.alignment import settled
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
    next_windows,
    quiet_places,
    rivals,
)
from pipelines.speech.regions import Chunk, Shard
from pipelines.speech.words import TrackWord, ends_sentence
from pipelines.types import StageCode

LEAST_UNCOVERED_SECONDS = 0.5
"""Detected speech without words that is at least so long is decoded again."""
MOST_UNCOVERED = 4
"""So many intervals of a chunk are decoded again, the longest ones."""
_LONGEST_UNCOVERED_SECONDS = 5.0
"""About; longer intervals are cut."""
_WORD_REACH_SECONDS = 0.15
"""Speech so near to a word is covered by it."""
_REPETITION_CONFIDENCE = 0.5
"""A less probable word beside the same one is that word's end: the last of a clip was there twice,
at 0.40 and 0.43; words that are spoken again have 0.9 and more."""

_FEW_WORDS = 5
"""What is longer has other evidence: a text that fits is not made of noise by chance."""
_UNHEARD = 0.1
"""Probability of a word, below which the sound alone does not give it."""
_LOOKED_AT = 8
_IMPROBABLE = 0.15
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.133, 2.0
_A_SECOND_SHORT = 15.0
_MOST_ANOMALOUS = 3.0


def uncovered(
    chunk: Chunk, words: Sequence[TrackWord], least_seconds: float = LEAST_UNCOVERED_SECONDS
) -> list[tuple[int, int]]:
    """Intervals of the chunk's detected speech without words, in frames of the track."""
    reach = round(_WORD_REACH_SECONDS / LEVEL_FRAME_SECONDS)
    covered = sorted(
        (
            math.floor(word.start_seconds / LEVEL_FRAME_SECONDS) - reach,
            math.ceil(word.end_seconds / LEVEL_FRAME_SECONDS) + reach,
        )
        for word in words
    )
    least = round(least_seconds / LEVEL_FRAME_SECONDS)
    found = []
    for first, end in chunk.detected:
        start = first
        for low, high in [*covered, (end, end)]:
            if min(low, end) - start >= least:
                found.append((start, min(low, end)))
            start = max(start, min(high, end))
    return found


def longest_gaps(
    chunk: Chunk, parts: Sequence[SpokenPart], samples: Samples, least_seconds: float
) -> list[tuple[int, tuple[int, int]]]:
    """Return the longest intervals without words, each with the place of the part that it is in.

    Those that a decoder may lose its way in again are cut where they are quiet.
    """
    gaps = uncovered(chunk, [word for part in parts for word in part.words], least_seconds)
    longest = sorted(gaps, key=lambda gap: gap[0] - gap[1])[:MOST_UNCOVERED]
    found = []
    for start, end in sorted(longest):
        seconds = (end - start) * LEVEL_FRAME_SECONDS
        count = math.ceil(seconds / _LONGEST_UNCOVERED_SECONDS)
        into = (start - chunk.first_frame) * LEVEL_FRAME_SECONDS
        places = {
            chunk.first_frame + place
            for number in range(1, count)
            for place, _ in quiet_places(samples, into + seconds * number / count, 1.0)[:1]
        }
        inside = [place for place in sorted(places) if start < place < end]
        for low, high in itertools.pairwise([start, *inside, end]):
            middle = (low + high) // 2
            place = next(i for i, part in enumerate(parts) if middle < part.end_frame)
            found.append((place, (low, high)))
    return found


def is_invented(words: Sequence[Word]) -> bool:
    """Return whether words are improbable, or too short or too long to be spoken, nearly all of
    them.

    ``is_segment_anomaly`` of Whisper's own ``transcribe.py``, which looks at the first eight.
    """
    scores = [
        (word.confidence < _IMPROBABLE)
        + _A_SECOND_SHORT * max(0.0, _SHORTEST_SECONDS - seconds)
        + max(0.0, seconds - _LONGEST_SECONDS)
        for word in words[:_LOOKED_AT]
        for seconds in (word.end_seconds - word.start_seconds,)
    ]
    return sum(scores) >= _MOST_ANOMALOUS or sum(scores) + 0.01 >= len(scores)


def founded(part: SpokenPart) -> SpokenPart:
    """Return the part, without its words where those few rest on no sound.

    Of breath, bumps and murmur a decoder makes "Thank you." and the like. The first word of a part
    is chosen by the sound alone, those after it by the text before them too: of such words the
    first had 0.03 to 0.08, the last up to 0.98, the text -0.8 and less. Short replies that were
    spoken, yes and thank you among them, had 0.26 and -0.73 at least.
    """
    fit = part.log_probability
    if fit is None or not 0 < len(part.words) <= _FEW_WORDS:
        return part
    doubtful = fit < WELL_FITTING and part.words[0].confidence < _UNHEARD
    return replace(part, words=()) if doubtful or fit < FITTING else part


def filled(part: SpokenPart, again: SpokenPart, gap: tuple[int, int]) -> SpokenPart:
    """Return the part with the words of ``again`` that have their middle in the gap, cut to it.

    What is left of a word is judged as it is after the cut: a word that is too short then, or of
    which less than half is left, was spoken elsewhere.
    """
    low = gap[0] * LEVEL_FRAME_SECONDS - _WORD_REACH_SECONDS
    high = gap[1] * LEVEL_FRAME_SECONDS + _WORD_REACH_SECONDS
    fresh = list[TrackWord]()
    for word in again.words:
        start, end = max(low, word.start_seconds), min(high, word.end_seconds)
        least = max(_SHORTEST_SECONDS, (word.end_seconds - word.start_seconds) / 2)
        if low <= (word.start_seconds + word.end_seconds) / 2 < high and (
            (start, end) == (word.start_seconds, word.end_seconds) or end - start >= least
        ):
            fresh.append(replace(word, start_seconds=start, end_seconds=end))
    if all(word.end_seconds - word.start_seconds < _SHORTEST_SECONDS for word in fresh):
        return part  # breath behind the last word
    before = [word for word in part.words if word.start_seconds < low][-1:]
    after = [word for word in part.words if word.start_seconds > low][:1]
    for position, beside in ((0, before), (-1, after)):
        if fresh and beside and _is_same(fresh[position], beside[0]):
            del fresh[position]
    if not fresh:
        return part
    words = sorted([*part.words, *fresh], key=lambda word: word.start_seconds)
    known = part
    if not part.words:
        known = replace(again, start_frame=part.start_frame, end_frame=part.end_frame)
    return replace(known, words=tuple(words))


def divided(part: SpokenPart, again: SpokenPart, gap: tuple[int, int]) -> list[SpokenPart]:
    """Return the part filled, or, where the words in the gap are in another language, what is
    before it, they, and what is behind."""
    if again.language == part.language or not part.words:
        return [filled(part, again, gap)]
    inside = filled(replace(part, start_frame=gap[0], end_frame=gap[1], words=()), again, gap)
    if not inside.words:
        return [part]
    start = inside.words[0].start_seconds
    before = tuple(word for word in part.words if word.start_seconds < start)
    around = (
        replace(part, end_frame=gap[0], words=before),
        replace(part, start_frame=gap[1], words=part.words[len(before) :]),
    )
    return [around[0], inside, around[1]]


def _is_same(again: TrackWord, known: TrackWord) -> bool:
    """Return whether a word beside the same one is that word's end: it is improbable, or there is
    no pause of its own length between them."""
    texts = {re.sub(r"\W", "", each.text).casefold() for each in (again, known)}
    first, second = sorted((again, known), key=lambda word: word.start_seconds)
    pause = second.start_seconds - first.end_seconds
    length = again.end_seconds - again.start_seconds
    return len(texts) == 1 and (again.confidence < _REPETITION_CONFIDENCE or pause < length)


_JOINING_ROUNDS = 3
"""Most times that parts of a chunk are joined, and so decoded again."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """An interval of one of the chunks: its place among them, and frames from its start."""

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
"""No interval of a repetition is shorter."""


@dataclass(frozen=True, slots=True)
class ChunkDecoder:
    """Decodes chunks in the languages that a client allows."""

    transcriber: Transcriber
    choice: LanguageChoice = field(default_factory=LanguageChoice)
    keyterms: tuple[str, ...] = ()

    def decode(
        self, chunks: Sequence[Chunk], samples: Sequence[Samples]
    ) -> list[tuple[SpokenPart, ...]]:
        """Return the parts of each chunk, in order; they cover it."""
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
        # Pieces of doubtful language are decoded also in what else they may be in.
        tried = [(piece, *each) for piece in pieces for each in rivals(found[piece], self.choice)]
        names = [name for _, name, _ in tried]
        answers = self._transcribed([piece for piece, *_ in tried], samples, names)
        others: defaultdict[_Piece, list[ChunkTranscript]] = defaultdict(list)
        for (piece, name, probability), answer in zip(tried, answers, strict=True):
            others[piece].append(replace(answer, language=name, language_probability=probability))
        for piece, members in others.items():
            found[piece] = _likeliest(found[piece], members)
        for piece in pieces:
            found[piece] = self._repeated(piece, found[piece], samples)
        parts: list[list[SpokenPart]] = [[] for _ in chunks]
        for piece in pieces:
            cut = _cut(piece, samples[piece.chunk])
            parts[piece.chunk].append(_part(chunks[piece.chunk], piece, found[piece], cut))
        for least_seconds, around_seconds in _ATTEMPTS:
            self._cover(parts, chunks, samples, least_seconds, around_seconds)
        return [tuple(each) for each in parts]

    def _repeated(
        self, piece: _Piece, found: ChunkTranscript, samples: Sequence[Samples]
    ) -> ChunkTranscript:
        """Return what the piece has where a phrase is repeated in it often: a decoder loops there.
        Decoded in intervals that hold two repetitions or so, each prompted with the phrase so that
        it is spelt alike. Where one of them does not fit, or loops too, ``found`` stays."""
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
        if self.choice.language is None:
            # What is certainly in another language than it was decoded in, and fits better, takes
            # the place of what does not fit well: a sentence of two seconds between others.
            doubtful = [at for at, it in enumerate(found) if is_below(it, 0.0, WELL_FITTING)]
            answers = self._transcribed([pieces[at] for at in doubtful], samples)
            for at, answer in zip(doubtful, answers, strict=True):
                is_other = _is_certain(answer) and answer.language != found[at].language
                gain = (answer.log_probability or 0.0) - (found[at].log_probability or 0.0)
                if is_other and gain > _BETTER_FIT:
                    found[at] = answer
        # From the last to the first: a part that is divided moves those behind it.
        for (index, place, gap), piece, answer in [*zip(gaps, pieces, found, strict=True)][::-1]:
            if not is_below(answer, PROBABLE, FITTING) and not is_invented(answer.words):
                part = parts[index][place]
                cut = _cut(piece, samples[index])
                again = _part(chunks[index], piece, answer, cut)
                parts[index][place : place + 1] = divided(part, again, gap)

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
        """Return each in its language, where it has one, with phrases that are ``expected`` in
        all."""
        hints = languages or [None] * len(pieces)
        return self.transcriber.transcribe(
            [
                AudioChunk(
                    _cut(piece, samples[piece.chunk]),
                    (*self.keyterms, *expected),
                    language=hint or self.choice.language,
                    languages=self.choice.languages,
                )
                for piece, hint in zip(pieces, hints, strict=True)
            ]
        )

    def _pieces(self, samples: Sequence[Samples]) -> list[_Piece]:
        """Return the chunks, cut where another language seems to begin."""
        windows = [language_windows(len(each) * _SECONDS_A_SAMPLE) for each in samples]
        found: list[list[Ranked | None]] = [[None] * len(members) for members in windows]
        while due := [(i, at) for i, each in enumerate(found) for at in next_windows(each)]:
            ranked = self._detected([(i, *windows[i][at]) for i, at in due], samples)
            for (index, at), answer in zip(due, ranked, strict=True):
                found[index][at] = answer
        pieces = []
        for index, (each, members) in enumerate(zip(samples, windows, strict=True)):
            changes = changes_in(members, found[index])
            whole = _whole(index, each)
            places = sorted({self._place(change, index, samples) for change in changes})
            ends = [place for place in places if whole.start < place < whole.end]
            pieces += [
                _Piece(index, start, end)
                for start, end in itertools.pairwise([whole.start, *ends, whole.end])
            ]
        return pieces

    def _place(self, change: Change, index: int, samples: Sequence[Samples]) -> int:
        """Return the quiet place that best parts the languages of a change; 0 where there is
        none."""
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
    """Return whether two neighbours decoded in one go are at least as good as apart. One language
    that is written for two fits worse, or leaves words out."""
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
    """Return the answer whose language is most probable by the sound and by how its text fits. All
    languages that were tried share the probability that they had together anew."""
    ranked = {it.language or "": it.language_probability or 0.0 for it in others}
    ranked |= dict(first.languages)
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
    """Return the words in seconds of the track, each cut down to the chunk's regions of speech."""
    start = chunk.first_frame + piece.start
    end = min(chunk.end_frame + chunk.after_frames, chunk.first_frame + piece.end)
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
    known = found.language, found.language_probability, found.log_probability, found.languages
    return SpokenPart(start, end, words, *known)


def _within_speech(
    shift: float, word: Word, spans: Sequence[tuple[float, float]]
) -> tuple[float, float] | None:
    """Return the part of the word in the span that it shares most with; None for a word outside
    all."""
    start, end = shift + word.start_seconds, shift + word.end_seconds
    low, high = max(spans, key=lambda span: min(end, span[1]) - max(start, span[0]))
    inside = max(start, low), min(end, high)
    return inside if inside[0] <= inside[1] else None


_BATCH_CHUNKS = 4
"""Chunks a call: enough to fill a batch, few enough to notice a stop and to bound memory."""
_BETTER_FIT = 0.15
"""Text in another language than its track's is kept where its mean log-probability is that much
above that of the track's language."""


@dataclass(frozen=True, slots=True)
class ChunkWords:
    """The words of one chunk; its parts cover it."""

    parts: tuple[SpokenPart, ...]

    @property
    def words(self) -> tuple[TrackWord, ...]:
        """Of all parts, in order."""
        return tuple(word for part in self.parts for word in part.words)


_SAME_WORD_SECONDS = 0.3
"""Two neighbours that were decoded apart have the start of a word so far apart at most."""


def without_overlaps(chunks: Sequence[Chunk], found: Sequence[ChunkWords]) -> list[ChunkWords]:
    """Return the words of chunks in order, what two of them have both only once."""
    bounds = [(-math.inf, math.inf)] * len(chunks)
    found = [*found]
    for at, chunk in enumerate(chunks[:-1]):
        if chunk.after_frames:
            found[at + 1] = _with_begun_sentence(found[at], found[at + 1], chunk.end_seconds)
            last, before = _seam(found[at].words, found[at + 1].words, chunk.end_seconds)
            bounds[at : at + 2] = (bounds[at][0], last), (before, math.inf)
    return [
        ChunkWords(
            tuple(
                replace(
                    part, words=tuple(w for w in part.words if before < w.start_seconds <= last)
                )
                for part in each.parts
            )
        )
        for each, (before, last) in zip(found, bounds, strict=True)
    ]


def _with_begun_sentence(one: ChunkWords, other: ChunkWords, seam_seconds: float) -> ChunkWords:
    """Return the second chunk's words, the first behind the seam where a sentence begins there.

    A decoder gives its first word the time from the start of the sound on. With the first chunk's
    sentence at its end, and the second's going on in lower case behind the seam, its beginning was
    not said before.
    """
    ended = [word for word in one.words if word.start_seconds < seam_seconds][-1:]
    first, second, *_ = [*other.words, None, None]
    if not ended or first is None or second is None or not ends_sentence(ended[0].text):
        return other
    begins = first.text[:1].isupper() and second.text[:1].islower()
    if not begins or not first.start_seconds < seam_seconds <= second.start_seconds:
        return other
    start = max(seam_seconds, second.start_seconds - (first.end_seconds - first.start_seconds))
    moved = replace(first, start_seconds=start, end_seconds=second.start_seconds)
    return ChunkWords(
        tuple(
            replace(part, words=tuple(moved if word is first else word for word in part.words))
            for part in other.parts
        )
    )


def _seam(
    words: Sequence[TrackWord], following: Sequence[TrackWord], seam_seconds: float
) -> tuple[float, float]:
    """Starts of the last word of the first chunk, and of that after which the second goes on: a
    word that both have, as near to the seam as there is one."""
    common = [
        (one.start_seconds, other.start_seconds)
        for one in words
        for other in following
        if abs(one.start_seconds - other.start_seconds) < _SAME_WORD_SECONDS
        and one.text.casefold().strip(".,!?") == other.text.casefold().strip(".,!?")
    ]
    before = math.nextafter(seam_seconds, 0.0)
    return min(common, key=lambda each: abs(each[0] - seam_seconds), default=(before, before))


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A shard to transcribe, and where its words are stored.

    That of a second pass has the ``track_language`` and the ``first_words_key``: only the parts
    whose language is uncertain are transcribed again, in that language.
    """

    shard: Shard
    words_key: str
    track_language: str | None = None
    first_words_key: str = ""


@dataclass(frozen=True)
class Transcribe(Step[ShardTask, ShardTask]):
    """A shard to itself, its words (WORDS) stored unless they are there."""

    name = "Transcription"
    code = StageCode.TRANSCRIPT_FAILED
    version = 7
    workspace: Workspace
    models: ModelProvider
    choice: LanguageChoice = field(default_factory=LanguageChoice)
    keyterms: tuple[str, ...] = ()

    def process(self, task: ShardTask) -> ShardTask:
        compute = self._words if task.track_language is None else self._words_again
        WORDS.make(self.workspace.store, task.words_key, lambda: compute(task))
        return task

    def _words(self, task: ShardTask) -> Words:
        decoder = self._decoder(self.choice)
        found: list[ChunkWords] = []
        with self.workspace.store.local_copy(task.shard.audio_key) as path:
            samples = shard_samples(task.shard.chunks, path)
            for first in range(0, len(task.shard.chunks), _BATCH_CHUNKS):
                self.workspace.check()
                batch = task.shard.chunks[first : first + _BATCH_CHUNKS]
                found += map(ChunkWords, decoder.decode(batch, [next(samples) for _ in batch]))
        return tuple(found)

    def _words_again(self, task: ShardTask) -> Words:
        """Return those of the first pass, each uncertain part in whichever language fits better."""
        store, language = self.workspace.store, task.track_language
        decoder = self._decoder(replace(self.choice, language=language))
        found: list[ChunkWords] = []
        with store.local_copy(task.shard.audio_key) as path:
            for chunk, samples, first in zip(
                task.shard.chunks,
                shard_samples(task.shard.chunks, path),
                WORDS.load(store, task.first_words_key),
                strict=True,
            ):
                self.workspace.check()
                parts = []
                for part in first.parts:
                    again = part
                    if part.may_be_in(language):
                        again = _better(part, decoder.decode_part(part, chunk, samples))
                    parts.append(again)
                found.append(ChunkWords(tuple(parts)))
        return tuple(found)

    def _decoder(self, choice: LanguageChoice) -> ChunkDecoder:
        return ChunkDecoder(self.models.get(TRANSCRIBE), choice, self.keyterms)


Words = tuple[ChunkWords, ...]
"""Those of each chunk of a shard."""

WORDS = Artifact.of(Words, "transcript/words", version=Transcribe.version)


def _better(first: SpokenPart, second: SpokenPart) -> SpokenPart:
    """Return the part in its own language or in its track's; probabilities are those of the
    detection."""
    if not second.words:
        return first
    if (first.log_probability or 0.0) > (second.log_probability or 0.0) + _BETTER_FIT:
        return first
    probability = dict(first.languages).get(second.language or "", 0.0)
    return replace(second, languages=first.languages, language_probability=probability)


def shard_samples(chunks: Sequence[Chunk], path: Path) -> Iterator[Samples]:
    """Yield the samples of each chunk out of the shard's audio."""
    reader = SampleReader(read_blocks(path))
    position = 0
    for chunk in chunks:
        start, end = chunk.sample_span
        yield reader.read(position, position + end - start)
        position += end - start
