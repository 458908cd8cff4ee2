"""Every model task, declared once: its contract, how it is called, its probe, what it is for.

A contract is a protocol with one method. All else (provider, replicas, deployments, doctor,
listing) is generic over ``Task``. A new task is its declaration and the values that it alone takes
and returns, here; a backend in ``models/backends``; rows in ``models/registry``; a test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from models import contracts

Contract = TypeVar("Contract")
Input = TypeVar("Input")
Answer = TypeVar("Answer")


class Purpose(StrEnum):
    """What a task's answers are for; a change of one model outdates all results of its purpose."""

    TRANSCRIPT = "transcript"
    CORRECTION = "correction"
    VISION = "vision"
    POLICY = "policy"
    SUMMARY = "summary"
    TRANSLATION = "translation"
    SEARCH = "search"
    REDACTION = "redaction"


class Shape(Enum):
    """What a contract's method takes and returns."""

    SINGLE = "an input; its answer"
    BATCHED = "a sequence of inputs; a list of their answers in order"
    VECTORS = "a sequence of inputs; a matrix, a unit vector of float32 a row in order"


class WrongAnswerError(ValueError):
    """A model's answer to the probe cannot be right."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Contract]):
    """The method of a contract, and an input to try it with."""

    method: Callable[..., Any]
    """Of the protocol: it names the contract and what a model is called by."""
    shape: Shape
    sample: Callable[[], Any]
    report: Callable[[Any], str]
    """The answer to ``sample`` in a few words. Raises WrongAnswerError."""
    dimensions: int | None = None
    """Numbers in a vector; None: it makes none, or as many as the backend's model has."""


def single(
    method: Callable[[Contract, Input], Answer],
    sample: Callable[[], Input],
    report: Callable[[Answer], str],
) -> Call[Contract]:
    """A method that takes one input."""
    return Call(method, Shape.SINGLE, sample, report)


def batched(
    method: Callable[[Contract, Sequence[Input]], Sequence[Answer]],
    sample: Callable[[], Input],
    report: Callable[[Answer], str],
) -> Call[Contract]:
    """A method that takes several inputs."""
    return Call(method, Shape.BATCHED, sample, report)


def embedding(
    method: Callable[[Contract, Sequence[Input]], contracts.Vectors],
    sample: Callable[[], Input],
    dimensions: int | None = None,
) -> Call[Contract]:
    """A method that makes vectors of several inputs."""

    def report(vector: npt.NDArray[np.float32]) -> str:
        if not np.isclose(np.linalg.norm(vector), 1, atol=1e-3):
            raise WrongAnswerError("the vector is not of unit length")
        return f"{len(vector)} dimensions"

    return Call(method, Shape.VECTORS, sample, report, dimensions)


@dataclass(frozen=True, eq=False)
class Task(Generic[Contract]):
    """What a model is for. There is one object a task; it is pickled by its name."""

    name: str
    call: Call[Contract]
    purpose: Purpose
    in_task: bool = True
    """Whether packaged models without a share of a GPU, which load little, run in the process with
    the inputs instead of in a replica, which would cost a copy of them; others have replicas."""
    optional: bool = False
    """Whether a profile serves without the task where its weights are not installed."""
    most_replicas: int = 1
    """Unless the setting ``model_replicas`` has another number for it."""
    enabled_by: str | None = None
    """The setting without which nothing calls it, so that it gets no replicas."""
    own_weights: str | None = None
    """The setting that names a folder of the user's own weights in place of the profile's."""

    @property
    def contract_name(self) -> str:
        """The protocol's name, which its deployment has too."""
        return self.call.method.__qualname__.split(".")[0]

    @property
    def method_name(self) -> str:
        return self.call.method.__name__

    def answers(self, model: Contract, inputs: Sequence[Any]) -> list[Any]:
        """The model's answer to each input, in order. Raises what the model raises."""
        method = getattr(model, self.method_name)
        if self.call.shape is Shape.SINGLE:
            return [method(each) for each in inputs]
        return list(method(inputs))

    def gathered(self, answers: Sequence[Any]) -> Any:
        """What the method returns: these answers, put together as its shape has it."""
        if self.call.shape is Shape.SINGLE:
            return answers[0]
        if self.call.shape is Shape.BATCHED:
            return list(answers)
        if not answers:
            return np.empty((0, self.call.dimensions or 0), np.float32)
        return np.asarray(answers, np.float32).reshape(len(answers), self.call.dimensions or -1)

    def probe(self, model: Contract) -> Any:
        """The model's answer to the sample. Raises what the model raises."""
        return self.answers(model, [self.call.sample()])[0]

    def __reduce__(self) -> tuple[Callable[[str], Task[Any]], tuple[str]]:
        return get_task, (self.name,)


def _hiss(seconds: float) -> contracts.Samples:
    """Faint noise: unlike silence, no backend takes a short way round it."""
    generator = np.random.default_rng(0)
    samples = generator.standard_normal(round(seconds * contracts.SAMPLE_RATE_HZ)) * 0.003
    return samples.astype(np.float32)


def _grey() -> contracts.Picture:
    return np.full((180, 320, 3), 128, dtype=np.uint8)


def _nothing(wrong: str, right: str) -> Callable[[npt.NDArray[Any]], str]:
    """Return a report of probabilities, none of which may be above a half."""

    def report(probabilities: npt.NDArray[Any]) -> str:
        if (probabilities > 0.5).any():
            raise WrongAnswerError(wrong)
        return right.format(len(probabilities))

    return report


class Transcriber(Protocol):
    """Speech to words."""

    def transcribe(self, chunks: Sequence[contracts.AudioChunk]) -> list[contracts.ChunkTranscript]:
        """One transcript a chunk, in order. No speech gives no words, never made-up ones."""
        ...


TRANSCRIBE = Task(
    "transcribe",
    batched(
        Transcriber.transcribe,
        lambda: contracts.AudioChunk(_hiss(1.0)),
        lambda transcript: f"{len(transcript.words)} words in a second of faint noise",
    ),
    Purpose.TRANSCRIPT,
    in_task=False,
    most_replicas=2,
    own_weights="whisper_weights",
)


class WordAligner(Protocol):
    """Known words to times."""

    def align(self, passages: Sequence[contracts.SpokenText]) -> list[tuple[contracts.Word, ...]]:
        """When each word of each passage is spoken, in order, inside the samples; none for a
        passage that cannot be aligned."""
        ...


ALIGN = Task(
    "align",
    batched(
        WordAligner.align,
        lambda: contracts.SpokenText(_hiss(1.0), ("Good", "morning.")),
        lambda words: f"{len(words)} of two words in a second of faint noise",
    ),
    Purpose.CORRECTION,
    in_task=False,
    own_weights="whisper_weights",
)


class SpeechTranslator(Protocol):
    """Speech in any language to English text."""

    def translate_speech(self, chunks: Sequence[contracts.AudioChunk]) -> list[str]:
        """The English of each chunk, in order; empty for one without speech."""
        ...


TRANSLATE_SPEECH = Task(
    "translate_speech",
    batched(
        SpeechTranslator.translate_speech,
        lambda: contracts.AudioChunk(_hiss(1.0), language="de"),
        lambda text: f"{len(text.split())} words in a second of faint noise",
    ),
    Purpose.TRANSLATION,
    in_task=False,
    own_weights="whisper_weights",
)


class TextTranslator(Protocol):
    """Text in another language."""

    def translate_texts(self, texts: Sequence[contracts.SourceText]) -> list[str]:
        """One translation a text, in order. Raises ValueError for a language that it lacks."""
        ...


TRANSLATE_TEXT = Task(
    "translate_text",
    batched(
        TextTranslator.translate_texts,
        lambda: contracts.SourceText("Good morning.", "en", "de"),
        lambda text: f"translates a greeting: {text}",
    ),
    Purpose.TRANSLATION,
    optional=True,
)


class SpeechDetector(Protocol):
    """Where somebody speaks."""

    def find_speech(self, samples: contracts.Samples) -> contracts.Probabilities:
        """That somebody speaks, for each SPEECH_FRAME_SAMPLES; silence fills up the last."""
        ...


DETECT_SPEECH = Task(
    "detect_speech",
    single(
        SpeechDetector.find_speech,
        lambda: _hiss(2.0),
        _nothing("found speech in noise", "finds no speech in faint noise"),
    ),
    Purpose.TRANSCRIPT,
)


class SoundDetector(Protocol):
    """Speech, singing, music."""

    def find_sounds(self, samples: contracts.Samples) -> contracts.Probabilities:
        """Of each kind in each frame, shape (frames, kinds). Kinds are found at the same time; what
        is more than two seconds away changes nothing."""
        ...


DETECT_SOUNDS = Task(
    "detect_sounds",
    single(
        SoundDetector.find_sounds,
        lambda: _hiss(2.0),
        _nothing("found sounds in faint noise", "finds no speech and no music in faint noise"),
    ),
    Purpose.TRANSCRIPT,
)


class SpeakerSegmenter(Protocol):
    """Who speaks when within seconds, whoever they are."""

    def segment(self, windows: Sequence[contracts.Samples]) -> list[contracts.SpeakerActivity]:
        """The activity of each window, in order; of at most ACTIVITY_WINDOW_SAMPLES each, silence
        after those of fewer. It does not depend on a window's level or on its neighbours."""
        ...


_NO_SPEAKER = _nothing("found speakers in noise", "finds no speaker in faint noise")
SEGMENT_SPEAKERS = Task(
    "segment_speakers",
    batched(
        SpeakerSegmenter.segment,
        lambda: _hiss(2.0),
        lambda activity: _NO_SPEAKER(activity.speaking),
    ),
    Purpose.TRANSCRIPT,
)


class SpeakerEmbedder(Protocol):
    """A voice as a vector; near vectors are the same voice."""

    def embed(self, utterances: Sequence[contracts.Samples]) -> contracts.Vectors:
        """Unit vectors, shape (utterances, dimensions), one a row, in order."""
        ...


EMBED_VOICE = Task(
    "embed_voice",
    embedding(SpeakerEmbedder.embed, lambda: _hiss(1.0)),
    Purpose.TRANSCRIPT,
)


class SceneDescriber(Protocol):
    """Stills to words and labels."""

    def describe(self, scenes: Sequence[contracts.SceneStills]) -> list[contracts.SceneDescription]:
        """One description a scene, in order."""
        ...


DESCRIBE_SCENES = Task(
    "describe_scenes",
    batched(
        SceneDescriber.describe,
        lambda: contracts.SceneStills((_grey(),), 1.0),
        lambda scene: f"describes a grey picture: {scene.description}",
    ),
    Purpose.VISION,
)


class ContentClassifier(Protocol):
    """What a still shows, as far as an operator's content policy needs."""

    def classify(self, stills: Sequence[contracts.Picture]) -> list[dict[str, float]]:
        """Scores by label, 0 to 1, a dictionary a still, in order; always the same labels."""
        ...


CLASSIFY_CONTENT = Task(
    "classify_content",
    batched(
        ContentClassifier.classify, _grey, lambda scores: f"scores {', '.join(sorted(scores))}"
    ),
    Purpose.POLICY,
    enabled_by="blocked_labels",
)


class TextReader(Protocol):
    """Writing on the screen."""

    def read(self, stills: Sequence[contracts.Picture]) -> list[tuple[contracts.TextLine, ...]]:
        """The lines of each still, in order, top to bottom; none that is doubtful."""
        ...


READ_TEXT = Task(
    "read_text",
    batched(TextReader.read, _grey, lambda lines: f"{len(lines)} lines of text in a grey picture"),
    Purpose.VISION,
)


class ObjectDetector(Protocol):
    """Objects of known classes."""

    def find(
        self, stills: Sequence[contracts.Picture]
    ) -> list[tuple[contracts.DetectedObject, ...]]:
        """What each still shows, in order, the most certain first."""
        ...


DETECT_OBJECTS = Task(
    "detect_objects",
    batched(ObjectDetector.find, _grey, lambda found: f"{len(found)} objects in a grey picture"),
    Purpose.VISION,
)


class BoundaryDetector(Protocol):
    """Where one shot ends and the next begins."""

    def detect_boundaries(self, frames: contracts.BoundaryPictures) -> contracts.Probabilities:
        """Of each of neighbouring frames of a video, in order, that a shot ends with it; of a
        gradual transition its middle stands out. What is more than a hundred frames away changes
        nothing."""
        ...


_BOUNDARY_FRAMES = (50, contracts.BOUNDARY_HEIGHT, contracts.BOUNDARY_WIDTH, 3)
DETECT_BOUNDARIES = Task(
    "detect_boundaries",
    single(
        BoundaryDetector.detect_boundaries,
        lambda: np.full(_BOUNDARY_FRAMES, 128, np.uint8),
        _nothing("found cuts in grey frames", "finds no cut in {} grey frames"),
    ),
    Purpose.VISION,
)


class Summarizer(Protocol):
    """Speech in few sentences."""

    def summarize(
        self, excerpts: Sequence[contracts.Excerpt]
    ) -> list[tuple[contracts.SummarySentence, ...]]:
        """One to ``max_sentences`` sentences an excerpt, in order."""
        ...


SUMMARIZE = Task(
    "summarize",
    batched(
        Summarizer.summarize,
        lambda: contracts.Excerpt(("Good morning.", "It rains all day."), 1),
        lambda sentences: f"sums up two lines: {sentences[0].text}",
    ),
    Purpose.SUMMARY,
)


class QuestionAnswerer(Protocol):
    """Questions about recordings."""

    def answer(
        self, questions: Sequence[contracts.Question]
    ) -> list[tuple[contracts.AnswerSentence, ...]]:
        """The sentences that answer each question, in order; none where its passages do not."""
        ...


ANSWER = Task(
    "answer",
    batched(
        QuestionAnswerer.answer,
        lambda: contracts.Question("When does it rain?", ("It rains all day on Sunday.",)),
        lambda sentences: f"{len(sentences)} sentences on one passage",
    ),
    Purpose.SEARCH,
    optional=True,
)


class TextEmbedder(Protocol):
    """A sentence or a few as a vector; near vectors mean alike."""

    def embed_texts(self, texts: Sequence[str]) -> contracts.Vectors:
        """Unit vectors, shape (texts, TEXT_DIMENSIONS), one a row, in order."""
        ...


EMBED_TEXT = Task(
    "embed_text",
    embedding(TextEmbedder.embed_texts, lambda: "Good morning.", contracts.TEXT_DIMENSIONS),
    Purpose.SEARCH,
    optional=True,
)


class PictureEmbedder(Protocol):
    """A still as a vector; near vectors look alike."""

    def embed_pictures(self, stills: Sequence[contracts.Picture]) -> contracts.Vectors:
        """Unit vectors, shape (stills, PICTURE_DIMENSIONS), one a row, in order."""
        ...


EMBED_PICTURES = Task(
    "embed_pictures",
    embedding(PictureEmbedder.embed_pictures, _grey, contracts.PICTURE_DIMENSIONS),
    Purpose.SEARCH,
    optional=True,
)


class PhraseEmbedder(Protocol):
    """Phrases in the space of pictures; near a picture's vector are those that it shows."""

    def embed_phrases(self, phrases: Sequence[str]) -> list[contracts.PhraseVector]:
        """One a phrase, in order, for pictures that the same model embeds."""
        ...


EMBED_PHRASES = Task(
    "embed_phrases",
    batched(
        PhraseEmbedder.embed_phrases,
        lambda: "a grey picture",
        lambda phrase: (
            f"{len(phrase.vector)} dimensions, shown from {phrase.least_cosine(0.5):.2f}"
        ),
    ),
    Purpose.SEARCH,
    optional=True,
)


class FaceEmbedder(Protocol):
    """Faces as vectors; near ones are of the same person."""

    def embed_faces(
        self, stills: Sequence[contracts.Picture]
    ) -> list[tuple[contracts.FaceVector, ...]]:
        """Those of each still that show enough, in order, the largest first."""
        ...


EMBED_FACES = Task(
    "embed_faces",
    batched(FaceEmbedder.embed_faces, _grey, lambda faces: f"{len(faces)} faces in a grey picture"),
    Purpose.VISION,
    optional=True,
    enabled_by="people",
)


class EntityKind(StrEnum):
    """What a name is of."""

    PERSON = "person"
    PLACE = "place"
    ORGANIZATION = "organization"


@dataclass(frozen=True, slots=True)
class Entity:
    """A name in a text: characters ``start`` to ``end``."""

    kind: EntityKind
    start: int
    end: int


class EntityRecognizer(Protocol):
    """Names in texts."""

    def recognize_entities(self, texts: Sequence[str]) -> list[tuple[Entity, ...]]:
        """Those of each English text, in order; they do not overlap."""
        ...


RECOGNIZE_ENTITIES = Task(
    "recognize_entities",
    batched(
        EntityRecognizer.recognize_entities,
        lambda: "My name is Anna Weber and I live in London.",
        lambda entities: f"{len(entities)} names in a sentence with two",
    ),
    Purpose.REDACTION,
)

TASKS: tuple[Task[Any], ...] = tuple(
    each for each in list(globals().values()) if isinstance(each, Task)
)
"""All of the above."""

_BY_NAME = {each.name: each for each in TASKS}


def get_task(name: str) -> Task[Any]:
    """The task of a name. Raises ValueError."""
    if name not in _BY_NAME:
        raise ValueError(f"{name!r} is none of {', '.join(each.name for each in TASKS)}")
    return _BY_NAME[name]


def tasks_for(purpose: Purpose) -> tuple[Task[Any], ...]:
    """The tasks of a purpose, in the order of their declarations."""
    return tuple(each for each in TASKS if each.purpose is purpose)
