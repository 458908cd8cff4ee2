"""What models take and return: plain values (numpy arrays, frozen dataclasses), so that a backend
runs the same in a test, in a Serve replica or in a notebook.
At the end the languages that a transcriber may know, by BCP 47.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

SAMPLE_RATE_HZ = 16_000
"""Sample rate of all audio that models see: mono float32 in [-1, 1]."""

Samples = npt.NDArray[np.float32]
Picture = npt.NDArray[np.uint8]
"""A still: RGB, shape (height, width, 3), upright, square pixels."""

BOUNDARY_WIDTH, BOUNDARY_HEIGHT = 48, 27
BoundaryPictures = npt.NDArray[np.uint8]
"""Tiny pictures of neighbouring frames: RGB, shape (frames, 27, 48, 3), stretched to that."""
Probabilities = npt.NDArray[np.float32]

ACTIVITY_WINDOW_SAMPLES = 10 * SAMPLE_RATE_HZ
ACTIVITY_FRAME_SAMPLES = 270
ACTIVITY_START_SAMPLES = 360
ACTIVITY_FRAMES = 589
"""Frames in a window of speaker activity. Frame ``n`` stands for the 270 samples from sample
``360 + 270 n``, the middle of the 991 that the network sees of it."""
LOCAL_SPEAKERS = 3
SPEECH_FRAME_SAMPLES = 512
"""Samples of one probability of speech: 32 ms."""
SOUND_FRAME_SAMPLES = 160
"""Frame ``n`` of sounds is about the 400 samples from sample ``160 n``."""

Vectors = npt.NDArray[np.float32]
"""Shape (items, dimensions)."""

TEXT_DIMENSIONS = 512
"""Numbers in a text's vector: those of the packaged model, which the database's column is made for;
shorter ones are filled up with zeros, which changes no angle."""
PICTURE_DIMENSIONS = 768
"""Numbers in a picture's vector: those of the base models of CLIP's and SigLIP's kind."""


class DeviceMemoryError(MemoryError):
    """A device's memory is taken, by neighbours it may be: the same input may fit later."""


class ShotType(StrEnum):
    """How much of a person or the place the shot shows."""

    EXTREME_WIDE = "extreme_wide"
    WIDE = "wide"
    FULL = "full"
    MEDIUM = "medium"
    MEDIUM_CLOSE_UP = "medium_close_up"
    CLOSE_UP = "close_up"
    EXTREME_CLOSE_UP = "extreme_close_up"
    UNKNOWN = "unknown"


class ShotAngle(StrEnum):
    """From where the camera looks at its subject."""

    EYE_LEVEL = "eye_level"
    HIGH = "high"
    LOW = "low"
    OVERHEAD = "overhead"
    DUTCH = "dutch"
    UNKNOWN = "unknown"


class CameraMotion(StrEnum):
    """What the camera does during a scene, as measured between its frames."""

    STATIC = "static"
    PAN_LEFT = "pan_left"
    PAN_RIGHT = "pan_right"
    TILT_UP = "tilt_up"
    TILT_DOWN = "tilt_down"
    ZOOM_IN = "zoom_in"
    ZOOM_OUT = "zoom_out"
    HANDHELD = "handheld"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in shares of the picture's width and height, from its top left corner."""

    left: float
    top: float
    width: float
    height: float

    @property
    def area(self) -> float:
        return self.width * self.height

    def rounded(self) -> Box:
        """The same to four digits, a third of a pixel in 4K."""
        edges = (self.left, self.top, self.width, self.height)
        return Box(*(round(each, 4) for each in edges))

    def within(self, outer: Box) -> Box:
        """The part of it in ``outer``, in shares of that; flat where there is none."""
        left, top = max(self.left, outer.left), max(self.top, outer.top)
        right = min(self.left + self.width, outer.left + outer.width)
        bottom = min(self.top + self.height, outer.top + outer.height)
        return Box(
            (left - outer.left) / outer.width,
            (top - outer.top) / outer.height,
            max(0.0, right - left) / outer.width,
            max(0.0, bottom - top) / outer.height,
        )

    def placed(self, outer: Box) -> Box:
        """The box in ``outer``, in shares of what that is in: the reverse of ``within``."""
        left, top = outer.left + self.left * outer.width, outer.top + self.top * outer.height
        return Box(left, top, self.width * outer.width, self.height * outer.height)

    def overlap(self, other: Box) -> float:
        """Intersection over union, 0 to 1."""
        across = min(self.left + self.width, other.left + other.width) - max(self.left, other.left)
        down = min(self.top + self.height, other.top + other.height) - max(self.top, other.top)
        if across <= 0 or down <= 0:
            return 0.0
        shared = across * down
        return shared / (self.width * self.height + other.width * other.height - shared)


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of writing in a picture; confidence 0 to 1."""

    text: str
    confidence: float
    box: Box


@dataclass(frozen=True, slots=True)
class DetectedObject:
    """An object in a picture; ``label`` is a lower-case noun, confidence 0 to 1."""

    label: str
    confidence: float
    box: Box


class Movement(StrEnum):
    """What an object was measured to do in the picture, from the first to the last look at it."""

    LEFT = "left"
    RIGHT = "right"
    NEARER = "nearer"
    AWAY = "away"


@dataclass(frozen=True, slots=True)
class SeenObject:
    """What a scene's sampled frames show of one label."""

    label: str
    fewest: int
    """At the same time, in the frames that show any; 1 at least."""
    most: int
    """Of more than two, in two frames at least; where there are no more than two, in either."""
    box: Box
    """Of the largest, near the middle of the scene."""
    movement: Movement | None = None
    """Of a single one; the camera may have moved instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedLanguages:
    """What languages a client expects to be spoken, by BCP 47."""

    language: str | None = None
    """Of all that is spoken; None: it is detected."""
    languages: tuple[str, ...] = ()
    """What it is detected among; none: all that the transcriber knows."""


@dataclass(frozen=True, slots=True)
class AudioChunk(ExpectedLanguages):
    """An interval of speech to transcribe: mono samples at SAMPLE_RATE_HZ, at most about 30 s."""

    samples: Samples
    keyterms: tuple[str, ...] = ()
    """Words and phrases that are likely to be spoken."""
    has_words: bool = True
    """False: its languages are detected, nothing is decoded."""


@dataclass(frozen=True, slots=True)
class SourceText:
    """A sentence or a few, to be written in another language; languages in BCP 47."""

    text: str
    language: str
    target: str


@dataclass(frozen=True, slots=True)
class SpeakerActivity:
    """Who speaks when in a window of ACTIVITY_WINDOW_SAMPLES, several at once included."""

    speech: Probabilities
    """That anybody speaks, shape (ACTIVITY_FRAMES,)."""
    speaking: npt.NDArray[np.bool_]
    """Shape (ACTIVITY_FRAMES, LOCAL_SPEAKERS); the order of the speakers is that of the window
    alone."""


class SoundKind(StrEnum):
    """Sounds that are found, in the order of the columns of their probabilities."""

    SPEECH = "speech"
    SINGING = "singing"
    MUSIC = "music"


@dataclass(frozen=True, slots=True)
class Word:
    """One spoken word. Seconds from the start of the chunk; confidence 0 to 1."""

    text: str
    start_seconds: float
    end_seconds: float
    confidence: float


@dataclass(frozen=True, slots=True)
class ChunkTranscript:
    """What was spoken in one chunk: words in order, inside the chunk, not overlapping."""

    words: tuple[Word, ...]
    language: str | None
    """BCP 47, or None where the backend cannot detect it and there is no speech."""
    language_probability: float | None = None
    """0 to 1; 1 where the language was given, None where the backend does not estimate it."""
    log_probability: float | None = None
    """Mean over the tokens of the text, at most 0: how well the text fits the sound."""
    languages: tuple[tuple[str, float], ...] = ()
    """The most probable ones and their probabilities, falling, where they were detected."""
    repeated: tuple[str, int] | None = None
    """A phrase that the decoder repeated, and how often, where that may be a loop: ``words`` do not
    have it so often."""


@dataclass(frozen=True, slots=True)
class SpokenText:
    """An interval of speech whose words are known: mono samples at SAMPLE_RATE_HZ, 30 s at most."""

    samples: Samples
    words: tuple[str, ...]
    """Without spaces in them; one at least."""
    language: str | None = None
    """BCP 47; None: the backend decides."""


@dataclass(frozen=True, slots=True)
class SceneStills:
    """A scene to describe: one to five stills in time order, and what was measured of it."""

    stills: tuple[Picture, ...]
    duration_seconds: float
    camera_motion: CameraMotion = CameraMotion.UNKNOWN
    text: tuple[TextLine, ...] = ()
    """Writing on the screen that was read, top to bottom."""
    objects: tuple[SeenObject, ...] = ()
    """What a detector of objects found, the largest first."""
    visible: tuple[int, ...] = ()
    """How many objects it saw about the time of each still; empty where there is no detector."""


@dataclass(frozen=True, slots=True)
class SceneDescription:
    """A scene described; every claim is supported by the stills."""

    description: str
    """One or two sentences."""
    objects: tuple[str, ...]
    """Sorted lower-case nouns, no repeats."""
    shot_type: ShotType
    shot_angle: ShotAngle
    stills: tuple[int, ...] = ()
    """The scene's stills, the one that shows most first; empty where that was not looked at."""


@dataclass(frozen=True, slots=True)
class FaceVector:
    """A face in a picture, and a unit vector that is near to those of the same person's faces."""

    box: Box
    vector: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PhraseVector:
    """A phrase in the space of pictures. A picture shows it with the probability ``sigmoid(scale *
    cosine + bias)``, as SigLIP's loss (Zhai et al. 2023) has it; both numbers are learned."""

    vector: Samples
    """Of unit length, shape (PICTURE_DIMENSIONS,)."""
    scale: float
    bias: float

    def least_cosine(self, probability: float) -> float:
        """Of pictures that show it with the probability, which is between 0 and 1."""
        return (math.log(probability / (1 - probability)) - self.bias) / self.scale


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Something to sum up: spoken lines, in order, one at least."""

    lines: tuple[str, ...]
    max_sentences: int


@dataclass(frozen=True, slots=True)
class SummarySentence:
    """A sentence of a summary, and the line of the excerpt that it rests on, from 0."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and passages of recordings that may answer it, one at least."""

    text: str
    passages: tuple[str, ...]
    language: str | None = None
    """Of the answer (BCP 47); None: that of the question."""


@dataclass(frozen=True, slots=True)
class Citation:
    """What a sentence rests on: the number of a passage, from 0, and words of it."""

    passage: int
    quote: str


@dataclass(frozen=True, slots=True)
class AnswerSentence:
    """A sentence of an answer, and what it rests on."""

    text: str
    citations: tuple[Citation, ...]


_WHISPER = (
    "af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he "
    "hi hr ht hu hy id is it ja jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne "
    "nl nn no oc pa pl ps pt ro ru sa sd si sk sl sn so sq sr su sv sw ta te tg th tk tl tr tt uk "
    "ur uz vi yi yo yue zh"
)
SPOKEN_LANGUAGES = frozenset(_WHISPER.split())
"""Those of Whisper's tokenizers; a test holds them to faster-whisper's."""
_NAMES = (
    "afrikaans amharic arabic assamese azerbaijani bashkir belarusian bulgarian bengali tibetan "
    "breton bosnian catalan czech welsh danish german greek english spanish estonian basque "
    "persian finnish faroese french galician gujarati hausa hawaiian hebrew hindi croatian "
    "haitian-creole hungarian armenian indonesian icelandic italian japanese javanese georgian "
    "kazakh khmer kannada korean latin luxembourgish lingala lao lithuanian latvian malagasy maori "
    "macedonian malayalam mongolian marathi malay maltese myanmar nepali dutch nynorsk norwegian "
    "occitan punjabi polish pashto portuguese romanian russian sanskrit sindhi sinhala slovak "
    "slovenian shona somali albanian serbian sundanese swedish swahili tamil telugu tajik thai "
    "turkmen tagalog turkish tatar ukrainian urdu uzbek vietnamese yiddish yoruba cantonese "
    "chinese"
)
_BY_NAME = dict(zip(_NAMES.split(), _WHISPER.split(), strict=True))


def language_named(name: str) -> str | None:
    """The language that a server calls by its tag or, as OpenAI's, by its English name; None for
    one that Whisper does not know."""
    name = name.strip().lower().replace(" ", "-")
    language = _BY_NAME.get(name) or primary_language(name)
    return language if language in SPOKEN_LANGUAGES else None


_M2M = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms "
    "my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur "
    "uz vi wo xh yi yo zh zu"
)
_OTHERWISE = {"jw": "jv", "nn": "no", "yue": "zh"}


def written_language(tag: str) -> str:
    """The language of a BCP 47 tag as M2M100 names it."""
    primary = primary_language(tag)
    return _OTHERWISE.get(primary, primary)


WRITTEN_LANGUAGES = frozenset(_M2M.split())
"""Those of M2M100's tokenizer; a test holds them to it."""

_SCRIPTS = {
    "ARABIC": "ar fa ps sd ur",
    "ARMENIAN": "hy",
    "BENGALI": "as bn",
    "CJK": "ja yue zh",
    "CYRILLIC": "ba be bg kk mk mn ru sr tg tt uk uz",
    "DEVANAGARI": "hi mr ne sa",
    "ETHIOPIC": "am",
    "GEORGIAN": "ka",
    "GREEK": "el",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "HANGUL": "ko",
    "HEBREW": "he yi",
    "HIRAGANA": "ja",
    "KANNADA": "kn",
    "KATAKANA": "ja",
    "KHMER": "km",
    "LAO": "lo",
    "LATIN": "sr uz",
    "MALAYALAM": "ml",
    "MYANMAR": "my",
    "SINHALA": "si",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAI": "th",
    "TIBETAN": "bo",
}
"""How the names of a script's letters begin in Unicode: the languages written in it. All others are
written in Latin letters alone."""


def _script_of(letter: str) -> str:
    return unicodedata.name(letter, "").split(" ")[0]


def _scripts_of(language: str) -> set[str]:
    return {name for name, written in _SCRIPTS.items() if language in written.split()} or {"LATIN"}


def is_in_another_script(text: str, language: str) -> bool:
    """Whether most letters are of a script that the language is not written in; in Latin ones are
    names, and what is quoted."""
    others = _SCRIPTS.keys() - _scripts_of(language) - {"LATIN"}
    letters = [each for each in text if each.isalpha()]
    return 2 * sum(_script_of(each) in others for each in letters) > len(letters)


def letter_beginnings(language: str) -> frozenset[bytes]:
    """The first one and two bytes in UTF-8 of the letters that the language is written in."""
    own = _scripts_of(language)
    letters = [each for each in map(chr, range(0xD800)) if _script_of(each) in own]
    return frozenset(each.encode()[:size] for each in letters for size in (1, 2))


SAME_LANGUAGES = {
    "cmn": "zh",
    "fil": "tl",
    "in": "id",
    "iw": "he",
    "ji": "yi",
    "jv": "jw",
    "nb": "no",
}
"""Other subtags of the IANA registry for languages that Whisper names otherwise."""


def primary_language(tag: str) -> str:
    """The language of a BCP 47 tag as Whisper names it: ``pt`` of ``pt-BR``, ``no`` of ``nb``."""
    primary = tag.split("-", maxsplit=1)[0].lower()
    return SAME_LANGUAGES.get(primary, primary)
