"""Personal data in transcripts, other texts and pictures of scenes, with marks in its place."""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, groupby

import cv2
import numpy as np

from models.contracts import Box, CameraMotion, primary_language
from models.tasks import Entity, EntityKind, EntityRecognizer
from pipelines.across.redaction_patterns import (
    PersonalData,
    PersonalSpan,
    find_patterns,
    without_overlaps,
    words_of,
)
from pipelines.speech.words import joined
from pipelines.types import Scene, TimedSentence, TranscriptSegment, TranscriptWord
from storage.objects import ObjectNotFoundError, ObjectStore

Span = tuple[int, int]
"""Milliseconds."""
Kinds = Collection[PersonalData]
Phrase = tuple[int, bytes]
"""How many words it has, and the digest of these, folded (``_folded``)."""
FindEntities = Callable[[], EntityRecognizer]
"""Opens the model of names when it is needed. Raises what opening it raises: nothing is published
where names were not looked for."""

_NAMED = frozenset({PersonalData.NAME, PersonalData.PLACE})
"""Found by a model, in English only."""

_KINDS = {EntityKind.PERSON: PersonalData.NAME, EntityKind.PLACE: PersonalData.PLACE}

_PAUSE_MS = 3_000
"""What is spoken after a longer one, or by somebody else, does not continue a number."""
_MOST_SEGMENTS = 40
"""Of a passage that is looked at in one piece."""
_AROUND_MS = 120
"""Muted before and after a word, whose measured times are as exact as that."""
_UNWRITTEN_MS = 6_000
"""So much beside a hidden word that nothing is written of may belong to it."""
_REST = ".,;:?!…。、"
"""What stays of a word that is hidden, at its end."""
MARK = re.compile(r"\[(?:" + "|".join(PersonalData) + r")\]")
"""What stands in the place of personal data."""
_LONGEST_MARK = max(len(kind.mark) for kind in PersonalData)
_NAME = r"[A-ZÀ-Þ][\w’'-]+"
_NAMED_CUE = re.compile(
    r"\b(?:(?i:my|his|her|their) (?i:(?:first |last |full )?name)(?:’s|'s| is| was)"
    r"|(?i:i am|i['’]m|this is|call me|named|called|dear|signed by|speaking with|"
    r"spoke (?:to|with)|mister|missus|miss|doctor|professor|mr|mrs|ms|dr)\.?),? "
    rf"({_NAME}(?:,? {_NAME}){{0,2}})"
)
_PLACE_CUE = re.compile(
    r"\b(?i:live[sd]? in|living in|born in|moved to|from|based in|travel(?:led|ed)? to|flew to|"
    rf"arrived in|trip to|drove to|office in|near|outside of?|in)[.,]? ({_NAME}(?: {_NAME}){{0,2}})"
)
_NO_NAMES = words_of(
    "i i'm monday tuesday wednesday thursday friday saturday sunday january february march april"
    " may june july august september october november december english french german spanish"
    " italian the this that ok okay yes no"
)
_ALSO_WORDS = _NO_NAMES | words_of(
    "art baker ball bell berry best bill bird bishop black bob bread brown bush butter cafe center"
    " centre chef chief church city coffee cook dawn day doctor drew east exit faith field fields"
    " fisher flowers for fox frank game gene good grace grant gray great green grey hall hill hope"
    " hotel house hunter jack joy king knight lake lamb little long love mark mason max miller miss"
    " mister moon new north old park pat platform police power price professor ray rich river rob"
    " rose sale school shop sir small south star station stone street strong sue town weather west"
    " white will with wolf wood young and from"
)
"""Of names and places; where they are looked for in other texts they count with a capital only."""
_MOST_KNOWN_WORDS = 16
"""Of what is looked for in other texts too; a spoken number has as many."""
_WORD = re.compile(r"\w+")
_LINE = re.compile(r"[^\W\d_][\w'’.-]*(?: [^\W_][\w'’.-]*){0,3}")
"""A name alone, as a picture shows it."""
_SENTENCES = ("This is ", "."), ("We talked to ", " in the studio.")
"""About a name that stands alone: few are found without a sentence."""
_CHECKS = ("", " said that it was late."), ("", " lives here with his wife.")
"""In which titles of several words ("Coffee Shop") are no names to the model."""


@dataclass(frozen=True, slots=True)
class Known:
    """What was found in texts of a job and is hidden in all of them.

    It is kept with the job for texts to come, as digests with the job's own key: what is hidden
    is not to be read there.
    """

    key: bytes = b""
    kinds: dict[Phrase, PersonalData] = field(default_factory=dict)

    def phrase(self, words: Sequence[str]) -> Phrase:
        """Return what folded words are kept as."""
        text = " ".join(words).encode()
        return len(words), hashlib.blake2b(text, key=self.key, digest_size=16).digest()

    def joined(self, other: Known) -> Known:
        """Another one of both, with the same key."""
        return replace(self, kinds=self.kinds | other.kinds)


def no_recognizer() -> EntityRecognizer:
    """Of processes that redact nothing. Raises RuntimeError."""
    raise RuntimeError("This process has no model of names.")


class _Remembering:
    """A recogniser that reads the same text once."""

    def __init__(self, recognizer: EntityRecognizer) -> None:
        self._recognizer = recognizer
        self._found: dict[str, tuple[Entity, ...]] = {}

    def recognize_entities(self, texts: Sequence[str]) -> list[tuple[Entity, ...]]:
        new = [*dict.fromkeys(text for text in texts if text not in self._found)]
        found = self._recognizer.recognize_entities(new)
        self._found |= dict(zip(new, found, strict=True))
        return [self._found[text] for text in texts]


def remembered(recognizer: FindEntities) -> FindEntities:
    """Return the recogniser for several passes over the same texts."""
    return functools.cache(lambda: _Remembering(recognizer()))


def find_personal_data(
    texts: Sequence[str],
    kinds: Kinds,
    *,
    english: bool,
    recognizer: FindEntities,
    known: Known | None = None,
) -> list[list[PersonalSpan]]:
    """Return what of the kinds is in each text, in order, none inside another. What is found in one
    text is looked for in all, whatever its case and accents, as is what is ``known``; that is added
    to.
    """
    known = known or Known()
    found = [[it for it in find_patterns(text) if it.kind in kinds] for text in texts]
    if english and _NAMED & {*kinds}:
        shown = [*map(_as_sentences_have_it, texts)]
        recognized = recognizer().recognize_entities(shown)
        for at, (text, entities) in enumerate(zip(shown, recognized, strict=True)):
            named, cued = [*_by_model(entities)], [*_by_cue(text)]
            small = any(it[0].islower() for it in _WORD.findall(text))
            is_line = _LINE.fullmatch(text) and not small
            if is_line and (texts[at].isupper() or not (named or cued)):
                named = [*_in_line(text, named, recognizer())]
            found[at] += (it for it in (*named, *cued) if it.kind in kinds)
    for text, own in zip(texts, found, strict=True):
        for span in own:
            if not _touches_mark(text, span):
                known.kinds.update((known.phrase(it), span.kind) for it in _phrases(text, span))
    return [
        [
            it
            for it in without_overlaps([*own, *_by_words(text, known)])
            if not _touches_mark(text, it)
        ]
        for text, own in zip(texts, found, strict=True)
    ]


def _as_sentences_have_it(text: str) -> str:
    """Return a text in capitals with small letters: to the model of names capitals are none."""
    small = _WORD.sub(lambda it: it[0].capitalize(), text) if text.isupper() else text
    return small if len(small) == len(text) else text


def _folded(text: str) -> str:
    letters = unicodedata.normalize("NFKD", text.casefold())
    return "".join(it for it in letters if not unicodedata.combining(it))


def _phrases(text: str, span: PersonalSpan) -> list[tuple[str, ...]]:
    """Return what of a finding is looked for in other texts."""
    words = tuple(_folded(it[0]) for it in _WORD.finditer(text, span.start, span.end))
    if span.kind is PersonalData.NAME:
        return [(it,) for it in words if len(it) > 2 and it not in _NO_NAMES]
    is_own = sum(map(len, words)) > 2 and not {*words} <= _NO_NAMES
    return [words] if is_own and len(words) <= _MOST_KNOWN_WORDS else []


def _by_words(text: str, known: Known) -> Iterator[PersonalSpan]:
    words = [*_WORD.finditer(text)] if known.kinds else []
    folded = [_folded(it[0]) for it in words]
    for size in {size for size, _ in known.kinds}:
        for at in range(len(words) - size + 1):
            phrase = tuple(folded[at : at + size])
            kind = known.kinds.get(known.phrase(phrase))
            if kind is not None and (words[at][0][0].isupper() or not {*phrase} <= _ALSO_WORDS):
                yield PersonalSpan(words[at].start(), words[at + size - 1].end(), kind)


def _in_line(
    text: str, found: Sequence[PersonalSpan], recognizer: EntityRecognizer
) -> Iterator[PersonalSpan]:
    """Yield what of ``found``, or else of what the model finds in two sentences about a line of few
    words, stays a name or place where it is said to do what people do."""
    is_word = " " not in text
    if is_word and _folded(text) in _ALSO_WORDS:
        return
    spans = [{*found}] if found else _within(_SENTENCES, text, recognizer)
    named = set.intersection(*spans)
    checks = [] if is_word or not named else _within(_CHECKS, text, recognizer)
    for each in named:
        if all(any(it.start < each.end and each.start < it.end for it in own) for own in checks):
            yield each


def _within(
    sentences: Sequence[tuple[str, str]], text: str, recognizer: EntityRecognizer
) -> list[set[PersonalSpan]]:
    """Return what the model finds of the text in each of these sentences."""
    recognized = recognizer.recognize_entities([f"{a}{text}{b}" for a, b in sentences])
    spans = [
        {replace(it, start=it.start - len(a), end=it.end - len(a)) for it in _by_model(entities)}
        for (a, _), entities in zip(sentences, recognized, strict=True)
    ]
    return [{it for it in own if it.start >= 0 and it.end <= len(text)} for own in spans]


def _touches_mark(text: str, span: PersonalSpan) -> bool:
    around = max(0, span.start - _LONGEST_MARK), span.end + _LONGEST_MARK
    marks = MARK.finditer(text, *around)
    return any(mark.start() < span.end and mark.end() > span.start for mark in marks)


def _by_model(entities: Sequence[Entity]) -> Iterator[PersonalSpan]:
    for each in entities:
        if each.kind in _KINDS:
            yield PersonalSpan(each.start, each.end, _KINDS[each.kind])


def _by_cue(text: str) -> Iterator[PersonalSpan]:
    """Yield names after words that announce them."""
    for cue, kind in ((_NAMED_CUE, PersonalData.NAME), (_PLACE_CUE, PersonalData.PLACE)):
        for it in cue.finditer(text):
            if it[1].split()[0].lower() not in _NO_NAMES:
                yield PersonalSpan(it.start(1), it.end(1), kind)


def redact_texts(
    texts: Sequence[str],
    kinds: Kinds,
    recognizer: FindEntities,
    known: Known | None = None,
) -> list[str]:
    """Return the texts with marks."""
    found = find_personal_data(texts, kinds, english=True, recognizer=recognizer, known=known)
    return [_marked(text, own) for text, own in zip(texts, found, strict=True)]


def _marked(text: str, found: Sequence[PersonalSpan]) -> str:
    for each in reversed(found):
        text = text[: each.start] + each.kind.mark + text[each.end :]
    return text


def redact_scenes(
    scenes: Sequence[Scene], kinds: Kinds, recognizer: FindEntities, known: Known | None = None
) -> tuple[Scene, ...]:
    """Return scenes with marks in their descriptions and in what is written in the picture."""
    texts = [[it.description, *(line.text for line in it.on_screen_text)] for it in scenes]
    known = known or Known()
    marked = iter(redact_texts([*chain(*texts)], kinds, recognizer, known))
    return tuple(
        replace(
            scene,
            description=next(marked),
            on_screen_text=tuple(replace(it, text=next(marked)) for it in scene.on_screen_text),
            objects=tuple(it for it in scene.objects if not any(_by_words(it, known))),
        )
        for scene in scenes
    )


def redact_sentences(
    sentences: Sequence[TimedSentence],
    kinds: Kinds,
    recognizer: FindEntities,
    known: Known | None = None,
) -> tuple[TimedSentence, ...]:
    """Return a summary with marks."""
    marked = redact_texts([it.text for it in sentences], kinds, recognizer, known)
    return tuple(replace(it, text=text) for it, text in zip(sentences, marked, strict=True))


@dataclass(frozen=True, slots=True)
class RedactedSegments:
    """Segments with marks in place of words."""

    segments: tuple[TranscriptSegment, ...]
    muted: tuple[Span, ...]
    """When the words were spoken that marks are in place of; in order, apart."""


def redact_segments(
    segments: Sequence[TranscriptSegment],
    language: str | None,
    kinds: Kinds,
    recognizer: FindEntities,
    known: Known | None = None,
) -> RedactedSegments:
    """Return a track's segments, with marks; ``language`` is the track's."""
    known = known or Known()
    hidden: list[dict[int, PersonalData]] = [{} for _ in segments]
    for is_english, group in groupby(
        _passages(segments, language), lambda it: it.language in (None, "en")
    ):
        passages = [*group]
        texts = [it.text for it in passages]
        found = find_personal_data(
            texts, kinds, english=is_english, recognizer=recognizer, known=known
        )
        for passage, own in zip(passages, found, strict=True):
            for each in own:
                for segment, word in passage.words_in(each):
                    hidden[segment].setdefault(word, each.kind)
    redacted = (
        _redacted(each, words) if words else each
        for each, words in zip(segments, hidden, strict=True)
    )
    return RedactedSegments(tuple(redacted), tuple(merged(_spans(segments, hidden))))


@dataclass(frozen=True, slots=True)
class _Passage:
    """The words of one speaker without a long pause."""

    language: str | None
    text: str
    places: tuple[tuple[int, int, int], ...]
    """Of each word: where it ends in the text, its segment, its number in that."""

    def words_in(self, found: PersonalSpan) -> Iterator[tuple[int, int]]:
        """Segment and number of each word that it has a part of."""
        at = bisect_right(self.places, found.start, key=lambda it: it[0])
        for end, segment, word in self.places[at:]:
            yield segment, word
            if end >= found.end:
                return


def _passages(segments: Sequence[TranscriptSegment], language: str | None) -> Iterator[_Passage]:
    run: list[int] = []
    for at, segment in enumerate(segments):
        before = segments[at - 1]
        goes_on = (
            run
            and len(run) < _MOST_SEGMENTS
            and (before.speaker, before.language) == (segment.speaker, segment.language)
            and segment.start_ms - before.end_ms <= _PAUSE_MS
        )
        if run and not goes_on:
            yield _passage(segments, run, language)
            run = []
        run.append(at)
    if run:
        yield _passage(segments, run, language)


def _passage(
    segments: Sequence[TranscriptSegment], run: Sequence[int], language: str | None
) -> _Passage:
    spoken = segments[run[0]].language or language
    words = [(word.text, at, n) for at in run for n, word in enumerate(segments[at].words)]
    text, places, written = joined([it for it, *_ in words]), [], 0
    for word, segment, number in words:
        written = text.index(word, written) + len(word)
        places.append((written, segment, number))
    return _Passage(None if spoken is None else primary_language(spoken), text, tuple(places))


def _redacted(segment: TranscriptSegment, hidden: Mapping[int, PersonalData]) -> TranscriptSegment:
    words, estimated, before = list[TranscriptWord](), list[int](), {*segment.estimated_words}
    for kind, group in groupby(range(len(segment.words)), hidden.get):
        run = [*group]
        if kind is None:
            estimated += (len(words) + n for n, at in enumerate(run) if at in before)
            words += (segment.words[at] for at in run)
            continue
        if before.intersection(run):
            estimated.append(len(words))
        first, last = segment.words[run[0]], segment.words[run[-1]]
        rest = last.text[len(last.text.rstrip(_REST)) :]
        words.append(replace(first, text=kind.mark + rest, end_ms=last.end_ms))
    return replace(
        segment,
        text=joined([it.text for it in words]),
        words=tuple(words),
        estimated_words=tuple(estimated),
    )


def _spans(
    segments: Sequence[TranscriptSegment], hidden: Sequence[Mapping[int, PersonalData]]
) -> Iterator[Span]:
    """When the words are spoken, up to the words around them: of a long number a recogniser writes
    one word whose end is seconds too early. With estimated times all of a segment."""
    before_ms = 0
    muted: list[TranscriptWord] = []
    for segment, words in zip(segments, hidden, strict=True):
        if words.keys() & {*segment.estimated_words}:
            yield segment.start_ms, segment.end_ms
        for at, word in enumerate(segment.words):
            apart = muted and word.start_ms - muted[-1].end_ms > 2 * _UNWRITTEN_MS
            if muted and (apart or at not in words):
                yield _span(muted, before_ms, word.start_ms)
                muted = []
            if at in words:
                muted.append(word)
            else:
                before_ms = word.end_ms
    if muted:
        yield _span(muted, before_ms, muted[-1].end_ms + _UNWRITTEN_MS)


def _span(words: Sequence[TranscriptWord], before_ms: int, after_ms: int) -> Span:
    start, end = words[0].start_ms, words[-1].end_ms
    first = max(before_ms, start - _UNWRITTEN_MS)
    last = min(after_ms, end + _UNWRITTEN_MS)
    return min(first, start - _AROUND_MS), max(last, end + _AROUND_MS)


def merged(spans: Iterable[Span]) -> Iterator[Span]:
    """In order, those that touch as one."""
    last: Span | None = None
    for start, end in sorted(spans):
        if last is not None and start <= last[1]:
            last = last[0], max(last[1], end)
        else:
            if last is not None:
                yield last
            last = max(0, start), end
    if last is not None:
        yield last


Places = Mapping[str, Collection[Box]]
"""Object of a picture -> what of it is to be covered."""

_WHOLE = Box(0.0, 0.0, 1.0, 1.0)
_AROUND = 0.5
"""Covered around a line, of its height: where it is read is exact to less."""
_LEAST_PX = 4
_COVER = (72, 72, 72)
_QUALITY = 85


def hidden_places(scenes: Sequence[Scene], overview: Scene | None) -> Places:
    """Return where pictures of redacted scenes, and of all together, show what marks stand for.

    The whole picture where that is not known: where writing rolls or the camera moves, of results
    without times, and where only a description has a mark.
    """
    places = defaultdict[str, set[Box]](set)
    for scene in scenes:
        for key in scene.still_names(""):
            places[key] |= {*_marked_boxes(scene)}
    if overview is not None:
        own = {*_marked_boxes(overview)}
        for key in overview.still_names(""):
            times = [it.time_ms for it in overview.stills if it.key == key]
            shown = [it for it in scenes for at in times if it.start_ms <= at < it.end_ms]
            places[key] |= {box for it in shown for box in _marked_boxes(it)} if shown else own
            if MARK.search(overview.description) and not any(
                MARK.search(line.text) for line in overview.on_screen_text
            ):
                places[key].add(_WHOLE)
    return {key: boxes for key, boxes in places.items() if boxes}


def _marked_boxes(scene: Scene) -> Iterator[Box]:
    lines = [line for line in scene.on_screen_text if MARK.search(line.text)]
    if not lines and MARK.search(scene.description):
        yield _WHOLE
    for line in lines:
        is_there = line.start_ms is not None and not line.rolls
        yield line.box if is_there and scene.camera_motion is CameraMotion.STATIC else _WHOLE


def cover_pictures(store: ObjectStore, places: Places) -> None:
    """Put covered pictures in the place of these; once more changes nothing. A picture that is
    gone stays so."""
    for key, boxes in places.items():
        with suppress(ObjectNotFoundError):
            store.write_bytes(key, covered(store.read_bytes(key), boxes))


def covered(jpeg: bytes, boxes: Collection[Box]) -> bytes:
    """Return the picture with flat boxes. Raises ValueError where it is none."""
    picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    if picture is None:
        raise ValueError("The picture cannot be read.")
    rows, columns = picture.shape[:2]
    for box in boxes:
        around = max(_LEAST_PX, round(_AROUND * box.height * rows))
        top, left = int(box.top * rows) - around, int(box.left * columns) - around
        bottom = round((box.top + box.height) * rows) + around
        right = round((box.left + box.width) * columns) + around
        picture[max(0, top) : bottom, max(0, left) : right] = _COVER
    return cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1].tobytes()
