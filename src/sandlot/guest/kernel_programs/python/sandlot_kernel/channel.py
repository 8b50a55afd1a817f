"""The kernel's end of the socket to the guest, which carries messages of ``values``.

Invariants:
- A message is always sent completely. If a cell is interrupted while the guest does not read, the rest of the message is sent before the next
  message.
- A message that the guest would refuse is shortened and contains a note, because the guest would kill the kernel.
- A message normally takes one system call, because each takes tens of microseconds in gVisor.
- Waiting until the guest reads can be interrupted; all other changes of the channel's state cannot (``interrupts``).
- The socket has a high descriptor, because programs that close "all" descriptors rarely get that far.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import time
from collections import deque

from . import values  # type: ignore[attr-defined]  # protocol/values.py is put beside this module when it is shipped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MESSAGE_MAX_BYTES = 8 * 1024 * 1024
"""Longest message that the guest accepts (``protocol.connection.MESSAGE_MAX_BYTES``)."""
MAX_SHORT_CHARS = 2000
"""Maximum length of a text in a shortened message."""
MAX_SHORT_LINES = 100
"""Maximum number of traceback lines in a shortened message."""
TOO_LARGE = "[left out, because it is too large]"
CHUNK_BYTES = 65536
SYNC_TIMEOUT_S = 1.0
"""Maximum time to wait for a confirmation of the guest."""
MIN_DESCRIPTOR = 700
"""Lowest descriptor of the kernel's own files; RLIMIT_NOFILE is usually 1,024."""


def duplicate_high(fd: int) -> int:
    """Return a high duplicate of a descriptor that is closed by exec(2)."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, MIN_DESCRIPTOR)
    except OSError:  # a lower RLIMIT_NOFILE
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def encode(message: dict[str, Any]) -> bytes:
    """Return an encoded message, shortened if the guest would refuse it."""
    try:
        raw: bytes = values.encode_message(message)
    except (values.EncodingError, RecursionError):
        return bytes(values.encode_message(shortened(message)))
    size = len(raw) - values.HEAD_BYTES
    # A value takes at least one byte, so a short message has few values.
    is_too_large = size > MESSAGE_MAX_BYTES or (size > values.MAX_ITEMS and _items(message) > values.MAX_ITEMS)
    return bytes(values.encode_message(shortened(message))) if is_too_large else raw


def shortened(message: dict[str, Any]) -> dict[str, Any]:
    """Return a shortened message of the same kind, with all required fields and a note.

    Args:
        message: A message of the kernel. Its values are texts, numbers, representations of a result, and lines of a traceback.
    """
    short: dict[str, Any] = {}
    for name, item in message.items():
        if name == "data" and message["event"] == "display":
            short[name] = {"text/plain": TOO_LARGE}
        elif isinstance(item, str):
            short[name] = _short(item)
        elif isinstance(item, (list, tuple)):
            short[name] = [_short(line) for line in item[-MAX_SHORT_LINES:]] + [TOO_LARGE]
        elif isinstance(item, (bytes, bytearray)):
            short[name] = bytes(item[:CHUNK_BYTES])
        elif not isinstance(item, dict):
            short[name] = item  # metadata is left out
    return short


def _short(text: Any) -> str:
    return str.__str__(text)[:MAX_SHORT_CHARS] if isinstance(text, str) else TOO_LARGE


def _items(value: Any) -> int:
    """Return the number of items in a value, as ``values.decode`` counts them."""
    if isinstance(value, dict):
        return 2 * len(value) + sum(map(_items, value.values()))
    return len(value) + sum(map(_items, value)) if isinstance(value, (list, tuple)) else 0


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes to a descriptor, in a forked child. Errors are ignored."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError:
            return


class Channel:
    """Messages to and from the guest.

    Args:
        fd: Descriptor of the socket, which is moved to a high number.
    """

    def __init__(self, fd: int) -> None:
        high_fd = duplicate_high(fd)
        os.close(fd)
        self._socket = socket.socket(fileno=high_fd)
        self._socket.setblocking(True)  # for reading; writes use MSG_DONTWAIT
        self._in = values.MessageReader()
        self._out = bytearray()
        self._received: deque[Any] = deque()
        """Messages that arrived during the wait for a confirmation."""
        self._sync_number = 0
        self.is_synced = True
        """True if the guest has confirmed all messages, or has been requested to."""

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    @property
    def queued_bytes(self) -> int:
        """Number of queued bytes that were not sent."""
        return len(self._out)

    @property
    def has_message(self) -> bool:
        """True if a message was received and not yet taken."""
        return bool(self._received) or bool(self._in.has_message)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def queue(self, message: dict[str, Any]) -> None:
        """Queue a message. The caller must hold the lock of ``Output``."""
        raw = encode(message)
        if message["event"] != "started":  # the guest does not read the pipes before it handles this one
            self.is_synced = message["event"] == "sync"
        self._out += raw

    def send_queued(self, give_up: Callable[[], bool]) -> bool:
        """Send the queued messages.

        Args:
            give_up: Returns True to stop waiting for the guest to read.

        Returns:
            True if all messages were sent.

        Raises:
            OSError: The guest or a cell has closed the socket.
        """
        out = self._out
        while out:
            try:
                sent = self._socket.send(out[:CHUNK_BYTES], socket.MSG_DONTWAIT)
            except BlockingIOError:
                if give_up():
                    return False
                self._wait(select.POLLOUT, 0.1)
                continue
            del out[:sent]
        return True

    def next_sync(self) -> int:
        """Return the number for a new ``sync`` message. The guest confirms it after it has handled all earlier messages."""
        self._sync_number += 1
        return self._sync_number

    def wait_synced(self, give_up: Callable[[], bool]) -> None:
        """Wait for the confirmation of the last ``sync``, at most ``SYNC_TIMEOUT_S``: with a slow client, the guest confirms late.

        Args:
            give_up: Returns True to stop waiting.

        Raises:
            OSError: The guest or a cell has closed the socket.
        """
        end_s = time.monotonic() + SYNC_TIMEOUT_S
        while not give_up() and (rest_s := end_s - time.monotonic()) > 0:
            if not self._in.has_message and not self._wait(select.POLLIN, min(rest_s, 0.1)):
                continue
            try:
                message = self._receive()
            except EOFError:
                raise OSError("the guest has closed the socket") from None
            if message["op"] != "synced":
                self._received.append(message)
            elif message["number"] == self._sync_number:
                return
        self.is_synced = False

    def receive(self) -> Any:
        """Return the next message.

        Raises:
            EOFError: The guest has closed the socket.
        """
        return self._received.popleft() if self._received else self._receive()

    def _receive(self) -> Any:
        while (raw := self._in.take()) is None:
            part = self._socket.recv(CHUNK_BYTES)
            if not part:
                raise EOFError
            self._in.feed(part)
        return values.decode(raw)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a message. Return True if there is one before the timeout."""
        return self.has_message or self._wait(select.POLLIN, timeout_s)

    def _wait(self, events: int, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._socket.fileno(), events)
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            rest = None if end_s is None else max(0.0, end_s - time.monotonic()) * 1000
            found = poll.poll(rest)
            if found or rest is not None:
                return bool(found)
