"""Local TCP connections of forwarded ports. The other half has its own version, also written by hand."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

from sandlot.sdk._sync.backend import CHUNK_BYTES

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with a time of 0: close() sends RST (socket(7))."""


class Connection:
    """A connection from a client on this machine."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link

    def read(self) -> bytes:
        """Wait for the next bytes; b"" once the client has closed its direction."""
        return self._link.recv(CHUNK_BYTES)

    def write(self, data: bytes) -> None:
        """Send bytes; waits while the client does not read."""
        self._link.sendall(data)

    def end(self) -> None:
        """Close our direction."""
        self._link.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """Reset the connection, so that the client sees that it is incomplete. Idempotent."""
        with suppress(OSError):
            self._link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close()

    def close(self) -> None:
        """Close the connection and wake a thread that reads from it. Idempotent."""
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RD)
        self._link.close()


class Listener:
    """A local listener that serves each connection in its own thread until the listener is closed."""

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        self._serve = serve
        self._server: socket.socket | None = None
        self._lock = threading.Lock()
        self._served: dict[threading.Thread, Connection] = {}

    def start(self, host: str, port: int) -> int:
        """Listen and return the port.

        Raises:
            OSError: The port is in use.
        """
        self._server = socket.create_server((host, port), backlog=128)
        threading.Thread(target=self._accept, args=(self._server,), name="sandlot-forward", daemon=True).start()
        return int(self._server.getsockname()[1])

    def stop(self) -> None:
        """Stop listening. Idempotent."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
            server.close()

    def close(self) -> None:
        """Stop listening and end all connections. Idempotent."""
        self.stop()
        with self._lock:
            served = dict(self._served)
        for connection in served.values():
            connection.cut()
        for thread in served:
            thread.join()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                link, _ = server.accept()
            except OSError:
                return
            connection = Connection(link)
            thread = threading.Thread(target=self._attend, args=(connection,), name="sandlot-forward", daemon=True)
            with self._lock:
                if self._server is None:
                    connection.cut()
                    return
                self._served[thread] = connection
                thread.start()

    def _attend(self, connection: Connection) -> None:
        try:
            self._serve(connection)
        finally:
            connection.close()
            with self._lock:
                self._served.pop(threading.current_thread(), None)
