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
    UrlError,
    UrlNotAllowedError,
    check_callback_url,
    check_redirect,
    check_url_text,
)
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


NOT_ALLOWED = {
    "user": "http://me@example.com/",
    "user and password": "http://me:secret@example.com/",
    "empty user": "http://@example.com/",
    "user that looks like a host": "http://example.com@127.0.0.1/",
    "loopback": "http://127.0.0.1/",
    "with a port": "http://127.0.0.1:8080/",
    "decimal": "http://2130706433/",
    "hexadecimal": "http://0x7f000001/",
    "hexadecimal parts": "http://0x7f.0x0.0x0.0x1/",
    "octal": "http://0177.0.0.1/",
    "octal whole": "http://017700000001/",
    "two parts": "http://127.1/",
    "three parts": "http://127.0.1/",
    "mixed": "http://0x7f.1/",
    "trailing dot": "http://127.0.0.1./",
    "zero": "http://0/",
    "empty hexadecimal": "http://0x/",
    "full width": "http://１２７.０.０.１/",
    "ideographic dots": "http://127。0。0。1/",
    "circled": "http://①②⑦.⓪.⓪.①/",
    "encoded": "http://%31%32%37.0.0.1/",
    "encoded dots": "http://127%2e0%2e0%2e1/",
    "metadata": "http://169.254.169.254/latest/meta-data/",
    "metadata decimal": "http://2852039166/",
    "IPv6 loopback": "http://[::1]/",
    "IPv6 unspecified": "http://[::]/",
    "mapped": "http://[::ffff:127.0.0.1]/",
    "mapped hexadecimal": "http://[::ffff:7f00:1]/",
    "zone": "http://[fe80::1%25eth0]/",
    "zone unencoded": "http://[fe80::1%eth0]/",
    "public with a zone": "http://[2606:4700:4700::1111%25eth0]/",
    "localhost": "http://localhost/",
    "localhost upper case": "http://LOCALHOST/",
    "localhost with a dot": "http://localhost./",
    "localhost long s": "http://localhoſt/",
    "localhost soft hyphen": "http://local\u00adhost/",
    "localhost encoded": "http://%6cocalhost/",
    "below localhost": "http://a.localhost/",
    "localdomain": "http://localhost.localdomain/",
    "mDNS": "http://printer.local/",
    "internal": "http://api.internal/",
    "Google metadata": "http://metadata.google.internal/",
    "Google metadata short": "http://metadata/",
    "single label": "http://postgres:5432/",
    "home": "http://router.home.arpa/",
    "lan": "http://nas.lan/",
    "corp": "http://wiki.corp/",
    "intranet": "http://wiki.intranet/",
    "Kubernetes": "http://kubernetes.default.svc/",
}


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


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "media", "nas.lan", "127.1"])
def test_operators_networks_let_their_addresses_and_names_through(host: str) -> None:
    assert check_url_text(f"http://{host}:8080/", policy=ALLOWED_LOOPBACK).port == 8080


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1/", "http://[::1]/", "http://metadata.google.internal/"]
)
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


@pytest.mark.parametrize(
    "url", ["http://example.com/", "https://10.0.0.1/", "https://localhost/", "example.com"]
)
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
