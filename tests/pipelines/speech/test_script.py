"""Chinese in one of its scripts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipelines.speech.languages import LanguageChoice
from pipelines.speech.words import in_one_script
from tests.tables import every


@every(
    ("texts", "script", "kept", "found"),
    [
        pytest.param(["我们", "說", "话"], None, (), ["我们", "说", "话"], id="mostly simplified"),
        pytest.param(["我們", "說", "话"], None, (), ["我們", "說", "話"], id="mostly traditional"),
        pytest.param(
            ["头", "发", "發", "展"], "Hant", (), ["頭", "髮", "發", "展"], id="by phrases"
        ),
        pytest.param(["里", "面", "程"], "Hant", (), ["裡", "面", "程"], id="forms of Taiwan"),
        pytest.param(["臺", "灣", "说"], "Hans", ("臺灣",), ["臺", "灣", "说"], id="a kept word"),
        pytest.param(
            ["台", "灣", "說"], None, ("台湾",), ["台", "湾", "說"], id="spelt like the kept"
        ),
        pytest.param(["大", "OK", "小"], None, (), ["大", "OK", "小"], id="no difference"),
        pytest.param([], None, ("臺灣",), [], id="nothing"),
    ],
)
def test_chinese_has_one_script(
    texts: Sequence[str], script: str | None, kept: tuple[str, ...], found: list[str]
) -> None:
    assert in_one_script(texts, script, kept) == found


@every(
    ("choice", "script"),
    [
        (LanguageChoice(), None),
        (LanguageChoice("zh"), None),
        (LanguageChoice("zh-Hant"), "Hant"),
        (LanguageChoice("zh-hk"), "Hant"),
        (LanguageChoice("cmn-Hans-TW"), "Hans"),
        (LanguageChoice(None, ("en-SG", "zh-CN")), "Hans"),
        (LanguageChoice(None, ("en-HK", "ja")), None),
    ],
    ids=str,
)
def test_a_tag_may_name_a_script_or_a_place(choice: LanguageChoice, script: str | None) -> None:
    assert choice.chinese_script == script
