"""Whose address a keyless request is counted under, behind proxies or not."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.requests import Request

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def client_address(request: Request, trusted: Sequence[Network]) -> str:
    """The nearest address that is not one of our proxies'.

    ``X-Forwarded-For`` grows to the right, so it is read from there, and only
    as far as each hop that added to it is trusted: what a client wrote itself
    is never believed.
    """
    peer = request.client.host if request.client else "unknown"
    hops = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
    address = peer
    for hop in reversed([hop.strip() for hop in hops if hop.strip()]):
        if not _is_trusted(address, trusted):
            break
        if not _is_address(hop):
            break
        address = hop
    return address


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_trusted(text: str, trusted: Sequence[Network]) -> bool:
    if not _is_address(text):
        return False
    address = ipaddress.ip_address(text)
    return any(address in network for network in trusted)
