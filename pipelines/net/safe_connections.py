"""Connections under the safe HTTP transport: resolved once, judged, pinned, bounded.

These are network backends for httpcore. The HTTP layer above keeps speaking of
the host by name (``Host`` header, TLS server name, certificate), while the
connection below goes to an address that was judged.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import IPv6Address
from typing import Any, TypeVar

import httpcore

from pipelines.net.address_ranges import IPAddress
from pipelines.net.addresses import AddressPolicy
from pipelines.net.connection_rules import (
    BlockedAddressError,
    Bounds,
    TransportLimits,
    Watch,
    address_shares,
    judged_answers,
    judged_host,
    no_connection_error,
    resolution_errors,
    tls_error,
)

Resolver = Callable[[str, int], Sequence[str]]
"""Host name and port to the texts of its addresses; raises OSError where there are none."""

T = TypeVar("T")


def system_addresses(host: str, port: int) -> list[str]:
    """Resolve by the operating system."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class BoundedStream(httpcore.NetworkStream):
    """A connected socket, read and written in slices, within bounds."""

    def __init__(self, connection: socket.socket, bounds: Bounds) -> None:
        self._socket = connection
        self.bounds = bounds

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        size = self.bounds.readable_bytes(max_bytes)
        waits = self.bounds.waits(timeout, httpcore.ReadTimeout())
        data = self._in_slices(lambda: self._socket.recv(size), waits, httpcore.ReadError)
        self.bounds.was_read(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        rest = memoryview(buffer)
        while rest:
            waits = self.bounds.waits(timeout, httpcore.WriteTimeout())
            sent = self._in_slices(self._sender(rest), waits, httpcore.WriteError)
            rest = rest[sent:]

    def close(self) -> None:
        self._socket.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        try:
            secured = ssl_context.wrap_socket(
                self._socket, server_hostname=server_hostname, do_handshake_on_connect=False
            )
            self._socket = secured
            waits = self.bounds.waits(timeout, httpcore.ConnectTimeout())
            self._in_slices(secured.do_handshake, waits, httpcore.ConnectError)
        except httpcore.ConnectError as error:
            self.close()
            raise tls_error(error) from error
        except BaseException:
            self.close()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "ssl_object":
            return self._socket if isinstance(self._socket, ssl.SSLSocket) else None
        if info == "is_readable":
            return bool(select.select([self._socket], [], [], 0)[0])
        return None

    def _sender(self, data: memoryview) -> Callable[[], int]:
        return lambda: self._socket.send(data)

    def _in_slices(
        self, action: Callable[[], T], waits: Iterator[float], broken: type[Exception]
    ) -> T:
        for seconds in waits:
            self._socket.settimeout(seconds)
            try:
                return action()
            except TimeoutError:
                continue
            except OSError as error:
                raise broken(str(error)) from error
        raise AssertionError("unreachable")


class PinningBackend(httpcore.NetworkBackend):
    """Resolves, judges, and connects to what was judged."""

    def __init__(
        self, policy: AddressPolicy, limits: TransportLimits, resolver: Resolver, watch: Watch
    ) -> None:
        self._policy = policy
        self._limits = limits
        self._resolver = resolver
        self._watch = watch

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        bounds = Bounds(self._limits, self._watch)
        addresses = self._addresses(host, port, bounds.waits(timeout, httpcore.ConnectTimeout()))
        failure: Exception | None = None
        for address, share in address_shares(addresses, timeout or self._limits.connect_seconds):
            try:
                waits = bounds.waits(share, httpcore.ConnectTimeout())
                return BoundedStream(_connect(address, port, waits), bounds)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise no_connection_error(failure) from failure

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        raise BlockedAddressError("Unix sockets are not used")

    def _addresses(self, host: str, port: int, waits: Iterator[float]) -> tuple[IPAddress, ...]:
        name, literal = judged_host(host, self._policy)
        if literal is not None:
            return (literal,)
        answers = _in_background(lambda: self._resolved(name, port), waits)
        return judged_answers(name, answers, self._policy)

    def _resolved(self, name: str, port: int) -> Sequence[str]:
        with resolution_errors():
            return self._resolver(name, port)


def _in_background(call: Callable[[], T], waits: Iterator[float]) -> T:
    """``call`` in a thread of its own: getaddrinfo can neither be bounded nor stopped."""
    outcome: list[T | BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)
        ended.set()

    threading.Thread(target=run, name="resolve", daemon=True).start()
    for seconds in waits:
        if ended.wait(seconds):
            break
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _connect(address: IPAddress, port: int, waits: Iterator[float]) -> socket.socket:
    """A TCP connection to exactly ``address``; raises httpcore.ConnectError."""
    connection = _new_socket(address)
    try:
        status = connection.connect_ex((str(address), port))
        if status == errno.EINPROGRESS:
            status = _outcome(connection, waits)
        _raise_for_status(status)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        connection.close()
        raise
    return connection


def _new_socket(address: IPAddress) -> socket.socket:
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    try:
        connection = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        # A machine without IPv6, for one; another address may do.
        raise httpcore.ConnectError(str(error)) from error
    connection.setblocking(False)
    return connection


def _outcome(connection: socket.socket, waits: Iterator[float]) -> int:
    """Wait for a connection under way; its error number, 0 for success."""
    poll = select.poll()
    poll.register(connection, select.POLLOUT)
    for seconds in waits:
        if poll.poll(seconds * 1000):
            break
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def _raise_for_status(status: int) -> None:
    if status != 0:
        raise httpcore.ConnectError(os.strerror(status))
