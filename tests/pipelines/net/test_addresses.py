"""Which IP addresses are public, and what an operator's policy changes about it."""

from __future__ import annotations

import ipaddress
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.net.addresses import (
    AddressPolicy,
    UrlNotAllowedError,
    check_answers,
    is_internal_name,
    is_public_address,
)
from tests.tables import every

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "93.184.215.14",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.1",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2001:200::1",
    "2001:4860:4860::8888",
    "2606:4700:4700::1111",
    "2a00:1450:4001:81b::200e",
    "3ffd:ffff::1",
]

REFUSED = {
    "unspecified": "0.0.0.0",  # noqa: S104 - an address to refuse
    "this network": "0.1.2.3",
    "private 10": "10.0.0.1",
    "private 10 last": "10.255.255.255",
    "carrier NAT first": "100.64.0.0",
    "carrier NAT last": "100.127.255.255",
    "Alibaba metadata": "100.100.100.200",
    "loopback": "127.0.0.1",
    "loopback last": "127.255.255.255",
    "Azure platform": "168.63.129.16",
    "link-local": "169.254.0.1",
    "metadata": "169.254.169.254",
    "container credentials": "169.254.170.2",
    "private 172 first": "172.16.0.0",
    "private 172 last": "172.31.255.255",
    "protocol assignments": "192.0.0.1",
    "Oracle metadata": "192.0.0.192",
    "documentation 1": "192.0.2.1",
    "6to4 relay": "192.88.99.1",
    "private 192": "192.168.1.1",
    "benchmark first": "198.18.0.0",
    "benchmark last": "198.19.255.255",
    "documentation 2": "198.51.100.1",
    "documentation 3": "203.0.113.1",
    "multicast first": "224.0.0.1",
    "multicast last": "239.255.255.255",
    "reserved": "240.0.0.1",
    "broadcast": "255.255.255.255",
    "IPv6 unspecified": "::",
    "IPv6 loopback": "::1",
    "compatible": "::127.0.0.1",
    "compatible public": "::8.8.8.8",
    "mapped loopback": "::ffff:127.0.0.1",
    "mapped metadata": "::ffff:169.254.169.254",
    "mapped public": "::ffff:8.8.8.8",
    "translated": "::ffff:0:127.0.0.1",
    "NAT64 loopback": "64:ff9b::127.0.0.1",
    "NAT64 public": "64:ff9b::8.8.8.8",
    "NAT64 local": "64:ff9b:1::10.0.0.1",
    "discard": "100::1",
    "Teredo": "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "IPv6 benchmark": "2001:2::1",
    "ORCHID": "2001:10::1",
    "ORCHID 2": "2001:20::1",
    "drone": "2001:30::1",
    "IPv6 documentation": "2001:db8::1",
    "IPv6 documentation 2": "3fff::1",
    "6to4 loopback": "2002:7f00:1::",
    "6to4 private": "2002:a00:1::1",
    "6bone": "3ffe::1",
    "unassigned": "4000::1",
    "segment routing": "5f00::1",
    "unique local fc": "fc00::1",
    "unique local fd": "fd12:3456:789a::1",
    "AWS IPv6 metadata": "fd00:ec2::254",
    "Google IPv6 metadata": "fd20:ce::254",
    "IPv6 link-local": "fe80::1",
    "link-local with a zone": "fe80::1%eth0",
    "public with a zone": "2606:4700:4700::1111%eth0",
    "site-local": "fec0::1",
    "IPv6 multicast": "ff02::1",
    "IPv6 multicast global": "ff0e::1",
    "ISATAP": "2a00:1450::5efe:10.0.0.1",
    "ISATAP global": "2a00:1450::200:5efe:10.0.0.1",
    "no address": "example.com",
    "short form": "127.1",
    "nothing": "",
}


@every("text", PUBLIC)
def test_a_global_unicast_address_is_public(text: str) -> None:
    assert is_public_address(text)
    assert is_public_address(ipaddress.ip_address(text))


@every("text", REFUSED.values(), ids=REFUSED.keys())
def test_a_special_address_is_not_public(text: str) -> None:
    assert not is_public_address(text)


@given(st.ip_addresses())
def test_nothing_is_public_that_the_standard_library_calls_special(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if is_public_address(address):
        assert address.is_global
        assert not any((address.is_multicast, address.is_reserved, address.is_unspecified))


@given(st.ip_addresses(v=4))
def test_no_ipv6_form_of_an_ipv4_address_is_public(address: ipaddress.IPv4Address) -> None:
    for prefix in ("::", "::ffff:0:0", "::ffff:0:0:0", "64:ff9b::", "64:ff9b:1::", "2002::"):
        base = int(ipaddress.IPv6Address(prefix))
        shift = 80 if prefix == "2002::" else 0
        assert not is_public_address(ipaddress.IPv6Address(base | int(address) << shift))


def networks(*texts: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


@every(
    ("allowed", "refused", "address", "permitted"),
    [
        ((), (), "8.8.8.8", True),
        ((), (), "10.0.0.1", False),
        (("10.0.0.0/8",), (), "10.0.0.1", True),
        (("10.0.0.0/8",), (), "192.168.0.1", False),
        (("10.0.0.0/8",), (), "8.8.8.8", True),
        (("10.0.0.0/8",), ("10.1.0.0/16",), "10.1.0.1", False),
        ((), ("8.8.8.0/24",), "8.8.8.8", False),
        ((), ("2a00:64::/96",), "2a00:64::7f00:1", False),
        (("127.0.0.0/8",), (), "::ffff:127.0.0.1", False),
        (("fd00::/8",), (), "fd12::1", True),
        (("fd00::/8",), (), "fd00:ec2::254", False),
        (("169.254.0.0/16",), (), "169.254.169.254", False),
        (("169.254.0.0/16",), (), "169.254.1.1", True),
        (("100.64.0.0/10",), (), "100.100.100.200", False),
        (("168.0.0.0/8",), (), "168.63.129.16", False),
        (("fe80::/10",), (), "fe80::1%eth0", False),
    ],
)
def test_a_policy_opens_and_closes_networks_but_never_metadata(
    allowed: tuple[str, ...], refused: tuple[str, ...], address: str, permitted: bool
) -> None:
    policy = AddressPolicy(networks(*allowed), networks(*refused))
    assert policy.permits(ipaddress.ip_address(address)) is permitted


def test_a_policy_travels_to_other_processes() -> None:
    policy = AddressPolicy(networks("10.0.0.0/8", "fd00::/8"), allow_http_callbacks=True)
    assert pickle.loads(pickle.dumps(policy)) == policy  # noqa: S301 - our own bytes


@every(
    ("host", "internal"),
    [
        ("localhost", True),
        ("db", True),
        ("a.localhost", True),
        ("printer.local", True),
        ("a.b.internal", True),
        ("nas.home.arpa", True),
        ("x.lan", True),
        ("x.corp", True),
        ("wiki.intranet", True),
        ("api.default.svc", True),
        ("metadata.google.internal", True),
        ("metadata.tencentyun.com", True),
        ("local.example.com", False),
        ("notlocal", True),
        ("my-lan.example.com", False),
        ("home.example.org", False),
        ("evillan.com", False),
    ],
)
def test_internal_names_are_known_by_their_end(host: str, internal: bool) -> None:
    assert is_internal_name(host) is internal


@every(
    ("host", "answers", "allowed"),
    [
        ("a.example.com", ["8.8.8.8"], ()),
        ("a.example.com", ["8.8.8.8", "2606:4700:4700::1111"], ()),
        ("a.example.com", ["10.0.0.1", "8.8.8.8"], ("10.0.0.0/8",)),
        ("nas.lan", ["10.0.0.1"], ("10.0.0.0/8",)),
    ],
)
def test_answers_that_may_be_used_come_back_in_order(
    host: str, answers: list[str], allowed: tuple[str, ...]
) -> None:
    policy = AddressPolicy(networks(*allowed))
    found = check_answers(host, answers, policy)
    assert [str(address) for address in found] == answers


@every(
    ("host", "answers", "allowed"),
    [
        ("a.example.com", [], ()),
        ("a.example.com", ["10.0.0.1"], ()),
        ("a.example.com", ["8.8.8.8", "10.0.0.1"], ()),
        ("a.example.com", ["8.8.8.8", "fe80::1%eth0"], ()),
        ("a.example.com", ["8.8.8.8", "nonsense"], ()),
        ("nas.lan", ["8.8.8.8"], ("10.0.0.0/8",)),
        ("nas.lan", ["10.0.0.1", "8.8.8.8"], ("10.0.0.0/8",)),
        ("metadata.example.com", ["169.254.169.254"], ("169.254.0.0/16",)),
    ],
)
def test_one_bad_answer_spoils_them_all(
    host: str, answers: list[str], allowed: tuple[str, ...]
) -> None:
    with pytest.raises(UrlNotAllowedError):
        check_answers(host, answers, AddressPolicy(networks(*allowed)))
