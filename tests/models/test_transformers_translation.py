"""M2M100 through transformers: texts of several languages in one batch, as the library has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, M2M100ForConditionalGeneration
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

from models.backends.transformers import pick_hardware, texts
from models.backends.transformers.texts import M2M100Translator
from models.contracts import WRITTEN_LANGUAGES, SourceText, written_language
from tests.models.tiny_models import save_tiny_translator

TEXTS = [
    SourceText("good morning", "en", "de"),
    SourceText("guten tag allerseits wie geht es", "de-AT", "fr"),
    SourceText("good morning", "en", "fr"),
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_translator(tmp_path_factory.mktemp("m2m100"))


@pytest.fixture(scope="module")
def model(folder: Path) -> M2M100Translator:
    return M2M100Translator(str(folder), pick_hardware("cpu"), max_batch=2)


def test_texts_are_translated_as_the_library_does_it_one_by_one(
    folder: Path, model: M2M100Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_MOST_TOKENS", 40)  # random weights come to no end
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    network: Any = M2M100ForConditionalGeneration.from_pretrained(folder).eval()
    expected = []
    for text in TEXTS:
        tokenizer.src_lang = text.language.split("-")[0]
        output = network.generate(
            **tokenizer([text.text], return_tensors="pt"),
            forced_bos_token_id=tokenizer.get_lang_id(text.target),
            num_beams=5,
            max_length=40,
        )
        expected += tokenizer.batch_decode(output[:, 2:], skip_special_tokens=True)
    assert model.translate_texts(TEXTS) == expected
    assert expected[0] != expected[2], "the language makes a difference"


def test_the_languages_are_those_of_the_tokenizer(model: M2M100Translator) -> None:
    assert {*FAIRSEQ_LANGUAGE_CODES["m2m100"]} == WRITTEN_LANGUAGES
    names = [written_language(tag) for tag in ("pt-BR", "nb", "fil", "jv", "yue", "nn-NO")]
    assert names == ["pt", "no", "tl", "jv", "zh", "no"]
    with pytest.raises(ValueError, match="tlh"):
        model.translate_texts([SourceText("nuqneH", "tlh", "en")])
