"""What every backend of a task promises, tried on each profile of the registry.

The neural profiles run tiny random-weight models of the registry's own classes,
loaded from a models folder; the embedded profile runs as it is shipped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from models.backends.questions import MOST_SENTENCES, QUOTE_CHARACTERS
from models.conformance import check_answers, examinations
from models.contracts import (
    ACTIVITY_WINDOW_SAMPLES,
    SAMPLE_RATE_HZ,
    AudioChunk,
    Picture,
    Question,
    Samples,
    SpokenText,
)
from models.provider import LocalModels
from models.registry import REGISTRY
from models.tasks import (
    ALIGN,
    ANSWER,
    CLASSIFY_CONTENT,
    DETECT_OBJECTS,
    DETECT_SPEECH,
    EMBED_PHRASES,
    EMBED_PICTURES,
    EMBED_TEXT,
    READ_TEXT,
    SEGMENT_SPEAKERS,
    TASKS,
    TRANSCRIBE,
    TRANSLATE_SPEECH,
    Task,
)
from tests.models.tiny_models import fill_models_folder, save_tiny_pictures
from tests.tables import every

NEURAL = "cpu"
OTHER_NEURAL = "cpu-transformers"
PROFILES = ("packaged", NEURAL)
TRANSCRIBING = (*PROFILES, OTHER_NEURAL)
of_every_transcriber = pytest.mark.parametrize("models", TRANSCRIBING, indirect=True)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models_dir = tmp_path_factory.mktemp("models")
    fill_models_folder(models_dir, NEURAL)
    return fill_models_folder(models_dir, OTHER_NEURAL)


@pytest.fixture(params=PROFILES)
def models(request: pytest.FixtureRequest, folder: Path) -> LocalModels:
    """A profile, ``packaged`` without the folder unless it is asked for."""
    profile, pulled = request.param if isinstance(request.param, tuple) else (request.param, None)
    return LocalModels(profile, None if profile == "packaged" and not pulled else folder)


def test_the_neural_profiles_differ_in_their_transcriber_alone() -> None:
    one, other = REGISTRY[NEURAL], REGISTRY[OTHER_NEURAL]
    assert {task for task in TASKS if one.get(task) != other.get(task)} == {
        TRANSCRIBE,
        ALIGN,
        TRANSLATE_SPEECH,
    }


def sound(seconds: float, seed: int = 0) -> Samples:
    """Syllable-like bursts: louder and softer, with pauses."""
    generator = np.random.default_rng(seed)
    count = round(seconds * SAMPLE_RATE_HZ)
    times = np.arange(count) / SAMPLE_RATE_HZ
    loudness = np.clip(np.sin(2 * np.pi * 3 * times), 0, 1)
    tone = sum(np.sin(2 * np.pi * 130 * (n + 1) * times) / (n + 1) for n in range(8))
    noise = generator.standard_normal(count)
    return np.asarray(0.1 * loudness * (tone + 0.2 * noise), dtype=np.float32)


def picture(seed: int) -> Picture:
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 255, (6, 8, 3), dtype=np.uint8)
    return np.asarray(np.kron(coarse, np.ones((20, 20, 1))), dtype=np.uint8)


@of_every_transcriber
@every("task", TASKS, ids=lambda task: task.name)
def test_every_model_keeps_to_the_contract_of_its_task(
    models: LocalModels, task: Task[Any]
) -> None:
    """As `vas models check` tries a plug-in, but for the report of the sample: tiny random models
    find speech and objects in noise."""
    if models.profile == OTHER_NEURAL and REGISTRY[NEURAL].get(task) == REGISTRY[OTHER_NEURAL].get(
        task
    ):
        return
    model = models.find(task)
    assert model is not None or task.optional or task not in REGISTRY[models.profile]
    for name, examine in examinations(task, model) if model is not None else ():
        if name != "sample":
            examine()


@of_every_transcriber
@every("seconds", [0.0, 0.1, 1.0, 7.3, 30.0])
def test_words_are_in_order_inside_the_chunk(models: LocalModels, seconds: float) -> None:
    chunk = AudioChunk(sound(seconds))
    check_answers(TRANSCRIBE, [chunk], models.get(TRANSCRIBE).transcribe([chunk]))


@of_every_transcriber
@every("seconds", [0.0, 1.0, 7.3, 30.0, 30.1])
def test_known_words_are_in_order_inside_the_sound(models: LocalModels, seconds: float) -> None:
    """Or none has a time, as beyond what a model takes."""
    words = ("Good", "mor-ning,", "42", "Zürich", "–", "你好。")
    passage = SpokenText(sound(seconds), words, "en")
    [found] = models.get(ALIGN).align([passage])
    check_answers(ALIGN, [passage], [found])
    assert bool(found) == (0 < seconds <= 30)


@of_every_transcriber
def test_more_words_than_a_model_takes_get_no_times(models: LocalModels) -> None:
    passage = SpokenText(sound(5.0), ("word",) * 600, "en")
    assert models.get(ALIGN).align([passage]) == [()]


def test_nothing_is_said_in_digital_silence(models: LocalModels) -> None:
    silence = np.zeros(3 * SAMPLE_RATE_HZ, np.float32)
    probabilities = models.get(DETECT_SPEECH).find_speech(silence)
    assert (probabilities < 0.15).all()


@every("seconds", [0.0, 0.01, 1.0, 2.0, 11.7])
def test_speech_has_a_probability_for_each_frame(models: LocalModels, seconds: float) -> None:
    samples = sound(seconds)
    check_answers(DETECT_SPEECH, [samples], [models.get(DETECT_SPEECH).find_speech(samples)])
    windows = [samples[:ACTIVITY_WINDOW_SAMPLES], sound(1.0)]
    check_answers(SEGMENT_SPEAKERS, windows, models.get(SEGMENT_SPEAKERS).segment(windows))


def test_classifiers_score_the_same_labels_for_every_still(models: LocalModels) -> None:
    if CLASSIFY_CONTENT not in REGISTRY[models.profile]:
        with pytest.raises(KeyError):
            models.get(CLASSIFY_CONTENT)
        return
    scores = models.get(CLASSIFY_CONTENT).classify([picture(1), picture(2)])
    assert scores[0].keys() == scores[1].keys() == {"normal", "nsfw"}


def test_lines_of_text_lie_in_the_picture_top_to_bottom(models: LocalModels) -> None:
    still = np.full((360, 640, 3), 30, np.uint8)
    for row, text in ((120, "HARBOUR"), (240, "STREET")):
        cv2.putText(still, text, (120, row), cv2.FONT_HERSHEY_SIMPLEX, 2.0, (240, 240, 240), 4)
    nothing, lines = models.get(READ_TEXT).read([picture(1), still])
    assert nothing == ()
    assert [line.text for line in lines] == ["HARBOUR", "STREET"]
    assert lines[0].box.top < lines[1].box.top
    assert all(line.confidence >= 0.9 for line in lines)


def test_things_that_are_found_have_labels_and_lie_inside_the_picture(models: LocalModels) -> None:
    detector = models.get(DETECT_OBJECTS)
    stills = [picture(seed) for seed in range(5)]
    found = detector.find(stills)
    check_answers(DETECT_OBJECTS, stills, found)
    # The tiny models find objects in noise.
    assert any(found) != (models.profile == "packaged")
    for item in itertools.chain(*found):
        assert item.label in {"person", "dog", "car"}
        assert item.confidence >= 0.5


def test_an_answer_quotes_passages_that_there_are(models: LocalModels) -> None:
    answerer = models.find(ANSWER)
    assert (answerer is None) == (ANSWER not in REGISTRY[models.profile])
    if answerer is None:
        return
    asked = [Question("When?", ("It rains.", "On Sunday."), "en"), Question("Who?", ("Anna.",))]
    answers = answerer.answer(asked)
    assert len(answers) == 2
    for question, sentences in zip(asked, answers, strict=True):
        assert len(sentences) <= MOST_SENTENCES
        for cited in (each for sentence in sentences for each in sentence.citations):
            assert 0 <= cited.passage < len(question.passages)
            assert 0 < len(cited.quote) <= QUOTE_CHARACTERS


def test_texts_are_unit_vectors_that_do_not_depend_on_their_neighbours(models: LocalModels) -> None:
    embedder = models.find(EMBED_TEXT)
    assert embedder is not None
    texts = ["the fox runs", "a red car stops here", "fox", "good " * 500]
    together = embedder.embed_texts(texts)
    check_answers(EMBED_TEXT, texts, list(together))
    alone = np.concatenate([embedder.embed_texts([text]) for text in texts])
    assert together == pytest.approx(alone, abs=1e-3)


with_pictures = pytest.mark.parametrize(
    "models", [("packaged", True), (NEURAL, True)], indirect=True, ids=lambda value: value[0]
)
"""``packaged`` too, where that one checkpoint was pulled."""


@with_pictures
def test_pictures_are_unit_vectors_that_are_near_where_they_look_alike(models: LocalModels) -> None:
    embedder = models.get(EMBED_PICTURES)
    darker = (picture(1) * 0.9).astype(np.uint8)
    stills = [picture(1), darker, picture(2), np.zeros((90, 160, 3), np.uint8)] * 2
    together = embedder.embed_pictures(stills)
    check_answers(EMBED_PICTURES, stills, list(together))
    alone = np.concatenate([embedder.embed_pictures([still]) for still in stills])
    assert together == pytest.approx(alone, abs=1e-3)
    one, alike, other, black = together[:4]
    assert one @ alike > max(one @ other, one @ black)


@with_pictures
def test_phrases_are_unit_vectors_of_the_space_of_pictures(models: LocalModels) -> None:
    embedder = models.get(EMBED_PHRASES)
    phrases = ["a red car", "a blue car on the beach", "A RED CAR", "night " * 500]
    together = embedder.embed_phrases(phrases)
    check_answers(EMBED_PHRASES, phrases, together)
    vectors = np.array([each.vector for each in together])
    alone = [embedder.embed_phrases([phrase])[0].vector for phrase in phrases]
    assert vectors == pytest.approx(np.array(alone), abs=1e-3)
    assert vectors[0] == pytest.approx(vectors[2])
    assert vectors[0] @ vectors[1] < 0.999


@with_pictures
def test_probabilities_of_phrases_are_those_of_the_model_itself(
    models: LocalModels, tmp_path: Path
) -> None:
    """As the model of the same class computes them from a picture and a phrase."""
    pictures, phrases = models.get(EMBED_PICTURES), models.get(EMBED_PHRASES)
    from transformers import AutoModel, AutoProcessor, AutoTokenizer

    folder = save_tiny_pictures(tmp_path)
    text = AutoTokenizer.from_pretrained(folder)(
        ["a red car"], padding="max_length", max_length=64, return_tensors="pt"
    )
    still = AutoProcessor.from_pretrained(folder)(images=[picture(1)], return_tensors="pt")
    whole = AutoModel.from_pretrained(folder)(input_ids=text["input_ids"], **still)
    [phrase] = phrases.embed_phrases(["a red car"])
    [vector] = pictures.embed_pictures([picture(1)])
    logit = phrase.scale * float(vector @ phrase.vector) + phrase.bias
    assert logit == pytest.approx(whole.logits_per_image.item(), abs=0.05)
    probability = 1 / (1 + np.exp(-logit))
    assert phrase.least_cosine(probability) == pytest.approx(vector @ phrase.vector, abs=1e-4)


@with_pictures
@every("shape", [(1, 9, 3), (2, 2, 3), (3, 40, 3), (4320, 7680, 3)], ids="{0[1]}x{0[0]}".format)
def test_pictures_of_any_size_have_a_vector(models: LocalModels, shape: tuple[int, ...]) -> None:
    embedder = models.get(EMBED_PICTURES)
    [vector] = embedder.embed_pictures([np.full(shape, (200, 10, 10), np.uint8)])
    [small] = embedder.embed_pictures([np.full((32, 32, 3), (200, 10, 10), np.uint8)])
    assert vector == pytest.approx(small, abs=2e-2), "all of one colour"


def test_sentences_that_mean_alike_are_near() -> None:
    embedder = LocalModels().find(EMBED_TEXT)
    assert embedder is not None
    one, alike, other = embedder.embed_texts(
        ["A man is playing the guitar.", "Somebody plays a guitar.", "It will rain tomorrow."]
    )
    assert one @ alike > 0.7
    assert one @ other < 0.3
