"""Deprecated names of settings, and values that are refused in a sentence."""

from __future__ import annotations

import warnings

import pytest

from serve_app.deployment.cluster import ClusterSettingsError, cluster_settings
from serve_app.settings import DEPRECATED_NAMES, InvalidSettingsError, Settings, load_settings

RENAMED = [pytest.param(old, new, id=old) for old, new in DEPRECATED_NAMES.items()]


@pytest.mark.parametrize(("old", "new"), RENAMED)
def test_a_deprecated_variable_sets_the_present_name_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    monkeypatch.setenv(f"VAS_{old.upper()}", "7")
    with pytest.warns(FutureWarning, match=f"VAS_{new.upper()}"):
        settings = Settings()
    assert getattr(settings, new) == 7


@pytest.mark.parametrize(("old", "new"), RENAMED)
def test_the_present_name_takes_precedence(
    monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    monkeypatch.setenv(f"VAS_{old.upper()}", "7")
    monkeypatch.setenv(f"VAS_{new.upper()}", "8")
    with pytest.warns(FutureWarning):
        settings = Settings()
    assert getattr(settings, new) == 8


@pytest.mark.parametrize(("old", "new"), RENAMED)
def test_a_cluster_accepts_deprecated_names(old: str, new: str) -> None:
    with (
        pytest.warns(FutureWarning, match=f"VAS_{new.upper()}"),
        pytest.raises(ClusterSettingsError) as refused,
    ):
        cluster_settings({old: 7})
    assert old not in str(refused.value)


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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
@pytest.mark.parametrize("name", ["public_url", "grafana_url", "s3_public_endpoint_url"])
def test_an_address_that_no_client_can_use_is_refused_without_its_value(
    name: str, address: str
) -> None:
    with pytest.raises(InvalidSettingsError) as refused:
        load_settings(**{name: address})
    sentence = f"VAS_{name.upper()}: Input should be like https://video.example.com."
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
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


def test_deprecated_names_are_no_settings_and_present_ones_are() -> None:
    assert not DEPRECATED_NAMES.keys() & Settings.model_fields.keys()
    assert set(DEPRECATED_NAMES.values()) <= Settings.model_fields.keys()


def test_settings_without_deprecated_names_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Settings()
