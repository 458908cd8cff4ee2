"""Tables: addresses and names that are not the public internet. Data alone.

From the IANA special-purpose registries for IPv4 and IPv6 (RFC 6890 and the
RFCs named beside each entry), and the metadata services of cloud providers.
"""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

REFUSED_IPV4 = tuple(
    IPv4Network(network)
    for network, _why in (
        ("0.0.0.0/8", "this network, unspecified (RFC 791, 1122)"),
        ("10.0.0.0/8", "private (RFC 1918)"),
        ("100.64.0.0/10", "carrier-grade NAT (RFC 6598); Alibaba Cloud's metadata too"),
        ("127.0.0.0/8", "loopback (RFC 1122)"),
        ("168.63.129.16/32", "Azure's platform address, public only by its number"),
        ("169.254.0.0/16", "link-local (RFC 3927); cloud metadata"),
        ("172.16.0.0/12", "private (RFC 1918)"),
        ("192.0.0.0/24", "protocol assignments (RFC 6890); Oracle's metadata too"),
        ("192.0.2.0/24", "documentation (RFC 5737)"),
        ("192.31.196.0/24", "AS112 (RFC 7535)"),
        ("192.52.193.0/24", "automatic multicast tunnels (RFC 7450)"),
        ("192.88.99.0/24", "6to4 relays, withdrawn (RFC 7526)"),
        ("192.168.0.0/16", "private (RFC 1918)"),
        ("192.175.48.0/24", "AS112 (RFC 7534)"),
        ("198.18.0.0/15", "benchmarks (RFC 2544)"),
        ("198.51.100.0/24", "documentation (RFC 5737)"),
        ("203.0.113.0/24", "documentation (RFC 5737)"),
        ("224.0.0.0/4", "multicast (RFC 5771)"),
        ("240.0.0.0/4", "reserved (RFC 1112), broadcast (RFC 919)"),
    )
)

GLOBAL_IPV6 = IPv6Network("2000::/3")
"""The only space IANA assigns as global unicast. Everything beside it is refused: loopback,
mapped, compatible, translated, NAT64 (64:ff9b), discard, unique local, link- and site-local,
multicast, segment routing."""

REFUSED_IPV6 = tuple(
    IPv6Network(network)
    for network, _why in (
        ("2001::/23", "protocol assignments: Teredo, benchmarks, ORCHID, drones (RFC 2928)"),
        ("2001:db8::/32", "documentation (RFC 3849)"),
        ("2002::/16", "6to4: any IPv4 address inside (RFC 3056)"),
        ("2620:4f:8000::/48", "AS112 (RFC 7534)"),
        ("3ffe::/16", "6bone, given back (RFC 3701)"),
        ("3fff::/20", "documentation (RFC 9637)"),
    )
)

ISATAP_MARKS = frozenset({0x0000_5EFE, 0x0200_5EFE})
"""Upper half of an interface identifier that carries an IPv4 address (RFC 5214)."""

METADATA_ADDRESSES: frozenset[IPAddress] = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Azure, Google, DigitalOcean, OpenStack, …
        "169.254.170.2",  # AWS container credentials
        "169.254.170.23",  # AWS EKS pod identity
        "169.254.0.23",  # Tencent Cloud
        "100.100.100.200",  # Alibaba Cloud
        "168.63.129.16",  # Azure's platform address
        "192.0.0.192",  # Oracle Cloud
        "fd00:ec2::254",  # AWS
        "fd00:ec2::23",  # AWS EKS pod identity
        "fd20:ce::254",  # Google
        "fd00:42::42",  # Scaleway
    )
)
"""Refused even where the operator allows a network around them: they hand out credentials."""

METADATA_NAMES = frozenset(
    {
        "metadata.google.internal",
        "metadata.goog",
        "metadata.azure.internal",
        "metadata.tencentyun.com",
        "metadata.platformequinix.com",
        "metadata.packet.net",
        "instance-data.ec2.internal",
    }
)

INTERNAL_SUFFIXES = frozenset(
    {
        "localhost",
        "localdomain",
        "local",
        "internal",
        "intranet",
        "private",
        "lan",
        "home",
        "corp",
        "home.arpa",
        "svc",
    }
)
"""Names below these are private by RFC 6761, 6762, 8375, by ICANN's reservation or by custom."""
