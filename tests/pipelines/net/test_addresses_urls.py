"""What the text of a URL shows: whether it is one, and whether it may be used."""

from __future__ import annotations

import ipaddress

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.net.addresses import (
    AddressPolicy,
    InvalidUrlError,
    Provider,
    UrlError,
    UrlNotAllowedError,
    check_callback_url,
    check_redirect,
    check_url_text,
    direct_download_url,
)
from tests.pipelines.net.ssrf_cases import LOOPBACK_FORMS
from tests.tables import every

CANONICAL = {
    "plain": ("http://example.com/a.mp4", "http://example.com/a.mp4"),
    "no path": ("https://example.com", "https://example.com/"),
    "query without path": ("https://example.com?a=1", "https://example.com/?a=1"),
    "upper case": ("HTTPS://EXAMPLE.Com/A", "https://example.com/A"),
    "default port": ("https://example.com:443/", "https://example.com/"),
    "empty port": ("http://example.com:/", "http://example.com/"),
    "other port": ("http://example.com:8080/", "http://example.com:8080/"),
    "fragment": ("http://example.com/a#b@c", "http://example.com/a"),
    "trailing dot": ("http://example.com./a", "http://example.com/a"),
    "umlaut": ("http://bücher.example.com/", "http://xn--bcher-kva.example.com/"),
    "sharp s": ("http://faß.example.com/", "http://xn--fa-hia.example.com/"),
    "full width": ("http://ｅｘａｍｐｌｅ.com/", "http://example.com/"),
    "ideographic dot": ("http://example。com/", "http://example.com/"),
    "encoded host": ("http://ex%61mple.com/", "http://example.com/"),
    "underscore": ("http://my_bucket.example.com/", "http://my_bucket.example.com/"),
    "encoded path kept": ("http://example.com/a%2Fb%20c?x=%2B+'", "http://example.com/a%2Fb%20c?x=%2B+'"),
    "path beyond ASCII": ("http://example.com/ü?ä=€", "http://example.com/%C3%BC?%C3%A4=%E2%82%AC"),
    "at sign in path": ("http://example.com/@me", "http://example.com/@me"),
    "public IPv4": ("http://8.8.8.8/", "http://8.8.8.8/"),
    "public IPv4 as a number": ("http://134744072/", "http://8.8.8.8/"),
    "public IPv6": ("http://[2606:4700:4700::1111]:81/", "http://[2606:4700:4700::1111]:81/"),
    "long IPv6": ("http://[2606:4700:4700:0:0:0:0:1111]/", "http://[2606:4700:4700::1111]/"),
}  # fmt: skip


@every(("url", "canonical"), CANONICAL.values(), ids=CANONICAL.keys())
def test_a_public_url_is_made_canonical(url: str, canonical: str) -> None:
    parsed = check_url_text(url)
    assert parsed.url == canonical
    assert check_url_text(parsed.url) == parsed


INVALID = {
    "empty": "",
    "no scheme": "example.com/a",
    "relative": "/a/b",
    "scheme-relative": "//example.com/a",
    "ftp": "ftp://example.com/",
    "file": "file:///etc/passwd",
    "gopher": "gopher://example.com/",
    "data": "data:text/plain,x",
    "javascript": "javascript:alert(1)",
    "one slash": "http:/example.com",
    "no slash": "http:example.com",
    "no host": "http:///a",
    "only a port": "http://:80/",
    "port 0": "http://example.com:0/",
    "port too large": "http://example.com:65536/",
    "port negative": "http://example.com:-1/",
    "port a word": "http://example.com:http/",
    "port in full width": "http://example.com:８０/",
    "two ports": "http://example.com:80:80/",
    "space before": " http://example.com/",
    "space after": "http://example.com/ ",
    "space within": "http://exa mple.com/",
    "no-break space": "http://example.com/\u00a0",
    "tab": "http://exam\tple.com/",
    "line feed": "http://example.com/\nX: y",
    "carriage return": "http://example.com\r/",
    "null": "http://example.com\x00.evil.com/",
    "delete": "http://example.com/\x7f",
    "backslash": "http://example.com\\@evil.com/",
    "backslashes": "http:\\\\example.com/",
    "lone surrogate": "http://example.com/\ud800",
    "byte order mark": "\ufeffhttp://example.com/",
    "encoded null in host": "http://example.com%00.evil.com/",
    "encoded slash in host": "http://example.com%2fevil.com/",
    "encoded non-UTF-8 host": "http://%ff.com/",
    "doubly encoded host": "http://%2531.com/",
    "full-width slash in host": "http://example.com／evil.com/",
    "account sign": "http://℀.example.com/",
    "empty label": "http://a..example.com/",
    "leading dot": "http://.example.com/",
    "only a dot": "http://./",
    "long label": f"http://{'a' * 64}.com/",
    "long name": f"http://{'a.' * 130}com/",
    "five numbers": "http://1.2.3.4.5/",
    "number too large": "http://4294967296/",
    "byte too large": "http://256.1.1.1/",
    "not octal": "http://08.8.8.8/",
    "name ending in a number": "http://example.1/",
    "bare IPv6": "http://2606:4700::1/",
    "bracket open": "http://[2606:4700::1/",
    "bracket closed": "http://2606:4700::1]/",
    "empty brackets": "http://[]/",
    "IPv4 in brackets": "http://[8.8.8.8]/",
    "future address": "http://[v1.8.8.8.8]/",
    "text after bracket": "http://[2606:4700::1]x/",
    "join in Latin": "http://a\u200db.com/",
    "too long": "http://example.com/" + "a" * 8192,
}


@every("url", INVALID.values(), ids=INVALID.keys())
def test_what_is_no_absolute_http_url_is_invalid(url: str) -> None:
    with pytest.raises(InvalidUrlError):
        check_url_text(url)


NOT_ALLOWED = {name: form.format(port=8080) for name, form in LOOPBACK_FORMS.items()} | {
    "user": "http://me@example.com/",
    "user that looks like a host": "http://example.com@127.0.0.1/",
    "zero": "http://0/",
    "metadata": "http://169.254.169.254/latest/meta-data/",
    "mapped": "http://[::ffff:127.0.0.1]/",
    "zone": "http://[fe80::1%25eth0]/",
    "localhost": "http://localhost/",
    "intranet": "http://wiki.intranet/",
}
"""That none of ``ssrf_cases`` gets a connection is the rule of ``test_ssrf``."""


@every("url", NOT_ALLOWED.values(), ids=NOT_ALLOWED.keys())
def test_what_points_inside_is_not_allowed(url: str) -> None:
    with pytest.raises(UrlNotAllowedError):
        check_url_text(url)


@given(st.ip_addresses(v=4), st.sampled_from(["{}", "0x{:x}", "0{:o}", "00{:o}", "0X{:08X}"]))
def test_every_notation_of_an_ipv4_address_is_read_as_that_address(
    address: ipaddress.IPv4Address, notation: str
) -> None:
    everything = AddressPolicy((ipaddress.IPv4Network("0.0.0.0/0"),))
    number = int(address)
    whole = notation.format(number)
    tail = ".".join([notation.format(number >> 24), notation.format(number & 0xFFFFFF)])
    dotted = ".".join(notation.format(byte) for byte in address.packed)
    for host in (whole, tail, dotted):
        try:
            assert check_url_text(f"http://{host}/", policy=everything).host == str(address)
        except UrlNotAllowedError:
            assert not everything.permits(address)


@given(st.text(max_size=40))
def test_no_text_breaks_the_check(text: str) -> None:
    for url in (text, f"http://{text}", f"https://[{text}]/", f"http://example.com{text}"):
        try:
            parsed = check_url_text(url)
        except UrlError:
            continue
        assert parsed.url.isascii()
        assert check_url_text(parsed.url) == parsed


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Z"]), max_size=40))
def test_the_http_client_reads_the_same_host_as_we_do(text: str) -> None:
    for url in (f"http://{text}/", f"http://example.com:81/{text}", f"http://a.{text}.com?{text}"):
        try:
            parsed = check_url_text(url)
        except UrlError:
            continue
        read = httpx.URL(parsed.url)
        assert read.raw_host.decode("ascii") == parsed.host
        assert (read.port or 80) == parsed.port


def test_messages_never_repeat_the_url() -> None:
    for url in ("http://me:hunter2@example.com/", "http://10.9.8.7/", "ftp://secret-host/"):
        with pytest.raises(UrlError) as refused:
            check_url_text(url)
        assert not {"hunter2", "10.9.8.7", "secret-host"} & set(str(refused.value).split())


ALLOWED_LOOPBACK = AddressPolicy((ipaddress.ip_network("127.0.0.0/8"),))


@every("host", ["127.0.0.1", "localhost", "media", "nas.lan", "127.1"])
def test_operators_networks_let_their_addresses_and_names_through(host: str) -> None:
    assert check_url_text(f"http://{host}:8080/", policy=ALLOWED_LOOPBACK).port == 8080


@every("url", ["http://10.0.0.1/", "http://[::1]/", "http://metadata.google.internal/"])
def test_operators_networks_open_nothing_else(url: str) -> None:
    with pytest.raises(UrlNotAllowedError):
        check_url_text(url, policy=ALLOWED_LOOPBACK)


@every(
    ("location", "target"),
    [
        ("/b?c=1", "https://example.com/b?c=1"),
        ("b.mp4", "https://example.com/videos/b.mp4"),
        ("//cdn.example.com/b", "https://cdn.example.com/b"),
        ("http://cdn.example.com/b", "http://cdn.example.com/b"),
        ("https://cdn.example.com/a clip.mp4", "https://cdn.example.com/a%20clip.mp4"),
        ("?page=2", "https://example.com/videos/a?page=2"),
    ],
)
def test_a_redirect_is_read_relative_to_where_it_came_from(location: str, target: str) -> None:
    base = check_url_text("https://example.com/videos/a")
    assert check_redirect(base, location).url == target


@every(
    "location",
    [
        "file:///etc/passwd",
        "http://127.0.0.1/",
        "//127.0.0.1/",
        "//me@example.com/",
        "http://[::1/",
        "http://exam\tple.com/",
        "\\\\127.0.0.1\\a",
        "http:////127.0.0.1/",
    ],
)
def test_a_redirect_is_judged_like_any_url(location: str) -> None:
    base = check_url_text("https://example.com/videos/a")
    with pytest.raises(UrlError):
        check_redirect(base, location)


def test_a_callback_is_public_https() -> None:
    assert check_callback_url("https://hooks.example.com:8443/x").port == 8443


@every("url", ["http://example.com/", "https://10.0.0.1/", "https://localhost/", "example.com"])
def test_any_other_callback_is_refused(url: str) -> None:
    with pytest.raises(UrlError):
        check_callback_url(url)


def test_only_port_443_where_that_is_asked_for() -> None:
    assert check_callback_url("https://example.com/", standard_port_only=True).port == 443
    with pytest.raises(UrlNotAllowedError):
        check_callback_url("https://example.com:8443/", standard_port_only=True)


def test_an_address_in_an_allowed_network_may_have_any_port() -> None:
    policy = AddressPolicy(ALLOWED_LOOPBACK.allowed_networks)
    url = "https://127.0.0.1:8443/"
    assert check_callback_url(url, policy=policy, standard_port_only=True).port == 8443
    for other in ("https://8.8.8.8:8443/", "https://host.example.com:8443/"):
        with pytest.raises(UrlNotAllowedError):
            check_callback_url(other, policy=policy, standard_port_only=True)


def test_http_callbacks_are_the_operators_choice() -> None:
    loopback = ALLOWED_LOOPBACK.allowed_networks
    with pytest.raises(InvalidUrlError):
        check_callback_url("http://127.0.0.1:9/", policy=AddressPolicy(loopback))
    open_policy = AddressPolicy(loopback, allow_http_callbacks=True)
    parsed = check_callback_url("http://127.0.0.1:9/", policy=open_policy, standard_port_only=True)
    assert parsed.port == 9


ID = "1A2b3C4d5E6f7G8h9I0j_K-lMnOpQrStU"
DRIVE = f"https://drive.usercontent.google.com/download?id={ID}&export=download&confirm=t"


@every(
    "link",
    [
        f"https://drive.google.com/file/d/{ID}/view",
        f"https://drive.google.com/file/d/{ID}/view?usp=sharing",
        f"https://drive.google.com/file/d/{ID}/preview",
        f"https://drive.google.com/file/d/{ID}",
        f"https://drive.google.com/file/u/1/d/{ID}/edit",
        f"https://drive.google.com/a/example.org/file/d/{ID}/view",
        f"https://drive.google.com/open?id={ID}",
        f"https://drive.google.com/open?usp=drive_fs&id={ID}",
        f"https://drive.google.com/uc?id={ID}",
        f"https://drive.google.com/uc?export=download&id={ID}",
        f"https://drive.google.com/u/0/uc?id={ID}&export=download",
        f"https://docs.google.com/uc?export=download&id={ID}",
        f"http://drive.google.com/uc?id={ID}",
        f"https://drive.usercontent.google.com/download?id={ID}&export=download&authuser=0",
        f"https://www.googleapis.com/drive/v3/files/{ID}?alt=media",
    ],
)
def test_google_drive_links_lead_past_the_page_that_asks(link: str) -> None:
    assert direct_download_url(link, Provider.GDRIVE) == DRIVE
    assert direct_download_url(DRIVE, Provider.GDRIVE) == DRIVE


def test_old_google_drive_links_keep_their_resource_key() -> None:
    link = f"https://drive.google.com/file/d/{ID}/view?usp=sharing&resourcekey=0-abc_DEF"
    assert direct_download_url(link, Provider.GDRIVE) == f"{DRIVE}&resourcekey=0-abc_DEF"


def test_with_a_token_google_drive_is_asked_through_its_api() -> None:
    link = f"https://drive.google.com/file/d/{ID}/view"
    assert direct_download_url(link, Provider.GDRIVE, has_token=True) == (
        f"https://www.googleapis.com/drive/v3/files/{ID}?alt=media&supportsAllDrives=true"
    )


@every(
    ("link", "direct"),
    [
        (
            "https://www.dropbox.com/s/abc123def456/clip.mp4?dl=0",
            "https://www.dropbox.com/s/abc123def456/clip.mp4?dl=1",
        ),
        (
            "https://www.dropbox.com/s/abc123def456/clip.mp4",
            "https://www.dropbox.com/s/abc123def456/clip.mp4?dl=1",
        ),
        (
            "https://www.dropbox.com/scl/fi/x1y2z3/My%20clip.mov?rlkey=k3y&st=q1&dl=0",
            "https://www.dropbox.com/scl/fi/x1y2z3/My%20clip.mov?rlkey=k3y&st=q1&dl=1",
        ),
        (
            "https://dropbox.com/scl/fi/x1y2z3/a.mov?rlkey=k3y&raw=1",
            "https://www.dropbox.com/scl/fi/x1y2z3/a.mov?rlkey=k3y&dl=1",
        ),
        (
            "https://dl.dropboxusercontent.com/s/abc/clip.mp4",
            "https://dl.dropboxusercontent.com/s/abc/clip.mp4",
        ),
        (
            "https://uc1234.dl.dropboxusercontent.com/cd/0/get/x/file",
            "https://uc1234.dl.dropboxusercontent.com/cd/0/get/x/file",
        ),
    ],
)
def test_dropbox_links_ask_for_the_download(link: str, direct: str) -> None:
    assert direct_download_url(link, Provider.DROPBOX) == direct
    assert check_url_text(direct).url == direct


@every(
    ("link", "provider"),
    [
        (f"https://example.com/file/d/{ID}/view", Provider.GDRIVE),
        (f"https://drive.google.com.evil.com/file/d/{ID}/view", Provider.GDRIVE),
        (f"https://drive.google.com/drive/folders/{ID}", Provider.GDRIVE),
        (f"https://docs.google.com/document/d/{ID}/edit", Provider.GDRIVE),
        ("https://drive.google.com/file/d/short/view", Provider.GDRIVE),
        ("https://drive.google.com/open?id=../../x", Provider.GDRIVE),
        ("https://drive.google.com/uc", Provider.GDRIVE),
        (f"https://www.googleapis.com/open?id={ID}", Provider.GDRIVE),
        ("https://www.dropbox.com/s/abc/clip.mp4", Provider.GDRIVE),
        (f"https://drive.google.com/file/d/{ID}/view", Provider.DROPBOX),
        ("https://www.dropbox.com.evil.com/s/abc/clip.mp4", Provider.DROPBOX),
        ("https://evildl.dropboxusercontent.com/s/abc", Provider.DROPBOX),
        ("https://www.dropbox.com/sh/abc/def?dl=0", Provider.DROPBOX),
        ("https://www.dropbox.com/scl/fo/abc/def?rlkey=k", Provider.DROPBOX),
        ("https://www.dropbox.com/home", Provider.DROPBOX),
        ("https://www.dropbox.com/", Provider.DROPBOX),
    ],
)
def test_what_is_no_link_to_one_file_of_that_provider_is_invalid(
    link: str, provider: Provider
) -> None:
    with pytest.raises(InvalidUrlError):
        direct_download_url(link, provider)
