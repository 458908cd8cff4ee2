"""A connection to the API that a test can cut, and slow down: what a browser's own tools cannot."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

_BLOCK_BYTES = 64 * 1024
_RESET = struct.pack("ii", 1, 0)


class Line:
    """Forwards TCP connections to a port of loopback until it is cut."""

    def __init__(self, port: int, *, bytes_a_second: int) -> None:
        self._target = port
        self._pause_seconds = _BLOCK_BYTES / bytes_a_second
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self.is_cut = False
        self.root = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Line]:
        threading.Thread(target=self._accept, daemon=True).start()
        yield self
        self.cut()
        # Wakes the thread that accepts, too.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def cut(self) -> None:
        """End all connections in the middle of what they do; new ones end at once."""
        self.is_cut = True
        for each in list(self._open):
            with contextlib.suppress(OSError):
                # Closed with a reset, which a browser that only sends notices at once.
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.is_cut = False

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_cut:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            self._open |= {client, server}
            for pair, pause in (((client, server), self._pause_seconds), ((server, client), 0.0)):
                threading.Thread(target=self._forward, args=(*pair, pause), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, pause: float) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(_BLOCK_BYTES):
                target.sendall(block)
                if len(block) > _BLOCK_BYTES // 4:
                    time.sleep(pause)
            target.shutdown(socket.SHUT_WR)
        self._open -= {source}
        source.close()
