"""Former names of settings, replicas of model tasks, and values that are refused in a sentence."""

from __future__ import annotations

import json
import warnings

import pytest

from models.tasks import DESCRIBE_SCENES, TRANSCRIBE
from models.weights import RemoteModel
from serve_app.settings import InvalidSettingsError, Settings, load_settings
from tests.tables import every


@every(
    ("text", "networks"),
    [
        ("127.0.0.0/8", ["127.0.0.0/8"]),
        ("127.0.0.1, 10.1.0.0/16,fd00::/8", ["127.0.0.1/32", "10.1.0.0/16", "fd00::/8"]),
        ('["127.0.0.0/8", "10.1.0.0/16"]', ["127.0.0.0/8", "10.1.0.0/16"]),
        ("", []),
    ],
    ids=["one", "commas", "JSON", "none"],
)
def test_networks_are_a_list_with_commas_or_in_json(
    monkeypatch: pytest.MonkeyPatch, text: str, networks: list[str]
) -> None:
    monkeypatch.setenv("VAS_ALLOWED_NETWORKS", text)
    monkeypatch.setenv("VAS_TRUSTED_PROXIES", text)
    settings = Settings()
    assert [str(each) for each in settings.allowed_networks] == networks
    assert settings.trusted_proxies == settings.allowed_networks


@every(
    "address",
    [
        "javascript:alert(1)",
        "video.example.com",
        "//video.example.com",
        "ftp://video.example.com",
        "https://",
        "https://[",
        "https://video.example.com:port",
        "https://user:password@video.example.com",
        "https://video.example.com?a=b",
        "https://video.example.com/#top",
        "https://video.example.com/a b",
        "https://video.example.com/\x00",
        "",
    ],
)
@every("name", ["public_url", "grafana_url", "s3_public_endpoint_url"])
def test_an_address_that_no_client_can_use_is_refused_without_its_value(
    name: str, address: str
) -> None:
    with pytest.raises(InvalidSettingsError) as refused:
        load_settings(**{name: address})
    sentence = f"VAS_{name.upper()}: Input should be like https://video.example.com."
    assert str(refused.value) == sentence


@every(
    ("given", "used"),
    [
        ("https://video.example.com", "https://video.example.com"),
        ("https://video.example.com/", "https://video.example.com"),
        ("http://127.0.0.1:8000//", "http://127.0.0.1:8000"),
        ("https://example.com/video/", "https://example.com/video"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_an_address_has_no_slash_at_its_end(given: str, used: str) -> None:
    assert load_settings(public_url=given).public_url == used


def test_replicas_are_set_task_by_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAS_MODEL_REPLICAS", '{"describe_scenes": 3, "embed_pictures": 2}')
    settings = Settings()
    assert settings.model_replicas == {"describe_scenes": 3, "embed_pictures": 2}
    assert [settings.most_replicas(each) for each in (DESCRIBE_SCENES, TRANSCRIBE)] == [3, 2]
    assert Settings(model_min_replicas=5).most_replicas(TRANSCRIBE) == 5


@every(
    ("text", "sentence"),
    [
        (
            '{"dream": 1}',
            r"VAS_MODEL_REPLICAS\[dream\]: 'dream' is none of transcribe, ",
        ),
        ('{"transcribe": 0}', r"VAS_MODEL_REPLICAS\[transcribe\]: .*greater than or equal to 1"),
        ('{"transcribe": 257}', r"VAS_MODEL_REPLICAS\[transcribe\]: .*less than or equal to 256"),
        ("4", "VAS_MODEL_REPLICAS: Input should be a valid dictionary"),
    ],
)
def test_a_bad_number_of_replicas_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    monkeypatch.setenv("VAS_MODEL_REPLICAS", text)
    with pytest.raises(InvalidSettingsError, match=sentence):
        load_settings()


def test_models_of_other_servers_are_a_table_by_task(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"url": "http://gpu:8000/v1/", "model": "qwen3-vl", "concurrency": 8}
    monkeypatch.setenv("VAS_REMOTE_MODELS", json.dumps({"describe_scenes": entry}))
    found = load_settings().remote_models
    assert found == {"describe_scenes": RemoteModel("http://gpu:8000/v1", "qwen3-vl", None, 8)}
    for table, sentence in (
        ({"align": entry}, "'align' is none of transcribe, describe_scenes, summarize, "),
        ({"describe_scenes": entry | {"url": "gpu:8000"}}, "Input should be like https://"),
        ({"describe_scenes": entry | {"concurrency": 0}}, "a concurrency of 1 to 256"),
        ({"describe_scenes": entry | {"key": "s3cret"}}, "Unexpected keyword argument"),
        ({"describe_scenes": {"url": "http://gpu"}}, r"\[model\]: Field required"),
    ):
        monkeypatch.setenv("VAS_REMOTE_MODELS", json.dumps(table))
        with pytest.raises(InvalidSettingsError, match=sentence) as refused:
            load_settings()
        assert "s3cret" not in str(refused.value)


def test_settings_without_deprecated_names_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Settings()
