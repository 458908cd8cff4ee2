"""Texts that a model writes of a transcript: its summary, and its translations.

Every sentence of a summary has the time that it rests on.

    segments of all tracks -> windows -> sentences (1:1)      the model's time
    sentences, while there are too many -> windows -> sentences

Windows are bounded in size and number, so that the work is: of a longer transcript evenly spaced
ones are read.

Passages are translated whole, by the sound where a model writes English of it, else by the text;
their words get the times of what they render.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from operator import itemgetter

from models import contracts
from models.provider import ModelProvider
from models.tasks import SUMMARIZE, TRANSLATE_SPEECH, TRANSLATE_TEXT
from pipelines.codec import Artifact, Made
from pipelines.execution.chain import Control, Mapper, Resources, Step, Workspace
from pipelines.media.audio import silenced
from pipelines.speech.alignment import track_samples
from pipelines.speech.edits import spread, words_of
from pipelines.speech.words import ends_sentence, joined
from pipelines.types import AudioTrack, StageCode, TimedSentence, TranscriptSegment, TranscriptWord
from storage.objects import ObjectNotFoundError, ObjectStore


@dataclass(frozen=True, slots=True)
class SummaryConfig:
    """Bounds of a summary and of the work for it."""

    models: str = ""
    """Names the backend in use: results of one are not reused for another."""
    max_sentences: int = 8
    window_sentences: int = 4
    """Most sentences of a window, where there are several."""
    window_bytes: int = 8_000
    """Of a window's lines in UTF-8: about 2,000 tokens in any script."""
    line_bytes: int = 1_000
    """A longer segment is cut. A window must hold more lines than it makes sentences."""
    max_windows: int = 48
    """About seven hours of steady speech; of more, evenly spaced windows are read."""
    num_cpus: float = 0.25
    """Logical CPUs of a task: it waits for a model in another process."""


def summarize(
    said: Sequence[TimedSentence],
    *,
    workspace: Workspace,
    models: ModelProvider,
    control: Control,
    config: SummaryConfig,
    mapper: Mapper,
) -> tuple[TimedSentence, ...]:
    """At most ``max_sentences`` sentences on these lines, by time; none on nothing.

    What an earlier run stored is used again. Raises StageError (TRANSCRIPT_FAILED) and
    StageStoppedError.
    """
    waits = Resources(config.num_cpus, why="It waits for a model in another process.")
    step = SumUp(workspace, models, config.models, resources=waits)
    lines = [sentence for sentence in said if sentence.text.strip()]
    while lines:
        windows = list(_windows(lines, config))
        is_last = len(windows) == 1
        most = config.max_sentences if is_last else config.window_sentences
        # Each on one line, cut between characters.
        whole = ([" ".join(it.text.split()).encode() for it in window] for window in windows)
        texts = [
            tuple(it[: config.line_bytes].decode(errors="ignore") for it in own) for own in whole
        ]
        excerpts = [contracts.Excerpt(own, max_sentences=min(most, len(own))) for own in texts]
        made = mapper(excerpts, step, control)
        lines = [
            TimedSentence(each.text, window[each.line].start_ms, window[each.line].end_ms)
            for window, output in zip(windows, made, strict=True)
            for each in SENTENCES.load(workspace.store, output.key)
        ]
        if is_last:
            break
    return tuple(lines)


@dataclass(frozen=True)
class SumUp(Step[contracts.Excerpt, Made]):
    """An excerpt to the stored sentences that sum it up (SENTENCES)."""

    name = "Summary"
    code = StageCode.TRANSCRIPT_FAILED
    version = 1
    workspace: Workspace
    models: ModelProvider
    models_digest: str

    def process(self, excerpt: contracts.Excerpt) -> Made:
        key = SENTENCES.key(self.workspace.prefix, self.models_digest, excerpt)
        return SENTENCES.make(self.workspace.store, key, lambda: self._sentences(excerpt))

    def _sentences(self, excerpt: contracts.Excerpt) -> tuple[contracts.SummarySentence, ...]:
        self.workspace.check()
        summarizer = self.models.find(SUMMARIZE)
        if summarizer is None:
            raise ValueError("The profile has no model for summaries.")
        [sentences] = summarizer.summarize([excerpt])
        return sentences


SENTENCES = Artifact.of(
    tuple[contracts.SummarySentence, ...], "transcript/summary", version=SumUp.version
)


def _windows(
    lines: Sequence[TimedSentence], config: SummaryConfig
) -> Iterator[list[TimedSentence]]:
    """Yield lines in runs of at most ``window_bytes``; at most ``max_windows`` of them."""
    runs: list[list[TimedSentence]] = []
    room = 0
    for line in lines:
        size = min(config.line_bytes, len(line.text.encode())) + 1
        if size > room:
            runs.append([])
            room = config.window_bytes
        runs[-1].append(line)
        room -= size
    count = min(len(runs), config.max_windows)
    for position in range(count):
        yield runs[position * len(runs) // count]


LONGEST_MS = 28_000
"""Of a passage: a chunk of Whisper has 30 s."""
_PAUSE_MS = 2_000
"""A longer one ends a passage, whatever the sentence."""
_AROUND_MS = 500
"""Sound before and after a passage."""


class TranslationError(Exception):
    """The transcript cannot be translated here; the message is for people."""


@dataclass(frozen=True, slots=True)
class SpokenPassage:
    """Neighbouring segments of one speaker in one language, mostly a sentence."""

    segments: tuple[TranscriptSegment, ...]
    language: str
    """BCP 47."""

    @property
    def text(self) -> str:
        return joined([each.text for each in self.segments])


def passages_of(
    segments: Sequence[TranscriptSegment], language: str | None
) -> Iterator[SpokenPassage]:
    """Yield all segments, in order; ``language`` is their track's."""
    run: list[TranscriptSegment] = []
    for segment in segments:
        if run and not _continues(run, segment):
            yield SpokenPassage(tuple(run), run[0].language or language or "und")
            run = []
        run.append(segment)
    if run:
        yield SpokenPassage(tuple(run), run[0].language or language or "und")


def _continues(run: Sequence[TranscriptSegment], segment: TranscriptSegment) -> bool:
    last = run[-1]
    return (
        not ends_sentence(last.text)
        and (last.speaker, last.language) == (segment.speaker, segment.language)
        and segment.start_ms - last.end_ms <= _PAUSE_MS
        and segment.end_ms - run[0].start_ms <= LONGEST_MS
    )


def translate_passages(
    passages: Sequence[SpokenPassage],
    target: str,
    track: AudioTrack | None,
    models: ModelProvider,
    store: ObjectStore,
    muted: Sequence[tuple[int, int]] = (),
) -> list[TranscriptSegment]:
    """Return the passages' segments in ``target`` (BCP 47), those that are in it already as they
    are.

    A segment that nothing is left for goes; a passage that no model makes anything of keeps its own
    words. What is ``muted`` (milliseconds) is silence. Raises TranslationError where there
    is no model, or no sound for the only one.
    """
    foreign = [each for each in passages if not is_same_language(each.language, target)]
    texts = iter(_translated(foreign, target, track, models, store, muted) if foreign else ())
    found: list[TranscriptSegment] = []
    for passage in passages:
        text = "" if is_same_language(passage.language, target) else next(texts)
        found += _divided(passage, text) if text else passage.segments
    return found


def _translated(
    passages: Sequence[SpokenPassage],
    target: str,
    track: AudioTrack | None,
    models: ModelProvider,
    store: ObjectStore,
    muted: Sequence[tuple[int, int]],
) -> list[str]:
    """English by the sound where that is kept, all else by the text."""
    by_sound = models.find(TRANSLATE_SPEECH) if is_same_language(target, "en") else None
    by_text = models.find(TRANSLATE_TEXT)
    if by_sound is not None and track is not None:
        try:
            chunks = [_chunk(each, track, store, muted) for each in passages]
            return by_sound.translate_speech(chunks)
        except ObjectNotFoundError:
            pass  # the media is not kept any more
    if by_text is not None:
        texts = [contracts.SourceText(each.text, each.language, target) for each in passages]
        return by_text.translate_texts(texts)
    if by_sound is not None:
        raise TranslationError("The sound is not kept any more, and no model translates text.")
    raise TranslationError("The service has no model that translates into this language.")


def _chunk(
    passage: SpokenPassage, track: AudioTrack, store: ObjectStore, muted: Sequence[tuple[int, int]]
) -> contracts.AudioChunk:
    start, end = passage.segments[0].start_ms, passage.segments[-1].end_ms
    samples = track_samples(store, track, start - _AROUND_MS, end + _AROUND_MS)
    at_ms = max(start - _AROUND_MS, track.offset_seconds * 1000)  # none lie before the track
    samples = silenced(samples, muted, contracts.SAMPLE_RATE_HZ, at_ms)
    return contracts.AudioChunk(samples, language=passage.language)


def is_same_language(one: str, other: str) -> bool:
    """Return whether tags (BCP 47) name a language, whatever the region."""
    return contracts.primary_language(one) == contracts.primary_language(other)


def _divided(passage: SpokenPassage, text: str) -> Iterator[TranscriptSegment]:
    """Yield the text over the passage's segments, to each as much as its own text is long, so that
    every segment keeps its times."""
    words, sizes = words_of(text), [len(each.text) for each in passage.segments]
    ends = [*accumulate(sizes)]
    bounds = pairwise(accumulate(map(len, words), initial=0))
    middles = [(before + after) / 2 for before, after in bounds]
    scale = ends[-1] / sum(map(len, words))
    places = [bisect_left(ends, middle * scale) for middle in middles]
    for at, group in groupby(zip(places, words, strict=True), key=itemgetter(0)):
        own, segment = [word for _, word in group], passage.segments[at]
        spans = spread(own, segment.start_ms, segment.end_ms)
        timed = tuple(
            TranscriptWord(word, start, end, segment.confidence, segment.speaker)
            for word, (start, end) in zip(own, spans, strict=True)
        )
        everything = tuple(range(len(own)))
        yield replace(
            segment, text=joined(own), words=timed, language=None, estimated_words=everything
        )
