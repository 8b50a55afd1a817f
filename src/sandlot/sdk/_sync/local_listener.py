"""Local connections for those who forward ports; its twin is written by hand too."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

from sandlot.sdk._sync.backend import CHUNK_BYTES

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: close() tells the far side by RST (socket(7))."""


class Connection:
    """One client on this machine."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link

    def read(self) -> bytes:
        """What it sends next; b"" once it sends no more."""
        return self._link.recv(CHUNK_BYTES)

    def write(self, data: bytes) -> None:
        """Send it something; waits while it takes nothing."""
        self._link.sendall(data)

    def end(self) -> None:
        """Send no more."""
        self._link.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """End it so that it knows that it is not whole. Idempotent."""
        with suppress(OSError):
            self._link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close()

    def close(self) -> None:
        """End it; who waits for it in another thread is woken. Idempotent."""
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RD)
        self._link.close()


class Listener:
    """Connections of this machine, each served in a thread of its own until the listener is closed."""

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        self._serve = serve
        self._server: socket.socket | None = None
        self._lock = threading.Lock()
        self._served: dict[threading.Thread, Connection] = {}

    def begin(self, host: str, port: int) -> int:
        """Listen; the port.

        Raises:
            OSError: The port is somebody else's.
        """
        self._server = socket.create_server((host, port), backlog=128)
        threading.Thread(target=self._accept, args=(self._server,), name="sandlot-forward", daemon=True).start()
        return int(self._server.getsockname()[1])

    def stop(self) -> None:
        """Listen no more. Idempotent."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # whoever accepts in another thread is woken
            server.close()

    def close(self) -> None:
        """Listen no more, and end what is served. Idempotent."""
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
